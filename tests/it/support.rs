//! What the system tests share: a host in this process or as the real binary, policies made of text, waiting.
//!
//! Invariants: every port is 0 and on loopback, every folder is temporary; a wait tests a condition and has a bound.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulcrum::app::{App, Running, Services};
use fulcrum::config::Config;
use fulcrum_core::seed;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Guests made of text are those of the policy crate's own tests.
#[path = "../../host/crates/policy/tests/support/mod.rs"]
#[allow(unreachable_pub, reason = "another crate's helpers")]
mod policy_support;

pub(crate) use policy_support::wasi;
pub(crate) use policy_support::{TestClock, guest, runtime as check_runtime};

/// Longest wait for anything that should happen at once; generous, because other work may run on this machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Stack of threads that run policies, as `serve` has it.
const STACK_BYTES: usize = 4 << 20;
/// A client id that provokes the misbehaving guests: it has 66 bytes.
pub(crate) const TROUBLE: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

/// A component that chooses the first row that may be chosen, at cost 0.
pub(crate) static FIRST: LazyLock<Vec<u8>> = LazyLock::new(|| guest(""));
/// A component that chooses the last row that may be chosen, at cost 1.
pub(crate) static LAST: LazyLock<Vec<u8>> = LazyLock::new(|| guest(include_str!("guests/last.wat")));

/// A guest of the policy crate that misbehaves in one way.
#[derive(Clone, Debug)]
pub(crate) struct Sin {
    pub(crate) name: String,
    /// When it shows: `load`, `call` or `explain`.
    pub(crate) stage: String,
    /// Code of the refusal, or name of the outcome.
    pub(crate) expected: String,
    pub(crate) wasm: Vec<u8>,
}

/// Every misbehaving guest, ordered by name; each says in its own text what should happen to it.
pub(crate) fn sins() -> Vec<Sin> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/crates/policy/tests/guests");
    let files = std::fs::read_dir(folder).expect("the guests are there");
    let paths = files.map(|entry| entry.expect("it can be listed").path());
    let sin = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let expectation = text.lines().find_map(|line| line.strip_prefix(";; expect: "))?;
        let (stage, expected) = expectation.split_once(' ').expect("two words");
        Some(Sin {
            name: path.file_stem().expect("a file").to_string_lossy().into_owned(),
            stage: stage.to_owned(),
            expected: expected.to_owned(),
            wasm: guest(&text),
        })
    };
    let mut sins: Vec<_> = paths.filter_map(sin).collect();
    sins.sort_by(|a, b| a.name.cmp(&b.name));
    sins
}

/// Runs a test on a runtime like that of `serve`.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .expect("the runtime starts")
        .block_on(test);
}

/// Looks again and again until there is something; panics with `what` after `bound`.
pub(crate) async fn eventually<T>(
    what: impl fmt::Display,
    bound: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let begun = tokio::time::Instant::now();
    loop {
        ticks.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < bound, "not within {bound:?}: {what}");
    }
}

/// The digest the host knows a component by.
pub(crate) fn digest(wasm: &[u8]) -> String {
    fulcrum_policy::artifact::digest(wasm)
}

/// The seed of a generated test: fixed, unless `FULCRUM_TEST_SEED` says another. Tests print it when they fail.
pub(crate) fn test_seed() -> u64 {
    std::env::var("FULCRUM_TEST_SEED").map_or(0xf01c_2026, |seed| seed.parse().expect("a seed is a number"))
}

/// A stream of chance.
pub(crate) struct Chance(u64, u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed, 0)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.1 += 1;
        usize::try_from(seed::decision(self.0, self.1) % bound as u64).expect("below a usize")
    }
}

/// The wall clock, as the host reads it.
pub(crate) fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since_1970.as_millis()).expect("before the year 500,000,000")
}

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Null if the text is not JSON.
    pub(crate) body: Value,
    asked: String,
}

impl Answer {
    /// Returns the body of a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{} answers {}", self.asked, self.text);
        self.body
    }

    /// Checks a refusal: status, stable code, a message, and a request id in body and header.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> &str {
        let Self { asked, text, body, headers, .. } = self;
        assert_eq!((self.status, body["code"].as_str()), (status, Some(code)), "{asked} answers {text}");
        let id = body["requestId"].as_str().unwrap_or_default();
        assert!(!id.is_empty() && headers["x-request-id"] == id, "{asked} answers {text} with {headers:?}");
        let message = body["error"].as_str().unwrap_or_default();
        assert!(message.len() > 10, "{asked} says {message:?}");
        message
    }
}

/// Speaks to one host.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    url: String,
    http: reqwest::Client,
}

