//! One running host: builds the parts from a [`Config`], starts them in order and stops them in order.
//!
//! Start: folders, socket, store, policies (the boot reconcile), groups of both kinds, background tasks, then requests.
//! A host that listens is ready. Stop: readiness off and the own row out of the roster, then the groups, so that nobody
//! counts as lost because a connection is cut; polls and streams end, no new connections, running requests finish
//! within a bound, then the message groups, the policy manager, and the store last.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use cpu_time::ProcessTime;
use fulcrum_coordinator::{
    Balancer, Events, Groups, Kinds, Meter, Pulls, Rates, Requests, Retention, Sessions, Turns, groups,
    pulls, sessions,
};
use fulcrum_core::scoring::Load;
use fulcrum_core::time::Clock;
use fulcrum_policy::seat::ScoringSeat;
use fulcrum_policy::{Cache, Manager, Planner, Runtime, Shadows, cache, manager};
use fulcrum_store::{EventLog, SqliteStore};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::clock::RealClock;
use crate::config::{Authority, Config, Wasi};
use crate::connections;
use crate::embedded;
use crate::http::{self, Edge};
use crate::journal::Journal;

/// Time between two looks for rates that can be forgotten.
const RATES_TIDY: Duration = Duration::from_secs(10);

/// Policies that may be uploaded at a time: as many components are in memory.
const UPLOADS_MAX: usize = 2;
/// Orders about policies that are carried out at a time.
const ORDERS_MAX: usize = 4;
/// Pushed policies that are proven at a time.
const PUSHES_MAX: usize = 4;

/// What the handlers of one host share. A clone is one more owner, however many parts there are: each request makes
/// some.
#[derive(Clone)]
pub struct Services(Arc<Parts>);

impl Deref for Services {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The parts that [`Services`] share.
pub struct Parts {
    /// Membership and recommendations.
    pub balancer: Arc<Balancer>,
    /// Sessions and agents.
    pub sessions: Arc<Sessions>,
    /// Turns of sessions, and what waits for agents.
    pub turns: Arc<Turns>,
    /// Measured traffic.
    pub meter: Arc<Meter>,
    /// The host's clock.
    pub clock: Arc<dyn Clock>,
    /// Policies: their state, reload, bindings.
    pub policies: Arc<Manager>,
    /// Plans of claim policies.
    pub planner: Arc<Planner>,
    /// Lets few policies be uploaded at a time.
    pub uploads: Arc<Semaphore>,
    /// Lets few orders about policies wait for the reload task at a time: each holds a thread, which plans and the
    /// store need, too.
    pub orders: Arc<Semaphore>,
    /// The same for pushes, which compile and prove: a rollback does not wait for one.
    pub pushes: Arc<Semaphore>,
    /// Policies that answer along, to be compared.
    pub shadows: Arc<Shadows>,
    /// Records decisions, if they are to be recorded.
    pub journal: Option<Arc<Journal>>,
    /// Consumer groups.
    pub groups: Arc<Groups>,
    /// Topics and publishing.
    pub events: Arc<Events>,
    /// Message groups.
    pub pulls: Arc<Pulls>,
    /// How long events stay.
    pub retention: Arc<Retention>,
    /// How fast events and turns may come.
    pub rates: Arc<Rates>,
    /// Which kind a group is of.
    pub kinds: Arc<Kinds>,
    /// Requests that wait for a reply.
    pub requests: Arc<Requests>,
    /// Where replies are to be sent.
    pub reply_url: Arc<str>,
    /// The events themselves.
    pub log: Arc<dyn EventLog>,
    /// Whether the host is on its way out.
    pub lifecycle: Arc<Lifecycle>,
}

/// Whether a host is on its way out.
#[derive(Debug, Default)]
pub struct Lifecycle {
    is_leaving: AtomicBool,
    is_draining: AtomicBool,
    stop: Notify,
    /// Connections that live on after their request, which the server does not wait for.
    outliving: watch::Sender<usize>,
}

/// A connection that lives on after its request; see [`Lifecycle::outlive`].
#[derive(Debug)]
pub struct Outliving(Arc<Lifecycle>);

impl Drop for Outliving {
    fn drop(&mut self) {
        self.0.outliving.send_modify(|count| *count -= 1);
    }
}

impl Lifecycle {
    /// Says whether the host wants no new traffic; it takes what comes until it drains.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// Says whether the host takes no new work any more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.stop.notify_waiters();
    }

