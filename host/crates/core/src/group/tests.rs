use proptest::prelude::*;

use super::*;
use crate::claiming::{Claim, Plan};

/// A group driven by hand, with a clock and readable output.
struct World {
    group: Group,
    now: Timestamp,
    sessions: u32,
}

impl World {
    fn new(settings: Settings) -> Self {
        let mut group = Group::new(settings);
        group.set_partitions("t", 4, 1);
        Self { group, now: Timestamp(1_000_000), sessions: 0 }
    }

    fn join(&mut self, member: &str) -> String {
        self.try_join(member, None, false).expect("joins").0.session
    }

    fn try_join(
        &mut self,
        member: &str,
        session: Option<&str>,
        takeover: bool,
    ) -> Result<(Joined, Step), Refused> {
        self.sessions += 1;
        let join = Join {
            member: member.to_owned(),
            topics: vec!["t".to_owned()],
            capacity_milli: 1000,
            session: session.map(str::to_owned),
            takeover,
            ..Join::default()
        };
        let joined = self.group.join(join, format!("s{}", self.sessions), self.now);
        self.check();
        joined
    }

    /// Gives each partition to the member named at its place; `-` leaves it alone, `.` releases it.
    fn plan(&mut self, owners: [&str; 4]) -> Step {
        let snapshot = self.group.snapshot("g", Reason::Manual, self.now, 0, |_| None);
        let mut plan = Plan::default();
        for (partition, owner) in owners.into_iter().enumerate() {
            match owner {
                "-" => {}
                "." => plan.releases.push(partition),
                _ => {
                    let member = snapshot.members.iter().position(|id| id == owner).expect("a live member");
                    plan.claims.push(Claim { partition, member, reason: "test".to_owned() });
                }
            }
        }
        let step = self.group.commit(&snapshot, &plan, self.now).expect("nothing changed meanwhile");
        self.check();
        step
    }

    fn beat(&mut self, member: &str, session: &str, owned: &[(u32, u64)], released: &[(u32, u64)]) -> Step {
        let place = |&(partition, epoch): &(u32, u64)| (Place { topic: "t".to_owned(), partition }, epoch);
        let seq = self.group.members.get(member).map_or(0, |member| member.seq) + 1;
        let beat = Heartbeat {
            seq,
            acked_revision: self.group.revision,
            owned: owned.iter().map(place).collect(),
            released: released.iter().map(place).collect(),
        };
        let step = self.group.heartbeat(member, session, &beat, self.now).expect("a live session");
        self.check();
        step
    }

    fn advance(&mut self, seconds: u64) -> Step {
        self.now = self.now.after(Duration::from_secs(seconds));
        let step = self.group.expire(self.now);
        self.check();
        step
    }

    fn check(&self) {
        assert_eq!(self.group.violations(), Vec::<String>::new());
    }

    /// `owner@epoch` per partition, `>member` while it moves there.
    fn show(&self) -> String {
        let one = |at: &Partition| {
            let owner = at.owner.as_deref().unwrap_or("-");
            let to = at.moving.as_ref().map(|moving| format!(">{}", moving.to.as_deref().unwrap_or("-")));
            format!("{owner}@{}{}", at.epoch, to.unwrap_or_default())
        };
        self.group.partitions.values().map(one).collect::<Vec<_>>().join(" ")
    }
}

fn place(partition: u32) -> Place {
    Place { topic: "t".to_owned(), partition }
}

#[test]
fn a_move_waits_for_the_release() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "a", "a", "a"]);
    let b = world.join("b");
    let step = world.plan(["-", "-", "b", "b"]);
    assert_eq!(step.told, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    assert_eq!(world.show(), "a@1 a@1 a@1>b a@1>b");
    assert_eq!(world.group.orders("a").revocations.len(), 2);
    assert_eq!(world.group.orders("b").assignments, []);
    // The old owner may finish: its epoch is good until it releases.
    assert!(world.group.checkpoint("a", &a, &place(2), 1, 7, false).is_ok());
    assert_eq!(
        world.group.checkpoint("b", &b, &place(2), 2, 7, false),
        Err(Refused::StaleEpoch { epoch: 1 })
    );
    // One released by name, the other by absence after the order was seen.
    world.beat("a", &a, &[(0, 1), (1, 1)], &[(2, 1)]);
    assert_eq!(world.show(), "a@1 a@1 b@2 b@2");
    assert_eq!(
        world.group.checkpoint("a", &a, &place(2), 1, 8, false),
        Err(Refused::StaleEpoch { epoch: 2 })
    );
    assert_eq!(world.group.orders("b").assignments[0].checkpoint, Some(7));
}

