//! Turns: a client asks on its session, the session's agent answers in chunks.
//!
//! Invariants: a session has at most one turn at a time; **every turn ends with exactly one done chunk**, whoever ends it
//! (the agent, the deadline, the end of its agent or session, the client, the host), and nothing comes after it; chunks
//! reach the client in the order of their `seq`, none twice; a turn is taken by an agent once; its id cannot be guessed,
//! so only who took it can answer it. Everything that is kept is bounded.
//!
//! One lock, never held while [`Sessions`] is asked. The pipe of a turn and what a session keeps for its subscriber have a
//! lock each, which is only taken last.

mod chunk;
mod inbox;
mod pipe;
mod replay;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::Timestamp;
use fulcrum_core::time::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use chunk::Chunk;

use crate::deadlines::Deadlines;
use crate::sessions::{Ended, SessionView, Sessions, Why};
use inbox::{Inbox, Item};
use pipe::Pipe;
use replay::{Next, Replay, Shelf, Size};

/// Longest time a turn may have.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Shortest sleep between two looks for what is over.
const LOOK_MIN: Duration = Duration::from_millis(20);

/// How turns behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a turn may take that does not say.
    pub timeout: Duration,
    /// How long a chunk waits for a client that reads slowly.
    pub chunk_wait: Duration,
    /// Largest chunk, in bytes.
    pub chunk_bytes_max: usize,
    /// Most chunks of a turn that wait for its client.
    pub pipe_chunks_max: usize,
    /// Most bytes of a turn that wait for its client, but for a single chunk.
    pub pipe_bytes_max: usize,
    /// Most chunks a session keeps for its subscriber.
    pub replay_chunks_max: usize,
    /// Most bytes a session keeps for its subscriber, but for a single chunk.
    pub replay_bytes_max: usize,
    /// Most bytes all sessions keep for their subscribers; beyond, the oldest are dropped.
    pub replay_bytes_total_max: usize,
    /// Most turns that run at a time.
    pub running_max: usize,
    /// Most turns that wait for one agent, and most notices.
    pub inbox_max: usize,
    /// Most bytes of prompts that wait for one agent, but for a single turn.
    pub inbox_bytes_max: usize,
    /// How often a waiting poll keeps its agent, and a subscriber its session.
    pub beat: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            chunk_wait: Duration::from_secs(5),
            chunk_bytes_max: 256 << 10,
            pipe_chunks_max: 64,
            pipe_bytes_max: 256 << 10,
            replay_chunks_max: 256,
            replay_bytes_max: 256 << 10,
            replay_bytes_total_max: 256 << 20,
            running_max: 10_000,
            inbox_max: 1000,
            inbox_bytes_max: 16 << 20,
            beat: Duration::from_secs(5),
        }
    }
}

/// Why a call was refused; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The session or the agent is not there.
    #[error(transparent)]
    Refused(#[from] crate::Error),
    /// The session was opened without an agent.
    #[error("session {id} has no agent, nobody would answer")]
    NoAgent {
        /// The session.
        id: String,
    },
    /// The session has a turn.
    #[error("session {id} has a turn that is not over yet")]
    TurnRunning {
        /// The session.
        id: String,
    },
    /// Too many turns wait for the agent.
    #[error("too many turns wait for agent {id}")]
    AgentBusy {
        /// The agent.
        id: String,
    },
    /// Too many turns run.
    #[error("too many turns, at most {max} run at a time")]
    TooManyTurns {
        /// The cap.
        max: usize,
    },
    /// The session never had such a turn, or one that is long over.
    #[error("the session has no such turn")]
    UnknownTurn,
    /// The turn is over: it has its done chunk.
    #[error("the turn is over")]
    TurnOver,
    /// The chunk is not the next one of its turn.
    #[error("the next chunk of this turn has seq {next}")]
    NotNext {
        /// The `seq` expected.
        next: u64,
    },
    /// The client did not make room in time; the same chunk may be sent again.
    #[error("the client reads too slowly, the chunk was not taken")]
    SlowClient,
    /// The chunk is too large.
    #[error("a chunk has at most {max} bytes")]
    ChunkTooLarge {
        /// The cap.
        max: usize,
    },
    /// The session has a subscriber.
    #[error("session {id} has a subscriber")]
    AlreadySubscribed {
        /// The session.
        id: String,
    },
    /// The host is on its way out.
    #[error("the host is stopping")]
    Stopping,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The agent finished it.
    Ok,
    /// The agent said that it failed.
    Failed,
    /// Its time was over.
    Timeout,
    /// Its agent is gone.
    AgentGone,
    /// Its session was closed or forgotten.
    Closed,
    /// Its client is gone.
    Cancelled,
    /// The host stops.
    Stopping,
}

