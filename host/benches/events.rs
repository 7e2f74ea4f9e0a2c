//! Publish, poll and acknowledge, against what the store itself needs to append, fetch and swap one record; and the
//! memory of events that nobody reads and of polls that nothing comes for.
//!
//! Three ways take turns on one disk: the store alone; the host's services called in this process; the real binary over
//! HTTP. So the first step is what message groups cost, the second what HTTP costs. Every way waits for the disk at a
//! publish and at an acknowledgement, and every client has its own calls one after the other. Without
//! `--bench` everything runs once and small, only to see that it works.

mod support;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use fulcrum::app::{App, Running, Services};
use fulcrum::clock::RealClock;
use fulcrum::config::Config;
use fulcrum_coordinator::pulls::{Mode, Subscription};
use fulcrum_core::time::Clock;
use fulcrum_store::{
    ClusterStore, EventLog, Expected, FetchLimit, Options, Position, Revision, SqliteStore, Update,
};
use futures_util::future::join_all;
use support::http::once;
use support::server::{Server, fulcrum, prefixed};
use support::{Spread, machine, time, verdict};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const TOPIC: &str = "t";
const EVENT_BYTES: usize = 1024;
const PARTITIONS: u32 = 4;
/// How often publish + poll + ack may take longer than append + fetch + swap.
const BAR: f64 = 2.0;
/// What the host may grow by, in MiB; its windows hold positions, and payloads only up to a bound.
const UNREAD_MIB_MAX: f64 = 64.0;
/// What an idle poll may cost with its connection, in KiB.
const POLL_KIB_MAX: f64 = 32.0;
/// As this argument's value the bench is a process that holds idle polls.
const HOLD: &str = "--hold-polls";
/// Clients whose polls idle.
const IDLERS: usize = 100;

/// How much is measured.
struct Scale {
    rounds: usize,
    /// Events, or batches, of each client and round, by how many clients there are.
    turns: fn(clients: usize) -> usize,
    clients: &'static [usize],
    batch: usize,
    unread: usize,
    polls: usize,
}

const FULL: Scale = Scale {
    rounds: 9,
    turns: |clients| if clients == 1 { 100 } else { 16 },
    clients: &[1, 64],
    batch: 100,
    unread: 1_000_000,
    polls: 10_000,
};
const QUICK: Scale = Scale { rounds: 1, turns: |_| 2, clients: &[1, 4], batch: 10, unread: 2000, polls: 40 };

#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    // The host in this process runs its policies here.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(4 << 20)
        .enable_all()
        .build()
        .expect("a runtime");
    if let Some(at) = arguments.iter().position(|argument| argument == HOLD) {
        let addr = arguments[at + 1].parse().expect("an address");
        let count = arguments[at + 2].parse().expect("a number");
        return runtime.block_on(hold(addr, count));
    }
    let scale = if support::is_bench() { FULL } else { QUICK };
    machine();
    if scale.rounds == QUICK.rounds {
        println!("a quick look, in which no figure and no verdict means anything; cargo bench measures");
    }
    runtime.block_on(async {
        disk();
        speed(&scale).await;
        unread(&scale).await;
        idle(&scale).await;
    });
}

/// A folder on the disk the build is on: the system's temporary folder may be no disk at all.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder")
}

/// Prints what any durable write costs here.
#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn disk() {
    let folder = folder();
    let mut file = std::fs::File::create(folder.path().join("file")).expect("it can be made");
    let mut write = || {
        let begun = Instant::now();
        file.write_all(&[7; EVENT_BYTES]).expect("it can be written");
        file.sync_data().expect("it can be synced");
        begun.elapsed().as_nanos() as f64
    };
    let spread = Spread::new((0..50).map(|_| write()).collect());
    println!(
        "the disk: 1 KiB written and synced in p50 {}, p99 {}",
        time(spread.median()),
        time(spread.at(0.99))
    );
}

