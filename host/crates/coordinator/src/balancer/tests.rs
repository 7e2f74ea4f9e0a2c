mod observed;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use fulcrum_core::scoring::{Loads, Proposal, Roster, choosable, flags};
use fulcrum_policy::failure::{Declared, Failure, Outcome};
use fulcrum_policy::seat::{ExplainedRow, ScoringFactory, ScoringPolicy, Staged};
use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Hands(AtomicU64);

impl Hands {
    fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed) * 1_000_000
    }
}

/// What the fake policy heard, for the test to look at.
#[derive(Debug, Default)]
struct Heard {
    refreshes: u32,
    rosters: u32,
    last: Option<HeardRequest>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct HeardRequest {
    client_id: String,
    sessions: Vec<(u32, u32)>,
    traffic: (f64, f64),
    avoid: Vec<u32>,
    seed: u64,
    /// By id: pending at the last refresh, plus what was committed since.
    told: BTreeMap<String, u32>,
    may_choose: Vec<String>,
}

/// Chooses the fewest told sessions; every `fails`th call fails in one of four ways.
struct Fake {
    heard: Arc<Mutex<Heard>>,
    fails: u64,
    ids: Vec<String>,
    loads: Loads,
}

impl Fake {
    fn take_in(&mut self, request: &Request<'_>, committed: &[u32]) {
        committed.iter().for_each(|&row| self.loads.give_out(row as usize));
        let pending = self.loads.pending.iter().copied();
        let may_choose = (0..self.ids.len()).filter(|&row| choosable(&self.loads, request.avoid, row));
        self.heard.lock().last = Some(HeardRequest {
            client_id: request.client_id.to_owned(),
            sessions: request
                .session_rows
                .iter()
                .copied()
                .zip(request.session_counts.iter().copied())
                .collect(),
            traffic: (request.client_inflow, request.client_outflow),
            avoid: request.avoid.to_vec(),
            seed: request.seed,
            told: self.ids.iter().cloned().zip(pending).collect(),
            may_choose: may_choose.map(|row| self.ids[row].clone()).collect(),
        });
    }

    fn cost(&self, row: usize) -> f64 {
        f64::from(self.loads.sessions[row]) + f64::from(self.loads.pending[row])
    }
}

impl ScoringPolicy for Fake {
    fn roster(&mut self, roster: &Roster) -> Result<(), Failure> {
        self.heard.lock().rosters += 1;
        self.ids = roster.rows().iter().map(|row| row.id.to_string()).collect();
        Ok(())
    }

    fn refresh(&mut self, loads: &Loads) -> Result<(), Failure> {
        assert_eq!(loads.len(), self.ids.len(), "the columns fit the roster");
        self.heard.lock().refreshes += 1;
        self.loads = loads.clone();
        Ok(())
    }

    fn recommend(&mut self, request: &Request<'_>, committed: &[u32]) -> Result<Proposal, Failure> {
        self.take_in(request, committed);
        if self.fails > 0 && request.seed.is_multiple_of(self.fails) {
            return match request.seed / self.fails % 4 {
                0 => Err(Failure::Trap("asked to".to_owned())),
                1 => Err(Failure::Declared(Declared::NoCandidate)),
                2 => Ok(Proposal { row: u32::MAX, score: 0.0 }),
                _ => Ok(Proposal { row: 0, score: f64::NAN }),
            };
        }
        let rows = (0..self.ids.len()).filter(|&row| choosable(&self.loads, request.avoid, row));
        let row =
            rows.min_by(|a, b| self.cost(*a).total_cmp(&self.cost(*b))).expect("asked only if there is one");
        Ok(Proposal { row: row as u32, score: self.cost(row) })
    }