impl Outcome {
    /// All outcomes, in the order of [`Counts::ended`].
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Failed,
        Self::Timeout,
        Self::AgentGone,
        Self::Closed,
        Self::Cancelled,
        Self::Stopping,
    ];

    /// Returns its stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::AgentGone => "agent_gone",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
            Self::Stopping => "stopping",
        }
    }

    /// Returns what the done chunk says that the host writes.
    fn message(self) -> &'static str {
        match self {
            // The agent writes these itself.
            Self::Ok | Self::Failed => "",
            Self::Timeout => "the turn did not end in time",
            Self::AgentGone => "the agent is gone",
            Self::Closed => "the session was closed",
            Self::Cancelled => "the client is gone",
            Self::Stopping => "host is stopping",
        }
    }
}

/// Figures of all turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Turns that run.
    pub running: usize,
    /// Those of them that no agent took yet.
    pub waiting: usize,
    /// Turns that ended since the start, by outcome.
    pub ended: [u64; 7],
    /// Bytes kept for subscribers.
    pub replay_bytes: usize,
}

/// What an agent is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// A turn to answer.
    Turn {
        /// What its chunks must carry.
        turn: Arc<str>,
        /// Its session.
        session: Arc<str>,
        /// What the client asks.
        prompt: String,
        /// What the client wants to be answered by.
        model: Option<String>,
        /// The time left.
        left: Duration,
    },
    /// A turn it took is over; its chunks are refused.
    Cancelled {
        /// The turn.
        turn: Arc<str>,
    },
}

/// What a subscriber gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A chunk, and its place among all of its session, from 0.
    Chunk {
        /// The place.
        position: u64,
        /// The chunk.
        chunk: Arc<Chunk>,
    },
    /// Chunks that are not kept any more.
    Gap {
        /// How many.
        missed: u64,
        /// The place of the next chunk.
        next: u64,
    },
}

/// See the module.
pub struct Turns {
    settings: Settings,
    sessions: Arc<Sessions>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Woken when something may be over earlier than was known.
    started: Notify,
}

struct State {
    entropy: Box<dyn FnMut() -> u128 + Send>,
    notices_max: usize,
    is_stopping: bool,
    turns: HashMap<Arc<str>, Turn>,
    deadlines: Deadlines<Arc<str>>,
    /// The present or else the last turn of a session.
    latest: HashMap<Arc<str>, Arc<str>>,
    shelf: Shelf,
    inboxes: HashMap<Arc<str>, Inbox>,
    ended: [u64; 7],
}

struct Turn {
    session: Arc<str>,
    agent: Arc<str>,
    deadline: Timestamp,
    next_seq: u64,
    /// Place in the agent's inbox until the agent takes it.
    place: Option<u64>,
    pipe: Arc<Pipe>,
}

