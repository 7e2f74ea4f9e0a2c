//! Sessions and agents over HTTP: EventMesh's names, fields and status codes.

use fulcrum::config::Config;
use serde_json::{Value, json};

use crate::support::*;

/// A host that clients reach as `http://lb.test:1`.
fn advertised(config: &mut Config) {
    config.host.advertise = Some("lb.test:1".parse().unwrap());
}

impl Api {
    async fn register(&self, agent: &str, capabilities: &[&str], capacity: u32) {
        let body = json!({ "agentId": agent, "capabilities": capabilities, "capacity": capacity });
        self.post("/agent/register", &body).await.ok();
        self.post("/agent/ready", &json!({ "agentId": agent })).await.ok();
    }

    async fn open(&self, client: &str) -> Value {
        self.post("/session/open", &json!({ "clientId": client })).await.ok()
    }

    async fn close(&self, session: &Value) -> Answer {
        self.post(&format!("/session/close/{}", session["sessionId"].as_str().unwrap()), &json!({})).await
    }
}

#[test]
fn an_agent_is_chosen_only_when_it_is_ready() {
    run(async {
        let host = Host::with(advertised).await;
        let open = json!({ "clientId": "c" });
        host.post("/session/open", &open).await.refused(429, "no_agent");
        let registered = json!({ "agentId": "a1", "capabilities": ["m"], "capacity": 2 });
        let answer = host.post("/agent/register", &registered).await.ok();
        assert_eq!(answer, json!({ "parent": "agents", "clientParent": "clients" }));
        host.post("/session/open", &open).await.refused(429, "no_agent");
        assert_eq!(
            host.post("/agent/ready", &json!({ "agentId": "a1" })).await.ok(),
            json!({ "status": "ready" })
        );

        let opened = host.post("/session/open", &open).await.ok();
        let names: Vec<_> = opened.as_object().unwrap().keys().collect();
        assert_eq!(names, ["agentId", "instanceUrl", "sessionId"]);
        assert_eq!((&opened["agentId"], &opened["instanceUrl"]), (&json!("a1"), &json!("http://lb.test:1")));
        let unique =
            opened["sessionId"].as_str().unwrap().strip_prefix("a1:").expect("agentId, colon, unique part");
        assert!(unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit()), "{unique}");
        assert_ne!(host.open("c").await["sessionId"], opened["sessionId"]);

        assert_eq!(host.close(&opened).await.ok(), json!({ "status": "closed" }));
        host.close(&opened).await.refused(404, "unknown_session");
        host.post("/session/close/nobody:1", &json!({})).await.refused(404, "unknown_session");
        host.stop().await;
    });
}

#[test]
fn a_host_without_an_address_names_no_url() {
    run(async {
        let host = Host::start().await;
        host.register("a", &[], 1).await;
        assert_eq!(host.open("c").await["instanceUrl"], "");
        host.stop().await;
    });
}

#[test]
fn an_agent_has_a_capacity() {
    run(async {
        let host = Host::start().await;
        host.register("a", &[], 2).await;
        let first = host.open("c1").await;
        host.open("c2").await;
        host.post("/session/open", &json!({ "clientId": "c3" })).await.refused(429, "no_agent");
        host.close(&first).await.ok();
        host.open("c3").await;
        // What the agent reports counts when it is more than we know of.
        host.register("b", &[], 5).await;
        let beat = json!({ "agentId": "b", "activeSessions": 5 });
        assert_eq!(host.post("/agent/heartbeat", &beat).await.ok(), json!({ "status": "ok" }));
        host.post("/session/open", &json!({ "clientId": "c4" })).await.refused(429, "no_agent");
        host.post("/agent/heartbeat", &json!({ "agentId": "b", "activeSessions": 4 })).await.ok();
        assert_eq!(host.open("c4").await["agentId"], "b");
        host.stop().await;
    });
}