    fn explain(
        &mut self,
        request: &Request<'_>,
        committed: &[u32],
    ) -> Result<Option<Vec<ExplainedRow>>, Failure> {
        self.take_in(request, committed);
        let rows = (0..self.ids.len()).filter(|&row| choosable(&self.loads, request.avoid, row));
        let explained = |row: usize| {
            let parts = vec![("told".to_owned(), self.cost(row))];
            (Proposal { row: row as u32, score: self.cost(row) }, parts)
        };
        Ok(Some(rows.map(explained).collect()))
    }
}

struct Factory {
    identity: Arc<Identity>,
    heard: Arc<Mutex<Heard>>,
    fails: u64,
}

impl ScoringFactory for Factory {
    fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    fn make(&self) -> Result<Box<dyn ScoringPolicy>, Failure> {
        let heard = self.heard.clone();
        Ok(Box::new(Fake { heard, fails: self.fails, ids: Vec::new(), loads: Loads::default() }))
    }
}

struct World {
    balancer: Balancer,
    clock: Arc<Hands>,
    heard: Arc<Mutex<Heard>>,
}

impl World {
    fn new(settings: Settings) -> Self {
        let clock = Arc::new(Hands::default());
        let seat = ScoringSeat::new(Arc::new(|| {}));
        let balancer = Balancer::new(settings, seat, clock.clone(), 7);
        Self { balancer, clock, heard: Arc::default() }
    }

    fn advertised() -> Self {
        Self::new(Settings {
            instance_id: "me".to_owned(),
            advertise: Some("me:1".to_owned()),
            labels: vec![("zone".to_owned(), "x".to_owned())],
            ..Settings::default()
        })
    }

    /// Puts the fake policy into the seat.
    fn seated(self, fails: u64) -> Self {
        let name = if fails == 0 { "fake" } else { "flaky" };
        let identity = Identity { name: name.to_owned(), digest: "d1".to_owned(), config: "{}".to_owned() };
        let factory = Arc::new(Factory { identity: Arc::new(identity), heard: self.heard.clone(), fails });
        let mut staged = Some(Staged {
            instance: factory.make().expect("never fails"),
            factory,
            roster_revision: 0,
            probation: None,
            is_last_resort: false,
        });
        self.balancer.with_seat(&mut |seat| drop(seat.install(staged.take())));
        self
    }

    fn beat(&self, id: &str, sessions: u32) -> &Self {
        self.balancer.heartbeat(report(id, sessions)).expect("valid");
        self
    }

    fn picks(&self, ask: &Ask<'_>) -> String {
        self.balancer.recommend(ask).pick.map_or_else(|| "-".to_owned(), |pick| pick.id.to_string())
    }

    fn pending(&self) -> BTreeMap<String, u32> {
        self.balancer.instances(true).into_iter().map(|row| (row.id.to_string(), row.pending)).collect()
    }

    fn last(&self) -> HeardRequest {
        self.heard.lock().last.clone().expect("the policy was asked")
    }
}

fn report(id: &str, sessions: u32) -> Report {
    Report {
        id: id.to_owned(),
        address: format!("{id}:80"),
        capacity: 1.0,
        load: Some(Load { sessions, ..Load::default() }),
        ..Report::default()
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn of(client_id: &str) -> Ask<'_> {
    Ask { client_id, ..Ask::default() }
}

#[test]
fn nobody_lives_means_the_host_itself_unless_unwanted() {
    let world = World::advertised();
    let labels = |value: &str| vec![("zone".to_owned(), value.to_owned())];
    let cases = [
        (names(&[]), vec![], Some("http://me:1")),
        (names(&["other", "http://other:1"]), labels("x"), Some("http://me:1")),
        (names(&["me"]), vec![], None),
        (names(&["http://me:1"]), vec![], None),
        (names(&[]), labels("y"), None),
    ];
    for (exclude, labels, expected) in cases {
        let answer = world.balancer.recommend(&Ask { exclude: &exclude, labels: &labels, ..of("c") });
        assert_eq!((answer.pick, answer.instead.as_deref()), (None, expected), "{exclude:?} {labels:?}");
    }
    let fronting = World::new(Settings::default());
    assert_eq!(fronting.balancer.recommend(&of("c")), Recommended::default());
    assert_eq!(fronting.balancer.self_heartbeat(None), Ok(()), "does nothing");
    assert!(fronting.balancer.is_empty() && fronting.balancer.own_url().is_none());
}

#[test]
fn the_fallback_decides_without_a_policy() {
    let world = World::advertised();
    world.beat("a", 2).beat("b", 1);
    world.balancer.self_heartbeat(Some(Load { sessions: 5, ..Load::default() })).expect("valid");
    let pick = world.balancer.recommend(&of("c")).pick.expect("three live");
    assert_eq!((&*pick.id, &*pick.address, pick.score.get()), ("b", "b:80", 1.0));
    assert_eq!((pick.policy(), pick.digest()), ("fallback", ""));
    assert_eq!(["a", "b", "a"].map(|_| world.picks(&of("c"))), ["a", "b", "a"], "pending counts");
}

#[test]
fn the_policy_decides_and_is_named() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 2).beat("b", 1);
    let pick = world.balancer.recommend(&of("c")).pick.expect("two live");
    assert_eq!((&*pick.id, pick.policy(), pick.digest()), ("b", "fake", "d1"));
    assert_eq!(world.balancer.tally().lines().last().map(|line| line.count()), Some(1));
}

