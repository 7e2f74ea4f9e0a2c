//! The conformance kit: hundreds of generated inputs, what a policy makes of them, and what to mend.
//!
//! It goes further than the [self-test](crate::proof) of every load, takes seconds, and refuses nothing: authors run it.
//!
//! Invariants: a case follows from the seed and its own name alone, so that one case can be run again without the others;
//! an error that a policy returns is an answer, counted by its name; speed is judged by the median of a case's calls, and a
//! call is given much longer than in service, so that it is measured and not cut off.

mod claims;
mod cut;
mod cycles;
mod kind;
mod rosters;
mod scores;
mod texts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::seed;
use fulcrum_core::time::Clock;

pub use self::cut::Cut;
pub use self::kind::Kind;
use crate::artifact::Loaded;
use crate::failure::{Declared, Failure};
use crate::limits::Limits;
use crate::proof::Chance;
use crate::runtime::{self, Runtime};

/// The seed of a run that names none.
pub const SEED: u64 = 0xf01c;
/// Most rows of a roster that a case has: as many instances as a host keeps.
pub const ROWS_MAX: usize = 10_000;
/// How many times the deadline of service a scoring call may take before it is cut off.
const SCORING_PATIENCE: u32 = 100;
/// The same for a plan.
const CLAIMING_PATIENCE: u32 = 10;
/// Failed cases of one class after which its other cases are not tried: a guest that hangs would take minutes.
const FAILED_MAX: usize = 3;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the generated inputs come from.
    pub seed: u64,
    /// Only this case, this class or this role: `scoring/ties/3`, `scoring/ties`, `scoring`.
    pub only: Option<String>,
    /// Scoring cases with more rows are left out.
    pub rows_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: SEED, only: None, rows_max: ROWS_MAX }
    }
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Classes of cases in the order they were run.
    pub classes: Vec<Class>,
    /// What went wrong or should be known, in the order it was found; one entry per class and kind.
    pub findings: Vec<Finding>,
    /// Per kind of call the case in which it was slowest.
    pub slowest: Vec<Slowest>,
    /// What happened to calls that were cut off.
    pub cuts: Vec<Cut>,
}

impl Report {
    /// Says whether nothing was found that is a failure.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.findings.iter().any(|finding| finding.kind.is_failure())
    }

    fn add(&mut self, class: &str, case: String, fault: Fault) {
        let Fault { kind, message } = fault;
        match self.findings.iter_mut().find(|known| known.class == class && known.kind == kind) {
            Some(known) => known.cases += 1,
            None => {
                self.findings.push(Finding { kind, class: class.to_owned(), case, cases: 1, message });
            }
        }
    }
}

/// One class of cases.
#[derive(Clone, Debug)]
pub struct Class {
    /// Role and name, for example `scoring/ties`.
    pub name: String,
    /// Cases run.
    pub cases: usize,
    /// Those with a failure.
    pub failed: usize,
    /// Those not run because others had failed.
    pub skipped: usize,
    /// Calls made.
    pub calls: usize,
    /// Errors the policy returned, by the contract's names.
    pub errors: BTreeMap<&'static str, usize>,
    /// How long decisions took; `None` if there were none.
    pub times: Option<Times>,
    /// What a decision may take, in nanoseconds.
    pub deadline_nanos: u64,
    /// Most memory of an instance, in bytes.
    pub memory_bytes: usize,
}

/// How long calls took, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Half of them took at most this.
    pub median_nanos: u64,
    /// All but one in a hundred took at most this.
    pub p99_nanos: u64,
    /// All took at most this.
    pub worst_nanos: u64,
}

impl Times {
    fn of(nanos: &mut [u64]) -> Option<Self> {
        nanos.sort_unstable();
        let worst_nanos = *nanos.last()?;
        let p99_nanos = nanos[(nanos.len() * 99).div_ceil(100) - 1];
        Some(Self { median_nanos: nanos[nanos.len() / 2], p99_nanos, worst_nanos })
    }
}

/// The case in which one kind of call took longest.
#[derive(Clone, Debug)]
pub struct Slowest {
    /// `roster`, `refresh`, `recommend`, `explain` or `plan`.
    pub call: &'static str,
    /// Which case.
    pub case: String,
    /// How large it is, in words.
    pub size: String,
    /// Median of its calls, in nanoseconds.
    pub median_nanos: u64,
    /// What such a call may take in service, in nanoseconds.
    pub deadline_nanos: u64,
}

/// Something that went wrong, or that should be known.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What kind of mistake it is, and how to mend it.
    pub kind: Kind,
    /// The class it was found in, or `deadline`.
    pub class: String,
    /// The first case it was found in.
    pub case: String,
    /// In how many cases of the class.
    pub cases: usize,
    /// What happened in the first one.
    pub message: String,
}

