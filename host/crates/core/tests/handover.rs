//! A model check of the hand-over: three processes, two partitions, a network that loses, repeats and delays messages,
//! processes that stall and are taken over, a coordinator that restarts.
//!
//! Checked in every state that is reached: the group's own invariants; at most one process is accepted as the owner
//! of a partition; no two processes read one partition unless a deadline, an expiry or a take-over forced it; and from
//! there a settled state is still reachable (shown by running a fair schedule to its end).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fulcrum_core::Timestamp;
use fulcrum_core::claiming::{Claim, Plan, Reason};
use fulcrum_core::group::{Group, Heartbeat, Join, Orders, Place, Settings};
use stateright::{Checker, Model, Property};

const TOPIC: &str = "t";
const NOW: Timestamp = Timestamp(0);
/// Past every hand-over deadline, long before any member expires: that is an action of its own.
const LATER: Timestamp = Timestamp(60_000);
const NETWORK_MAX: usize = 2;
const REVISION_MAX: u64 = 12;

/// One process: it knows its session, the newest orders it saw, and what it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    session: Option<String>,
    seq: u64,
    seen_revision: u64,
    reads: BTreeMap<Place, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Beat { process: usize, session: String, seq: u64, seen: u64, owned: Vec<(Place, u64)> },
    Orders { process: usize, session: String, revision: u64, assigned: Vec<(Place, u64)> },
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct World {
    group: Group,
    processes: Vec<Process>,
    network: BTreeSet<Message>,
    lives: u32,
    /// A deadline, an expiry or a take-over happened: an old reader may not know yet.
    forced: bool,
    restarts: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Join(usize),
    TakeOver(usize),
    Beat(usize),
    Deliver(Message),
    Repeat(Message),
    Lose(Message),
    Cycle,
    Deadline,
    Expire(usize),
    Restart,
}

struct Handover {
    processes: usize,
}

fn id(process: usize) -> String {
    format!("m{process}")
}

fn assigned(orders: &Orders) -> Vec<(Place, u64)> {
    orders.assignments.iter().map(|at| (at.place.clone(), at.epoch)).collect()
}

impl World {
    fn new(processes: usize) -> Self {
        let settings = Settings { ownership_expiry: Duration::from_secs(3600), ..Settings::default() };
        let mut group = Group::new(settings);
        group.set_partitions(TOPIC, 2, 1);
        let processes = vec![Process::default(); processes];
        Self { group, processes, network: BTreeSet::new(), lives: 0, forced: false, restarts: 0 }
    }

    fn join(&mut self, process: usize, takeover: bool) -> bool {
        self.lives += 1;
        let join = Join {
            member: id(process),
            topics: vec![TOPIC.to_owned()],
            capacity_milli: 1000,
            takeover,
            ..Join::default()
        };
        let Ok((joined, _)) = self.group.join(join, format!("s{}", self.lives), NOW) else { return false };
        // The process starts anew: what it read before, it reads no more.
        self.processes[process] = Process { session: Some(joined.session), ..Process::default() };
        true
    }

    fn beat(&mut self, process: usize) {
        let at = &mut self.processes[process];
        let Some(session) = at.session.clone() else { return };
        at.seq += 1;
        let owned = at.reads.iter().map(|(place, epoch)| (place.clone(), *epoch)).collect();
        self.network.insert(Message::Beat { process, session, seq: at.seq, seen: at.seen_revision, owned });
    }

    fn deliver(&mut self, message: &Message) {
        match message.clone() {
            Message::Beat { process, session, seq, seen, owned } => {
                let beat = Heartbeat { seq, acked_revision: seen, owned, released: Vec::new() };
                if self.group.heartbeat(&id(process), &session, &beat, NOW).is_ok() {
                    let orders = self.group.orders(&id(process));
                    self.network.insert(Message::Orders {
                        process,
                        session,
                        revision: orders.revision,
                        assigned: assigned(&orders),
                    });
                }
            }
            Message::Orders { process, session, revision, assigned } => {
                let at = &mut self.processes[process];
                // A process ignores what is for a former life, or older than what it knows.
                if at.session.as_ref() == Some(&session) && at.seen_revision <= revision {
                    at.seen_revision = revision;
                    at.reads = assigned.into_iter().collect();
                }
            }
        }
    }