#[test]
fn the_policy_is_refreshed_only_when_something_changed() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 0).beat("b", 0);
    let ask = |times: u32| (0..times).for_each(|_| drop(world.picks(&of("c"))));
    let told = || {
        let heard = world.heard.lock();
        (heard.rosters, heard.refreshes)
    };
    ask(50);
    assert_eq!(told(), (1, 1));
    world.clock.pass(1000);
    ask(50);
    assert_eq!(told(), (1, 1));
    world.clock.pass(1);
    ask(50);
    assert_eq!(told(), (1, 2), "ages are older than a second");
    world.beat("a", 3);
    ask(50);
    assert_eq!(told(), (1, 3), "new numbers");
    world.beat("c", 0);
    ask(50);
    assert_eq!(told(), (2, 4), "a new row");
    world.balancer.drain("c", true).expect("known");
    world.balancer.drain("c", true).expect("known");
    ask(50);
    assert_eq!(told(), (2, 5), "draining");
    assert_eq!(world.last().told, world.pending_before_the_last("a", "b"));
}

impl World {
    /// All that is pending less the one session given out last, which went to the one of two rows that has fewer.
    fn pending_before_the_last(&self, a: &str, b: &str) -> BTreeMap<String, u32> {
        let mut pending = self.pending();
        let told = self.last().told;
        let last = if told[a] < pending[a] { a } else { b };
        *pending.get_mut(last).expect("a row") -= 1;
        pending
    }
}

#[test]
fn seeds_follow_the_boot_seed() {
    let world = World::new(Settings::default()).seated(0);
    assert_eq!(world.picks(&of("c")), "-", "takes no number");
    world.beat("a", 0);
    let seeds = [1, 2, 3].map(|_| {
        world.picks(&of("c"));
        world.last().seed
    });
    assert_eq!(seeds, [1, 2, 3].map(|n| seed::decision(7, n)));
}

#[test]
fn draining_leaving_and_the_own_row() {
    let world = World::advertised();
    world.beat("a", 0);
    world.balancer.self_heartbeat(None).expect("valid");
    let own = Err(Error::OwnInstance { id: "me".to_owned() });
    let unknown = || Err(Error::UnknownInstance { id: "x".to_owned() });
    assert_eq!(world.balancer.heartbeat(report("me", 0)).map(|_| ()), own);
    assert_eq!(world.balancer.leave("me"), own);
    assert_eq!(world.balancer.leave("x"), unknown());
    assert_eq!(world.balancer.drain("x", true), unknown());
    world.balancer.drain("a", true).expect("known");
    world.beat("a", 0);
    assert_eq!(world.picks(&of("c")), "me", "a heartbeat does not end the draining");
    world.balancer.drain("me", true).expect("allowed");
    assert!(world.balancer.is_empty());
    world.balancer.drain("a", false).expect("known");
    assert_eq!(world.picks(&of("c")), "a");
    world.balancer.leave("a").expect("known");
    world.balancer.retire();
    assert!(world.balancer.instances(true).is_empty());
    assert_eq!(world.balancer.heartbeats(), 3);
}

#[test]
fn expired_rows_are_listed_only_on_demand() {
    let world = World::new(Settings::default());
    world.beat("a", 0);
    world.clock.pass(10_000);
    world.beat("b", 0);
    world.clock.pass(5_001);
    let ids = |all| world.balancer.instances(all).iter().map(|row| row.id.to_string()).collect::<Vec<_>>();
    assert_eq!((ids(false), ids(true)), (names(&["b"]), names(&["a", "b"])));
    assert_eq!(world.balancer.counts(), Counts { live: 1, draining: 0, dead: 1 });
    assert_eq!(world.balancer.instances(false)[0].heartbeat_age, Duration::from_millis(5001));
    assert_eq!(world.picks(&Ask { exclude: &names(&["b"]), ..of("c") }), "-");
}

