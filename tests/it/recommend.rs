//! Instances and recommendations over HTTP: who is known, who is chosen, and what is refused.

use fulcrum::config::Config;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::*;

fn weighted(config: &mut Config) {
    config.policy.scoring = "weighted".to_owned();
}

/// The names of an object's fields, ordered.
fn fields(object: &Value) -> Vec<&str> {
    object.as_object().unwrap_or_else(|| panic!("{object}")).keys().map(String::as_str).collect()
}

/// The ids of listed instances, as they are called in that list.
fn ids(list: &Value) -> Vec<&str> {
    let rows = list.as_array().unwrap_or_else(|| panic!("{list}")).iter();
    rows.map(|row| row.get("instanceId").unwrap_or(&row["id"]).as_str().unwrap()).collect()
}

#[test]
fn a_heartbeat_is_shown_as_it_came() {
    run(async {
        let host = Host::start().await;
        let body = json!({ "address": "10.0.0.1:8080", "zone": "z1", "capacity": 2.0, "labels": {"tier": "gold", "gpu": ""},
            "activeSessions": 5, "inflowBytesPerSec": 1200, "outflowBytesPerSec": 800, "cpuLoad": 0.25 });
        let ack = host.put("/instances/a", &body).await.ok();
        assert_eq!(ack, json!({ "ttlMs": 600_000, "heartbeatIntervalMs": 5000 }));
        let mut rows = host.get("/instances").await.ok();
        let age_ms = rows[0]["heartbeatAgeMs"].take().as_u64().unwrap();
        assert!(age_ms < 20_000, "{age_ms}");
        let load = json!({ "activeSessions": 5, "inflowBytesPerSec": 1200.0, "outflowBytesPerSec": 800.0, "cpuLoad": 0.25 });
        let row = json!({ "id": "a", "address": "10.0.0.1:8080", "url": "http://10.0.0.1:8080", "zone": "z1",
            "capacity": 2.0, "labels": {"tier": "gold", "gpu": ""}, "load": load, "heartbeatAgeMs": null, "pending": 0,
            "draining": false, "live": true });
        assert_eq!(rows, json!([row]));

        // The least there is: an address; everything else has a default, and the load is unknown.
        host.put("/instances/a", &json!({ "address": "h:1" })).await.ok();
        let row = host.instance("a").await;
        assert_eq!((&row["load"], &row["capacity"], &row["labels"]), (&Value::Null, &json!(1.0), &json!({})));
        // Ids may hold what must be escaped in a path.
        host.put("/instances/z%2F1%3Aa", &json!({ "address": "h:1" })).await.ok();
        assert_eq!(ids(&host.get("/instances").await.ok()), ["a", "z/1:a"]);
        host.stop().await;
    });
}

#[test]
fn the_cheapest_instance_is_recommended() {
    run(async {
        let host = Host::with(weighted).await;
        host.beat("a", 7).await;
        host.beat("b", 3).await;
        let answer = host.recommend("clientId=c").await;
        assert_eq!(fields(&answer), ["digest", "instanceId", "instanceUrl", "policy", "score"]);
        assert_eq!(answer["instanceUrl"], "http://b.test:1");
        assert_eq!(
            (&answer["instanceId"], &answer["score"], &answer["policy"]),
            (&json!("b"), &json!(3.0), &json!("weighted"))
        );
        assert_eq!(answer["digest"], digest(fulcrum::embedded::find("weighted").unwrap()));
        // A client need not say who it is, and parameters of others are none of our business.
        assert_eq!(host.pick("").await, "b");
        assert_eq!(host.pick("utm_source=x&clientId=").await, "b");
        host.stop().await;
    });
}

#[test]
fn exclusion_is_by_id_and_by_url() {
    run(async {
        let host = Host::with(weighted).await;
        for (id, sessions) in [("a", 1), ("b", 50), ("c", 90)] {
            host.beat(id, sessions).await;
        }
        assert_eq!(host.pick("").await, "a");
        assert_eq!(host.pick("exclude=a").await, "b");
        assert_eq!(host.pick("exclude=http%3A%2F%2Fa.test%3A1").await, "b");
        assert_eq!(host.pick("exclude=a,http://b.test:1").await, "c");
        assert_eq!(host.pick("exclude=a&exclude=b").await, "c");
        assert_eq!(host.pick("exclude=nobody,,http://nobody:1").await, "a");
        let nobody = host.recommend("exclude=a,b,c").await;
        assert_eq!((&nobody["instanceUrl"], &nobody["instanceId"]), (&json!(""), &json!("")));
        host.stop().await;
    });
}

