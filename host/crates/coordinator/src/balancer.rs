//! Recommends instances: keeps them, their loads and the policy behind one lock, and lets the policy choose.
//!
//! Invariants: what the policy was told and what it was told to be committed add up to the loads' `pending`; a
//! recommendation never names a dead, draining or excluded instance; the lock is held for one decision at most.

mod grounds;

use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::scoring::{self, Load, Request, Score, ScoringSnapshot};
use fulcrum_core::seed;
use fulcrum_core::time::{Clock, Timestamp};
use fulcrum_policy::fallback;
use fulcrum_policy::seat::{Decision, Explanation, Identity, ScoringHost, ScoringSeat, View};
use fulcrum_policy::tally::Tally;
use parking_lot::Mutex;

use crate::client::Clients;
use crate::error::Error;
use crate::membership::{self, Counts, InstanceView, Limits, Members, Report};
use crate::meter::Traffic;

pub use grounds::{Explained, Grounds};

/// Most candidates of an explained answer that has no limit of its own.
pub const CANDIDATES_MAX: usize = 100;

/// Most bytes of ids, zones and labels of all instances.
const ROSTER_BYTES_MAX: usize = 16 << 20;

/// How the balancer behaves and who it is itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Id of the host itself.
    pub instance_id: String,
    /// Where clients reach the host, `host:port`; `None` means it recommends only others.
    pub advertise: Option<String>,
    /// Zone of the own row.
    pub zone: String,
    /// Relative capacity of the own row.
    pub capacity: f64,
    /// Labels of the own row.
    pub labels: Vec<(String, String)>,
    /// Age of a heartbeat up to which its row lives.
    pub ttl: Duration,
    /// How often an instance should send a heartbeat.
    pub heartbeat_interval: Duration,
    /// How long a dead row is still listed.
    pub forget_after: Duration,
    /// Most rows, dead ones included.
    pub instances_max: usize,
    /// Most clients remembered.
    pub clients_max: usize,
    /// How long a recommendation is remembered for its client.
    pub remember: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            instance_id: "fulcrum".to_owned(),
            advertise: None,
            zone: String::new(),
            capacity: 1.0,
            labels: Vec::new(),
            ttl: Duration::from_secs(15),
            heartbeat_interval: Duration::from_secs(5),
            forget_after: Duration::from_secs(600),
            instances_max: 10_000,
            clients_max: 100_000,
            remember: Duration::from_secs(300),
        }
    }
}

impl Settings {
    /// Checks what describes the host itself, as a heartbeat would be checked.
    ///
    /// Errors with [`Error::Invalid`] for the first value out of range.
    pub fn check(&self) -> Result<(), Error> {
        membership::check(&mut self.report(None, "localhost:1"))
    }

    fn report(&self, load: Option<Load>, address: &str) -> Report {
        Report {
            id: self.instance_id.clone(),
            address: self.advertise.as_deref().unwrap_or(address).to_owned(),
            zone: self.zone.clone(),
            capacity: self.capacity,
            labels: self.labels.clone(),
            load,
            age: Duration::ZERO,
        }
    }
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Age of a heartbeat up to which its row lives.
    pub ttl: Duration,
    /// How often to send one.
    pub heartbeat_interval: Duration,
}

/// One client asks for an instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// The client's own name, at most 256 bytes; an empty one is not remembered.
    pub client_id: &'a str,
    /// Instances not to choose: ids, or URLs `http://address`.
    pub exclude: &'a [String],
    /// Labels the instance must have, all of them.
    pub labels: &'a [(String, String)],
    /// How many candidates to list, the pick included; `None` lists none unless `explain` is set.
    pub limit: Option<usize>,
    /// Whether to list candidates with the parts of their scores.
    pub explain: bool,
    /// Whether nothing is given out: what would be chosen now.
    pub dry_run: bool,
    /// Sessions the client has open on this very host.
    pub own_sessions: u32,
    /// The client's own traffic.
    pub traffic: Traffic,
}

/// The chosen instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// Its id.
    pub id: Arc<str>,
    /// Where to reach it, `host:port`.
    pub address: Arc<str>,
    /// What it costs; lower is better.
    pub score: Score,
    /// Which policy version decided; `None` is the fallback.
    pub by: Option<Arc<Identity>>,
}