impl Api {
    pub(crate) fn new(url: String) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build();
        Self { url, http: http.expect("a client needs nothing") }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the same host with connections of its own.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.url.clone())
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let request = request.build().expect("the test makes valid requests");
        let asked = format!("{} {}", request.method(), request.url());
        let response = self.http.execute(request).await.unwrap_or_else(|error| panic!("{asked}: {error:?}"));
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap_or_else(|error| panic!("{asked}: {error:?}"));
        Answer { status, headers, body: serde_json::from_str(&text).unwrap_or_default(), text, asked }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Sends a heartbeat of an instance that has so many sessions and is idle otherwise; its address is `ID.test:1`.
    pub(crate) async fn beat(&self, id: &str, sessions: u32) {
        let body = json!({ "address": format!("{id}.test:1"), "activeSessions": sessions, "inflowBytesPerSec": 0,
            "outflowBytesPerSec": 0, "cpuLoad": 0 });
        self.put(&format!("/instances/{id}"), &body).await.ok();
    }

    /// Asks for a recommendation, which always is a success.
    pub(crate) async fn recommend(&self, query: &str) -> Value {
        self.get(&format!("/session/recommend?{query}")).await.ok()
    }

    /// Returns the id of the instance recommended, empty if nobody is.
    pub(crate) async fn pick(&self, query: &str) -> String {
        self.recommend(query).await["instanceId"].as_str().expect("always a text").to_owned()
    }

    /// Returns how a policy stands, null if the host does not know it.
    pub(crate) async fn policy(&self, name: &str) -> Value {
        let answer = self.get(&format!("/admin/policies/{name}")).await;
        if answer.status == 404 { Value::Null } else { answer.ok() }
    }

    /// Returns how an instance stands, null if it is not listed, dead ones included.
    pub(crate) async fn instance(&self, id: &str) -> Value {
        let all = self.get("/instances?all=1").await.ok();
        all.as_array().expect("a list").iter().find(|row| row["id"] == id).cloned().unwrap_or_default()
    }

    /// Waits until a policy's version in use is this one.
    pub(crate) async fn until_in_use(&self, name: &str, digest: &str) -> Value {
        let what = format!("{name} is {digest}");
        eventually(what, SOON, async || {
            Some(self.policy(name).await).filter(|status| status["digest"] == digest)
        })
        .await
    }

    /// Waits until the newest file of a policy is refused with this code; returns how the policy stands.
    pub(crate) async fn until_refused(&self, name: &str, code: &str) -> Value {
        let what = format!("{name} is refused with {code}");
        let look = async || {
            let status = self.policy(name).await;
            (status["problem"]["code"] == code).then_some(status)
        };
        eventually(what, SOON, look).await
    }

    /// Sends bytes as they are and returns everything that comes back.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let address = self.url.strip_prefix("http://").expect("always http");
        let mut stream = TcpStream::connect(address).await.expect("the host listens");
        stream.write_all(bytes).await.expect("the host reads");
        let mut answer = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
        read.expect("the host closes the connection").expect("the host answers");
        String::from_utf8(answer).expect("an answer is text")
    }
}

/// A host in this process.
pub(crate) struct Host {
    api: Api,
    running: Running,
    folder: TempDir,
    config: Config,
}

impl Deref for Host {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a host with settings changed. Without changes deadlines and times to live are so long that no answer
    /// depends on how busy this machine is, and the folder is hardly polled, so that what is found is found by events.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::in_folder(tempfile::tempdir().expect("a temporary folder"), change).await
    }

    /// The same, with a data folder that is there already.
    pub(crate) async fn in_folder(folder: TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.host.listen = "127.0.0.1:0".parse().expect("an address");
        config.host.data_dir = folder.path().join("data");
        config.policy.scoring_deadline_ms = 2000;
        config.policy.poll_ms = 600_000;
        config.heartbeat.ttl_ms = 600_000;
        change(&mut config);
        let running = App::start(&config).await.expect("the host starts");
        let api = Api::new(running.url());
        Self { api, running, folder, config }
    }

    pub(crate) fn policies(&self) -> Drops {
        Drops(self.config.policies_dir())
    }

    /// Its parts, for what no call shows.
    pub(crate) fn services(&self) -> &Services {
        self.running.services()
    }

    /// Stops it and returns its folder, from which it can be started again.
    pub(crate) async fn stop(self) -> TempDir {
        self.running.stop().await;
        self.folder
    }
}

/// A policies folder.
#[derive(Clone, Debug)]
pub(crate) struct Drops(pub(crate) PathBuf);

impl Drops {
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Drops a file as one should: written under a name the host ignores, then renamed.
    pub(crate) fn put(&self, file: &str, bytes: &[u8]) {
        let beside = self.path(&format!(".{file}.part"));
        std::fs::write(&beside, bytes).expect("the folder can be written");
        std::fs::rename(&beside, self.path(file)).expect("the folder can be written");
    }