impl Turns {
    /// Makes a host's turns. Each call of `entropy` gives 128 bits nobody can foresee. [`Self::run`] must run beside it.
    #[must_use]
    pub fn new(
        settings: Settings,
        sessions: Arc<Sessions>,
        clock: Arc<dyn Clock>,
        entropy: Box<dyn FnMut() -> u128 + Send>,
    ) -> Arc<Self> {
        let each = Size { chunks: settings.replay_chunks_max, bytes: settings.replay_bytes_max };
        let state = State {
            entropy,
            notices_max: settings.inbox_max,
            is_stopping: false,
            turns: HashMap::new(),
            deadlines: Deadlines::default(),
            latest: HashMap::new(),
            shelf: Shelf::new(each, settings.replay_bytes_total_max),
            inboxes: HashMap::new(),
            ended: [0; 7],
        };
        let turns =
            Arc::new(Self { settings, sessions, clock, state: Mutex::new(state), started: Notify::new() });
        let listening = Arc::downgrade(&turns);
        turns.sessions.on_end(Box::new(move |ended| {
            if let Some(turns) = listening.upgrade() {
                let mut state = turns.state.lock();
                ended.iter().for_each(|ended| state.heard(ended));
            }
        }));
        turns
    }

    /// Ends what is over when it is over; never returns.
    pub async fn run(&self) {
        loop {
            let now = self.clock.now();
            // A deadline of exactly now is not over yet.
            let due = self.expire(now).map(|at| at.since(now) + Duration::from_millis(1));
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep(due.max(LOOK_MIN)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.started.notified() => {}
            }
        }
    }

    /// Ends the turns whose time is over, also because their agent or session is; returns the time after which there
    /// may be more.
    pub fn expire(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.sessions.expire(now);
        let mut state = self.state.lock();
        while let Some(turn) = state.deadlines.pop_over(now) {
            tracing::debug!(turn.id = &*turn, "turn did not end in time");
            state.end(&turn, Outcome::Timeout, None);
        }
        [next, state.deadlines.next()].into_iter().flatten().min()
    }

    /// Starts a turn on a session, which keeps the session open. Without `timeout` it has the default time.
    ///
    /// Errors if the session is not open, has no agent or has a turn, if too much waits for its agent, or if the host
    /// stops.
    pub fn start(
        self: &Arc<Self>,
        session_id: &str,
        prompt: String,
        model: Option<String>,
        timeout: Option<Duration>,
    ) -> Result<Reply, Error> {
        let now = self.clock.now();
        let view = self.sessions.touch(session_id, now)?;
        if view.agent_id.is_empty() {
            return Err(Error::NoAgent { id: session_id.to_owned() });
        }
        let agent = view.agent_id.clone();
        let deadline = now.after(timeout.unwrap_or(self.settings.timeout).min(TIMEOUT_MAX));
        let reply = self.begin(session_id, view, prompt, model, deadline)?;
        self.started.notify_one();
        // The session may have ended in between, and then nobody would hear of it any more; nor of its agent.
        let open = self.check_open(session_id);
        if open.is_err() && self.sessions.check_agent(&agent, now).is_err() {
            self.state.lock().end_agent(&agent);
        }
        open.map(|()| reply)
    }

    fn begin(
        self: &Arc<Self>,
        session_id: &str,
        view: SessionView,
        prompt: String,
        model: Option<String>,
        deadline: Timestamp,
    ) -> Result<Reply, Error> {
        let Settings { running_max, inbox_max, inbox_bytes_max, .. } = self.settings;
        let mut state = self.state.lock();
        if state.is_stopping {
            return Err(Error::Stopping);
        }
        if state.latest.get(session_id).is_some_and(|turn| state.turns.contains_key(turn)) {
            return Err(Error::TurnRunning { id: session_id.to_owned() });
        }
        if state.turns.len() >= running_max {
            return Err(Error::TooManyTurns { max: running_max });
        }
        let turn: Arc<str> = Arc::from(format!("{:032x}", (state.entropy)()));
        let inbox = state.inboxes.entry(view.agent_id.clone()).or_default();
        let bytes = prompt.len() + model.as_ref().map_or(0, String::len);
        if !inbox.has_room(bytes, inbox_max, inbox_bytes_max) {
            return Err(Error::AgentBusy { id: view.agent_id.to_string() });
        }
        let place = inbox.push(Item::Turn { turn: turn.clone(), prompt, model });
        let session: Arc<str> = Arc::from(session_id);
        let pipe = Arc::new(Pipe::new(self.settings.pipe_chunks_max, self.settings.pipe_bytes_max));
        state.deadlines.insert(deadline, turn.clone());
        state.latest.insert(session.clone(), turn.clone());
        let running = Turn {
            session: session.clone(),
            agent: view.agent_id,
            deadline,
            next_seq: 0,
            place: Some(place),
            pipe: pipe.clone(),
        };
        state.turns.insert(turn.clone(), running);
        drop(state);
        Ok(Reply { turns: self.clone(), turn, session, client: view.client_id, pipe })
    }

