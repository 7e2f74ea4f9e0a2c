//! Places and weights of partitions: told with the topic, kept over a restart, and seen by claim policies.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::groups::{host, join_by_hand, topic, view};
use crate::support::{Api, Host, SOON, eventually};

/// Makes the group that plans only when something happens, and whose partitions change hands at once.
async fn group(api: &Api, policy: &str, config: &Value) {
    let settings = json!({ "policy": policy, "config": config, "handover": "steal", "gatherMs": 0,
        "intervalMs": 600_000, "fastIntervalMs": 600_000, "ownershipExpiryMs": 1_200_000 });
    api.put("/groups/g", &settings).await.ok();
}

/// Joins without waiting for anything.
async fn join(api: &Api, name: &str, zone: &str) {
    let body = json!({ "memberId": name, "topics": ["t"], "ttlMs": 600_000, "zone": zone });
    api.post("/groups/g/members", &body).await.ok();
}

/// Numbers of the partitions by owner; those of nobody are under the empty name.
fn owned(view: &Value) -> BTreeMap<String, BTreeSet<u64>> {
    let mut owned: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for at in view["partitions"].as_array().expect("a list") {
        let owner = at["owner"].as_str().unwrap_or_default().to_owned();
        owned.entry(owner).or_default().insert(at["partition"].as_u64().expect("a number"));
    }
    owned
}

/// Waits until the partitions belong to these, and returns the view.
async fn until_owned(api: &Api, expected: &[(&str, &[u64])]) -> Value {
    let of = |(owner, numbers): &(&str, &[u64])| ((*owner).to_owned(), numbers.iter().copied().collect());
    let expected: BTreeMap<String, BTreeSet<u64>> = expected.iter().map(of).collect();
    eventually(format!("{expected:?}"), SOON, async || {
        Some(view(api, "g").await).filter(|view| owned(view) == expected)
    })
    .await
}

async fn described(api: &Api, topic: &str) -> (Value, Value) {
    let mut answer = api.get(&format!("/topics/{topic}")).await.ok();
    (answer["places"].take(), answer["weights"].take())
}