    /// Makes the end of the host wait, within its bound, until the guard is dropped.
    #[must_use]
    pub fn outlive(self: &Arc<Self>) -> Outliving {
        self.outliving.send_modify(|count| *count += 1);
        Outliving(self.clone())
    }

    async fn nobody_outlives(&self) {
        // The sender lives as long as this, so there is no other end.
        drop(self.outliving.subscribe().wait_for(|count| *count == 0).await);
    }

    /// Waits until the host is on its way out.
    pub async fn drained(&self) {
        let mut stop = std::pin::pin!(self.stop.notified());
        // Registered before the flag is read, so that a drain in between is not missed.
        stop.as_mut().enable();
        if !self.is_draining() {
            stop.await;
        }
    }
}

/// The parts of a host before it runs.
#[derive(Debug)]
pub struct App;

/// A running host. Dropping it ends its tasks without a drain.
pub struct Running {
    addr: SocketAddr,
    services: Services,
    store: Arc<SqliteStore>,
    drain_notice: Duration,
    drain: Duration,
    server: JoinHandle<()>,
    tasks: Tasks,
}

impl App {
    /// Starts a host; returns when it answers requests.
    ///
    /// Policies run on the caller's runtime: its worker threads need at least 4 MiB of stack.
    pub async fn start(config: &Config) -> anyhow::Result<Running> {
        for folder in [config.host.data_dir.clone(), config.policies_dir(), config.keep_dir()] {
            make_folder(&folder)?;
        }
        let listen = config.host.listen;
        let listener = TcpListener::bind(listen).await.with_context(|| {
            format!("cannot listen on {listen} (--listen or host.listen chooses another address)")
        })?;
        let addr = listener.local_addr().context("cannot read the address listened on")?;
        let advertise = config.host.advertise.clone().map(|authority| match authority.port {
            0 => Authority { port: addr.port(), ..authority },
            _ => authority,
        });
        let (services, store) = services(config, addr, advertise.as_ref()).await?;

        let beat = Beat::new(&services);
        beat.send(&services);
        let interval = Duration::from_millis(config.heartbeat.interval_ms);
        let retention = services.retention.clone();
        let retention_interval = Duration::from_millis(config.events.retention_interval_ms);
        let tasks = Tasks(vec![
            tokio::spawn(beat.run(services.clone(), interval)),
            tokio::spawn(tell_groups(&services)),
            tokio::spawn(run_turns(services.turns.clone())),
            tokio::spawn(async move { retention.run(retention_interval).await }),
            tokio::spawn(tidy_rates(services.rates.clone())),
        ]);
        let edge = Edge {
            request_ids: http::error::RequestIds::new(u32::from_ne_bytes(entropy())),
            body_bytes_max: usize::try_from(config.host.body_bytes_max).unwrap_or(usize::MAX),
            is_loopback: addr.ip().is_loopback(),
            advertised_host: advertise.map(|authority| authority.host),
        };
        let front = http::Front::new(services.clone(), edge);
        let lifecycle = services.lifecycle.clone();
        let limits = connections::Limits {
            connections_max: usize::try_from(config.host.connections_max).unwrap_or(usize::MAX),
            header_timeout: Duration::from_millis(config.host.header_timeout_ms),
        };
        let server = tokio::spawn(connections::serve(listener, front.into_service(), limits, lifecycle));
        tracing::info!(%addr, policies_dir = %config.policies_dir().display(), "host is ready");
        let drain_notice = Duration::from_millis(config.host.drain_notice_ms);
        let drain = Duration::from_millis(config.host.drain_ms);
        Ok(Running { addr, services, store, drain_notice, drain, server, tasks })
    }
}

impl Running {
    /// Returns the address it listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns `http://` and the address it listens on.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the parts, for tests and benches.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Waits until the server ended by itself, which it only does on an error.
    pub async fn failed(&mut self) -> anyhow::Error {
        match (&mut self.server).await {
            Ok(()) => anyhow::anyhow!("the server stopped"),
            Err(error) => anyhow::Error::new(error).context("the server crashed"),
        }
    }

