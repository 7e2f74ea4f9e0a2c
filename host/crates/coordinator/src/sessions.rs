//! Sessions of this host and the agents that serve them.
//!
//! Invariants: a session that has an agent has one that is registered, so the sessions of an agent end with it; a client's
//! sessions go to the agent it is bound to as long as that one can serve them; ids cannot be guessed.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fulcrum_core::Timestamp;
use parking_lot::Mutex;

use crate::agents::{AgentCounts, Agents};
use crate::deadlines::Deadlines;
use crate::error::Error;
use crate::valid;

/// How sessions and agents behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether a session needs an agent; without, one is opened even if no agent can serve it.
    pub require_agent: bool,
    /// How long an agent lives without a sign of life.
    pub agent_ttl: Duration,
    /// How long a client stays bound to its agent since it opened its last session.
    pub binding_ttl: Duration,
    /// How long a session lives without use.
    pub session_ttl: Duration,
    /// Most sessions open at a time.
    pub sessions_max: usize,
    /// Most agents registered at a time.
    pub agents_max: usize,
    /// Most bindings kept; beyond, those that end first are forgotten.
    pub bindings_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            require_agent: true,
            agent_ttl: Duration::from_secs(15),
            binding_ttl: Duration::from_secs(30 * 60),
            session_ttl: Duration::from_secs(60 * 60),
            sessions_max: 1_000_000,
            agents_max: 10_000,
            bindings_max: 100_000,
        }
    }
}

/// A session that was just opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// `agentId:` and 32 hexadecimal digits that cannot be guessed.
    pub session_id: Arc<str>,
    /// The agent that serves it, empty if none does.
    pub agent_id: Arc<str>,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The client it belongs to.
    pub client_id: Arc<str>,
    /// The agent that serves it, empty if none does.
    pub agent_id: Arc<str>,
    /// When it was opened.
    pub opened_at: Timestamp,
}

/// What ended, in the order it did: an agent before its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// An agent was unregistered or not heard of for too long.
    Agent(Arc<str>),
    /// A session is not open any more.
    Session {
        /// Its id.
        id: Arc<str>,
        /// Why it ended.
        why: Why,
    },
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was closed.
    Closed,
    /// Nobody used it for too long.
    Idle,
    /// Its agent is gone.
    AgentGone,
}

/// Hears what ended.
pub type Listener = Box<dyn Fn(Vec<Ended>) + Send + Sync>;

/// See the module. Time is an argument: `now` is the host's clock.
pub struct Sessions {
    state: Mutex<State>,
    listener: OnceLock<Listener>,
}

struct State {
    settings: Settings,
    entropy: Box<dyn FnMut() -> u128 + Send>,
    agents: Agents,
    sessions: HashMap<Arc<str>, Session>,
    session_deadlines: Deadlines<Arc<str>>,
    per_client: HashMap<Arc<str>, u32>,
    bindings: HashMap<Arc<str>, Binding>,
    binding_deadlines: Deadlines<Arc<str>>,
    /// What ended during the present call; the listener hears of it once the lock is free.
    ended: Vec<Ended>,
}

struct Session {
    view: SessionView,
    used_at: Timestamp,
    deadline: Timestamp,
}

struct Binding {
    agent: Arc<str>,
    deadline: Timestamp,
}

impl Sessions {
    /// Makes an empty table. Each call of `entropy` gives 128 bits nobody can foresee.
    #[must_use]
    pub fn new(settings: Settings, entropy: Box<dyn FnMut() -> u128 + Send>) -> Self {
        let state = State {
            agents: Agents::new(settings.agent_ttl, settings.agents_max),
            settings,
            entropy,
            sessions: HashMap::new(),
            session_deadlines: Deadlines::default(),
            per_client: HashMap::new(),
            bindings: HashMap::new(),
            binding_deadlines: Deadlines::default(),
            ended: Vec::new(),
        };
        Self { state: Mutex::new(state), listener: OnceLock::new() }
    }

    /// Calls `listener` after every call that ended something, from within that call but without a lock held. Only
    /// the first listener is taken.
    pub fn on_end(&self, listener: Listener) {
        if self.listener.set(listener).is_err() {
            tracing::error!("sessions have a listener already");
        }
    }

    /// Ends what is over; returns the time after which there may be something again, `None` if there is nothing that
    /// could end by itself.
    pub fn expire(&self, now: Timestamp) -> Option<Timestamp> {
        self.at(now, |state| {
            let next = [state.agents.next_deadline(), state.session_deadlines.next()];
            next.into_iter().flatten().min()
        })
    }