#[test]
fn labels_are_enforced() {
    run(async {
        let host = Host::with(weighted).await;
        for (id, labels) in
            [("a", json!({})), ("b", json!({"gpu": "a:b"})), ("c", json!({"gpu": "a:b", "tier": "gold"}))]
        {
            host.put(&format!("/instances/{id}"), &json!({ "address": "h:1", "labels": labels })).await.ok();
        }
        assert_eq!(host.pick("label=gpu:a:b").await, "b");
        assert_eq!(host.pick("label=gpu:a:b,tier:gold").await, "c");
        assert_eq!(host.pick("label=tier:gold&label=gpu:a:b").await, "c");
        assert_eq!(host.pick("label=tier:iron").await, "");
        assert_eq!(host.pick("label=gpu:a:b&exclude=b").await, "c");
        host.stop().await;
    });
}

#[test]
fn a_limit_lists_candidates_the_pick_first() {
    run(async {
        let host = Host::with(weighted).await;
        for (id, sessions) in [("a", 30), ("b", 10), ("c", 20), ("d", 5)] {
            host.beat(id, sessions).await;
        }
        let answer = host.recommend("limit=3&exclude=d").await;
        assert_eq!(ids(&answer["candidates"]), ["b", "c", "a"]);
        let first = json!({ "instanceUrl": "http://b.test:1", "instanceId": "b", "score": 10.0 });
        assert_eq!(answer["candidates"][0], first);
        assert_eq!(answer["instanceId"], "b");
        assert!(answer.get("scoreParts").is_none());
        assert_eq!(ids(&host.recommend("limit=1").await["candidates"]), ["d"]);
        assert_eq!(ids(&host.recommend("limit=100").await["candidates"]).len(), 4);
        // p2c draws two at random: its pick is not always the cheapest, but always stands first.
        host.put("/admin/bindings", &json!({ "scoring": "p2c" })).await.ok();
        for _ in 0..20 {
            let answer = host.recommend("limit=2").await;
            assert_eq!(answer["candidates"][0]["instanceId"], answer["instanceId"]);
            assert_eq!(answer["candidates"].as_array().unwrap().len(), 2);
        }
        host.stop().await;
    });
}

#[test]
fn scores_are_explained() {
    run(async {
        let host = Host::with(weighted).await;
        host.put(
            "/instances/a",
            &json!({ "address": "h:1", "capacity": 2, "activeSessions": 8, "inflowBytesPerSec": 6_000_000,
            "outflowBytesPerSec": 1000, "cpuLoad": 0.5 }),
        )
        .await
        .ok();
        host.put("/instances/b", &json!({ "address": "h:2" })).await.ok();
        let answer = host.recommend("clientId=c&explain=1").await;
        assert!(answer.get("candidates").is_none());
        let parts = &answer["scoreParts"];
        assert_eq!(ids(parts), ["b", "a"]);
        assert_eq!(parts[0]["parts"]["unknown"], 500.0);
        let of_a = json!({ "sessions": 4.0, "pending": 0.0, "bytes": 6001.0, "cpu": 500.0, "overload": 10_000.0, "client": 0.0 });
        for (name, value) in of_a.as_object().unwrap() {
            assert_eq!(parts[1]["parts"].get(name).unwrap_or(&json!(0.0)), value, "{name} in {parts}");
        }
        for row in parts.as_array().unwrap() {
            let sum: f64 =
                row["parts"].as_object().unwrap().values().map(|part| part.as_f64().unwrap()).sum();
            assert!((sum - row["score"].as_f64().unwrap()).abs() < 1e-9, "{row}");
        }
        assert_eq!(answer["score"], parts[0]["score"]);
        // An explanation is no decision of its own: one session is pending, not two.
        assert_eq!(host.instance("b").await["pending"], 1);
        host.stop().await;
    });
}

