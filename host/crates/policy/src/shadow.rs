//! Shadows: a policy version answers the same live inputs as the one in service, off the hot path, to be compared.
//!
//! Invariants: a shadow changes no live decision and holds none up: what its thread cannot keep up with is dropped and
//! counted; all it keeps is bounded (what waits in number and bytes; groups, versions and examples in number); a
//! candidate that keeps failing ends its shadow; a shadow keeps the version it began with, whatever becomes of the file;
//! a version is never compared with itself.

mod book;
mod claiming;
mod queue;
mod report;
mod run;
mod scoring;
mod spread;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};

use fulcrum_core::time::Clock;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use self::book::Book;
use self::queue::Queue;
pub use self::report::{
    After, Asked, ClaimExample, Compared, Elsewhere, Explained, GroupReport, Percentiles, PlanSide, Report,
    ScoringExample, ScoringReport, ScoringSide, Sides, State, Summary, Version,
};
use self::run::Runner;
use crate::artifact::Loaded;
use crate::contract::shape::Roles;
use crate::manager::Manager;
use crate::seat::{Identity, ScoringFactory as _};
use crate::status::Status;
use crate::tap::{Claimed, Observer, Scored};

/// Shadows at the same time.
pub const SHADOWS_MAX: usize = 4;
/// Groups a shadow can be asked for by name.
pub const GROUPS_MAX: usize = 64;

/// Scoring decisions that wait for a shadow.
const SCORED_LEN: usize = 1024;
/// What they may hold together, in bytes.
const SCORED_BYTES: usize = 32 << 20;
/// Plans that wait for a shadow.
const CLAIMED_LEN: usize = 64;
/// What they may hold together, in bytes.
const CLAIMED_BYTES: usize = 32 << 20;

/// What a caller wants of a shadow. Without any role: every role the candidate offers, or claiming alone if groups are
/// named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether it answers the scoring question.
    pub scoring: Option<bool>,
    /// Whether it plans claims.
    pub claiming: Option<bool>,
    /// For which groups; empty is all of them.
    pub groups: BTreeSet<String>,
}

/// What a shadow answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// Whether it answers the scoring question.
    pub scoring: bool,
    /// Whether it plans claims.
    pub claiming: bool,
    /// For which groups; empty is all of them.
    pub groups: BTreeSet<String>,
}

impl From<Scope> for Wanted {
    fn from(scope: Scope) -> Self {
        Self { scoring: Some(scope.scoring), claiming: Some(scope.claiming), groups: scope.groups }
    }
}

impl Scope {
    fn of(name: &str, wanted: &Wanted, roles: Roles) -> Result<Self, Error> {
        // A role that is asked for by name leaves the other one out; so do groups.
        let is_plain = wanted.scoring != Some(true) && wanted.claiming != Some(true);
        let scoring = wanted.scoring.unwrap_or(is_plain && wanted.groups.is_empty() && roles.scoring);
        let claiming = wanted.claiming.unwrap_or(if wanted.groups.is_empty() {
            is_plain && roles.claiming
        } else {
            true
        });
        let wrong = |role| Err(Error::WrongRole { name: name.to_owned(), role });
        match (scoring, claiming) {
            (true, _) if !roles.scoring => wrong("scoring"),
            (_, true) if !roles.claiming => wrong("claiming"),
            (false, false) => Err(Error::Nothing),
            (_, false) if !wanted.groups.is_empty() => Err(Error::Groups),
            _ if wanted.groups.len() > GROUPS_MAX => Err(Error::TooManyGroups { max: GROUPS_MAX }),
            _ => Ok(Self { scoring, claiming, groups: wanted.groups.clone() }),
        }
    }

    fn plans_for(&self, group: &str) -> bool {
        self.claiming && (self.groups.is_empty() || self.groups.contains(group))
    }
}

