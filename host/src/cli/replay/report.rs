//! What a replay found, counted and in words.
//!
//! Invariant: its size is bounded, however many groups and versions a journal names, and however long: what is beyond the
//! bounds is counted together.

use std::collections::BTreeMap;

use fulcrum_core::NAME_BYTES_MAX;
use fulcrum_core::claiming::{Cycle, Plan};
use fulcrum_policy::journal::{Error, Record};
use fulcrum_policy::seat::Identity;
use fulcrum_policy::{Failure, fallback};
use serde::Serialize;

use super::again::{Answer, Likeness};
use super::versions::Unable;
use crate::why::Why;
use crate::words;

/// Differences and bad lines that are told one by one.
const TOLD_MAX: usize = 10;
/// Versions that could not be asked that are told one by one, of each kind.
const VERSIONS_TOLD_MAX: usize = 100;
/// Groups that are counted one by one; a host plans for no more.
const GROUPS_MAX: usize = 10_000;
/// Most characters of what a journal or a policy says.
const TEXT_CHARS_MAX: usize = 1000;

/// What to do about a version that cannot be used.
pub(super) const ADVICE: &str =
    "replay its decisions with the release of fulcrum that recorded them, or choose others with --only";

/// Where a decision stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) file: &'a str,
    pub(super) line: u64,
}

/// See the module.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Segments looked into.
    pub(super) segments: u64,
    /// Segments that the host removed before they were looked into.
    pub(super) vanished: u64,
    /// Segments that could not be read, or not to their end.
    pub(super) unreadable: u64,
    /// Decisions read.
    pub(super) decisions: u64,
    /// Segments whose last line was not written to its end.
    pub(super) torn: u64,
    /// Lines that could not be read.
    pub(super) problems: u64,
    /// The first of them, and of the segments that could not be read.
    first_problems: Vec<String>,
    /// When the first and the last one were made, in milliseconds since 1970.
    from_ms: Option<u64>,
    to_ms: Option<u64>,
    scoring: Tally,
    claiming: Tally,
    /// Plans by group.
    groups: BTreeMap<String, Tally>,
    /// Plans of the groups beyond those.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_groups: Option<Tally>,
    /// Decisions that were also made by a fresh instance.
    alone: u64,
    /// Decisions whose configuration the other policy does not take; they were not asked.
    pub(super) refused: u64,
    /// Why it does not take the first of them.
    first_refusal: Option<String>,
    /// Decisions by policies that were not replayed, because their version is missing or unusable.
    pub(super) not_replayed: u64,
    /// Versions that were found nowhere.
    pub(super) missing: Vec<MissingVersion>,
    /// Versions that were found and cannot be used.
    pub(super) unusable: Vec<UnusableVersion>,
    /// Decisions that needed versions beyond those, missing or unusable.
    needing_others: u64,
    /// What could not be read where versions were looked for.
    unreadable_files: Vec<String>,
    /// Other choices first, then the same choice with another score, reason or next cycle.
    first_differences: Vec<Difference>,
    #[serde(skip)]
    changed: Vec<Difference>,
    #[serde(skip)]
    rescored: Vec<Difference>,
}