#[test]
fn sessions_go_to_the_least_loaded_agent_and_clients_stay_with_theirs() {
    run(async {
        let host = Host::start().await;
        host.register("large", &[], 10).await;
        host.register("small", &[], 2).await;
        let mut agents = Vec::new();
        for client in 0..6 {
            agents.push(host.open(&format!("c{client}")).await["agentId"].as_str().unwrap().to_owned());
        }
        // Equal loads go to the first name: 0/10, 0/2, then 1/10 and on until it is at 1/2.
        assert_eq!(agents, ["large", "small", "large", "large", "large", "large"]);
        // c1 is bound to the small one although the large one has more room.
        host.register("idle", &[], 100).await;
        assert_eq!(host.open("c1").await["agentId"], "small");
        assert_eq!(host.open("c0").await["agentId"], "large");
        // It is full now, so c1 has to move, and stays where it came to.
        assert_eq!(host.open("c1").await["agentId"], "idle");
        assert_eq!(host.open("c1").await["agentId"], "idle");
        host.stop().await;
    });
}

#[test]
fn a_model_must_be_among_the_capabilities() {
    run(async {
        let host = Host::start().await;
        host.register("a", &["llama", "qwen"], 9).await;
        host.register("b", &["mistral"], 9).await;
        let open =
            async |model: &str| host.post("/session/open", &json!({ "clientId": "c", "model": model })).await;
        assert_eq!(open("mistral").await.ok()["agentId"], "b");
        assert_eq!(open("qwen").await.ok()["agentId"], "a", "the binding gives way to the model");
        open("gpt").await.refused(429, "no_agent");
        assert_eq!(open("").await.ok()["agentId"], "a", "any model, so the binding holds");
        host.post("/session/open", &json!({ "clientId": "d", "model": null })).await.ok();
        host.stop().await;
    });
}

#[test]
fn without_required_agents_a_session_opens_alone() {
    run(async {
        let host = Host::with(|config| config.session.require_agent = false).await;
        let alone = host.open("c").await;
        assert_eq!(alone["agentId"], "");
        assert!(alone["sessionId"].as_str().unwrap().starts_with(':'), "{alone}");
        host.register("a", &[], 1).await;
        assert_eq!(host.open("c").await["agentId"], "a");
        assert_eq!(host.open("c").await["agentId"], "");
        host.close(&alone).await.ok();
        host.stop().await;
    });
}

#[test]
fn the_sessions_of_an_agent_end_with_it() {
    run(async {
        let host = Host::start().await;
        host.register("a", &[], 9).await;
        let opened = host.open("c").await;
        let gone = json!({ "agentId": "a" });
        assert_eq!(host.post("/agent/unregister", &gone).await.ok(), json!({ "status": "unregistered" }));
        host.close(&opened).await.refused(404, "unknown_session");
        for (call, body) in [
            ("unregister", gone.clone()),
            ("ready", gone),
            ("heartbeat", json!({ "agentId": "a", "activeSessions": 0 })),
        ] {
            host.post(&format!("/agent/{call}"), &body).await.refused(404, "unknown_agent");
        }
        host.stop().await;
    });
}

#[test]
fn an_agent_that_registers_again_stays_ready_and_keeps_its_sessions() {
    run(async {
        let host = Host::start().await;
        host.register("a", &["m"], 2).await;
        let opened = host.open("c").await;
        let again = json!({ "agentId": "a", "capabilities": ["m", "n"], "capacity": 1 });
        host.post("/agent/register", &again).await.ok();
        host.post("/session/open", &json!({ "clientId": "d" })).await.refused(429, "no_agent");
        host.close(&opened).await.ok();
        let opened = host.post("/session/open", &json!({ "clientId": "d", "model": "n" })).await.ok();
        assert_eq!(opened["agentId"], "a");
        host.stop().await;
    });
}

#[test]
fn a_silent_agent_ends_with_its_sessions() {
    run(async {
        let host = Host::with(|config| {
            config.heartbeat.interval_ms = 100;
            config.heartbeat.ttl_ms = 1000;
            config.session.require_agent = false;
        })
        .await;
        host.register("a", &[], 1_000_000).await;
        let opened = host.open("c").await;
        assert_eq!(opened["agentId"], "a");
        // Opening sessions on it is no sign of life.
        let gone = async || (host.open("d").await["agentId"] == "").then_some(());
        eventually("the agent is gone", SOON, gone).await;
        host.close(&opened).await.refused(404, "unknown_session");
        host.post("/agent/ready", &json!({ "agentId": "a" })).await.refused(404, "unknown_agent");
        host.stop().await;
    });
}

