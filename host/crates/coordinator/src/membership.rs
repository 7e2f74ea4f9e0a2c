//! Who can be chosen and how busy they are: rows that live by heartbeats.
//!
//! Invariants: rows are ordered by id, each id once, and every column of the loads has one entry per row; a row whose
//! heartbeat is older than the time to live is flagged dead before anything is decided; `loads_revision` changes with
//! every change of the loads but giving a session out, `roster_revision` with every change of who the rows are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::scoring::{Instance, Load, Loads, Roster, flags};
use fulcrum_core::time::{Timestamp, millis, millis_u32};
use fulcrum_policy::seat::View;

use crate::error::Error;
use crate::valid;

/// Ages older than this are told anew before a decision.
const AGES_KEPT: Duration = Duration::from_secs(1);

/// One heartbeat: what an instance says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its name: 1 to 256 bytes without whitespace, commas or control characters.
    pub id: String,
    /// Where clients reach it, `host:port`.
    pub address: String,
    /// Failure domain or place, empty when unknown; at most 256 bytes.
    pub zone: String,
    /// Relative capacity, above 0 and at most 1,000,000; 1.0 is a standard instance.
    pub capacity: f64,
    /// Labels in any order, each key once, at most 64 of at most 256 bytes each.
    pub labels: Vec<(String, String)>,
    /// How busy it is, `None` if it does not say.
    pub load: Option<Load>,
    /// How long ago it measured this.
    pub age: Duration,
}

/// One row as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceView {
    /// Its name.
    pub id: Arc<str>,
    /// Where clients reach it, `host:port`.
    pub address: Arc<str>,
    /// Failure domain or place, empty when unknown.
    pub zone: String,
    /// Relative capacity.
    pub capacity: f64,
    /// Labels ordered by key.
    pub labels: Vec<(String, String)>,
    /// Load it reported, `None` if unknown.
    pub load: Option<Load>,
    /// Time since its last heartbeat was measured.
    pub heartbeat_age: Duration,
    /// Sessions given out to it since its last heartbeat.
    pub pending: u32,
    /// Whether it takes no new sessions because somebody asked for that.
    pub is_draining: bool,
    /// Whether its heartbeat is older than the time to live.
    pub is_dead: bool,
}

/// How many rows there are of each kind; each row counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows that may be chosen.
    pub live: usize,
    /// Rows that are draining and not dead.
    pub draining: usize,
    /// Rows whose heartbeat is older than the time to live.
    pub dead: usize,
}

/// How long rows live and how many there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) ttl: Duration,
    pub(crate) forget_after: Duration,
    pub(crate) instances_max: usize,
    /// Most bytes of ids, zones and labels of all rows: a policy is told them at once, and has bounded memory.
    pub(crate) roster_bytes_max: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Members {
    limits: Limits,
    rows: Vec<Row>,
    loads: Loads,
    roster_revision: u64,
    loads_revision: u64,
    /// Nothing dies and nothing is forgotten up to and including this moment.
    quiet_until: Timestamp,
    ages: Option<(Timestamp, u64)>,
    index: Index,
    serials: u64,
    /// Bytes of ids, zones and labels of all rows.
    roster_bytes: usize,
}

#[derive(Debug)]
struct Row {
    id: Arc<str>,
    address: Arc<str>,
    zone: String,
    capacity: f64,
    labels: Vec<(String, String)>,
    joined_at: Timestamp,
    heartbeat_at: Timestamp,
    serial: u64,
}

/// What is derived from the rows' identity, made anew when a decision needs it.
#[derive(Debug, Default)]
struct Index {
    revision: u64,
    roster: Arc<Roster>,
    by_address: Vec<u32>,
    by_serial: HashMap<u64, u32>,
}