/// A call about a shadow was refused; nothing changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("there is no policy `{0}`")]
    Unknown(String),
    #[error("the policy `{name}` cannot be used: {message}")]
    Unusable { name: String, message: String },
    #[error("the policy `{name}` does not offer the {role} role")]
    WrongRole { name: String, role: &'static str },
    #[error("a shadow answers at least one of scoring and claiming")]
    Nothing,
    #[error("groups are named, but the shadow is not asked for claiming")]
    Groups,
    #[error("a shadow can be asked for at most {max} groups by name; without any it plans for all")]
    TooManyGroups { max: usize },
    #[error(
        "this very version of `{0}` serves all of that: push or drop another one, or name groups that it does not plan for"
    )]
    Serving(String),
    #[error("at most {max} shadows run at once, and there are those of {running}; end one first")]
    TooMany { max: usize, running: String },
    #[error("the policy `{0}` has no shadow")]
    NotRunning(String),
    #[error("cannot start the thread of a shadow")]
    Thread(#[source] std::io::Error),
}

/// What was compared for one policy name since the host started, all its shadows together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Both answered the same.
    pub same: u64,
    /// They answered differently.
    pub different: u64,
    /// The candidate gave no usable answer.
    pub failed: u64,
    /// Not compared: the shadow did not keep up.
    pub dropped: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.same += other.same;
        self.different += other.different;
        self.failed += other.failed;
        self.dropped += other.dropped;
    }
}

/// The shadows of a host. Dropping it ends them.
pub struct Shadows {
    manager: Arc<Manager>,
    clock: Arc<dyn Clock>,
    // One lock around every change of who observes: the manager's list and the seat's must not part.
    cast: Mutex<Cast>,
}

#[derive(Default)]
struct Cast {
    shadows: BTreeMap<String, Running>,
    /// Those that are off the stage, until their threads have ended.
    ending: Vec<Arc<Shadow>>,
    /// What shadows that are gone had counted.
    past: BTreeMap<String, Counts>,
}

struct Running {
    shadow: Arc<Shadow>,
    thread: JoinHandle<()>,
}

impl Shadows {
    /// Makes an empty cast over the manager's policies.
    #[must_use]
    pub fn new(manager: Arc<Manager>, clock: Arc<dyn Clock>) -> Self {
        Self { manager, clock, cast: Mutex::default() }
    }

    /// Begins a shadow of the candidate of a name, or begins it anew with empty counts. Blocks while an embedded policy
    /// is loaded for the first time, and until a former shadow of the name has ended.
    ///
    /// A version that serves all that is asked is refused as far as the bindings tell; groups that are named are not
    /// looked at, they may have a policy of their own.
    pub fn start(&self, name: &str, wanted: &Wanted) -> Result<Report, Error> {
        let candidate = self.candidate(name)?;
        let scope = Scope::of(name, wanted, candidate.artifact().roles())?;
        if self.serves(name, candidate.identity(), &scope) {
            return Err(Error::Serving(name.to_owned()));
        }
        let (shadow, inbox) = Shadow::new(&candidate, scope, self.clock.now().0);
        let runner = Runner::new(shadow.clone(), candidate, self.clock.clone(), inbox);
        let mut ended = Vec::new();
        {
            let mut cast = self.cast.lock();
            if !cast.shadows.contains_key(name) && cast.shadows.len() >= SHADOWS_MAX {
                let is_over = |(name, running): (&String, &Running)| {
                    (running.shadow.state() != State::Running).then(|| name.clone())
                };
                let Some(over) = cast.shadows.iter().find_map(is_over) else {
                    let running = cast.shadows.keys().cloned().collect::<Vec<_>>().join(", ");
                    return Err(Error::TooMany { max: SHADOWS_MAX, running });
                };
                ended.extend(self.end(&mut cast, &over));
            }
            let thread = runner.start().map_err(Error::Thread)?;
            *shadow.thread.lock() = Some(thread.thread().clone());
            ended.extend(self.end(&mut cast, name));
            self.manager.observe(shadow.clone());
            cast.shadows.insert(name.to_owned(), Running { shadow: shadow.clone(), thread });
        }
        ended.into_iter().for_each(|ended| self.wait(ended));
        let identity = shadow.candidate.clone();
        tracing::info!(
            policy.name = identity.name,
            policy.digest = identity.digest,
            scoring = shadow.scope.scoring,
            claiming = shadow.scope.claiming,
            "shadow has begun"
        );
        Ok(self.report_of(&shadow))
    }