impl Pick {
    /// Returns the name of who decided.
    #[must_use]
    pub fn policy(&self) -> &str {
        self.by.as_ref().map_or(fallback::NAME, |by| &by.name)
    }

    /// Returns the digest of the policy that decided, empty for the fallback.
    #[must_use]
    pub fn digest(&self) -> &str {
        self.by.as_ref().map_or("", |by| &by.digest)
    }

    /// Returns the digest of its configuration, `None` if that is empty or the fallback decided.
    #[must_use]
    pub fn config_digest(&self) -> Option<String> {
        self.by.as_ref().and_then(|by| by.config_digest())
    }
}

/// One instance that could be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: Arc<str>,
    /// Where to reach it, `host:port`.
    pub address: Arc<str>,
    /// What it costs; lower is better.
    pub score: Score,
    /// Named terms of the score; empty if the policy does not explain.
    pub parts: Vec<(String, f64)>,
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    /// The choice; `None` if nobody may be chosen.
    pub pick: Option<Pick>,
    /// Where to go if nobody may be chosen: the host itself, unless it has no address or was not wanted.
    pub instead: Option<Arc<str>>,
    /// If asked for: the pick first, then the others by what the policy's explanation says they cost.
    pub candidates: Vec<Candidate>,
    /// What the pick rests on, if there is one and `explain` was set.
    pub grounds: Option<Grounds>,
}

/// See the module.
pub struct Balancer {
    settings: Settings,
    own_url: Option<Arc<str>>,
    clock: Arc<dyn Clock>,
    boot_seed: u64,
    state: Mutex<State>,
}

struct State {
    members: Members,
    clients: Clients,
    seat: ScoringSeat,
    decisions: u64,
    heartbeats: u64,
    scratch: Scratch,
}

/// Columns of the request being built, kept so that a decision does not allocate them.
#[derive(Default)]
struct Scratch {
    avoid: Vec<u32>,
    pairs: Vec<(u32, u32)>,
    session_rows: Vec<u32>,
    session_counts: Vec<u32>,
}

impl Balancer {
    /// Makes a balancer without instances. `boot_seed` is the chance of this life of the host: decision n gets
    /// `core::seed::decision(boot_seed, n)`.
    #[must_use]
    pub fn new(settings: Settings, seat: ScoringSeat, clock: Arc<dyn Clock>, boot_seed: u64) -> Self {
        let limits = Limits {
            ttl: settings.ttl,
            forget_after: settings.forget_after,
            instances_max: settings.instances_max,
            roster_bytes_max: ROSTER_BYTES_MAX,
        };
        let state = State {
            members: Members::new(limits),
            clients: Clients::new(settings.clients_max, settings.remember),
            seat,
            decisions: 0,
            heartbeats: 0,
            scratch: Scratch::default(),
        };
        let own_url = settings.advertise.as_ref().map(|address| Arc::from(format!("http://{address}")));
        Self { settings, own_url, clock, boot_seed, state: Mutex::new(state) }
    }

    /// Takes the heartbeat of an outside instance in.
    ///
    /// A draining instance stays draining; one that was dead lives again. Errors with [`Error::Invalid`],
    /// [`Error::TooOld`], [`Error::OwnInstance`], [`Error::TooManyInstances`] or [`Error::RosterTooLarge`].
    pub fn heartbeat(&self, report: Report) -> Result<Ack, Error> {
        self.refuse_own(&report.id)?;
        self.apply(report)?;
        Ok(Ack { ttl: self.settings.ttl, heartbeat_interval: self.settings.heartbeat_interval })
    }

    /// Puts the host's own row in, or refreshes it; does nothing if the host has no address to advertise.
    ///
    /// Errors with [`Error::Invalid`], [`Error::TooManyInstances`] or [`Error::RosterTooLarge`].
    pub fn self_heartbeat(&self, load: Option<Load>) -> Result<(), Error> {
        let Some(address) = &self.settings.advertise else { return Ok(()) };
        self.apply(self.settings.report(load, address))
    }

    /// Removes the host's own row, for a shutdown.
    pub fn retire(&self) {
        self.with_members(|members, _| members.leave(&self.settings.instance_id));
    }

