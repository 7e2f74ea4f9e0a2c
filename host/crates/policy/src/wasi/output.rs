//! What a guest prints: cut into lines for its log, each line bounded.

use std::sync::Arc;

use parking_lot::Mutex;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

/// Takes one line, without its end.
pub(crate) type Print = Box<dyn Fn(&str) + Send>;

/// Bytes one write may carry.
const PERMIT_BYTES: usize = 4096;

/// Gathers bytes until a line is complete.
pub(super) struct Printer {
    line: Vec<u8>,
    line_bytes_max: usize,
    print: Print,
}

impl Printer {
    pub(super) fn new(line_bytes_max: usize, print: Print) -> Self {
        Self { line: Vec::new(), line_bytes_max, print }
    }

    fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            // What is beyond the limit is lost; the log would cut it off anyway.
            let room = self.line_bytes_max.saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < part.len() {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        let line = std::mem::take(&mut self.line);
        (self.print)(&String::from_utf8_lossy(&line));
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.end();
        }
    }
}

/// A handle on stdout or stderr: always ready, never full.
pub(super) struct Output(pub(super) Arc<Mutex<Printer>>);

#[async_trait]
impl OutputStream for Output {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        if bytes.len() > PERMIT_BYTES {
            return Err(StreamError::Trap(super::stop(format!(
                "it writes {} bytes at once, {PERMIT_BYTES} were permitted",
                bytes.len()
            ))));
        }
        self.0.lock().take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PERMIT_BYTES)
    }
}

#[async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_bounded() {
        let check = |writes: &[&str], expected: &[&str]| {
            let lines = Arc::new(Mutex::new(Vec::new()));
            let sink = lines.clone();
            let mut printer = Printer::new(8, Box::new(move |line| sink.lock().push(line.to_owned())));
            writes.iter().for_each(|bytes| printer.take(bytes.as_bytes()));
            drop(printer);
            assert_eq!(*lines.lock(), expected, "{writes:?}");
        };
        check(&[], &[]);
        check(&["a\nb\n"], &["a", "b"]);
        check(&["a", "b", "\n\nc"], &["ab", "", "c"]);
        check(&["0123456789", "more\nnext"], &["01234567", "next"]);
    }
}