    /// Returns what a shadow found up to now.
    pub fn report(&self, name: &str) -> Result<Report, Error> {
        let shadow = self.cast.lock().shadows.get(name).map(|running| running.shadow.clone());
        shadow.map(|shadow| self.report_of(&shadow)).ok_or_else(|| Error::NotRunning(name.to_owned()))
    }

    fn report_of(&self, shadow: &Shadow) -> Report {
        shadow.report(is_current(&self.manager.statuses(), &shadow.candidate))
    }

    /// Takes note of a promotion: a shadow of the very version that serves all of its scope now ends, since it would be
    /// compared with itself only; where another policy serves a part, it goes on with that. Its report stays until it is ended
    /// or begun anew, or another shadow needs the room.
    pub fn promoted(&self, name: &str) {
        let Some(shadow) = self.cast.lock().shadows.get(name).map(|running| running.shadow.clone()) else {
            return;
        };
        let scope = &shadow.scope;
        let plans_for = |group: &String| self.manager.claiming_of(group) == name;
        let serves = match scope.claiming && !scope.groups.is_empty() {
            true => {
                let scoring = Scope { claiming: false, ..scope.clone() };
                scope.groups.iter().all(plans_for) && self.serves(name, &shadow.candidate, &scoring)
            }
            false => self.serves(name, &shadow.candidate, scope),
        };
        if !serves || !shadow.is_running() {
            return;
        }
        let _cast = self.cast.lock();
        let observer: Arc<dyn Observer> = shadow.clone();
        self.manager.unobserve(&observer);
        shadow.end(State::Ended, Some("this version was promoted".to_owned()));
        tracing::info!(
            policy.name = name,
            policy.digest = shadow.candidate.digest,
            "shadow has ended: its version was promoted"
        );
    }

    /// Ends a shadow and returns its last report. Blocks until its thread has ended, one call into the candidate at most;
    /// what waits by then counts as dropped.
    pub fn stop(&self, name: &str) -> Result<Report, Error> {
        let ended = self.end(&mut self.cast.lock(), name);
        let Some(ended) = ended else { return Err(Error::NotRunning(name.to_owned())) };
        let shadow = ended.shadow.clone();
        self.wait(ended);
        let report = self.report_of(&shadow);
        tracing::info!(policy.name = name, policy.digest = report.digest, "shadow has ended");
        Ok(report)
    }

    /// Returns which shadows there are, ordered by name; those that ended themselves are there until they are ended.
    #[must_use]
    pub fn list(&self) -> Vec<Summary> {
        let statuses = self.manager.statuses();
        let cast = self.cast.lock();
        let summary = |(name, running): (&String, &Running)| {
            let shadow = &running.shadow;
            Summary {
                name: name.clone(),
                digest: shadow.candidate.digest.clone(),
                config: configuration(&shadow.candidate),
                is_current: is_current(&statuses, &shadow.candidate),
                state: shadow.state(),
                since_ms: shadow.since_ms,
                scope: shadow.scope.clone(),
            }
        };
        cast.shadows.iter().map(summary).collect()
    }

    /// Returns what runs, ordered by name: enough to start it again with [`Self::start`].
    #[must_use]
    pub fn running(&self) -> Vec<(String, Scope)> {
        let cast = self.cast.lock();
        let running = cast.shadows.iter().filter(|(_, running)| running.shadow.state() == State::Running);
        running.map(|(name, running)| (name.clone(), running.shadow.scope.clone())).collect()
    }