#[test]
fn a_draining_instance_gets_no_new_sessions() {
    run(async {
        let host = Host::with(weighted).await;
        host.beat("a", 0).await;
        host.beat("b", 90).await;
        assert_eq!(
            host.post("/instances/a/drain", &json!({})).await.ok(),
            json!({ "id": "a", "draining": true })
        );
        assert_eq!(host.pick("").await, "b");
        let shown = host.instance("a").await;
        assert_eq!((&shown["draining"], &shown["live"]), (&json!(true), &json!(true)));
        host.beat("a", 0).await;
        assert_eq!(host.pick("").await, "b", "a heartbeat does not end draining");
        assert_eq!(host.pick("exclude=b").await, "");
        let undrained = host.post("/instances/a/drain", &json!({ "draining": false })).await.ok();
        assert_eq!(undrained, json!({ "id": "a", "draining": false }));
        assert_eq!(host.pick("").await, "a");
        // The body may be left out altogether.
        host.send(host.request(Method::POST, "/instances/a/drain")).await.ok();
        assert_eq!(host.pick("").await, "b");
        host.post("/instances/x/drain", &json!({})).await.refused(404, "unknown_instance");
        host.post("/instances/a/drain", &json!({ "draining": "yes" })).await.refused(400, "invalid_body");
        host.stop().await;
    });
}

#[test]
fn an_instance_that_leaves_is_gone_at_once() {
    run(async {
        let host = Host::with(weighted).await;
        host.beat("a", 0).await;
        host.beat("b", 90).await;
        assert_eq!(host.delete("/instances/a").await.ok(), json!({ "id": "a", "status": "left" }));
        assert_eq!(host.pick("").await, "b");
        assert_eq!(host.instance("a").await, Value::Null);
        host.delete("/instances/a").await.refused(404, "unknown_instance");
        host.stop().await;
    });
}

#[test]
fn an_instance_without_heartbeats_expires() {
    run(async {
        let host = Host::with(|config| {
            weighted(config);
            config.heartbeat.interval_ms = 100;
            config.heartbeat.ttl_ms = 3000;
        })
        .await;
        let aged = async |id: &str, age_ms: u64| {
            let body = json!({ "address": "h:1", "timestampMs": now_ms() - age_ms, "activeSessions": age_ms,
                "inflowBytesPerSec": 0, "outflowBytesPerSec": 0, "cpuLoad": 0 });
            host.put(&format!("/instances/{id}"), &body).await
        };
        aged("z", 0).await.ok();
        aged("a", 2000).await.ok();
        // The host's clock is monotonic: it may differ from the wall clock by what that was adjusted meanwhile.
        assert!(host.instance("a").await["heartbeatAgeMs"].as_u64().unwrap() >= 1995);
        aged("old", 4000).await.refused(400, "timestamp_too_old");
        assert_eq!(host.instance("old").await, Value::Null);
        // The younger heartbeat counts, in whatever order they come.
        aged("a", 2900).await.ok();
        assert_eq!(host.instance("a").await["load"]["activeSessions"], 2000);
        let dead = eventually("a is dead", SOON, async || {
            Some(host.instance("a").await).filter(|row| row["live"] == false)
        });
        assert!(dead.await["heartbeatAgeMs"].as_u64().unwrap() > 3000);
        host.beat("z", 99).await;
        assert_eq!(ids(&host.get("/instances").await.ok()), ["z"]);
        assert_eq!(host.pick("").await, "z");
        host.beat("a", 0).await;
        assert_eq!(host.pick("").await, "a", "it is back");
        let nobody = eventually("nobody lives", SOON, async || {
            Some(host.recommend("").await).filter(|answer| answer["instanceId"] == "")
        });
        assert_eq!(nobody.await["instanceUrl"], "");
        host.stop().await;
    });
}

#[test]
fn sessions_given_out_count_until_the_next_heartbeat() {
    run(async {
        let host = Host::with(weighted).await;
        host.beat("a", 0).await;
        host.beat("b", 3).await;
        let mut picks = Vec::new();
        for _ in 0..5 {
            picks.push(host.pick("").await);
        }
        assert_eq!(picks, ["a", "a", "a", "a", "b"]);
        let pending = async || {
            (host.instance("a").await["pending"].clone(), host.instance("b").await["pending"].clone())
        };
        assert_eq!(pending().await, (json!(4), json!(1)));
        host.beat("a", 4).await;
        assert_eq!(pending().await, (json!(0), json!(1)));
        assert_eq!(host.recommend("").await["score"], 4.0);
        host.stop().await;
    });
}

