//! Why a session goes where it goes, and why partitions belong to whom they belong, in words over HTTP.

use fulcrum::config::Config;
use reqwest::Method;
use serde_json::{Value, json};

use crate::groups::{self, join_by_hand, topic};
use crate::support::*;

fn scoring(policy: &'static str) -> impl FnOnce(&mut Config) {
    move |config| config.policy.scoring = policy.to_owned()
}

/// Returns the text of a recommendation's `why`.
async fn why(host: &Api, query: &str) -> String {
    let answer = host.recommend(&format!("{query}&explain=1")).await;
    answer["why"]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Sends a heartbeat of an instance that uses 5.5 % of its cores.
async fn busy(host: &Api, id: &str, sessions: u32) {
    let body = json!({ "address": format!("{id}.test:1"), "activeSessions": sessions, "inflowBytesPerSec": 0,
        "outflowBytesPerSec": 0, "cpuLoad": 0.055 });
    host.put(&format!("/instances/{id}"), &body).await.ok();
}

#[test]
fn weighted_names_its_terms_and_the_runner_up() {
    run(async {
        let host = Host::with(scoring("weighted")).await;
        let nobody = host.recommend("explain=1").await;
        assert!(nobody["why"]["text"].as_str().unwrap().starts_with("Nobody may be chosen"), "{nobody}");
        assert_eq!(nobody["why"]["terms"], json!([]));

        busy(&host, "a", 400).await;
        let alone = "a costs 455: sessions 400, cpu 55. It is the only one that may be chosen.";
        assert_eq!(why(&host, "").await, alone);
        busy(&host, "a", 400).await;
        busy(&host, "b", 520).await;
        let answer = host.recommend("explain=1").await;
        assert_eq!(
            answer["why"]["text"],
            "a costs 455: sessions 400, cpu 55. Next is b at 575: sessions 120 more."
        );
        let terms: Vec<_> = answer["why"]["terms"].as_array().unwrap().iter().collect();
        assert_eq!(
            (&terms[0], &terms[1]["name"]),
            (&&json!({ "name": "sessions", "value": 400.0 }), &json!("cpu"))
        );
        assert_eq!(terms.len(), 6, "zeros are terms too: {answer}");
        // The first one is pending now; the runner-up is told although only one candidate is listed.
        let text = why(&host, "limit=1").await;
        assert_eq!(
            text,
            "a costs 456: sessions 400, cpu 55, pending 1. Next is b at 575: sessions 120 more, pending 1 less."
        );
        assert_eq!(why(&host, "exclude=b").await.matches("only one").count(), 1);
        busy(&host, "a", 7).await;
        busy(&host, "b", 7).await;
        busy(&host, "c", 7).await;
        let tie = "a costs 62: cpu 55, sessions 7. b and 1 other cost the same; the policy weighted chose a.";
        assert_eq!(why(&host, "").await, tie);
        for query in ["explain=0", "limit=2", ""] {
            assert_eq!(host.recommend(query).await.get("why"), None, "{query}");
        }
        host.stop().await;
    });
}

#[test]
fn p2c_says_that_it_left_a_cheaper_one() {
    run(async {
        let host = Host::with(scoring("p2c")).await;
        for number in 0..10 {
            host.beat(&format!("i{number}"), 100 * number).await;
        }
        let (mut cheapest, mut otherwise) = (0, 0);
        // The cheapest of ten is one of two drawn in every fifth decision.
        for _ in 0..200 {
            let answer = host.recommend("explain=1").await;
            let text = answer["why"]["text"].as_str().unwrap();
            let parts = answer["scoreParts"].as_array().unwrap();
            let score = |at: usize| parts[at]["score"].as_f64().unwrap();
            let id = answer["instanceId"].as_str().unwrap();
            assert!(text.starts_with(&format!("{id} costs ")), "{answer}");
            if score(1) < score(0) {
                otherwise += 1;
                let other = parts[1]["instanceId"].as_str().unwrap();
                assert!(
                    text.ends_with("; the policy p2c chose otherwise.")
                        && text.contains(&format!("{other} was cheaper at"))
                            | text.contains(&format!("were cheaper, the cheapest is {other} at")),
                    "{answer}"
                );
            } else {
                cheapest += 1;
                assert!(text.contains(". Next is ") || text.contains("cost"), "{answer}");
            }
        }
        assert!(cheapest > 0 && otherwise > 0, "{cheapest} and {otherwise}");
        host.stop().await;
    });
}

#[test]
fn the_fallback_says_why_it_decided() {
    run(async {
        let host = Host::with(scoring("mine")).await;
        host.beat("a", 3).await;
        host.beat("b", 5).await;
        let trap = sins().into_iter().find(|sin| sin.name == "trap").unwrap().wasm;
        host.policies().put("mine.wasm", &trap);
        host.until_in_use("mine", &digest(&trap)).await;
        let armed = format!("clientId={TROUBLE}");
        let text = why(&host, &armed).await;
        let (start, end) = (
            "The fallback decided, because the policy mine crashed: ",
            ". a costs 3: sessions 3. Next is b at 5: sessions 2 more.",
        );
        assert!(text.starts_with(start) && text.ends_with(end), "{text}");
        // It keeps failing, and is asked no more.
        host.recommend(&armed).await;
        host.recommend(&armed).await;
        let text = eventually("its breaker is open", SOON, async || {
            Some(why(&host, &armed).await).filter(|text| text.contains("kept failing"))
        })
        .await;
        assert!(
            text.contains("the policy mine kept failing and is not asked for now; at last it crashed: "),
            "{text}"
        );
        host.stop().await;
    });
}

#[test]
fn a_policy_that_does_not_explain_is_not_compared() {
    run(async {
        let host = Host::with(scoring("mine")).await;
        host.beat("a", 9).await;
        host.policies().put("mine.wasm", &FIRST);
        host.until_in_use("mine", &digest(&FIRST)).await;
        let answer = host.recommend("explain=1").await;
        assert_eq!(
            answer["why"]["text"],
            "a costs 0. The policy mine does not explain its scores; it is the only one that may be chosen."
        );
        assert_eq!(answer["why"]["terms"], json!([]));
        host.beat("a", 9).await;
        host.beat("b", 5).await;
        assert_eq!(
            why(&host, "").await,
            "a costs 0. The policy mine does not explain its scores; in sessions per unit of capacity, a has 9 and \
             the least of the others is b with 5."
        );

        // One that fails to explain decides all the same.
        let slow = sins().into_iter().find(|sin| sin.name == "loop-explain").unwrap().wasm;
        host.policies().put("mine.wasm", &slow);
        host.until_in_use("mine", &digest(&slow)).await;
        let text = why(&host, &format!("clientId={TROUBLE}")).await;
        let expected = "a costs 0. The policy mine failed to explain its scores: it missed its deadline of 2000 ms; in \
                        sessions";
        assert!(text.starts_with(expected), "{text}");
        host.stop().await;
    });
}

#[test]
fn hostile_terms_are_cut_and_escaped() {
    run(async {
        let host = Host::with(scoring("mine")).await;
        host.beat("a", 0).await;
        host.beat("b", 0).await;
        let babble = guest(include_str!("guests/babble.wat"));
        host.policies().put("mine.wasm", &babble);
        host.until_in_use("mine", &digest(&babble)).await;
        let answer = host.recommend("explain=1").await;
        assert_eq!((&answer["policy"], &answer["score"]), (&json!("mine"), &Value::Null), "{answer}");
        assert_eq!(
            answer["why"]["text"],
            "a costs infinity: \"x 1. Next is z\\n\\u{1b}[2J\\u{202e}\" infinity, \"\" not a number. The explanation \
             of the policy mine leaves the other one out."
        );
        let terms = json!([{ "name": "x 1. Next is z\\n\\u{1b}[2J\\u{202e}", "value": null },
            { "name": "", "value": null }]);
        assert_eq!(answer["why"]["terms"], terms);
        host.stop().await;
    });
}

/// Makes the group that plans only when something happens.
async fn group(api: &Api, more: &Value) {
    let mut settings = json!({ "gatherMs": 0, "intervalMs": 600_000, "fastIntervalMs": 600_000,
        "ownershipExpiryMs": 1_200_000, "handover": "steal" });
    for (key, value) in more.as_object().unwrap() {
        settings[key] = value.clone();
    }
    api.put("/groups/g", &settings).await.ok();
}

async fn explained(api: &Api) -> Value {
    api.get("/groups/g?explain=1").await.ok()
}

/// Waits until the explained view is as wanted.
async fn until(api: &Api, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    eventually(what, SOON, async || Some(explained(api).await).filter(&is_it)).await
}

/// The `why` of the partitions of an owner; that of nobody is null.
fn of<'a>(view: &'a Value, owner: &Value) -> Vec<&'a Value> {
    let partitions = view["partitions"].as_array().unwrap().iter();
    partitions.filter(|at| at["owner"] == *owner).map(|at| &at["why"]).collect()
}

