//! The loads that contenders for a recommendation are told.

use fulcrum_core::scoring as host;
use fulcrum_guest::Loads;
use fulcrum_guest::seeded::Seeded;

/// The loads every contender is told: below every overload threshold but for some rows, nothing pending.
pub(crate) fn loads(rows: usize) -> Loads {
    let mut chance = Seeded::new(rows as u64);
    let mut amounts = |top: f64| -> Vec<f64> { (0..rows).map(|_| chance.unit() * top).collect() };
    let (inflow, outflow, cpu) = (amounts(5_200_000.0), amounts(200_000.0), amounts(0.85));
    Loads {
        sessions: (0..rows).map(|_| chance.below(500)).collect(),
        inflow,
        outflow,
        cpu,
        heartbeat_age_ms: (0..rows).map(|_| chance.below(5000)).collect(),
        pending: vec![0; rows],
        flags: vec![0; rows],
    }
}

/// The same for an instance in the host.
pub(crate) fn host_loads(rows: usize) -> host::Loads {
    let Loads { sessions, inflow, outflow, cpu, heartbeat_age_ms, pending, flags } = loads(rows);
    host::Loads { sessions, inflow, outflow, cpu, heartbeat_age_ms, pending, flags }
}
