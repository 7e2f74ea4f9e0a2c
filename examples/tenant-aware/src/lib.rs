//! Sessions of a tenant go to the tenant's own instances first, then to shared ones, and to another tenant's last.
//!
//! A client's tenant is what stands before the first separator in its id (`acme/phone-7` belongs to `acme`). An
//! instance with the label `tenant` belongs to that tenant, any other is shared. The score of an instance is
//!
//! ```text
//! (sessions + pending) / capacity            its sessions for its capacity
//!   + place                                  0 own, `sharedCost` shared, `foreignCost` another tenant's
//!   + clientSessionWeight * sessions of this client there
//! ```
//!
//! so a tenant spills over when its own instances have so many sessions more, and one busy client is spread.
//!
//! This is a preference, not a wall: where nothing else lives, another tenant's instance is chosen. An operator who needs
//! a wall asks with `label=tenant:NAME`, which the host enforces for every policy.
//!
//! Invariant: `loads.pending` holds what the host said plus every row of `committed` since, and nothing else is
//! remembered between two calls.

use fulcrum_guest::config::{Fields, Value, invalid};
use fulcrum_guest::{Description, Error, Loads, Recommendation, Request, Row, ScoreParts, Scoring, flag};

/// The label that says whose an instance is.
const LABEL: &str = "tenant";
/// Largest value of any cost.
const COST_MAX: f64 = 1e9;

/// The policy.
#[derive(Debug)]
pub struct TenantAware {
    separator: String,
    shared_cost: f64,
    foreign_cost: f64,
    client_session_weight: f64,
    rows: Vec<Row>,
    loads: Loads,
}

/// The named terms of one row's score.
#[derive(Debug, Clone, Copy)]
struct Terms {
    sessions: f64,
    place: f64,
    client: f64,
}

impl Terms {
    fn score(self) -> f64 {
        self.sessions + self.place + self.client
    }
}

impl Scoring for TenantAware {
    fn describe() -> Description {
        Description {
            name: "tenant-aware",
            version: env!("CARGO_PKG_VERSION"),
            summary: "A tenant's sessions go to its own instances, then to shared ones, and to others' last.",
            config_schema: include_str!("schema.json"),
        }
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let mut fields = Fields::parse(config)?;
        let separator = match fields.take("separator") {
            None => "/".to_owned(),
            Some(Value::Text(text)) if !text.is_empty() => text,
            Some(_) => return Err(invalid("separator", "must be a text that is not empty")),
        };
        let shared_cost = fields.number("sharedCost", 0.0..=COST_MAX, 20.0)?;
        let foreign_cost = fields.number("foreignCost", 0.0..=COST_MAX, 1e6)?;
        let client_session_weight = fields.number("clientSessionWeight", 0.0..=COST_MAX, 1.0)?;
        fields.finish()?;
        let (rows, loads) = (Vec::new(), Loads::default());
        Ok(Self { separator, shared_cost, foreign_cost, client_session_weight, rows, loads })
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
        let rows = self.judged(request).map(|(row, terms)| Recommendation { row, score: terms.score() });
        // Of equal scores the first row wins.
        rows.min_by(|a, b| a.score.total_cmp(&b.score)).ok_or(Error::NoCandidate)
    }

    fn explain(&mut self, request: &Request<'_>) -> Result<Vec<ScoreParts>, Error> {
        self.take_in(request.committed);
        let explained = self.judged(request).map(|(row, terms)| ScoreParts {
            row,
            score: terms.score(),
            parts: vec![
                ("sessions".into(), terms.sessions),
                ("place".into(), terms.place),
                ("client".into(), terms.client),
            ],
        });
        Ok(explained.collect())
    }
}

impl TenantAware {
    /// The law of `committed`: what was given out meanwhile is pending from now on.
    fn take_in(&mut self, committed: &[u32]) {
        for &row in committed {
            let pending = &mut self.loads.pending[row as usize];
            *pending = pending.saturating_add(1);
        }
    }

    /// Returns every row that may be chosen with its terms, in order.
    fn judged(&self, request: &Request<'_>) -> impl Iterator<Item = (u32, Terms)> {
        let tenant = request.client_id.split_once(&*self.separator).map(|(tenant, _)| tenant);
        let may_choose = |row: &u32| {
            self.loads.flags[*row as usize] & (flag::DRAINING | flag::DEAD) == 0
                && request.avoid.binary_search(row).is_err()
        };
        (0..self.rows.len() as u32).filter(may_choose).map(move |row| (row, self.terms(row, tenant, request)))
    }

    fn terms(&self, row: u32, tenant: Option<&str>, request: &Request<'_>) -> Terms {
        let index = row as usize;
        let count = f64::from(self.loads.sessions[index]) + f64::from(self.loads.pending[index]);
        let place = match owner(&self.rows[index]) {
            None => self.shared_cost,
            Some(owner) if Some(owner) == tenant => 0.0,
            Some(_) => self.foreign_cost,
        };
        let own = request.session_rows.binary_search(&row).map_or(0, |at| request.session_counts[at]);
        Terms {
            sessions: count / self.rows[index].capacity,
            place,
            client: self.client_session_weight * f64::from(own),
        }
    }
}