/// An event of exactly [`EVENT_BYTES`] bytes.
fn event() -> Bytes {
    let head = r#"{"specversion":"1.0","id":"0","source":"/bench","type":"bench.event","data":""#;
    let mut event = head.to_owned();
    event.extend(std::iter::repeat_n('x', EVENT_BYTES - head.len() - 2));
    event.push_str("\"}");
    event.into()
}

/// The three ways, in the order they are shown.
struct Ways {
    store: Arc<SqliteStore>,
    running: Running,
    server: Server,
    _folders: [TempDir; 3],
}

const NAMES: [&str; 3] = ["store", "services", "http"];

impl Ways {
    async fn open() -> Self {
        let folders = [folder(), folder(), folder()];
        let store = SqliteStore::open(folders[0].path().join("store"), Options::default()).expect("it opens");
        store.create_topic(TOPIC, PARTITIONS).await.expect("it is new");
        let mut config = Config::default();
        config.host.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.host.data_dir = folders[1].path().join("data");
        config.events.default_partitions = PARTITIONS.into();
        let running = App::start(&config).await.expect("the host starts");
        let server = serve(folders[2].path(), &[]);
        Self { store: Arc::new(store), running, server, _folders: folders }
    }

    /// Makes clients of one way that share a group.
    async fn clients(&self, crowd: &str, way: usize, count: usize) -> Vec<Client> {
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            let id = format!("client-{number}");
            clients.push(match way {
                0 => Client::Store(StoreClient::new(&self.store, crowd, number)),
                1 => Client::Services(ServicesClient::subscribe(self.running.services(), id).await),
                _ => Client::Http(HttpClient::subscribe(self.server.addr, id).await),
            });
        }
        clients
    }
}

fn serve(folder: &Path, prefix: &[&str]) -> Server {
    Server::start(fulcrum(prefix, &folder.join("data"), &["--set", "log.filter=warn"]))
}

/// Somebody who publishes events, gets as many, and settles them.
enum Client {
    Store(StoreClient),
    Services(ServicesClient),
    Http(HttpClient),
}

impl Client {
    async fn publish(&mut self, count: usize) {
        match self {
            Self::Store(client) => client.publish(count).await,
            Self::Services(client) => client.publish(count).await,
            Self::Http(client) => client.publish(count).await,
        }
    }

    async fn poll(&mut self, count: usize) {
        match self {
            Self::Store(client) => client.poll(count).await,
            Self::Services(client) => client.poll(count).await,
            Self::Http(client) => client.poll(count).await,
        }
    }

    async fn ack(&mut self) {
        match self {
            Self::Store(client) => client.ack().await,
            Self::Services(client) => client.ack().await,
            Self::Http(client) => client.ack().await,
        }
    }
}

/// The least that any log with a durable reader does: append, fetch, and swap a record that says how far it is.
struct StoreClient {
    store: Arc<SqliteStore>,
    clock: RealClock,
    partition: u32,
    at: Position,
    key: String,
    revision: Option<Revision>,
    event: Bytes,
}

impl StoreClient {
    fn new(store: &Arc<SqliteStore>, crowd: &str, number: usize) -> Self {
        let partition = u32::try_from(number).expect("a small number") % PARTITIONS;
        // A key of its own: nobody waits for another one's revision.
        let key = format!("reader/{crowd}/{number}");
        let (store, clock) = (store.clone(), RealClock::start());
        Self { store, clock, partition, at: Position(0), key, revision: None, event: event() }
    }

    async fn publish(&mut self, count: usize) {
        let records = vec![self.event.clone(); count];
        let appended = self.store.append(TOPIC, self.partition, self.clock.now(), records).await;
        self.at = appended.expect("it is stored")[0];
    }

    async fn poll(&mut self, count: usize) {
        let limit = FetchLimit { records: u32::try_from(count).expect("a batch"), bytes: 4 << 20 };
        let fetched = self.store.fetch(TOPIC, self.partition, self.at, limit).await.expect("it is there");
        assert_eq!(fetched.records.len(), count);
    }

