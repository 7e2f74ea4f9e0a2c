use std::time::{Duration, Instant};

use fulcrum_core::claiming::Reason;
use fulcrum_core::group::{Assignment, Handover, Orders};
use fulcrum_core::time::Timestamp;
use fulcrum_policy::fallback;
use fulcrum_store::{Options, SqliteStore};

use super::*;

/// Plans natively: every free partition to the least loaded member.
struct Native;

impl Plans for Native {
    fn plan(&self, _: &str, _: &Wish, cycle: &Cycle) -> Planned {
        planned(cycle, None)
    }

    fn version(&self, _: &str, _: &Wish) -> Result<Arc<Identity>, String> {
        Err("native".to_owned())
    }
}

fn planned(cycle: &Cycle, by: Option<Arc<Identity>>) -> Planned {
    let (plan, outcome) = (fallback::plan(cycle), fulcrum_policy::Outcome::Ok);
    Planned { plan, asked: by.clone(), by, outcome, problem: None }
}

struct RealClock(Instant);

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000 + fulcrum_core::time::millis(self.0.elapsed()))
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).expect("a short test")
    }
}

struct Host {
    store: Arc<SqliteStore>,
    groups: Arc<Groups>,
}

async fn open(folder: &std::path::Path) -> Host {
    let numbers = std::sync::atomic::AtomicU64::new(fulcrum_core::time::millis(Duration::from_secs(1)));
    let entropy = move || numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed).into();
    open_with(folder, Native, entropy).await
}

async fn open_with(
    folder: &std::path::Path,
    plans: impl Plans + 'static,
    entropy: impl Fn() -> u128 + Send + Sync + 'static,
) -> Host {
    let store = Arc::new(SqliteStore::open(folder.join("store.db"), Options::default()).expect("opens"));
    let parts = Parts {
        store: store.clone(),
        log: store.clone(),
        plans: Arc::new(plans),
        clock: Arc::new(RealClock(Instant::now())),
        defaults: Spec::default(),
        boot_seed: 1,
        entropy: Box::new(entropy),
    };
    Host { store, groups: Groups::open(parts).await.expect("opens") }
}

fn join(member: &str) -> Join {
    Join { member: member.to_owned(), topics: vec!["t".to_owned()], capacity_milli: 1000, ..Join::default() }
}

