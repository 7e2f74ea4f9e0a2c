//! Servers as processes of their own, and what they use.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::http::once;

/// A server process; it ends with this value.
pub(crate) struct Server {
    child: Child,
    pub(crate) addr: SocketAddr,
    /// Held open: a server that prints more must not fail.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts a command that says where it listens in its first line, as `fulcrum serve` does.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server can be run");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("stdout can be read");
        let addr = line.trim().strip_prefix("listening on http://").and_then(|addr| addr.parse().ok());
        Self { child, addr: addr.unwrap_or_else(|| panic!("it said {line:?}")), _stdout: stdout }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Waits until the file of that name is in use; returns its status.
    pub(crate) async fn until_in_use(&self, name: &str) -> serde_json::Value {
        let begun = Instant::now();
        loop {
            let (_, body) = once(self.addr, "GET", &format!("/admin/policies/{name}"), "").await;
            if body.contains(r#""source":"file""#) {
                return serde_json::from_str(&body).expect("a status is JSON");
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "{name} is not in use: {body}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns a line of `/proc/PID/status` in KiB.
    pub(crate) fn memory_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap_or(0)
    }

    /// Returns the processor time used so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        // In the nanoseconds of each thread: the sum for the process counts in hundredths of a second.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let nanos = |path: &Path| -> Option<u64> {
            let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        let tasks = tasks.into_iter().flatten().flatten();
        tasks.filter_map(|task| nanos(&task.path())).sum::<u64>() as f64 / 1e9
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The real binary, serving from a folder.
pub(crate) fn fulcrum(prefix: &[&str], data: &Path, arguments: &[&str]) -> Command {
    let mut command = prefixed(prefix, env!("CARGO_BIN_EXE_fulcrum"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).args(arguments);
    command
}

/// Makes a command behind another one, for example `taskset`.
pub(crate) fn prefixed(prefix: &[&str], program: &str) -> Command {
    match prefix.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    }
}