    /// Drops a file as `cp` does: in its place.
    pub(crate) fn copy(&self, file: &str, bytes: &[u8]) {
        std::fs::write(self.path(file), bytes).expect("the folder can be written");
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.path(file)).expect("the file is there");
    }
}

/// The real binary, serving.
pub(crate) struct Process {
    api: Api,
    child: Child,
    folder: TempDir,
    /// The first line it wrote to stdout.
    pub(crate) first_line: String,
}

impl Deref for Process {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Process {
    /// Starts `fulcrum serve` on a free port with a temporary data folder, and waits for its first line.
    pub(crate) async fn serve(arguments: &[&str]) -> Self {
        Self::serve_in(tempfile::tempdir().expect("a temporary folder"), arguments).await
    }

    /// The same in a folder that is there already; its data folder is `data` in it.
    pub(crate) async fn serve_in(folder: TempDir, arguments: &[&str]) -> Self {
        let stderr = std::fs::File::create(folder.path().join("stderr")).expect("the folder can be written");
        let mut child = command()
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path().join("data"))
            .args(["--set", "heartbeat.ttl_ms=600000"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the binary can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = tokio::time::timeout(SOON, lines.next_line()).await.expect("it starts in time");
        let first_line =
            line.expect("stdout can be read").unwrap_or_else(|| panic!("it ended: {}", log(&folder)));
        let url = first_line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{first_line}"));
        Self { api: Api::new(url.to_owned()), child, folder, first_line }
    }

    pub(crate) fn policies(&self) -> Drops {
        Drops(self.folder.path().join("data").join("policies"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// What it wrote to stderr so far.
    pub(crate) fn log(&self) -> String {
        log(&self.folder)
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill").args(["-s", name, &self.id().to_string()]).status();
        assert!(sent.expect("there is a kill command").success());
    }

    /// Returns its folder once it has ended, from which a host can be started again.
    pub(crate) fn into_folder(self) -> TempDir {
        self.folder
    }

    /// Waits until it ends; returns its exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(SOON, self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("it does not end: {}", log(&self.folder))).expect("waited for").code()
    }
}

fn log(folder: &TempDir) -> String {
    std::fs::read_to_string(folder.path().join("stderr")).unwrap_or_default()
}

/// What a command that has ended did.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Returns the output of a success.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Returns the output's lines as JSON.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }
}

/// Runs the real binary with some input until it ends.
pub(crate) async fn fulcrum(arguments: &[&str], input: &str) -> Ended {
    let mut child = command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    let mut stdin = child.stdin.take().expect("it is piped");
    let input = input.to_owned();
    // A command that does not read its input ends while we write: that is no failure.
    let feeding = tokio::spawn(async move { stdin.write_all(input.as_bytes()).await });
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await;
    let ended = ended.unwrap_or_else(|_| panic!("{arguments:?} does not end")).expect("waited for");
    drop(feeding.await);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes text");
    Ended { code: ended.status.code(), out: text(ended.stdout), err: text(ended.stderr) }
}

/// The binary, without anything from this process's environment that it might read.
pub(crate) fn command() -> Command {
    let mut command = Command::new(binary());
    command.env_clear().kill_on_drop(true);
    command
}

/// Finds the binary beside this test's own; fails if it is missing or older than what it is made of. The variable
/// `FULCRUM_TEST_BINARY` names another one, for example a release build.
fn binary() -> &'static Path {
    static BINARY: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        if let Some(other) = std::env::var_os("FULCRUM_TEST_BINARY") {
            return Ok(PathBuf::from(other));
        }
        let own = std::env::current_exe().expect("a process knows its file");
        let folder = own.parent().and_then(Path::parent).expect("tests lie in deps/ of the profile's folder");
        let binary = folder.join(format!("fulcrum{}", std::env::consts::EXE_SUFFIX));
        let shown = binary.display();
        let todo = "run `cargo build -p fulcrum` with the same profile first";
        if !binary.exists() {
            return Err(format!("there is no {shown}: {todo}"));
        }
        match newer_source(&binary) {
            Some(newer) => Err(format!("{shown} is older than {newer}: {todo}")),
            None => Ok(binary),
        }
    });
    BINARY.as_ref().unwrap_or_else(|problem| panic!("{problem}"))
}

/// Names a source that changed after the binary was built. Cargo lists them in a file beside it.
fn newer_source(binary: &Path) -> Option<String> {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let built = modified(binary)?;
    let list = std::fs::read_to_string(binary.with_extension("d")).ok()?;
    let (_, sources) = list.split_once(": ")?;
    // A path with spaces is not worth the parsing: its halves exist nowhere.
    sources.split_whitespace().find(|source| modified(Path::new(source)) > Some(built)).map(str::to_owned)
}