/// Counts of one role or group.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tally {
    decisions: u64,
    /// Came out the same, bit for bit.
    same: u64,
    /// The same choice, but another score, reason or next cycle.
    same_choice: u64,
    different: u64,
    /// Of the different ones, those that got no usable answer.
    no_answer: u64,
    /// Could not be made again: the version is missing, or the other policy does not offer the role or does not take the
    /// configuration.
    skipped: u64,
    /// Answered by the fallback then.
    by_fallback: u64,
    /// Failures then by outcome.
    failures: BTreeMap<&'static str, Failures>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Failures {
    recorded: u64,
    /// Tried again: those that depend on nothing but the input.
    tried: u64,
    /// Failed in the same way.
    again: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct MissingVersion {
    name: String,
    digest: String,
    decisions: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct UnusableVersion {
    name: String,
    digest: String,
    /// It in short, with its configuration.
    version: String,
    /// What is wrong, and what to do.
    problem: String,
    decisions: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Difference {
    file: String,
    line: u64,
    role: &'static str,
    /// Whether the choice is the same, and only what comes with it is another one.
    is_same_choice: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// Who decided: the policy's name, or `fallback`.
    policy: String,
    /// Its version, in short.
    version: String,
    recorded: String,
    /// Why, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recorded_why: Option<Why>,
    replayed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replayed_why: Option<Why>,
}

impl Report {
    /// Counts a decision that was read.
    pub(super) fn seen(&mut self, record: &Record) {
        self.decisions += 1;
        self.from_ms = Some(self.from_ms.map_or(record.at_ms(), |from| from.min(record.at_ms())));
        self.to_ms = self.to_ms.max(Some(record.at_ms()));
        self.count(record, |tally| tally.decisions += 1);
    }

    /// Counts a line that could not be read.
    pub(super) fn problem(&mut self, error: &Error) {
        self.problems += 1;
        self.tell(&error.to_string());
    }

    /// Counts a segment that could not be read.
    pub(super) fn cannot_read(&mut self, error: &anyhow::Error) {
        self.unreadable += 1;
        self.tell(&format!("{error:#}"));
    }

    fn tell(&mut self, problem: &str) {
        if self.first_problems.len() < TOLD_MAX {
            self.first_problems.push(cut(problem));
        }
    }

    pub(super) fn answered_by_fallback(&mut self, record: &Record) {
        self.count(record, |tally| tally.by_fallback += 1);
    }

    /// Counts a failure of the version that was asked then; `again` says whether it failed in the same way, if it was
    /// tried.
    pub(super) fn failed(&mut self, record: &Record, again: Option<bool>) {
        let outcome = record.course().outcome.name();
        self.count(record, |tally| {
            let failures = tally.failures.entry(outcome).or_default();
            failures.recorded += 1;
            failures.tried += u64::from(again.is_some());
            failures.again += u64::from(again == Some(true));
        });
    }

    /// Counts a decision whose version cannot be asked.
    pub(super) fn unable(&mut self, record: &Record, identity: &Identity, unable: &Unable) {
        if record.course().is_by_policy {
            self.not_asked(record);
            self.not_replayed += 1;
        } else {
            self.failed(record, None);
        }
        let (name, digest) = (cut(&identity.name), cut(&identity.digest));
        let is_known = match unable {
            Unable::Missing => {
                let known = self.missing.iter_mut().find(|missing| missing.digest == digest);
                known.map(|missing| missing.decisions += 1).is_some()
            }
            Unable::Unusable(_) => {
                let version = identity.label();
                let is_it = |known: &&mut UnusableVersion| {
                    (&known.name, &known.digest, &known.version) == (&name, &digest, &version)
                };
                self.unusable.iter_mut().find(is_it).map(|known| known.decisions += 1).is_some()
            }
        };
        if is_known {
            return;
        }
        match unable {
            Unable::Missing if self.missing.len() < VERSIONS_TOLD_MAX => {
                self.missing.push(MissingVersion { name, digest, decisions: 1 });
            }
            Unable::Unusable(problem) if self.unusable.len() < VERSIONS_TOLD_MAX => {
                let (version, problem) = (identity.label(), cut(problem));
                self.unusable.push(UnusableVersion { name, digest, version, problem, decisions: 1 });
            }
            _ => self.needing_others += 1,
        }
    }

    pub(super) fn not_asked(&mut self, record: &Record) {
        self.count(record, |tally| tally.skipped += 1);
    }

    /// Counts a decision that the other policy was not asked, as it does not take the configuration.
    pub(super) fn refused(&mut self, record: &Record, why: &str) {
        self.not_asked(record);
        self.refused += 1;
        self.first_refusal.get_or_insert_with(|| cut(why));
    }

    /// Counts how a decision came out; `alone` is what a fresh instance answered, if one was asked, too. Returns the
    /// difference if there is one that is told.
    pub(super) fn came_out(
        &mut self,
        place: Place<'_>,
        record: &Record,
        recorded: &Answer,
        replayed: &Result<Answer, Failure>,
        alone: Option<&Result<Answer, Failure>>,
    ) -> Option<&mut Difference> {
        let likeness = |answer: &Result<Answer, Failure>| match answer {
            Ok(answer) => recorded.likeness(answer, record),
            Err(_) => Likeness::Different,
        };
        self.alone += u64::from(alone.is_some());
        let (how, answer) = match alone {
            Some(alone) if likeness(replayed) == Likeness::Same => ("alone, on a fresh instance: ", alone),
            _ => ("", replayed),
        };
        let likeness = likeness(answer);
        self.count(record, |tally| match likeness {
            Likeness::Same => tally.same += 1,
            Likeness::SameChoice => tally.same_choice += 1,
            Likeness::Different => {
                tally.different += 1;
                tally.no_answer += u64::from(answer.is_err());
            }
        });
        let told = match likeness {
            Likeness::Same => return None,
            Likeness::SameChoice => &mut self.rescored,
            Likeness::Different => &mut self.changed,
        };
        if told.len() >= TOLD_MAX {
            return None;
        }
        let (recorded, replayed) = told_apart(record, recorded, answer);
        let course = record.course();
        let by = course.asked.as_ref().filter(|_| course.is_by_policy);
        told.push(Difference {
            file: place.file.to_owned(),
            line: place.line,
            role: role(record),
            is_same_choice: likeness == Likeness::SameChoice,
            client_id: client(record).map(str::to_owned),
            group: group(record).map(str::to_owned),
            policy: by.map_or(fallback::NAME, |by| &by.name).to_owned(),
            version: by.map(|by| by.label()).unwrap_or_default(),
            recorded,
            recorded_why: None,
            replayed: format!("{how}{replayed}"),
            replayed_why: None,
        });
        told.last_mut()
    }

    /// Puts the differences in order, once all is counted; `unreadable` could not be read where versions were looked for.
    pub(super) fn finish(&mut self, unreadable: &[String]) {
        self.unreadable_files = unreadable.iter().take(TOLD_MAX).cloned().collect();
        self.first_differences =
            self.changed.drain(..).chain(self.rescored.drain(..)).take(TOLD_MAX).collect();
    }

    /// Returns how many decisions were made again.
    pub(super) fn compared(&self) -> u64 {
        let of = |tally: &Tally| tally.same + tally.same_choice + tally.different;
        of(&self.scoring) + of(&self.claiming)
    }

    /// Returns how many decisions came out in any way other.
    pub(super) fn different(&self) -> u64 {
        let of = |tally: &Tally| tally.same_choice + tally.different;
        of(&self.scoring) + of(&self.claiming)
    }

    fn count(&mut self, record: &Record, count: impl Fn(&mut Tally)) {
        match record {
            Record::Scoring(_) => count(&mut self.scoring),
            Record::Claiming(claiming) => {
                count(&mut self.claiming);
                let group = &claiming.cycle.group;
                let has_room = self.groups.len() < GROUPS_MAX && group.len() <= NAME_BYTES_MAX;
                match self.groups.get_mut(group) {
                    Some(tally) => count(tally),
                    None if has_room => count(self.groups.entry(group.clone()).or_default()),
                    None => count(self.other_groups.get_or_insert_default()),
                }
            }
        }
    }

    /// Writes it for people.
    pub(super) fn text(&self, has_candidate: bool) -> String {
        let mut out = format!(
            "{} in {}",
            words::count(self.decisions, "decision"),
            words::count(self.segments, "segment")
        );
        if self.torn > 0 {
            out += &format!(", {} torn at the end", self.torn);
        }
        if self.vanished > 0 {
            out += &format!(", {} removed by the host meanwhile", self.vanished);
        }
        out += "\n\n";
        let titles = ["", "decisions", "same", "same choice", "different", "not asked"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        let row = |name: String, tally: &Tally| {
            let Tally { decisions, same, same_choice, different, skipped, .. } = tally;
            let counts = [decisions, same, same_choice, different, skipped];
            std::iter::once(name).chain(counts.map(ToString::to_string)).collect()
        };
        for (role, tally) in [("scoring", &self.scoring), ("claiming", &self.claiming)] {
            if tally.decisions > 0 {
                rows.push(row(role.to_owned(), tally));
            }
        }
        rows.extend(self.groups.iter().map(|(group, tally)| row(format!("  {group}"), tally)));
        rows.extend(self.other_groups.iter().map(|tally| row("  other groups".to_owned(), tally)));
        out += &crate::cli::table(&rows);
        for (role, tally) in [("scoring", &self.scoring), ("claiming", &self.claiming)] {
            if has_candidate {
                if tally.no_answer > 0 {
                    out += &format!("{role}: {} got no usable answer\n", tally.no_answer);
                }
                continue;
            }
            if tally.by_fallback > 0 {
                out += &format!("{role}: {} were answered by the fallback", tally.by_fallback);
                for (outcome, Failures { recorded, tried, again }) in &tally.failures {
                    out += &format!("; {outcome} {recorded}");
                    if *tried > 0 {
                        out += &format!(" ({again} of {tried} failed again)");
                    }
                }
                out.push('\n');
            }
        }
        if self.alone > 0 {
            out +=
                &format!("{} also made alone, on a fresh instance\n", words::count(self.alone, "decision"));
        }
        if let Some(refusal) = &self.first_refusal {
            out += &format!("{} not asked: {refusal}\n", words::count(self.refused, "decision"));
        }
        self.first_differences.iter().for_each(|difference| out += &difference.text());
        for MissingVersion { name, digest, decisions } in &self.missing {
            out += &format!(
                "\nthe component of {name} {digest} is needed for {}\n",
                words::count(*decisions, "decision")
            );
        }
        for UnusableVersion { name, version, problem, decisions, .. } in &self.unusable {
            let decisions = words::count(*decisions, "decision");
            out += &format!("\n{name} {version} cannot be used here, {decisions} needed it: {problem}\n");
        }
        if !self.unusable.is_empty() {
            out += &format!("  {ADVICE}\n");
        }
        if self.needing_others > 0 {
            let decisions = words::count(self.needing_others, "decision");
            out += &format!("\nmore versions are missing or unusable, {decisions} needed them\n");
        }
        if !self.missing.is_empty() {
            self.unreadable_files.iter().for_each(|file| out += &format!("\nnot looked into: {file}\n"));
        }
        for problem in &self.first_problems {
            out += &format!("\n{problem}\n");
        }
        out
    }
}

impl Difference {
    fn text(&self) -> String {
        let Self { file, line, role, client_id, group, policy, version, recorded, replayed, .. } = self;
        let whom = match (client_id.as_deref(), group) {
            (Some(""), _) => " for a client without a name".to_owned(),
            (Some(client), _) => format!(" for client {}", words::name(client)),
            (None, Some(group)) => format!(" for {group}"),
            (None, None) => String::new(),
        };
        let same = if self.is_same_choice { ", the same choice" } else { "" };
        let by = format!("{policy} {version}");
        let why = |why: &Option<Why>| {
            why.as_ref().map(|why| format!("            {}\n", why.text())).unwrap_or_default()
        };
        let mut out = format!("\n{file}:{line} {role}{whom}, decided by {}{same}\n", by.trim_end());
        out += &format!("  recorded  {recorded}\n{}", why(&self.recorded_why));
        out += &format!("  replayed  {replayed}\n{}", why(&self.replayed_why));
        out
    }
}

/// Returns a text as it is told: its beginning, if it is long.
fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn role(record: &Record) -> &'static str {
    match record {
        Record::Scoring(_) => "scoring",
        Record::Claiming(_) => "claiming",
    }
}

fn client(record: &Record) -> Option<&str> {
    match record {
        Record::Scoring(scoring) => Some(&scoring.request.client_id),
        Record::Claiming(_) => None,
    }
}

fn group(record: &Record) -> Option<&str> {
    match record {
        Record::Scoring(_) => None,
        Record::Claiming(claiming) => Some(&claiming.cycle.group),
    }
}

/// Describes two answers that differ, by what makes the difference.
fn told_apart(record: &Record, recorded: &Answer, replayed: &Result<Answer, Failure>) -> (String, String) {
    let failed = |failure: &Failure| format!("the policy {failure}");
    match (record, recorded, replayed) {
        (Record::Scoring(scoring), _, _) => {
            let name = |answer: &Answer| match answer {
                Answer::Scoring(Some(found)) => {
                    let id = &scoring.snapshot.roster.rows()[found.row].id;
                    format!("{id} at {:?}", found.score.get())
                }
                Answer::Scoring(None) | Answer::Claiming(_) => "nobody".to_owned(),
            };
            (name(recorded), replayed.as_ref().map_or_else(failed, name))
        }
        (Record::Claiming(claiming), Answer::Claiming(one), Ok(Answer::Claiming(other))) => {
            plan_words(&claiming.cycle, one, other)
        }
        (Record::Claiming(_), Answer::Claiming(one), Err(failure)) => (counts(one), failed(failure)),
        _ => (String::new(), String::new()),
    }
}

/// Describes two plans by the first thing in which they differ.
fn plan_words(cycle: &Cycle, one: &Plan, other: &Plan) -> (String, String) {
    let partition = |partition: usize| {
        let topic = cycle.topics.get(cycle.topic[partition] as usize).map_or("", String::as_str);
        format!("{topic}/{}", cycle.number[partition])
    };
    let claim = |plan: &Plan, at: usize| match plan.claims.get(at) {
        Some(claim) => {
            format!(
                "claim {at}: {} to {} ({})",
                partition(claim.partition),
                cycle.members[claim.member].id,
                claim.reason
            )
        }
        None => format!("no claim {at}"),
    };
    let release = |plan: &Plan, at: usize| match plan.releases.get(at) {
        Some(&released) => format!("release {at}: {}", partition(released)),
        None => format!("no release {at}"),
    };
    let next = |plan: &Plan| match plan.next_cycle_ms {
        Some(ms) => format!("next cycle in {ms} ms"),
        None => "no next cycle wanted".to_owned(),
    };
    let describe = |plan: &Plan| {
        let claims = one.claims.len().max(other.claims.len());
        if let Some(at) = (0..claims).find(|&at| one.claims.get(at) != other.claims.get(at)) {
            return claim(plan, at);
        }
        let releases = one.releases.len().max(other.releases.len());
        match (0..releases).find(|&at| one.releases.get(at) != other.releases.get(at)) {
            Some(at) => release(plan, at),
            None => next(plan),
        }
    };
    (format!("{}; {}", counts(one), describe(one)), format!("{}; {}", counts(other), describe(other)))
}

fn counts(plan: &Plan) -> String {
    let (claims, releases) = (plan.claims.len() as u64, plan.releases.len() as u64);
    format!("{}, {}", words::count(claims, "claim"), words::count(releases, "release"))
}
