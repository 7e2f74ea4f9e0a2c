//! One member: a task that keeps it in the group and a reader for each partition it owns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::host::{Error, Host};
use crate::puller::{Batch, End, Puller};
use crate::watch::follow;
use crate::wire::{Heartbeat, Held, Join, Joined, Orders, Place};

/// Pause before a host that could not be reached is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause before a heartbeat that something made necessary, so that a host that keeps refusing is not hammered.
const SOON: Duration = Duration::from_millis(20);
/// How long leaving waits for batches in hand.
const FINISH: Duration = Duration::from_secs(5);

/// Who joins what.
#[derive(Clone, Debug)]
pub struct Options {
    /// URLs of hosts; the first one that takes the member in is used, the others when it is lost.
    pub hosts: Vec<String>,
    /// Group.
    pub group: String,
    /// Name of the member.
    pub member: String,
    /// Topics to read.
    pub topics: Vec<String>,
    /// Failure domain or place.
    pub zone: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Relative capacity.
    pub capacity: f64,
    /// How long it may be silent; `None` is the group's setting.
    pub ttl: Option<Duration>,
    /// Whether to fence a live member of the same name.
    pub takeover: bool,
    /// Most events of one batch.
    pub batch_max: u32,
    /// How long one pull waits for an event.
    pub wait: Duration,
}

impl Options {
    /// Returns options with everything else as usual, and a name drawn at random.
    #[must_use]
    pub fn new(host: &str, group: &str, topics: &[&str]) -> Self {
        let mut bytes = [0; 6];
        getrandom::fill(&mut bytes).expect("the operating system has randomness to give");
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            hosts: vec![host.to_owned()],
            group: group.to_owned(),
            member: format!("member-{name}"),
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            zone: String::new(),
            labels: BTreeMap::new(),
            capacity: 1.0,
            ttl: None,
            takeover: false,
            batch_max: 100,
            wait: Duration::from_secs(5),
        }
    }
}

/// A member of a group. Dropping it without [`leave`](Self::leave) is a crash: the host notices by itself.
#[derive(Debug)]
pub struct Member {
    batches: mpsc::Receiver<Batch>,
    leave: Option<oneshot::Sender<()>>,
    held: watch::Receiver<Vec<Held>>,
    task: JoinHandle<Result<(), Error>>,
}

impl Member {
    /// Joins; returns once a host took it in.
    ///
    /// # Errors
    /// Whatever the last host tried says.
    pub async fn join(options: Options) -> Result<Self, Error> {
        let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build();
        let http = http.expect("a client without certificates needs nothing");
        let mut joined = None;
        for url in &options.hosts {
            let host = Host::new(url, http.clone());
            match host.join(&options.group, &options.body(None)).await {
                Ok(answer) => {
                    joined = Some(Ok((host, answer)));
                    break;
                }
                Err(error) => joined = Some(Err(error)),
            }
        }
        let (host, joined) = joined.expect("there is at least one host")?;
        let (sender, batches) = mpsc::channel(1);
        let (shown, held) = watch::channel(Vec::new());
        let (leave, leaving) = oneshot::channel();
        let mut control = Control {
            host,
            session: String::new(),
            ttl: Duration::ZERO,
            interval: Duration::ZERO,
            seq: 0,
            revision: 0,
            assigned: BTreeSet::new(),
            readers: BTreeMap::new(),
            tasks: JoinSet::new(),
            released: Vec::new(),
            batches: sender,
            shown,
            told: mpsc::channel(1).1,
            watching: None,
            reached_at: Instant::now(),
            beat_at: Instant::now(),
            options,
        };
        control.joined(joined);
        let task = tokio::spawn(control.run(leaving));
        Ok(Self { batches, leave: Some(leave), held, task })
    }

    /// Waits for the next batch.
    ///
    /// # Errors
    /// What put the member out of the group for good, for example `duplicate_member` after another process took over.
    pub async fn next(&mut self) -> Result<Batch, Error> {
        match self.batches.recv().await {
            Some(batch) => Ok(batch),
            None => match (&mut self.task).await {
                Ok(Err(error)) => Err(error),
                // It only ends well when it left, and that consumes the member.
                Ok(Ok(())) | Err(_) => std::future::pending().await,
            },
        }
    }

