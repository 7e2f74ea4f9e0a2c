//! What a group can be set to, and what changes under a live group: grace, hand-over, budget, policies, warnings.

use std::collections::{BTreeMap, BTreeSet};

use fulcrum_client::Member;
use serde_json::{Value, json};

use crate::groups::*;
use crate::support::{Answer, Api, SOON, digest, eventually};

/// Intervals so long that no cycle runs unless something asks for it.
fn calm(more: &Value) -> Value {
    let mut settings = json!({ "gatherMs": 0, "intervalMs": 600_000, "fastIntervalMs": 600_000,
        "ownershipExpiryMs": 1_200_000 });
    for (key, value) in more.as_object().expect("an object") {
        settings[key] = value.clone();
    }
    settings
}

async fn set(api: &Api, settings: &Value) {
    api.put("/groups/g", settings).await.ok();
}

/// Epochs by partition number, of assignments or of the partitions of a view.
fn epochs(list: &Value) -> BTreeMap<u64, u64> {
    let number = |at: &Value, field: &str| at[field].as_u64().expect("a number");
    list.as_array().expect("a list").iter().map(|at| (number(at, "partition"), number(at, "epoch"))).collect()
}

/// Epochs of what a member owns in a view.
fn owned_by(view: &Value, member: &str) -> BTreeMap<u64, u64> {
    let partitions = view["partitions"].as_array().expect("a list").iter();
    epochs(&partitions.filter(|at| at["owner"] == member).cloned().collect())
}

fn higher(epochs: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    epochs.iter().map(|(partition, epoch)| (*partition, epoch + 1)).collect()
}

/// Waits until the view is as wanted.
async fn until(api: &Api, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    eventually(what, SOON, async || Some(view(api, "g").await).filter(&is_it)).await
}

/// Asks for a cycle and waits for it.
async fn rebalance(api: &Api) -> Value {
    api.post("/groups/g/rebalance", &json!({})).await.ok();
    until(api, "a cycle that was asked for", |view| view["lastCycle"]["reason"] == "manual").await
}

async fn join(api: &Api, name: &str, more: &Value) -> Answer {
    let mut body = json!({ "memberId": name, "topics": ["t"], "ttlMs": 600_000 });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    api.post("/groups/g/members", &body).await
}

async fn leave(api: &Api, name: &str, session: &str, more: &str) {
    api.delete(&format!("/groups/g/members/{name}?session={session}{more}")).await.ok();
}