#[test]
fn a_client_is_remembered_by_instance() {
    let world = World::advertised().seated(0);
    world.beat("a", 0).beat("z", 0);
    world.balancer.self_heartbeat(Some(Load::default())).expect("valid");
    (0..7).for_each(|_| drop(world.picks(&of("big"))));
    world.picks(&of(""));
    let sessions = |ask: &Ask<'_>| {
        world.picks(ask);
        world.last().sessions
    };
    assert_eq!(sessions(&of("")), [], "nobody is not remembered");
    assert_eq!(sessions(&Ask { own_sessions: 5, ..of("other") }), [(1, 5)]);
    assert_eq!(
        sessions(&Ask { own_sessions: 1, ..of("big") }),
        [(0, 3), (1, 2), (2, 2)],
        "opened ones were given out"
    );
    // Rows move, what is remembered stays with its instance.
    world.beat("b", 100);
    assert_eq!(
        sessions(&Ask { own_sessions: 9, ..of("big") }).iter().map(|(row, _)| *row).collect::<Vec<_>>(),
        [0, 2, 3]
    );
    world.balancer.leave("a").expect("known");
    assert_eq!(sessions(&of("big")).iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 2]);
    world.clock.pass(300_001);
    world.beat("z", 0);
    assert_eq!(sessions(&of("big")), [], "after five minutes");
    let traffic = Traffic { inflow: 3.0, outflow: 4.0 };
    world.picks(&Ask { traffic, ..of("big") });
    assert_eq!((world.last().traffic, world.last().client_id), ((3.0, 4.0), "big".to_owned()));
}

#[test]
fn candidates_stand_behind_the_pick() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 3).beat("b", 1).beat("c", 2).beat("d", 0);
    let list = |ask: &Ask<'_>| {
        let answer = world.balancer.recommend(ask);
        let ids =
            answer.candidates.iter().map(|candidate| candidate.id.to_string()).collect::<Vec<_>>().join(" ");
        let parts = answer.candidates.first().map_or(0, |candidate| candidate.parts.len());
        (answer.pick.expect("four live").id.to_string(), ids, parts)
    };
    let check = |ask: &Ask<'_>, pick: &str, ids: &str, parts| {
        assert_eq!(list(ask), (pick.to_owned(), ids.to_owned(), parts));
    };
    check(&of("x"), "d", "", 0);
    check(&Ask { limit: Some(1), ..of("x") }, "b", "b", 1);
    check(&Ask { limit: Some(3), exclude: &names(&["d"]), ..of("x") }, "b", "b c a", 1);
    check(&Ask { explain: true, ..of("x") }, "d", "d c a b", 1);
    // A policy without `explain`, or none: the fallback explains.
    let bare = World::new(Settings::default());
    bare.beat("a", 3).beat("b", 1);
    let answer = bare.balancer.recommend(&Ask { explain: true, ..of("x") });
    assert_eq!(answer.candidates[1].parts, [("sessions".to_owned(), 3.0)]);
}

#[test]
fn grounds_tell_what_a_pick_stands_beside() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 3).beat("b", 1).beat("c", 3).beat("d", 9);
    let grounds = |world: &World, ask: &Ask<'_>| world.balancer.recommend(ask).grounds;
    assert_eq!(grounds(&world, &of("x")), None);
    assert_eq!(grounds(&world, &Ask { limit: Some(2), ..of("x") }), None);
    let explained = Ask { explain: true, limit: Some(1), ..of("x") };
    // Two sessions were given out to b, so all but d cost 3.
    let found = grounds(&world, &explained).expect("asked for");
    let ids = |of: &Option<Candidate>| of.as_ref().map(|of| (of.id.to_string(), of.score.get()));
    let at = |id: &str, score| Some((id.to_owned(), score));
    assert_eq!((ids(&found.pick), ids(&found.next)), (at("a", 3.0), at("b", 3.0)));
    assert_eq!((found.others, found.cheaper, found.level), (3, 0, 2));
    let facts = (found.asked.as_deref(), found.outcome, found.explained, found.failure);
    assert_eq!(facts, (Some("fake"), Outcome::Ok, Explained::Decider, None));

    // Every call fails, the explanation does not: the fallback's own scores count.
    let failing = World::new(Settings::default()).seated(1);
    failing.beat("a", 3).beat("b", 1);
    let found = grounds(&failing, &explained).expect("asked for");
    assert_eq!((ids(&found.pick), ids(&found.next)), (at("b", 1.0), at("a", 3.0)));
    let parts = found.next.map(|next| next.parts);
    assert_eq!(parts, Some(vec![("sessions".to_owned(), 3.0)]));
    assert_eq!((found.asked.as_deref(), found.explained), (Some("flaky"), Explained::Decider));
    assert!(
        found.outcome != Outcome::Ok && found.failure.is_some(),
        "{:?} {:?}",
        found.outcome,
        found.failure
    );

    let bare = World::new(Settings::default());
    bare.beat("a", 3);
    let found = grounds(&bare, &explained).expect("asked for");
    assert_eq!((found.asked, found.outcome, found.others, found.next), (None, Outcome::Open, 0, None));
}

