//! `fulcrum replay`: decides again what a journal recorded, in this process and without a host.
//!
//! Without `--policy` each decision is made by the version that made it, and must come out the same bit for bit; with
//! it, another version answers every question and the report says where it differs. Guests are bounded by fuel, not by
//! time, so that a slow or busy machine gives the same answers.
//!
//! A decision is made by an instance that knows the snapshot and is told what was given out since, as in service; every
//! 64th is made a second time by an instance that knows nothing but this decision. One thread: what a policy costs is
//! its own time, and a journal of 256 MiB is minutes of it.
//!
//! The host may be running: segments are opened one by one, those that it removed meanwhile are counted, and one that
//! cannot be read is told and does not keep the others from being replayed. Nor does a version that is missing, or is there
//! and cannot be used.
//!
//! Invariant: memory is bounded whatever a journal holds. What is kept of it (versions, instances, configurations, counts by
//! group and by version) has a bound where it stands, and what was dropped is made again, with the same answer.

mod again;
mod choice;
mod explain;
mod kept;
mod report;
mod segment;
#[cfg(test)]
mod tests;
mod versions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use fulcrum_policy::journal::{Allowed, Error, Header, Record};
use fulcrum_policy::runtime::{Bound, Options};
use fulcrum_policy::{Limits, Loaded, Runtime};

use self::again::{Again, Answer};
use self::choice::Choice;
use self::explain::Decision;
use self::report::{Difference, Place, Report};
use self::versions::{Candidate, Versions};
use super::ARTIFACT_BYTES_MAX;
use crate::journal::segments_of;
use crate::why::Why;
use crate::words;

/// Fuel for each millisecond of a deadline: more instructions than any machine runs in it, so that what answered in
/// time has enough.
const FUEL_PER_MS: u64 = 10_000_000;
/// Longest compilation of a version: this is no host that waits for it.
const COMPILE_DEADLINE: Duration = Duration::from_secs(3600);
/// Every how many-th decision is also made by a fresh instance.
const FRESH_EVERY: u64 = 64;

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Without --policy, each decision is made again by the version that made it and must come out the same bit for bit. The
exit code is 1 if one does not, if a line or a segment cannot be read, or if a version is found nowhere or cannot be used;
the decisions of others are replayed all the same. Components are looked for by their digest: among the embedded ones, in
`policies` and `state/policies` beside the journal, and in each --versions DIR.

With --policy, that one answers every question of its roles, and the report says where it differs. A decision whose
configuration it does not take is not asked. The exit code is 0 then; with --expect-same it is 1 if any answer is another
one, if nothing could be asked, or if the policy of --only does not take a configuration it decided with.

With --explain FILE:LINE (as differences are named) or --at LINE, one decision is told instead: what was asked, what was
known, who decided, and why.

Examples:
  fulcrum replay fulcrum-data/journal
  fulcrum replay fulcrum-data/journal --policy mine.wasm --config mine.json --explain
  fulcrum replay fulcrum-data/journal --policy mine.wasm --only mine --expect-same
  fulcrum replay fulcrum-data/journal --explain decisions-0000000007.jsonl:17
  fulcrum replay fulcrum-data/journal/decisions-0000000007.jsonl --versions old-policies --json")]
pub(super) struct Replay {
    /// Folder of a journal, or one of its segments
    journal: PathBuf,
    /// Let another policy answer: a name in the policies folder beside the journal, that of an embedded one, or a
    /// component file
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,
    /// Its configuration, a JSON file; else the one each decision was made with
    #[arg(long, value_name = "FILE", requires = "policy")]
    config: Option<PathBuf>,
    /// With --policy: exit with 1 if any answer differs
    #[arg(long, requires = "policy")]
    expect_same: bool,
    #[command(flatten)]
    choice: Choice,
    /// Say why: of each difference that is told, or of one decision
    #[arg(long, value_name = "FILE:LINE", num_args = 0..=1)]
    #[allow(clippy::option_option, reason = "clap's form of an option whose value may be left out")]
    explain: Option<Option<String>>,
    /// Say why of the decision on this line of the segment
    #[arg(long, value_name = "LINE", conflicts_with = "explain")]
    at: Option<u64>,
    /// Folder with component files of versions that decided; may be given more than once
    #[arg(long, value_name = "DIR")]
    versions: Vec<PathBuf>,
    /// Replay no more than so many decisions, from the oldest
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Replay {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        if let Some((segment, line)) = self.one()? {
            let mut replaying = self.begin()?;
            let decision = replaying.explain(&segment, line)?;
            return if self.json { super::print_json(&decision) } else { super::print(&decision.text()) };
        }
        let report = self.report(&self.segments()?)?;
        if self.json {
            super::print_json(&report)?;
        } else {
            super::print(&report.text(self.policy.is_some()))?;
        }
        self.verdict(&report)
    }