    /// Gives notice, drains and stops: whoever sends traffic gets the configured time to see that it should not, and
    /// running requests the configured time to finish.
    pub async fn stop(mut self) {
        self.services.lifecycle.leave();
        self.services.balancer.retire();
        if !self.drain_notice.is_zero() {
            tracing::info!(drain_notice_ms = self.drain_notice.as_millis(), "host is about to drain");
            tokio::time::sleep(self.drain_notice).await;
        }
        tracing::info!(drain_ms = self.drain.as_millis(), "host is draining");
        self.services.lifecycle.drain();
        // No chunk can come in any more: agents find the door closed.
        self.services.turns.stop();
        // The heartbeat ends first, or it could put the own row back.
        self.tasks.stop().await;
        self.services.balancer.retire();
        // Before connections are cut: a watch that the host ends is no lost member.
        self.services.groups.stop().await;
        self.services.requests.stop();
        let ended = async {
            if !self.server.is_finished() {
                // How it ended makes no difference any more.
                drop((&mut self.server).await);
            }
            self.services.lifecycle.nobody_outlives().await;
        };
        if tokio::time::timeout(self.drain, ended).await.is_err() {
            tracing::warn!("some requests did not finish in time and are cut off");
            self.server.abort();
        }
        // Only now: until here an acknowledgement that came in time was taken in.
        self.services.pulls.stop().await;
        self.services.policies.stop();
        // After everything that decides.
        if let Some(journal) = self.services.journal.clone()
            && let Err(error) = tokio::task::spawn_blocking(move || journal.stop()).await
        {
            tracing::error!(%error, "the journal crashed while it stopped");
        }
        self.store.close().await;
        tracing::info!("host has stopped");
    }
}