    /// Takes a chunk of an answer in, once the client's stream has room for it.
    ///
    /// Errors if the session or the turn is not there, if it is over, if the chunk is not the next one, or if the
    /// client made no room within the time set; then the same chunk may be sent again.
    pub async fn answer(&self, session_id: &str, turn_id: &str, chunk: Chunk) -> Result<(), Error> {
        self.check_size(&chunk)?;
        self.sessions.touch(session_id, self.clock.now())?;
        let chunk = Arc::new(chunk);
        let until = Instant::now() + self.settings.chunk_wait;
        while let Some(pipe) = self.offer(session_id, turn_id, &chunk)? {
            let mut moved = pin!(pipe.moved.notified());
            // Registered before the look, so that a move in between is not missed.
            moved.as_mut().enable();
            if !pipe.is_worth_a_try(&chunk) && tokio::time::timeout_at(until, moved).await.is_err() {
                return Err(Error::SlowClient);
            }
        }
        Ok(())
    }

    /// Puts a chunk in, or returns the pipe that has no room.
    fn offer(&self, session_id: &str, turn_id: &str, chunk: &Arc<Chunk>) -> Result<Option<Arc<Pipe>>, Error> {
        let mut state = self.state.lock();
        let is_latest = state.latest.get(session_id).is_some_and(|latest| &**latest == turn_id);
        let turn = match state.turns.get_mut(turn_id) {
            Some(turn) if is_latest => turn,
            _ if is_latest => return Err(Error::TurnOver),
            _ => return Err(Error::UnknownTurn),
        };
        if chunk.seq != turn.next_seq {
            return Err(Error::NotNext { next: turn.next_seq });
        }
        if chunk.done {
            let outcome = if chunk.error.is_some() { Outcome::Failed } else { Outcome::Ok };
            state.end(turn_id, outcome, Some(chunk.clone()));
            return Ok(None);
        }
        if !turn.pipe.push(chunk) {
            return Ok(Some(turn.pipe.clone()));
        }
        turn.next_seq += 1;
        let session = turn.session.clone();
        state.shelf.push(&session, chunk.clone());
        Ok(None)
    }

    /// Puts a message into a session's stream, outside of any turn; returns the session's client.
    ///
    /// Errors if the session is not open, if the text is too large or if the host stops.
    pub fn publish(&self, session_id: &str, text: String) -> Result<Arc<str>, Error> {
        let chunk = Chunk { text, is_message: true, ..Chunk::default() };
        self.check_size(&chunk)?;
        let view = self.sessions.touch(session_id, self.clock.now())?;
        {
            let mut state = self.state.lock();
            if state.is_stopping {
                return Err(Error::Stopping);
            }
            state.shelf.push(&Arc::from(session_id), Arc::new(chunk));
        }
        self.check_open(session_id)?;
        Ok(view.client_id)
    }

    /// Lets the only subscriber of a session have what is kept, and then what comes.
    ///
    /// Errors if the session is not open or has a subscriber, or if the host stops.
    pub fn subscribe(self: &Arc<Self>, session_id: &str) -> Result<Subscriber, Error> {
        let view = self.sessions.touch(session_id, self.clock.now())?;
        let session: Arc<str> = Arc::from(session_id);
        let replay = {
            let mut state = self.state.lock();
            if state.is_stopping {
                return Err(Error::Stopping);
            }
            state.shelf.of(&session).clone()
        };
        if !replay.enter() {
            return Err(Error::AlreadySubscribed { id: session_id.to_owned() });
        }
        let subscriber =
            Subscriber { turns: self.clone(), session, client: view.client_id, replay, position: 0 };
        self.check_open(session_id)?;
        Ok(subscriber)
    }