/// Sends heartbeats that claim to own what was assigned, until the orders satisfy `is_it`.
async fn until(host: &Host, member: &str, session: &str, is_it: impl Fn(&Orders) -> bool) -> Orders {
    let begun = Instant::now();
    let mut orders = Orders::default();
    for seq in 1.. {
        let owned = orders.assignments.iter().map(|at: &Assignment| (at.place.clone(), at.epoch)).collect();
        let beat = Heartbeat { seq, acked_revision: orders.revision, owned, released: Vec::new() };
        orders = host.groups.heartbeat("g", member, session, beat).await.expect("live").orders;
        if is_it(&orders) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{member} waits for ever: {orders:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    orders
}

#[tokio::test]
async fn partitions_are_claimed_handed_over_and_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open(folder.path()).await;
    host.store.create_topic("t", 4).await.expect("made");
    let patch = SpecPatch { gather: Some(Duration::ZERO), ..SpecPatch::default() };
    host.groups.configure("g", patch).await.expect("configured");
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    let orders = until(&host, "a", &a.session, |orders| orders.assignments.len() == 4).await;
    let view = host.groups.view("g").await.expect("it is there");
    assert_eq!(view.last_cycle.map(|cycle| cycle.reason), Some(Reason::Join), "the topic is as it was");
    let first = &orders.assignments[0];
    let records = vec![bytes::Bytes::from_static(b"{}"); 7];
    host.store.append("t", first.place.partition, Timestamp(1), records).await.expect("stored");
    let checkpoint = Checkpoint {
        member: "a".to_owned(),
        session: a.session.clone(),
        place: first.place.clone(),
        epoch: first.epoch,
        offset: 7,
        rewind: false,
    };
    host.groups.checkpoint("g", checkpoint.clone()).await.expect("stored");
    let beyond = Checkpoint { offset: 8, ..checkpoint.clone() };
    let refused = host.groups.checkpoint("g", beyond).await.expect_err("there are seven events");
    assert!(matches!(refused, Error::Invalid { field: "offset", .. }), "{refused}");
    let stale = Checkpoint { epoch: 0, ..checkpoint };
    let refused = host.groups.checkpoint("g", stale).await.expect_err("stale");
    assert!(matches!(refused, Error::Refused(Refused::StaleEpoch { epoch: 1 })), "{refused}");

    let Host { store, groups } = host;
    drop(groups);
    store.close().await;
    drop(store);
    let host = open(folder.path()).await;
    let view = host.groups.view("g").await.expect("it is back");
    assert_eq!(view.partitions.iter().filter(|at| at.owner.as_deref() == Some("a")).count(), 4);
    assert_eq!(view.partitions[0].checkpoint, Some(7));
    assert!(view.revision >= orders.revision, "what was seen before is not in the future");
    // Nobody has to join again.
    until(&host, "a", &a.session, |orders| orders.assignments.len() == 4).await;
    host.groups.leave("g", "a", &a.session, false).await.expect("leaves");
    let (b, _) = host.groups.join("g", join("b")).await.expect("joins");
    let orders = until(&host, "b", &b.session, |orders| orders.assignments.len() == 4).await;
    assert!(orders.assignments.iter().all(|at| at.epoch == 2));
    host.groups.delete("g").await.expect("deleted");
    assert!(matches!(host.groups.view("g").await, Err(Error::UnknownGroup(_))));
    assert_eq!(host.store.list("groups/").await.expect("listed"), []);
}

#[tokio::test]
async fn a_watch_tells_changes_and_its_end_frees_the_member() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open(folder.path()).await;
    host.store.create_topic("t", 2).await.expect("made");
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    let mut watching = host.groups.watch("g", "a", &a.session).await.expect("live");
    let mut orders = watching.next(true).await.expect("the present ones").orders;
    while orders.assignments.len() < 2 {
        orders = watching.next(false).await.expect("a change").orders;
    }
    assert!(host.groups.watch("g", "a", "wrong").await.is_err());
    drop(watching);
    let begun = Instant::now();
    while !host.groups.view("g").await.expect("there").members.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the member stays");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn only_the_end_of_the_last_watch_loses_a_member() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open(folder.path()).await;
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    let first = host.groups.watch("g", "a", &a.session).await.expect("live");
    let second = host.groups.watch("g", "a", &a.session).await.expect("live");
    drop(first);
    // The group takes its commands in order: by now it knows.
    assert_eq!(host.groups.view("g").await.expect("there").members.len(), 1);
    drop(second);
    assert_eq!(host.groups.view("g").await.expect("there").members.len(), 0);
    // A host that stops loses nobody.
    let (b, _) = host.groups.join("g", join("b")).await.expect("joins");
    let mut watching = host.groups.watch("g", "b", &b.session).await.expect("live");
    host.groups.stop().await;
    while watching.next(false).await.is_some() {}
    assert!(matches!(host.groups.view("g").await, Err(Error::Stopping)));
    let Host { store, groups } = host;
    drop(groups);
    store.close().await;
    drop(store);
    assert_eq!(open(folder.path()).await.groups.view("g").await.expect("it is back").members.len(), 1);
}

#[tokio::test]
async fn topics_that_come_later_or_grow_are_claimed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open(folder.path()).await;
    let patch =
        SpecPatch { gather: Some(Duration::ZERO), handover: Some(Handover::Steal), ..SpecPatch::default() };
    host.groups.configure("g", patch).await.expect("configured");
    let (a, told) = host.groups.join("g", join("a")).await.expect("joins before the topic exists");
    assert_eq!(told.orders.assignments, []);
    host.store.create_topic("t", 1).await.expect("made");
    host.groups.topic_changed("t").await;
    until(&host, "a", &a.session, |orders| orders.assignments.len() == 1).await;
    host.store.grow_topic("t", 3).await.expect("grown");
    host.groups.topic_changed("t").await;
    until(&host, "a", &a.session, |orders| orders.assignments.len() == 3).await;
    host.store.delete_topic("t").await.expect("deleted");
    host.groups.topic_changed("t").await;
    until(&host, "a", &a.session, |orders| orders.assignments.is_empty()).await;
}

