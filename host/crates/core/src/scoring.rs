//! The scoring question: which instance should this client's next session go to?
//!
//! Invariants: a [`Roster`] is ordered by id with each id once; [`Loads`] has one entry per roster row in every
//! column; a [`Score`] is never a NaN; an answer that passed [`verify`] names a row that may be chosen.

use std::cmp::Ordering;
use std::sync::Arc;

/// Bits of the `flags` column, as the contract numbers them.
pub mod flags {
    /// The row's load is unknown; its numbers are 0 and mean nothing.
    pub const LOAD_UNKNOWN: u8 = 1;
    /// The row is draining and must not be chosen.
    pub const DRAINING: u8 = 2;
    /// The row's heartbeat is older than its time to live; it must not be chosen.
    pub const DEAD: u8 = 4;
    /// Any of these set means: must not be chosen.
    pub const NOT_CHOOSABLE: u8 = DRAINING | DEAD;
}

/// Who an instance is; one row of a roster.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Opaque name, 1 to 256 bytes.
    pub id: Arc<str>,
    /// Failure domain or place, empty when unknown.
    pub zone: String,
    /// Relative capacity, finite and above 0; 1.0 is a standard instance.
    pub capacity: f64,
    /// Labels ordered by key, each key once.
    pub labels: Vec<(String, String)>,
    /// Time since the instance joined, in milliseconds, when the roster was made.
    pub age_ms: u64,
}

/// The instances a decision may choose from, ordered by id, each id once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roster {
    rows: Vec<Instance>,
}

impl Roster {
    /// Orders the rows by id.
    ///
    /// Errors with the id that stands there twice.
    pub fn new(mut rows: Vec<Instance>) -> Result<Self, Arc<str>> {
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        match rows.windows(2).find(|pair| pair[0].id == pair[1].id) {
            Some(pair) => Err(pair[0].id.clone()),
            None => Ok(Self { rows }),
        }
    }

    /// Returns the rows, ordered by id.
    #[must_use]
    pub fn rows(&self) -> &[Instance] {
        &self.rows
    }

    /// Returns the row of `id`.
    #[must_use]
    pub fn row_of(&self, id: &str) -> Option<usize> {
        self.rows.binary_search_by(|row| (*row.id).cmp(id)).ok()
    }

    /// Returns how many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Says whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Loads of all rows as columns, one entry per roster row each. Units are those of the contract (`wit/policy.wit`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loads {
    /// Sessions reported with the last heartbeat.
    pub sessions: Vec<u32>,
    /// Bytes per second taken in.
    pub inflow: Vec<f64>,
    /// Bytes per second sent out.
    pub outflow: Vec<f64>,
    /// Share of the cores in use, `0.0..=1.0`.
    pub cpu: Vec<f64>,
    /// Time since the last heartbeat, in milliseconds.
    pub heartbeat_age_ms: Vec<u32>,
    /// Sessions given out since the last heartbeat.
    pub pending: Vec<u32>,
    /// Bits of [`flags`].
    pub flags: Vec<u8>,
}

/// The load of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Active sessions.
    pub sessions: u32,
    /// Bytes per second taken in; finite, 0 or more.
    pub inflow: f64,
    /// Bytes per second sent out; finite, 0 or more.
    pub outflow: f64,
    /// Share of the cores in use, `0.0..=1.0`.
    pub cpu: f64,
}

impl Loads {
    /// Makes columns of `len` rows with unknown load, fresh and empty.
    #[must_use]
    pub fn unknown(len: usize) -> Self {
        Self {
            sessions: vec![0; len],
            inflow: vec![0.0; len],
            outflow: vec![0.0; len],
            cpu: vec![0.0; len],
            heartbeat_age_ms: vec![0; len],
            pending: vec![0; len],
            flags: vec![flags::LOAD_UNKNOWN; len],
        }
    }

