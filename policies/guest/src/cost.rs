//! What a session costs on each row: the load-cost maths and the kept board of costs.
//!
//! Cost of row r for a client with k sessions on it, summed in exactly this order:
//!
//! ```text
//!   sessions * sessionWeight / capacity
//! + pending * pendingWeight / capacity
//! + (inflow + outflow) * byteWeight
//! + cpu * cpuWeight
//! + overload(cpu, inflow)
//! + k * (clientSessionWeight + clientTrafficWeight * byteWeight * client bytes per second / client sessions)
//! ```
//!
//! A row of unknown load costs `unknownScore` in place of the sessions, bytes, cpu and overload terms. With the
//! defaults, nothing pending, capacity 1.0 and a client without sessions this is Apache EventMesh's score (its
//! session-layer load meter, commit 0be4e8369), bit for bit.
//!
//! Overload is one of
//! - *cliff*: `overloadPenalty` if `cpu > cpuThreshold` or `inflow > inflowThreshold`, else 0;
//! - *smooth*: `overloadPenalty * max(ramp(cpu / cpuThreshold), ramp(inflow / inflowThreshold))` with
//!   `ramp(x) = t * t * (3 - 2 * t)`, `t = (x - (1 - w)) / (2 * w)` clamped to 0..=1 and w = `overloadWidth`. It is
//!   continuous and monotone, 0 up to `1 - w` times the threshold, half of the penalty at the threshold, and the
//!   whole of it from `1 + w` times the threshold up.
//!
//! Invariants: a cost is never NaN and never infinite for a row that may be chosen (what overflows is `f64::MAX`);
//! a cost follows from the loads and the pending *count* by one expression, so it does not depend on the order in
//! which sessions were given out; only `+ - * /` and comparisons are used, so wasm and native agree bit for bit.

use std::borrow::Cow;

use crate::config::Fields;
use crate::{Error, Loads, Recommendation, Request, Row, ScoreParts, flag};

/// How the overload penalty sets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overload {
    /// All at once, above a threshold.
    Cliff,
    /// Along a ramp around the thresholds.
    Smooth,
}

/// The settable constants of the cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Points per session.
    pub session: f64,
    /// Points per byte/s, in and out.
    pub byte: f64,
    /// Points for a full cpu.
    pub cpu: f64,
    /// Points an overloaded row costs more.
    pub overload_penalty: f64,
    /// Share of cpu above which a row is overloaded.
    pub cpu_threshold: f64,
    /// Inflow in bytes/s above which a row is overloaded.
    pub inflow_threshold: f64,
    /// Points of a row of unknown load.
    pub unknown_score: f64,
    /// Points per session given out since the row's heartbeat.
    pub pending: f64,
    /// Points per session of this client on the row.
    pub client_session: f64,
    /// Points per point of traffic that the client's sessions on the row cause.
    pub client_traffic: f64,
    /// How the overload penalty sets in.
    pub overload: Overload,
    /// Half the width of the smooth ramp, as a share of the threshold.
    pub overload_width: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            session: 1.0,
            byte: 0.001,
            cpu: 1000.0,
            overload_penalty: 10_000.0,
            cpu_threshold: 0.8,
            inflow_threshold: 5_000_000.0,
            unknown_score: 500.0,
            pending: 1.0,
            client_session: 1.0,
            client_traffic: 1.0,
            overload: Overload::Cliff,
            overload_width: 0.25,
        }
    }
}

/// Largest weight and score an operator may set.
pub const WEIGHT_MAX: f64 = 1e9;
/// Largest inflow threshold an operator may set, in bytes/s.
pub const INFLOW_THRESHOLD_MAX: f64 = 1e15;