/// How far a run is, told before each case.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The class at work.
    pub class: &'a str,
    /// Cases done of all classes.
    pub done: usize,
    /// Cases of all classes.
    pub total: usize,
}

/// Runs the kit for every role the policy has.
///
/// `metered` is the same policy in a [`metered_runtime`]; without it, nothing is cut off.
pub fn run(
    policy: &Loaded,
    metered: Option<&Loaded>,
    options: &Options,
    clock: &dyn Clock,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Report {
    let mut report = Report::default();
    let roles = policy.artifact().roles();
    let scoring = if roles.scoring { scores::classes(options.rows_max) } else { Vec::new() };
    let claiming = if roles.claiming { claims::classes() } else { Vec::new() };
    let total = scoring.iter().map(|class| wanted(class, options).count()).sum::<usize>()
        + claiming.iter().map(|class| wanted(class, options).count()).sum::<usize>();
    let mut run = Run { policy, options, clock, progress, report: &mut report, done: 0, total };
    for class in &scoring {
        run.class(class, Call::Recommend, scores::test);
    }
    for class in &claiming {
        run.class(class, Call::Plan, claims::test);
    }
    if let Some(metered) = metered {
        cut::run(metered, &mut report);
    }
    report
}

/// Starts the runtime for `metered` of [`run`], with these limits but no deadlines.
pub fn metered_runtime(limits: &Limits, wasi: bool) -> Result<Arc<Runtime>, runtime::Error> {
    let limits = Limits { load_deadline: cut::PLENTY, instances: 8, ..limits.clone() };
    let bound = runtime::Bound::Fuel(1);
    Runtime::with(limits, runtime::Options { bound, wasi, ..runtime::Options::default() })
}

/// A class of cases: how many there are, and how each is made.
struct Plan<C> {
    name: &'static str,
    count: usize,
    make: fn(usize, &mut Chance) -> C,
}

/// Returns the numbers of the cases that were asked for.
fn wanted<'a, C>(class: &'a Plan<C>, options: &'a Options) -> impl Iterator<Item = usize> + 'a {
    (0..class.count).filter(|at| match &options.only {
        None => true,
        Some(only) => {
            let case = case_name(class.name, *at);
            case.strip_prefix(only.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    })
}

fn case_name(class: &str, at: usize) -> String {
    format!("{class}/{at}")
}

struct Run<'a> {
    policy: &'a Loaded,
    options: &'a Options,
    clock: &'a dyn Clock,
    progress: &'a mut dyn FnMut(Progress<'_>),
    report: &'a mut Report,
    done: usize,
    total: usize,
}

impl Run<'_> {
    fn class<C: Sized>(
        &mut self,
        class: &Plan<C>,
        decision: Call,
        test: fn(&mut Bench<'_>, &C) -> Result<String, Fault>,
    ) {
        let limits = self.policy.runtime().limits();
        let mut bench = Bench {
            policy: self.policy,
            clock: self.clock,
            calls: 0,
            memory_bytes: 0,
            errors: BTreeMap::new(),
            notes: Vec::new(),
            nanos: BTreeMap::new(),
        };
        let mut decisions = Vec::new();
        let (mut cases, mut failed, mut skipped) = (0, 0, 0);
        for at in wanted(class, self.options) {
            (self.progress)(Progress { class: class.name, done: self.done, total: self.total });
            self.done += 1;
            if failed >= FAILED_MAX {
                skipped += 1;
                continue;
            }
            let name = case_name(class.name, at);
            let mut chance = Chance(seed::mix(self.options.seed ^ seed::text(&name)));
            let case = (class.make)(at, &mut chance);
            cases += 1;
            let tested = test(&mut bench, &case);
            decisions.extend(bench.nanos.get(&decision).into_iter().flatten());
            let nanos = std::mem::take(&mut bench.nanos);
            let mut faults = std::mem::take(&mut bench.notes);
            match tested {
                Ok(size) => faults.extend(self.judge_speed(&name, &size, nanos)),
                Err(fault) => faults.push(fault),
            }
            failed += usize::from(faults.iter().any(|fault| fault.kind.is_failure()));
            for fault in faults {
                self.report.add(class.name, name.clone(), fault);
            }
        }
        if cases == 0 {
            return;
        }
        if bench.memory_bytes > limits.memory_bytes / 4 * 3 {
            let message =
                format!("an instance used {} of {} MiB", bench.memory_bytes >> 20, limits.memory_bytes >> 20);
            self.report.add(class.name, class.name.to_owned(), Fault { kind: Kind::Memory, message });
        }
        self.report.classes.push(Class {
            name: class.name.to_owned(),
            cases,
            failed,
            skipped,
            calls: bench.calls,
            errors: bench.errors,
            times: Times::of(&mut decisions),
            deadline_nanos: nanos_of(decision.deadline(limits)),
            memory_bytes: bench.memory_bytes,
        });
    }

    /// Compares the medians of one case with the deadlines of service.
    fn judge_speed(&mut self, case: &str, size: &str, nanos: BTreeMap<Call, Vec<u64>>) -> Vec<Fault> {
        let limits = self.policy.runtime().limits();
        let mut faults = Vec::new();
        for (call, mut nanos) in nanos {
            let Some(Times { median_nanos, .. }) = Times::of(&mut nanos) else { continue };
            let deadline = call.deadline(limits);
            let deadline_nanos = nanos_of(deadline);
            if median_nanos > deadline_nanos {
                let message = format!(
                    "`{}` over {size} takes {:.1} ms (the median of {} calls), its deadline in service is {} ms",
                    call.name(),
                    median_nanos as f64 / 1e6,
                    nanos.len(),
                    deadline.as_millis()
                );
                let kind = if call == Call::Explain { Kind::SlowExplanation } else { Kind::Slow };
                faults.push(Fault { kind, message });
            }
            let found = Slowest {
                call: call.name(),
                case: case.to_owned(),
                size: size.to_owned(),
                median_nanos,
                deadline_nanos,
            };
            match self.report.slowest.iter_mut().find(|known| known.call == found.call) {
                Some(known) if known.median_nanos >= median_nanos => {}
                Some(known) => *known = found,
                None => self.report.slowest.push(found),
            }
        }
        faults
    }
}

/// A call whose time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Roster,
    Refresh,
    Recommend,
    Explain,
    Plan,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Roster => "roster",
            Self::Refresh => "refresh",
            Self::Recommend => "recommend",
            Self::Explain => "explain",
            Self::Plan => "plan",
        }
    }

    /// Returns what it may take in service.
    fn deadline(self, limits: &Limits) -> Duration {
        match self {
            Self::Roster => limits.scoring_deadline * 10,
            Self::Refresh | Self::Recommend | Self::Explain => limits.scoring_deadline,
            Self::Plan => limits.claiming_deadline,
        }
    }
}