#[test]
fn absence_is_no_release_before_the_order_was_seen() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "a", "a", "a"]);
    world.join("b");
    let seen = world.group.revision;
    world.plan(["b", "-", "-", "-"]);
    let beat = Heartbeat { seq: 9, acked_revision: seen, ..Heartbeat::default() };
    world.group.heartbeat("a", &a, &beat, world.now).expect("live");
    assert_eq!(world.show(), "a@1>b a@1 a@1 a@1");
    // A revision to come cannot have been seen either; an older heartbeat changes nothing.
    let late = Heartbeat { seq: 8, acked_revision: u64::MAX, ..Heartbeat::default() };
    world.group.heartbeat("a", &a, &late, world.now).expect("live");
    assert_eq!(world.show(), "a@1>b a@1 a@1 a@1");
}

#[test]
fn a_deadline_ends_a_move_without_the_owner() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "a", "a", "a"]);
    let b = world.join("b");
    world.plan(["b", "-", "-", "."]);
    assert_eq!(world.show(), "a@1>b a@1 a@1 a@1>-");
    for _ in 0..3 {
        world.advance(10);
        if world.group.partitions[&place(0)].epoch == 1 {
            world.beat("a", &a, &[(0, 1), (1, 1), (2, 1), (3, 1)], &[]);
            world.beat("b", &b, &[], &[]);
        }
    }
    assert_eq!(world.show(), "b@2 a@1 a@1 -@1");
}

#[test]
fn a_steal_needs_no_release() {
    let mut world = World::new(Settings { handover: Handover::Steal, ..Settings::default() });
    world.join("a");
    world.plan(["a", "a", "a", "a"]);
    world.join("b");
    world.plan(["b", "-", "-", "."]);
    assert_eq!(world.show(), "b@2 a@1 a@1 -@1");
}

#[test]
fn leaving_frees_at_once_and_finishes_moves() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "a", "a", "a"]);
    let b = world.join("b");
    world.plan(["b", "b", "-", "-"]);
    let step = world.group.leave("a", &a, false, world.now).expect("live");
    assert_eq!(step.cycle, Some(Reason::Leave));
    assert_eq!(world.show(), "b@2 b@2 -@1 -@1");
    world.join("c");
    world.plan(["c", "-", "c", "-"]);
    assert_eq!(world.show(), "b@2>c b@2 c@2 -@1");
    world.group.leave("c", "s3", false, world.now).expect("live");
    assert_eq!(world.show(), "b@2 b@2 -@2 -@1", "the owner keeps what was to go to the leaver");
    assert_eq!(world.group.leave("b", "s1", false, world.now), Err(Refused::Fenced));
    assert!(world.group.leave("b", &b, false, world.now).is_ok());
    assert_eq!(world.show(), "-@2 -@2 -@2 -@1");
}

#[test]
fn identity_is_a_session() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "-", "-", "-"]);
    let refused = world.try_join("a", None, false).expect_err("a live duplicate");
    assert_eq!(refused, Refused::Duplicate { retry_after_ms: 30_001 });
    let (joined, step) = world.try_join("a", Some(&a), false).expect("resumes");
    assert_eq!((joined.resumed, &joined.session, step.cycle), (true, &a, None));
    assert_eq!(world.show(), "a@1 -@0 -@0 -@0");
    let (joined, _) = world.try_join("a", Some("wrong"), true).expect("takes over");
    assert_eq!((joined.resumed, world.show().as_str()), (false, "a@2 -@0 -@0 -@0"));
    assert_eq!(world.group.checkpoint("a", &a, &place(0), 2, 1, false), Err(Refused::Fenced));
    assert_eq!(world.group.heartbeat("a", &a, &Heartbeat::default(), world.now), Err(Refused::Fenced));
    assert!(world.group.checkpoint("a", &joined.session, &place(0), 2, 1, false).is_ok());
}

#[test]
fn silence_ends_a_member_strictly_after_its_time() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "-", "-", "-"]);
    assert_eq!(world.advance(30), Step::default(), "exactly the time to live is alive");
    let step = world.advance(1);
    assert_eq!((step.cycle, world.show().as_str()), (Some(Reason::Expired), "-@1 -@0 -@0 -@0"));
    let unknown = Refused::UnknownMember("a".to_owned());
    assert_eq!(world.group.heartbeat("a", &a, &Heartbeat::default(), world.now), Err(unknown));
}