    async fn ack(&mut self) {
        let update = Update::Put(Bytes::from_static(&[7; 128]));
        let swapped = self.store.compare_and_swap(&self.key, Expected::from(self.revision), update).await;
        self.revision = Some(swapped.expect("the key is its own"));
    }
}

/// The host's own parts, without HTTP.
struct ServicesClient {
    services: Services,
    id: String,
    event: Bytes,
    deliveries: Vec<String>,
}

impl ServicesClient {
    async fn subscribe(services: &Services, id: String) -> Self {
        let subscription = Subscription::new(&*id, TOPIC, Mode::LoadBalance);
        services.events.subscribe(subscription).await.expect("it subscribes");
        Self { services: services.clone(), id, event: event(), deliveries: Vec::new() }
    }

    async fn publish(&mut self, count: usize) {
        if count == 1 {
            self.services.events.publish(TOPIC, None, self.event.clone()).await.expect("it is stored");
        } else {
            let events = vec![(None, self.event.clone()); count];
            self.services.events.publish_batch(TOPIC, events).await.expect("it is stored");
        }
    }

    async fn poll(&mut self, count: usize) {
        while self.deliveries.len() < count {
            let max = count - self.deliveries.len();
            let polled = self.services.pulls.poll(&self.id, max, Duration::from_secs(60), 0).await;
            self.deliveries.extend(polled.expect("it is subscribed").into_iter().map(|delivery| delivery.id));
        }
    }

    async fn ack(&mut self) {
        let acks = self.deliveries.iter().map(|id| self.services.pulls.ack(id, false));
        for acked in join_all(acks).await {
            acked.expect("it was delivered just now");
        }
        self.deliveries.clear();
    }
}

/// The real binary over a keep-alive connection.
struct HttpClient {
    connection: Connection,
    id: String,
    event: Bytes,
    deliveries: Vec<String>,
}

impl HttpClient {
    async fn subscribe(addr: SocketAddr, id: String) -> Self {
        let connection = Connection::open(addr).await;
        let body = format!(r#"{{"clientId":"{id}","topic":"{TOPIC}","mode":"LOAD_BALANCE"}}"#);
        once(addr, "POST", "/events/subscribe", &body).await;
        Self { connection, id, event: event(), deliveries: Vec::new() }
    }

    async fn publish(&mut self, count: usize) {
        let connection = &mut self.connection;
        if count == 1 {
            connection.ask("POST", "/events/publish?topic=t", &self.event).await;
        } else {
            connection.ask("POST", "/events/publish-batch?topic=t", &batch(&self.event, count)).await;
        }
    }

    async fn poll(&mut self, count: usize) {
        while self.deliveries.len() < count {
            let max = count - self.deliveries.len();
            let path = format!("/events/poll?clientId={}&max={max}&timeoutMs=60000", self.id);
            let answer = self.connection.ask("GET", &path, b"").await;
            let answer = std::str::from_utf8(answer).expect("JSON");
            let ids = answer.split(r#""deliveryId":""#).skip(1);
            self.deliveries.extend(ids.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()));
        }
    }

    async fn ack(&mut self) {
        let body = match &self.deliveries[..] {
            [id] => format!(r#"{{"deliveryId":"{id}"}}"#),
            ids => format!(r#"{{"deliveryIds":["{}"]}}"#, ids.join(r#"",""#)),
        };
        self.connection.ask("POST", "/events/ack", body.as_bytes()).await;
        self.deliveries.clear();
    }
}

/// A JSON array of so many events.
fn batch(event: &[u8], count: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(count * (event.len() + 1) + 2);
    body.push(b'[');
    body.extend_from_slice(&vec![event; count].join(&b','));
    body.push(b']');
    body
}

/// A keep-alive connection with one request at a time.
struct Connection {
    stream: TcpStream,
    addr: SocketAddr,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket option");
        Self { stream, addr, buffer: Vec::new() }
    }

    async fn send(&mut self, method: &str, path: &str, body: &[u8]) {
        let mut request = String::new();
        let (addr, length) = (self.addr, body.len());
        write!(request, "{method} {path} HTTP/1.1\r\nhost: {addr}\r\ncontent-type: application/json\r\n")
            .and_then(|()| write!(request, "content-length: {length}\r\n\r\n"))
            .expect("a text takes text");
        let request = [request.as_bytes(), body].concat();
        self.stream.write_all(&request).await.expect("the server reads");
    }

    /// Returns the body of a success.
    async fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> &[u8] {
        self.send(method, path, body).await;
        self.buffer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await.expect("the server answers");
            assert!(read > 0, "the server closed the connection");
            let Some(head) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.buffer[..head]).expect("a head is text");
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize =
                length.and_then(|length| length.parse().ok()).expect("an answer of known length");
            if self.buffer.len() < head + 4 + length {
                self.buffer.reserve(head + 4 + length - self.buffer.len());
                continue;
            }
            assert!(
                text.starts_with("HTTP/1.1 2"),
                "{method} {path}: {}",
                String::from_utf8_lossy(&self.buffer)
            );
            return &self.buffer[head + 4..];
        }
    }
}