#[test]
fn arrivals_in_one_heartbeat_period_spread() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 0).beat("b", 0).beat("c", 0);
    for _ in 0..300 {
        world.picks(&of("c"));
        let pending = world.pending();
        let gap = pending.values().max().expect("three") - pending.values().min().expect("three");
        assert!(gap <= 1, "{pending:?}");
    }
}

#[test]
fn a_snapshot_is_what_the_next_decision_sees() {
    let world = World::new(Settings::default());
    world.beat("a", 1).beat("b", 2);
    world.picks(&of("c"));
    world.clock.pass(15_001);
    world.beat("b", 2);
    let snapshot = world.balancer.snapshot();
    assert_eq!(snapshot.roster.len(), 2);
    assert_eq!(snapshot.loads.pending, [1, 0]);
    assert_eq!(snapshot.loads.flags, [flags::DEAD, 0]);
    assert_eq!(snapshot.loads.heartbeat_age_ms, [15_001, 0]);
}

#[derive(Clone, Debug)]
enum Step {
    Beat(usize, u32, u64),
    Move(usize, bool),
    Recommend { exclude: Vec<usize>, label: Option<bool>, explain: bool },
    Drain(usize, bool),
    Leave(usize),
    Pass(u64),
}

const IDS: [&str; 5] = ["a", "b", "c", "d", "e"];

fn step() -> impl Strategy<Value = Step> {
    let recommend =
        (prop::collection::vec(0..IDS.len(), 0..3), prop::option::of(any::<bool>()), any::<bool>())
            .prop_map(|(exclude, label, explain)| Step::Recommend { exclude, label, explain });
    prop_oneof![
        3 => (0..IDS.len(), 0_u32..9, 0_u64..20_000).prop_map(|(id, sessions, age)| Step::Beat(id, sessions, age)),
        1 => (0..IDS.len(), any::<bool>()).prop_map(|(id, label)| Step::Move(id, label)),
        8 => recommend,
        1 => (0..IDS.len(), any::<bool>()).prop_map(|(id, on)| Step::Drain(id, on)),
        1 => (0..IDS.len()).prop_map(Step::Leave),
        2 => (0_u64..9_000).prop_map(Step::Pass),
    ]
}

