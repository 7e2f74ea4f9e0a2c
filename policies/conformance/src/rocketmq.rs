//! RocketMQ's allocations exactly, member by member and transition by transition.

use fulcrum_guest::testing::claiming::{Group, member};
use serde_json::Value;

use crate::{Planner, Queue, digits, group, number, queues, settle, texts, vectors};

const RING: &str = r#"{"key":"rocketmq"}"#;

/// Lets the policy of a strategy allocate; returns how many owned partitions moved.
fn allocate(planner: &mut impl Planner, strategy: &str, group: &mut Group) -> u32 {
    let (policy, config) = match strategy {
        "AVG" => ("average", "{}"),
        "AVG_BY_CIRCLE" => ("average-by-circle", "{}"),
        "CONSISTENT_HASH" => ("consistent-hash", RING),
        other => panic!("strategy {other}"),
    };
    settle(planner, policy, config, group, 1).moves
}

fn allocated(
    planner: &mut impl Planner,
    policy: &str,
    config: &str,
    members: &[String],
    queues: &[Queue],
) -> Group {
    let mut group = group(members, queues);
    settle(planner, policy, config, &mut group, 1);
    group
}

/// Checks who owns every queue, for many numbers of members and queues.
///
/// # Panics
///
/// If anything differs.
pub fn tables(planner: &mut impl Planner) {
    let mut checked = 0;
    for (file, strategy) in [
        ("rocketmq/allocate-averagely.json", "AVG"),
        ("rocketmq/allocate-averagely-by-circle.json", "AVG_BY_CIRCLE"),
        ("rocketmq/allocate-consistent-hash-cid.json", "CONSISTENT_HASH"),
    ] {
        let vectors = vectors(file);
        assert_eq!(vectors["strategy"], strategy);
        let ids = texts(&vectors["member_ids_in_arrival_order"]);
        let (topic, broker) = (vectors["topic"].as_str().expect("a text"), vectors["broker"].as_str());
        for (key, expected) in vectors["table"].as_object().expect("a table") {
            let expected = expected.as_str().expect("a text");
            let (members, count) = key.split_once(':').expect("m:q");
            let (members, count): (usize, usize) =
                (members.parse().expect("a number"), count.parse().expect("a number"));
            // RocketMQ refuses to allocate nothing, or to nobody; here nobody gets nothing.
            let expected = if expected.starts_with('!') { "-".repeat(count) } else { expected.to_owned() };
            let queues = queues(topic, &[broker.expect("a text").to_owned()], count);
            let mut group = group(&ids[..members], &queues);
            allocate(planner, strategy, &mut group);
            assert_eq!(digits(&group), expected, "{strategy} {key}");
            checked += 1;
        }
    }
    assert!(checked > 2000);
}