fn number(partition: u64) -> u32 {
    u32::try_from(partition).expect("few partitions")
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_wait_for_a_member_in_its_grace_period() {
    let host = host().await;
    topic(&host, "t", 4).await;
    set(&host, &calm(&json!({ "graceMs": 600_000, "handover": "steal" }))).await;
    let (a, _) = join_by_hand(&host, "a", &json!({}), 4).await;
    join_by_hand(&host, "b", &json!({}), 2).await;
    let before = view(&host, "g").await;
    let (mut of_a, of_b) = (owned_by(&before, "a"), owned_by(&before, "b"));
    assert_eq!((of_a.len(), of_b.len()), (2, 2), "{before}");
    let kept = async |of_a: &BTreeMap<u64, u64>| {
        let is_kept = |view: &Value| view["members"][0]["live"] == false;
        until(&host, "a is in its grace period", is_kept).await;
        let view = rebalance(&host).await;
        assert_eq!((&owned_by(&view, "a"), &owned_by(&view, "b")), (of_a, &of_b), "{view}");
        let states = view["partitions"].as_array().expect("a list").iter().filter(|at| at["state"] == "kept");
        assert_eq!(states.count(), 2, "{view}");
        let metrics = host.get("/metrics").await.text;
        assert!(metrics.contains("fulcrum_group_members{state=\"kept\"} 1"), "{metrics}");
    };
    leave(&host, "a", &a, "&returning=true").await;
    kept(&of_a).await;
    beat(&host, "a", &a, &json!({})).await.refused(409, "fenced");
    let (&mine, &epoch) = of_a.first_key_value().expect("two");
    checkpoint(&host, number(mine), &a, epoch, 0).await.refused(409, "fenced");

    // It returns, for a moment only: then it expires.
    let back = join(&host, "a", &json!({ "ttlMs": 100 })).await.ok();
    of_a = higher(&of_a);
    assert_eq!(epochs(&back["assignments"]), of_a, "its own, in new epochs: {back}");
    assert!(back["session"] != a.as_str() && back["resumed"] == false, "{back}");
    kept(&of_a).await;
    let back = join(&host, "a", &json!({})).await.ok();
    of_a = higher(&of_a);
    assert_eq!(epochs(&back["assignments"]), of_a, "{back}");
    assert_eq!(owned_by(&view(&host, "g").await, "b"), of_b);

    // After a short grace period they are free, and go to who is there.
    set(&host, &json!({ "graceMs": 1 })).await;
    leave(&host, "a", back["session"].as_str().expect("a text"), "&returning=true").await;
    let after = until(&host, "b has it all", |view| owned_by(view, "b").len() == 4).await;
    assert_eq!(after["members"].as_array().expect("a list").len(), 1, "{after}");
    let expected = of_b.into_iter().chain(higher(&of_a)).collect::<BTreeMap<_, _>>();
    assert_eq!(owned_by(&after, "b"), expected, "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steal_takes_effect_at_once() {
    let host = host().await;
    topic(&host, "t", 2).await;
    set(&host, &calm(&json!({ "handover": "steal" }))).await;
    let (a, orders) = join_by_hand(&host, "a", &json!({}), 2).await;
    assert_eq!(epochs(&orders["assignments"]), BTreeMap::from([(0, 1), (1, 1)]));
    // `a` neither sends a heartbeat nor releases anything.
    let (_, orders) = join_by_hand(&host, "b", &json!({}), 1).await;
    let (stolen, epoch) = epochs(&orders["assignments"]).pop_first().expect("one");
    assert_eq!(epoch, 2);
    for refused in
        [checkpoint(&host, number(stolen), &a, 1, 0).await, pull(&host, number(stolen), &a, 1, "").await]
    {
        refused.refused(409, "stale_epoch");
        assert_eq!(refused.body["epoch"], 2);
    }
    let left = number(1 - stolen);
    checkpoint(&host, left, &a, 1, 0).await.ok();
    let told = beat(&host, "a", &a, &json!({})).await.ok();
    assert_eq!(epochs(&told["assignments"]), BTreeMap::from([(left.into(), 1)]));
    assert_eq!(told["revocations"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_never_releases_loses_it_at_the_deadline() {
    let host = host().await;
    topic(&host, "t", 2).await;
    publish(&host, "t", 0).await;
    set(&host, &calm(&json!({ "handoverDeadlineMs": 600_000 }))).await;
    let (a, _) = join_by_hand(&host, "a", &json!({}), 2).await;
    let is_moving = |view: &Value| view["partitions"].to_string().contains("\"moving\"");
    let b = join(&host, "b", &json!({})).await.ok()["session"].as_str().expect("a text").to_owned();
    let shown = until(&host, "one moves", is_moving).await;
    let moving = shown["partitions"].as_array().expect("a list").iter().find(|at| at["state"] == "moving");
    let moving = moving.expect("one");
    assert_eq!((&moving["owner"], &moving["movingTo"]), (&json!("a"), &json!("b")));
    let place = number(moving["partition"].as_u64().expect("a number"));
    let told = beat(&host, "a", &a, &json!({})).await.ok();
    assert_eq!(epochs(&told["revocations"]), BTreeMap::from([(place.into(), 1)]), "{told}");
    let left = told["revocations"][0]["deadlineMs"].as_u64();
    assert!((1..=600_000).contains(&left.expect("a number")), "{told}");
    // Until then the old owner goes on.
    pull(&host, place, &a, 1, "").await.ok();
    checkpoint(&host, place, &a, 1, moving["endOffset"].as_u64().expect("a number")).await.ok();
    assert_eq!(beat(&host, "b", &b, &json!({})).await.ok()["assignments"], json!([]));

    // The same with a deadline that comes.
    leave(&host, "b", &b, "").await;
    until(&host, "a keeps both", |view| shares(view) == BTreeMap::from([("a".to_owned(), 2)])).await;
    set(&host, &json!({ "handoverDeadlineMs": 300 })).await;
    let (_, orders) = join_by_hand(&host, "b", &json!({}), 1).await;
    let (place, epoch) = epochs(&orders["assignments"]).pop_first().expect("one");
    assert_eq!(epoch, 2);
    checkpoint(&host, number(place), &a, 1, 0).await.refused(409, "stale_epoch");
    assert_eq!(beat(&host, "a", &a, &json!({})).await.ok()["revocations"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_movement_budget_spreads_moves_over_cycles() {
    let host = host().await;
    topic(&host, "t", 8).await;
    let slow = json!({ "fastIntervalMs": 3_600_000 });
    set(&host, &calm(&json!({ "movementBudget": 2, "handover": "steal", "config": slow }))).await;
    join_by_hand(&host, "a", &json!({}), 8).await;
    join_by_hand(&host, "b", &json!({}), 2).await;
    let shown = view(&host, "g").await;
    assert_eq!((&shown["lastCycle"]["reason"], &shown["lastCycle"]["moved"]), (&json!("join"), &json!(2)));
    let shown = rebalance(&host).await;
    assert_eq!((shares(&shown)["b"], &shown["lastCycle"]["moved"]), (4, &json!(2)), "{shown}");
    // At its share it gets no more.
    host.post("/groups/g/rebalance", &json!({})).await.ok();
    let done = until(&host, "a cycle without moves", |view| view["lastCycle"]["moved"] == 0).await;
    assert_eq!(shares(&done), BTreeMap::from([("a".to_owned(), 4), ("b".to_owned(), 4)]));

    // By itself, with hand-overs between members that release.
    let quick = json!({ "gatherMs": 0, "fastIntervalMs": 50, "config": { "fastIntervalMs": 100 }, "movementBudget": 1 });
    host.put("/groups/h", &quick).await.ok();
    let _first = member(&host, "h", "t", "a").await;
    until_spread(&host, "h", 1, 8).await;
    let _second = member(&host, "h", "t", "b").await;
    let shown = until_spread(&host, "h", 2, 8).await;
    assert_eq!(shown["lastCycle"]["moved"], 1, "four moves took four cycles: {shown}");
}

/// Waits until the members hold every partition between them, and checks that no two hold the same.
async fn until_all_held(members: &[Member], count: usize) {
    eventually("everything is held", SOON, async || {
        let held = members.iter().map(|member| member.held_changes().borrow().clone());
        let places: Vec<_> = held.flatten().map(|held| held.place).collect();
        let distinct: BTreeSet<_> =
            places.iter().map(|place| (place.topic.clone(), place.partition)).collect();
        (distinct.len() == count && places.len() == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_swapped_under_a_live_group() {
    let host = host().await;
    let embedded = |name: &str| fulcrum::embedded::find(name).expect("it is embedded");
    topic(&host, "t", 12).await;
    set(&host, &calm(&json!({}))).await;
    let mut members = Vec::new();
    let mut before = Value::Null;
    for name in ["a", "b", "c"] {
        members.push(member(&host, "g", "t", name).await);
        // What is being handed over to one is not given to the next, and no cycle follows by itself.
        before = until_spread(&host, "g", members.len(), 12).await;
    }
    assert_eq!(before["digest"], digest(embedded("sticky")));
    let cycle = async |reason: &str, policy: &str, wasm: &[u8]| {
        let digest = digest(wasm);
        let is_it = |view: &Value| {
            let partitions = view["partitions"].as_array().expect("a list");
            assert!(partitions.len() == 12 && partitions.iter().all(|at| at["owner"].is_string()), "{view}");
            let last = &view["lastCycle"];
            last["reason"] == reason && last["policy"] == policy && last["digest"] == *digest
        };
        let shown = until(&host, &format!("{policy} plans because of {reason}"), is_it).await;
        assert_eq!((&shown["policy"], &shown["digest"]), (&json!(policy), &json!(digest)), "{shown}");
        assert_eq!(
            (&shown["lastCycle"]["problem"], &shown["warnings"]),
            (&Value::Null, &json!([])),
            "{shown}"
        );
        until_spread(&host, "g", 3, 12).await;
        until_all_held(&members, 12).await;
    };
    let drops = host.policies();
    drops.put("sticky.wasm", embedded("average"));
    cycle("policy", "sticky", embedded("average")).await;
    host.put("/admin/bindings", &json!({ "groups": { "g": "greedy" } })).await.ok();
    cycle("policy", "greedy", embedded("greedy")).await;
    drops.put("greedy.json", br#"{"claimPercent":50}"#);
    cycle("config", "greedy", embedded("greedy")).await;
    rebalance(&host).await;
    set(&host, &json!({ "config": { "claimPercent": 60 } })).await;
    cycle("config", "greedy", embedded("greedy")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_interval_counts_at_once() {
    let host = host().await;
    topic(&host, "t", 2).await;
    set(&host, &calm(&json!({}))).await;
    join_by_hand(&host, "a", &json!({}), 2).await;
    let cycles = async || {
        let metrics = host.get("/metrics").await.text;
        let lines = metrics.lines().filter(|line| {
            line.starts_with("fulcrum_decisions_total{role=\"claiming\"") && line.contains("outcome=\"ok\"")
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    let before = cycles().await;
    set(&host, &json!({ "intervalMs": 20 })).await;
    eventually("cycles run", SOON, async || (cycles().await > before + 2).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_and_the_metrics_warn() {
    let host = host().await;
    topic(&host, "t", 2).await;
    topic(&host, "u", 2).await;
    let check = async |texts: &[&str], counts: [(&str, u32); 4]| {
        let warnings = view(&host, "g").await["warnings"].clone();
        let list = warnings.as_array().expect("a list");
        assert_eq!(list.len(), texts.len(), "{warnings}");
        for text in texts {
            assert!(
                list.iter().any(|line| line.as_str().is_some_and(|line| line.contains(text))),
                "{warnings}"
            );
        }
        let metrics = host.get("/metrics").await.text;
        for (kind, count) in counts {
            let line = format!("fulcrum_group_warnings{{kind=\"{kind}\"}} {count}\n");
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
    };
    set(&host, &calm(&json!({}))).await;
    let (a, orders) = join_by_hand(&host, "a", &json!({}), 2).await;
    check(&[], [("settings", 0), ("subscriptions", 0), ("ownership", 0), ("policy", 0)]).await;
    set(&host, &json!({ "ownershipExpiryMs": 1_199_999 })).await;
    check(&["ownershipExpiryMs"], [("settings", 1), ("subscriptions", 0), ("ownership", 0), ("policy", 0)])
        .await;

    let b = join(&host, "b", &json!({ "topics": ["u"] })).await.ok();
    let mut owned = orders["assignments"].clone();
    owned[0]["epoch"] = json!(99);
    beat(&host, "a", &a, &json!({ "owned": owned, "seq": 2 })).await.ok();
    let texts = [
        "ownershipExpiryMs",
        "a and b read different topics",
        "a reports 1 partitions that it was not given",
    ];
    check(&texts, [("settings", 1), ("subscriptions", 1), ("ownership", 1), ("policy", 0)]).await;
    let members = view(&host, "g").await["members"].clone();
    assert_eq!(members[0]["disagreesOn"], json!([{ "topic": "t", "partition": 0 }]));

    // They end with their causes.
    set(&host, &json!({ "ownershipExpiryMs": 1_200_000 })).await;
    leave(&host, "b", b["session"].as_str().expect("a text"), "").await;
    beat(&host, "a", &a, &json!({ "owned": orders["assignments"], "seq": 3 })).await.ok();
    check(&[], [("settings", 0), ("subscriptions", 0), ("ownership", 0), ("policy", 0)]).await;
}