/// Background tasks that end with their owner.
struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    async fn stop(&mut self) {
        for task in self.0.drain(..) {
            task.abort();
            // An error here says that it was aborted, which is what we want.
            let _ = task.await;
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Builds the parts; returns when the boot reconcile is done.
async fn services(
    config: &Config,
    addr: SocketAddr,
    advertise: Option<&Authority>,
) -> anyhow::Result<(Services, Arc<SqliteStore>)> {
    // First of all: a key that cannot be read is a mistake in the settings.
    let trusted = config.trusted_keys()?;
    let keys = trusted.as_ref().map_or(0, fulcrum_policy::TrustedKeys::count);
    tracing::info!(keys, "keys trusted to sign policy files; without any, files need no signature");
    let clock: Arc<dyn Clock> = Arc::new(RealClock::start());
    let file = config.store_file();
    // Reads and syncs the disk: not for a worker thread.
    let options = config.store_options();
    let store = tokio::task::spawn_blocking(move || SqliteStore::open(file, options))
        .await
        .context("opening the store crashed")?
        .context("cannot open the store")?;
    let store = Arc::new(store);
    let settings = config.policy.cache.then(|| cache_settings(config));
    // Reads and writes the disk, too.
    let cache = tokio::task::spawn_blocking(move || settings.and_then(open_cache))
        .await
        .context("opening the folder of compiled policies crashed")?;
    let options = fulcrum_policy::runtime::Options {
        wasi: config.policy.wasi == Wasi::Compat,
        cache,
        ..fulcrum_policy::runtime::Options::default()
    };
    let runtime =
        Runtime::with(config.policy_limits(), options).context("cannot start the policy runtime")?;
    let (alarm, inbox) = manager::inbox();
    let boot_seed = u64::from_ne_bytes(entropy());
    let defaults = fulcrum_coordinator::Settings::default();
    let advertised = advertise.map(ToString::to_string);
    let settings = fulcrum_coordinator::Settings {
        instance_id: config
            .host
            .instance_id
            .clone()
            .or_else(|| advertised.clone())
            .unwrap_or_else(|| defaults.instance_id.clone()),
        advertise: advertised,
        zone: config.host.zone.clone(),
        capacity: config.host.capacity,
        ttl: Duration::from_millis(config.heartbeat.ttl_ms),
        heartbeat_interval: Duration::from_millis(config.heartbeat.interval_ms),
        ..defaults
    };
    settings
        .check()
        .context("the host's own row would be refused (instance_id, advertise, zone, capacity)")?;
    let meter = Arc::new(Meter::new(settings.clients_max));
    let balancer = Arc::new(Balancer::new(settings, ScoringSeat::new(alarm), clock.clone(), boot_seed));
    let sessions = Arc::new(Sessions::new(
        sessions::Settings {
            require_agent: config.session.require_agent,
            agent_ttl: Duration::from_millis(config.heartbeat.ttl_ms),
            binding_ttl: Duration::from_millis(config.session.binding_ttl_ms),
            session_ttl: Duration::from_millis(config.session.ttl_ms),
            ..sessions::Settings::default()
        },
        Box::new(|| u128::from_ne_bytes(entropy())),
    ));
    let turns = Turns::new(
        config.turns(),
        sessions.clone(),
        clock.clone(),
        Box::new(|| u128::from_ne_bytes(entropy())),
    );
    let settings = manager::Settings {
        folder: config.policies_dir(),
        keep_dir: config.keep_dir(),
        scoring: config.policy.scoring.clone(),
        claiming: config.policy.claiming.clone(),
        default_scoring: embedded::DEFAULT_SCORING.to_owned(),
        poll: Duration::from_millis(config.policy.poll_ms),
        settle: Duration::from_millis(config.policy.settle_ms),
        keep_versions: usize::try_from(config.policy.keep_versions).unwrap_or(usize::MAX),
        promote: config.promote_budget(),
        trusted,
    };
    let (host, manager_clock) = (balancer.clone(), clock.clone());
    // Compiles policies: not for a worker thread.
    let policies = tokio::task::spawn_blocking(move || {
        Manager::start(settings, runtime, embedded::policies(), host, manager_clock, inbox)
    })
    .await
    .context("starting the policies crashed")?
    .context("cannot start the policies")?;
    let journal = config.journal_settings().map(|settings| Journal::start(settings, clock.clone()));
    let journal = journal.transpose().context("cannot start the journal's thread")?.map(Arc::new);
    if let Some(journal) = &journal {
        policies.observe(journal.observer());
    }
    let planner = Arc::new(Planner::new(policies.clone(), clock.clone()));
    let shadows = Arc::new(Shadows::new(policies.clone(), clock.clone()));
    let parts = groups::Parts {
        store: store.clone(),
        log: store.clone(),
        plans: planner.clone(),
        clock: clock.clone(),
        defaults: config.group_defaults(),
        boot_seed,
        entropy: Box::new(|| u128::from_ne_bytes(entropy())),
    };
    let groups = Groups::open(parts).await.context("cannot bring the groups back")?;
    let default_partitions =
        u32::try_from(config.events.default_partitions).expect("checked with the configuration");
    let parts = pulls::Parts {
        store: store.clone(),
        log: store.clone(),
        clock: clock.clone(),
        entropy: Box::new(|| u128::from_ne_bytes(entropy())),
        settings: config.pulls(),
    };
    let pulls = Pulls::open(parts).await.context("cannot bring the message groups back")?;
    let kinds = Kinds::new(groups.clone(), pulls.clone());
    let requests_max = usize::try_from(config.events.requests_max).unwrap_or(usize::MAX);
    let requests = Requests::new(requests_max, Box::new(|| u128::from_ne_bytes(entropy())));
    let own_url = balancer.own_url().map_or_else(|| format!("http://{addr}"), str::to_owned);
    let events = Events::new(
        store.clone(),
        store.clone(),
        groups.clone(),
        pulls.clone(),
        clock.clone(),
        default_partitions,
    );
    let retention = Retention::new(
        store.clone(),
        store.clone(),
        groups.clone(),
        pulls.clone(),
        clock.clone(),
        config.retention(),
    );
    let rates = Arc::new(Rates::new(config.rates(), &clock));
    let services = Services(Arc::new(Parts {
        balancer,
        sessions,
        turns,
        meter,
        clock,
        policies,
        planner,
        uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
        orders: Arc::new(Semaphore::new(ORDERS_MAX)),
        pushes: Arc::new(Semaphore::new(PUSHES_MAX)),
        shadows,
        journal,
        groups,
        events: Arc::new(events),
        pulls,
        retention: Arc::new(retention),
        rates,
        kinds: Arc::new(kinds),
        requests: Arc::new(requests),
        reply_url: format!("{own_url}/events/reply").into(),
        log: store.clone(),
        lifecycle: Arc::default(),
    }));
    Ok((services, store))
}

/// Returns a task that tells the groups when a policy or a binding changed.
///
/// The manager calls its listeners from its own task and must not wait for one; several changes in a row are told
/// once.
fn tell_groups(services: &Services) -> impl Future<Output = ()> + use<> {
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    services.policies.on_change(Arc::new(move || notify.notify_one()));
    let groups = services.groups.clone();
    async move {
        loop {
            changed.notified().await;
            groups.policies_changed().await;
        }
    }
}

async fn run_turns(turns: Arc<Turns>) {
    turns.run().await;
}

/// Forgets now and then what no rate depends on any more.
async fn tidy_rates(rates: Arc<Rates>) {
    let mut ticks = tokio::time::interval(RATES_TIDY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        rates.tidy();
    }
}

/// Measures the host itself, for the heartbeat of its own row.
struct Beat {
    at_nanos: u64,
    used: Option<ProcessTime>,
    cpu: f64,
}

impl Beat {
    fn new(services: &Services) -> Self {
        Self { at_nanos: services.clock.nanos(), used: ProcessTime::try_now().ok(), cpu: 0.0 }
    }

    async fn run(mut self, services: Services, interval: Duration) {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if services.lifecycle.is_leaving() {
                return;
            }
            self.measure(services.clock.nanos());
            self.send(&services);
        }
    }

    /// Takes the share of all cores the process used since the last measurement.
    fn measure(&mut self, now_nanos: u64) {
        let spent = Duration::from_nanos(now_nanos.saturating_sub(self.at_nanos)).as_secs_f64();
        let now = ProcessTime::try_now().ok();
        if let (Some(now), Some(before)) = (now, self.used)
            && spent > 0.0
        {
            let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
            let used = now.as_duration().saturating_sub(before.as_duration()).as_secs_f64();
            self.cpu = (used / spent / cores).clamp(0.0, 1.0);
        }
        self.at_nanos = now_nanos;
        self.used = now;
    }

    fn send(&self, services: &Services) {
        let traffic = services.meter.host(self.at_nanos);
        let load = Load {
            sessions: services.sessions.count(services.clock.now()),
            inflow: traffic.inflow,
            outflow: traffic.outflow,
            cpu: self.cpu,
        };
        if let Err(error) = services.balancer.self_heartbeat(Some(load)) {
            tracing::warn!(%error, "the host's own heartbeat was refused");
        }
    }
}

fn cache_settings(config: &Config) -> cache::Settings {
    cache::Settings {
        folder: config.cache_dir(),
        bytes_max: config.policy.cache_bytes_max,
        fresh_key: entropy(),
    }
}

/// Opens the folder of compiled policies; without it the host runs as well, it only starts more slowly.
fn open_cache(settings: cache::Settings) -> Option<Arc<Cache>> {
    Cache::open(settings)
        .map_err(|error| {
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::warn!(error, "compiled policies are not kept: every start compiles them anew");
        })
        .ok()
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))
}