#[test]
fn grace_keeps_partitions_for_a_returning_member() {
    let grace = Duration::from_secs(60);
    let mut world = World::new(Settings { grace, ..Settings::default() });
    let a = world.join("a");
    world.plan(["a", "a", "-", "-"]);
    world.group.leave("a", &a, true, world.now).expect("live");
    assert_eq!(world.show(), "a@1 a@1 -@0 -@0");
    assert_eq!(world.group.checkpoint("a", &a, &place(0), 1, 1, false), Err(Refused::Fenced));
    world.join("b");
    let snapshot = world.group.snapshot("g", Reason::Join, world.now, 0, |_| None);
    assert_eq!((snapshot.members.len(), snapshot.places.len()), (1, 2), "what is kept is nobody's to claim");
    world.advance(20);
    world.join("a");
    assert_eq!(world.show(), "a@2 a@2 -@0 -@0", "its own, in new epochs: the former life may still read");
    world.group.leave("a", "s3", true, world.now).expect("live");
    world.advance(60);
    assert_eq!(world.show(), "-@2 -@2 -@0 -@0");
}

#[test]
fn offsets_only_rise_unless_asked() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "-", "-", "-"]);
    let mut put = |offset, rewind| world.group.checkpoint("a", &a, &place(0), 1, offset, rewind).map(|_| ());
    assert_eq!(put(5, false), Ok(()));
    assert_eq!(put(5, false), Ok(()));
    assert_eq!(put(4, false), Err(Refused::Rewind { offset: 4, checkpoint: 5 }));
    assert_eq!(put(4, true), Ok(()));
    world.group.reset(&[(place(0), Some(0)), (place(9), None)]);
    assert_eq!(world.show(), "a@2 -@0 -@0 -@0");
    assert_eq!(world.group.orders("a").assignments[0].checkpoint, Some(0));
}

#[test]
fn a_changed_subscription_gives_foreign_partitions_up() {
    let mut world = World::new(Settings::default());
    let a = world.join("a");
    world.plan(["a", "a", "-", "-"]);
    let join = Join {
        member: "a".to_owned(),
        topics: vec!["u".to_owned()],
        capacity_milli: 1000,
        session: Some(a),
        ..Join::default()
    };
    let (_, step) = world.group.join(join, "new".to_owned(), world.now).expect("resumes");
    assert_eq!(step.cycle, Some(Reason::Subscription));
    assert_eq!(world.show(), "a@1>- a@1>- -@0 -@0");
}

#[test]
fn partitions_come_and_go_with_their_topic() {
    let mut world = World::new(Settings::default());
    world.join("a");
    world.plan(["a", "a", "a", "a"]);
    assert_eq!(world.group.set_partitions("t", 4, 1), Step::default());
    assert_eq!(world.group.set_partitions("t", 5, 1).cycle, Some(Reason::Partitions));
    assert_eq!(world.show(), "a@1 a@1 a@1 a@1 -@0");
    let step = world.group.set_partitions("t", 0, 1);
    assert_eq!((step.partitions.len(), world.show().as_str()), (5, ""));
    assert!(step.members, "the epoch floor has to be stored");
    // Made again: who owned them before owns nothing, in no epoch of before.
    world.group.set_partitions("t", 4, 2);
    assert_eq!(world.show(), "-@1 -@1 -@1 -@1");
    world.plan(["a", "a", "a", "-"]);
    assert_eq!(world.show(), "a@2 a@2 a@2 -@1");
}

#[test]
fn claims_of_a_former_topic_are_dropped() {
    let mut world = World::new(Settings::default());
    let session = world.join("a");
    world.plan(["a", "a", "a", "-"]);
    let place = |partition| Place { topic: "t".to_owned(), partition };
    world.group.checkpoint("a", &session, &place(0), 1, 7, false).expect("it is the owner's");
    // What an earlier host stored does not say which topic it is of: it is taken for the present one.
    for partition in world.group.partitions.values_mut() {
        partition.incarnation = None;
    }
    let step = world.group.set_partitions("t", 4, 1);
    assert_eq!((step.partitions.len(), step.cycle, step.told.len()), (4, None, 0));
    assert_eq!(world.show(), "a@1 a@1 a@1 -@0");
    assert_eq!(world.group.partitions[&place(0)].checkpoint, Some(7));

    let step = world.group.set_partitions("t", 4, 2);
    assert_eq!((step.cycle, step.told), (Some(Reason::Partitions), BTreeSet::from(["a".to_owned()])));
    assert_eq!(world.show(), "-@2 -@2 -@2 -@1");
    assert_eq!(world.group.partitions[&place(0)].checkpoint, None);
    let refused = world.group.checkpoint("a", &session, &place(0), 1, 8, false);
    assert_eq!(refused, Err(Refused::StaleEpoch { epoch: 2 }));
}