    /// Waits until there is something for an agent and takes at most `max` of it, oldest first; nothing once `until` is
    /// over or the host stops. With `is_alive` the wait is a sign of life of the agent.
    ///
    /// Errors with [`crate::Error::UnknownAgent`], also when the agent ends during the wait.
    pub async fn orders(
        &self,
        agent_id: &str,
        max: usize,
        until: Instant,
        is_alive: bool,
    ) -> Result<Vec<Order>, Error> {
        loop {
            let now = self.clock.now();
            let known = match is_alive {
                true => self.sessions.agent_heard(agent_id, now),
                false => self.sessions.check_agent(agent_id, now),
            };
            if known.is_err() {
                // Made after the agent ended, or it would be gone.
                self.state.lock().end_agent(agent_id);
            }
            known?;
            let Some(arrived) = self.arrived(agent_id) else { return Ok(Vec::new()) };
            let mut arrived = pin!(arrived.notified());
            // Registered before the look, so that an arrival in between is not missed.
            arrived.as_mut().enable();
            let orders = self.take(agent_id, max, now);
            if !orders.is_empty() || until <= Instant::now() {
                return Ok(orders);
            }
            tokio::select! {
                () = arrived => {}
                () = tokio::time::sleep_until(until) => {}
                () = tokio::time::sleep(self.settings.beat) => {}
            }
        }
    }

    /// Returns what wakes the pollers of an agent, `None` when the host stops.
    fn arrived(&self, agent_id: &str) -> Option<Arc<Notify>> {
        let mut state = self.state.lock();
        if state.is_stopping {
            return None;
        }
        if let Some(inbox) = state.inboxes.get(agent_id) {
            return Some(inbox.arrived.clone());
        }
        Some(state.inboxes.entry(Arc::from(agent_id)).or_default().arrived.clone())
    }

    fn take(&self, agent_id: &str, max: usize, now: Timestamp) -> Vec<Order> {
        let mut orders = Vec::new();
        let mut state = self.state.lock();
        let State { inboxes, turns, .. } = &mut *state;
        let Some(inbox) = inboxes.get_mut(agent_id) else { return orders };
        while orders.len() < max
            && let Some(item) = inbox.take()
        {
            orders.push(match item {
                Item::Cancelled(turn) => Order::Cancelled { turn },
                Item::Turn { turn, prompt, model } => {
                    let running = turns.get_mut(&turn).expect("a turn leaves the inbox with its end");
                    running.place = None;
                    let (session, left) = (running.session.clone(), running.deadline.since(now));
                    Order::Turn { turn, session, prompt, model, left }
                }
            });
        }
        if !inbox.is_empty() {
            // Several arrivals may have woken one poller only.
            inbox.arrived.notify_one();
        }
        orders
    }

    /// Ends every turn, every poll and every subscription, and lets none begin.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopping = true;
        let turns: Vec<_> = state.turns.keys().cloned().collect();
        turns.iter().for_each(|turn| state.end(turn, Outcome::Stopping, None));
        state.inboxes.values().for_each(|inbox| inbox.arrived.notify_waiters());
        state.shelf.close();
    }

    /// Returns the figures.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts {
            running: state.turns.len(),
            waiting: state.inboxes.values().map(Inbox::turns).sum(),
            ended: state.ended,
            replay_bytes: state.shelf.size.bytes,
        }
    }

    /// Returns the largest chunk that is taken, in bytes.
    #[must_use]
    pub fn chunk_bytes_max(&self) -> usize {
        self.settings.chunk_bytes_max
    }

    fn check_size(&self, chunk: &Chunk) -> Result<(), Error> {
        let max = self.settings.chunk_bytes_max;
        if chunk.bytes() > max { Err(Error::ChunkTooLarge { max }) } else { Ok(()) }
    }

    /// Cleans up after a session that ended before something was made for it.
    fn check_open(&self, session_id: &str) -> Result<(), Error> {
        let open = self.sessions.touch(session_id, self.clock.now());
        if open.is_err() {
            self.state.lock().end_session(session_id, Outcome::Closed);
        }
        open.map(|_| ()).map_err(Error::from)
    }
}

