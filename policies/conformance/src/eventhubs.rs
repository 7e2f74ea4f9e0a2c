//! The Event Hubs processors, where the rule is the same; where it is not, what differs and why
//! (`policies/DIFFERENCES.md`).

use std::collections::BTreeMap;

use fulcrum_guest::claiming::even;
use fulcrum_guest::testing::claiming::{Group, member};
use serde_json::Value;

use crate::{Planner, number, settle, texts, vectors};

/// A group as a decision file describes it, and the row of `me`. `expired` says which ages count as expired.
fn group(case: &Value, expired: impl Fn(f64) -> bool) -> (Group, usize) {
    let partitions = number(&case["partitions"]);
    let mut owners: BTreeMap<usize, String> = BTreeMap::new();
    for record in case["records"].as_array().expect("records") {
        let partition: usize = record[0].as_str().expect("a text").parse().expect("a number");
        let owner = record[1].as_str().expect("a text");
        if !owner.is_empty() && !expired(record[2].as_f64().expect("an age")) {
            owners.insert(partition, owner.to_owned());
        }
    }
    let mut ids: Vec<&str> = owners.values().map(String::as_str).chain(["me"]).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut group = Group::of(ids.iter().map(|id| member(id, &[0])).collect(), &[("t", partitions)]);
    for (partition, owner) in &owners {
        group.owner[*partition] = ids.iter().position(|id| id == owner).expect("it is there") as i32;
    }
    let me = ids.iter().position(|id| *id == "me").expect("it is there");
    ask_first(&mut group, me);
    (group, me)
}

/// Gives the group a name with which a spare partition goes to `row` rather than to others that lack it as much: there
/// everybody decides alone, and the one that is asked comes first.
fn ask_first(group: &mut Group, row: usize) {
    let name = (0..).map(|at| format!("g{at}")).find(|name| {
        group.name.clone_from(name);
        even::rotation(&group.cycle()) == row
    });
    group.name = name.expect("names never end");
}

/// What `me` gains in one plan: free partitions, and taken ones.
fn gained(planner: &mut impl Planner, strategy: &str, group: &Group, me: usize) -> (Vec<u32>, Vec<u32>) {
    // The strategies are called as our policies are.
    let changes = planner.plan(strategy, "{}", group);
    let mine = changes.partition.iter().zip(&changes.member).filter(|(_, row)| **row as usize == me);
    mine.map(|(&partition, _)| partition).partition(|&partition| group.owner[partition as usize] < 0)
}

fn gains(planner: &mut impl Planner, strategy: &str, group: &Group, me: usize) -> (usize, usize) {
    let (free, taken) = gained(planner, strategy, group, me);
    (free.len(), taken.len())
}

/// Compares one decision; returns a word for how it compares.
fn compare(
    case: &Value,
    free_and_taken: (usize, usize),
    group: &Group,
    me: usize,
    theirs: (usize, usize),
) -> &'static str {
    let strategy = case["strategy"].as_str().expect("a text");
    let ours = free_and_taken;
    if ours == theirs {
        return "same";
    }
    let loads = group.loads();
    let (total, members) = (group.owner.len(), loads.len());
    let (floor, ceiling) = (total / members, total.div_ceil(members));
    let owned = loads.iter().sum::<u32>() as usize;
    let own = loads[me] as usize;
    let others_lack = |share: usize| {
        (0..members)
            .filter(|&row| row != me)
            .map(|row| share.saturating_sub(loads[row] as usize))
            .sum::<usize>()
    };
    if owned < total && ours.0 < theirs.0 && others_lack(ceiling) > 0 {
        // Some free partitions go to others that lack them, in the same plan.
        return "shared with others";
    }
    if owned < total && ours.1 > theirs.1 && ours.0 <= theirs.0 && strategy == "greedy" {
        return "takes the rest of its share at once";
    }
    if theirs.1 == 0 && ours.1 > 0 && own >= floor.min(ceiling - 1) && owned == total {
        return "evens out above the floor too";
    }
    if theirs.1 > 0 && ours.1 > theirs.1 && strategy == "greedy" {
        return "takes its whole share at once";
    }
    "different"
}

