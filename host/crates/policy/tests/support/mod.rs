//! What the tests of this crate share: guests made of text, a clock, small rosters.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; a test may panic")]

#[path = "../../src/testing.rs"]
pub(crate) mod testing;
pub(crate) mod wasi;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use fulcrum_core::scoring::{Instance, Loads, Roster};
use fulcrum_core::time::{Clock, Timestamp};
use fulcrum_policy::seat::{ScoringFactory as _, ScoringPolicy, View};
use fulcrum_policy::{Limits, Loaded, Runtime};

/// One engine for all tests of a file.
pub(crate) fn runtime() -> Arc<Runtime> {
    static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
        let limits = Limits { load_deadline: Duration::from_secs(2), ..Limits::default() };
        Runtime::new(limits).expect("the engine starts")
    });
    RUNTIME.clone()
}

/// The same with deadlines that no busy machine misses, for guests that are only slow.
#[allow(dead_code, reason = "not every test binary has one")]
pub(crate) fn patient_runtime() -> Arc<Runtime> {
    static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
        let limits = Limits { scoring_deadline: Duration::from_secs(2), ..Limits::default() };
        Runtime::new(limits).expect("the engine starts")
    });
    RUNTIME.clone()
}

/// The base guest with the blocks that `sin` marks replaced, as a component.
pub(crate) fn guest(sin: &str) -> Vec<u8> {
    fulcrum_pack::from_wat(&guest_text(sin), "scoring-policy").expect("the guest is well formed")
}

/// The same as text.
pub(crate) fn guest_text(sin: &str) -> String {
    let mut text = include_str!("../guests/base.wat").to_owned();
    for block in ["import", "describe", "configure", "roster", "refresh", "recommend", "explain"] {
        let (open, close) = (format!(";; <{block}>"), format!(";; </{block}>"));
        let body = |text: &str| Some((text.find(&open)? + open.len(), text.find(&close)?));
        if let (Some((from, to)), Some((into, until))) = (body(sin), body(&text)) {
            text.replace_range(into..until, &sin[from..to]);
        }
    }
    text
}

/// A clock that moves only when told, except for `nanos`, which is real.
pub(crate) struct TestClock {
    now: AtomicU64,
    begun: Instant,
}

impl Default for TestClock {
    fn default() -> Self {
        Self { now: AtomicU64::new(1_700_000_000_000), begun: Instant::now() }
    }
}

impl TestClock {
    pub(crate) fn advance(&self, span: Duration) {
        self.now.fetch_add(u64::try_from(span.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }
}

pub(crate) fn roster(len: usize) -> Arc<Roster> {
    let row = |row| Instance {
        id: Arc::from(format!("i{row}")),
        zone: String::new(),
        capacity: 1.0,
        labels: Vec::new(),
        age_ms: 0,
    };
    Arc::new(Roster::new((0..len).map(row).collect()).unwrap())
}

pub(crate) fn view<'a>(roster: &'a Arc<Roster>, loads: &'a Loads) -> View<'a> {
    View { roster, loads, roster_revision: 1, loads_revision: 1 }
}

/// Makes an instance as the host does in service.
pub(crate) trait MakeForTests {
    fn make_scoring_for_tests(&self) -> Box<dyn ScoringPolicy>;
}

impl MakeForTests for Loaded {
    fn make_scoring_for_tests(&self) -> Box<dyn ScoringPolicy> {
        self.make().unwrap()
    }
}