    /// Returns what it reads now, ascending.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        self.held.borrow().clone()
    }

    /// Returns a receiver of what it reads, as that changes.
    #[must_use]
    pub fn held_changes(&self) -> watch::Receiver<Vec<Held>> {
        self.held.clone()
    }

    /// Finishes what is in hand, up to 5 s, and leaves: others get its partitions at once.
    ///
    /// # Errors
    /// What the host says; it may have lost the member already.
    pub async fn leave(mut self) -> Result<(), Error> {
        self.batches.close();
        // Batches nobody took go back.
        while self.batches.try_recv().is_ok() {}
        drop(self.leave.take());
        (&mut self.task).await.unwrap_or(Ok(()))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Options {
    fn body(&self, session: Option<&str>) -> Join {
        Join {
            member_id: self.member.clone(),
            topics: self.topics.clone(),
            zone: self.zone.clone(),
            labels: self.labels.clone(),
            capacity: self.capacity,
            ttl_ms: self.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            session: session.map(str::to_owned),
            // Only the first join may fence somebody: later it would be a fight.
            takeover: self.takeover && session.is_none(),
        }
    }
}

/// The task behind a member.
struct Control {
    options: Options,
    host: Host,
    session: String,
    ttl: Duration,
    interval: Duration,
    seq: u64,
    /// Of the orders that were followed last.
    revision: u64,
    assigned: BTreeSet<Held>,
    readers: BTreeMap<Place, Reader>,
    tasks: JoinSet<(Held, End)>,
    /// Given up, and the host does not know it yet.
    released: Vec<Held>,
    batches: mpsc::Sender<Batch>,
    shown: watch::Sender<Vec<Held>>,
    told: mpsc::Receiver<Orders>,
    watching: Option<Watching>,
    /// When the host answered last.
    reached_at: Instant,
    beat_at: Instant,
}

struct Reader {
    held: Held,
    revoke: watch::Sender<bool>,
    task: AbortHandle,
}

/// The task that follows the watch stream; ends with its owner.
struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum Happened {
    Leave,
    Told(Orders),
    WatchEnded,
    ReaderEnded(Held, End),
    Nothing,
    BeatDue,
}

impl Control {
    async fn run(mut self, mut leaving: oneshot::Receiver<()>) -> Result<(), Error> {
        loop {
            match self.happened(&mut leaving).await {
                Happened::Leave => return self.leave().await,
                Happened::Told(orders) => self.follow(orders),
                Happened::WatchEnded => {
                    self.watching = None;
                    self.hurry();
                }
                Happened::ReaderEnded(held, end) => self.reader_ended(held, end).await?,
                Happened::Nothing => {}
                Happened::BeatDue => self.beat().await?,
            }
        }
    }

    async fn happened(&mut self, leaving: &mut oneshot::Receiver<()>) -> Happened {
        let watch_ended = async {
            match &mut self.watching {
                Some(watching) => drop((&mut watching.0).await),
                None => std::future::pending().await,
            }
        };
        let has_readers = !self.tasks.is_empty();
        tokio::select! {
            biased;
            _ = leaving => Happened::Leave,
            Some(orders) = self.told.recv() => Happened::Told(orders),
            ended = self.tasks.join_next(), if has_readers => match ended {
                Some(Ok((held, end))) => Happened::ReaderEnded(held, end),
                _ => Happened::Nothing,
            },
            () = watch_ended => Happened::WatchEnded,
            () = tokio::time::sleep_until(self.beat_at) => Happened::BeatDue,
        }
    }

    /// Takes over a new life.
    fn joined(&mut self, joined: Joined) {
        self.stop_reading();
        self.session = joined.session;
        self.ttl = Duration::from_millis(joined.ttl_ms);
        self.reached_at = Instant::now();
        self.released.clear();
        self.revision = 0;
        self.follow(joined.orders);
        self.beat_at = Instant::now() + self.interval;
        self.watch();
        tracing::debug!(member = self.options.member, host = self.host.url(), "joined");
    }

    fn watch(&mut self) {
        let (orders, told) = mpsc::channel(16);
        let (host, group) = (self.host.clone(), self.options.group.clone());
        let (member, session) = (self.options.member.clone(), self.session.clone());
        self.told = told;
        self.watching = Some(Watching(tokio::spawn(async move {
            match host.watch(&group, &member, &session).await {
                Ok(response) => follow(response, orders).await,
                Err(error) => tracing::debug!(%error, "cannot watch"),
            }
        })));
    }

    /// Does what the host says; orders older than the last ones are ignored.
    fn follow(&mut self, orders: Orders) {
        if orders.revision < self.revision {
            return;
        }
        self.revision = orders.revision;
        self.interval = Duration::from_millis(orders.heartbeat_interval_ms.max(1));
        self.assigned = orders.assignments.into_iter().map(|assignment| assignment.held).collect();
        let revoked: BTreeSet<_> = orders.revocations.into_iter().map(|revocation| revocation.held).collect();
        self.readers.retain(|_, reader| {
            let is_known = self.assigned.contains(&reader.held) || revoked.contains(&reader.held);
            if !is_known {
                // Taken away: what is in hand is not ours to finish any more.
                reader.task.abort();
            }
            is_known
        });
        for held in revoked {
            match self.readers.get(&held.place) {
                Some(reader) => drop(reader.revoke.send_replace(true)),
                None => self.give_up(held),
            }
        }
        for held in self.assigned.clone() {
            // The host changed its mind before it heard of it.
            self.released.retain(|released| *released != held);
            if !self.readers.contains_key(&held.place) {
                self.read(held);
            }
        }
        self.show();
    }

    fn read(&mut self, held: Held) {
        let (revoke, revoked) = watch::channel(false);
        let puller = Puller {
            host: self.host.clone(),
            group: self.options.group.clone(),
            member: self.options.member.clone(),
            session: self.session.clone(),
            held: held.clone(),
            offset: None,
            max: self.options.batch_max,
            wait: self.options.wait,
            batches: self.batches.clone(),
            revoked,
        };
        let of = held.clone();
        let task = self.tasks.spawn(async move { (of, puller.run().await) });
        self.readers.insert(held.place.clone(), Reader { held, revoke, task });
    }

    fn give_up(&mut self, held: Held) {
        if !self.released.contains(&held) {
            self.released.push(held);
        }
        self.hurry();
    }

    /// Sends a heartbeat soon.
    fn hurry(&mut self) {
        self.beat_at = self.beat_at.min(Instant::now() + SOON);
    }

    fn show(&self) {
        let held: Vec<_> = self.readers.values().map(|reader| reader.held.clone()).collect();
        self.shown.send_if_modified(|shown| {
            let is_new = *shown != held;
            *shown = held;
            is_new
        });
    }

    async fn reader_ended(&mut self, held: Held, end: End) -> Result<(), Error> {
        if self.readers.get(&held.place).is_none_or(|reader| reader.held != held) {
            return Ok(());
        }
        self.readers.remove(&held.place);
        match end {
            // Revoked, and then assigned again before it was given up.
            End::Released if self.assigned.contains(&held) => self.read(held),
            End::Released => self.give_up(held),
            End::Refused(error) if error.is_gone() => self.rejoin().await?,
            End::Refused(error) => {
                tracing::debug!(%error, topic = held.place.topic, partition = held.place.partition, "not ours");
                self.hurry();
            }
        }
        self.show();
        Ok(())
    }

    async fn beat(&mut self) -> Result<(), Error> {
        self.seq += 1;
        let body = Heartbeat {
            session: &self.session,
            seq: self.seq,
            acked_revision: self.revision,
            owned: self.readers.values().map(|reader| reader.held.clone()).collect(),
            released: self.released.clone(),
        };
        let call = self.host.heartbeat(&self.options.group, &self.options.member, &body);
        // Not longer than the host still takes us for alive.
        let left = self.ttl.saturating_sub(self.reached_at.elapsed()).max(PAUSE);
        match tokio::time::timeout(left.min(self.ttl / 2), call).await {
            Ok(Ok(orders)) => {
                self.reached_at = Instant::now();
                self.released.clear();
                self.follow(orders);
                if self.watching.is_none() {
                    self.watch();
                }
                // What was given up meanwhile goes out at once.
                let pause = if self.released.is_empty() { self.interval } else { SOON };
                self.beat_at = Instant::now() + pause;
                Ok(())
            }
            Ok(Err(error)) if error.is_gone() => self.rejoin().await,
            Ok(Err(error)) if !error.is_passing() => Err(error),
            Ok(Err(_)) | Err(_) => {
                self.lost().await;
                Ok(())
            }
        }
    }

    /// The host does not answer: asks the others where to go, and else tries again later. Says whether another host
    /// took this member in.
    async fn lost(&mut self) -> bool {
        self.fence_itself();
        self.beat_at = Instant::now() + PAUSE.min(self.interval);
        for url in self.options.hosts.clone() {
            if url.trim_end_matches('/') == self.host.url() {
                continue;
            }
            let asked = self.host.at(&url);
            let Ok(recommended) = asked.recommend(&self.options.member).await else { continue };
            // A recommended instance need not be a host with groups: then the one that was asked takes us in.
            let candidates = [recommended, url].into_iter().filter(|url| !url.is_empty());
            for candidate in candidates {
                let host = self.host.at(&candidate);
                let join = self.options.body(Some(&self.session));
                if let Ok(joined) = host.join(&self.options.group, &join).await {
                    self.host = host;
                    self.joined(joined);
                    return true;
                }
            }
        }
        false
    }

    /// The host lost us: joins again, with the session if that is still known.
    async fn rejoin(&mut self) -> Result<(), Error> {
        self.stop_reading();
        loop {
            let join = self.options.body(Some(&self.session));
            match self.host.join(&self.options.group, &join).await {
                Ok(joined) => {
                    self.joined(joined);
                    return Ok(());
                }
                Err(error) if error.is_passing() => {
                    if self.lost().await {
                        return Ok(());
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops reading once the host must think that this member is dead.
    fn fence_itself(&mut self) {
        if self.reached_at.elapsed() >= self.ttl {
            self.stop_reading();
        }
    }

    fn stop_reading(&mut self) {
        self.watching = None;
        for (_, reader) in std::mem::take(&mut self.readers) {
            reader.task.abort();
        }
        self.show();
    }

    async fn leave(mut self) -> Result<(), Error> {
        for reader in self.readers.values() {
            reader.revoke.send_replace(true);
        }
        let finished = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(FINISH, finished).await.is_err() {
            tracing::warn!("leaving with batches in hand; their events come again");
        }
        let Self { host, options, session, watching, .. } = self;
        let left = host.leave(&options.group, &options.member, &session, false).await;
        // Only now: a watch that ends earlier would count as a crash.
        drop(watching);
        left
    }
}