    /// Stops (or starts again) giving out new sessions to an instance, the host itself included.
    ///
    /// Errors with [`Error::UnknownInstance`].
    pub fn drain(&self, id: &str, is_draining: bool) -> Result<(), Error> {
        let known = self.with_members(|members, _| members.drain(id, is_draining));
        if known { Ok(()) } else { Err(Error::UnknownInstance { id: id.to_owned() }) }
    }

    /// Removes an outside instance at once.
    ///
    /// Errors with [`Error::OwnInstance`] or [`Error::UnknownInstance`].
    pub fn leave(&self, id: &str) -> Result<(), Error> {
        self.refuse_own(id)?;
        let known = self.with_members(|members, _| members.leave(id));
        if known { Ok(()) } else { Err(Error::UnknownInstance { id: id.to_owned() }) }
    }

    /// Chooses an instance, counts the session as given out to it and remembers it for the client; or, for a dry run,
    /// does nothing of that: the answer is the one that the same call without it would get at that moment.
    pub fn recommend(&self, ask: &Ask<'_>) -> Recommended {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let State { members, clients, seat, decisions, scratch, .. } = &mut *state;
        members.expire(now);
        members.freshen(now);
        clients.expire(now);
        members.avoid(ask.exclude, ask.labels, &mut scratch.avoid);
        if !scoring::any_choosable(members.view().loads, &scratch.avoid) {
            return Recommended { instead: self.instead(ask), ..Recommended::default() };
        }
        let own_row = members.row_of(&self.settings.instance_id);
        scratch.sessions(members, clients.counts(ask.client_id), own_row, ask.own_sessions);
        let number = *decisions + 1;
        if !ask.dry_run {
            *decisions = number;
        }
        let request = Request {
            client_id: ask.client_id,
            session_rows: &scratch.session_rows,
            session_counts: &scratch.session_counts,
            client_inflow: ask.traffic.inflow,
            client_outflow: ask.traffic.outflow,
            avoid: &scratch.avoid,
            now_ms: now.0,
            seed: seed::decision(self.boot_seed, number),
        };
        let view = members.view();
        let explains = ask.explain || ask.limit.is_some();
        let explanation = explains.then(|| seat.explain(view, &request, &*self.clock));
        let asked = ask.explain.then(|| seat.asked(&request).cloned()).flatten();
        let decision = match ask.dry_run {
            true => seat.rehearse(view, &request, &*self.clock),
            false => seat.decide(view, &request, &*self.clock),
        };
        let Some(decision) = decision else {
            return Recommended { instead: self.instead(ask), ..Recommended::default() };
        };
        let grounds = explanation.as_ref().filter(|_| ask.explain).map(|explanation| {
            let asked = asked.as_deref();
            Grounds::of(members, view, request.avoid, seat, asked, &decision, explanation)
        });
        let candidates = explanation
            .map(|explanation| {
                candidates(members, &decision, explanation, ask.limit.unwrap_or(CANDIDATES_MAX))
            })
            .unwrap_or_default();
        let Decision { recommendation, by, outcome } = decision;
        if !ask.dry_run {
            seat.commit(u32::try_from(recommendation.row).expect("a verified row came as a u32"));
            members.give_out(recommendation.row);
        }
        let (id, address, serial) = members.name(recommendation.row);
        if !ask.dry_run {
            clients.grant(ask.client_id, serial, now);
            tracing::debug!(instance.id = &**id, outcome = outcome.name(), "session given out");
        }
        let pick = Pick { id: id.clone(), address: address.clone(), score: recommendation.score, by };
        Recommended { pick: Some(pick), instead: None, candidates, grounds }
    }

    /// Returns the instances ordered by id, expired ones only if `all`.
    #[must_use]
    pub fn instances(&self, all: bool) -> Vec<InstanceView> {
        self.with_members(|members, now| members.list(all, now))
    }