impl State {
    fn heard(&mut self, ended: &Ended) {
        match ended {
            Ended::Agent(id) => self.end_agent(id),
            Ended::Session { id, why: Why::AgentGone } => self.end_session(id, Outcome::AgentGone),
            Ended::Session { id, why: Why::Closed | Why::Idle } => self.end_session(id, Outcome::Closed),
        }
    }

    fn end_session(&mut self, session_id: &str, outcome: Outcome) {
        if let Some(turn) = self.latest.remove(session_id) {
            self.end(&turn, outcome, None);
        }
        self.shelf.remove(session_id);
    }

    /// Ends the turns that wait for an agent; those it took end with their sessions.
    fn end_agent(&mut self, agent_id: &str) {
        let Some(mut inbox) = self.inboxes.remove(agent_id) else { return };
        while let Some(item) = inbox.take() {
            if let Item::Turn { turn, .. } = item {
                self.end(&turn, Outcome::AgentGone, None);
            }
        }
        inbox.arrived.notify_waiters();
    }

    /// Ends a turn, unless it is over, with this chunk or else one that says why.
    fn end(&mut self, turn_id: &str, outcome: Outcome, chunk: Option<Arc<Chunk>>) {
        let Some((id, turn)) = self.turns.remove_entry(turn_id) else { return };
        self.deadlines.remove(turn.deadline, id.clone());
        let own = || Chunk {
            seq: turn.next_seq,
            done: true,
            error: Some(outcome.message().to_owned()),
            ..Chunk::default()
        };
        let chunk = chunk.unwrap_or_else(|| Arc::new(own()));
        turn.pipe.finish(chunk.clone());
        self.shelf.push(&turn.session, chunk);
        if let Some(inbox) = self.inboxes.get_mut(&turn.agent) {
            match (turn.place, outcome) {
                (Some(place), _) => drop(inbox.remove(place)),
                (None, Outcome::Ok | Outcome::Failed) => {}
                (None, _) => inbox.cancel(id, self.notices_max),
            }
        }
        self.ended[outcome as usize] += 1;
    }
}

/// The answer to a turn as its client reads it. Dropping it cancels the turn, unless it is over.
pub struct Reply {
    turns: Arc<Turns>,
    turn: Arc<str>,
    session: Arc<str>,
    client: Arc<str>,
    pipe: Arc<Pipe>,
}

impl Reply {
    /// Waits for the next chunk; `None` after the done chunk.
    pub async fn next(&mut self) -> Option<Arc<Chunk>> {
        self.pipe.next().await
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Returns the client the session belongs to.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.turns.state.lock().end(&self.turn, Outcome::Cancelled, None);
    }
}

/// The only subscriber of a session. While it waits, the session stays open.
pub struct Subscriber {
    turns: Arc<Turns>,
    session: Arc<str>,
    client: Arc<str>,
    replay: Arc<Replay>,
    position: u64,
}

impl Subscriber {
    /// Waits for the next chunk; `None` when the session has ended or the host stops, and everything kept was read.
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            match self.replay.at(self.position) {
                Next::Chunk(chunk) => {
                    let position = self.position;
                    self.position += 1;
                    return Some(Told::Chunk { position, chunk });
                }
                Next::Gap(next) => {
                    let missed = next - self.position;
                    self.position = next;
                    return Some(Told::Gap { missed, next });
                }
                Next::End => return None,
                Next::Wait => {}
            }
            tokio::select! {
                () = self.replay.changed.notified() => {}
                () = tokio::time::sleep(self.turns.settings.beat) => {
                    // If it has ended, the stream ends by itself.
                    let _ = self.turns.sessions.touch(&self.session, self.turns.clock.now());
                }
            }
        }
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Returns the client the session belongs to.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.replay.leave();
    }
}

#[cfg(test)]
mod tests;