#[tokio::test]
async fn bad_names_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open(folder.path()).await;
    for name in ["", "a/b", "a\nb", &"x".repeat(257)] {
        assert!(matches!(
            host.groups.join(name, join("a")).await,
            Err(Error::Invalid { field: "group", .. })
        ));
    }
    assert!(matches!(host.groups.view("nobody").await, Err(Error::UnknownGroup(_))));
}

/// Crashes instead of planning.
struct Crashing;

impl Plans for Crashing {
    fn plan(&self, _: &str, _: &Wish, _: &Cycle) -> Planned {
        panic!("a test's planner crashes");
    }

    fn version(&self, _: &str, _: &Wish) -> Result<Arc<Identity>, String> {
        panic!("a test's planner crashes");
    }
}

#[tokio::test]
async fn a_planner_that_crashes_is_a_policy_that_failed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open_with(folder.path(), Crashing, || 7).await;
    host.store.create_topic("t", 2).await.expect("made");
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    until(&host, "a", &a.session, |orders| orders.assignments.len() == 2).await;
    host.groups.policies_changed().await;
    let view = host.groups.view("g").await.expect("the group lives");
    let kinds: Vec<_> = view.warnings.iter().map(|warning| warning.kind).collect();
    assert_eq!(kinds, [WarningKind::Policy], "{:?}", view.warnings);
    let counts = host.groups.counts().await;
    assert!(counts[0].1.warnings.contains(&WarningKind::Policy), "{counts:?}");
}

#[tokio::test]
async fn a_group_whose_task_crashed_comes_back_from_the_store() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let is_bad = Arc::new(AtomicBool::new(false));
    let numbers = std::sync::atomic::AtomicU64::new(1);
    let crashes = is_bad.clone();
    // The group's own task draws the session of a member that joins.
    let entropy = move || {
        assert!(!crashes.swap(false, Ordering::AcqRel), "a test's chance crashes");
        numbers.fetch_add(1, Ordering::Relaxed).into()
    };
    let host = open_with(folder.path(), Native, entropy).await;
    host.store.create_topic("t", 2).await.expect("made");
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    let before = until(&host, "a", &a.session, |orders| orders.assignments.len() == 2).await;

    is_bad.store(true, Ordering::Release);
    let crashed = host.groups.join("g", join("b")).await.expect_err("the task crashes");
    assert!(matches!(crashed, Error::Restarted), "{crashed}");
    let after = until(&host, "a", &a.session, |orders| orders.assignments.len() == 2).await;
    assert_eq!(after.assignments, before.assignments, "same owner, same epochs");

    // The next join finds the group, not an empty one.
    is_bad.store(true, Ordering::Release);
    host.groups.join("g", join("b")).await.expect_err("the task crashes");
    host.groups.join("g", join("b")).await.expect("joins");
    let members = host.groups.view("g").await.expect("there").members;
    assert_eq!(members.iter().map(|member| member.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);

    // One that was deleted does not come back.
    host.groups.delete("g").await.expect("deleted");
    assert!(matches!(host.groups.view("g").await, Err(Error::UnknownGroup(_))));
}

/// Closes everything, so that the folder can be opened again.
async fn close(host: Host) {
    let Host { store, groups } = host;
    groups.stop().await;
    drop(groups);
    store.close().await;
}

