//! A small HTTP/1.1 load generator: keep-alive connections, one request at a time on each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What a slice of load brought.
#[derive(Default)]
pub(crate) struct Answers {
    /// Nanoseconds each request took.
    pub(crate) nanos: Vec<f64>,
    /// Answers that were no success.
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
}

impl Answers {
    pub(crate) fn per_second(&self) -> f64 {
        self.nanos.len() as f64 / self.seconds
    }
}

/// Connections to one server, kept from slice to slice.
pub(crate) struct Load {
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    requests: Vec<Vec<u8>>,
    next: usize,
}

impl Load {
    /// Connects; connection k sends its own `requests(k)` over and over.
    pub(crate) async fn connect(
        addr: SocketAddr,
        connections: usize,
        requests: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        let mut made = Vec::with_capacity(connections);
        for at in 0..connections {
            let stream = TcpStream::connect(addr).await.expect("the server listens");
            stream.set_nodelay(true).expect("a socket option");
            let request = |path: &String| format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\n\r\n").into_bytes();
            let requests = requests(at).iter().map(request).collect();
            made.push(Connection { stream, requests, next: 0 });
        }
        Self { connections: made }
    }

    /// Sends so many requests on the first connection, one every `pace` at most.
    pub(crate) async fn paced(&mut self, requests: usize, pace: Duration) -> Answers {
        let begun = Instant::now();
        let mut answers = Answers::default();
        let mut ticks = tokio::time::interval(pace);
        for _ in 0..requests {
            ticks.tick().await;
            self.connections[0].ask(&mut answers).await;
        }
        answers.seconds = begun.elapsed().as_secs_f64();
        answers
    }

    /// Sends requests on all connections for a while.
    pub(crate) async fn run(&mut self, span: Duration) -> Answers {
        let begun = Instant::now();
        let until = begun + span;
        let mut tasks = tokio::task::JoinSet::new();
        for mut connection in self.connections.drain(..) {
            tasks.spawn(async move {
                let mut answers = Answers::default();
                while Instant::now() < until {
                    connection.ask(&mut answers).await;
                }
                (connection, answers)
            });
        }
        let mut all = Answers::default();
        while let Some(joined) = tasks.join_next().await {
            let (connection, answers) = joined.expect("a connection works");
            self.connections.push(connection);
            all.nanos.extend(answers.nanos);
            all.failed += answers.failed;
        }
        all.seconds = begun.elapsed().as_secs_f64();
        all
    }
}

impl Connection {
    async fn ask(&mut self, answers: &mut Answers) {
        let request = &self.requests[self.next];
        self.next = (self.next + 1) % self.requests.len();
        let begun = Instant::now();
        self.stream.write_all(request).await.expect("the server reads");
        let mut buffer = [0; 4096];
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut buffer[filled..]).await.expect("the server answers");
            assert!(read > 0, "the server closed the connection");
            filled += read;
            if let Some(len) = answer_len(&buffer[..filled]) {
                assert!(filled <= len, "the server says more than was asked");
                if filled == len {
                    break;
                }
            }
        }
        answers.nanos.push(begun.elapsed().as_nanos() as f64);
        answers.failed += u64::from(!buffer.starts_with(b"HTTP/1.1 200"));
    }
}

/// Returns the length of an answer once its head is there.
fn answer_len(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&answer[..head]).expect("a head is text");
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    Some(head + length.expect("an answer of known length").parse::<usize>().expect("a number"))
}

/// Asks once, on a connection of its own, and returns the body.
pub(crate) async fn once(addr: SocketAddr, method: &str, path: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).await.expect("the server listens");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the server answers");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
    (head.to_owned(), body.to_owned())
}