    /// Replays segments in this order, no more of them than `--limit` needs.
    fn report(&self, segments: &[PathBuf]) -> anyhow::Result<Report> {
        let mut replaying = self.begin()?;
        for segment in segments {
            if replaying.is_done() {
                break;
            }
            replaying.segment(segment, &self.choice)?;
        }
        // A mistake in the other policy shows even if there was nothing to ask it.
        replaying.load_candidate()?;
        replaying.report.finish(replaying.versions.unreadable());
        Ok(replaying.report)
    }

    fn begin(&self) -> anyhow::Result<Replaying<'_>> {
        let data = self.data();
        let beside = data.as_ref().map(|data| data.join("policies"));
        let kept = data.map(|data| data.join("state").join("policies"));
        let folders: Vec<_> = self.versions.iter().cloned().chain(beside.clone()).chain(kept).collect();
        let allowed = Allowed::default();
        let runtime = runtime(allowed)?;
        Ok(Replaying {
            versions: Versions::new(&runtime, folders),
            again: Again::default(),
            other: self.policy.as_deref().map(|policy| Other {
                policy,
                config: self.config.as_deref(),
                beside,
            }),
            candidate: None,
            runtime,
            allowed,
            report: Report::default(),
            explains: self.explain.is_some(),
            limit: self.limit.unwrap_or(u64::MAX),
        })
    }

    /// Returns the segment and line of the decision to explain, if it is about one.
    fn one(&self) -> anyhow::Result<Option<(PathBuf, u64)>> {
        if let Some(line) = self.at {
            let mut segments = self.segments()?;
            return match (segments.pop(), segments.is_empty()) {
                (Some(segment), true) => Ok(Some((segment, line))),
                _ => bail!(
                    "{} has several segments: name one of them, or say --explain FILE:LINE",
                    self.journal.display()
                ),
            };
        }
        let Some(Some(place)) = &self.explain else { return Ok(None) };
        let (file, line) =
            place
                .rsplit_once(':')
                .and_then(|(file, line)| Some((file, line.parse().ok()?)))
                .ok_or_else(|| anyhow!("{place:?} names no decision: say FILE:LINE, as the report does"))?;
        let name = Path::new(file).file_name().ok_or_else(|| anyhow!("{file:?} is no segment"))?;
        let folder = if self.journal.is_dir() { Some(&*self.journal) } else { self.journal.parent() };
        Ok(Some((folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name)), line)))
    }

    /// Returns the segments, oldest first.
    fn segments(&self) -> anyhow::Result<Vec<PathBuf>> {
        const RECORDED: &str = "a host records them with journal.mode = \"sampled\" or \"full\"";
        let shown = self.journal.display();
        if !self.journal.exists() {
            bail!("there is no {shown}: no decisions were recorded there; {RECORDED}");
        }
        if !self.journal.is_dir() {
            return Ok(vec![self.journal.clone()]);
        }
        let segments =
            segments_of(&self.journal).with_context(|| format!("cannot read the folder {shown}"))?;
        if segments.is_empty() {
            bail!("there are no recorded decisions in {shown}: {RECORDED}");
        }
        Ok(segments)
    }

    /// Returns the data directory the journal lies in.
    fn data(&self) -> Option<PathBuf> {
        let folder = if self.journal.is_dir() { Some(&*self.journal) } else { self.journal.parent() };
        // A relative path may have no parent of its own.
        let folder = folder.and_then(|folder| std::path::absolute(folder).ok())?;
        folder.parent().map(Path::to_path_buf)
    }

    fn verdict(&self, report: &Report) -> anyhow::Result<()> {
        let Report { problems, unreadable, missing, unusable, not_replayed, .. } = report;
        let mut wrong = Vec::new();
        let bad = [(*problems, "line"), (*unreadable, "segment")].into_iter().filter(|(count, _)| *count > 0);
        let bad: Vec<_> = bad.map(|(count, noun)| words::count(count, noun)).collect();
        if !bad.is_empty() {
            wrong.push(format!("{} could not be read", bad.join(" and ")));
        }
        if *not_replayed > 0 {
            wrong.push(format!("{} could not be replayed", words::count(*not_replayed, "decision")));
        }
        if !missing.is_empty() {
            wrong.push(format!(
                "{} found nowhere: give the folder with the component with --versions DIR",
                if missing.len() == 1 { "a policy version was" } else { "some policy versions were" }
            ));
        }
        if !unusable.is_empty() {
            let which = if unusable.len() == 1 { "a policy version" } else { "some policy versions" };
            wrong.push(format!("{which} cannot be used here: {}", report::ADVICE));
        }
        let different = report.different();
        if different > 0 && (self.policy.is_none() || self.expect_same) {
            wrong.push(format!("{} did not come out the same", words::count(different, "decision")));
        }
        if !wrong.is_empty() {
            bail!(wrong.join("; "));
        }
        if report.decisions == 0 && self.choice.is_given() {
            bail!("no recorded decision is one of those");
        }
        if self.expect_same && report.compared() == 0 {
            bail!("nothing was compared: the policy was asked nothing");
        }
        if self.expect_same && self.choice.only.is_some() && report.refused > 0 {
            bail!(
                "{} could not be asked with the configuration they had",
                words::count(report.refused, "decision")
            );
        }
        Ok(())
    }
}