#[test]
fn three_hundred_arrivals_between_two_heartbeats_do_not_herd() {
    run(async {
        for (policy, at_any_moment, at_end) in [("weighted", 3, 1), ("p2c", 300, 5)] {
            let host = Host::with(|config| config.policy.scoring = policy.to_owned()).await;
            for id in ["a", "b", "c"] {
                host.beat(id, 0).await;
            }
            let mut given = [0_i32; 3];
            let gap = |given: &[i32; 3]| given.iter().max().unwrap() - given.iter().min().unwrap();
            for arrival in 0..300 {
                let pick = host.pick(&format!("clientId=c{arrival}")).await;
                given[usize::from(pick.as_bytes()[0] - b'a')] += 1;
                assert!(gap(&given) <= at_any_moment, "{policy}: {given:?}");
            }
            assert!(gap(&given) <= at_end, "{policy}: {given:?}");
            for (id, given) in ["a", "b", "c"].iter().zip(given) {
                assert_eq!(host.instance(id).await["pending"], given, "{policy}");
            }
            host.stop().await;
        }
    });
}

#[test]
fn a_big_client_is_spread() {
    run(async {
        let host = Host::with(weighted).await;
        for _ in 0..3 {
            // The heartbeats say that nothing changed, so only what the client was given before tells the rows apart.
            for id in ["a", "b", "c"] {
                host.beat(id, 5).await;
            }
            assert_eq!(host.pick("clientId=other-each-time").await.len(), 1);
        }
        for id in ["a", "b", "c"] {
            host.beat(id, 5).await;
        }
        let answer = host.recommend("clientId=other-each-time&explain=1").await;
        assert_eq!(
            (&answer["instanceId"], &answer["scoreParts"][0]["parts"]["client"]),
            (&json!("a"), &json!(1.0))
        );
        for id in ["a", "b", "c"] {
            host.beat(id, 5).await;
        }
        assert_eq!(host.pick("clientId=other-each-time").await, "b");
        assert_eq!(host.pick("clientId=newcomer").await, "a");
        host.stop().await;
    });
}

#[test]
fn the_host_is_a_row_of_its_own_roster_only_with_an_address() {
    run(async {
        let host = Host::start().await;
        assert_eq!(host.get("/instances").await.ok(), json!([]));
        host.stop().await;

        let host = Host::with(|config| {
            weighted(config);
            config.host.advertise = Some("lb.test:0".parse().unwrap());
            config.host.instance_id = Some("me".to_owned());
            config.host.zone = "z9".to_owned();
        })
        .await;
        let port = host.url().rsplit_once(':').unwrap().1;
        let url = format!("http://lb.test:{port}");
        let me = host.instance("me").await;
        assert_eq!((&me["url"], &me["zone"]), (&json!(url), &json!("z9")));
        assert!(me["load"]["cpuLoad"].is_number(), "{me}");
        assert_eq!(host.recommend("").await["instanceUrl"], json!(url));
        host.put("/instances/me", &json!({ "address": "h:1" })).await.refused(409, "own_instance");
        host.delete("/instances/me").await.refused(409, "own_instance");
        host.post("/instances/me/drain", &json!({})).await.ok();
        let answer = host.recommend("").await;
        assert_eq!((&answer["instanceUrl"], &answer["instanceId"]), (&json!(url), &json!("")));
        assert_eq!(host.recommend("exclude=me").await["instanceUrl"], "");
        assert_eq!(host.recommend(&format!("exclude={url}")).await["instanceUrl"], "");
        host.stop().await;
    });
}