/// Returns unguessable bytes.
fn entropy<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has randomness to give");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(client: &reqwest::Client, url: &str) -> Option<u16> {
        Some(client.get(url).send().await.ok()?.status().as_u16())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_host_is_ready_once_it_listens_and_gone_once_it_stopped() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = Config::default();
        config.host.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.host.advertise = Some("127.0.0.1:0".parse().expect("valid"));
        config.host.data_dir = folder.path().join("data");
        let running = App::start(&config).await.expect("it starts");
        let (url, services) = (running.url(), running.services().clone());
        let client = reqwest::Client::new();
        for path in ["/healthz", "/readyz", "/metrics", "/admin/policies"] {
            assert_eq!(status(&client, &format!("{url}{path}")).await, Some(200), "{path}");
        }
        assert_eq!(services.balancer.own_url(), Some(url.as_str()));
        assert_eq!(services.balancer.counts().live, 1);
        assert!(folder.path().join("data/policies").is_dir());

        running.stop().await;
        assert!(services.lifecycle.is_draining());
        assert_eq!(services.balancer.counts().live, 0);
        assert_eq!(status(&client, &format!("{url}/healthz")).await, None);
    }

    #[tokio::test]
    async fn a_taken_address_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = Config::default();
        config.host.listen = taken.local_addr().expect("it is bound");
        config.host.data_dir = folder.path().to_owned();
        let error = App::start(&config).await.err().expect("the address is taken");
        let error = error.to_string();
        assert!(error.starts_with(&format!("cannot listen on {} ", config.host.listen)), "{error}");
        assert!(error.contains("--listen"), "{error}");
    }
}