    /// The policy of the model: partition n belongs to the n-th live member, round robin.
    fn cycle(&mut self) -> bool {
        let snapshot = self.group.snapshot("g", Reason::Manual, NOW, 0, |_| None);
        if snapshot.members.is_empty() {
            return false;
        }
        let mut plan = Plan::default();
        for partition in 0..snapshot.places.len() {
            let member = partition % snapshot.members.len();
            let owner = usize::try_from(snapshot.cycle.owner[partition]).ok();
            if owner != Some(member) && snapshot.cycle.moving[partition] == 0 {
                plan.claims.push(Claim { partition, member, reason: String::new() });
            }
        }
        !plan.claims.is_empty() && self.group.commit(&snapshot, &plan, NOW).is_some()
    }

    fn expire(&mut self, process: usize) -> bool {
        let session = self.group.members.get(&id(process)).map(|member| member.session.clone());
        self.forced = true;
        session.is_some_and(|session| self.group.disconnect(&id(process), &session, NOW).is_ok())
    }

    /// Everything but ages and what only lives in memory is stored; a restart keeps it.
    fn restart(&mut self) {
        self.restarts += 1;
        self.group.revision += 1;
        self.group.restart_ages(NOW);
        for member in self.group.members.values_mut() {
            member.seq = 0;
            member.acked_revision = 0;
            member.disagrees_on.clear();
        }
    }

    /// One process sends a heartbeat and gets its answer.
    fn exchange(&mut self, process: usize) {
        self.beat(process);
        while let Some(message) = self.network.pop_first() {
            self.deliver(&message);
        }
    }

    /// Starts counting anew, so that the bounds of the search begin here.
    fn rebase(&mut self) {
        for process in &mut self.processes {
            process.seq = 0;
        }
        for member in self.group.members.values_mut() {
            member.seq = 0;
        }
        self.lives = 2;
    }

    fn no_two_owners(&self) -> bool {
        (0..2).all(|partition| {
            let place = Place { topic: TOPIC.to_owned(), partition };
            let accepted = self.processes.iter().enumerate().filter(|(process, at)| {
                let session = at.session.as_deref().unwrap_or("");
                at.reads.get(&place).is_some_and(|epoch| {
                    self.group.check_owner(&id(*process), session, &place, *epoch).is_ok()
                })
            });
            accepted.count() <= 1
        })
    }

    fn no_two_readers(&self) -> bool {
        let mut seen = BTreeSet::new();
        self.processes.iter().flat_map(|at| at.reads.keys()).all(|place| seen.insert(place.clone()))
    }

    /// Every process is in, every partition is read by its owner alone, and nothing is on its way.
    fn is_settled(&self) -> bool {
        self.group.partitions.iter().all(|(place, at)| {
            let readers: Vec<_> = self
                .processes
                .iter()
                .enumerate()
                .filter(|(_, process)| process.reads.contains_key(place))
                .map(|(process, _)| id(process))
                .collect();
            at.moving.is_none()
                && at.owner.is_some()
                && readers.len() == 1
                && at.owner.as_ref() == readers.first()
        })
    }

    /// Runs a fair schedule: everybody who is out joins, messages arrive, cycles run.
    fn settles(&self) -> bool {
        let mut world = self.clone();
        for _ in 0..8 {
            for process in 0..world.processes.len() {
                let session = world.processes[process].session.clone().unwrap_or_default();
                let is_in = world
                    .group
                    .members
                    .get(&id(process))
                    .is_some_and(|member| member.session == session && member.kept_until.is_none());
                if !is_in {
                    world.join(process, true);
                }
                world.beat(process);
            }
            while let Some(message) = world.network.pop_first() {
                world.deliver(&message);
            }
            if world.is_settled() && !world.cycle() {
                return true;
            }
            world.cycle();
        }
        false
    }
}

