//! A reload task on a real folder, with three instances and an embedded policy `base` that chooses the first.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fulcrum_core::scoring::{Loads, Request, ScoringSnapshot};
use fulcrum_policy::manager::{self, BindError, Embedded, Settings};
use fulcrum_policy::probation::Budget;
use fulcrum_policy::seat::{Decision, ScoringHost, ScoringSeat};
use fulcrum_policy::status::{Bindings, Rebind, Status};
use fulcrum_policy::{Manager, Runtime};
use parking_lot::Mutex;

use crate::support::*;

pub(crate) struct Host {
    pub(crate) seat: Mutex<ScoringSeat>,
    pub(crate) snapshot: ScoringSnapshot,
    /// How often a snapshot was asked for: once for each proof, and once for each version that takes the seat.
    pub(crate) snapshots: AtomicUsize,
    /// The same, those that wait at the gate included.
    pub(crate) asked: AtomicUsize,
    /// While a test holds it, nobody gets a snapshot.
    pub(crate) gate: Mutex<()>,
    /// While it is set, whoever asks for a snapshot crashes.
    pub(crate) crashes: AtomicBool,
}

impl ScoringHost for Host {
    fn snapshot(&self) -> ScoringSnapshot {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _open = self.gate.lock();
        assert!(!self.crashes.load(Ordering::Relaxed), "this crash is part of the test");
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        self.snapshot.clone()
    }

    fn with_seat(&self, use_seat: &mut dyn FnMut(&mut ScoringSeat)) {
        use_seat(&mut self.seat.lock());
    }
}

pub(crate) struct Fixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) host: Arc<Host>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) manager: Arc<Manager>,
}

/// What a fixture runs on; by default as little as there can be.
pub(crate) struct Setup {
    pub(crate) runtime: Arc<Runtime>,
    /// Of the three instances.
    pub(crate) loads: Loads,
    /// Policies compiled into the host beside `base`.
    pub(crate) embedded: Vec<(&'static str, Vec<u8>)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { runtime: runtime(), loads: Loads::unknown(3), embedded: Vec::new() }
    }
}

impl Fixture {
    pub(crate) fn start() -> Self {
        Self::restart(tempfile::tempdir().unwrap())
    }

    pub(crate) fn restart(folder: tempfile::TempDir) -> Self {
        Self::restart_with(folder, |_| {})
    }

    /// Starts a manager on folders that are there already, with settings changed.
    pub(crate) fn restart_with(folder: tempfile::TempDir, change: impl FnOnce(&mut Settings)) -> Self {
        Self::set_up(folder, Setup::default(), change)
    }

    pub(crate) fn set_up(
        folder: tempfile::TempDir,
        setup: Setup,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let Setup { runtime, loads, embedded } = setup;
        let (alarm, inbox) = manager::inbox();
        let snapshot = ScoringSnapshot { roster: roster(3), loads, roster_revision: 0 };
        let (snapshots, asked, gate) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(()));
        let crashes = AtomicBool::new(false);
        let seat = Mutex::new(ScoringSeat::new(alarm));
        let host = Arc::new(Host { seat, snapshot, snapshots, asked, gate, crashes });
        let clock = Arc::new(TestClock::default());
        let mut settings = Settings {
            folder: folder.path().join("policies"),
            keep_dir: folder.path().join("keep"),
            scoring: "base".to_owned(),
            claiming: "claims".to_owned(),
            default_scoring: "base".to_owned(),
            poll: Duration::from_secs(60),
            settle: Duration::from_millis(50),
            keep_versions: 5,
            promote: Budget { failures_max: 5, decisions: 1000, renews: false },
            trusted: None,
        };
        change(&mut settings);
        let base = [("base", guest(""))].into_iter();
        let embedded = base.chain(embedded).map(|(name, wasm)| Embedded { name, wasm: Vec::leak(wasm) });
        let manager =
            Manager::start(settings, runtime, embedded.collect(), host.clone(), clock.clone(), inbox);
        let manager = manager.unwrap();
        Self { folder, host, clock, manager }
    }

    pub(crate) fn stop(self) -> tempfile::TempDir {
        self.manager.stop();
        self.folder
    }

    pub(crate) fn path(&self, file: &str) -> std::path::PathBuf {
        self.folder.path().join("policies").join(file)
    }

    /// Drops a file as `mv` does, and waits until the task has dealt with it.
    pub(crate) fn drop_file(&self, file: &str, bytes: &[u8]) {
        let beside = self.path(&format!(".{file}"));
        std::fs::write(&beside, bytes).unwrap();
        std::fs::rename(&beside, self.path(file)).unwrap();
        self.settle();
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.path(file)).unwrap();
        self.settle();
    }

    /// Events may still be on their way: reloads until nothing waits.
    pub(crate) fn settle(&self) {
        let begun = Instant::now();
        while !self.manager.reload().waiting.is_empty() {
            self.clock.advance(Duration::from_millis(10));
            assert!(begun.elapsed() < Duration::from_secs(20), "files never settle");
        }
    }

    pub(crate) fn decide(&self, client_id: &str) -> Decision {
        let view = view(&self.host.snapshot.roster, &self.host.snapshot.loads);
        let request = Request { client_id, ..Request::default() };
        self.host.seat.lock().decide(view, &request, &*self.clock).unwrap()
    }

    pub(crate) fn row(&self) -> usize {
        self.decide("").recommendation.row
    }

    pub(crate) fn status(&self, name: &str) -> Status {
        let statuses = self.manager.statuses();
        statuses.into_iter().find(|status| status.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    pub(crate) fn bind(&self, scoring: &str) -> Result<Bindings, BindError> {
        self.manager.bind(Rebind { scoring: Some(scoring.to_owned()), ..Rebind::default() })
    }

    pub(crate) fn problem(&self, name: &str) -> Option<String> {
        self.status(name).problem.map(|problem| problem.code)
    }
}