/// A topic that was deleted and made again with as many partitions while nobody could tell the groups.
#[tokio::test]
async fn a_topic_made_again_over_a_crash_is_another_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open(folder.path()).await;
    for topic in ["t", "kept"] {
        host.store.create_topic(topic, 2).await.expect("made");
    }
    let patch = SpecPatch { gather: Some(Duration::ZERO), ..SpecPatch::default() };
    host.groups.configure("g", patch).await.expect("configured");
    let both = Join { topics: vec!["kept".to_owned(), "t".to_owned()], ..join("a") };
    let (a, _) = host.groups.join("g", both).await.expect("joins");
    let before = until(&host, "a", &a.session, |orders| orders.assignments.len() == 4).await;
    for at in &before.assignments {
        let Place { topic, partition } = &at.place;
        let records = vec![bytes::Bytes::from_static(b"{}"); 5];
        host.store.append(topic, *partition, Timestamp(1), records).await.expect("stored");
        let checkpoint = Checkpoint {
            member: "a".to_owned(),
            session: a.session.clone(),
            place: at.place.clone(),
            epoch: at.epoch,
            offset: 5,
            rewind: false,
        };
        host.groups.checkpoint("g", checkpoint).await.expect("stored");
    }
    host.groups.stop().await;
    host.store.delete_topic("t").await.expect("deleted");
    host.store.create_topic("t", 2).await.expect("made again");
    close(host).await;

    let host = open(folder.path()).await;
    let view = host.groups.view("g").await.expect("it is back");
    for at in &view.partitions {
        let of_before = before.assignments.iter().find(|was| was.place == at.place).expect("one of them");
        let is_kept = at.place.topic == "kept";
        assert_eq!(at.checkpoint, is_kept.then_some(5), "{at:?}");
        if is_kept {
            assert_eq!((at.owner.as_deref(), at.epoch), (Some("a"), of_before.epoch), "{at:?}");
        } else {
            assert!(of_before.epoch < at.epoch, "epochs only rise: {at:?}");
        }
    }
    let after = until(&host, "a", &a.session, |orders| orders.assignments.len() == 4).await;
    assert!(after.revision > before.revision);
    // Once is enough: the next restart changes nothing.
    let settled = host.groups.view("g").await.expect("there").partitions;
    close(host).await;
    let host = open(folder.path()).await;
    assert_eq!(host.groups.view("g").await.expect("it is back").partitions, settled);
}

/// Records of hosts that did not know incarnations.
#[tokio::test]
async fn claims_of_an_earlier_host_are_taken_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let host = open(folder.path()).await;
    host.store.create_topic("t", 2).await.expect("made");
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    until(&host, "a", &a.session, |orders| orders.assignments.len() == 2).await;
    let settled = host.groups.view("g").await.expect("there").partitions;
    host.groups.stop().await;
    let change = async |key: &str, field: &str| {
        let found = host.store.get(key).await.expect("readable").expect("there");
        let mut record: serde_json::Value = serde_json::from_slice(&found.value).expect("JSON");
        record.as_object_mut().expect("an object").remove(field).expect("hosts of today write it");
        let update = fulcrum_store::Update::Put(records::encode(&record));
        let expected = fulcrum_store::Expected::At(found.revision);
        host.store.compare_and_swap(key, expected, update).await.expect("unchanged");
    };
    change("groups/g/claims/t/0", "incarnation").await;
    change("groups/g/claims/t/1", "incarnation").await;
    change("groups/g/group", "epoch_floor").await;
    close(host).await;

    let host = open(folder.path()).await;
    assert_eq!(host.groups.view("g").await.expect("it is back").partitions, settled);
    // From now on it is known which topic they are of.
    host.groups.stop().await;
    host.store.delete_topic("t").await.expect("deleted");
    host.store.create_topic("t", 2).await.expect("made again");
    close(host).await;
    let host = open(folder.path()).await;
    let epochs = host.groups.view("g").await.expect("it is back").partitions;
    assert!(epochs.iter().all(|at| at.epoch > 1 && at.checkpoint.is_none()), "{epochs:?}");
}

/// Plans natively as the version it is told.
#[derive(Clone, Default)]
struct Versioned(Arc<Mutex<Option<Arc<Identity>>>>);