impl Members {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            rows: Vec::new(),
            loads: Loads::default(),
            roster_revision: 1,
            loads_revision: 1,
            quiet_until: Timestamp(u64::MAX),
            ages: None,
            index: Index::default(),
            serials: 0,
            roster_bytes: 0,
        }
    }

    /// Takes a heartbeat in. One that was measured before the newest known of its row is ignored.
    pub(crate) fn apply(&mut self, mut report: Report, now: Timestamp) -> Result<(), Error> {
        check(&mut report)?;
        if report.age > self.limits.ttl {
            return Err(Error::TooOld { age: report.age, ttl: self.limits.ttl });
        }
        let measured_at = Timestamp(now.0.saturating_sub(millis(report.age)));
        let bytes = roster_bytes(&report.id, &report.zone, &report.labels);
        let max_bytes = self.limits.roster_bytes_max;
        let row = match self.find(&report.id) {
            Ok(row) if measured_at < self.rows[row].heartbeat_at => return Ok(()),
            Ok(row) => {
                let others = self.roster_bytes - self.rows[row].bytes();
                // One that shrinks is always welcome.
                if others + bytes > max_bytes.max(self.roster_bytes) {
                    return Err(Error::RosterTooLarge { max_bytes });
                }
                self.roster_bytes = others + bytes;
                if self.rows[row].renew(&report) {
                    self.roster_revision += 1;
                }
                row
            }
            Err(_) if self.rows.len() >= self.limits.instances_max => {
                return Err(Error::TooManyInstances { max: self.limits.instances_max });
            }
            Err(_) if self.roster_bytes + bytes > max_bytes => {
                return Err(Error::RosterTooLarge { max_bytes });
            }
            Err(row) => {
                self.serials += 1;
                self.roster_bytes += bytes;
                tracing::info!(instance.id = report.id, instance.address = report.address, "instance joined");
                self.rows.insert(row, Row::new(&report, now, self.serials));
                insert_row(&mut self.loads, row);
                self.roster_revision += 1;
                row
            }
        };
        if self.loads.flags[row] & flags::DEAD != 0 {
            tracing::info!(instance.id = report.id, "instance is back");
        }
        self.rows[row].heartbeat_at = measured_at;
        self.loads.set(row, report.load);
        self.loads.pending[row] = 0;
        self.loads.flags[row] &= !flags::DEAD;
        self.loads_revision += 1;
        self.quiet_until = self.quiet_until.min(measured_at.after(self.limits.ttl));
        Ok(())
    }

    /// Flags rows that died and drops those that are dead for too long.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        if now <= self.quiet_until {
            return;
        }
        self.quiet_until = Timestamp(u64::MAX);
        let mut forgotten = Vec::new();
        for (at, row) in self.rows.iter().enumerate() {
            let dies_after = row.heartbeat_at.after(self.limits.ttl);
            let forgotten_after = dies_after.after(self.limits.forget_after);
            if now <= dies_after {
                self.quiet_until = self.quiet_until.min(dies_after);
                continue;
            }
            if self.loads.flags[at] & flags::DEAD == 0 {
                tracing::warn!(instance.id = &*row.id, "instance stopped its heartbeat");
                self.loads.flags[at] |= flags::DEAD;
                self.loads_revision += 1;
            }
            if now <= forgotten_after {
                self.quiet_until = self.quiet_until.min(forgotten_after);
            } else {
                forgotten.push(at);
            }
        }
        for at in forgotten.into_iter().rev() {
            self.remove(at);
        }
    }

    /// Makes roster and ages what they should be for a decision now.
    pub(crate) fn freshen(&mut self, now: Timestamp) {
        if self.index.revision != self.roster_revision {
            self.index = Index::new(&self.rows, self.roster_revision, now);
        }
        match self.ages {
            Some((_, revision)) if revision != self.loads_revision => {}
            Some((at, _)) if now.since(at) <= AGES_KEPT => return,
            _ => self.loads_revision += 1,
        }
        self.ages = Some((now, self.loads_revision));
        for (age, row) in self.loads.heartbeat_age_ms.iter_mut().zip(&self.rows) {
            *age = millis_u32(now.since(row.heartbeat_at));
        }
    }

    /// Returns what a decision is made from. Call [`Self::expire`] and [`Self::freshen`] before.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            roster: &self.index.roster,
            loads: &self.loads,
            roster_revision: self.roster_revision,
            loads_revision: self.loads_revision,
        }
    }

    /// Returns the roster for an owned snapshot, as of the last [`Self::freshen`].
    pub(crate) fn roster(&self) -> &Arc<Roster> {
        &self.index.roster
    }

    /// Counts one more session given out to `row`.
    pub(crate) fn give_out(&mut self, row: usize) {
        self.loads.give_out(row);
    }

    /// Fills `avoid` with the rows named in `exclude` (ids, or URLs `http://address`) and those that lack one of `labels`:
    /// ascending, each once. What `exclude` names and nobody is, is ignored.
    pub(crate) fn avoid(&self, exclude: &[String], labels: &[(String, String)], avoid: &mut Vec<u32>) {
        avoid.clear();
        for name in exclude {
            if let Ok(row) = self.find(name) {
                avoid.extend(u32::try_from(row));
            }
            if let Some(address) = address_of(name) {
                let rows = &self.index.by_address;
                let address_at = |row: &u32| &*self.rows[*row as usize].address;
                let first = rows.partition_point(|row| address_at(row) < address);
                avoid.extend(rows[first..].iter().take_while(|row| address_at(row) == address));
            }
        }
        if !labels.is_empty() {
            let lacks = |row: &Row| !labels.iter().all(|label| has_label(&row.labels, label));
            avoid.extend((0_u32..).zip(&self.rows).filter(|(_, row)| lacks(row)).map(|(at, _)| at));
        }
        avoid.sort_unstable();
        avoid.dedup();
    }

    /// Returns the row of the instance with this serial number, if it is still there.
    pub(crate) fn row_of_serial(&self, serial: u64) -> Option<u32> {
        self.index.by_serial.get(&serial).copied()
    }

    /// Returns the row of an id.
    pub(crate) fn row_of(&self, id: &str) -> Option<usize> {
        self.find(id).ok()
    }

    /// Returns id, address and serial number of a row.
    pub(crate) fn name(&self, row: usize) -> (&Arc<str>, &Arc<str>, u64) {
        let row = &self.rows[row];
        (&row.id, &row.address, row.serial)
    }

    /// Sets or clears the draining flag; says whether the id is known.
    pub(crate) fn drain(&mut self, id: &str, is_draining: bool) -> bool {
        let Ok(row) = self.find(id) else { return false };
        let flag = &mut self.loads.flags[row];
        let next = if is_draining { *flag | flags::DRAINING } else { *flag & !flags::DRAINING };
        if next != *flag {
            *flag = next;
            self.loads_revision += 1;
            tracing::info!(instance.id = id, draining = is_draining, "instance draining changed");
        }
        true
    }

    /// Removes an instance at once; says whether the id is known.
    pub(crate) fn leave(&mut self, id: &str) -> bool {
        let found = self.find(id);
        if let Ok(row) = found {
            self.remove(row);
        }
        found.is_ok()
    }

    /// Returns the rows ordered by id, dead ones only if `all`. Call [`Self::expire`] before.
    pub(crate) fn list(&self, all: bool, now: Timestamp) -> Vec<InstanceView> {
        let view = |(at, row): (usize, &Row)| InstanceView {
            id: row.id.clone(),
            address: row.address.clone(),
            zone: row.zone.clone(),
            capacity: row.capacity,
            labels: row.labels.clone(),
            load: self.loads.get(at),
            heartbeat_age: now.since(row.heartbeat_at),
            pending: self.loads.pending[at],
            is_draining: self.loads.flags[at] & flags::DRAINING != 0,
            is_dead: self.loads.flags[at] & flags::DEAD != 0,
        };
        self.rows.iter().enumerate().map(view).filter(|row| all || !row.is_dead).collect()
    }

    /// Counts the rows by kind. Call [`Self::expire`] before.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for flag in &self.loads.flags {
            match flag {
                flag if flag & flags::DEAD != 0 => counts.dead += 1,
                flag if flag & flags::DRAINING != 0 => counts.draining += 1,
                _ => counts.live += 1,
            }
        }
        counts
    }

    fn find(&self, id: &str) -> Result<usize, usize> {
        self.rows.binary_search_by(|row| (*row.id).cmp(id))
    }

    fn remove(&mut self, at: usize) {
        let row = self.rows.remove(at);
        self.roster_bytes -= row.bytes();
        remove_row(&mut self.loads, at);
        self.roster_revision += 1;
        self.loads_revision += 1;
        tracing::info!(instance.id = &*row.id, "instance left");
    }
}