/// Nanoseconds of each step, of each client and turn; with the turns per second of each round.
#[derive(Default)]
struct Figures {
    publish: Vec<f64>,
    poll: Vec<f64>,
    ack: Vec<f64>,
    turn: Vec<f64>,
    rates: Vec<f64>,
    cpu_seconds: f64,
}

impl Figures {
    /// Lets every client publish, poll and acknowledge `count` events, `turns` times.
    async fn add(&mut self, clients: Vec<Client>, turns: usize, count: usize) -> Vec<Client> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        let total = clients.len() * turns;
        for mut client in clients {
            tasks.spawn(async move {
                let mut nanos = Vec::with_capacity(turns);
                for _ in 0..turns {
                    let begun = Instant::now();
                    let at = || begun.elapsed().as_nanos() as f64;
                    client.publish(count).await;
                    let published = at();
                    client.poll(count).await;
                    let polled = at();
                    client.ack().await;
                    nanos.push([published, polled, at()]);
                }
                (client, nanos)
            });
        }
        let mut clients = Vec::new();
        while let Some(joined) = tasks.join_next().await {
            let (client, nanos) = joined.expect("a client works");
            clients.push(client);
            for [published, polled, acked] in nanos {
                self.publish.push(published);
                self.poll.push(polled - published);
                self.ack.push(acked - polled);
                self.turn.push(acked);
            }
        }
        self.rates.push(total as f64 / begun.elapsed().as_secs_f64());
        clients
    }

    fn rate(&self) -> f64 {
        Spread::new(self.rates.clone()).median()
    }
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
async fn speed(scale: &Scale) {
    let ways = Ways::open().await;
    println!(
        "events of {EVENT_BYTES} bytes, {PARTITIONS} partitions, one group, {} alternating rounds; rates are medians of \
         the rounds, steps are p50 / p99 of all calls",
        scale.rounds
    );
    for clients in scale.clients {
        for count in [1, scale.batch] {
            let turns = (scale.turns)(*clients);
            // Batches are few and long.
            let turns = if count == 1 { turns } else { turns.div_ceil(4) };
            let each =
                if count == 1 { "one event at a time".to_owned() } else { format!("batches of {count}") };
            println!("{clients} clients, {each}, {turns} times each in a round");
            let mut figures: [Figures; 3] = Default::default();
            let mut crowds = Vec::new();
            for way in 0..NAMES.len() {
                let crowd = ways.clients(&format!("{clients}x{count}"), way, *clients).await;
                // The first ones make what is made once.
                crowds.push(Figures::default().add(crowd, 1, count).await);
            }
            for round in 0..scale.rounds {
                for turn in 0..NAMES.len() {
                    let way = (round + turn) % NAMES.len();
                    let crowd = std::mem::take(&mut crowds[way]);
                    let before = ways.server.cpu_seconds();
                    crowds[way] = figures[way].add(crowd, turns, count).await;
                    figures[way].cpu_seconds += ways.server.cpu_seconds() - before;
                }
            }
            show(&figures, count);
        }
    }
    ways.running.stop().await;
    ways.store.close().await;
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn show(figures: &[Figures; 3], count: usize) {
    let step = |nanos: &[f64]| {
        let spread = Spread::new(nanos.to_vec());
        format!("{:>8} / {:>8}", time(spread.median()), time(spread.at(0.99)))
    };
    for (name, figures) in NAMES.iter().zip(figures) {
        println!(
            "  {name:<9} {:>7.0} events/s  publish {}  poll {}  ack {}  all {}",
            figures.rate() * count as f64,
            step(&figures.publish),
            step(&figures.poll),
            step(&figures.ack),
            step(&figures.turn)
        );
    }
    if count > 1 {
        let each = |figures: &Figures| time(Spread::new(figures.turn.clone()).median() / count as f64);
        let [store, services, http] = figures.each_ref().map(each);
        println!("  per event of a batch (p50): store {store}, services {services}, http {http}");
    }
    let [store, services, http] = figures;
    let events = http.turn.len() * count;
    println!("  http: {:.1} µs cpu of the server per event", http.cpu_seconds * 1e6 / events as f64);
    for (name, way) in [("services", services), ("http", http)] {
        let ratio = store.rate() / way.rate();
        println!(
            "  bar: publish+poll+ack by {name} <= {BAR}x append+fetch+swap: {ratio:.2}x {}",
            verdict(ratio <= BAR)
        );
    }
    println!("  http costs {:.2}x what the services do", services.rate() / http.rate());
}

fn mib(server: &Server, name: &str) -> f64 {
    server.memory_kib(name) as f64 / 1024.0
}

/// Returns a number from the environment, for people with less time or disk.
fn wanted(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
async fn unread(scale: &Scale) {
    const BATCH: usize = 800;
    const PUBLISHERS: usize = 4;
    let count = wanted("FULCRUM_BENCH_UNREAD", scale.unread);
    let folder = folder();
    let server = serve(folder.path(), &[]);
    let mut reader = HttpClient::subscribe(server.addr, "reader".to_owned()).await;
    // What is allocated by the first ones stays.
    reader.publish(BATCH).await;
    reader.poll(100).await;
    let before = [mib(&server, "VmRSS"), mib(&server, "RssAnon")];
    let begun = Instant::now();
    let event = event();
    let publish = |share: usize| {
        let event = event.clone();
        async move {
            let mut connection = Connection::open(server.addr).await;
            let mut left = share;
            while left > 0 {
                let now = left.min(BATCH);
                connection.ask("POST", "/events/publish-batch?topic=t", &batch(&event, now)).await;
                left -= now;
            }
        }
    };
    join_all((0..PUBLISHERS).map(|_| publish(count / PUBLISHERS))).await;
    let seconds = begun.elapsed().as_secs_f64();
    let published = [mib(&server, "VmRSS"), mib(&server, "RssAnon")];
    println!(
        "{count} unread events, published in {seconds:.1} s ({:.0} events/s in batches of {BATCH})",
        count as f64 / seconds
    );
    // It holds what it got, and reads on.
    let begun = Instant::now();
    reader.poll(500.min(count)).await;
    println!("  the first poll of 400 more took {} ms", begun.elapsed().as_millis());
    let read = [mib(&server, "VmRSS"), mib(&server, "RssAnon")];
    for (what, [rss, anonymous]) in [("before", before), ("unread", published), ("read from", read)] {
        println!("  {what:<9} RSS {rss:>6.1} MiB, anonymous {anonymous:>6.1} MiB");
    }
    println!("  peak RSS {:.1} MiB", mib(&server, "VmHWM"));
    let growth = published[1].max(read[1]) - before[1];
    println!(
        "  bar: {count} unread events grow the host by <= {UNREAD_MIB_MAX} MiB: {growth:.1} MiB {}",
        verdict(growth <= UNREAD_MIB_MAX)
    );
}

/// A process that is ended with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
async fn idle(scale: &Scale) {
    // Both sides need a file for each connection.
    let prefix = &["sh", "-c", "ulimit -n $(ulimit -H -n); exec \"$0\" \"$@\""];
    let count = wanted("FULCRUM_BENCH_POLLS", scale.polls);
    let limit = Command::new("sh").args(["-c", "ulimit -H -n"]).output().map(|output| output.stdout);
    let limit = String::from_utf8(limit.unwrap_or_default()).unwrap_or_default();
    if limit.trim().parse().is_ok_and(|limit: usize| limit < count + 1000) {
        println!("{count} idle polls: left out, a process may have only {} files", limit.trim());
        return;
    }
    let folder = folder();
    let server = serve(folder.path(), prefix);
    for number in 0..IDLERS {
        let body = format!(r#"{{"clientId":"idle-{number}","topic":"{TOPIC}","mode":"LOAD_BALANCE"}}"#);
        once(server.addr, "POST", "/events/subscribe", &body).await;
    }
    waiting(&server).await;
    let before = [mib(&server, "VmRSS"), mib(&server, "RssAnon")];
    let begun = Instant::now();
    let own = std::env::current_exe().expect("this program");
    let mut command = prefixed(prefix, own.to_str().expect("a plain path"));
    command.args([HOLD, &server.addr.to_string(), &count.to_string()]);
    let holding = Ended(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it can be run"));
    while waiting(&server).await < count {
        assert!(
            begun.elapsed() < Duration::from_secs(55),
            "{} of {count} polls wait",
            waiting(&server).await
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = begun.elapsed();
    let cpu = server.cpu_seconds();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let cpu = (server.cpu_seconds() - cpu) / 2.0;
    let after = [mib(&server, "VmRSS"), mib(&server, "RssAnon")];
    println!("{count} idle long polls of {IDLERS} clients, all waiting after {} ms", took.as_millis());
    for (what, [rss, anonymous]) in [("before", before), ("waiting", after)] {
        println!("  {what:<9} RSS {rss:>6.1} MiB, anonymous {anonymous:>6.1} MiB");
    }
    println!("  {:.2} % of a core while nothing happens", cpu * 100.0);
    let mut connection = Connection::open(server.addr).await;
    let mut nanos = Vec::new();
    for _ in 0..count.min(50) {
        let begun = Instant::now();
        connection.ask("POST", "/events/publish?topic=t", &event()).await;
        nanos.push(begun.elapsed().as_nanos() as f64);
    }
    let spread = Spread::new(nanos);
    println!("  a publish beside them takes p50 {}, p99 {}", time(spread.median()), time(spread.at(0.99)));
    let each = (after[1] - before[1]) * 1024.0 / count as f64;
    println!(
        "  bar: <= {POLL_KIB_MAX} KiB for each poll with its connection: {each:.1} KiB {}",
        verdict(each <= POLL_KIB_MAX)
    );
    drop(holding);
}

/// Returns how many polls wait, as the host counts them.
async fn waiting(server: &Server) -> usize {
    let (_, metrics) = once(server.addr, "GET", "/metrics", "").await;
    let line = metrics.lines().find_map(|line| line.strip_prefix("fulcrum_polls_waiting "));
    line.and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Sends polls that nothing comes for, and keeps their connections until this process is ended.
async fn hold(addr: SocketAddr, count: usize) {
    let mut connections = Vec::with_capacity(count);
    for number in 0..count {
        let mut connection = Connection::open(addr).await;
        let path = format!("/events/poll?clientId=idle-{}&timeoutMs=60000", number % IDLERS);
        connection.send("GET", &path, b"").await;
        connections.push(connection);
    }
    std::future::pending::<()>().await;
    drop(connections);
}
