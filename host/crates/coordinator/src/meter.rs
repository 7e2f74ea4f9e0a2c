//! Traffic as exponentially decayed rates: of the host as a whole, and of each client.
//!
//! A rate is what a moving average with weight `e^(-l t)` for bytes seen `t` ago gives, where `l = ln 2 /
//! HALF_LIFE`: constant traffic of r bytes per second has the rate r, and without traffic the rate halves every half-life.
//! Invariants: rates are finite and 0 or more; the host's totals never shrink.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::recent::Recent;

/// Time in which a rate halves when there is no traffic, in seconds.
pub const HALF_LIFE_SECONDS: f64 = 10.0;

const DECAY_PER_SECOND: f64 = std::f64::consts::LN_2 / HALF_LIFE_SECONDS;

/// Rates in bytes per second; finite, 0 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Towards us.
    pub inflow: f64,
    /// From us.
    pub outflow: f64,
}

/// See the module. All methods may be called from any thread; `nanos` is the clock's `nanos()`.
#[derive(Debug)]
pub struct Meter {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    host: Mutex<HostRate>,
    clients: Mutex<Recent<Rate>>,
}

/// The host's rate when it was last looked at, and the totals it was computed from.
#[derive(Debug, Default)]
struct HostRate {
    rate: Rate,
    bytes_in: u64,
    bytes_out: u64,
    is_started: bool,
}

/// A rate as of one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    traffic: Traffic,
    nanos: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self::new(100_000)
    }
}

impl Meter {
    /// Makes a meter that remembers at most `clients_max` clients; those not seen for longest are forgotten first.
    #[must_use]
    pub fn new(clients_max: usize) -> Self {
        Self {
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            host: Mutex::default(),
            clients: Mutex::new(Recent::new(clients_max)),
        }
    }

    /// Counts bytes the host took in, whoever sent them.
    pub fn add_in(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes the host sent out.
    pub fn add_out(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes taken in and sent out since the start.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.bytes_in.load(Ordering::Relaxed), self.bytes_out.load(Ordering::Relaxed))
    }

    /// Returns the host's rates now. Bytes since the previous look count as spread evenly over that time; the first
    /// look starts the measurement and gives 0.
    pub fn host(&self, nanos: u64) -> Traffic {
        let mut host = self.host.lock();
        let (bytes_in, bytes_out) = self.totals();
        let seconds = seconds_between(host.rate.nanos, nanos);
        if !host.is_started {
            host.is_started = true;
        } else if seconds > 0.0 {
            let kept = (-DECAY_PER_SECOND * seconds).exp();
            let step = |rate: f64, bytes: u64| rate * kept + bytes as f64 / seconds * (1.0 - kept);
            host.rate.traffic = Traffic {
                inflow: step(host.rate.traffic.inflow, bytes_in.saturating_sub(host.bytes_in)),
                outflow: step(host.rate.traffic.outflow, bytes_out.saturating_sub(host.bytes_out)),
            };
        } else {
            return host.rate.traffic;
        }
        host.rate.nanos = nanos;
        (host.bytes_in, host.bytes_out) = (bytes_in, bytes_out);
        host.rate.traffic
    }

    /// Counts bytes of one client; the host's totals are counted apart. An empty client id is nobody.
    pub fn add_client(&self, client_id: &str, inflow: u64, outflow: u64, nanos: u64) {
        if client_id.is_empty() {
            return;
        }
        let mut clients = self.clients.lock();
        let (rate, forgotten) = clients.enter(client_id, || Rate { traffic: Traffic::default(), nanos });
        let now = rate.at(nanos);
        rate.traffic = Traffic {
            inflow: now.inflow + inflow as f64 * DECAY_PER_SECOND,
            outflow: now.outflow + outflow as f64 * DECAY_PER_SECOND,
        };
        rate.nanos = rate.nanos.max(nanos);
        drop(clients);
        drop(forgotten);
    }