impl Row {
    fn new(report: &Report, now: Timestamp, serial: u64) -> Self {
        Self {
            id: Arc::from(&*report.id),
            address: Arc::from(&*report.address),
            zone: report.zone.clone(),
            capacity: report.capacity,
            labels: report.labels.clone(),
            joined_at: now,
            heartbeat_at: now,
            serial,
        }
    }

    fn bytes(&self) -> usize {
        roster_bytes(&self.id, &self.zone, &self.labels)
    }

    /// Takes the identity over; says whether it changed.
    fn renew(&mut self, report: &Report) -> bool {
        let same = *self.address == *report.address
            && self.zone == report.zone
            && self.capacity == report.capacity
            && self.labels == report.labels;
        if !same {
            self.address = Arc::from(&*report.address);
            self.zone.clone_from(&report.zone);
            self.capacity = report.capacity;
            self.labels.clone_from(&report.labels);
        }
        !same
    }
}

impl Index {
    fn new(rows: &[Row], revision: u64, now: Timestamp) -> Self {
        let instance = |row: &Row| Instance {
            id: row.id.clone(),
            zone: row.zone.clone(),
            capacity: row.capacity,
            labels: row.labels.clone(),
            age_ms: millis(now.since(row.joined_at)),
        };
        let roster = Roster::new(rows.iter().map(instance).collect()).expect("each id has one row");
        let mut by_address: Vec<u32> = (0_u32..).zip(rows).map(|(at, _)| at).collect();
        by_address.sort_by(|a, b| rows[*a as usize].address.cmp(&rows[*b as usize].address));
        let by_serial = (0_u32..).zip(rows).map(|(at, row)| (row.serial, at)).collect();
        Self { revision, roster: Arc::new(roster), by_address, by_serial }
    }
}