impl Weights {
    /// Takes the weights out of a configuration; absent fields keep the value of `defaults`.
    ///
    /// Errors with [`Error::InvalidConfig`], which names the field.
    pub fn take(fields: &mut Fields, defaults: &Self) -> Result<Self, Error> {
        let weight = 0.0..=WEIGHT_MAX;
        Ok(Self {
            session: fields.number("sessionWeight", weight.clone(), defaults.session)?,
            byte: fields.number("byteWeight", weight.clone(), defaults.byte)?,
            cpu: fields.number("cpuWeight", weight.clone(), defaults.cpu)?,
            overload_penalty: fields.number("overloadPenalty", weight.clone(), defaults.overload_penalty)?,
            cpu_threshold: fields.number("cpuThreshold", 0.01..=1.0, defaults.cpu_threshold)?,
            inflow_threshold: fields.number(
                "inflowThreshold",
                1.0..=INFLOW_THRESHOLD_MAX,
                defaults.inflow_threshold,
            )?,
            unknown_score: fields.number("unknownScore", weight.clone(), defaults.unknown_score)?,
            pending: fields.number("pendingWeight", weight.clone(), defaults.pending)?,
            client_session: fields.number("clientSessionWeight", weight.clone(), defaults.client_session)?,
            client_traffic: fields.number("clientTrafficWeight", weight, defaults.client_traffic)?,
            overload: fields.choice(
                "overload",
                &[("cliff", Overload::Cliff), ("smooth", Overload::Smooth)],
                defaults.overload,
            )?,
            overload_width: fields.number("overloadWidth", 0.01..=1.0, defaults.overload_width)?,
        })
    }

    fn overload(&self, cpu: f64, inflow: f64) -> f64 {
        match self.overload {
            Overload::Cliff if self.cpu_threshold < cpu || self.inflow_threshold < inflow => {
                self.overload_penalty
            }
            Overload::Cliff => 0.0,
            Overload::Smooth => {
                let cpu = self.ramp(cpu / self.cpu_threshold);
                let inflow = self.ramp(inflow / self.inflow_threshold);
                self.overload_penalty * if cpu < inflow { inflow } else { cpu }
            }
        }
    }

    /// Returns 0 below the ramp, 1 above it, one half at `x` = 1.
    fn ramp(&self, x: f64) -> f64 {
        let t = ((x - (1.0 - self.overload_width)) / (2.0 * self.overload_width)).clamp(0.0, 1.0);
        t * t * (3.0 - 2.0 * t)
    }
}

/// The terms of a row's cost without the client's share.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Terms {
    sessions: f64,
    pending: f64,
    bytes: f64,
    cpu: f64,
    overload: f64,
    unknown: f64,
}

impl Terms {
    fn sum(&self) -> f64 {
        saturated(self.sessions + self.pending + self.bytes + self.cpu + self.overload + self.unknown)
    }
}

/// Rows a column is padded to, and rows looked at together: a tick is checked once per block, not once per row. 32 was
/// measured slower: the minima no longer fit into the vector registers.
const LANES: usize = 16;
/// Rows from which on the lowest cost of each block is kept.
const MINIMA_FROM: usize = 16 * LANES;
/// Cost of a row that may not be chosen, and of the padding.
const NEVER: f64 = f64::INFINITY;

/// The kept roster, loads and costs of a scoring policy.
///
/// Costs are kept in one column and the lowest of each block of it in another: giving a session out recomputes one row
/// and its block, and a decision is one look over the blocks and one into the block that has the lowest.
#[derive(Debug)]
pub struct Board {
    weights: Weights,
    capacity: Vec<f64>,
    loads: Loads,
    /// Per row its cost without the client's share, [`NEVER`] if it is dead or draining; padded to whole blocks.
    /// Empty before the first refresh.
    column: Vec<f64>,
    /// Per block of `column` its lowest cost; padded to whole blocks with [`NEVER`]. Empty for a short column, which
    /// is faster looked over as it is.
    minima: Vec<f64>,
    /// What the request under way covers up in `column`; empty between two calls.
    covered: Vec<(u32, f64)>,
}

impl Board {
    /// Makes an empty board.
    #[must_use]
    pub fn new(weights: Weights) -> Self {
        Self {
            weights,
            capacity: Vec::new(),
            loads: Loads::default(),
            column: Vec::new(),
            minima: Vec::new(),
            covered: Vec::new(),
        }
    }