#[test]
fn an_idle_session_ends() {
    run(async {
        let host = Host::with(|config| config.session.ttl_ms = 300).await;
        host.register("a", &[], 1).await;
        let idle = host.open("c").await;
        let next = eventually("the idle session made room", SOON, async || {
            let answer = host.post("/session/open", &json!({ "clientId": "d" })).await;
            (answer.status == 200).then_some(answer.body)
        })
        .await;
        assert_ne!(next["sessionId"], idle["sessionId"]);
        host.close(&idle).await.refused(404, "unknown_session");
        host.stop().await;
    });
}

#[test]
fn a_binding_ends_some_time_after_its_last_session() {
    run(async {
        let host = Host::with(|config| config.session.binding_ttl_ms = 1500).await;
        host.register("old", &[], 1_000_000).await;
        // Asking renews a binding, so each client can be asked once only.
        let clients = 600;
        for client in 0..clients {
            host.open(&format!("c{client}")).await;
        }
        host.register("young", &[], 1_000_000).await;
        assert_eq!(host.open(&format!("c{}", clients - 1)).await["agentId"], "old");
        let mut others = 0..clients - 1;
        let moved = async || {
            let client = others.next().expect("more clients than looks");
            (host.open(&format!("c{client}")).await["agentId"] == "young").then_some(())
        };
        eventually("a client is free to go elsewhere", SOON, moved).await;
        host.stop().await;
    });
}

#[test]
fn a_clients_own_sessions_here_weigh_on_its_next_recommendation() {
    run(async {
        let host = Host::with(|config| {
            advertised(config);
            config.policy.scoring = "weighted".to_owned();
            config.host.instance_id = Some("me".to_owned());
        })
        .await;
        host.register("a", &[], 9).await;
        host.beat("other", 1).await;
        assert_eq!(host.recommend("clientId=newcomer").await["instanceId"], "me");
        host.open("big").await;
        host.open("big").await;
        let answer = host.recommend("clientId=big&explain=1").await;
        assert_eq!(answer["instanceId"], "other");
        let rows = answer["scoreParts"].as_array().unwrap();
        let me = rows.iter().find(|row| row["instanceId"] == "me").unwrap();
        assert!(me["parts"]["client"].as_f64().unwrap() >= 2.0, "{me}");
        host.stop().await;
    });
}

#[test]
fn bad_bodies_are_refused() {
    run(async {
        let host = Host::start().await;
        let long = "x".repeat(257);
        let many = vec!["m"; 65];
        for (path, body, code) in [
            ("/session/open", json!({}), "invalid_body"),
            ("/session/open", json!({ "clientId": 1 }), "invalid_body"),
            ("/session/open", json!({ "clientId": "" }), "invalid_value"),
            ("/session/open", json!({ "clientId": long }), "invalid_value"),
            ("/session/open", json!({ "clientId": "c", "model": long }), "invalid_value"),
            ("/agent/register", json!({ "agentId": "a" }), "invalid_body"),
            ("/agent/register", json!({ "agentId": "a", "capacity": -1 }), "invalid_body"),
            ("/agent/register", json!({ "agentId": "a", "capacity": 0 }), "invalid_value"),
            ("/agent/register", json!({ "agentId": "a", "capacity": 1_000_001 }), "invalid_value"),
            ("/agent/register", json!({ "agentId": "", "capacity": 1 }), "invalid_value"),
            ("/agent/register", json!({ "agentId": "a b", "capacity": 1 }), "invalid_value"),
            (
                "/agent/register",
                json!({ "agentId": "a", "capacity": 1, "capabilities": many }),
                "invalid_value",
            ),
            ("/agent/ready", json!({}), "invalid_body"),
            ("/agent/heartbeat", json!({ "agentId": "a" }), "invalid_body"),
            ("/agent/unregister", json!([]), "invalid_body"),
        ] {
            host.post(path, &body).await.refused(400, code);
        }
        host.post("/session/close/%FF", &json!({})).await.refused(400, "invalid_path");
        host.get("/session/open").await.refused(405, "method_not_allowed");
        host.stop().await;
    });
}