/// What the test itself believes about a row.
#[derive(Clone, Debug)]
struct Belief {
    heartbeat_at: u64,
    pending: u32,
    is_draining: bool,
    label: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens: the policy knows of every session given out (invariant of the seat), and no answer names a dead,
    /// draining, excluded or unlabelled instance, nor nobody while there is somebody (invariant 6).
    #[test]
    fn what_was_told_and_committed_is_what_is_pending(
        steps in prop::collection::vec(step(), 1..120), fails in prop_oneof![Just(0_u64), Just(3), Just(10)],
    ) {
        let world = World::new(Settings::default()).seated(fails);
        let mut beliefs: BTreeMap<&str, Belief> = BTreeMap::new();
        let label = |on: bool| vec![("on".to_owned(), on.to_string())];
        for step in steps {
            let now = world.clock.now().0;
            beliefs.retain(|_, row| now <= row.heartbeat_at + 615_000);
            match step {
                Step::Beat(..) | Step::Move(..) => {
                    let (id, sessions, age, moved) = match step {
                        Step::Beat(id, sessions, age) => (IDS[id], sessions, age, None),
                        Step::Move(id, label) => (IDS[id], 0, 0, Some(label)),
                        _ => continue,
                    };
                    let on = moved.or(beliefs.get(id).map(|row| row.label)).unwrap_or(false);
                    let age_ms = Duration::from_millis(age);
                    let taken = world.balancer.heartbeat(Report { age: age_ms, labels: label(on), ..report(id, sessions) });
                    prop_assert_eq!(taken.is_ok(), age <= 15_000);
                    let heartbeat_at = now.saturating_sub(age);
                    let former = beliefs.get(id).cloned();
                    if taken.is_ok() && former.as_ref().is_none_or(|row| heartbeat_at >= row.heartbeat_at) {
                        let is_draining = former.is_some_and(|row| row.is_draining);
                        beliefs.insert(id, Belief { heartbeat_at, pending: 0, is_draining, label: on });
                    }
                }
                Step::Drain(id, is_draining) => {
                    let known = world.balancer.drain(IDS[id], is_draining).is_ok();
                    prop_assert_eq!(known, beliefs.contains_key(IDS[id]));
                    if let Some(row) = beliefs.get_mut(IDS[id]) {
                        row.is_draining = is_draining;
                    }
                }
                Step::Leave(id) => {
                    let known = world.balancer.leave(IDS[id]).is_ok();
                    prop_assert_eq!(known, beliefs.remove(IDS[id]).is_some());
                }
                Step::Pass(ms) => world.clock.pass(ms),
                Step::Recommend { exclude, label: wanted, explain } => {
                    let may_choose: Vec<String> = beliefs
                        .iter()
                        .filter(|(id, row)| {
                            now <= row.heartbeat_at + 15_000
                                && !row.is_draining
                                && !exclude.iter().any(|&at| IDS[at] == **id)
                                && wanted.is_none_or(|on| row.label == on)
                        })
                        .map(|(id, _)| (*id).to_owned())
                        .collect();
                    let exclude: Vec<String> = exclude
                        .iter()
                        .map(|&at| if at % 2 == 0 { IDS[at].to_owned() } else { format!("http://{}:80", IDS[at]) })
                        .collect();
                    let labels = wanted.map(label).unwrap_or_default();
                    world.heard.lock().last = None;
                    let ask = Ask { exclude: &exclude, labels: &labels, explain, ..of("client") };
                    let answer = world.balancer.recommend(&ask);
                    prop_assert_eq!(answer.pick.is_some(), !may_choose.is_empty());
                    let heard = world.heard.lock().last.clone();
                    if let Some(heard) = heard {
                        let pending = beliefs.iter().map(|(id, row)| ((*id).to_owned(), row.pending)).collect();
                        prop_assert_eq!(&heard.told, &pending);
                        prop_assert_eq!(&heard.may_choose, &may_choose);
                    }
                    if let Some(pick) = answer.pick {
                        prop_assert!(may_choose.iter().any(|id| **id == *pick.id), "{} {:?}", pick.id, may_choose);
                        beliefs.get_mut(&*pick.id).expect("it may be chosen").pending += 1;
                        let ids: Vec<_> = answer.candidates.iter().map(|candidate| candidate.id.to_string()).collect();
                        prop_assert_eq!(ids.first().is_some_and(|id| **id == *pick.id), explain);
                        prop_assert!(ids.iter().all(|id| may_choose.contains(id)));
                    }
                }
            }
            let believed = beliefs.iter().map(|(id, row)| ((*id).to_owned(), row.pending));
            if world.clock.now().0 == now {
                prop_assert_eq!(world.pending(), believed.collect::<BTreeMap<_, _>>());
            }
        }
    }
}

#[test]
fn a_dry_run_tells_what_the_next_call_gets_and_leaves_no_trace() {
    let asked = Ask { explain: true, ..of("c") };
    for world in [World::new(Settings::default()).seated(0), World::new(Settings::default())] {
        world.beat("a", 3).beat("b", 1).beat("c", 2);
        let decided = || world.balancer.tally().lines().iter().map(|line| line.count()).sum::<u64>();
        for round in 0..8 {
            let before = (decided(), world.pending());
            let told = world.balancer.recommend(&Ask { dry_run: true, ..asked });
            assert_eq!(world.balancer.recommend(&Ask { dry_run: true, ..asked }), told, "round {round}");
            assert_eq!((decided(), world.pending()), before, "round {round}");
            assert_eq!(world.balancer.recommend(&asked), told, "round {round}");
            assert!(told.grounds.is_some() && decided() == before.0 + 1, "round {round}");
        }
    }
}