    /// Replaces the roster and forgets all loads.
    ///
    /// Errors with [`Error::InvalidInput`] if a capacity is not finite and above 0.
    pub fn roster(&mut self, rows: &[Row]) -> Result<(), Error> {
        if !rows.iter().all(|row| 0.0 < row.capacity && row.capacity.is_finite()) {
            return Err(input("capacity must be finite and above 0"));
        }
        self.capacity = rows.iter().map(|row| row.capacity).collect();
        self.loads = Loads::default();
        self.column = Vec::new();
        self.minima = Vec::new();
        Ok(())
    }

    /// Replaces the loads.
    ///
    /// Errors with [`Error::InvalidInput`] if a column has another length than the roster, or holds a number that is
    /// negative or not finite.
    pub fn refresh(&mut self, loads: Loads) -> Result<(), Error> {
        let rows = self.capacity.len();
        for (name, length) in [
            ("sessions", loads.sessions.len()),
            ("inflow", loads.inflow.len()),
            ("outflow", loads.outflow.len()),
            ("cpu", loads.cpu.len()),
            ("heartbeat-age-ms", loads.heartbeat_age_ms.len()),
            ("pending", loads.pending.len()),
            ("flags", loads.flags.len()),
        ] {
            if length != rows {
                return Err(Error::InvalidInput(
                    ["column ", name, " has another length than the roster"].concat(),
                ));
            }
        }
        for (name, column) in [("inflow", &loads.inflow), ("outflow", &loads.outflow), ("cpu", &loads.cpu)] {
            if !column.iter().all(|&value| is_amount(value)) {
                return Err(Error::InvalidInput(["column ", name, " must be finite and 0 or more"].concat()));
            }
        }
        self.loads = loads;
        self.column.clear();
        self.column.resize(rows.next_multiple_of(LANES), NEVER);
        for row in 0..rows {
            self.reckon(row);
        }
        self.minima.clear();
        if rows >= MINIMA_FROM {
            let (blocks, _) = self.column.as_chunks::<LANES>();
            self.minima.extend(blocks.iter().map(least));
            self.minima.resize(blocks.len().next_multiple_of(LANES), NEVER);
        }
        Ok(())
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.capacity.len()
    }

