//! Reading lines as decisions.

use std::collections::{HashSet, VecDeque};
use std::io::{self, BufRead, Read as _};
use std::sync::Arc;

use fulcrum_core::claiming::{Claim, Cycle, Member, Plan, Reason};
use fulcrum_core::scoring::{Instance, Loads, Recommendation, Roster, Score, ScoringSnapshot};
use serde::Deserialize;

use super::encoder::policy_bytes;
use super::line::{self, By};
use super::{
    Claiming, Course, Entry, FORMAT, Header, LINE_BYTES_MAX, POLICIES_BYTES_KEPT, POLICIES_KEPT, Record,
    SNAPSHOTS_KEPT, Scoring,
};
use crate::failure::Outcome;
use crate::seat::{Identity, OwnedRequest};

/// What is wrong with a segment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read on.
    #[error("cannot read {name}")]
    Read {
        /// The segment, as its reader was told.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A line is not one of this format. Those after it can still be read.
    #[error("{name}:{line}: {problem}")]
    Line {
        /// The segment.
        name: String,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// Another version wrote the segment, or it is none: nothing in it can be read.
    #[error("{name}: {problem}")]
    Foreign {
        /// The segment.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

/// Reads the decisions of one segment, in the order they were written.
///
/// A last line without its end was being written when the host was killed: it is left out, see [`Self::is_torn`].
pub struct Reader<R> {
    name: String,
    input: R,
    text: Vec<u8>,
    line: u64,
    line_bytes_max: usize,
    header: Option<Header>,
    policies: Recent<Arc<Identity>>,
    rosters: Recent<Arc<Roster>>,
    snapshots: Recent<Arc<ScoringSnapshot>>,
    is_torn: bool,
    is_over: bool,
}

/// What became of reading a line.
enum Advance {
    Whole,
    /// It is longer than lines may be, and was passed over.
    TooLong,
    End,
}

/// The last of what lines refer to by an id.
struct Recent<T> {
    what: &'static str,
    len_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// Id, item and its bytes, oldest first.
    items: VecDeque<(u64, T, usize)>,
}

impl<T> Recent<T> {
    fn new(what: &'static str, len_max: usize, bytes_max: usize) -> Self {
        Self { what, len_max, bytes_max, bytes: 0, items: VecDeque::new() }
    }

    fn put(&mut self, id: u64, item: T, bytes: usize) {
        while !self.items.is_empty()
            && (self.items.len() >= self.len_max || self.bytes + bytes > self.bytes_max)
        {
            self.bytes -= self.items.pop_front().map_or(0, |(.., bytes)| bytes);
        }
        self.bytes += bytes;
        self.items.push_back((id, item, bytes));
    }

    fn find(&self, id: u64) -> Result<&T, String> {
        let found = self.items.iter().rev().find(|(of, ..)| *of == id).map(|(_, item, _)| item);
        found
            .ok_or_else(|| format!("the {} {id} is not among the last {} before it", self.what, self.len_max))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the header. `name` is what errors call the segment.
    pub fn open(name: impl Into<String>, input: R) -> Result<Self, Error> {
        Self::open_with(name, input, LINE_BYTES_MAX)
    }

    /// Opens one of which lines may be so long.
    pub(super) fn open_with(name: impl Into<String>, input: R, line_bytes_max: usize) -> Result<Self, Error> {
        let mut reader = Self {
            name: name.into(),
            input,
            text: Vec::new(),
            line: 0,
            line_bytes_max,
            header: None,
            policies: Recent::new("policy", POLICIES_KEPT, POLICIES_BYTES_KEPT),
            rosters: Recent::new("roster", SNAPSHOTS_KEPT, usize::MAX),
            snapshots: Recent::new("snapshot", SNAPSHOTS_KEPT, usize::MAX),
            is_torn: false,
            is_over: false,
        };
        let header = match reader.advance()? {
            Advance::Whole => header(&reader.text),
            Advance::TooLong => Err(no_segment()),
            Advance::End => return Ok(reader),
        };
        let foreign = |problem| Error::Foreign { name: reader.name.clone(), problem };
        reader.header = Some(header.map_err(foreign)?);
        Ok(reader)
    }

    /// Returns who wrote it; `None` if not even that was written to its end.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Says whether the end is a line that was not written to its end; known once all has been read.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Reads the next line.
    fn advance(&mut self) -> Result<Advance, Error> {
        self.text.clear();
        self.line += 1;
        let read = self.read_line();
        read.map_err(|source| {
            self.is_over = true;
            Error::Read { name: self.name.clone(), source }
        })
    }

    fn read_line(&mut self) -> io::Result<Advance> {
        // Its end is one byte more.
        let most = self.line_bytes_max as u64 + 1;
        self.input.by_ref().take(most).read_until(b'\n', &mut self.text)?;
        if self.text.pop_if(|byte| *byte == b'\n').is_some() {
            return Ok(Advance::Whole);
        }
        let is_too_long = self.text.len() > self.line_bytes_max;
        if is_too_long {
            self.text.clear();
            if self.pass_over_line()? {
                return Ok(Advance::TooLong);
            }
        }
        self.is_over = true;
        self.is_torn = is_too_long || !self.text.is_empty();
        Ok(Advance::End)
    }

    /// Returns how many policies, rosters and snapshots it keeps.
    #[cfg(test)]
    pub(super) fn kept(&self) -> [usize; 3] {
        [self.policies.items.len(), self.rosters.items.len(), self.snapshots.items.len()]
    }

    /// Passes over the rest of a line; returns false if it has no end.
    fn pass_over_line(&mut self) -> io::Result<bool> {
        loop {
            let buffer = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                return Ok(false);
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let passed = end.map_or(buffer.len(), |end| end + 1);
            self.input.consume(passed);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// Takes the line in; returns the decision if it is one.
    fn take(&mut self) -> Result<Option<Record>, String> {
        let text = std::str::from_utf8(&self.text).map_err(|error| error.to_string())?;
        let line::Kind { kind } = parse(text)?;
        match &*kind {
            "policy" => {
                let line::PolicyRead { id, name, digest, config } = parse(text)?;
                let identity = Identity { name, digest, config: config.to_string() };
                let bytes = policy_bytes(&identity);
                self.policies.put(id, Arc::new(identity), bytes);
            }
            "roster" => {
                let line: line::Roster<'_> = parse(text)?;
                self.rosters.put(line.id, Arc::new(roster(line.rows)?), 0);
            }
            "snapshot" => {
                let line: line::Snapshot<'_> = parse(text)?;
                let roster = self.rosters.find(line.roster)?;
                let loads = loads(line.loads, roster.len())?;
                // Replays tell rosters apart by who they are.
                let snapshot = ScoringSnapshot { roster: roster.clone(), loads, roster_revision: 0 };
                self.snapshots.put(line.id, Arc::new(snapshot), 0);
            }
            "scoring" => {
                return self.scoring(parse(text)?).map(|found| Some(Record::Scoring(Box::new(found))));
            }
            "claiming" => {
                return self.claiming(parse(text)?).map(|found| Some(Record::Claiming(Box::new(found))));
            }
            other => return Err(format!("the kind {other:?} is unknown")),
        }
        Ok(None)
    }

    fn scoring(&self, line: line::Scoring<'_>) -> Result<Scoring, String> {
        let snapshot = self.snapshots.find(line.snapshot)?.clone();
        let rows = snapshot.roster.rows();
        if let Some(row) = line.committed.iter().find(|row| **row as usize >= rows.len()) {
            return Err(format!("committed names row {row}, the roster has {}", rows.len()));
        }
        let row = index("row", line.row, rows.len())?;
        if *rows[row].id != *line.id {
            return Err(format!("row {row} is {:?}, not {:?}", rows[row].id, line.id));
        }
        let score = Score::new(line.score).ok_or("the score is not a number")?;
        let request = line.request;
        Ok(Scoring {
            committed: line.committed.into_owned(),
            request: OwnedRequest {
                client_id: request.client_id.into_owned(),
                session_rows: request.session_rows.into_owned(),
                session_counts: request.session_counts.into_owned(),
                client_inflow: request.inflow,
                client_outflow: request.outflow,
                avoid: request.avoid.into_owned(),
                now_ms: line.at_ms,
                seed: request.seed,
            },
            course: self.course(line.policy, &line.outcome, line.failure, line.by, line.nanos)?,
            answer: Recommendation { row, score },
            snapshot,
        })
    }

    fn claiming(&self, line: line::Claiming<'_>) -> Result<Claiming, String> {
        let cycle = cycle(line.group.into_owned(), line.at_ms, line.cycle)?;
        Ok(Claiming {
            course: self.course(line.policy, &line.outcome, line.failure, line.by, line.nanos)?,
            plan: plan(&cycle, &line.plan)?,
            cycle,
        })
    }

    fn course(
        &self,
        policy: Option<u64>,
        outcome: &str,
        failure: Option<std::borrow::Cow<'_, str>>,
        by: By,
        nanos: u64,
    ) -> Result<Course, String> {
        let asked = policy.map(|id| self.policies.find(id).cloned()).transpose()?;
        let is_by_policy = by == By::Policy;
        if is_by_policy && asked.is_none() {
            return Err("it is by a policy, but by none in particular".to_owned());
        }
        let known = Outcome::ALL.into_iter().find(|known| known.name() == outcome);
        let known = known.ok_or_else(|| format!("the outcome {outcome:?} is unknown"))?;
        if is_by_policy && known != Outcome::Ok {
            return Err(format!("it is by a policy, whose outcome {outcome:?} is no answer"));
        }
        Ok(Course {
            asked,
            outcome: known,
            failure: failure.map(std::borrow::Cow::into_owned),
            is_by_policy,
            nanos,
        })
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            match self.advance() {
                Ok(Advance::Whole) => {}
                Ok(Advance::TooLong) => {
                    let problem = format!("the line is longer than {} bytes", self.line_bytes_max);
                    return Some(Err(Error::Line { name: self.name.clone(), line: self.line, problem }));
                }
                Ok(Advance::End) => return None,
                Err(error) => return Some(Err(error)),
            }
            match self.take() {
                Ok(Some(record)) => return Some(Ok(Entry { line: self.line, record })),
                Ok(None) => {}
                Err(problem) => {
                    return Some(Err(Error::Line { name: self.name.clone(), line: self.line, problem }));
                }
            }
        }
        None
    }
}

fn header(text: &[u8]) -> Result<Header, String> {
    /// What stays the same in every format.
    #[derive(Deserialize)]
    struct Mark {
        format: u32,
    }
    let text = std::str::from_utf8(text).map_err(|_| no_segment())?;
    let kind: line::Kind<'_> = parse(text).map_err(|_| no_segment())?;
    let mark: Mark = parse(text).map_err(|_| no_segment())?;
    if kind.kind != "header" {
        return Err(no_segment());
    }
    if mark.format != FORMAT {
        return Err(format!(
            "it has format {}, this version reads format {FORMAT}: use the version that wrote it",
            mark.format
        ));
    }
    parse(text)
}

fn no_segment() -> String {
    "it is no segment of a journal: its first line is no header".to_owned()
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    // An array would be read as the fields in their order.
    if !text.starts_with('{') {
        return Err("it is no JSON object".to_owned());
    }
    serde_json::from_str(text).map_err(|error| {
        // The line within the line is always 1.
        error.to_string().replace(" at line 1 column ", " at column ")
    })
}

fn index(what: &str, value: u64, len: usize) -> Result<usize, String> {
    let index = usize::try_from(value).ok().filter(|index| *index < len);
    index.ok_or_else(|| format!("{what} {value} is out of range, there are {len}"))
}

fn same_length(lengths: &[(&str, usize)], expected: usize) -> Result<(), String> {
    match lengths.iter().find(|(_, len)| *len != expected) {
        Some((column, len)) => Err(format!("the column {column} has {len} entries, not {expected}")),
        None => Ok(()),
    }
}

fn roster(lines: Vec<line::Instance<'_>>) -> Result<Roster, String> {
    let row = |row: line::Instance<'_>| Instance {
        id: Arc::from(&*row.id),
        zone: row.zone.into_owned(),
        capacity: row.capacity,
        labels: row.labels.into_owned(),
        age_ms: row.age_ms,
    };
    let rows: Vec<_> = lines.into_iter().map(row).collect();
    if !rows.is_sorted_by(|a, b| a.id < b.id) {
        return Err("the roster is not ordered by id, each id once".to_owned());
    }
    Roster::new(rows).map_err(|id| format!("{id:?} stands in the roster twice"))
}

fn loads(line: line::Loads<'_>, len: usize) -> Result<Loads, String> {
    let lengths = [
        ("sessions", line.sessions.len()),
        ("inflow", line.inflow.len()),
        ("outflow", line.outflow.len()),
        ("cpu", line.cpu.len()),
        ("heartbeatAgeMs", line.heartbeat_age_ms.len()),
        ("pending", line.pending.len()),
        ("flags", line.flags.len()),
    ];
    same_length(&lengths, len)?;
    Ok(Loads {
        sessions: line.sessions.into_owned(),
        inflow: line.inflow.into_owned(),
        outflow: line.outflow.into_owned(),
        cpu: line.cpu.into_owned(),
        heartbeat_age_ms: line.heartbeat_age_ms.into_owned(),
        pending: line.pending.into_owned(),
        flags: line.flags.into_owned(),
    })
}

fn cycle(group: String, now_ms: u64, line: line::Cycle<'_>) -> Result<Cycle, String> {
    let lengths = [
        ("number", line.number.len()),
        ("place", line.place.len()),
        ("owner", line.owner.len()),
        ("moving", line.moving.len()),
        ("weight", line.weight.len()),
        ("heldMs", line.held_ms.len()),
    ];
    same_length(&lengths, line.topic.len())?;
    for &topic in &*line.topic {
        index("topic", topic.into(), line.topics.len())?;
    }
    for &place in &*line.place {
        index("place", place.into(), line.places.len())?;
    }
    let mut seen = HashSet::with_capacity(line.topic.len());
    for (&topic, &number) in line.topic.iter().zip(&*line.number) {
        let topic = &line.topics[topic as usize];
        if !seen.insert((topic, number)) {
            return Err(format!("{topic}/{number} stands in the cycle twice"));
        }
    }
    drop(seen);
    for owner in line.owner.iter().filter_map(|owner| u64::try_from(*owner).ok()) {
        index("owner", owner, line.members.len())?;
    }
    let member = |member: line::Member<'_>| Member {
        id: member.id.into_owned(),
        zone: member.zone.into_owned(),
        labels: member.labels.into_owned(),
        capacity: member.capacity,
        since_ms: member.since_ms,
        topics: member.topics.into_owned(),
    };
    Ok(Cycle {
        group,
        members: line.members.into_iter().map(member).collect(),
        topics: line.topics.into_owned(),
        places: line.places.into_owned(),
        topic: line.topic.into_owned(),
        number: line.number.into_owned(),
        place: line.place.into_owned(),
        owner: line.owner.into_owned(),
        moving: line.moving.into_owned(),
        weight: line.weight.into_owned(),
        held_ms: line.held_ms.into_owned(),
        movement_budget: line.movement_budget,
        reason: Reason::from_word(&line.reason)
            .ok_or_else(|| format!("the reason {:?} is unknown", line.reason))?,
        now_ms,
        seed: line.seed,
    })
}

fn plan(cycle: &Cycle, line: &line::Plan<'_>) -> Result<Plan, String> {
    let lengths = [("member", line.member.len()), ("reason", line.reason.len())];
    same_length(&lengths, line.partition.len())?;
    let claim = |((&partition, &member), &reason): ((&u64, &u64), &u64)| {
        Ok(Claim {
            partition: index("partition", partition, cycle.owner.len())?,
            member: index("member", member, cycle.members.len())?,
            reason: line.reasons[index("reason", reason, line.reasons.len())?].clone().into_owned(),
        })
    };
    let claims = line.partition.iter().zip(&line.member).zip(&line.reason).map(claim);
    let release = |&partition: &u64| index("partition", partition, cycle.owner.len());
    Ok(Plan {
        claims: claims.collect::<Result<_, String>>()?,
        releases: line.releases.iter().map(release).collect::<Result<_, String>>()?,
        next_cycle_ms: line.next_cycle_ms,
    })
}
