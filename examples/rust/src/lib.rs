//! Fewest sessions for its capacity; an instance outside one zone costs extra.
//!
//! Invariant: `loads.pending` holds what the host said plus every row of `committed` since, and nothing else is
//! remembered between two calls. Time is `request.now_ms`, chance is `request.seed`: nothing else may vary.

use fulcrum_guest::config::{Fields, Value, invalid};
use fulcrum_guest::{Description, Error, Loads, Recommendation, Request, Row, ScoreParts, Scoring, flag};

/// The policy.
#[derive(Debug)]
pub struct Policy {
    zone: String,
    far_cost: f64,
    rows: Vec<Row>,
    loads: Loads,
}

impl Scoring for Policy {
    fn describe() -> Description {
        Description {
            name: "near-first",
            version: env!("CARGO_PKG_VERSION"),
            summary: "Fewest sessions for its capacity, one zone preferred.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let zone = match fields.take("zone") {
            None => String::new(),
            Some(Value::Text(zone)) => zone,
            Some(_) => return Err(invalid("zone", "must be a text")),
        };
        let far_cost = fields.number("farCost", 0.0..=1e6, 10.0)?;
        fields.finish()?;
        Ok(Self { zone, far_cost, rows: Vec::new(), loads: Loads::default() })
    }

    fn roster(&mut self, rows: Vec<Row>) -> Result<(), Error> {
        self.rows = rows;
        Ok(())
    }

    fn refresh(&mut self, loads: Loads) -> Result<(), Error> {
        self.loads = loads;
        Ok(())
    }

    fn recommend(&mut self, request: &Request<'_>) -> Result<Recommendation, Error> {
        self.take_in(request.committed);
        let rows =
            self.choosable(request).map(|row| Recommendation { row, score: self.near(row) + self.far(row) });
        // Of equal scores the first row wins.
        rows.min_by(|a, b| a.score.total_cmp(&b.score)).ok_or(Error::NoCandidate)
    }

    fn explain(&mut self, request: &Request<'_>) -> Result<Vec<ScoreParts>, Error> {
        self.take_in(request.committed);
        let explain = |row| {
            let (near, far) = (self.near(row), self.far(row));
            ScoreParts { row, score: near + far, parts: vec![("sessions".into(), near), ("far".into(), far)] }
        };
        Ok(self.choosable(request).map(explain).collect())
    }
}

impl Policy {
    /// The law of `committed`: what was given out meanwhile is pending from now on.
    fn take_in(&mut self, committed: &[u32]) {
        for &row in committed {
            let pending = &mut self.loads.pending[row as usize];
            *pending = pending.saturating_add(1);
        }
    }

    fn choosable(&self, request: &Request<'_>) -> impl Iterator<Item = u32> {
        let may_choose = |row: &u32| {
            self.loads.flags[*row as usize] & (flag::DRAINING | flag::DEAD) == 0
                && request.avoid.binary_search(row).is_err()
        };
        (0..self.rows.len() as u32).filter(may_choose)
    }

    fn near(&self, row: u32) -> f64 {
        let row = row as usize;
        (f64::from(self.loads.sessions[row]) + f64::from(self.loads.pending[row])) / self.rows[row].capacity
    }

    fn far(&self, row: u32) -> f64 {
        let is_far = !self.zone.is_empty() && self.rows[row as usize].zone != self.zone;
        if is_far { self.far_cost } else { 0.0 }
    }
}

fulcrum_guest::export_scoring!(Policy);

#[cfg(test)]
mod tests {
    use super::*;

    /// Two idle instances, `a` in zone z1 and `b` in zone z2, with so many sessions.
    fn policy(config: &str, sessions: [u32; 2]) -> Policy {
        let row = |id: &str, zone: &str| Row {
            id: id.to_owned(),
            zone: zone.to_owned(),
            capacity: 1.0,
            labels: Vec::new(),
            age_ms: 0,
        };
        let mut policy = Policy::configure(config).expect("a good configuration");
        policy.roster(vec![row("a", "z1"), row("b", "z2")]).expect("a good roster");
        let loads = Loads {
            sessions: sessions.to_vec(),
            inflow: vec![0.0; 2],
            outflow: vec![0.0; 2],
            cpu: vec![0.0; 2],
            heartbeat_age_ms: vec![0; 2],
            pending: vec![0; 2],
            flags: vec![0; 2],
        };
        policy.refresh(loads).expect("good loads");
        policy
    }

    #[test]
    fn the_preferred_zone_wins_until_it_is_full() {
        let check = |config: &str, sessions: [u32; 2], row: u32, score: f64| {
            let answer = policy(config, sessions).recommend(&Request::default());
            assert_eq!(answer, Ok(Recommendation { row, score }), "{config} {sessions:?}");
        };
        check("{}", [3, 1], 1, 1.0);
        check(r#"{"zone":"z1","farCost":5}"#, [3, 1], 0, 3.0);
        check(r#"{"zone":"z1","farCost":5}"#, [7, 1], 1, 6.0);
    }

    #[test]
    fn what_was_given_out_counts_at_once() {
        let mut policy = policy("{}", [0, 0]);
        let mut picks = Vec::new();
        for _ in 0..4 {
            let committed: Vec<u32> = picks.last().copied().into_iter().collect();
            let request = Request { committed: &committed, ..Request::default() };
            picks.push(policy.recommend(&request).expect("a row").row);
        }
        assert_eq!(picks, [0, 1, 0, 1]);
    }
}