    /// Returns whether the roster is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.capacity.is_empty()
    }

    /// Returns the capacity of a row.
    #[must_use]
    pub fn capacity(&self, row: usize) -> f64 {
        self.capacity[row]
    }

    /// Returns whether a row is neither dead nor draining.
    #[must_use]
    pub fn may_choose(&self, row: usize) -> bool {
        self.loads.flags[row] & (flag::DRAINING | flag::DEAD) == 0
    }

    /// Checks a request, and counts the rows it says were given out.
    ///
    /// Errors with [`Error::InvalidInput`], and counts nothing, if the request names a row out of range, a list is
    /// not ascending, its session columns differ in length, or its traffic is negative or not finite.
    #[inline]
    pub fn commit(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let rows = self.loads.flags.len();
        if rows != self.capacity.len() {
            return Err(input("the loads are missing: after a roster comes a refresh"));
        }
        if request.session_rows.len() != request.session_counts.len() {
            return Err(input("session-rows and session-counts differ in length"));
        }
        if !is_ascending_below(rows, request.session_rows) {
            return Err(input("session-rows must be ascending rows of the roster"));
        }
        if request.session_counts.contains(&0) {
            return Err(input("session-counts must be 1 or more"));
        }
        if !is_ascending_below(rows, request.avoid) {
            return Err(input("avoid must hold ascending rows of the roster"));
        }
        if !request.committed.iter().all(|&row| (row as usize) < rows) {
            return Err(input("committed names a row out of range"));
        }
        if !(is_amount(request.client_inflow) && is_amount(request.client_outflow)) {
            return Err(input("client-inflow and client-outflow must be finite and 0 or more"));
        }
        for &row in request.committed {
            let row = row as usize;
            self.loads.pending[row] = self.loads.pending[row].saturating_add(1);
            self.reckon(row);
            if !self.minima.is_empty() {
                self.settle(row / LANES);
            }
        }
        Ok(())
    }

    /// Returns the cheapest row for a request that [`commit`](Self::commit) took; among equals the lowest row.
    #[inline]
    pub fn cheapest(&mut self, request: &Request<'_>) -> Option<Recommendation> {
        if !request.session_rows.is_empty() {
            let share = self.client_share(request);
            for (&row, &count) in request.session_rows.iter().zip(request.session_counts) {
                let cost = self.column[row as usize];
                if cost < NEVER {
                    self.cover(row, with_client(cost, count, share));
                }
            }
        }
        for &row in request.avoid {
            self.cover(row, NEVER);
        }
        if self.covered.is_empty() {
            return self.lowest();
        }
        self.settle_covered();
        let lowest = self.lowest();
        // Backwards: a row may have been covered twice.
        for at in (0..self.covered.len()).rev() {
            let (row, cost) = self.covered[at];
            self.column[row as usize] = cost;
        }
        self.settle_covered();
        self.covered.clear();
        lowest
    }

    #[inline]
    fn lowest(&self) -> Option<Recommendation> {
        if self.minima.is_empty() {
            return lowest(&self.column).map(|(row, score)| Recommendation { row: row as u32, score });
        }
        let (block, score) = lowest(&self.minima)?;
        let lane = self.column[block * LANES..].iter().position(|cost| *cost == score)?;
        Some(Recommendation { row: (block * LANES + lane) as u32, score })
    }

    /// Finds the lowest cost of a block anew.
    fn settle(&mut self, block: usize) {
        let (blocks, _) = self.column.as_chunks::<LANES>();
        self.minima[block] = least(&blocks[block]);
    }

    /// Does so for every block with a covered row; the rows ascend but for one step back, so each block comes up
    /// once or twice.
    fn settle_covered(&mut self) {
        if self.minima.is_empty() {
            return;
        }
        let mut last = usize::MAX;
        for at in 0..self.covered.len() {
            let block = self.covered[at].0 as usize / LANES;
            if block != last {
                self.settle(block);
                last = block;
            }
        }
    }

    /// Returns the cost of one row that may be chosen, for a request that [`commit`](Self::commit) took; `share` is
    /// what [`client_share`](Self::client_share) returned for it.
    #[inline]
    #[must_use]
    pub fn cost(&self, row: u32, request: &Request<'_>, share: f64) -> f64 {
        let cost = self.column[row as usize];
        match request.session_rows.binary_search(&row) {
            Ok(at) => with_client(cost, request.session_counts[at], share),
            Err(_) => cost,
        }
    }

    /// Returns what each session of this client adds to the cost of the row it is on; 0.0 if it has none.
    #[inline]
    #[must_use]
    pub fn client_share(&self, request: &Request<'_>) -> f64 {
        let total: u64 = request.session_counts.iter().map(|&count| u64::from(count)).sum();
        if total == 0 {
            return 0.0;
        }
        let traffic = saturated(request.client_inflow + request.client_outflow);
        let weights = &self.weights;
        saturated(weights.client_session + weights.client_traffic * weights.byte * traffic / total as f64)
    }

    /// Explains every row that may be chosen, in the order of the roster, for a request that
    /// [`commit`](Self::commit) took.
    #[must_use]
    pub fn explain(&self, request: &Request<'_>) -> Vec<ScoreParts> {
        let share = self.client_share(request);
        (0..self.len() as u32)
            .filter(|row| self.may_choose(*row as usize) && request.avoid.binary_search(row).is_err())
            .map(|row| {
                let terms = self.terms(row as usize);
                let score = self.cost(row, request, share);
                let client = match request.session_rows.binary_search(&row) {
                    Ok(at) => saturated(f64::from(request.session_counts[at]) * share),
                    Err(_) => 0.0,
                };
                let is_unknown = self.loads.flags[row as usize] & flag::UNKNOWN != 0;
                let mut parts = Vec::with_capacity(6);
                let mut part =
                    |name: &'static str, value: f64| parts.push((Cow::Borrowed(name), saturated(value)));
                if is_unknown {
                    part("unknown", terms.unknown);
                    part("pending", terms.pending);
                } else {
                    part("sessions", terms.sessions);
                    part("pending", terms.pending);
                    part("bytes", terms.bytes);
                    part("cpu", terms.cpu);
                    part("overload", terms.overload);
                }
                part("client", client);
                ScoreParts { row, score, parts }
            })
            .collect()
    }

    fn cover(&mut self, row: u32, cost: f64) {
        let kept = std::mem::replace(&mut self.column[row as usize], cost);
        self.covered.push((row, kept));
    }

    /// Recomputes the cost of one row.
    fn reckon(&mut self, row: usize) {
        self.column[row] = if self.may_choose(row) { self.terms(row).sum() } else { NEVER };
    }

    fn terms(&self, row: usize) -> Terms {
        let (weights, loads, capacity) = (&self.weights, &self.loads, self.capacity[row]);
        let pending = f64::from(loads.pending[row]) * weights.pending / capacity;
        if loads.flags[row] & flag::UNKNOWN != 0 {
            let unknown = weights.unknown_score;
            return Terms { sessions: 0.0, pending, bytes: 0.0, cpu: 0.0, overload: 0.0, unknown };
        }
        Terms {
            sessions: f64::from(loads.sessions[row]) * weights.session / capacity,
            pending,
            bytes: saturated(loads.inflow[row] + loads.outflow[row]) * weights.byte,
            cpu: loads.cpu[row] * weights.cpu,
            overload: weights.overload(loads.cpu[row], loads.inflow[row]),
            unknown: 0.0,
        }
    }
}