impl Model for Handover {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        // From the start alone the search would not get deep enough: it also begins in the middle of a hand-over, and
        // where everybody has a share.
        let mut fresh = World::new(self.processes);
        fresh.join(0, false);
        let mut moving = fresh.clone();
        moving.cycle();
        moving.exchange(0);
        moving.join(1, false);
        moving.cycle();
        let mut settled = moving.clone();
        settled.exchange(0);
        settled.exchange(0);
        settled.exchange(1);
        assert!(moving.group.partitions.values().any(|at| at.moving.is_some()) && settled.is_settled());
        for world in [&mut moving, &mut settled] {
            world.rebase();
        }
        vec![fresh, moving, settled]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for process in 0..self.processes {
            let is_member = world.group.members.contains_key(&id(process));
            if !is_member {
                actions.push(Action::Join(process));
            } else if world.lives < 5 {
                actions.push(Action::TakeOver(process));
                actions.push(Action::Expire(process));
            }
            if world.network.len() < NETWORK_MAX && world.processes[process].session.is_some() {
                actions.push(Action::Beat(process));
            }
        }
        for message in &world.network {
            actions.push(Action::Deliver(message.clone()));
            actions.push(Action::Repeat(message.clone()));
            actions.push(Action::Lose(message.clone()));
        }
        actions.push(Action::Cycle);
        if world.group.partitions.values().any(|at| at.moving.is_some()) {
            actions.push(Action::Deadline);
        }
        if world.restarts < 1 {
            actions.push(Action::Restart);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Join(process) => {
                // Whoever was expired and did not notice starts anew as well: its old reads end with it.
                world.join(process, false);
            }
            Action::TakeOver(process) => {
                world.forced = true;
                world.join(process, true);
            }
            Action::Beat(process) => world.beat(process),
            Action::Deliver(message) => {
                world.network.remove(&message);
                world.deliver(&message);
            }
            Action::Repeat(message) => world.deliver(&message),
            Action::Lose(message) => {
                world.network.remove(&message);
            }
            Action::Cycle => {
                world.cycle();
            }
            Action::Deadline => {
                world.forced = true;
                world.group.expire(LATER);
            }
            Action::Expire(process) => {
                world.expire(process);
            }
            Action::Restart => world.restart(),
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("invariants hold", |_, world: &World| world.group.violations().is_empty()),
            Property::always("one owner is accepted", |_, world: &World| world.no_two_owners()),
            Property::always("one reader unless forced", |_, world: &World| {
                world.forced || world.no_two_readers()
            }),
            Property::always("a settled state stays reachable", |_, world: &World| world.settles()),
            Property::sometimes("a hand-over is under way", |_, world: &World| {
                world.group.partitions.values().any(|at| at.moving.is_some())
            }),
            Property::sometimes("a partition changed hands in two phases", |_, world: &World| {
                !world.forced && world.group.partitions.values().any(|at| at.epoch >= 2 && at.owner.is_some())
            }),
            Property::sometimes("two readers after force", |_, world: &World| !world.no_two_readers()),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.group.revision <= REVISION_MAX
            && world.network.len() <= NETWORK_MAX
            && world.processes.iter().all(|at| at.seq <= 3)
    }
}

fn check(processes: usize, states_max: usize) {
    let checker =
        Handover { processes }.checker().threads(2).target_state_count(states_max).spawn_bfs().join();
    assert!(checker.unique_state_count() > 10_000, "the search is not cut short");
    checker.assert_properties();
}

#[test]
fn two_processes() {
    check(2, 150_000);
}

#[test]
fn three_processes() {
    check(3, 300_000);
}

/// The checker can find something: with an owner that forgets the deadline's force, two readers are found.
#[test]
fn the_model_sees_two_readers() {
    struct Blind(Handover);
    impl Model for Blind {
        type State = World;
        type Action = Action;

        fn init_states(&self) -> Vec<World> {
            self.0.init_states()
        }

        fn actions(&self, world: &World, actions: &mut Vec<Action>) {
            self.0.actions(world, actions);
        }

        fn next_state(&self, world: &World, action: Action) -> Option<World> {
            self.0.next_state(world, action)
        }

        fn properties(&self) -> Vec<Property<Self>> {
            vec![Property::always("one reader", |_, world: &World| world.no_two_readers())]
        }

        fn within_boundary(&self, world: &World) -> bool {
            self.0.within_boundary(world)
        }
    }
    let checker = Blind(Handover { processes: 2 }).checker().target_state_count(60_000).spawn_bfs().join();
    assert!(checker.discovery("one reader").is_some());
}