fn decisions(
    planner: &mut impl Planner,
    file: &str,
    expired: impl Fn(f64) -> bool,
    theirs: impl Fn(&Value) -> Vec<(usize, usize)>,
) -> BTreeMap<String, usize> {
    let mut table = BTreeMap::new();
    for case in vectors(file)["cases"].as_array().expect("cases") {
        let (group, me) = group(case, &expired);
        let strategy = case["strategy"].as_str().expect("a text");
        let ours = gains(planner, strategy, &group, me);
        // Where chance decides there, each of the outcomes will do.
        let options = theirs(case);
        let words: Vec<_> = options.iter().map(|&theirs| compare(case, ours, &group, me, theirs)).collect();
        let word = words.iter().find(|word| **word == "same").unwrap_or(&words[0]);
        assert_ne!(
            *word,
            "different",
            "ours {ours:?}, theirs {options:?}, loads {:?}: {case}",
            group.loads()
        );
        if *word == "same" {
            let eligible = texts(&case["expect"]["eligible"]);
            let loads = group.loads();
            let load = |partition: usize| loads.get(group.owner[partition] as usize).copied();
            let (free, taken) = gained(planner, strategy, &group, me);
            for partition in free {
                assert!(eligible.contains(&partition.to_string()), "{partition} of {eligible:?}: {case}");
            }
            for partition in taken {
                // From another owner perhaps, but from one that has as many; a whole share at once comes from all who
                // have too many, and who gets which of these is decided for all members together.
                let alike = |text: &String| load(text.parse().expect("a number")) == load(partition as usize);
                let relieves = load(partition as usize) > Some(loads[me] + 1);
                assert!(
                    relieves && (strategy == "greedy" || eligible.iter().any(alike)),
                    "{partition}: {case}"
                );
            }
        }
        *table.entry(format!("{strategy}: {word}")).or_default() += 1;
    }
    table
}

/// Checks the decisions of the Python processor, but for the differences that are listed.
///
/// # Panics
///
/// If they are not met.
pub fn python_decisions(planner: &mut impl Planner) {
    let timeout = 60.0;
    let table = decisions(
        planner,
        "eventhubs/decisions-python.json",
        |age| age > timeout,
        |case| {
            let claims = number(&case["expect"]["claims"]);
            match case["expect"]["kind"].as_str() {
                Some("unowned") => vec![(claims, 0)],
                Some("steal") => vec![(0, claims)],
                _ => vec![(0, 0)],
            }
        },
    );
    let expected = [
        ("balanced: evens out above the floor too", 1),
        ("balanced: same", 118),
        ("greedy: evens out above the floor too", 1),
        ("greedy: same", 100),
        ("greedy: shared with others", 6),
        ("greedy: takes its whole share at once", 8),
        ("greedy: takes the rest of its share at once", 4),
    ];
    assert_eq!(table, expected.map(|(word, count)| (word.to_owned(), count)).into());
}

/// Checks the decisions of the JavaScript processor, but for the differences that are listed.
///
/// # Panics
///
/// If they are not met.
pub fn javascript_decisions(planner: &mut impl Planner) {
    let timeout = 60.0;
    let table = decisions(
        planner,
        "eventhubs/decisions-javascript.json",
        |age| age >= timeout,
        |case| {
            let claims = number(&case["expect"]["claims"]);
            let split = |taken: &Value| {
                let free = taken.get("(free)").map_or(0, number).min(claims);
                (free, claims - free)
            };
            case["expect"]["taken_from"].as_array().expect("a list").iter().map(split).collect()
        },
    );
    let expected = [("balanced: same", 119), ("greedy: same", 116), ("greedy: shared with others", 3)];
    assert_eq!(table, expected.map(|(word, count)| (word.to_owned(), count)).into());
}