    /// Opens a session of a client (1 to 256 bytes) with an agent that serves `model`; without a model any agent does.
    ///
    /// Errors with [`Error::Invalid`], [`Error::NoAgent`] or [`Error::TooManySessions`].
    pub fn open(&self, client_id: &str, model: Option<&str>, now: Timestamp) -> Result<Opened, Error> {
        valid::require(!client_id.is_empty(), "clientId", "1 to 256 bytes")?;
        valid::text("clientId", client_id)?;
        model.map_or(Ok(()), |model| valid::text("model", model))?;
        self.at(now, |state| state.open(client_id, model, now))
    }

    /// Closes a session.
    ///
    /// Errors with [`Error::UnknownSession`].
    pub fn close(&self, session_id: &str, now: Timestamp) -> Result<(), Error> {
        self.at(now, |state| state.end(session_id, Why::Closed).ok_or_else(|| unknown_session(session_id)))
    }

    /// Notes that a session is used, which keeps it open, and returns it.
    ///
    /// Errors with [`Error::UnknownSession`].
    pub fn touch(&self, session_id: &str, now: Timestamp) -> Result<SessionView, Error> {
        self.at(now, |state| {
            let session = state.sessions.get_mut(session_id).ok_or_else(|| unknown_session(session_id))?;
            session.used_at = now;
            Ok(session.view.clone())
        })
    }

    /// Returns how many sessions are open.
    #[must_use]
    pub fn count(&self, now: Timestamp) -> u32 {
        self.at(now, |state| u32::try_from(state.sessions.len()).unwrap_or(u32::MAX))
    }

    /// Returns how many sessions a client has open.
    #[must_use]
    pub fn count_of(&self, client_id: &str, now: Timestamp) -> u32 {
        self.at(now, |state| state.per_client.get(client_id).copied().unwrap_or(0))
    }

    /// Returns how many agents there are.
    #[must_use]
    pub fn agent_counts(&self, now: Timestamp) -> AgentCounts {
        self.at(now, |state| state.agents.counts())
    }

    /// Registers an agent, which then waits for [`Self::ready`]; one that is registered is updated and stays ready if
    /// it was. `capabilities` are the models it serves (at most 64), `capacity` the sessions it serves at a time
    /// (1 to 1,000,000).
    ///
    /// Errors with [`Error::Invalid`] or [`Error::TooManyAgents`].
    pub fn register(
        &self,
        agent_id: &str,
        capabilities: Vec<String>,
        capacity: u32,
        now: Timestamp,
    ) -> Result<(), Error> {
        self.at(now, |state| state.agents.register(agent_id, capabilities, capacity, now))
    }

    /// Lets sessions go to an agent.
    ///
    /// Errors with [`Error::UnknownAgent`].
    pub fn ready(&self, agent_id: &str, now: Timestamp) -> Result<(), Error> {
        self.at(now, |state| state.agents.ready(agent_id, now))
    }

    /// Takes an agent's sign of life in, with the number of sessions it serves.
    ///
    /// Errors with [`Error::UnknownAgent`].
    pub fn agent_heartbeat(&self, agent_id: &str, active_sessions: u32, now: Timestamp) -> Result<(), Error> {
        self.at(now, |state| state.agents.heartbeat(agent_id, active_sessions, now))
    }

    /// Takes a sign of life of an agent in that says nothing else.
    ///
    /// Errors with [`Error::UnknownAgent`].
    pub fn agent_heard(&self, agent_id: &str, now: Timestamp) -> Result<(), Error> {
        self.at(now, |state| state.agents.heard(agent_id, now))
    }

    /// Succeeds if an agent is registered, which is no sign of life.
    ///
    /// Errors with [`Error::UnknownAgent`].
    pub fn check_agent(&self, agent_id: &str, now: Timestamp) -> Result<(), Error> {
        let known = self.at(now, |state| state.agents.knows(agent_id));
        if known { Ok(()) } else { Err(Error::UnknownAgent { id: agent_id.to_owned() }) }
    }

    /// Removes an agent and closes its sessions.
    ///
    /// Errors with [`Error::UnknownAgent`].
    pub fn unregister(&self, agent_id: &str, now: Timestamp) -> Result<(), Error> {
        self.at(now, |state| {
            let sessions = state
                .agents
                .unregister(agent_id)
                .ok_or_else(|| Error::UnknownAgent { id: agent_id.to_owned() })?;
            tracing::info!(agent.id = agent_id, session_count = sessions.len(), "agent unregistered");
            state.end_agent(Arc::from(agent_id), sessions);
            Ok(())
        })
    }