#[test]
fn invalid_heartbeats_are_refused_by_name() {
    run(async {
        let host = Host::start().await;
        let long = "x".repeat(257);
        let many: serde_json::Map<_, _> = (0..65).map(|n| (format!("k{n}"), json!("v"))).collect();
        let table = [
            ("address", json!(null)),
            ("address", json!("h")),
            ("address", json!("http://h:1")),
            ("address", json!("h:0")),
            ("address", json!("h:65536")),
            ("address", json!(7)),
            ("zone", json!(long)),
            ("zone", json!("a\nb")),
            ("zone", json!({})),
            ("capacity", json!(0)),
            ("capacity", json!(-1)),
            ("capacity", json!(1e7)),
            ("capacity", json!("2")),
            ("labels", json!({"k": 1})),
            ("labels", json!({"": "v"})),
            ("labels", json!(["k"])),
            ("labels", Value::Object(many)),
            ("activeSessions", json!(-1)),
            ("activeSessions", json!(1.5)),
            ("activeSessions", json!(1_000_000_001)),
            ("activeSessions", json!("5")),
            ("activeSessions", json!(null)),
            ("inflowBytesPerSec", json!(-0.5)),
            ("inflowBytesPerSec", json!(1e16)),
            ("outflowBytesPerSec", json!("NaN")),
            ("outflowBytesPerSec", json!(null)),
            ("cpuLoad", json!(-0.01)),
            ("cpuLoad", json!(1.01)),
            ("cpuLoad", json!(true)),
            ("timestampMs", json!(-1)),
            ("timestampMs", json!("now")),
        ];
        for (field, value) in table {
            let mut body = json!({ "address": "h:1", "activeSessions": 1, "inflowBytesPerSec": 1,
                "outflowBytesPerSec": 1, "cpuLoad": 0.1 });
            body[field] = value;
            let answer = host.put("/instances/a", &body).await;
            let message = answer.refused(400, "invalid_value");
            assert!(message.starts_with(field), "{message} is not about {field}: {body}");
        }
        let ahead = json!({ "address": "h:1", "timestampMs": now_ms() + 60_000 });
        host.put("/instances/a", &ahead).await.refused(400, "timestamp_in_future");
        for id in ["%20", "a,b", "a%0Ab", &long] {
            let answer = host.put(&format!("/instances/{id}"), &json!({ "address": "h:1" })).await;
            assert!(answer.refused(400, "invalid_value").starts_with("id "), "{}", answer.text);
        }
        host.put("/instances/%FF", &json!({ "address": "h:1" })).await.refused(400, "invalid_path");
        host.put("/instances/a", &json!([1])).await.refused(400, "invalid_body");
        assert_eq!(host.get("/instances?all=1").await.ok(), json!([]), "nothing of it was taken in");
        host.stop().await;
    });
}

#[test]
fn invalid_questions_are_refused() {
    run(async {
        let host = Host::start().await;
        let long = format!("clientId={}", "x".repeat(257));
        for query in ["limit=0", "limit=101", "limit=x", "limit=-1", "label=k", "explain=yes", &long] {
            let answer = host.get(&format!("/session/recommend?{query}")).await;
            let name = query.split_once('=').unwrap().0;
            assert!(answer.refused(400, "invalid_query").contains(name), "{}", answer.text);
        }
        host.get("/instances?all=maybe").await.refused(400, "invalid_query");
        host.stop().await;
    });
}

#[test]
fn the_edge_answers_in_json_too() {
    run(async {
        let host = Host::with(|config| config.host.body_bytes_max = 2048).await;
        assert!(host.get("/nothing?x=1").await.refused(404, "no_such_route").contains("GET /nothing"));
        let answer = host.post("/session/recommend", &json!({})).await;
        answer.refused(405, "method_not_allowed");
        assert!(answer.headers["allow"].to_str().unwrap().contains("GET"), "{:?}", answer.headers);

        let put = || host.request(Method::PUT, "/instances/a");
        host.send(put().header("content-type", "application/json").body("{"))
            .await
            .refused(400, "invalid_json");
        host.send(put().body("{}")).await.refused(415, "not_json");
        let large = json!({ "address": "h:1", "zone": "x".repeat(3000) });
        host.put("/instances/a", &large).await.refused(413, "too_large");
        // Without a declared length only reading finds out.
        let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", 3000, "x".repeat(3000));
        let head = "PUT /instances/a HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nconnection: close\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        let answer = host.raw(format!("{head}{chunk}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("\"too_large\""), "{answer}");
        assert_eq!(host.get("/instances?all=1").await.ok(), json!([]));
        host.stop().await;
    });
}

#[test]
fn pages_of_other_origins_cannot_change_the_host() {
    run(async {
        let host = Host::start().await;
        let body = json!({ "address": "h:1" });
        let put =
            |origin: &str| host.request(Method::PUT, "/instances/a").json(&body).header("origin", origin);
        for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
            host.send(put(origin)).await.refused(403, "cross_origin");
        }
        // A foreign name that was made to point to this machine.
        let rebound = put("http://evil.example").header("host", "evil.example");
        host.send(rebound).await.refused(403, "cross_origin");
        let reload =
            host.request(Method::POST, "/admin/policies/reload").header("origin", "https://evil.example");
        host.send(reload).await.refused(403, "cross_origin");
        assert_eq!(host.get("/instances?all=1").await.ok(), json!([]));
        host.send(put(host.url())).await.ok();
        // A page's images and links send no origin, and a poll would take what it answers from others.
        for site in ["cross-site", "same-site"] {
            let take = host.request(Method::GET, "/events/poll?clientId=c").header("sec-fetch-site", site);
            host.send(take).await.refused(403, "cross_origin");
        }
        for site in ["same-origin", "none"] {
            let read = host.request(Method::GET, "/instances").header("sec-fetch-site", site);
            host.send(read).await.ok();
        }
        let read = host.request(Method::GET, "/instances").header("origin", "https://evil.example");
        let read = host.send(read).await;
        assert!(read.headers.get("access-control-allow-origin").is_none(), "reading is left to the browser");
        host.stop().await;
    });
}

