//! Why partitions belong to whom they belong, and how even that is, in words an operator understands.
//!
//! Pure: the view and the time are arguments. The reasons are those of the plans, so any claim policy has them.
//! Invariant: every text is one line of bounded length, whatever members and policies call things.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulcrum_coordinator::groups::{CycleReport, Origin, PartitionView, Story, View};
use fulcrum_core::Timestamp;
use fulcrum_policy::seat::Identity;
use serde::Serialize;

use crate::words;

/// Most members named in the text of a group.
const MEMBERS_MAX: usize = 6;

/// The field `why` of a partition. All but the text is of the decision that made its owner the owner (or freed it), and
/// null when nothing is remembered of it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartitionWhy {
    text: String,
    /// Reason of the cycle, its word.
    cycle: Option<&'static str>,
    at_ms: Option<u64>,
    policy: Option<String>,
    from: Option<String>,
}

/// The field `why` of a group.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct GroupWhy {
    text: String,
    /// One per member, ordered by id.
    loads: Vec<LoadBody>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct LoadBody {
    member_id: String,
    partitions: usize,
    /// Sum of the weights of its partitions, where weights differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
}

/// Says why a partition belongs to whom it belongs. `state` is its word in the view.
pub(super) fn partition(
    partition: &PartitionView,
    state: &str,
    story: &Story,
    now: Timestamp,
) -> PartitionWhy {
    let mut sentences = Vec::new();
    let origin = match &partition.owner {
        Some(owner) => {
            let stored = Some(&*partition.reason).filter(|_| partition.moving.is_none());
            sentences.push(owned(owner, story.owned.as_ref(), stored, now));
            if state == "kept" {
                sentences.push(format!("{} is gone; it waits for its return.", words::name(owner)));
            }
            sentences.extend(on_its_way(partition, story, now));
            story.owned.as_ref()
        }
        None => {
            sentences.push(free(story.freed.as_ref(), now));
            // Who had it last and is gone does not explain why nobody has it now.
            story.freed.as_ref().filter(|origin| origin.to.is_none())
        }
    };
    PartitionWhy {
        text: sentences.join(" "),
        cycle: origin.map(|origin| origin.reason.word()),
        at_ms: origin.map(|origin| origin.at.0),
        policy: origin.map(|origin| policy(origin.by.as_ref()).to_owned()),
        from: origin.and_then(|origin| origin.from.clone()),
    }
}

fn owned(owner: &str, origin: Option<&Origin>, stored: Option<&str>, now: Timestamp) -> String {
    let owner = words::name(owner);
    let Some(origin) = origin else {
        let reason = stored.filter(|stored| !stored.is_empty());
        let reason = reason.map(|reason| format!(": {}", words::quoted(reason))).unwrap_or_default();
        return format!("{owner} owns it, taken over from before this start of the host{reason}.");
    };
    let from = match &origin.from {
        Some(from) => format!("moved it from {}", words::name(from)),
        None => "gave it out when nobody had it".to_owned(),
    };
    format!(
        "{owner} owns it by the cycle {}: {} {from}{}.",
        cycle(origin, now),
        planner(origin),
        reason(origin)
    )
}

fn on_its_way(partition: &PartitionView, story: &Story, now: Timestamp) -> Option<String> {
    let Some(moving) = &partition.moving else {
        let to = story.called_off.as_ref()?.to.as_deref()?;
        return Some(format!("It was to go to {}, who is gone.", words::name(to)));
    };
    let way = match &moving.to {
        Some(to) => format!("It is on its way to {}", words::name(to)),
        None => "It is being given up".to_owned(),
    };
    Some(match &story.coming {
        Some(coming) => format!(
            "{way} by the cycle {}, planned by {}{}.",
            cycle(coming, now),
            planner(coming),
            reason(coming)
        ),
        None if partition.reason.is_empty() => format!("{way}."),
        None => format!("{way}: {}.", words::quoted(&partition.reason)),
    })
}

