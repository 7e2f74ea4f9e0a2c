//! `fulcrum replay`: decides again what a journal recorded, in this process and without a host.
//!
//! Without `--policy` each decision is made by the version that made it, and must come out the same bit for bit; with
//! it, another version answers every question and the report says where it differs. Guests are bounded by fuel, not by
//! time, so that a slow or busy machine gives the same answers.
//!
//! A decision is made by an instance that knows the snapshot and is told what was given out since, as in service; every
//! 64th is made a second time by an instance that knows nothing but this decision. One thread: what a policy costs is
//! its own time, and a journal of 256 MiB is minutes of it.

mod again;
mod report;
mod versions;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use fulcrum_policy::journal::{Allowed, Error, Reader, Record};
use fulcrum_policy::runtime::{Bound, Options};
use fulcrum_policy::{Limits, Runtime};

use self::again::{Again, Answer};
use self::report::{Place, Report};
use self::versions::{Candidate, Missing, Versions};
use crate::journal::segments_of;

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
exit code is 1 if one does not, if a line cannot be read, or if a version is found nowhere. Components are looked for by
their digest: among the embedded ones, in `policies` and `state/policies` beside the journal, and in each --versions DIR.

With --policy, that one answers every question of its roles, and the report says where it differs. The exit code is 0
then, or 1 with --expect-same if any answer is another one.

Examples:
  fulcrum replay fulcrum-data/journal
  fulcrum replay fulcrum-data/journal --policy mine.wasm --config mine.json
  fulcrum replay fulcrum-data/journal/decisions-0000000007.jsonl --versions old-policies --json")]
pub(super) struct Replay {
    /// Folder of a journal, or one of its segments
    journal: PathBuf,
    /// Let another policy answer: the name of an embedded one, or a component file
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,
    /// Its configuration, a JSON file; else the one each decision was made with
    #[arg(long, value_name = "FILE", requires = "policy")]
    config: Option<PathBuf>,
    /// With --policy: exit with 1 if any answer differs
    #[arg(long, requires = "policy")]
    expect_same: bool,
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
        let segments = self.segments()?;
        let runtime = runtime(&segments)?;
        let candidate = match &self.policy {
            Some(policy) => Some(Candidate::load(&runtime, policy, self.config.as_deref())?),
            None => None,
        };
        let mut replaying = Replaying {
            versions: Versions::new(&runtime, self.folders()),
            again: Again::default(),
            candidate,
            report: Report::default(),
            limit: self.limit.unwrap_or(u64::MAX),
        };
        for segment in &segments {
            if !replaying.segment(segment)? {
                break;
            }
        }
        let Replaying { report, candidate, .. } = replaying;
        if self.json {
            super::print_json(&report)?;
        } else {
            super::print(&report.text(candidate.is_some()))?;
        }
        self.verdict(&report)
    }

    /// Returns the segments, oldest first.
    fn segments(&self) -> anyhow::Result<Vec<PathBuf>> {
        let shown = self.journal.display();
        if !self.journal.is_dir() {
            return Ok(vec![self.journal.clone()]);
        }
        let segments =
            segments_of(&self.journal).with_context(|| format!("cannot read the folder {shown}"))?;
        if segments.is_empty() {
            bail!(
                "there are no recorded decisions in {shown}: a host records them with journal.mode = \"sampled\" or \"full\""
            );
        }
        Ok(segments)
    }

    /// Returns the folders that may hold components of versions that decided.
    fn folders(&self) -> Vec<PathBuf> {
        let folder = if self.journal.is_dir() { Some(&*self.journal) } else { self.journal.parent() };
        // A relative path may have no parent of its own.
        let folder = folder.and_then(|folder| std::path::absolute(folder).ok());
        let data = folder.as_deref().and_then(Path::parent);
        let beside = data.map(|data| [data.join("policies"), data.join("state").join("policies")]);
        self.versions.iter().cloned().chain(beside.into_iter().flatten()).collect()
    }

    fn verdict(&self, report: &Report) -> anyhow::Result<()> {
        let Report { problems, missing, .. } = report;
        if *problems > 0 {
            bail!("{} could not be read", counted(*problems, "line"));
        }
        if !missing.is_empty() {
            bail!(
                "{} found nowhere; give the folder with the component with --versions DIR",
                if missing.len() == 1 { "a policy version was" } else { "some policy versions were" }
            );
        }
        let different = report.different();
        if different > 0 && (self.policy.is_none() || self.expect_same) {
            bail!("{} did not come out the same", counted(different, "decision"));
        }
        Ok(())
    }
}

