//! The agents of this host: workers that serve sessions.
//!
//! Invariants: an agent can be chosen only when it said it is ready, was heard of within its time to live and is below its
//! capacity; agents that can be chosen are kept ordered by load, so choosing looks at few of them.
//! The load of an agent is `max(sessions it reported, sessions we opened on it) / capacity`: a report may be older than
//! our latest sessions, and an agent may serve others than ours.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::Timestamp;

use crate::deadlines::Deadlines;
use crate::error::Error;
use crate::valid;

/// How many agents there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Agents that said they are ready.
    pub ready: usize,
    /// Agents that registered and are not ready yet.
    pub waiting: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Agents {
    ttl: Duration,
    agents_max: usize,
    agents: HashMap<Arc<str>, Agent>,
    /// Ready agents by load, equal loads by id.
    by_load: BTreeSet<(LoadKey, Arc<str>)>,
    deadlines: Deadlines<Arc<str>>,
}

#[derive(Debug)]
struct Agent {
    capabilities: Vec<String>,
    capacity: u32,
    is_ready: bool,
    reported: u32,
    sessions: HashSet<Arc<str>>,
    heard_at: Timestamp,
    deadline: Timestamp,
}

/// The bits of a load, which order like the load because it is never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LoadKey(u64);

impl Agent {
    fn active(&self) -> u32 {
        self.reported.max(u32::try_from(self.sessions.len()).unwrap_or(u32::MAX))
    }

    fn load(&self) -> LoadKey {
        LoadKey((f64::from(self.active()) / f64::from(self.capacity)).to_bits())
    }

    fn can_serve(&self, model: Option<&str>) -> bool {
        self.active() < self.capacity
            && model.is_none_or(|model| self.capabilities.iter().any(|known| known == model))
    }
}

impl Agents {
    pub(crate) fn new(ttl: Duration, agents_max: usize) -> Self {
        Self {
            ttl,
            agents_max,
            agents: HashMap::new(),
            by_load: BTreeSet::new(),
            deadlines: Deadlines::default(),
        }
    }

    /// Adds an agent, which is not ready yet, or updates a known one, which stays what it is.
    pub(crate) fn register(
        &mut self,
        id: &str,
        capabilities: Vec<String>,
        capacity: u32,
        now: Timestamp,
    ) -> Result<(), Error> {
        valid::id("agentId", id)?;
        valid::require(
            (1..=valid::AGENT_CAPACITY_MAX).contains(&capacity),
            "capacity",
            "a whole number of 1 to 1000000 (sessions at a time)",
        )?;
        valid::require(capabilities.len() <= valid::LABELS_MAX, "capabilities", "at most 64 capabilities")?;
        capabilities.iter().try_for_each(|capability| valid::text("capabilities", capability))?;
        if self.agents.contains_key(id) {
            return self.change(id, now, |agent| {
                agent.capabilities = capabilities;
                agent.capacity = capacity;
            });
        }
        if self.agents.len() >= self.agents_max {
            return Err(Error::TooManyAgents { max: self.agents_max });
        }
        let id: Arc<str> = Arc::from(id);
        let deadline = now.after(self.ttl);
        self.deadlines.insert(deadline, id.clone());
        let agent = Agent {
            capabilities,
            capacity,
            is_ready: false,
            reported: 0,
            sessions: HashSet::new(),
            heard_at: now,
            deadline,
        };
        tracing::info!(agent.id = &*id, "agent registered");
        self.agents.insert(id, agent);
        Ok(())
    }

    /// Lets an agent be chosen.
    pub(crate) fn ready(&mut self, id: &str, now: Timestamp) -> Result<(), Error> {
        self.change(id, now, |agent| agent.is_ready = true)
    }

    /// Takes the number of sessions in that the agent says it serves.
    pub(crate) fn heartbeat(&mut self, id: &str, active_sessions: u32, now: Timestamp) -> Result<(), Error> {
        self.change(id, now, |agent| agent.reported = active_sessions)
    }

    /// Takes a sign of life in.
    pub(crate) fn heard(&mut self, id: &str, now: Timestamp) -> Result<(), Error> {
        self.change(id, now, |_| ())
    }