/// The rooms of six partitions, as names of RocketMQ's brokers.
fn places() -> Value {
    json!(["roomA@b1", "roomB@b1", "roomC@b1", "roomA@b2", "roomB@b2", "roomA@b3"])
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_rooms_get_the_partitions_of_their_places() {
    let host = host().await;
    host.put("/topics/t", &json!({ "partitions": 6, "places": places() })).await.ok();
    group(&host, "machine-room", &json!({ "rooms": ["roomA", "roomB"] })).await;
    join(&host, "a", "").await;
    // Nobody is allowed to have what is in room C.
    until_owned(&host, &[("a", &[0, 1, 3, 4, 5]), ("", &[2])]).await;
    host.put("/groups/g", &json!({ "config": { "rooms": ["roomA"] } })).await.ok();
    until_owned(&host, &[("a", &[0, 3, 5]), ("", &[1, 2, 4])]).await;
    let shown = view(&host, "g").await;
    assert_eq!((&shown["lastCycle"]["policy"], &shown["warnings"]), (&json!("machine-room"), &json!([])));

    // A place that changes is planned with at once.
    let mut moved = places();
    moved[2] = json!("roomA@b4");
    host.put("/topics/t", &json!({ "partitions": 6, "places": moved })).await.ok();
    let shown = until_owned(&host, &[("a", &[0, 2, 3, 5]), ("", &[1, 4])]).await;
    assert_eq!(shown["lastCycle"]["reason"], "partitions", "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_get_exactly_the_partitions_of_their_room() {
    let host = host().await;
    topic(&host, "t", 6).await;
    group(&host, "machine-room-nearby", &json!({ "separator": "@" })).await;
    for (name, zone) in [("a1", "roomA"), ("a2", "roomA"), ("b", "roomB"), ("c", "roomC")] {
        join(&host, name, zone).await;
    }
    // Nothing is known of the partitions yet: all members share them.
    eventually("all are owned", SOON, async || {
        (!owned(&view(&host, "g").await).contains_key("")).then_some(())
    })
    .await;
    host.put("/topics/t", &json!({ "partitions": 6, "places": places() })).await.ok();
    until_owned(&host, &[("a1", &[0, 3]), ("a2", &[5]), ("b", &[1, 4]), ("c", &[2])]).await;
    assert_eq!(described(&host, "t").await, (places(), json!([])));

    // A restart keeps them: planning without them would move partitions.
    let folder = host.stop().await;
    let host = Host::in_folder(folder, |config| config.group.gather_ms = 0).await;
    assert_eq!(described(&host, "t").await, (places(), json!([])));
    let epochs = |view: &Value| {
        let partitions = view["partitions"].as_array().expect("a list").iter();
        partitions.map(|at| at["epoch"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    let before = epochs(&view(&host, "g").await);
    host.post("/groups/g/rebalance", &json!({})).await.ok();
    let shown = eventually("a cycle ran", SOON, async || {
        Some(view(&host, "g").await).filter(|view| view["lastCycle"]["reason"] == "manual")
    })
    .await;
    assert_eq!((&shown["lastCycle"]["moved"], &shown["lastCycle"]["claims"]), (&json!(0), &json!([])));
    assert_eq!(epochs(&shown), before, "{shown}");

    // New partitions have no place until they get one: they are shared by all.
    host.put("/topics/t", &json!({ "partitions": 7 })).await.ok();
    let mut grown = places();
    grown.as_array_mut().expect("a list").push(json!(""));
    assert_eq!(described(&host, "t").await, (grown.clone(), json!([])));
    let shown = eventually("the new one is owned", SOON, async || {
        Some(view(&host, "g").await)
            .filter(|view| !owned(view).contains_key("") && view["partitions"][6].is_object())
    })
    .await;
    assert!(owned(&shown)["c"].contains(&2), "{shown}");
    grown[6] = json!("roomC@b9");
    host.put("/topics/t", &json!({ "partitions": 7, "places": grown })).await.ok();
    until_owned(&host, &[("a1", &[0, 3]), ("a2", &[5]), ("b", &[1, 4]), ("c", &[2, 6])]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sticky_balances_weights() {
    let host = host().await;
    let weights = json!([6, 1, 1, 1, 1, 1, 1]);
    host.put("/topics/t", &json!({ "partitions": 7, "weights": weights })).await.ok();
    group(&host, "sticky", &json!({})).await;
    join_by_hand(&host, "a", &json!({}), 7).await;
    join(&host, "b", "").await;
    // One partition weighs as much as all the others.
    let heavy: (&[u64], &[u64]) = (&[0], &[1, 2, 3, 4, 5, 6]);
    let shown = eventually("the weights are balanced", SOON, async || {
        let shares = owned(&view(&host, "g").await);
        let share = |name: &str| shares.get(name).map(|share| share.iter().copied().collect::<Vec<_>>());
        let is_it = |one: &str, other: &str| {
            share(one).as_deref() == Some(heavy.0) && share(other).as_deref() == Some(heavy.1)
        };
        (is_it("a", "b") || is_it("b", "a")).then_some(shares)
    })
    .await;
    assert_eq!(shown.len(), 2, "nothing is left over");
    // Weights that are forgotten leave numbers to balance.
    host.put("/topics/t", &json!({ "partitions": 7, "weights": [] })).await.ok();
    eventually("the numbers are balanced", SOON, async || {
        let mut shares: Vec<_> = owned(&view(&host, "g").await).values().map(BTreeSet::len).collect();
        shares.sort_unstable();
        (shares == [3, 4]).then_some(())
    })
    .await;
    assert_eq!(described(&host, "t").await, (json!([]), json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_checked_kept_and_forgotten_with_their_topic() {
    let host = host().await;
    let put = async |body: Value| host.put("/topics/t", &body).await;
    let (places, weights) = (json!(["a", "", "größe"]), json!([0.1, 1e6, 3.5]));
    put(json!({ "partitions": 3, "places": places, "weights": weights })).await.ok();
    let expected = (places.clone(), json!([0.1, 1_000_000.0, 3.5]));
    assert_eq!(described(&host, "t").await, expected);
    for (field, list) in [
        ("places", json!(["a", "b"])),
        ("places", json!(["a", "b", 1])),
        ("places", json!(["a", "b", "x".repeat(257)])),
        ("places", json!({})),
        ("weights", json!([1, 2])),
        ("weights", json!([1, 2, 0])),
        ("weights", json!([1, 2, -1])),
        ("weights", json!([1, 2, 1_000_001])),
        ("weights", json!([1, 2, "3"])),
    ] {
        let refused = put(json!({ "partitions": 3, field: list })).await;
        let message = refused.refused(400, "invalid_value");
        assert!(message.starts_with(field), "{message}");
    }
    // Each list fits a call; both together do not fit what is kept.
    let count = 40_000;
    let many = json!({ "partitions": count, "places": vec!["a-room-of-20-letters"; count] });
    host.put("/topics/many", &many).await.ok();
    let heavy = json!({ "partitions": count, "weights": vec![12_345.678_9; count] });
    let refused = host.put("/topics/many", &heavy).await;
    let message = refused.refused(400, "invalid_value");
    assert!(message.contains("places and weights") && message.contains("1048576"), "{message}");
    host.delete("/topics/many").await.ok();

    // What is not named stays.
    assert_eq!(described(&host, "t").await, expected);
    put(json!({ "partitions": 2 })).await.refused(409, "partitions_only_grow");
    put(json!({ "partitions": 3 })).await.ok();
    assert_eq!(described(&host, "t").await, expected);
    put(json!({ "partitions": 3, "places": [] })).await.ok();
    assert_eq!(described(&host, "t").await, (json!([]), expected.1.clone()));
    put(json!({ "partitions": 4, "places": null })).await.ok();
    assert_eq!(described(&host, "t").await, (json!([]), json!([0.1, 1_000_000.0, 3.5, 1.0])));

    // Another topic of the same name begins with nothing.
    let folder = host.stop().await;
    let host = Host::in_folder(folder, |_| {}).await;
    assert_eq!(described(&host, "t").await, (json!([]), json!([0.1, 1_000_000.0, 3.5, 1.0])));
    host.delete("/topics/t").await.ok();
    topic(&host, "t", 4).await;
    assert_eq!(described(&host, "t").await, (json!([]), json!([])));
}

/// What `/admin/policies` counts of the claiming role.
#[tokio::test(flavor = "multi_thread")]
async fn plans_are_counted_by_policy() {
    let host = host().await;
    topic(&host, "t", 2).await;
    let none = json!({ "ok": 0, "timeout": 0, "trap": 0, "limit": 0, "illegal": 0, "error": 0, "open": 0 });
    assert_eq!(host.policy("sticky").await["plans"], none);
    group(&host, "sticky", &json!({})).await;
    join_by_hand(&host, "a", &json!({}), 2).await;
    let status = host.policy("sticky").await;
    assert!(status["plans"]["ok"].as_u64() > Some(0), "{status}");
    assert_eq!(status["decisions"], none);
    let before = host.policy("greedy").await;
    assert_eq!((&before["plans"], &before["decisions"]), (&none, &none));
    host.put("/groups/g", &json!({ "policy": "greedy" })).await.ok();
    eventually("greedy planned", SOON, async || {
        let all = host.get("/admin/policies").await.ok();
        let all = all["policies"].as_array().expect("a list");
        let plans = &all.iter().find(|status| status["name"] == "greedy").expect("it is embedded")["plans"];
        (plans["ok"].as_u64() > Some(0)).then_some(())
    })
    .await;
    // That another policy plans is counted, though every plan was fine.
    let changes = async |host: &Host| {
        let metrics = host.get("/metrics").await.text;
        let line = metrics.lines().find_map(|line| line.strip_prefix("fulcrum_group_policy_changes_total "));
        line.unwrap_or_else(|| panic!("{metrics}")).parse::<u64>().expect("a number")
    };
    eventually("it is counted", SOON, async || (changes(&host).await == 1).then_some(())).await;
    host.policies().put("greedy.json", br#"{"claimPercent":50}"#);
    eventually("its configuration is counted, too", SOON, async || (changes(&host).await == 2).then_some(()))
        .await;
}
