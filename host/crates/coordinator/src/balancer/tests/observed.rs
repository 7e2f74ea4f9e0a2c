//! What observers see, and the canary.

use std::sync::atomic::AtomicUsize;

use fulcrum_policy::Outcome;
use fulcrum_policy::probation::{Budget, Probation};
use fulcrum_policy::tap::{self, Claimed, Observer, Scored};

use super::*;

#[derive(Default)]
struct Notes {
    every: usize,
    seen: AtomicUsize,
    scored: Mutex<Vec<Arc<Scored>>>,
}

impl Observer for Notes {
    fn wants_scored(&self) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every)
    }

    fn scored(&self, scored: &Arc<Scored>) {
        self.scored.lock().push(scored.clone());
    }

    fn claimed(&self, _: &Arc<Claimed>) {}
}

impl World {
    fn observed(&self, every: usize) -> Arc<Notes> {
        let notes = Arc::new(Notes { every, ..Notes::default() });
        self.balancer.with_seat(&mut |seat| seat.observe(vec![notes.clone()]));
        notes
    }

    /// Makes a version of the fake policy under a name of its own.
    fn staged(&self, name: &str, fails: u64, probation: Option<Arc<Probation>>) -> Staged {
        let identity = Identity { name: name.to_owned(), digest: "d2".to_owned(), config: "{}".to_owned() };
        let factory = Arc::new(Factory { identity: Arc::new(identity), heard: self.heard.clone(), fails });
        Staged {
            instance: factory.make().expect("never fails"),
            factory,
            roster_revision: 0,
            probation,
            is_last_resort: false,
        }
    }
}

/// Makes a decision again from nothing but what was handed out.
fn again(scored: &Scored) -> Option<(u32, u64)> {
    let mut loads = scored.snapshot.loads.clone();
    scored.committed.iter().for_each(|&row| loads.give_out(row as usize));
    let request = scored.request.as_request();
    let row = |recommendation: fulcrum_core::scoring::Recommendation| {
        (u32::try_from(recommendation.row).expect("a row"), recommendation.score.get().to_bits())
    };
    let fallback = || fallback::recommend(&scored.snapshot.roster, &loads, &request).map(row);
    let Some(factory) = scored.asked.as_ref().filter(|_| scored.decision.outcome == Outcome::Ok) else {
        return fallback();
    };
    let mut fresh = factory.make().ok()?;
    fresh.roster(&scored.snapshot.roster).ok()?;
    fresh.refresh(&loads).ok()?;
    fresh.recommend(&request, &[]).ok().map(|proposal| (proposal.row, proposal.score.to_bits()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every decision can be made again alone from what observers are handed, whoever made it and however few of them
    /// an observer wants.
    #[test]
    fn what_is_handed_out_is_all_a_decision_depends_on(
        steps in prop::collection::vec(step(), 1..200),
        fails in prop_oneof![Just(0_u64), Just(3), Just(10)],
        every in 1..5_usize,
    ) {
        let world = World::new(Settings::default()).seated(fails);
        let notes = world.observed(every);
        let mut picks = Vec::new();
        for step in steps {
            match step {
                Step::Beat(id, sessions, age) => {
                    let age = Duration::from_millis(age);
                    drop(world.balancer.heartbeat(Report { age, ..report(IDS[id], sessions) }));
                }
                Step::Move(id, on) => {
                    let labels = vec![("on".to_owned(), on.to_string())];
                    drop(world.balancer.heartbeat(Report { labels, ..report(IDS[id], 0) }));
                }
                Step::Drain(id, is_draining) => drop(world.balancer.drain(IDS[id], is_draining)),
                Step::Leave(id) => drop(world.balancer.leave(IDS[id])),
                Step::Pass(ms) => world.clock.pass(ms),
                Step::Recommend { exclude, explain, .. } => {
                    let exclude: Vec<String> = exclude.iter().map(|&at| IDS[at].to_owned()).collect();
                    let ask = Ask { exclude: &exclude, explain, ..of("c") };
                    picks.extend(world.balancer.recommend(&ask).pick.map(|pick| pick.id));
                }
            }
        }
        let scored = notes.scored.lock();
        prop_assert_eq!(scored.len(), picks.len().div_ceil(every));
        for (scored, pick) in scored.iter().zip(picks.iter().step_by(every)) {
            let found = &scored.decision.recommendation;
            prop_assert_eq!(&scored.snapshot.roster.rows()[found.row].id, pick);
            let made = (u32::try_from(found.row).expect("a row"), found.score.get().to_bits());
            prop_assert_eq!(again(scored), Some(made));
        }
    }
}

#[test]
fn a_snapshot_is_shared_until_something_changes_or_too_much_was_given_out() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 0).beat("b", 0);
    let notes = world.observed(1);
    let many = 2 * tap::COMMITTED_MAX + 10;
    (0..many).for_each(|_| drop(world.picks(&of("c"))));
    world.beat("a", 1);
    drop(world.picks(&of("c")));
    let scored = notes.scored.lock();
    let changes = scored.windows(2).filter(|pair| !Arc::ptr_eq(&pair[0].snapshot, &pair[1].snapshot)).count();
    assert_eq!(changes, 3, "two for what was given out, one for the heartbeat");
    let first = &scored[0].snapshot;
    assert!(
        scored.iter().all(|other| Arc::ptr_eq(&other.snapshot.roster, &first.roster)),
        "nobody came or left"
    );
    assert_eq!(scored[tap::COMMITTED_MAX].committed.len(), tap::COMMITTED_MAX);
    assert_eq!(scored[many].committed.len(), 0);
}

