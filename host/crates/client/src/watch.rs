//! The stream of a member's orders: server-sent events, one JSON object each.

use reqwest::Response;
use tokio::sync::mpsc;

use crate::wire::Orders;

/// Longest event; longer ones end the stream.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// Hands the orders on until the stream ends or nobody listens.
pub(crate) async fn follow(mut response: Response, orders: mpsc::Sender<Orders>) {
    let mut lines = Lines::default();
    loop {
        let Ok(Some(chunk)) = response.chunk().await else { return };
        lines.push(&chunk);
        while let Some(line) = lines.next() {
            // Our events have one data line; everything else is a comment or another field.
            let Some(data) = line.strip_prefix("data:") else { continue };
            match serde_json::from_str(data.trim_start()) {
                Ok(told) => {
                    if orders.send(told).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(%error, "orders that cannot be read"),
            }
        }
        if lines.buffer.len() > EVENT_BYTES_MAX {
            return;
        }
    }
}

#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    /// No line break is before.
    searched: usize,
}

impl Lines {
    fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    fn next(&mut self) -> Option<String> {
        let Some(at) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let line: Vec<u8> = self.buffer.drain(..=self.searched + at).collect();
        self.searched = 0;
        let text = String::from_utf8_lossy(&line);
        Some(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_may_come_in_any_pieces() {
        let text = "data: {\"a\":1}\r\n\n: still here\n\ndata: x\n";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                lines.push(chunk);
                while let Some(line) = lines.next() {
                    found.push(line);
                }
            }
            assert_eq!(found, ["data: {\"a\":1}", "", ": still here", "", "data: x"], "{size}");
        }
    }
}
