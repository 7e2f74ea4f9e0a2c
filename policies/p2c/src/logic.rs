//! The power of two choices: a few rows drawn by capacity, the cheapest of them wins.
//!
//! Several hosts that decide from the same stale loads do not all pick the same row, and a decision costs the same
//! for any number of rows. Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS
//! 2001. The cost is that of `weighted` ([`fulcrum_guest::cost`]), by default with the smooth overload penalty. Of
//! rows that cost the same, the one drawn first wins, so that equal rows share evenly.

use fulcrum_guest::config::Fields;
use fulcrum_guest::cost::{Board, Overload, Weights};
use fulcrum_guest::seeded::Seeded;
use fulcrum_guest::{Description, Error, Loads, Recommendation, Request, Row, ScoreParts, Scoring};

/// Most rows that one decision may draw.
pub const CHOICES_MAX: u32 = 16;
/// Draws per wanted row before the decision walks the rows instead: enough unless most of the capacity is to be
/// avoided or sits on a few rows.
const TRIES_PER_CHOICE: u32 = 8;

/// The policy.
#[derive(Debug)]
pub struct P2c {
    board: Board,
    choices: u32,
    /// Rows that may be chosen by their flags, ascending.
    rows: Vec<u32>,
    /// Per entry of `rows` the sum of capacities up to and including it.
    cumulative: Vec<f64>,
}

impl Scoring for P2c {
    fn describe() -> Description {
        Description {
            name: "p2c",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Power of two choices: draws a few instances in proportion to capacity and takes the cheapest, \
                      counting sessions given out since the heartbeat; spreads big clients.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let defaults = Weights { overload: Overload::Smooth, ..Weights::default() };
        let weights = Weights::take(&mut fields, &defaults)?;
        let choices = fields.integer("choices", 1..=CHOICES_MAX, 2)?;
        fields.finish()?;
        Ok(Self { board: Board::new(weights), choices, rows: Vec::new(), cumulative: Vec::new() })
    }

    fn roster(&mut self, rows: Vec<Row>) -> Result<(), Error> {
        self.board.roster(&rows)?;
        self.rows.clear();
        self.cumulative.clear();
        Ok(())
    }

    fn refresh(&mut self, loads: Loads) -> Result<(), Error> {
        self.board.refresh(loads)?;
        self.rows.clear();
        self.cumulative.clear();
        let mut sum = 0.0;
        for row in (0..self.board.len()).filter(|&row| self.board.may_choose(row)) {
            sum += self.board.capacity(row);
            self.rows.push(row as u32);
            self.cumulative.push(sum);
        }
        Ok(())
    }

    fn recommend(&mut self, request: &Request<'_>) -> Result<Recommendation, Error> {
        self.board.commit(request)?;
        let mut drawn = [0; CHOICES_MAX as usize];
        let count = self.draw(request, &mut drawn);
        let share = self.board.client_share(request);
        let mut best: Option<Recommendation> = None;
        for &row in &drawn[..count] {
            let score = self.board.cost(row, request, share);
            if best.is_none_or(|best| score < best.score) {
                best = Some(Recommendation { row, score });
            }
        }
        best.ok_or(Error::NoCandidate)
    }

    fn explain(&mut self, request: &Request<'_>) -> Result<Vec<ScoreParts>, Error> {
        self.board.commit(request)?;
        Ok(self.board.explain(request))
    }
}

impl P2c {
    /// Draws up to `choices` different rows that may be chosen, and returns how many; 0 only if there is none.
    fn draw(&self, request: &Request<'_>, drawn: &mut [u32; CHOICES_MAX as usize]) -> usize {
        let Some(&total) = self.cumulative.last() else { return 0 };
        let wanted = self.choices as usize;
        let mut count = 0;
        let mut seeded = Seeded::new(request.seed);
        for _ in 0..self.choices * TRIES_PER_CHOICE {
            let point = seeded.unit() * total;
            let at = self.cumulative.partition_point(|&sum| sum <= point).min(self.rows.len() - 1);
            let row = self.rows[at];
            if !drawn[..count].contains(&row) && request.avoid.binary_search(&row).is_err() {
                drawn[count] = row;
                count += 1;
                if count == wanted {
                    return count;
                }
            }
        }
        // Few rows, or chance would not have it: walk all rows once, from a random one on.
        let start = seeded.below(self.rows.len() as u32) as usize;
        for &row in self.rows[start..].iter().chain(&self.rows[..start]) {
            if !drawn[..count].contains(&row) && request.avoid.binary_search(&row).is_err() {
                drawn[count] = row;
                count += 1;
                if count == wanted {
                    break;
                }
            }
        }
        count
    }
}