/// Returns what allows at least as much as both.
fn at_least(one: Allowed, other: Allowed) -> Allowed {
    Allowed {
        scoring_deadline_ms: one.scoring_deadline_ms.max(other.scoring_deadline_ms),
        claiming_deadline_ms: one.claiming_deadline_ms.max(other.claiming_deadline_ms),
        load_deadline_ms: one.load_deadline_ms.max(other.load_deadline_ms),
        memory_bytes: one.memory_bytes.max(other.memory_bytes),
    }
}

/// Starts a runtime that allows at least so much, and no less than a host does by default.
fn runtime(allowed: Allowed) -> anyhow::Result<Arc<Runtime>> {
    let defaults = Limits::default();
    let mut limits =
        Limits { compile_deadline: COMPILE_DEADLINE, artifact_bytes: ARTIFACT_BYTES_MAX, ..defaults };
    let Allowed { scoring_deadline_ms, claiming_deadline_ms, load_deadline_ms, memory_bytes } = allowed;
    for (limit, ms) in [
        (&mut limits.scoring_deadline, scoring_deadline_ms),
        (&mut limits.claiming_deadline, claiming_deadline_ms),
        (&mut limits.load_deadline, load_deadline_ms),
    ] {
        *limit = Duration::from_millis(ms).max(*limit);
    }
    limits.memory_bytes = usize::try_from(memory_bytes).unwrap_or(usize::MAX).max(limits.memory_bytes);
    // A version that was taken with WASI needs it again; the others do not see it.
    let options = Options { bound: Bound::Fuel(FUEL_PER_MS), wasi: true, ..Options::default() };
    Runtime::with(limits, options).context("cannot start the policy runtime")
}

/// Where the other policy is.
struct Other<'a> {
    policy: &'a str,
    config: Option<&'a Path>,
    /// Folder of dropped policies.
    beside: Option<PathBuf>,
}