impl Plans for Versioned {
    fn plan(&self, _: &str, _: &Wish, cycle: &Cycle) -> Planned {
        planned(cycle, self.0.lock().clone())
    }

    fn version(&self, _: &str, _: &Wish) -> Result<Arc<Identity>, String> {
        self.0.lock().clone().ok_or_else(|| "there is none".to_owned())
    }
}

#[tokio::test]
async fn every_change_of_the_version_that_plans_is_counted_and_planned_with() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let versions = Versioned::default();
    let host = open_with(folder.path(), versions.clone(), || 7).await;
    host.store.create_topic("t", 2).await.expect("made");
    let patch = SpecPatch {
        gather: Some(Duration::ZERO),
        interval: Some(Duration::from_secs(3600)),
        ownership_expiry: Some(Duration::from_secs(7200)),
        ..SpecPatch::default()
    };
    host.groups.configure("g", patch).await.expect("configured");
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    until(&host, "a", &a.session, |orders| orders.assignments.len() == 2).await;
    let version = |digest: &str, config: &str| {
        Some(Arc::new(Identity {
            name: "p".to_owned(),
            digest: digest.to_owned(),
            config: config.to_owned(),
        }))
    };
    // The first plan found no policy that can be used: that one comes is a change.
    for (version, reason, changes) in [
        (version("1", "{}"), "policy", 1),
        (version("2", "{}"), "policy", 2),
        (version("2", "{\"a\":1}"), "config", 3),
    ] {
        versions.0.lock().clone_from(&version);
        host.groups.policies_changed().await;
        let begun = Instant::now();
        loop {
            let cycle = host.groups.view("g").await.expect("there").last_cycle.expect("one ran");
            if cycle.by == version {
                assert_eq!((cycle.reason.word(), host.groups.version_changes()), (reason, changes));
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it never plans with {version:?}");
            tokio::task::yield_now().await;
        }
    }
    // Neither the same version nor none is a change.
    host.groups.policies_changed().await;
    *versions.0.lock() = None;
    host.groups.policies_changed().await;
    host.groups.rebalance("g").await.expect("asked");
    let begun = Instant::now();
    while host.groups.view("g").await.expect("there").last_cycle.expect("one ran").by.is_some() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no cycle runs");
        tokio::task::yield_now().await;
    }
    assert_eq!(host.groups.version_changes(), 3);
}

/// Has trouble with a policy until it is well again.
struct Moody(Arc<std::sync::atomic::AtomicBool>);

impl Plans for Moody {
    fn plan(&self, _: &str, _: &Wish, cycle: &Cycle) -> Planned {
        let is_well = self.0.load(std::sync::atomic::Ordering::Relaxed);
        Planned { problem: (!is_well).then(|| "it is not well".to_owned()), ..planned(cycle, None) }
    }

    fn version(&self, _: &str, _: &Wish) -> Result<Arc<Identity>, String> {
        Err("native".to_owned())
    }
}

#[tokio::test]
async fn a_warning_about_plans_ends_with_the_next_good_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let is_well = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let host = open_with(folder.path(), Moody(is_well.clone()), || 7).await;
    host.store.create_topic("t", 1).await.expect("made");
    let interval = Some(Duration::from_millis(20));
    let patch =
        SpecPatch { gather: Some(Duration::ZERO), interval, fast_interval: interval, ..SpecPatch::default() };
    host.groups.configure("g", patch).await.expect("configured");
    let (a, _) = host.groups.join("g", join("a")).await.expect("joins");
    until(&host, "a", &a.session, |orders| orders.assignments.len() == 1).await;
    let warns = async || host.groups.view("g").await.expect("it is there").warnings.len();
    assert_eq!(warns().await, 1);
    is_well.store(true, std::sync::atomic::Ordering::Relaxed);
    // Nothing moves any more: the cycles to come are quiet.
    let begun = Instant::now();
    while warns().await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the warning stays for ever");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