/// Checks the facts that upstream's own tests state.
///
/// # Panics
///
/// If they are not met.
pub fn upstream_facts(planner: &mut impl Planner) {
    for case in vectors("eventhubs/upstream-test-facts.json")["cases"].as_array().expect("cases") {
        let partitions = number(&case["partitions"]);
        let others: Vec<usize> =
            case["live_counts_of_others"].as_array().expect("counts").iter().map(number).collect();
        let mut owners = vec![-1; number(&case["claimable_partitions"])];
        for (row, count) in [number(&case["owned_by_me"])].iter().chain(&others).enumerate() {
            owners.resize(owners.len() + count, row as i32);
        }
        assert_eq!(owners.len(), partitions, "{case}");
        let mut group = Group::cold(1 + others.len(), partitions);
        group.owner = owners;
        ask_first(&mut group, 0);
        let own = group.loads()[0] as usize;
        let expect = &case["expect"];
        match case["strategy"].as_str().expect("a text") {
            strategy @ ("greedy" | "balanced") => {
                // There, own renewals count as claimed.
                let gained = gains(planner, strategy, &group, 0);
                let claimed = own + gained.0 + gained.1;
                assert_eq!(claimed, number(&expect["claimed_in_one_step"]), "{case}");
            }
            "one step" => {
                let before = group.loads();
                let changes = planner.plan("balanced", "{}", &group);
                group.apply(&changes);
                let after = group.loads();
                if let Some(count) = expect.get("claimed_in_one_step") {
                    assert_eq!(after[0] as usize, own + number(count), "{case}");
                }
                assert_eq!(after[0] as usize, number(&expect["mine_after"]), "{case}");
                if let Some(count) = expect.get("stolen_from_count") {
                    let victim = (1..before.len()).find(|&row| after[row] < before[row]).expect("a victim");
                    assert_eq!(before[victim] as usize, number(count), "{case}");
                    assert_eq!(after[victim] as usize, number(&expect["victim_after"]), "{case}");
                }
            }
            "relinquish" => {
                let settled = settle(planner, "balanced", "{}", &mut group, 9);
                assert_eq!(settled.cycles as usize, number(&expect["steps_to_own_all"]), "{case}");
            }
            other => panic!("strategy {other}"),
        }
    }
}

/// Checks that recorded runs end at least as even here, with no more steals.
///
/// # Panics
///
/// If they are not met.
pub fn trajectories(planner: &mut impl Planner) {
    for run in vectors("eventhubs/trajectories-python.json")["runs"].as_array().expect("runs") {
        let (partitions, ids) = (number(&run["partitions"]), texts(&run["processors"]));
        let strategy = run["strategy"].as_str().expect("a text");
        let events = run["events"].as_array().expect("events");
        let states = texts(&run["owners_after_cycle"]);
        let mut group = Group::of(Vec::new(), &[("t", partitions)]);
        let mut steals = 0;
        for (cycle, state) in states.iter().enumerate() {
            for event in events.iter().filter(|event| number(&event["cycle"]) == cycle) {
                let id = event["processor"].as_str().expect("a text");
                match event["event"].as_str().expect("a text") {
                    "join" => _ = group.join(member(id, &[0])),
                    // The host knows of a crash as soon as the member's time is up.
                    _ => {
                        let row = group.members.iter().position(|member| member.id == id);
                        group.leave(row.expect("it is there"));
                    }
                }
            }
            let changes = planner.plan(strategy, "{}", &group);
            let free = group.owner.iter().filter(|&&owner| owner < 0).count();
            steals += changes.partition.iter().filter(|&&at| group.owner[at as usize] >= 0).count();
            group.apply(&changes);
            // Until the first of them claims above the floor, the cold start of `balanced` goes at the same pace.
            if strategy == "balanced" && cycle < 3 {
                let theirs = state.chars().filter(|owner| *owner == '.').count();
                let ours = group.owner.iter().filter(|&&owner| owner < 0).count();
                assert_eq!(ours, theirs, "cycle {cycle} of {run}");
                assert!(free >= ours);
            }
        }
        let upstream = number(&run["totals"]["steals"]);
        assert!(steals <= upstream, "{steals} steals, upstream {upstream}");
        let loads = group.loads();
        let spread = loads.iter().max().expect("members") - loads.iter().min().expect("members");
        assert!(spread <= 1 && group.owner.iter().all(|&owner| owner >= 0), "{loads:?}");
        // Counts at the end: theirs are no more even.
        let count = |row: usize| {
            let digit = char::from_digit(row as u32, 36).expect("a digit");
            states.last().expect("cycles").chars().filter(|owner| *owner == digit).count()
        };
        let live: Vec<usize> = group
            .members
            .iter()
            .map(|member| ids.iter().position(|id| *id == member.id).expect("known"))
            .collect();
        let theirs: Vec<usize> = live.into_iter().map(count).collect();
        let their_spread = theirs.iter().max().expect("members") - theirs.iter().min().expect("members");
        assert!(spread as usize <= their_spread.max(1));
    }
}
