//! The EventMesh formula: the row of lowest cost, among equals the lowest row.
//!
//! With the default configuration the scores are those of Apache EventMesh (`tests/vectors/eventmesh`). Beyond it:
//! sessions given out since a heartbeat count at once (no herd), a big client is spread over the rows, capacities,
//! and a smooth overload penalty. The formula is documented in [`fulcrum_guest::cost`].

use fulcrum_guest::config::Fields;
use fulcrum_guest::cost::{Board, Weights};
use fulcrum_guest::{Description, Error, Loads, Recommendation, Request, Row, ScoreParts, Scoring};

/// The policy.
#[derive(Debug)]
pub struct Weighted {
    board: Board,
}

impl Scoring for Weighted {
    fn describe() -> Description {
        Description {
            name: "weighted",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Lowest weighted cost of sessions, bytes and cpu with an overload penalty (the Apache EventMesh \
                      formula); counts sessions given out since the heartbeat and spreads big clients.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let weights = Weights::take(&mut fields, &Weights::default())?;
        fields.finish()?;
        Ok(Self { board: Board::new(weights) })
    }

    fn roster(&mut self, rows: Vec<Row>) -> Result<(), Error> {
        self.board.roster(&rows)
    }

    fn refresh(&mut self, loads: Loads) -> Result<(), Error> {
        self.board.refresh(loads)
    }

    #[inline]
    fn recommend(&mut self, request: &Request<'_>) -> Result<Recommendation, Error> {
        self.board.commit(request)?;
        self.board.cheapest(request).ok_or(Error::NoCandidate)
    }

    fn explain(&mut self, request: &Request<'_>) -> Result<Vec<ScoreParts>, Error> {
        self.board.commit(request)?;
        Ok(self.board.explain(request))
    }
}