/// Returns the lowest cost of a block. In halves: one after the other, each would wait for the one before.
#[inline]
fn least(block: &[f64; LANES]) -> f64 {
    let mut lanes = *block;
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            let (a, b) = (lanes[lane], lanes[lane + half]);
            lanes[lane] = if b < a { b } else { a };
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the lowest cost and the first row that has it; none if every cost is [`NEVER`].
///
/// `column` must be whole blocks. Two looks without a branch per row: the minimum in independent lanes, which become
/// vector instructions, then the first block and lane that hold it.
#[inline]
fn lowest(column: &[f64]) -> Option<(usize, f64)> {
    let (blocks, _) = column.as_chunks::<LANES>();
    let mut lanes = [NEVER; LANES];
    for block in blocks {
        for (lane, &cost) in lanes.iter_mut().zip(block) {
            *lane = if cost < *lane { cost } else { *lane };
        }
    }
    let least = lanes.into_iter().fold(NEVER, |least, lane| if lane < least { lane } else { least });
    if least == NEVER {
        return None;
    }
    let is_least = |cost: &f64| *cost == least;
    let block =
        blocks.iter().position(|block| block.iter().fold(false, |found, cost| found | is_least(cost)))?;
    let lane = blocks[block].iter().position(is_least)?;
    Some((block * LANES + lane, least))
}

fn with_client(cost: f64, count: u32, share: f64) -> f64 {
    saturated(cost + f64::from(count) * share)
}

/// Returns `value`, or the largest finite number in place of infinity and NaN. For sums of amounts.
fn saturated(value: f64) -> f64 {
    if value < f64::MAX { value } else { f64::MAX }
}

fn is_amount(value: f64) -> bool {
    value.is_finite() && 0.0 <= value
}

fn is_ascending_below(bound: usize, rows: &[u32]) -> bool {
    let mut next = 0;
    for &row in rows {
        let row = row as usize;
        if row < next || bound <= row {
            return false;
        }
        next = row + 1;
    }
    true
}

fn input(problem: &str) -> Error {
    Error::InvalidInput(problem.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smooth_ramp_is_monotone_and_half_at_the_threshold() {
        let weights = Weights { overload: Overload::Smooth, ..Weights::default() };
        assert_eq!(weights.overload(0.8, 0.0), 5000.0);
        assert_eq!(weights.overload(0.0, 5_000_000.0), 5000.0);
        assert_eq!(weights.overload(0.6, 3_750_000.0), 0.0);
        assert_eq!(weights.overload(1.0, 0.0), 10_000.0);
        assert_eq!(weights.overload(0.0, 6_250_000.0), 10_000.0);
        let mut before = 0.0;
        for step in 0..=1200 {
            let now = weights.overload(f64::from(step) / 1000.0, 0.0);
            assert!(before <= now && now - before < 40.0, "at {step}: {before} then {now}");
            before = now;
        }
    }

    fn row(at: usize) -> Row {
        Row { id: format!("i{at:04}"), zone: String::new(), capacity: 1.0, labels: Vec::new(), age_ms: 0 }
    }

    proptest! {
        // Long enough for minima of blocks, which must never be out of step with the column.
        #[test]
        fn a_long_board_finds_what_a_plain_scan_finds(
            sessions in prop::collection::vec(0_u32..20, MINIMA_FROM - 20..MINIMA_FROM + 60),
            dead in prop::collection::btree_set(0_u32..400, 0..300),
            calls in prop::collection::vec(
                (
                    prop::collection::vec(0_u32..400, 0..3),
                    prop::collection::btree_set(0_u32..400, 0..300),
                    prop::collection::btree_map(0_u32..400, 1_u32..9, 0..5),
                ),
                1..8,
            ),
        ) {
            let rows = sessions.len();
            let is_row = |row: &u32| (*row as usize) < rows;
            let mut board = Board::new(Weights::default());
            board.roster(&(0..rows).map(row).collect::<Vec<_>>()).expect("a good roster");
            let zeros = || vec![0.0; rows];
            let mut loads = Loads {
                sessions,
                inflow: zeros(),
                outflow: zeros(),
                cpu: zeros(),
                heartbeat_age_ms: vec![0; rows],
                pending: vec![0; rows],
                flags: vec![0; rows],
            };
            for row in dead.into_iter().filter(is_row) {
                loads.flags[row as usize] = flag::DEAD;
            }
            board.refresh(loads).expect("good loads");
            let mut chosen = None;
            for (committed, avoid, own) in calls {
                // With the row just chosen, as it is in service: the lowest cost changes from call to call.
                let committed: Vec<u32> = committed.into_iter().chain(chosen).filter(is_row).collect();
                let avoid: Vec<u32> = avoid.into_iter().filter(is_row).collect();
                let (session_rows, session_counts): (Vec<u32>, Vec<u32>) =
                    own.into_iter().filter(|(row, _)| is_row(row)).unzip();
                let request = Request {
                    committed: &committed,
                    avoid: &avoid,
                    session_rows: &session_rows,
                    session_counts: &session_counts,
                    ..Request::default()
                };
                board.commit(&request).expect("a good request");
                let mut expected: Option<Recommendation> = None;
                let share = board.client_share(&request);
                for row in (0..rows as u32).filter(|row| board.may_choose(*row as usize) && !avoid.contains(row)) {
                    let score = board.cost(row, &request, share);
                    if expected.is_none_or(|best| score < best.score) {
                        expected = Some(Recommendation { row, score });
                    }
                }
                prop_assert_eq!(board.cheapest(&request), expected);
                chosen = expected.map(|best| best.row);
            }
        }
    }

    proptest! {
        #[test]
        fn finds_the_first_of_the_lowest(costs in prop::collection::vec(
            prop_oneof![3 => (0_u8..6).prop_map(f64::from), 1 => Just(NEVER)], 0..80,
        )) {
            let mut column = costs.clone();
            column.resize(costs.len().next_multiple_of(LANES), NEVER);
            let mut expected = None;
            for (row, &cost) in costs.iter().enumerate() {
                if cost < expected.map_or(NEVER, |(_, least)| least) {
                    expected = Some((row, cost));
                }
            }
            prop_assert_eq!(lowest(&column), expected);
        }
    }
}
