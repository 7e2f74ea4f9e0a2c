//! What every backend must do: cases to run one by one, and a random walk against a tiny model.
//!
//! A backend's test implements [`Subject`], calls [`check`] and [`walk`], and expects no violation. The suite proves
//! itself on deliberately broken backends (`tests/contract.rs`). It needs tokio's multi-threaded runtime.

mod cluster;
mod log;
mod model;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use self::model::{Step, steps, walk};
use crate::{ClusterStore, Error, EventLog};

/// Longest time of one case.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that something due at once may take.
const PROMPT: Duration = Duration::from_secs(5);

/// One place where a backend keeps data, empty at first.
pub trait Subject: Send + Sync + 'static {
    /// The backend.
    type Store: ClusterStore + EventLog + 'static;

    /// Opens the store with all that earlier ones of this subject were told to keep.
    fn open(&self) -> impl Future<Output = Arc<Self::Store>> + Send;

    /// Closes the store, so that it can be opened again.
    fn close(&self, store: Arc<Self::Store>) -> impl Future<Output = ()> + Send;

    /// Tells whether a watch may leave out values that newer ones of the same key have overtaken.
    fn may_coalesce(&self) -> bool {
        false
    }
}

/// What a backend did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Violation {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self(format!("{}: unexpected error: {error}", std::panic::Location::caller()))
    }
}

/// Outcome of one case.
pub type Verdict = Result<(), Violation>;

/// One case of the suite.
pub struct Case<S: Subject> {
    /// Its name.
    pub name: &'static str,
    run: fn(Arc<S>) -> Run,
}

type Run = Pin<Box<dyn Future<Output = Verdict> + Send>>;

impl<S: Subject> Case<S> {
    /// Runs it on an empty subject, for a minute at most.
    ///
    /// # Errors
    /// The violation it found.
    pub async fn run(&self, subject: S) -> Verdict {
        let late = |_| Err(Violation(format!("not done after {CASE_TIMEOUT:?}")));
        tokio::time::timeout(CASE_TIMEOUT, (self.run)(Arc::new(subject))).await.unwrap_or_else(late)
    }
}

/// Returns every case.
#[must_use]
pub fn cases<S: Subject>() -> Vec<Case<S>> {
    macro_rules! table {
        ($($room:ident::$case:ident),* $(,)?) => {
            vec![$(Case { name: stringify!($case), run: |subject| Box::pin($room::$case(subject)) }),*]
        };
    }
    table![
        cluster::swaps_follow_the_table,
        cluster::revisions_only_grow,
        cluster::lists_are_complete_and_in_order,
        cluster::odd_keys_and_values_come_back,
        cluster::impossible_writes_are_refused,
        cluster::exactly_one_wins_each_revision,
        cluster::a_watch_sees_every_change_in_order,
        cluster::a_watch_that_lags_is_told,
        cluster::a_watch_ends_with_the_store,
        cluster::keys_survive_a_restart,
        log::topics_are_made_grown_and_deleted,
        log::records_come_back_in_order,
        log::a_fetch_keeps_its_limits,
        log::appends_are_whole_and_unmixed,
        log::a_trim_is_for_ever,
        log::positions_are_found_by_time,
        log::positions_are_found_by_size,
        log::a_wait_ends_on_arrival,
        log::what_is_not_there_is_named,
        log::impossible_appends_are_refused,
        log::records_survive_a_restart,
        log::partitions_are_described_together,
    ]
}

/// Runs every case on a fresh subject each; returns the violations by the name of their case.
pub async fn check<S: Subject>(fresh: impl Fn() -> S) -> Vec<(&'static str, Violation)> {
    let mut violations = Vec::new();
    for case in cases() {
        if let Err(violation) = case.run(fresh()).await {
            violations.push((case.name, violation));
        }
    }
    violations
}

/// Returns a violation unless the condition holds.
macro_rules! hold {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            let text = format!($($text)+);
            return Err($crate::contract::Violation(format!("{}:{}: {text}", file!(), line!())));
        }
    };
}

/// Returns a violation unless both are equal.
macro_rules! same {
    ($left:expr, $right:expr, $($text:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                $crate::contract::hold!(left == right, "{}: found {left:?}, wanted {right:?}", format!($($text)+));
            }
        }
    };
}

/// Returns a violation unless it fails with that code.
macro_rules! refused {
    ($call:expr, $code:literal) => {{
        let code = $call.await.map_err(|error| error.code()).map(|_| ());
        $crate::contract::hold!(code == Err($code), "{} wanted {}, was {code:?}", stringify!($call), $code);
    }};
}

use {hold, refused, same};

/// Waits for what is due at once.
async fn prompt<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Violation> {
    let late = |_| Violation(format!("{what}: nothing after {PROMPT:?}"));
    tokio::time::timeout(PROMPT, future).await.map_err(late)
}

/// Closes the store and opens it again.
async fn restart<S: Subject>(subject: &S, store: Arc<S::Store>) -> Arc<S::Store> {
    subject.close(store).await;
    subject.open().await
}

/// Awaits tasks; the first violation, or a panic, ends it.
async fn join<T: 'static>(
    mut tasks: tokio::task::JoinSet<Result<T, Violation>>,
) -> Result<Vec<T>, Violation> {
    let mut results = Vec::new();
    while let Some(result) = tasks.join_next().await {
        results.push(result.map_err(|error| Violation(error.to_string()))??);
    }
    Ok(results)
}