    /// Returns how many rows the columns have.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flags.len()
    }

    /// Says whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    /// Sets the reported load of one row; `None` marks it unknown. Draining and dead stay as they are.
    ///
    /// Panics if `row` is out of range.
    pub fn set(&mut self, row: usize, load: Option<Load>) {
        let value = load.unwrap_or_default();
        self.sessions[row] = value.sessions;
        self.inflow[row] = value.inflow;
        self.outflow[row] = value.outflow;
        self.cpu[row] = value.cpu;
        match load {
            Some(_) => self.flags[row] &= !flags::LOAD_UNKNOWN,
            None => self.flags[row] |= flags::LOAD_UNKNOWN,
        }
    }

    /// Returns the reported load of one row, `None` if unknown.
    ///
    /// Panics if `row` is out of range.
    #[must_use]
    pub fn get(&self, row: usize) -> Option<Load> {
        (self.flags[row] & flags::LOAD_UNKNOWN == 0).then(|| Load {
            sessions: self.sessions[row],
            inflow: self.inflow[row],
            outflow: self.outflow[row],
            cpu: self.cpu[row],
        })
    }

    /// Counts one more session given out to `row`.
    ///
    /// Panics if `row` is out of range.
    pub fn give_out(&mut self, row: usize) {
        self.pending[row] = self.pending[row].saturating_add(1);
    }
}

/// Everything a scoring decision depends on, besides the request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScoringSnapshot {
    /// Who can be chosen.
    pub roster: Arc<Roster>,
    /// How busy they are; as many rows as the roster.
    pub loads: Loads,
    /// Changes whenever the roster does; 0 when nobody counts.
    pub roster_revision: u64,
}

/// One client asks for an instance. All rows are indices into the roster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The client's own name, at most 256 bytes, may be empty.
    pub client_id: &'a str,
    /// Rows on which the client has sessions, ascending, each once.
    pub session_rows: &'a [u32],
    /// How many sessions it has on each of `session_rows`; same length.
    pub session_counts: &'a [u32],
    /// The client's traffic towards us, in bytes per second.
    pub client_inflow: f64,
    /// The client's traffic from us, in bytes per second.
    pub client_outflow: f64,
    /// Rows not to choose, ascending, each once.
    pub avoid: &'a [u32],
    /// The host's clock in milliseconds.
    pub now_ms: u64,
    /// Chance for this decision.
    pub seed: u64,
}

/// Cost of sending the next session somewhere; lower is better, never a NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score(f64);

impl Score {
    /// Returns `None` for a NaN.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (!value.is_nan()).then_some(Self(value))
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What a policy proposes, not yet verified.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// Row it chose.
    pub row: u32,
    /// What it says the row costs.
    pub score: f64,
}

/// A verified choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// Row of the roster.
    pub row: usize,
    /// What the row costs.
    pub score: Score,
}

/// Why one row costs what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreParts {
    /// Row of the roster.
    pub row: usize,
    /// Its score.
    pub score: Score,
    /// Named terms, no two of one name.
    pub parts: Vec<(String, f64)>,
}

/// What is wrong with an answer to the scoring question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// The row is not in the roster.
    #[error("row {row} is out of range, the roster has {len} rows")]
    RowOutOfRange {
        /// Row the policy named.
        row: u32,
        /// Rows there are.
        len: usize,
    },
    /// The score is a NaN.
    #[error("the score of row {row} is not a number")]
    NotANumber {
        /// Row the policy named.
        row: u32,
    },
    /// The row is flagged dead.
    #[error("row {row} ({id}) is dead")]
    Dead {
        /// Row the policy named.
        row: u32,
        /// Its instance.
        id: Arc<str>,
    },
    /// The row is draining.
    #[error("row {row} ({id}) is draining")]
    Draining {
        /// Row the policy named.
        row: u32,
        /// Its instance.
        id: Arc<str>,
    },
    /// The request excluded the row.
    #[error("row {row} ({id}) is excluded by the request")]
    Excluded {
        /// Row the policy named.
        row: u32,
        /// Its instance.
        id: Arc<str>,
    },
    /// An explanation lists a row twice.
    #[error("row {row} is explained twice")]
    Twice {
        /// Row the policy named.
        row: u32,
    },
    /// An answer is larger than the contract allows.
    #[error("{what} has {len} entries, at most {max} are allowed")]
    TooLarge {
        /// Which list or text.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The cap.
        max: usize,
    },
}