#[test]
fn a_snapshot_has_places_and_weights() {
    let mut world = World::new(Settings::default());
    world.join("a");
    let check = |facts: Option<Facts>, places: &[&str], place: [u32; 4], weight: [f64; 4]| {
        let cycle = world.group.snapshot("g", Reason::Manual, world.now, 0, |_| facts.as_ref()).cycle;
        assert_eq!((cycle.place, cycle.weight), (place.to_vec(), weight.to_vec()));
        assert_eq!(cycle.places, places);
    };
    let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    check(None, &[""], [0; 4], [1.0; 4]);
    check(Some(Facts::default()), &[""], [0; 4], [1.0; 4]);
    let facts = Facts { places: texts(&["b", "", "a", "b"]), weights: vec![2.0, 0.5] };
    check(Some(facts), &["", "b", "a"], [1, 0, 2, 1], [2.0, 0.5, 1.0, 1.0]);
    // More than there are partitions, as after a topic was made again.
    let facts = Facts { places: texts(&["a", "a", "a", "a", "b"]), weights: vec![3.0; 9] };
    check(Some(facts), &["", "a"], [1; 4], [3.0; 4]);
}

#[test]
fn a_plan_for_a_group_that_moved_on_is_not_committed() {
    let mut world = World::new(Settings::default());
    world.join("a");
    let snapshot = world.group.snapshot("g", Reason::Manual, world.now, 0, |_| None);
    world.join("b");
    assert_eq!(world.group.commit(&snapshot, &Plan::default(), world.now), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Any history keeps the invariants, epochs never fall, and an accepted checkpoint is never by two lives.
    #[test]
    fn any_history_is_legal(
        steps in proptest::collection::vec((0_u8..10, 0_usize..3, 0_u32..4, 0_u64..40), 1..80),
        cooperative in any::<bool>(),
        grace in 0_u64..2,
    ) {
        let handover = if cooperative { Handover::Cooperative } else { Handover::Steal };
        let settings = Settings { handover, grace: Duration::from_secs(grace * 20), ..Settings::default() };
        let mut world = World::new(settings);
        let ids = ["a", "b", "c"];
        let mut lives: Vec<(usize, String)> = Vec::new();
        let mut epochs = [0_u64; 4];
        for (kind, who, partition, amount) in steps {
            let id = ids[who];
            let session = lives.iter().rev().find(|(of, _)| *of == who).map(|(_, session)| session.clone());
            let session = session.unwrap_or_default();
            match kind {
                0 | 1 => {
                    if let Ok((joined, _)) = world.try_join(id, None, kind == 1) {
                        lives.push((who, joined.session));
                    }
                }
                2 => drop(world.group.leave(id, &session, amount % 2 == 0, world.now)),
                3 => drop(world.advance(amount)),
                4..=6 => {
                    let live: Vec<_> = world
                        .group
                        .members
                        .iter()
                        .filter(|(_, member)| member.kept_until.is_none())
                        .map(|(id, _)| id.clone())
                        .collect();
                    let snapshot = world.group.snapshot("g", Reason::Manual, world.now, amount, |_| None);
                    let at = snapshot.places.iter().position(|place| place.partition == partition);
                    if let (Some(at), false) = (at, live.is_empty())
                        && snapshot.cycle.moving[at] == 0
                    {
                        let member = usize::try_from(amount).expect("small") % live.len();
                        let mut plan = Plan::default();
                        plan.claims.push(Claim { partition: at, member, reason: String::new() });
                        world.group.commit(&snapshot, &plan, world.now).expect("unchanged");
                    }
                }
                7 => {
                    let released = vec![(place(partition), epochs[partition as usize])];
                    let beat = Heartbeat {
                        seq: amount,
                        acked_revision: amount,
                        owned: Vec::new(),
                        released: if amount % 2 == 0 { released } else { Vec::new() },
                    };
                    drop(world.group.heartbeat(id, &session, &beat, world.now));
                }
                8 => drop(world.group.set_partitions("t", 4, amount / 20)),
                _ => {
                    let epoch = world.group.partitions[&place(partition)].epoch;
                    let accepted: Vec<_> = lives
                        .iter()
                        .filter(|(of, session)| {
                            world.group.check_owner(ids[*of], session, &place(partition), epoch).is_ok()
                        })
                        .collect();
                    prop_assert!(accepted.len() <= 1, "{accepted:?}");
                }
            }
            world.check();
            for (before, (_, at)) in epochs.iter_mut().zip(&world.group.partitions) {
                prop_assert!(*before <= at.epoch, "epochs never fall");
                *before = at.epoch;
            }
        }
    }
}