    /// Returns when an agent may be over next.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.next()
    }

    /// Says whether an agent is registered.
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.agents.contains_key(id)
    }

    /// Removes an agent; returns its sessions, `None` if it is not known.
    pub(crate) fn unregister(&mut self, id: &str) -> Option<HashSet<Arc<str>>> {
        let (id, agent) = self.agents.remove_entry(id)?;
        self.by_load.remove(&(agent.load(), id.clone()));
        self.deadlines.remove(agent.deadline, id);
        Some(agent.sessions)
    }

    /// Removes one agent that was not heard of for longer than its time to live; returns its id and its sessions.
    pub(crate) fn expire_one(&mut self, now: Timestamp) -> Option<(Arc<str>, HashSet<Arc<str>>)> {
        while let Some(id) = self.deadlines.pop_over(now) {
            let agent = self.agents.get_mut(&id).expect("a deadline is removed with its agent");
            agent.deadline = agent.heard_at.after(self.ttl);
            if agent.deadline >= now {
                self.deadlines.insert(agent.deadline, id);
                continue;
            }
            let agent = self.agents.remove(&id).expect("found above");
            tracing::warn!(agent.id = &*id, "agent stopped its heartbeat");
            self.by_load.remove(&(agent.load(), id.clone()));
            return Some((id, agent.sessions));
        }
        None
    }

    /// Returns `bound`, if that agent can serve the session, else the least loaded one that can.
    pub(crate) fn choose(&self, bound: Option<&Arc<str>>, model: Option<&str>) -> Option<Arc<str>> {
        let can_serve =
            |id: &Arc<str>| self.agents.get(id).is_some_and(|agent| agent.is_ready && agent.can_serve(model));
        let full = LoadKey(1_f64.to_bits());
        bound.filter(|id| can_serve(id)).cloned().or_else(|| {
            let below_capacity = self.by_load.iter().take_while(|(load, _)| *load < full);
            below_capacity.map(|(_, id)| id).find(|id| can_serve(id)).cloned()
        })
    }

    /// Counts a session as opened on an agent.
    pub(crate) fn opened(&mut self, id: &str, session: Arc<str>) {
        self.reload(id, |agent| {
            agent.sessions.insert(session);
        });
    }

    /// Counts a session as closed; an agent that is gone is ignored.
    pub(crate) fn closed(&mut self, id: &str, session: &str) {
        self.reload(id, |agent| {
            agent.sessions.remove(session);
        });
    }

    /// Counts the agents.
    pub(crate) fn counts(&self) -> AgentCounts {
        AgentCounts { ready: self.by_load.len(), waiting: self.agents.len() - self.by_load.len() }
    }

    fn change(&mut self, id: &str, now: Timestamp, change: impl FnOnce(&mut Agent)) -> Result<(), Error> {
        let known = self.reload(id, |agent| {
            agent.heard_at = now;
            change(agent);
        });
        if known { Ok(()) } else { Err(Error::UnknownAgent { id: id.to_owned() }) }
    }

    /// Changes an agent and keeps the order by load; says whether it is known.
    fn reload(&mut self, id: &str, change: impl FnOnce(&mut Agent)) -> bool {
        let Some((id, _)) = self.agents.get_key_value(id) else { return false };
        let id = id.clone();
        let agent = self.agents.get_mut(&id).expect("found above");
        let before = agent.load();
        change(agent);
        let after = agent.load();
        if agent.is_ready && before == after && self.by_load.contains(&(after, id.clone())) {
            return true;
        }
        self.by_load.remove(&(before, id.clone()));
        if agent.is_ready {
            self.by_load.insert((after, id));
        }
        true
    }

    /// Returns how many sessions all agents have together.
    #[cfg(test)]
    pub(crate) fn session_count(&self) -> usize {
        self.agents.values().map(|agent| agent.sessions.len()).sum()
    }

    /// Panics unless the order by load and the deadlines hold exactly what they should.
    #[cfg(test)]
    pub(crate) fn assert_ordered(&self) {
        let ready = self.agents.iter().filter(|(_, agent)| agent.is_ready);
        let expected: BTreeSet<_> = ready.map(|(id, agent)| (agent.load(), id.clone())).collect();
        assert_eq!(self.by_load, expected);
        assert_eq!(self.deadlines.len(), self.agents.len());
    }
}