fn free(freed: Option<&Origin>, now: Timestamp) -> String {
    match freed.map(|origin| (origin, &origin.to)) {
        None => "Nobody owns it; since this start of the host no plan gave it to anybody.".to_owned(),
        Some((origin, None)) => format!(
            "Nobody owns it by the cycle {}: {} took it away{}.",
            cycle(origin, now),
            planner(origin),
            reason(origin)
        ),
        Some((_, Some(last))) => {
            format!("Nobody owns it; {} had it last and gave it up or is gone.", words::name(last))
        }
    }
}

/// When and why a cycle ran.
fn cycle(origin: &Origin, now: Timestamp) -> String {
    format!("{}, run {}", words::ago(now.since(origin.at)), words::because(origin.reason))
}

fn planner(origin: &Origin) -> String {
    if origin.by.is_none() { "the fallback".to_owned() } else { words::name(policy(origin.by.as_ref())) }
}

fn policy(by: Option<&Arc<Identity>>) -> &str {
    by.map_or(fulcrum_policy::fallback::NAME, |by| &by.name)
}

/// What the planner said.
fn reason(origin: &Origin) -> String {
    if origin.words.is_empty() {
        " (no reason given)".to_owned()
    } else {
        format!(" ({})", words::quoted(&origin.words))
    }
}

/// Says how even a group is and what its last cycle did.
pub(super) fn group(view: &View, now: Timestamp) -> GroupWhy {
    let has_weights = view.stories.windows(2).any(|pair| pair[0].weight != pair[1].weight);
    let mut held: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (partition, story) in view.partitions.iter().zip(&view.stories) {
        if let Some(owner) = &partition.owner {
            let (count, weight) = held.entry(owner).or_default();
            *count += 1;
            *weight += story.weight;
        }
    }
    let load = |id: &String| {
        let (partitions, weight) = held.get(&**id).copied().unwrap_or_default();
        LoadBody { member_id: id.clone(), partitions, weight: has_weights.then_some(weight) }
    };
    let loads: Vec<_> = view.members.iter().map(|member| load(&member.id)).collect();
    let text = [balance(view, &loads), last_cycle(view, now)].join(" ");
    GroupWhy { text, loads }
}

fn balance(view: &View, loads: &[LoadBody]) -> String {
    let owned = view.partitions.iter().filter(|partition| partition.owner.is_some()).count();
    let moving = view.partitions.iter().filter(|partition| partition.moving.is_some()).count();
    let total = words::count(view.partitions.len(), "partition");
    if loads.is_empty() {
        return format!("There is no member to own any of {total}.");
    }
    let mut sorted: Vec<_> = loads.iter().collect();
    let load = |of: &LoadBody| of.weight.unwrap_or(of.partitions as f64);
    // Equal ones stay ordered by id.
    sorted.sort_by(|a, b| load(b).total_cmp(&load(a)));
    let shown = |of: &&LoadBody| {
        let weight =
            of.weight.map(|weight| format!(" (weight {})", words::number(weight))).unwrap_or_default();
        format!("{} {}{weight}", words::name(&of.member_id), of.partitions)
    };
    let named: Vec<_> = sorted.iter().take(MEMBERS_MAX).map(shown).collect();
    let rest = match sorted.get(MEMBERS_MAX..).unwrap_or_default() {
        [] => String::new(),
        rest => {
            let counts = || rest.iter().map(|of| of.partitions);
            let (min, max) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
            let each = if min == max { min.to_string() } else { format!("{min} to {max}") };
            format!(" and {} more with {each} each", rest.len())
        }
    };
    // A member in its grace period gets nothing: what it lacks is no unevenness.
    let is_live = |of: &&LoadBody| view.members.iter().any(|member| member.live && member.id == of.member_id);
    let live: Vec<_> = loads.iter().filter(is_live).collect();
    let spread = match live.as_slice() {
        [] | [_] => String::new(),
        live => {
            let counts = || live.iter().map(|of| of.partitions);
            let (min, max) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
            let weights = || live.iter().filter_map(|of| of.weight);
            let (light, heavy) = weights()
                .fold((f64::INFINITY, 0.0_f64), |(min, max), weight| (weight.min(min), weight.max(max)));
            let weight = if light <= heavy {
                format!(" and weight {}", words::number(heavy - light))
            } else {
                String::new()
            };
            format!("; the spread is {}{weight}", words::count(max - min, "partition"))
        }
    };
    let way = match moving {
        0 => String::new(),
        1 => "; 1 is on its way".to_owned(),
        moving => format!("; {moving} are on their way"),
    };
    format!("{owned} of {total} owned: {}{rest}{spread}{way}.", named.join(", "))
}