/// Checks every range of a report and orders its labels.
pub(crate) fn check(report: &mut Report) -> Result<(), Error> {
    valid::id("id", &report.id)?;
    valid::address(&report.address)?;
    valid::text("zone", &report.zone)?;
    valid::capacity(report.capacity)?;
    valid::labels(&mut report.labels)?;
    report.load.as_ref().map_or(Ok(()), valid::load)
}

/// Returns how many bytes a policy is told about who a row is.
fn roster_bytes(id: &str, zone: &str, labels: &[(String, String)]) -> usize {
    id.len() + zone.len() + labels.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
}

/// Returns the address inside a URL `http://address`, with or without a slash at its end.
pub(crate) fn address_of(url: &str) -> Option<&str> {
    let address = url.strip_prefix("http://")?;
    Some(address.strip_suffix('/').unwrap_or(address))
}

/// Says whether `labels`, ordered by key, contain `label`.
pub(crate) fn has_label(labels: &[(String, String)], label: &(String, String)) -> bool {
    labels.binary_search(label).is_ok()
}

fn insert_row(loads: &mut Loads, at: usize) {
    loads.sessions.insert(at, 0);
    loads.inflow.insert(at, 0.0);
    loads.outflow.insert(at, 0.0);
    loads.cpu.insert(at, 0.0);
    loads.heartbeat_age_ms.insert(at, 0);
    loads.pending.insert(at, 0);
    loads.flags.insert(at, flags::LOAD_UNKNOWN);
}

fn remove_row(loads: &mut Loads, at: usize) {
    loads.sessions.remove(at);
    loads.inflow.remove(at);
    loads.outflow.remove(at);
    loads.cpu.remove(at);
    loads.heartbeat_age_ms.remove(at);
    loads.pending.remove(at);
    loads.flags.remove(at);
}

#[cfg(test)]
mod tests;