/// Checks who owns every queue on rings of several brokers and sizes.
///
/// # Panics
///
/// If anything differs.
pub fn rings(planner: &mut impl Planner) {
    for file in ["ip", "multibroker", "vnodes100"] {
        let vectors = vectors(&format!("rocketmq/allocate-consistent-hash-{file}.json"));
        let ids = texts(&vectors["member_ids_in_arrival_order"]);
        let config = format!(r#"{{"key":"rocketmq","virtualNodes":{}}}"#, vectors["virtual_nodes"]);
        for case in vectors["cases"].as_array().expect("cases") {
            let brokers = texts(&vectors["brokers"]);
            let queues =
                queues(vectors["topic"].as_str().expect("a text"), &brokers, number(&case["queues"]));
            let group =
                allocated(planner, "consistent-hash", &config, &ids[..number(&case["members"])], &queues);
            assert_eq!(digits(&group), case["assign"], "{file} {case}");
        }
    }
}

/// Checks the owners of the queues whose keys the ring files list.
///
/// # Panics
///
/// If anything differs.
pub fn ring_owners(planner: &mut impl Planner) {
    for file in ["ring-3-ip-members-10-vnodes", "ring-4-members-10-vnodes"] {
        let vectors = vectors(&format!("rocketmq/{file}.json"));
        let text = |name: &str| vectors[name].as_str().expect("a text");
        let keys = vectors["queue_keys"].as_array().expect("keys");
        let queues = queues(text("topic"), &[text("broker").to_owned()], keys.len());
        let config = format!(r#"{{"key":"rocketmq","virtualNodes":{}}}"#, vectors["virtual_nodes"]);
        let group = allocated(planner, "consistent-hash", &config, &texts(&vectors["member_ids"]), &queues);
        for ((key, (topic, broker, number)), &owner) in keys.iter().zip(&queues).zip(&group.owner) {
            let text = format!("MessageQueue [topic={topic}, brokerName={broker}, queueId={number}]");
            assert_eq!(key["queue_key"], text);
            assert_eq!(key["owner"], *group.members[owner as usize].id, "{text}");
        }
    }
}

/// Checks what moves when one member leaves or joins.
///
/// # Panics
///
/// If anything differs.
pub fn transitions(planner: &mut impl Planner) {
    let vectors = vectors("rocketmq/transitions.json");
    let ids = texts(&vectors["member_ids_in_arrival_order"]);
    let broker = [vectors["broker"].as_str().expect("a text").to_owned()];
    let topic = vectors["topic"].as_str().expect("a text");
    let cases = vectors["cases"].as_array().expect("cases");
    for case in cases {
        let strategy = case["strategy"].as_str().expect("a text");
        let queues = queues(topic, &broker, number(&case["queues"]));
        let mut settled = group(&ids[..number(&case["members"])], &queues);
        allocate(planner, strategy, &mut settled);
        for row in 0..settled.members.len() {
            let orphaned = settled.loads()[row];
            let mut left = settled.clone();
            left.leave(row);
            let moved = allocate(planner, strategy, &mut left) + orphaned;
            assert_eq!(number(&case["leave_orphaned"][row]), orphaned as usize, "{case}");
            assert_eq!(number(&case["leave_moved"][row]), moved as usize, "{case}");
        }
        let mut joined = settled.clone();
        let row = joined.join(member(case["join_id"].as_str().expect("a text"), &[0]));
        assert_eq!(number(&case["join_moved"]), allocate(planner, strategy, &mut joined) as usize, "{case}");
        assert_eq!(number(&case["join_gained"]), joined.loads()[row] as usize, "{case}");
    }
    assert_eq!(cases.len(), 411);
}

/// Checks what moves when each member leaves and comes back under another id.
///
/// # Panics
///
/// If anything differs.
pub fn rolling_restarts(planner: &mut impl Planner) {
    let vectors = vectors("rocketmq/rolling-restart.json");
    let (ids, fresh) = (texts(&vectors["ids"]), texts(&vectors["fresh_ids"]));
    let broker = [vectors["broker"].as_str().expect("a text").to_owned()];
    for case in vectors["cases"].as_array().expect("cases") {
        let strategy = case["strategy"].as_str().expect("a text");
        let members = number(&case["members"]);
        let queues = queues(vectors["topic"].as_str().expect("a text"), &broker, number(&case["queues"]));
        let mut group = group(&ids[..members], &queues);
        allocate(planner, strategy, &mut group);
        let mut total = 0;
        for step in 0..members {
            let row = group.members.iter().position(|member| member.id == ids[step]).expect("it is there");
            let orphaned = group.loads()[row];
            group.leave(row);
            let left = orphaned + allocate(planner, strategy, &mut group);
            group.join(member(&fresh[step], &[0]));
            let joined = allocate(planner, strategy, &mut group);
            assert_eq!(case["steps"][step], serde_json::json!([left, joined]), "{strategy} {members}");
            total += left + joined;
        }
        assert_eq!(number(&case["total_moved"]), total as usize);
        let mut counts = group.loads();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(case["final_counts"], serde_json::json!(counts));
    }
}

/// Checks the example of RocketMQ's article: four members, of which one is lost.
///
/// # Panics
///
/// If anything differs.
pub fn article(planner: &mut impl Planner) {
    for case in
        vectors("rocketmq/article-example-4-clients-24-queues.json")["cases"].as_array().expect("cases")
    {
        let strategy = case["strategy"].as_str().expect("a text");
        let members = texts(&case["members"]);
        let mut group = group(&members, &queues("topic_test", &["brokerName".to_owned()], 24));
        allocate(planner, strategy, &mut group);
        assert_eq!(digits(&group), case["before"]);
        let lost = members.iter().position(|id| case["lost"] == **id).expect("it is there");
        let orphaned = group.loads()[lost];
        group.leave(lost);
        assert_eq!(number(&case["moved"]) as u32, orphaned + allocate(planner, strategy, &mut group));
        for owner in &mut group.owner {
            *owner += i32::from(*owner >= lost as i32);
        }
        assert_eq!(digits(&group), case["after_same_indices"]);
    }
}

/// Reads `topic:broker:number`.
fn queue(text: &str) -> Queue {
    let parts: Vec<&str> = text.split(':').collect();
    (parts[0].to_owned(), parts[1].to_owned(), parts[2].parse().expect("a number"))
}

/// Checks a case of the machine-room files: who owns which of its queues.
fn check_rooms(planner: &mut impl Planner, policy: &str, config: &str, case: &Value) {
    let queues: Vec<Queue> = texts(&case["queues"]).iter().map(|text| queue(text)).collect();
    assert!(queues.is_sorted(), "so indices are those of the group");
    let members = texts(&case["members"]);
    assert!(members.is_sorted());
    let group = allocated(planner, policy, config, &members, &queues);
    for (row, expected) in case["owned_queue_indices"].as_array().expect("lists").iter().enumerate() {
        let mut expected: Vec<usize> = expected.as_array().expect("a list").iter().map(number).collect();
        expected.sort_unstable();
        let owned: Vec<usize> = (0..queues.len()).filter(|&queue| group.owner[queue] == row as i32).collect();
        assert_eq!(owned, expected, "{} in {case}", members[row]);
    }
}

/// Checks who owns which queues of several machine rooms.
///
/// # Panics
///
/// If anything differs.
pub fn machine_rooms(planner: &mut impl Planner) {
    for case in vectors("rocketmq/allocate-machine-room.json")["cases"].as_array().expect("cases") {
        check_rooms(planner, "machine-room", &format!(r#"{{"rooms":{}}}"#, case["rooms"]), case);
    }
    for case in vectors("rocketmq/allocate-machine-room-nearby.json")["cases"].as_array().expect("cases") {
        let inner = match case["inner"].as_str() {
            Some("AVG") => "average",
            Some("AVG_BY_CIRCLE") => "average-by-circle",
            Some("CONSISTENT_HASH") => "consistent-hash",
            other => panic!("{other:?}"),
        };
        check_rooms(planner, "machine-room-nearby", &format!(r#"{{"inner":"{inner}"}}"#), case);
    }
}

/// Checks odd inputs, where they can occur here.
///
/// # Panics
///
/// If anything differs.
pub fn odd_inputs(planner: &mut impl Planner) {
    let mut checked = 0;
    for case in vectors("rocketmq/allocate-edge-cases.json")["cases"].as_array().expect("cases") {
        let queues: Vec<Queue> = texts(&case["queues"]).iter().map(|text| queue(text)).collect();
        let mut members = texts(&case["members"]);
        let (asked, result) = (case["asked_for"].as_str().expect("a text"), case["result"].as_str());
        let twice = members.windows(2).any(|pair| pair[0] == pair[1]);
        members.dedup();
        let strategy = case["strategy"].as_str().expect("a text");
        let note = case["note"].as_str().expect("a text");
        // The host refuses an empty id and an id twice; see DIFFERENCES.md.
        if twice || asked.is_empty() {
            continue;
        }
        let group = match strategy {
            "CONFIG" => {
                let config = r#"{"assignments":{"c1":[{"topic":"T","partitions":[1,3,9]}]}}"#;
                allocated(planner, "by-config", config, &members, &queues)
            }
            "CONSISTENT_HASH" if note.starts_with("zero") => allocated(
                planner,
                "consistent-hash",
                r#"{"key":"rocketmq","virtualNodes":0}"#,
                &members,
                &queues,
            ),
            strategy => {
                let mut group = group(&members, &queues);
                allocate(planner, strategy, &mut group);
                group
            }
        };
        let row = members.iter().position(|id| id == asked);
        let owned: Vec<String> = (0..queues.len())
            .filter(|&queue| row.is_some_and(|row| group.owner[queue] == row as i32))
            .map(|queue| queue.to_string())
            .collect();
        let expected = match (strategy, result.expect("a text")) {
            // A plan cannot name a stranger, nor a partition that does not exist.
            ("CONFIG", "1,3") if row.is_none() => "",
            ("CONFIG", "T:b:9") => "1,3",
            (_, error) if error.starts_with('!') => "",
            (_, result) => result,
        };
        assert_eq!(owned.join(","), expected, "{case}");
        checked += 1;
    }
    assert_eq!(checked, 13);
}