#[test]
fn a_client_stays_on_its_side_of_a_canary() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 0).beat("b", 0);
    let share = |share: f64| {
        let mut next = Some((world.staged("canary", 0, None), share));
        world.balancer.with_seat(&mut |seat| drop(seat.install_canary(next.take())));
    };
    let canaries = |client: &dyn Fn(u32) -> String| {
        let by = |n| world.balancer.recommend(&of(&client(n))).pick.expect("two live").policy() == "canary";
        (0..1000).filter(|&n| by(n)).collect::<Vec<_>>()
    };
    let named = |n| format!("client-{n}");
    for (wanted, bounds) in [(0.0, 0..=0), (0.1, 70..=130), (0.5, 440..=560), (1.0, 1000..=1000)] {
        share(wanted);
        let (first, second) = (canaries(&named), canaries(&named));
        assert!(bounds.contains(&first.len()), "{} of 1000 at {wanted}", first.len());
        assert_eq!(first, second, "at {wanted}");
        let nameless = canaries(&|_| String::new()).len();
        assert!(bounds.contains(&nameless), "{nameless} of 1000 without a name at {wanted}");
    }
    // Whoever decided, both know what was given out.
    assert_eq!(world.last().told, world.pending_before_the_last("a", "b"));
    world.balancer.with_seat(&mut |seat| drop(seat.install_canary(None)));
    assert_eq!(canaries(&named).len(), 0);
    assert_eq!(world.last().told, world.pending_before_the_last("a", "b"));
}

#[test]
fn a_canary_that_spent_its_budget_leaves_its_clients_to_the_policy() {
    let world = World::new(Settings::default()).seated(0);
    world.beat("a", 0).beat("b", 0);
    let alarms = Arc::new(AtomicUsize::new(0));
    let count = alarms.clone();
    let alarm: fulcrum_policy::seat::Alarm = Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let identity = Identity { name: "canary".to_owned(), ..Identity::default() };
    let budget = Budget { failures_max: 1, decisions: 1000, renews: true };
    let probation = Arc::new(Probation::new(Arc::new(identity), budget, alarm));
    let mut next = Some((world.staged("canary", 1, Some(probation.clone())), 1.0));
    world.balancer.with_seat(&mut |seat| drop(seat.install_canary(next.take())));
    let by: Vec<_> = (0..6)
        .map(|_| world.balancer.recommend(&of("c")).pick.expect("two live").policy().to_owned())
        .collect();
    assert_eq!(by, ["fallback", "fallback", "fake", "fake", "fake", "fake"]);
    assert_eq!((probation.counts(), alarms.load(Ordering::Relaxed)), ((2, 2), 1));
}