    /// Runs `act` on a state in which nothing is left that is over.
    fn at<T>(&self, now: Timestamp, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.expire(now);
        let result = act(&mut state);
        let ended = std::mem::take(&mut state.ended);
        drop(state);
        if !ended.is_empty()
            && let Some(listener) = self.listener.get()
        {
            listener(ended);
        }
        result
    }
}

impl State {
    fn open(&mut self, client_id: &str, model: Option<&str>, now: Timestamp) -> Result<Opened, Error> {
        if self.sessions.len() >= self.settings.sessions_max {
            return Err(Error::TooManySessions { max: self.settings.sessions_max });
        }
        let bound = self.bindings.get(client_id).map(|binding| &binding.agent);
        let agent = self.agents.choose(bound, model);
        if agent.is_none() && self.settings.require_agent {
            return Err(Error::NoAgent);
        }
        let client_id: Arc<str> = match self.per_client.get_key_value(client_id) {
            Some((known, _)) => known.clone(),
            None => Arc::from(client_id),
        };
        let agent_id = agent.clone().unwrap_or_else(|| Arc::from(""));
        let session_id: Arc<str> = Arc::from(format!("{agent_id}:{:032x}", (self.entropy)()));
        if let Some(agent) = agent {
            self.agents.opened(&agent, session_id.clone());
            self.bind(&client_id, agent, now);
        }
        let deadline = now.after(self.settings.session_ttl);
        self.session_deadlines.insert(deadline, session_id.clone());
        *self.per_client.entry(client_id.clone()).or_insert(0) += 1;
        let view = SessionView { client_id, agent_id: agent_id.clone(), opened_at: now };
        self.sessions.insert(session_id.clone(), Session { view, used_at: now, deadline });
        Ok(Opened { session_id, agent_id })
    }

    fn bind(&mut self, client: &Arc<str>, agent: Arc<str>, now: Timestamp) {
        let deadline = now.after(self.settings.binding_ttl);
        if let Some(former) = self.bindings.insert(client.clone(), Binding { agent, deadline }) {
            self.binding_deadlines.remove(former.deadline, client.clone());
        }
        self.binding_deadlines.insert(deadline, client.clone());
        if self.bindings.len() > self.settings.bindings_max
            && let Some(oldest) = self.binding_deadlines.pop_first()
        {
            self.bindings.remove(&oldest);
        }
    }

    fn expire(&mut self, now: Timestamp) {
        while let Some((agent, sessions)) = self.agents.expire_one(now) {
            self.end_agent(agent, sessions);
        }
        while let Some(client) = self.binding_deadlines.pop_over(now) {
            self.bindings.remove(&client);
        }
        while let Some(id) = self.session_deadlines.pop_over(now) {
            let session = self.sessions.get_mut(&id).expect("a deadline is removed with its session");
            session.deadline = session.used_at.after(self.settings.session_ttl);
            self.session_deadlines.insert(session.deadline, id.clone());
            if session.deadline < now {
                tracing::debug!(session.id = &*id, "session was idle for too long");
                self.end(&id, Why::Idle);
            }
        }
    }

    /// Ends the sessions of an agent that is gone.
    fn end_agent(&mut self, agent: Arc<str>, sessions: impl IntoIterator<Item = Arc<str>>) {
        self.ended.push(Ended::Agent(agent));
        for session in sessions {
            self.end(&session, Why::AgentGone);
        }
    }

    /// Forgets a session everywhere; `None` if it is not open.
    fn end(&mut self, session_id: &str, why: Why) -> Option<()> {
        let (id, session) = self.sessions.remove_entry(session_id)?;
        self.session_deadlines.remove(session.deadline, id.clone());
        self.ended.push(Ended::Session { id, why });
        self.agents.closed(&session.view.agent_id, session_id);
        if let Some(count) = self.per_client.get_mut(&session.view.client_id) {
            *count -= 1;
            if *count == 0 {
                self.per_client.remove(&session.view.client_id);
            }
        }
        Some(())
    }
}

fn unknown_session(id: &str) -> Error {
    Error::UnknownSession { id: id.to_owned() }
}

#[cfg(test)]
mod tests;