    /// Returns what was compared since the host started, ordered by name.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, Counts)> {
        let cast = self.cast.lock();
        let mut counts = cast.past.clone();
        let shadows = cast.shadows.values().map(|running| &running.shadow);
        for shadow in shadows.chain(&cast.ending) {
            counts.entry(shadow.candidate.name.clone()).or_default().add(shadow.counts());
        }
        counts.into_iter().collect()
    }

    /// Takes a shadow off the stage; its thread ends by itself.
    fn end(&self, cast: &mut Cast, name: &str) -> Option<Running> {
        let running = cast.shadows.remove(name)?;
        let observer: Arc<dyn Observer> = running.shadow.clone();
        self.manager.unobserve(&observer);
        running.shadow.end(State::Ended, None);
        cast.ending.push(running.shadow.clone());
        Some(running)
    }

    /// Waits for the thread of one that is off the stage; its counts are final then.
    fn wait(&self, ended: Running) {
        let Running { shadow, thread } = ended;
        let name = &shadow.candidate.name;
        if thread.join().is_err() {
            tracing::error!(policy.name = name, "the thread of a shadow crashed");
        }
        let mut cast = self.cast.lock();
        cast.ending.retain(|other| !Arc::ptr_eq(other, &shadow));
        cast.past.entry(name.clone()).or_default().add(shadow.counts());
    }

    fn candidate(&self, name: &str) -> Result<Arc<Loaded>, Error> {
        self.manager.candidate(name).map_err(|message| {
            if self.manager.statuses().iter().any(|status| status.name == name) {
                Error::Unusable { name: name.to_owned(), message }
            } else {
                Error::Unknown(name.to_owned())
            }
        })
    }

    /// Says whether the version serves everything in the scope already.
    fn serves(&self, name: &str, candidate: &Identity, scope: &Scope) -> bool {
        let is_in_use = || self.manager.policy(name).is_ok_and(|live| **live.identity() == *candidate);
        let bindings = self.manager.bindings();
        let plans_for_all =
            || bindings.claiming == name && bindings.groups.values().all(|bound| bound == name);
        (!scope.scoring || bindings.scoring == name)
            && (!scope.claiming || scope.groups.is_empty() && plans_for_all())
            && is_in_use()
    }
}

impl Drop for Shadows {
    fn drop(&mut self) {
        let mut cast = std::mem::take(self.cast.get_mut());
        let names: Vec<_> = cast.shadows.keys().cloned().collect();
        // Their threads end by themselves, within one call into a candidate.
        names.iter().for_each(|name| drop(self.end(&mut cast, name)));
    }
}

/// Says whether a version is the candidate of its name, or is in use while there is no candidate.
fn is_current(statuses: &[Status], version: &Identity) -> bool {
    let Some(status) = statuses.iter().find(|status| status.name == version.name) else { return false };
    let (digest, config) = match &status.candidate {
        Some(candidate) => (&candidate.digest, &candidate.config),
        None => (&status.digest, &status.config),
    };
    *digest == version.digest && *config == configuration(version)
}

/// Returns a version's configuration.
fn configuration(version: &Identity) -> Value {
    serde_json::from_str(&version.config).unwrap_or_default()
}

/// One shadow: what the hot path hands it, and what its thread found.
struct Shadow {
    candidate: Arc<Identity>,
    scope: Scope,
    since_ms: u64,
    state: AtomicU8,
    scored: Queue<Scored>,
    claimed: Queue<Claimed>,
    scored_dropped: AtomicU64,
    /// Decisions that were up to this very version.
    scored_itself: AtomicU64,
    /// Dropped plans by group; plans are made on threads that may wait a moment.
    claimed_dropped: Mutex<BTreeMap<String, u64>>,
    /// Address of the snapshot that was counted last into the bytes that wait: decisions in a row share one.
    snapshot: std::sync::atomic::AtomicUsize,
    book: Mutex<Book>,
    reason: Mutex<Option<String>>,
    thread: Mutex<Option<Thread>>,
}