/// Says whether a row may be chosen for a request.
///
/// Panics if `row` is out of range.
#[must_use]
pub fn choosable(loads: &Loads, avoid: &[u32], row: usize) -> bool {
    loads.flags[row] & flags::NOT_CHOOSABLE == 0
        && !u32::try_from(row).is_ok_and(|row| avoid.binary_search(&row).is_ok())
}

/// Says whether any row may be chosen for a request.
#[must_use]
pub fn any_choosable(loads: &Loads, avoid: &[u32]) -> bool {
    (0..loads.len()).any(|row| choosable(loads, avoid, row))
}

/// Checks a proposal against what it was decided from (invariant 6).
pub fn verify(
    roster: &Roster,
    loads: &Loads,
    avoid: &[u32],
    proposal: Proposal,
) -> Result<Recommendation, Illegal> {
    let row = check_row(roster, loads, avoid, proposal.row)?;
    let score = Score::new(proposal.score).ok_or(Illegal::NotANumber { row: proposal.row })?;
    Ok(Recommendation { row, score })
}

/// Most named terms one row's explanation may have.
pub const PARTS_MAX: usize = 32;
/// Longest name of a term, in bytes.
pub const PART_NAME_BYTES_MAX: usize = 64;

/// Checks an explanation: each row may be chosen and stands there at most once, no score is a NaN, no list is too
/// long. Returns it ordered by score, equal scores by row; terms of one name are taken together, so that terms that are
/// kept by name still add up.
pub fn verify_explanation(
    roster: &Roster,
    loads: &Loads,
    avoid: &[u32],
    proposal: Vec<(Proposal, Vec<(String, f64)>)>,
) -> Result<Vec<ScoreParts>, Illegal> {
    if proposal.len() > roster.len() {
        return Err(Illegal::TooLarge { what: "explanation", len: proposal.len(), max: roster.len() });
    }
    let mut seen = vec![false; roster.len()];
    let mut rows = Vec::with_capacity(proposal.len());
    for (proposal, parts) in proposal {
        let Recommendation { row, score } = verify(roster, loads, avoid, proposal)?;
        if std::mem::replace(&mut seen[row], true) {
            return Err(Illegal::Twice { row: proposal.row });
        }
        if parts.len() > PARTS_MAX {
            return Err(Illegal::TooLarge { what: "parts", len: parts.len(), max: PARTS_MAX });
        }
        if let Some((name, _)) = parts.iter().find(|(name, _)| name.len() > PART_NAME_BYTES_MAX) {
            return Err(Illegal::TooLarge { what: "part name", len: name.len(), max: PART_NAME_BYTES_MAX });
        }
        rows.push(ScoreParts { row, score, parts: taken_together(parts) });
    }
    rows.sort_by(|a, b| a.score.cmp(&b.score).then(a.row.cmp(&b.row)));
    Ok(rows)
}

/// Adds up terms of one name, each in the place of the first.
fn taken_together(parts: Vec<(String, f64)>) -> Vec<(String, f64)> {
    let mut sums = Vec::<(String, f64)>::with_capacity(parts.len());
    for (name, value) in parts {
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += value,
            None => sums.push((name, value)),
        }
    }
    sums
}