/// A replay under way.
struct Replaying<'a> {
    /// Allows at least what the hosts that wrote what was opened so far allowed; the versions are loaded in it.
    runtime: Arc<Runtime>,
    allowed: Allowed,
    versions: Versions,
    again: Again,
    other: Option<Other<'a>>,
    /// Loaded before the first decision.
    candidate: Option<Candidate>,
    report: Report,
    /// Whether differences are told with their reasons.
    explains: bool,
    limit: u64,
}

impl Replaying<'_> {
    /// Says whether so many decisions were replayed as are wanted.
    fn is_done(&self) -> bool {
        self.report.decisions >= self.limit
    }

    /// Makes sure that policies may do what the host that wrote a segment let them.
    fn allow(&mut self, header: Option<&Header>) -> anyhow::Result<()> {
        let allowed = header.map_or(self.allowed, |header| at_least(self.allowed, header.limits));
        if allowed != self.allowed {
            self.runtime = runtime(allowed)?;
            self.allowed = allowed;
            // What was loaded is bounded by what was allowed then.
            self.versions.renew(&self.runtime);
            self.again = Again::default();
            self.candidate = None;
        }
        self.load_candidate()
    }

    fn load_candidate(&mut self) -> anyhow::Result<()> {
        if let (None, Some(Other { policy, config, beside })) = (&self.candidate, &self.other) {
            self.candidate = Some(Candidate::load(&self.runtime, policy, *config, beside.as_deref())?);
        }
        Ok(())
    }

    /// Replays what is chosen of one segment, if that can be read.
    ///
    /// Errors if the other policy cannot be used.
    fn segment(&mut self, path: &Path, choice: &Choice) -> anyhow::Result<()> {
        let mut reader = match segment::open(path) {
            Ok(Some(reader)) => reader,
            Ok(None) => {
                self.report.vanished += 1;
                return Ok(());
            }
            Err(error) => {
                self.report.cannot_read(&error);
                return Ok(());
            }
        };
        self.allow(reader.header())?;
        let file = file_name(path);
        self.report.segments += 1;
        while !self.is_done()
            && let Some(entry) = reader.next()
        {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error @ Error::Line { .. }) => {
                    self.report.problem(&error);
                    continue;
                }
                Err(error) => {
                    self.report.cannot_read(&error.into());
                    break;
                }
            };
            if !choice.takes(&entry.record) {
                continue;
            }
            self.report.seen(&entry.record);
            let place = Place { file: &file, line: entry.line };
            match &self.candidate {
                Some(_) => self.compare(place, &entry.record)?,
                None => self.repeat(place, &entry.record),
            }
        }
        self.report.torn += u64::from(reader.is_torn());
        Ok(())
    }

    /// Lets the version that decided do it again, or the fallback where that one did.
    fn repeat(&mut self, place: Place<'_>, record: &Record) {
        let recorded = Answer::recorded(record);
        let course = record.course();
        // Whether there was time enough, or memory, is not the policy's doing alone.
        let is_repeatable = matches!(course.outcome.name(), "trap" | "illegal" | "error");
        if !course.is_by_policy {
            self.report.answered_by_fallback(record);
            let native = Ok(again::native(record));
            let difference = self.report.came_out(place, record, &recorded, &native, None);
            if let Some(difference) = difference.filter(|_| self.explains) {
                tell_why(difference, record, None, &native, None);
            }
        }
        let loaded = match &course.asked {
            Some(identity) if course.is_by_policy || is_repeatable => match self.versions.find(identity) {
                Ok(loaded) => loaded,
                Err(unable) => return self.report.unable(record, identity, &unable),
            },
            _ => return self.report.failed(record, None),
        };
        let answer = self.again.ask(&loaded, record);
        if course.is_by_policy {
            let is_sampled = self.report.decisions % FRESH_EVERY == 1;
            let alone = is_sampled.then(|| again::alone(&loaded, record));
            let difference = self.report.came_out(place, record, &recorded, &answer, alone.as_ref());
            if let Some(difference) = difference.filter(|_| self.explains) {
                tell_why(difference, record, Some(&loaded), &answer, Some(&loaded));
            }
        } else {
            let failed_again = answer.err().is_some_and(|failure| failure.outcome() == course.outcome);
            self.report.failed(record, Some(failed_again));
        }
    }

    /// Lets the candidate answer.
    fn compare(&mut self, place: Place<'_>, record: &Record) -> anyhow::Result<()> {
        let Some(candidate) = &mut self.candidate else { return Ok(()) };
        if !candidate.answers(record) {
            self.report.not_asked(record);
            return Ok(());
        }
        let course = record.course();
        let loaded = match candidate.configured(course.asked.as_deref())? {
            Ok(loaded) => loaded,
            Err(why) => {
                self.report.refused(record, &why);
                return Ok(());
            }
        };
        let answer = self.again.ask(&loaded, record);
        let difference = self.report.came_out(place, record, &Answer::recorded(record), &answer, None);
        let Some(difference) = difference.filter(|_| self.explains) else { return Ok(()) };
        let decided = match course.asked.as_ref().filter(|_| course.is_by_policy) {
            Some(identity) => match self.versions.find(identity) {
                Ok(loaded) => Some(loaded),
                // One side is better than none.
                Err(_) => {
                    difference.replayed_why = why_of(record, &answer, Some(&loaded));
                    return Ok(());
                }
            },
            None => None,
        };
        tell_why(difference, record, decided.as_deref(), &answer, Some(&loaded));
        Ok(())
    }

    /// Explains the decision on a line of a segment.
    fn explain(&mut self, path: &Path, line: u64) -> anyhow::Result<Decision> {
        let file = file_name(path);
        let mut reader = segment::open(path)?.ok_or_else(|| anyhow!("there is no {}", path.display()))?;
        self.allow(reader.header())?;
        let (mut before, mut after) = (None, None);
        for entry in reader.by_ref() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Error::Line { line: bad, .. }) if bad != line => continue,
                Err(error) => return Err(error.into()),
            };
            if entry.line == line {
                return self.explained(Place { file: &file, line }, &entry.record);
            }
            if entry.line > line {
                after = Some(entry.line);
                break;
            }
            before = Some(entry.line);
        }
        let near: Vec<_> = [before, after].into_iter().flatten().map(|line| line.to_string()).collect();
        let near = match near.is_empty() {
            true => String::new(),
            false => format!("; the nearest are on {}", crate::words::list(&near)),
        };
        bail!("there is no decision on line {line} of {file}{near}")
    }

    fn explained(&mut self, place: Place<'_>, record: &Record) -> anyhow::Result<Decision> {
        let course = record.course();
        let version = match course.asked.as_ref().filter(|_| course.is_by_policy) {
            Some(identity) => self.versions.find(identity).map(Some),
            None => Ok(None),
        };
        let candidate = self.candidate.as_mut().filter(|candidate| candidate.answers(record));
        let other = match candidate {
            Some(candidate) => {
                Some(candidate.configured(course.asked.as_deref())?.map_err(|why| anyhow!(why))?)
            }
            None => None,
        };
        let other = other.as_deref().map(|loaded| (loaded, again::alone(loaded, record)));
        let version = version.as_ref().map(Option::as_deref);
        Ok(explain::explain(place, record, version, other))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Adds the reasons of both answers to a difference; who gave them, `None` is the fallback.
fn tell_why(
    difference: &mut Difference,
    record: &Record,
    recorded_by: Option<&Loaded>,
    replayed: &Result<Answer, fulcrum_policy::Failure>,
    replayed_by: Option<&Loaded>,
) {
    difference.recorded_why = why_of(record, &Ok(Answer::recorded(record)), recorded_by);
    difference.replayed_why = why_of(record, replayed, replayed_by);
}

/// Says why somebody gave an answer to the scoring question; a failure and a plan speak for themselves.
fn why_of(
    record: &Record,
    answer: &Result<Answer, fulcrum_policy::Failure>,
    by: Option<&Loaded>,
) -> Option<Why> {
    match (record, answer) {
        (Record::Scoring(scoring), Ok(Answer::Scoring(Some(answer)))) => {
            Some(explain::reason(scoring, *answer, by).why)
        }
        _ => None,
    }
}