#[test]
fn a_stopping_host_finishes_what_runs_and_takes_nothing_new() {
    run(async {
        let host = Host::start().await;
        host.beat("a", 0).await;
        let api = host.another();
        let asking = tokio::spawn(async move {
            let mut answered = 0_u32;
            while let Ok(response) = api.request(Method::GET, "/session/recommend").send().await {
                assert_eq!(response.status().as_u16(), 200);
                assert!(response.text().await.unwrap().contains("a.test"), "a whole answer");
                answered += 1;
            }
            answered
        });
        let warm = eventually("some requests ran", SOON, async || {
            (host.instance("a").await["pending"].as_u64().unwrap() > 20).then_some(())
        });
        warm.await;
        host.stop().await;
        let answered = tokio::time::timeout(SOON, asking).await.expect("the port is closed").unwrap();
        assert!(answered >= 20, "{answered}");
    });
}

#[test]
fn a_dry_run_decides_and_explains_and_gives_nothing_out() {
    run(async {
        let host = Host::with(|config| {
            weighted(config);
            config.journal.mode = fulcrum::config::JournalMode::Full;
        })
        .await;
        host.policies().put("weighted.json", br#"{"cpuThreshold":0.5}"#);
        eventually("it is configured", SOON, async || {
            (host.policy("weighted").await["config"]["cpuThreshold"] == 0.5).then_some(())
        })
        .await;
        host.beat("a", 3).await;
        host.beat("b", 1).await;
        host.post("/admin/policies/p2c/shadow", &json!({})).await.ok();
        let pending = async || {
            [host.instance("a").await["pending"].clone(), host.instance("b").await["pending"].clone()]
        };
        let asked = async || host.policy("weighted").await["decisions"]["ok"].clone();
        let before = asked().await;
        let told = host.recommend("clientId=c&dryRun=1").await;
        assert_eq!((&told["dryRun"], &told["instanceId"]), (&json!(true), &json!("b")), "{told}");
        assert_eq!(told["why"]["text"], "b costs 1: sessions 1. Next is a at 3: sessions 2 more.");
        for _ in 0..5 {
            assert_eq!(host.recommend("clientId=c&dryRun=1").await, told, "nothing of it is remembered");
        }
        assert_eq!((pending().await, asked().await), ([json!(0), json!(0)], before));

        // The next one gets what the dry run said.
        let mut given = host.recommend("clientId=c&explain=1").await;
        assert_eq!(given.get("dryRun"), None);
        given["dryRun"] = json!(true);
        assert_eq!(given, told);
        assert_eq!(pending().await, [json!(0), json!(1)]);
        let shown = eventually("it is recorded", SOON, async || {
            let shown = host.get("/admin/decisions").await.ok();
            (shown["written"] == 1).then_some(shown)
        })
        .await;
        let decisions = shown["decisions"].as_array().unwrap();
        assert_eq!(
            (decisions.len(), &decisions[0]["config"]),
            (1, &json!({ "cpuThreshold": 0.5 })),
            "{shown}"
        );
        let report = host.get("/admin/policies/p2c/shadow").await.ok();
        let seen = ["compared", "dropped"].map(|key| report["scoring"][key].as_u64().unwrap());
        assert!(seen.iter().sum::<u64>() + report["waiting"].as_u64().unwrap() <= 1, "{report}");

        // Two versions of one component are told apart.
        assert_eq!(given["configDigest"], digest(br#"{"cpuThreshold":0.5}"#));
        let of = async |query: &str| host.get(&format!("/admin/decisions?{query}")).await;
        assert_eq!(of("clientId=c").await.ok()["decisions"].as_array().unwrap().len(), 1);
        assert_eq!(of("clientId=d").await.ok()["decisions"], json!([]));
        assert!(of("client=c").await.refused(400, "invalid_query").contains("clientId"));
        host.get("/session/recommend?dryRun=maybe").await.refused(400, "invalid_query");
        host.stop().await;
    });
}