fn count_of(view: &Value, owner: &str) -> usize {
    of(view, &json!(owner)).len()
}

/// Checks text and facts of every partition of an owner.
#[track_caller]
fn check(view: &Value, owner: &str, words: &[&str], facts: &Value) {
    let whys = of(view, &json!(owner));
    assert!(!whys.is_empty(), "{view}");
    for why in whys {
        let text = why["text"].as_str().unwrap();
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
        for (name, value) in facts.as_object().unwrap() {
            assert_eq!(why[name], *value, "{name} of {why}");
        }
        assert_eq!(why["atMs"].is_null(), why["cycle"].is_null(), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_says_who_came_to_what_and_why() {
    let host = groups::host().await;
    topic(&host, "t", 4).await;
    group(&host, &json!({})).await;
    join_by_hand(&host, "a", &json!({}), 4).await;
    let view = explained(&host).await;
    let words = [
        "a owns it by the cycle ",
        "ago, run because a member joined: sticky gave it out when nobody had it (\"",
    ];
    check(&view, "a", &words, &json!({ "cycle": "join", "policy": "sticky", "from": null }));
    let text = view["why"]["text"].as_str().unwrap();
    assert!(
        text.starts_with("4 of 4 partitions owned: a 4. The last cycle, ")
            && text.ends_with("planned by sticky, gave out 4 that nobody had."),
        "{text}"
    );
    assert_eq!(view["why"]["loads"], json!([{ "memberId": "a", "partitions": 4 }]));

    let (b, _) = join_by_hand(&host, "b", &json!({}), 2).await;
    let view = until(&host, "b has two", |view| count_of(view, "b") == 2).await;
    let words = ["b owns it by", "sticky moved it from a (\""];
    check(&view, "b", &words, &json!({ "cycle": "join", "policy": "sticky", "from": "a" }));
    check(&view, "a", &["gave it out when nobody had it"], &json!({ "cycle": "join", "from": null }));
    let text = view["why"]["text"].as_str().unwrap();
    assert!(text.starts_with("4 of 4 partitions owned: a 2, b 2; the spread is 0 partitions. "), "{text}");
    assert!(text.contains("sticky, moved 2 partitions and kept 2 where"), "{text}");

    host.delete(&format!("/groups/g/members/b?session={b}")).await.ok();
    let view = until(&host, "a has all", |view| count_of(view, "a") == 4).await;
    let left = of(&view, &json!("a")).into_iter().filter(|why| why["cycle"] == "leave").count();
    assert_eq!(left, 2, "{view}");
    assert!(
        view["why"]["text"].as_str().unwrap().contains("run because a member left and planned by sticky"),
        "{view}"
    );

    // Nothing of it is there unless it was asked for.
    for query in ["", "?explain=0", "?explain=", "?other=1"] {
        let view = host.get(&format!("/groups/g{query}")).await.ok();
        assert_eq!((view.get("why"), view["partitions"][0].get("why")), (None, None), "{query}");
    }
    for query in ["explain=yes", "explain=2", "explain=%FF"] {
        host.get(&format!("/groups/g?{query}")).await.refused(400, "invalid_query");
    }
    host.get("/groups/nothing?explain=1").await.refused(404, "unknown_group");

    // What was before this start is not made up.
    let folder = host.stop().await;
    let host = Host::in_folder(folder, |config| config.group.gather_ms = 0).await;
    let view = explained(&host).await;
    let words = ["a owns it, taken over from before this start of the host: \""];
    check(&view, "a", &words, &json!({ "cycle": null, "policy": null, "from": null }));
    join_by_hand(&host, "c", &json!({}), 2).await;
    let view = until(&host, "c has two", |view| count_of(view, "c") == 2).await;
    check(&view, "c", &["sticky moved it from a"], &json!({ "cycle": "join", "from": "a" }));
    check(&view, "a", &words, &json!({ "cycle": null }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_says_where_it_goes() {
    let host = groups::host().await;
    topic(&host, "t", 2).await;
    group(&host, &json!({ "handover": "cooperative", "handoverDeadlineMs": 600_000, "graceMs": 0 })).await;
    let (a, _) = join_by_hand(&host, "a", &json!({}), 2).await;
    let body = json!({ "memberId": "b", "topics": ["t"], "ttlMs": 600_000 });
    let b = host.post("/groups/g/members", &body).await.ok();
    let is_moving = |view: &Value| view["partitions"].to_string().contains("\"moving\"");
    let view = until(&host, "one is on its way", is_moving).await;
    let moving = view["partitions"].as_array().unwrap().iter().find(|at| at["state"] == "moving").unwrap();
    let text = moving["why"]["text"].as_str().unwrap();
    assert!(text.contains("sticky gave it out when nobody had it"), "{text}");
    assert!(
        text.contains(" It is on its way to b by the cycle ") && text.contains(", planned by sticky (\""),
        "{text}"
    );
    assert!(view["why"]["text"].as_str().unwrap().contains("; 1 is on its way."), "{view}");

    let session = b["session"].as_str().unwrap();
    host.delete(&format!("/groups/g/members/b?session={session}")).await.ok();
    let view = until(&host, "it stays", |view| !is_moving(view)).await;
    assert_eq!(count_of(&view, "a"), 2);
    let called_off = of(&view, &json!("a")).into_iter().filter(|why| {
        let text = why["text"].as_str().unwrap();
        text.contains("gave it out when nobody had it") && text.ends_with(" It was to go to b, who is gone.")
    });
    assert_eq!(called_off.count(), 1, "{view}");

    host.delete(&format!("/groups/g/members/a?session={a}")).await.ok();
    let view = until(&host, "nobody has any", |view| of(view, &Value::Null).len() == 2).await;
    for why in of(&view, &Value::Null) {
        let text = why["text"].as_str().unwrap();
        assert!(text.starts_with("Nobody owns it; ") && why["cycle"].is_null(), "{why}");
    }
    assert!(
        view["why"]["text"].as_str().unwrap().starts_with("There is no member to own any of 2 partitions.")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_are_told_where_they_differ() {
    let host = groups::host().await;
    let topic = json!({ "partitions": 3, "weights": [4, 1, 2.5] });
    host.put("/topics/t", &topic).await.ok();
    group(&host, &json!({})).await;
    join_by_hand(&host, "a", &json!({}), 3).await;
    let view = explained(&host).await;
    assert_eq!(view["why"]["loads"], json!([{ "memberId": "a", "partitions": 3, "weight": 7.5 }]));
    assert!(
        view["why"]["text"].as_str().unwrap().starts_with("3 of 3 partitions owned: a 3 (weight 7.5). "),
        "{view}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_of_the_fallback_is_told_as_one() {
    let host = groups::host().await;
    topic(&host, "t", 2).await;
    let sticky = fulcrum::embedded::find("sticky").unwrap();
    host.policies().put("mine.wasm", sticky);
    host.until_in_use("mine", &digest(sticky)).await;
    group(&host, &json!({ "policy": "mine" })).await;
    host.policies().remove("mine.wasm");
    eventually("it is gone", SOON, async || (host.policy("mine").await["state"] == "removed").then_some(()))
        .await;
    join_by_hand(&host, "a", &json!({}), 2).await;
    let view = explained(&host).await;
    let words = ["the fallback gave it out when nobody had it (\"fallback: free partition\")"];
    check(&view, "a", &words, &json!({ "cycle": "join", "policy": "fallback", "from": null }));
    let text = view["why"]["text"].as_str().unwrap();
    assert!(text.contains("planned by the fallback ("), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebalance_takes_no_body() {
    let host = groups::host().await;
    topic(&host, "t", 2).await;
    let body = json!({ "memberId": "a", "topics": ["t"], "ttlMs": 600_000 });
    host.post("/groups/g/members", &body).await.ok();
    let post = |body: &'static str| host.request(Method::POST, "/groups/g/rebalance").body(body);
    for body in ["", "{}", " {}\n"] {
        let asked = host.send(post(body)).await.ok();
        assert_eq!(asked, json!({ "group": "g", "status": "requested" }), "{body:?}");
    }
    for body in ["{\"policy\":\"sticky\"}", "[]", "null", "{", "now"] {
        host.send(post(body)).await.refused(400, "invalid_body");
    }
    host.post("/groups/nothing/rebalance", &json!({})).await.refused(404, "unknown_group");
}