    /// Counts the instances by kind.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.with_members(|members, _| members.counts())
    }

    /// Says whether nobody may be chosen now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts().live == 0
    }

    /// Returns what was decided since the host started, by policy version and outcome.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.state.lock().seat.tally().clone()
    }

    /// Returns how many heartbeats were taken in since the host started, its own included.
    #[must_use]
    pub fn heartbeats(&self) -> u64 {
        self.state.lock().heartbeats
    }

    /// Returns the URL the host advertises for itself.
    #[must_use]
    pub fn own_url(&self) -> Option<&str> {
        self.own_url.as_deref()
    }

    /// Returns the id of the host itself.
    #[must_use]
    pub fn own_id(&self) -> &str {
        &self.settings.instance_id
    }

    /// Returns the settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn with_members<T>(&self, use_members: impl FnOnce(&mut Members, Timestamp) -> T) -> T {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.members.expire(now);
        use_members(&mut state.members, now)
    }

    fn apply(&self, report: Report) -> Result<(), Error> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.members.expire(now);
        state.members.apply(report, now)?;
        state.heartbeats += 1;
        Ok(())
    }

    fn refuse_own(&self, id: &str) -> Result<(), Error> {
        let has_own = self.settings.advertise.is_some();
        if has_own && id == self.settings.instance_id {
            Err(Error::OwnInstance { id: id.to_owned() })
        } else {
            Ok(())
        }
    }

    /// Returns the own URL unless the request does not want this host.
    fn instead(&self, ask: &Ask<'_>) -> Option<Arc<str>> {
        let is_own = |name: &String| {
            *name == self.settings.instance_id
                || membership::address_of(name) == self.settings.advertise.as_deref()
        };
        let fits = !ask.exclude.iter().any(is_own)
            && ask.labels.iter().all(|label| self.settings.labels.contains(label));
        self.own_url.clone().filter(|_| fits)
    }
}

impl ScoringHost for Balancer {
    fn snapshot(&self) -> ScoringSnapshot {
        self.with_members(|members, now| {
            members.freshen(now);
            let roster = members.roster().clone();
            let View { loads, roster_revision, .. } = members.view();
            ScoringSnapshot { roster, loads: loads.clone(), roster_revision }
        })
    }

    fn with_seat(&self, use_seat: &mut dyn FnMut(&mut ScoringSeat)) {
        use_seat(&mut self.state.lock().seat);
    }
}

impl Scratch {
    /// Fills in on which rows the client has how many sessions: what it was given lately, and on the own row at
    /// least what it has open there (a session that was given out and then opened is one).
    fn sessions(
        &mut self,
        members: &Members,
        counts: &[(u64, u32)],
        own_row: Option<usize>,
        own_sessions: u32,
    ) {
        self.pairs.clear();
        let row_and_count = |(serial, count): &(u64, u32)| Some((members.row_of_serial(*serial)?, *count));
        self.pairs.extend(counts.iter().filter_map(row_and_count));
        if let Some(own_row) = own_row.and_then(|row| u32::try_from(row).ok())
            && own_sessions > 0
        {
            match self.pairs.iter_mut().find(|(row, _)| *row == own_row) {
                Some((_, count)) => *count = own_sessions.max(*count),
                None => self.pairs.push((own_row, own_sessions)),
            }
        }
        self.pairs.sort_unstable();
        self.session_rows.clear();
        self.session_counts.clear();
        self.session_rows.extend(self.pairs.iter().map(|(row, _)| row));
        self.session_counts.extend(self.pairs.iter().map(|(_, count)| count));
    }
}

/// Lists the pick first and then the other explained rows, `max` together.
fn candidates(
    members: &Members,
    decision: &Decision,
    explanation: Explanation,
    max: usize,
) -> Vec<Candidate> {
    let candidate = |row: usize, score: Score, parts: Vec<(String, f64)>| {
        let (id, address, _) = members.name(row);
        Candidate { id: id.clone(), address: address.clone(), score, parts }
    };
    let picked = decision.recommendation;
    let mut rows = explanation.rows;
    let parts = rows
        .iter()
        .position(|explained| explained.row == picked.row)
        .map(|at| rows.remove(at).parts)
        .unwrap_or_default();
    std::iter::once(candidate(picked.row, picked.score, parts))
        .chain(rows.into_iter().map(|other| candidate(other.row, other.score, other.parts)))
        .take(max)
        .collect()
}

#[cfg(test)]
mod tests;