fn check_row(roster: &Roster, loads: &Loads, avoid: &[u32], row: u32) -> Result<usize, Illegal> {
    let index = row as usize;
    let Some(instance) = roster.rows().get(index) else {
        return Err(Illegal::RowOutOfRange { row, len: roster.len() });
    };
    let id = || instance.id.clone();
    let flag = loads.flags[index];
    if flag & flags::DEAD != 0 {
        Err(Illegal::Dead { row, id: id() })
    } else if flag & flags::DRAINING != 0 {
        Err(Illegal::Draining { row, id: id() })
    } else if avoid.binary_search(&row).is_ok() {
        Err(Illegal::Excluded { row, id: id() })
    } else {
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(ids: &[&str]) -> Roster {
        let row = |id: &&str| Instance {
            id: Arc::from(*id),
            zone: String::new(),
            capacity: 1.0,
            labels: Vec::new(),
            age_ms: 0,
        };
        Roster::new(ids.iter().map(row).collect()).expect("ids differ")
    }

    #[test]
    fn a_roster_is_ordered_and_unique() {
        let sorted = roster(&["c", "a", "b"]);
        let ids: Vec<_> = sorted.rows().iter().map(|row| &*row.id).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(sorted.row_of("b"), Some(1));
        assert_eq!(sorted.row_of("x"), None);
        let twice = vec![sorted.rows()[0].clone(), sorted.rows()[0].clone()];
        assert_eq!(Roster::new(twice), Err(Arc::from("a")));
    }

    #[test]
    fn proposals_are_verified() {
        let roster = roster(&["a", "b", "c", "d"]);
        let mut loads = Loads::unknown(4);
        loads.flags = vec![flags::DEAD, flags::DRAINING | flags::LOAD_UNKNOWN, 0, flags::LOAD_UNKNOWN];
        let id = Arc::<str>::from;
        let cases = [
            (0, 1.0, Err(Illegal::Dead { row: 0, id: id("a") })),
            (1, 1.0, Err(Illegal::Draining { row: 1, id: id("b") })),
            (2, 1.0, Err(Illegal::Excluded { row: 2, id: id("c") })),
            (3, 1.0, Ok(3)),
            (3, f64::INFINITY, Ok(3)),
            (3, f64::NAN, Err(Illegal::NotANumber { row: 3 })),
            (4, 1.0, Err(Illegal::RowOutOfRange { row: 4, len: 4 })),
            (u32::MAX, 1.0, Err(Illegal::RowOutOfRange { row: u32::MAX, len: 4 })),
        ];
        for (row, score, expected) in cases {
            let found = verify(&roster, &loads, &[2], Proposal { row, score }).map(|answer| answer.row);
            assert_eq!(found, expected, "row {row}, score {score}");
        }
        assert!(any_choosable(&loads, &[2]));
        assert!(!any_choosable(&loads, &[2, 3]));
    }

    #[test]
    fn explanations_are_verified_and_ordered() {
        let roster = roster(&["a", "b", "c"]);
        let loads = Loads::unknown(3);
        let part = |row, score| (Proposal { row, score }, vec![("sessions".to_owned(), score)]);
        let rows = |proposal| {
            verify_explanation(&roster, &loads, &[], proposal)
                .map(|parts| parts.iter().map(|part| part.row).collect::<Vec<_>>())
        };
        assert_eq!(rows(vec![part(0, 3.0), part(2, 1.0), part(1, 1.0)]), Ok(vec![1, 2, 0]));
        assert_eq!(rows(vec![part(0, 3.0), part(0, 1.0)]), Err(Illegal::Twice { row: 0 }));
        assert_eq!(
            rows(vec![part(0, 1.0); 4]),
            Err(Illegal::TooLarge { what: "explanation", len: 4, max: 3 })
        );
        let many = vec![(Proposal { row: 0, score: 0.0 }, vec![(String::new(), 0.0); 33])];
        assert_eq!(rows(many), Err(Illegal::TooLarge { what: "parts", len: 33, max: 32 }));
    }

    #[test]
    fn terms_of_one_name_are_added_up() {
        let part = |name: &str, value| (name.to_owned(), value);
        let parts =
            vec![part("cpu", 5.0), part("sessions", 1.0), part("cpu", -2.0), part("", 0.5), part("", 0.25)];
        let proposal = vec![(Proposal { row: 0, score: 4.75 }, parts)];
        let rows = verify_explanation(&roster(&["a"]), &Loads::unknown(1), &[], proposal).expect("legal");
        assert_eq!(rows[0].parts, [part("cpu", 3.0), part("sessions", 1.0), part("", 0.75)]);
    }

    #[test]
    fn loads_keep_flags_apart() {
        let mut loads = Loads::unknown(1);
        loads.flags[0] |= flags::DRAINING;
        let load = Load { sessions: 2, inflow: 3.0, outflow: 4.0, cpu: 0.5 };
        loads.set(0, Some(load));
        assert_eq!((loads.flags[0], loads.get(0)), (flags::DRAINING, Some(load)));
        loads.set(0, None);
        assert_eq!((loads.flags[0], loads.get(0)), (flags::DRAINING | flags::LOAD_UNKNOWN, None));
    }
}
