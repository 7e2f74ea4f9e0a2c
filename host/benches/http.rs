//! `GET /session/recommend` of the real binary against an axum handler that returns a constant of the same size.
//!
//! Both are processes of their own, run in turn under the same load: 32 keep-alive connections, one request at a time on
//! each. Twice: with the server on one core and the load on another, where the server is what limits and the
//! ratio is honest, and with everything on all cores, where the load generator takes its share of both.

mod support;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::serve::ListenerExt as _;
use support::http::{Answers, Load, once};
use support::server::{Server, fulcrum, prefixed};
use support::{Spread, machine, verdict};

const CONNECTIONS: usize = 32;
const ROUNDS: usize = 12;
const SLICE: Duration = Duration::from_millis(700);
/// As this argument's value the bench is the constant server.
const CONSTANT: &str = "--constant-body";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == CONSTANT) {
        return serve_constant(arguments[at + 1].clone());
    }
    if support::is_bench() {
        machine();
        compare();
    }
}

/// Serves one constant answer, on a runtime like that of `fulcrum serve`.
#[allow(clippy::print_stdout, reason = "the first line says where it listens")]
fn serve_constant(body: String) {
    let body: &'static str = Box::leak(body.into_boxed_str());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("listening on http://{}", listener.local_addr().expect("it is bound"));
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let constant = move || async move { ([(CONTENT_TYPE, "application/json")], body) };
        let router = Router::new().route("/session/recommend", get(constant));
        axum::serve(listener, router).await.expect("it serves");
    });
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
fn compare() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let can_pin = cores > 1 && Command::new("taskset").arg("-V").output().is_ok();
    println!("{CONNECTIONS} connections, {ROUNDS} alternating rounds of {} ms each", SLICE.as_millis());
    for (policy, rows) in [("p2c", 10), ("weighted", 10), ("weighted", 1000)] {
        let scoring = format!("policy.scoring={policy}");
        for (place, prefix) in [("one core", &["taskset", "-c", "0"][..]), ("all cores", &[])] {
            if !prefix.is_empty() && !can_pin {
                println!("{place}: left out, it needs two cores and taskset");
                continue;
            }
            let first = usize::from(!prefix.is_empty());
            pin(&format!("{first}-{}", cores - 1));
            let folder = tempfile::tempdir().expect("a temporary folder");
            let host = Server::start(fulcrum(
                prefix,
                folder.path(),
                &["--set", &scoring, "--set", "heartbeat.ttl_ms=3600000", "--set", "log.filter=warn"],
            ));
            let body = runtime.block_on(beat_and_ask(host.addr, rows));
            let own = std::env::current_exe().expect("this program");
            let mut command = prefixed(prefix, own.to_str().expect("a plain path"));
            command.args([CONSTANT, &body]);
            let constant = Server::start(command);
            println!("{policy}, {rows} rows, server on {place} (body of {} bytes)", body.len());
            runtime.block_on(alternate(&host, &constant));
        }
    }
}

/// Puts this process on some cores.
fn pin(cores: &str) {
    let own = std::process::id().to_string();
    let _ = Command::new("taskset").args(["-a", "-p", "-c", cores, &own]).output();
}

async fn beat_and_ask(addr: SocketAddr, rows: usize) -> String {
    for row in 0..rows {
        let body = format!(
            r#"{{"address":"10.0.0.{}:8080","activeSessions":{},"inflowBytesPerSec":{},"outflowBytesPerSec":5000,"cpuLoad":0.{}}}"#,
            row % 256,
            row * 37 % 100,
            row * 7919 % 100_000,
            row * 31 % 70
        );
        once(addr, "PUT", &format!("/instances/instance-{row:04}"), &body).await;
    }
    once(addr, "GET", "/session/recommend?clientId=client-0-0", "").await.1
}

#[allow(clippy::print_stdout, reason = "the bench's answer")]
async fn alternate(host: &Server, constant: &Server) {
    let requests = |connection: usize| -> Vec<String> {
        (0..100).map(|client| format!("/session/recommend?clientId=client-{connection}-{client}")).collect()
    };
    let servers = [host, constant];
    let mut loads = [
        Load::connect(host.addr, CONNECTIONS, requests).await,
        Load::connect(constant.addr, CONNECTIONS, requests).await,
    ];
    for load in &mut loads {
        load.run(Duration::from_millis(500)).await;
    }
    let mut figures = [Figures::default(), Figures::default()];
    for round in 0..ROUNDS {
        for turn in 0..2 {
            let at = (round + turn) % 2;
            let before = servers[at].cpu_seconds();
            let answers = loads[at].run(SLICE).await;
            assert_eq!(answers.failed, 0, "every answer is a success");
            figures[at].add(answers, servers[at].cpu_seconds() - before);
        }
    }
    let [host, constant] = figures;
    let (rate, p99) =
        (median(&host.rates) / median(&constant.rates), median(&host.p99) / median(&constant.p99));
    for (name, figures) in [("fulcrum", &host), ("constant", &constant)] {
        println!(
            "  {name:<9} {:>8.0} requests/s  p50 {:>6.0} µs  p99 {:>6.0} µs  {:>5.2} µs cpu of the server per request",
            median(&figures.rates),
            median(&figures.p50) / 1e3,
            median(&figures.p99) / 1e3,
            median(&figures.cpu) * 1e6
        );
    }
    println!("  bar: requests/s >= 0.8 of the constant: {rate:.2} {}", verdict(rate >= 0.8));
    println!("  bar: p99 <= 2x the constant: {p99:.2}x {}", verdict(p99 <= 2.0));
}

/// One entry per round.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    cpu: Vec<f64>,
}

impl Figures {
    fn add(&mut self, answers: Answers, cpu_seconds: f64) {
        self.rates.push(answers.per_second());
        self.cpu.push(cpu_seconds / answers.nanos.len() as f64);
        let spread = Spread::new(answers.nanos);
        self.p50.push(spread.median());
        self.p99.push(spread.at(0.99));
    }
}

fn median(values: &[f64]) -> f64 {
    Spread::new(values.to_vec()).median()
}