/// What went wrong in a case.
#[derive(Debug)]
struct Fault {
    kind: Kind,
    message: String,
}

impl Fault {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Measures the calls of one class.
struct Bench<'a> {
    policy: &'a Loaded,
    clock: &'a dyn Clock,
    calls: usize,
    memory_bytes: usize,
    errors: BTreeMap<&'static str, usize>,
    /// What is no failure, but should be known; of the present case.
    notes: Vec<Fault>,
    /// Of the present case.
    nanos: BTreeMap<Call, Vec<u64>>,
}

impl Bench<'_> {
    /// Makes a call; the inner error is one the policy returned.
    fn time<T>(
        &mut self,
        call: Call,
        body: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<Result<T, Declared>, Fault> {
        let begun = self.clock.nanos();
        let result = body();
        let nanos = self.clock.nanos().saturating_sub(begun);
        self.calls += 1;
        match result {
            Ok(answer) => {
                self.nanos.entry(call).or_default().push(nanos);
                Ok(Ok(answer))
            }
            Err(Failure::Declared(error)) => {
                *self.errors.entry(error_name(&error)).or_default() += 1;
                Ok(Err(error))
            }
            Err(failure) => Err(Fault::failed(call.name(), &failure)),
        }
    }

    fn used(&mut self, memory_bytes: usize) {
        self.memory_bytes = self.memory_bytes.max(memory_bytes);
    }
}

/// Returns the contract's name of an error.
fn error_name(error: &Declared) -> &'static str {
    match error {
        Declared::InvalidConfig(_) => "invalid-config",
        Declared::InvalidInput(_) => "invalid-input",
        Declared::NoCandidate => "no-candidate",
        Declared::Unsupported => "unsupported",
        Declared::Failed(_) => "failed",
    }
}

fn nanos_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_chosen_by_role_class_and_number() {
        let class = Plan { name: "scoring/ties", count: 12, make: |at, _: &mut Chance| at };
        let check = |only: Option<&str>, expected: &[usize]| {
            let options = Options { only: only.map(str::to_owned), ..Options::default() };
            let found: Vec<_> = wanted(&class, &options).collect();
            assert_eq!(found, expected, "{only:?}");
        };
        let all: Vec<_> = (0..12).collect();
        check(None, &all);
        check(Some("scoring"), &all);
        check(Some("scoring/ties"), &all);
        check(Some("scoring/ties/1"), &[1]);
        check(Some("scoring/tie"), &[]);
        check(Some("claiming"), &[]);
    }

    #[test]
    fn times_are_ranks() {
        let times = |mut nanos: Vec<u64>| Times::of(&mut nanos);
        assert_eq!(times(vec![]), None);
        let of = |median_nanos, p99_nanos, worst_nanos| Some(Times { median_nanos, p99_nanos, worst_nanos });
        assert_eq!(times(vec![7]), of(7, 7, 7));
        assert_eq!(times((1..=1000).rev().collect()), of(501, 990, 1000));
    }
}