fn last_cycle(view: &View, now: Timestamp) -> String {
    let Some(cycle) = &view.last_cycle else {
        return "No cycle has run since this start of the host.".to_owned();
    };
    let CycleReport { reason, at, by, problem, claims, moved, kept, .. } = cycle;
    let by = match (by, problem) {
        (Some(by), _) => words::name(&by.name),
        (None, Some(problem)) => format!("the fallback ({})", words::said(problem)),
        (None, None) => "the fallback".to_owned(),
    };
    let released = claims.iter().filter(|claim| claim.to.is_none()).count();
    let given = claims.iter().filter(|claim| claim.from.is_none()).count();
    let to_another = moved.saturating_sub(released);
    let budget = view.spec.settings.movement_budget;
    let is_spent = *moved > 0 && budget.is_some_and(|budget| *moved >= budget as usize);
    let did: Vec<_> = [
        (to_another > 0).then(|| format!("moved {}", words::count(to_another, "partition"))),
        (given > 0).then(|| format!("gave out {given} that nobody had")),
        (released > 0).then(|| format!("took {released} away")),
        (*kept > 0).then(|| format!("kept {kept} where they were or on their way")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let did = if did.is_empty() { "did nothing".to_owned() } else { words::list(&did) };
    let budget = if is_spent { "; more moves its budget did not allow" } else { "" };
    format!(
        "The last cycle, {}, run {} and planned by {by}, {did}{budget}.",
        words::ago(now.since(*at)),
        words::because(*reason)
    )
}

#[cfg(test)]
mod tests {
    use fulcrum_coordinator::groups::{MemberView, Moved, Spec};
    use fulcrum_core::claiming::Reason;
    use fulcrum_core::group::{Moving, Place};

    use super::*;

    const NOW: Timestamp = Timestamp(100_000);

    fn member(id: &str) -> Option<String> {
        (id != "-").then(|| id.to_owned())
    }

    fn by(policy: &str) -> Option<Arc<Identity>> {
        member(policy)
            .map(|name| Arc::new(Identity { name, digest: "d".to_owned(), config: "{}".to_owned() }))
    }

    fn origin(policy: &str, from: &str, to: &str, words: &str) -> Origin {
        Origin {
            reason: Reason::Join,
            at: Timestamp(88_000),
            by: by(policy),
            from: member(from),
            to: member(to),
            words: words.to_owned(),
        }
    }

    fn at(number: u32, owner: &str, moving: Option<&str>, reason: &str) -> PartitionView {
        let moving = moving.map(|to| Moving { to: member(to), revision: 1, deadline: NOW });
        PartitionView {
            place: Place { topic: "t".to_owned(), partition: number },
            owner: member(owner),
            epoch: 1,
            moving,
            checkpoint: None,
            reason: reason.to_owned(),
        }
    }

    #[track_caller]
    fn check(view: &PartitionView, state: &str, story: &Story, expected: &str) {
        assert_eq!(partition(view, state, story, NOW).text, expected);
    }

    #[test]
    fn a_partition_says_how_it_came_to_its_owner() {
        let owned = |origin| Story { owned: Some(origin), ..Story::default() };
        let join = "12 s ago, run because a member joined";
        check(
            &at(0, "a", None, "free partition"),
            "owned",
            &owned(origin("sticky", "-", "a", "free partition")),
            &format!(
                "a owns it by the cycle {join}: sticky gave it out when nobody had it (\"free partition\")."
            ),
        );
        check(
            &at(0, "a", None, "evens out"),
            "owned",
            &owned(origin("sticky", "b", "a", "evens out")),
            &format!("a owns it by the cycle {join}: sticky moved it from b (\"evens out\")."),
        );
        check(
            &at(0, "a", None, ""),
            "kept",
            &owned(origin("-", "-", "a", "")),
            &format!(
                "a owns it by the cycle {join}: the fallback gave it out when nobody had it (no reason given). \
                 a is gone; it waits for its return."
            ),
        );
        let unknown = Story::default();
        check(
            &at(0, "a", None, "free partition"),
            "owned",
            &unknown,
            "a owns it, taken over from before this start of the host: \"free partition\".",
        );
        // The stored reason is the move's.
        check(
            &at(0, "a", Some("b"), "evens out"),
            "moving",
            &unknown,
            "a owns it, taken over from before this start of the host. It is on its way to b: \"evens out\".",
        );
        check(
            &at(0, "a", Some("-"), "no longer subscribed"),
            "moving",
            &owned(origin("sticky", "-", "a", "w")),
            &format!(
                "a owns it by the cycle {join}: sticky gave it out when nobody had it (\"w\"). It is being given \
                 up: \"no longer subscribed\"."
            ),
        );
        let coming = Story { coming: Some(origin("sticky", "a", "b", "evens out")), ..unknown.clone() };
        check(
            &at(0, "a", Some("b"), "evens out"),
            "moving",
            &coming,
            &format!(
                "a owns it, taken over from before this start of the host. It is on its way to b by the cycle {join}, \
                 planned by sticky (\"evens out\")."
            ),
        );
        let called_off = Story { called_off: Some(origin("sticky", "a", "b", "w")), ..unknown };
        check(
            &at(0, "a", None, ""),
            "owned",
            &called_off,
            "a owns it, taken over from before this start of the host. It was to go to b, who is gone.",
        );
    }

    #[test]
    fn a_free_partition_says_why_nobody_has_it() {
        let freed = |origin| Story { freed: Some(origin), ..Story::default() };
        let free = at(0, "-", None, "");
        check(
            &free,
            "free",
            &Story::default(),
            "Nobody owns it; since this start of the host no plan gave it to anybody.",
        );
        check(
            &free,
            "free",
            &freed(origin("mine", "a", "-", "released by the policy")),
            "Nobody owns it by the cycle 12 s ago, run because a member joined: mine took it away (\"released by \
             the policy\").",
        );
        let left = freed(origin("mine", "-", "a", "w"));
        check(&free, "free", &left, "Nobody owns it; a had it last and gave it up or is gone.");
        assert_eq!(partition(&free, "free", &left, NOW).policy, None);
    }

    #[test]
    fn facts_stand_beside_the_words() {
        let story = Story { owned: Some(origin("-", "b", "a", "w")), ..Story::default() };
        let found = serde_json::to_value(partition(&at(0, "a", None, "w"), "owned", &story, NOW));
        let mut found = found.expect("plain data");
        found["text"].take();
        let expected = serde_json::json!({
            "text": null, "cycle": "join", "atMs": 88_000, "policy": "fallback", "from": "b"
        });
        assert_eq!(found, expected);
        let unknown = partition(&at(0, "a", None, "w"), "owned", &Story::default(), NOW);
        assert_eq!((unknown.cycle, unknown.at_ms, unknown.policy), (None, None, None));
    }

    #[test]
    fn hostile_words_stay_in_their_quotes() {
        let hostile = "x\". b owns it.\r\n\u{1b}[2J\u{202e}";
        let story = Story { owned: Some(origin("p q", "c\nd", "a", hostile)), ..Story::default() };
        check(
            &at(0, "a", None, hostile),
            "owned",
            &story,
            "a owns it by the cycle 12 s ago, run because a member joined: \"p q\" moved it from \"c\\nd\" (\"x\\\". \
             b owns it.\\r\\n\\u{1b}[2J\\u{202e}\").",
        );
        let long = Story { owned: Some(origin("p", "-", "a", &"w".repeat(256))), ..Story::default() };
        let text = partition(&at(0, "a", None, ""), "owned", &long, NOW).text;
        assert!(text.contains("www…\"") && text.len() < 300, "{text}");
    }

    fn view(members: &[(&str, bool)], partitions: Vec<PartitionView>, weights: &[f64]) -> View {
        let member = |(id, live): &(&str, bool)| MemberView {
            id: (*id).to_owned(),
            live: *live,
            topics: Vec::new(),
            seen_ms_ago: 0,
            disagrees_on: Vec::new(),
        };
        let story = |at: usize| Story { weight: weights.get(at).copied().unwrap_or(1.0), ..Story::default() };
        View {
            group: "g".to_owned(),
            spec: Spec::default(),
            revision: 1,
            members: members.iter().map(member).collect(),
            stories: (0..partitions.len()).map(story).collect(),
            partitions,
            last_cycle: None,
            warnings: Vec::new(),
        }
    }

    /// Partitions by owner, a letter each.
    fn owners(owners: &str) -> Vec<PartitionView> {
        owners.chars().zip(0..).map(|(owner, number)| at(number, &owner.to_string(), None, "w")).collect()
    }

    const NO_CYCLE: &str = "No cycle has run since this start of the host.";

    #[test]
    fn a_group_says_how_even_it_is() {
        let both = [("a", true), ("b", true)];
        for (view, expected) in [
            (view(&[], owners("-"), &[]), "There is no member to own any of 1 partition."),
            (view(&[("a", true)], owners("aa"), &[]), "2 of 2 partitions owned: a 2."),
            (
                view(&both, owners("abb-"), &[]),
                "3 of 4 partitions owned: b 2, a 1; the spread is 1 partition.",
            ),
            (
                view(&both, owners("abbb"), &[6.0, 1.0, 1.0, 2.5]),
                "4 of 4 partitions owned: a 1 (weight 6), b 3 (weight 4.5); the spread is 2 partitions \
                 and weight 1.5.",
            ),
            (view(&[("a", true), ("b", false)], owners("aab"), &[]), "3 of 3 partitions owned: a 2, b 1."),
            (
                view(&both, vec![at(0, "a", Some("b"), "w"), at(1, "a", None, "w")], &[]),
                "2 of 2 partitions owned: a 2, b 0; the spread is 2 partitions; 1 is on its way.",
            ),
        ] {
            assert_eq!(group(&view, NOW).text, format!("{expected} {NO_CYCLE}"));
        }
        let ids: Vec<_> = (0..9).map(|number| format!("m{number}")).collect();
        let many: Vec<_> = ids.iter().map(|id| (id.as_str(), true)).collect();
        let partitions = (0..7).map(|number| at(number, &ids[number as usize], None, "w")).collect();
        let found = group(&view(&many, partitions, &[]), NOW);
        assert!(found.text.contains("m5 1 and 3 more with 0 to 1 each; the spread"), "{}", found.text);
        assert_eq!(found.loads.len(), 9);
    }

    #[test]
    fn a_group_says_what_its_last_cycle_did() {
        let moved = |from: &str, to: &str| Moved {
            place: Place { topic: "t".to_owned(), partition: 0 },
            from: member(from),
            to: member(to),
            reason: "w".to_owned(),
        };
        let cycle = |policy: &str, problem: Option<&str>, claims: Vec<Moved>, kept| CycleReport {
            reason: Reason::Leave,
            at: Timestamp(97_000),
            by: by(policy),
            problem: problem.map(str::to_owned),
            moved: claims.iter().filter(|claim| claim.from.is_some()).count(),
            claims,
            kept,
            took_us: 1,
        };
        let mut view = view(&[("a", true)], owners("a"), &[]);
        let mut check = |cycle, budget, expected: &str| {
            view.last_cycle = Some(cycle);
            view.spec.settings.movement_budget = budget;
            let text = group(&view, NOW).text;
            let expected = format!(
                "1 of 1 partition owned: a 1. The last cycle, 3 s ago, run because a member left and {expected}"
            );
            assert_eq!(text, expected);
        };
        let all = || vec![moved("a", "b"), moved("a", "b"), moved("-", "a"), moved("b", "-")];
        check(
            cycle("sticky", None, all(), 9),
            None,
            "planned by sticky, moved 2 partitions, gave out 1 that nobody had, took 1 away and kept 9 where they \
             were or on their way.",
        );
        check(
            cycle("sticky", None, vec![moved("a", "b")], 9),
            Some(1),
            "planned by sticky, moved 1 partition and kept 9 where they were or on their way; more moves its budget \
             did not allow.",
        );
        check(
            cycle("-", Some("crashed: unreachable"), Vec::new(), 3),
            None,
            "planned by the fallback (crashed: unreachable), kept 3 where they were or on their way.",
        );
        check(cycle("sticky", None, Vec::new(), 0), None, "planned by sticky, did nothing.");
    }
}
