use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

fn sessions(settings: Settings) -> Sessions {
    let mut next = 0;
    Sessions::new(
        settings,
        Box::new(move || {
            next += 1;
            next
        }),
    )
}

/// Registers ready agents `(id, capabilities, capacity)` at time 0.
fn with_agents(agents: &[(&str, &[&str], u32)]) -> Sessions {
    let sessions = sessions(Settings { agent_ttl: Duration::from_secs(3600), ..Settings::default() });
    for (id, capabilities, capacity) in agents {
        let capabilities = capabilities.iter().map(|capability| (*capability).to_owned()).collect();
        sessions.register(id, capabilities, *capacity, Timestamp(0)).expect("valid");
        sessions.ready(id, Timestamp(0)).expect("registered");
    }
    sessions
}

/// Opens a session and returns its agent, `-` if there is none for it.
fn open(sessions: &Sessions, client: &str, model: Option<&str>, now: u64) -> String {
    match sessions.open(client, model, Timestamp(now)) {
        Ok(opened) => opened.agent_id.to_string(),
        Err(Error::NoAgent) => "-".to_owned(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_agent_is_chosen_only_when_ready() {
    let sessions = sessions(Settings::default());
    assert_eq!(sessions.ready("a", Timestamp(0)), Err(Error::UnknownAgent { id: "a".to_owned() }));
    assert_eq!(open(&sessions, "c", None, 0), "-");
    sessions.register("a", vec![], 2, Timestamp(0)).expect("valid");
    sessions.register("a", vec![], 3, Timestamp(0)).expect("an update");
    assert_eq!(open(&sessions, "c", None, 0), "-");
    assert_eq!(sessions.agent_counts(Timestamp(0)), AgentCounts { ready: 0, waiting: 1 });
    sessions.ready("a", Timestamp(0)).expect("registered");
    assert_eq!(open(&sessions, "c", None, 0), "a");
    sessions.register("a", vec!["m".to_owned()], 3, Timestamp(0)).expect("an update");
    assert_eq!(open(&sessions, "c", Some("m"), 0), "a", "it stays ready");
    assert_eq!(sessions.agent_counts(Timestamp(0)), AgentCounts { ready: 1, waiting: 0 });
}

#[test]
fn the_least_loaded_agent_gets_a_new_client() {
    let sessions = with_agents(&[("a", &[], 2), ("b", &[], 4), ("c", &["m"], 4)]);
    // Ties go to the first id; after that b and c are emptier than a.
    let picks: Vec<_> = (0..5).map(|n| open(&sessions, &format!("client{n}"), None, 0)).collect();
    assert_eq!(picks, ["a", "b", "c", "b", "c"]);
    // What an agent reports counts if it is more than what we opened.
    sessions.agent_heartbeat("b", 4, Timestamp(0)).expect("registered");
    sessions.agent_heartbeat("a", 0, Timestamp(0)).expect("registered");
    let picks: Vec<_> = (5..9).map(|n| open(&sessions, &format!("client{n}"), None, 0)).collect();
    assert_eq!(picks, ["a", "c", "c", "-"]);
}

#[test]
fn a_client_stays_with_its_agent_while_it_fits() {
    let sessions = with_agents(&[("a", &["x"], 3), ("b", &["x", "y"], 9)]);
    assert_eq!(open(&sessions, "c", None, 0), "a");
    assert_eq!(open(&sessions, "c", Some("x"), 0), "a", "bound, though b is emptier");
    assert_eq!(open(&sessions, "c", Some("y"), 0), "b", "a does not serve y");
    assert_eq!(open(&sessions, "c", None, 0), "b", "bound to b by now");
    assert_eq!(open(&sessions, "d", None, 30 * MINUTE), "b", "2/9 is less than 2/3");
    assert_eq!(open(&sessions, "e", Some("z"), 30 * MINUTE), "-");
    sessions.agent_heartbeat("b", 9, Timestamp(30 * MINUTE)).expect("registered");
    assert_eq!(open(&sessions, "d", None, 30 * MINUTE), "a", "b is full");
    assert_eq!(open(&sessions, "d", None, 30 * MINUTE), "-", "a is full too");
}

#[test]
fn a_binding_ends_after_its_time_to_live() {
    for (now, agent) in [(30 * MINUTE, "a"), (30 * MINUTE + 1, "b")] {
        let sessions = with_agents(&[("a", &[], 9), ("b", &[], 9)]);
        assert_eq!(open(&sessions, "c", None, 0), "a");
        assert_eq!(open(&sessions, "c", None, now), agent, "after {now} ms");
    }
}

#[test]
fn silent_agents_are_gone_with_their_sessions() {
    for (now, agent, count) in [(15 * SECOND, "a", 2), (15 * SECOND + 1, "-", 0)] {
        let sessions = sessions(Settings::default());
        sessions.register("a", vec![], 9, Timestamp(0)).expect("valid");
        sessions.ready("a", Timestamp(0)).expect("registered");
        assert_eq!(open(&sessions, "c", None, 0), "a");
        assert_eq!(open(&sessions, "c", None, now), agent, "after {now} ms");
        assert_eq!(sessions.count(Timestamp(now)), count);
        let known = sessions.agent_heartbeat("a", 1, Timestamp(now)).is_ok();
        assert_eq!(known, agent == "a");
    }
    // Signs of life keep it.
    let sessions = sessions(Settings::default());
    sessions.register("a", vec![], 9, Timestamp(0)).expect("valid");
    (1..20).for_each(|n| {
        sessions.agent_heartbeat("a", 0, Timestamp(n * 15 * SECOND)).expect("heard of in time");
    });
}

#[test]
fn unregister_closes_the_agents_sessions() {
    let sessions = with_agents(&[("a", &[], 1), ("b", &[], 9)]);
    let first = sessions.open("c", None, Timestamp(0)).expect("a is ready");
    let second = sessions.open("c", None, Timestamp(0)).expect("b is ready");
    assert_eq!((&*first.agent_id, &*second.agent_id), ("a", "b"));
    sessions.unregister("a", Timestamp(0)).expect("registered");
    assert!(sessions.unregister("a", Timestamp(0)).is_err());
    assert!(sessions.touch(&first.session_id, Timestamp(0)).is_err());
    assert_eq!(
        sessions.touch(&second.session_id, Timestamp(0)).map(|view| view.agent_id),
        Ok(second.agent_id)
    );
    assert_eq!((sessions.count(Timestamp(0)), sessions.count_of("c", Timestamp(0))), (1, 1));
}

#[test]
fn sessions_have_ids_and_end() {
    let sessions = with_agents(&[("a", &[], 2)]);
    let opened = sessions.open("c", None, Timestamp(0)).expect("a is ready");
    assert_eq!(&*opened.session_id, "a:00000000000000000000000000000001");
    assert_eq!(open(&sessions, "c", None, 0), "a");
    assert_eq!(open(&sessions, "c", None, 0), "-");
    sessions.close(&opened.session_id, Timestamp(0)).expect("open");
    assert!(sessions.close(&opened.session_id, Timestamp(0)).is_err());
    assert_eq!(open(&sessions, "c", None, 0), "a", "closing makes room");
}

#[test]
fn idle_sessions_end_after_their_time_to_live() {
    let sessions = sessions(Settings { require_agent: false, ..Settings::default() });
    let opened = sessions.open("c", None, Timestamp(0)).expect("no agent is needed");
    assert_eq!((&*opened.agent_id, &opened.session_id[..2]), ("", ":0"));
    let idle = sessions.open("c", None, Timestamp(0)).expect("no agent is needed");
    assert!(sessions.touch(&opened.session_id, Timestamp(60 * MINUTE)).is_ok());
    assert_eq!(sessions.count_of("c", Timestamp(60 * MINUTE)), 2);
    assert_eq!(sessions.count_of("c", Timestamp(60 * MINUTE + 1)), 1);
    assert!(sessions.touch(&idle.session_id, Timestamp(60 * MINUTE + 1)).is_err());
    assert_eq!(sessions.count(Timestamp(120 * MINUTE)), 1);
    assert_eq!(sessions.count(Timestamp(120 * MINUTE + 1)), 0);
}

#[test]
fn what_is_asked_is_checked_and_bounded() {
    let limits = Settings { require_agent: false, sessions_max: 2, agents_max: 1, ..Settings::default() };
    let sessions = sessions(limits);
    let long = "x".repeat(257);
    for (client, model) in [("", None), (&*long, None), ("c", Some(&*long)), ("c\n", None)] {
        assert!(matches!(sessions.open(client, model, Timestamp(0)), Err(Error::Invalid { .. })), "{client}");
    }
    (0..2).for_each(|_| drop(sessions.open("c", None, Timestamp(0)).expect("below the bound")));
    assert_eq!(sessions.open("c", None, Timestamp(0)), Err(Error::TooManySessions { max: 2 }));
    for (id, capacity, capabilities) in [
        ("", 1, vec![]),
        ("a b", 1, vec![]),
        ("a", 0, vec![]),
        ("a", 1_000_001, vec![]),
        ("a", 1, vec![long]),
    ] {
        let refused = sessions.register(id, capabilities, capacity, Timestamp(0));
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{id} {capacity}");
    }
    sessions.register("a", vec![], 1, Timestamp(0)).expect("valid");
    assert_eq!(sessions.register("b", vec![], 1, Timestamp(0)), Err(Error::TooManyAgents { max: 1 }));
}

#[test]
fn bindings_are_bounded() {
    let settings = Settings { bindings_max: 3, ..Settings::default() };
    let sessions = sessions(settings);
    sessions.register("a", vec![], 1000, Timestamp(0)).expect("valid");
    sessions.ready("a", Timestamp(0)).expect("registered");
    (0..100).for_each(|n| drop(open(&sessions, &n.to_string(), None, n)));
    let state = sessions.state.lock();
    assert_eq!(state.bindings.len(), 3);
    assert!(state.bindings.contains_key("99"));
}

#[derive(Clone, Debug)]
enum Step {
    Register(u8, u32),
    Ready(u8),
    Heartbeat(u8, u32),
    Unregister(u8),
    Open(u8),
    Close(usize),
    Touch(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..4, 1_u32..5).prop_map(|(agent, capacity)| Step::Register(agent, capacity)),
        (0_u8..4).prop_map(Step::Ready),
        (0_u8..4, 0_u32..6).prop_map(|(agent, sessions)| Step::Heartbeat(agent, sessions)),
        (0_u8..4).prop_map(Step::Unregister),
        (0_u8..6).prop_map(Step::Open),
        (0_u8..6).prop_map(Step::Open),
        (0_usize..50).prop_map(Step::Close),
        (0_usize..50).prop_map(Step::Touch),
        (0_u64..9 * SECOND).prop_map(Step::Pass),
    ]
}

proptest! {
    /// After any history: every agent of a session is there and counts it, every client's count is right, nothing is
    /// left behind in the queues, and no agent is given more than it can take.
    #[test]
    fn the_tables_agree(steps in prop::collection::vec(step(), 1..150)) {
        let settings = Settings {
            binding_ttl: Duration::from_secs(20), session_ttl: Duration::from_secs(40), ..Settings::default()
        };
        let sessions = sessions(settings);
        let mut ids: Vec<Arc<str>> = Vec::new();
        let mut now = 0;
        for step in steps {
            let at = Timestamp(now);
            let pick = |n: usize| ids.get(n % ids.len().max(1)).cloned().unwrap_or_else(|| Arc::from("x"));
            let agent = |n: u8| format!("agent{n}");
            match step {
                Step::Register(n, capacity) => sessions.register(&agent(n), vec![], capacity, at).expect("valid"),
                Step::Ready(n) => drop(sessions.ready(&agent(n), at)),
                Step::Heartbeat(n, active) => drop(sessions.agent_heartbeat(&agent(n), active, at)),
                Step::Unregister(n) => drop(sessions.unregister(&agent(n), at)),
                Step::Open(client) => ids.extend(
                    sessions.open(&format!("client{client}"), None, at).map(|opened| opened.session_id),
                ),
                Step::Close(n) => drop(sessions.close(&pick(n), at)),
                Step::Touch(n) => drop(sessions.touch(&pick(n), at)),
                Step::Pass(passed) => now += passed,
            }
            let mut state = sessions.state.lock();
            state.expire(Timestamp(now));
            let mut per_client: HashMap<Arc<str>, u32> = HashMap::new();
            for session in state.sessions.values() {
                *per_client.entry(session.view.client_id.clone()).or_insert(0) += 1;
                prop_assert!(session.used_at.after(state.settings.session_ttl) >= Timestamp(now));
            }
            prop_assert_eq!(&per_client, &state.per_client);
            prop_assert_eq!(state.agents.session_count(), state.sessions.len());
            prop_assert_eq!(state.session_deadlines.len(), state.sessions.len());
            prop_assert_eq!(state.binding_deadlines.len(), state.bindings.len());
            state.agents.assert_ordered();
        }
    }
}