    /// Returns one client's rates now; 0 for a client not heard of.
    #[must_use]
    pub fn client(&self, client_id: &str, nanos: u64) -> Traffic {
        self.clients.lock().get(client_id).map_or_else(Traffic::default, |rate| rate.at(nanos))
    }
}

impl Rate {
    fn at(&self, nanos: u64) -> Traffic {
        let kept = (-DECAY_PER_SECOND * seconds_between(self.nanos, nanos)).exp();
        Traffic { inflow: self.traffic.inflow * kept, outflow: self.traffic.outflow * kept }
    }
}

/// Returns 0 if `later` is not later: two threads may read the clock in one order and get here in another.
fn seconds_between(earlier: u64, later: u64) -> f64 {
    later.saturating_sub(earlier) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn close(found: f64, expected: f64, tolerance: f64) {
        assert!(
            (found - expected).abs() <= tolerance * expected.abs().max(1e-9),
            "{found} is not {expected}"
        );
    }

    #[test]
    fn constant_traffic_has_its_rate_whatever_the_looks() {
        for look_every in [1_u64, 3, 7] {
            let meter = Meter::default();
            meter.host(5 * SECOND);
            for second in 1..=210_u64 {
                meter.add_in(1000);
                meter.add_out(500);
                if second.is_multiple_of(look_every) {
                    meter.host((5 + second) * SECOND);
                }
            }
            let rate = meter.host(215 * SECOND);
            close(rate.inflow, 1000.0, 1e-5);
            close(rate.outflow, 500.0, 1e-5);
            assert_eq!(meter.totals(), (210_000, 105_000));
        }
    }

    #[test]
    fn a_host_rate_halves_each_half_life() {
        let meter = Meter::default();
        meter.host(0);
        meter.add_in(10_000);
        let first = meter.host(10 * SECOND).inflow;
        close(first, 500.0, 1e-12);
        assert_eq!(meter.host(10 * SECOND).inflow, first, "no time, no change");
        close(meter.host(20 * SECOND).inflow, first / 2.0, 1e-12);
        close(meter.host(40 * SECOND).inflow, first / 8.0, 1e-12);
        assert!(meter.host(30 * SECOND).inflow.is_finite(), "an older reading changes nothing");
    }

    #[test]
    fn bytes_between_two_looks_at_one_moment_are_not_lost() {
        let meter = Meter::default();
        meter.host(0);
        meter.host(SECOND);
        meter.add_in(700);
        meter.host(SECOND);
        close(meter.host(2 * SECOND).inflow, 700.0 * (1.0 - (-DECAY_PER_SECOND).exp()), 1e-12);
    }

    #[test]
    fn client_rates_add_up_and_decay() {
        let meter = Meter::default();
        meter.add_client("a", 1000, 0, 0);
        meter.add_client("a", 0, 2000, 0);
        meter.add_client("", 5, 5, 0);
        let now = meter.client("a", 0);
        close(now.inflow, 1000.0 * DECAY_PER_SECOND, 1e-12);
        close(now.outflow, 2.0 * now.inflow, 1e-12);
        close(meter.client("a", 10 * SECOND).inflow, now.inflow / 2.0, 1e-12);
        assert_eq!(meter.client("b", 0), Traffic::default());
        assert_eq!(meter.client("", 0), Traffic::default());
        // 100 bytes each 100 ms are 1000 bytes per second.
        for tenth in 0..2000 {
            meter.add_client("steady", 100, 0, tenth * SECOND / 10);
        }
        close(meter.client("steady", 200 * SECOND).inflow, 1000.0, 0.01);
    }

    #[test]
    fn clients_are_bounded() {
        let meter = Meter::new(10);
        (0..1000).for_each(|n| meter.add_client(&n.to_string(), 1, 1, n));
        assert!(meter.clients.lock().len() <= 10);
        assert!(meter.client("999", 1000).inflow > 0.0);
    }
}