/// Starts a runtime that allows at least what every host that wrote the segments did.
fn runtime(segments: &[PathBuf]) -> anyhow::Result<Arc<Runtime>> {
    let defaults = Limits::default();
    let mut limits = Limits { compile_deadline: COMPILE_DEADLINE, artifact_bytes: 1 << 30, ..defaults };
    for segment in segments {
        let Some(header) = open(segment)?.header().cloned() else { continue };
        let Allowed { scoring_deadline_ms, claiming_deadline_ms, load_deadline_ms, memory_bytes } =
            header.limits;
        for (limit, ms) in [
            (&mut limits.scoring_deadline, scoring_deadline_ms),
            (&mut limits.claiming_deadline, claiming_deadline_ms),
            (&mut limits.load_deadline, load_deadline_ms),
        ] {
            *limit = Duration::from_millis(ms).max(*limit);
        }
        limits.memory_bytes = usize::try_from(memory_bytes).unwrap_or(usize::MAX).max(limits.memory_bytes);
    }
    // A version that was taken with WASI needs it again; the others do not see it.
    let options = Options { bound: Bound::Fuel(FUEL_PER_MS), wasi: true, ..Options::default() };
    Runtime::with(limits, options).context("cannot start the policy runtime")
}

fn open(path: &Path) -> anyhow::Result<Reader<BufReader<File>>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    Ok(Reader::open(shown.to_string(), BufReader::new(file))?)
}

fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// A replay under way.
struct Replaying {
    versions: Versions,
    again: Again,
    candidate: Option<Candidate>,
    report: Report,
    limit: u64,
}

impl Replaying {
    /// Replays one segment; says whether to go on with the next.
    fn segment(&mut self, path: &Path) -> anyhow::Result<bool> {
        let mut reader = open(path)?;
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        self.report.segments += 1;
        for entry in reader.by_ref() {
            if self.report.decisions >= self.limit {
                return Ok(false);
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error @ Error::Line { .. }) => {
                    self.report.problem(&error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.report.seen(&entry.record);
            let place = Place { file: &file, line: entry.line };
            match &self.candidate {
                Some(_) => self.compare(place, &entry.record)?,
                None => self.repeat(place, &entry.record)?,
            }
        }
        self.report.torn += u64::from(reader.is_torn());
        Ok(true)
    }

    /// Lets the version that decided do it again, or the fallback where that one did.
    fn repeat(&mut self, place: Place<'_>, record: &Record) -> anyhow::Result<()> {
        let recorded = Answer::recorded(record);
        let course = record.course();
        // Whether there was time enough, or memory, is not the policy's doing alone.
        let is_repeatable = matches!(course.outcome.name(), "trap" | "illegal" | "error");
        if !course.is_by_policy {
            self.report.answered_by_fallback(record);
            self.report.compared(place, record, &recorded, &Ok(again::native(record)), None);
        }
        let loaded = match &course.asked {
            Some(identity) if course.is_by_policy || is_repeatable => match self.versions.find(identity)? {
                Ok(loaded) => loaded,
                Err(Missing) => {
                    self.report.missing(record, identity);
                    return Ok(());
                }
            },
            _ => {
                self.report.failed(record, None);
                return Ok(());
            }
        };
        let answer = self.again.ask(&loaded, record);
        if course.is_by_policy {
            let is_sampled = self.report.decisions % FRESH_EVERY == 1;
            let alone = is_sampled.then(|| again::alone(&loaded, record));
            self.report.compared(place, record, &recorded, &answer, alone.as_ref());
        } else {
            let failed_again = answer.err().is_some_and(|failure| failure.outcome() == course.outcome);
            self.report.failed(record, Some(failed_again));
        }
        Ok(())
    }

    /// Lets the candidate answer.
    fn compare(&mut self, place: Place<'_>, record: &Record) -> anyhow::Result<()> {
        let Some(candidate) = &mut self.candidate else { return Ok(()) };
        if !candidate.answers(record) {
            self.report.not_asked(record);
            return Ok(());
        }
        let loaded = candidate.configured(record.course().asked.as_deref())?;
        let answer = self.again.ask(&loaded, record);
        self.report.compared(place, record, &Answer::recorded(record), &answer, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_words() {
        assert_eq!(counted(1, "line"), "1 line");
        assert_eq!(counted(2, "line"), "2 lines");
    }
}