/// Returns whose an instance is, `None` if it is shared.
fn owner(row: &Row) -> Option<&str> {
    // Labels are ordered by key.
    let at = row.labels.binary_search_by(|(key, _)| key.as_str().cmp(LABEL)).ok()?;
    Some(row.labels[at].1.as_str()).filter(|owner| !owner.is_empty())
}

fulcrum_guest::export_scoring!(TenantAware);

#[cfg(test)]
mod tests {
    use super::*;

    /// Instances `a` of acme, `b` of beta and `s` that is shared, with so many sessions.
    fn policy(config: &str, sessions: [u32; 3]) -> TenantAware {
        let row = |id: &str, labels: &[(&str, &str)]| Row {
            id: id.to_owned(),
            zone: String::new(),
            capacity: 1.0,
            labels: labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
            age_ms: 0,
        };
        let mut policy = TenantAware::configure(config).expect("a good configuration");
        let rows = vec![
            row("a", &[("rack", "1"), ("tenant", "acme")]),
            row("b", &[("tenant", "beta"), ("z", "")]),
            row("s", &[("tenant", "")]),
        ];
        policy.roster(rows).expect("a good roster");
        let loads = Loads {
            sessions: sessions.to_vec(),
            inflow: vec![0.0; 3],
            outflow: vec![0.0; 3],
            cpu: vec![0.0; 3],
            heartbeat_age_ms: vec![0; 3],
            pending: vec![0; 3],
            flags: vec![0; 3],
        };
        policy.refresh(loads).expect("good loads");
        policy
    }

    #[test]
    fn a_tenant_goes_to_its_own_then_to_shared_then_to_others() {
        let check = |client_id: &str, sessions: [u32; 3], avoid: &[u32], row: u32, score: f64| {
            let request = Request { client_id, avoid, ..Request::default() };
            let answer = policy("{}", sessions).recommend(&request);
            assert_eq!(answer, Ok(Recommendation { row, score }), "{client_id} {sessions:?} {avoid:?}");
        };
        check("acme/1", [0, 0, 0], &[], 0, 0.0);
        check("acme/1", [19, 0, 0], &[], 0, 19.0);
        check("acme/1", [21, 0, 0], &[], 2, 20.0);
        check("beta/1", [0, 7, 0], &[], 1, 7.0);
        check("gamma/1", [0, 0, 3], &[], 2, 23.0);
        check("nobody", [0, 0, 3], &[], 2, 23.0);
        check("", [0, 0, 3], &[], 2, 23.0);
        check("acme/1", [0, 0, 0], &[0, 2], 1, 1e6);
    }

    #[test]
    fn a_busy_client_is_spread_by_its_own_sessions() {
        let request =
            Request { client_id: "acme/1", session_rows: &[0], session_counts: &[4], ..Request::default() };
        let config = r#"{"sharedCost": 2, "separator": "/"}"#;
        let answer = policy(config, [0, 0, 0]).recommend(&request);
        assert_eq!(answer, Ok(Recommendation { row: 2, score: 2.0 }));
        let parts = policy(config, [3, 0, 0]).explain(&request).expect("it explains");
        let named: Vec<_> = parts[0].parts.iter().map(|(name, value)| (&**name, *value)).collect();
        assert_eq!(named, [("sessions", 3.0), ("place", 0.0), ("client", 4.0)]);
        assert_eq!((parts.len(), parts[0].score), (3, 7.0));
    }

    #[test]
    fn what_was_given_out_counts_at_once() {
        let mut policy = policy(r#"{"sharedCost": 2}"#, [0, 0, 0]);
        let mut picks: Vec<u32> = Vec::new();
        for _ in 0..5 {
            let committed: Vec<u32> = picks.last().copied().into_iter().collect();
            let request = Request { client_id: "acme/1", committed: &committed, ..Request::default() };
            picks.push(policy.recommend(&request).expect("a row").row);
        }
        assert_eq!(picks, [0, 0, 0, 2, 0]);
    }

    #[test]
    fn a_bad_configuration_is_refused_by_field() {
        for (config, field) in [
            (r#"{"separator": ""}"#, "separator"),
            (r#"{"sharedCost": -1}"#, "sharedCost"),
            (r#"{"foreignCost": "x"}"#, "foreignCost"),
            (r#"{"x": 1}"#, "x is not"),
        ] {
            let refused = TenantAware::configure(config).err();
            assert!(
                matches!(&refused, Some(Error::InvalidConfig(text)) if text.starts_with(field)),
                "{refused:?}"
            );
        }
    }
}