/// The receiving ends of a shadow's queues.
struct Inbox {
    scored: queue::Receiver<Scored>,
    claimed: queue::Receiver<Claimed>,
}

impl Shadow {
    fn new(candidate: &Arc<Loaded>, scope: Scope, since_ms: u64) -> (Arc<Self>, Inbox) {
        let (scored, scored_inbox) = Queue::new(SCORED_LEN, SCORED_BYTES);
        let (claimed, claimed_inbox) = Queue::new(CLAIMED_LEN, CLAIMED_BYTES);
        let shadow = Self {
            candidate: candidate.identity().clone(),
            scope,
            since_ms,
            state: AtomicU8::new(State::Running as u8),
            scored,
            claimed,
            scored_dropped: AtomicU64::new(0),
            scored_itself: AtomicU64::new(0),
            claimed_dropped: Mutex::default(),
            snapshot: std::sync::atomic::AtomicUsize::new(0),
            book: Mutex::default(),
            reason: Mutex::default(),
            thread: Mutex::default(),
        };
        (Arc::new(shadow), Inbox { scored: scored_inbox, claimed: claimed_inbox })
    }

    fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Running,
            1 => State::Failed,
            _ => State::Ended,
        }
    }

    fn is_running(&self) -> bool {
        self.state() == State::Running
    }

    /// Ends it once: the first reason stays.
    fn end(&self, state: State, reason: Option<String>) {
        let mut kept = self.reason.lock();
        let running = State::Running as u8;
        if self.state.compare_exchange(running, state as u8, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            *kept = reason;
        }
        drop(kept);
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    fn drop_scored(&self) {
        self.scored_dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn drop_claimed(&self, group: &str) {
        let mut dropped = self.claimed_dropped.lock();
        let group = if dropped.contains_key(group) || dropped.len() < book::GROUPS_MAX { group } else { "" };
        *dropped.entry(group.to_owned()).or_default() += 1;
    }

    fn counts(&self) -> Counts {
        let mut counts = self.book.lock().counts();
        counts.dropped += self.scored_dropped.load(Ordering::Relaxed);
        counts.dropped += self.claimed_dropped.lock().values().sum::<u64>();
        counts
    }

    fn report(&self, is_current: bool) -> Report {
        // In this order: what no longer waits is in the book by then.
        let waiting = self.scored.waiting() + self.claimed.waiting();
        let state = self.state();
        let claimed_dropped = self.claimed_dropped.lock().clone();
        let scored_dropped = self.scored_dropped.load(Ordering::Relaxed);
        let scored_itself = self.scored_itself.load(Ordering::Relaxed);
        let book = self.book.lock();
        let (groups, other_groups) = book.groups(&claimed_dropped);
        Report {
            name: self.candidate.name.clone(),
            digest: self.candidate.digest.clone(),
            config: configuration(&self.candidate),
            is_current,
            state,
            reason: self.reason.lock().clone(),
            since_ms: self.since_ms,
            scope: self.scope.clone(),
            waiting,
            scoring: self.scope.scoring.then(|| book.scoring(scored_dropped, scored_itself)),
            groups,
            other_groups,
        }
    }
}

impl Observer for Shadow {
    fn wants_scored(&self) -> bool {
        if !self.scope.scoring || !self.is_running() {
            return false;
        }
        if self.scored.is_full() {
            self.drop_scored();
            return false;
        }
        true
    }

    fn scored(&self, scored: &Arc<Scored>) {
        let is_it = |asked: &Arc<Identity>| Arc::ptr_eq(asked, &self.candidate) || *asked == self.candidate;
        if scored.asked.as_ref().is_some_and(|asked| is_it(asked.identity())) {
            self.scored_itself.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let address = Arc::as_ptr(&scored.snapshot).addr();
        let is_new = self.snapshot.swap(address, Ordering::Relaxed) != address;
        if !self.scored.put(scored.clone(), bytes_of_scored(scored, is_new)) {
            self.drop_scored();
        }
    }

    fn claimed(&self, claimed: &Arc<Claimed>) {
        if self.is_running()
            && self.scope.plans_for(&claimed.group)
            && !self.claimed.put(claimed.clone(), bytes_of_claimed(claimed))
        {
            self.drop_claimed(&claimed.group);
        }
    }
}

/// What a decision holds, about, in bytes; the roster is the balancer's own.
fn bytes_of_scored(scored: &Scored, has_new_snapshot: bool) -> usize {
    const FIXED: usize = 512;
    const PER_ROW: usize = 37;
    let snapshot = if has_new_snapshot { scored.snapshot.loads.len() * PER_ROW } else { 0 };
    let request = &scored.request;
    let columns = scored.committed.len() + request.avoid.len() + 2 * request.session_rows.len();
    FIXED + snapshot + 4 * columns + request.client_id.len()
}

/// What a plan holds, about, in bytes.
fn bytes_of_claimed(claimed: &Claimed) -> usize {
    const FIXED: usize = 1024;
    const PER_PARTITION: usize = 33;
    const PER_CLAIM: usize = 64;
    const PER_MEMBER: usize = 512;
    let cycle = &claimed.cycle;
    FIXED
        + cycle.owner.len() * PER_PARTITION
        + claimed.planned.plan.claims.len() * PER_CLAIM
        + cycle.members.len() * PER_MEMBER
        + cycle.members.iter().map(|member| member.topics.len() * 4).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Roles = Roles { scoring: true, claiming: true };
    const SCORING: Roles = Roles { scoring: true, claiming: false };

    fn check(
        roles: Roles,
        scoring: Option<bool>,
        claiming: Option<bool>,
        groups: &[&str],
        expected: Result<(bool, bool), &str>,
    ) {
        let groups: BTreeSet<_> = groups.iter().map(|group| (*group).to_owned()).collect();
        let wanted = Wanted { scoring, claiming, groups: groups.clone() };
        let found = Scope::of("p", &wanted, roles);
        let shown =
            found.as_ref().map(|scope| (scope.scoring, scope.claiming)).map_err(|error| match error {
                Error::WrongRole { role, .. } => *role,
                Error::Nothing => "nothing",
                Error::Groups => "groups",
                other => panic!("{other}"),
            });
        assert_eq!(shown, expected, "{wanted:?}");
        if let Ok(scope) = found {
            assert_eq!(scope.groups, groups);
            let again = Wanted::from(scope.clone());
            assert_eq!(Scope::of("p", &again, roles).ok(), Some(scope), "it can be started again");
        }
    }

    #[test]
    fn what_is_wanted_becomes_a_scope() {
        check(BOTH, None, None, &[], Ok((true, true)));
        check(SCORING, None, None, &[], Ok((true, false)));
        check(BOTH, Some(true), None, &[], Ok((true, false)));
        check(BOTH, None, Some(true), &[], Ok((false, true)));
        check(BOTH, Some(false), None, &[], Ok((false, true)));
        check(BOTH, Some(true), Some(true), &[], Ok((true, true)));
        check(BOTH, None, None, &["g"], Ok((false, true)));
        check(BOTH, Some(true), None, &["g"], Ok((true, true)));
        check(SCORING, None, Some(true), &[], Err("claiming"));
        check(SCORING, None, None, &["g"], Err("claiming"));
        check(SCORING, Some(false), None, &[], Err("nothing"));
        check(BOTH, Some(false), Some(false), &[], Err("nothing"));
        check(BOTH, Some(true), Some(false), &["g"], Err("groups"));
    }
}
