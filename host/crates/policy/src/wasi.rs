//! The compatibility mode: WASI 0.2 for policies that were built to import it, with nothing behind it.
//!
//! No environment, arguments, files or sockets; stdin is at its end; stdout and stderr go to the policy's log. Both
//! clocks stand still at the time the call came with, chance comes from its seed, so answers replay.
//!
//! Invariant: no call into the host waits. A guest that sleeps goes on at once and finds its monotonic clock moved on by
//! the time it wanted to sleep; whatever else it could wait for is ready already, or does not exist. So calls stay
//! synchronous, need no executor and run on any thread (ADR 005); the bindings and what they do with an empty context
//! come from `wasmtime-wasi`, only what would wait or look outside is ours.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use fulcrum_core::seed;
use parking_lot::Mutex;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::io as async_io;
use wasmtime_wasi::p2::bindings::sync::io::{poll, streams};
use wasmtime_wasi::p2::bindings::sync::sockets::udp_create_socket;
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, random, sockets, sync};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, DynPollable, Pollable, SocketError, SocketResult, StreamError,
    StreamResult, UdpSocket, subscribe,
};
use wasmtime_wasi::sockets::{WasiSockets, WasiSocketsView as _};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView, async_trait};

use crate::wasi::output::{Output, Printer};

mod output;

/// The packages that are offered; `wasi:http` and what comes later are not.
const PACKAGES: [&str; 6] = ["io", "clocks", "random", "cli", "filesystem", "sockets"];
/// Most things a guest may hold at once: streams, pollables, errors.
const RESOURCES_MAX: usize = 4096;
/// Most things it may wait for at once.
const POLLABLES_MAX: usize = 1024;
/// Most random bytes of one call.
const RANDOM_BYTES_MAX: u64 = 1 << 20;
/// What the monotonic clock shows before the first call that carries a time. Not 0: Go takes that for a fault.
const MONOTONIC_START_NANOS: u64 = 1_000_000_000;

/// A guest did in WASI what ends its call; Display says what.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Stop(String);

fn stop(reason: impl Into<String>) -> wasmtime::Error {
    wasmtime::Error::new(Stop(reason.into()))
}

/// Says whether an import is of a package the compatibility mode offers.
pub(crate) fn offers(import: &str) -> bool {
    import
        .strip_prefix("wasi:")
        .and_then(|rest| rest.split_once('/'))
        .is_some_and(|(package, rest)| PACKAGES.contains(&package) && rest.contains("@0.2."))
}

/// Says what an error of a call into the host means, if it is one.
///
/// Besides the errors of WASI these are what the engine says of the arguments: handles that are none, too many lent ones,
/// texts outside the memory. The guest has not answered yet, so none of it is an illegal answer.
pub(crate) fn explain(error: &wasmtime::Error) -> Option<Explained> {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        return Some(Explained::Crash(stop.0.clone()));
    }
    if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        return Some(Explained::Crash(format!("it ended itself with status {}", exit.0)));
    }
    match error.downcast_ref::<wasmtime::component::ResourceTableError>() {
        Some(wasmtime::component::ResourceTableError::Full) => {
            Some(Explained::Limit(format!("holds more than {RESOURCES_MAX} streams and pollables")))
        }
        Some(other) => Some(Explained::Crash(other.to_string())),
        None => of_a_call(error),
    }
}

/// Explains an error that has no type of its own.
fn of_a_call(error: &wasmtime::Error) -> Option<Explained> {
    /// What the engine says when a guest wants more than there is.
    const LIMITS: [&str; 5] = [
        "cannot allocate another handle",
        "too many active lends",
        "store handle limit exceeded",
        "cannot write more zeroes",
        "Buffer too large",
    ];
    // Guest code stood on the stack only while it was calling.
    error.downcast_ref::<wasmtime::WasmBacktrace>()?;
    let text = format!("{:#}", error.root_cause());
    if text.contains("fuel allocated for hostcalls") {
        return None;
    }
    let is_limit = LIMITS.iter().any(|words| text.contains(words));
    let text = format!("in a call into the host: {text}");
    Some(if is_limit { Explained::Limit(text) } else { Explained::Crash(text) })
}

/// See [`explain`].
pub(crate) enum Explained {
    Crash(String),
    Limit(String),
}

/// What one instance finds behind WASI.
pub(crate) struct Wasi {
    ctx: WasiCtx,
    table: ResourceTable,
    time: Arc<Time>,
    wall_ms: u64,
    chance: u64,
    stdout: Arc<Mutex<Printer>>,
    stderr: Arc<Mutex<Printer>>,
}

impl Wasi {
    /// Makes an empty world; what is printed goes line by line to `out` and `err`.
    pub(crate) fn new(line_bytes: usize, out: output::Print, err: output::Print) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        let ctx = WasiCtx::builder().allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false).build();
        let printer = |print| Arc::new(Mutex::new(Printer::new(line_bytes, print)));
        let mut wasi = Self {
            ctx,
            table,
            time: Arc::new(Time::default()),
            wall_ms: 0,
            chance: 0,
            stdout: printer(out),
            stderr: printer(err),
        };
        wasi.begin(None);
        wasi
    }

    /// Sets clocks and chance for the next call, to its time in milliseconds since 1970 and its seed.
    ///
    /// A call that carries none (`configure`, `roster`, `refresh`, …) finds a wall clock at 0, the monotonic clock where
    /// it stood, and the chance of seed 0.
    pub(crate) fn begin(&mut self, input: Option<(u64, u64)>) {
        let (now_ms, seed) = input.unwrap_or_default();
        self.wall_ms = now_ms;
        self.chance = seed;
        if input.is_some() {
            let nanos = now_ms.saturating_mul(1_000_000).max(MONOTONIC_START_NANOS);
            self.time.now.store(nanos, Ordering::Relaxed);
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(1);
        seed::mix(self.chance)
    }

    fn bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        if len > RANDOM_BYTES_MAX {
            return Err(stop(format!(
                "it wants {len} random bytes at once, at most {RANDOM_BYTES_MAX} are given"
            )));
        }
        let len = usize::try_from(len)?;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    fn timer(&mut self, due_nanos: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let timer = self.table.push(Timer { due_nanos, time: self.time.clone() })?;
        subscribe(&mut self.table, timer)
    }

    /// Runs what may wait. If nothing is ready, time moves on to the next timer it waits for.
    fn wait<T>(&mut self, mut work: impl FnMut(&mut ResourceTable) -> Option<T>) -> wasmtime::Result<T> {
        self.time.next_due.store(u64::MAX, Ordering::Relaxed);
        if let Some(done) = work(&mut self.table) {
            return Ok(done);
        }
        let next = self.time.next_due.load(Ordering::Relaxed);
        if next < u64::MAX {
            self.time.now.fetch_max(next, Ordering::Relaxed);
            if let Some(done) = work(&mut self.table) {
                return Ok(done);
            }
        }
        Err(stop("it waits for something that never happens"))
    }
}

impl WasiView for Wasi {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.ctx, table: &mut self.table }
    }
}

/// Lends the world of an instance to the bindings.
struct HasWasi;

impl HasData for HasWasi {
    type Data<'a> = &'a mut Wasi;
}

struct HasTable;

impl HasData for HasTable {
    type Data<'a> = &'a mut ResourceTable;
}

/// Adds all of WASI 0.2 but HTTP to what stores with such a world offer.
pub(crate) fn add_to_linker<T: AsMut<Wasi> + Send + 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    macro_rules! link {
        ($($($module:ident)::+: $data:ty = $lend:expr;)+) => {
            $({
                let lend: for<'a> fn(&'a mut T) -> <$data as HasData>::Data<'a> = $lend;
                $($module)::+::add_to_linker::<T, $data>(linker, lend)?;
            })+
        };
    }
    link! {
        async_io::error: HasTable = |state| &mut state.as_mut().table;
        poll: HasWasi = T::as_mut;
        streams: HasWasi = T::as_mut;
        clocks::wall_clock: HasWasi = T::as_mut;
        clocks::monotonic_clock: HasWasi = T::as_mut;
        random::random: HasWasi = T::as_mut;
        random::insecure: HasWasi = T::as_mut;
        random::insecure_seed: HasWasi = T::as_mut;
        cli::stdout: HasWasi = T::as_mut;
        cli::stderr: HasWasi = T::as_mut;
        cli::stdin: WasiCli = |state| state.as_mut().cli();
        cli::environment: WasiCli = |state| state.as_mut().cli();
        cli::exit: WasiCli = |state| state.as_mut().cli();
        cli::terminal_input: WasiCli = |state| state.as_mut().cli();
        cli::terminal_output: WasiCli = |state| state.as_mut().cli();
        cli::terminal_stdin: WasiCli = |state| state.as_mut().cli();
        cli::terminal_stdout: WasiCli = |state| state.as_mut().cli();
        cli::terminal_stderr: WasiCli = |state| state.as_mut().cli();
        filesystem::preopens: WasiFilesystem = |state| state.as_mut().filesystem();
        sync::filesystem::types: WasiFilesystem = |state| state.as_mut().filesystem();
        udp_create_socket: HasWasi = T::as_mut;
        sync::sockets::udp: WasiSockets = |state| state.as_mut().sockets();
        sync::sockets::tcp: WasiSockets = |state| state.as_mut().sockets();
        sockets::tcp_create_socket: WasiSockets = |state| state.as_mut().sockets();
        sockets::instance_network: WasiSockets = |state| state.as_mut().sockets();
        sockets::ip_name_lookup: WasiSockets = |state| state.as_mut().sockets();
    }
    let options = sockets::network::LinkOptions::default();
    sockets::network::add_to_linker::<T, WasiSockets>(linker, &options, |state| state.as_mut().sockets())
}

/// The monotonic clock of one instance.
struct Time {
    now: AtomicU64,
    /// The earliest timer that was waited for and is not due; `u64::MAX` for none.
    next_due: AtomicU64,
}

impl Default for Time {
    fn default() -> Self {
        Self { now: AtomicU64::new(MONOTONIC_START_NANOS), next_due: AtomicU64::new(u64::MAX) }
    }
}

struct Timer {
    due_nanos: u64,
    time: Arc<Time>,
}

#[async_trait]
impl Pollable for Timer {
    async fn ready(&mut self) {
        std::future::poll_fn(|_| {
            if self.time.now.load(Ordering::Relaxed) >= self.due_nanos {
                return Poll::Ready(());
            }
            self.time.next_due.fetch_min(self.due_nanos, Ordering::Relaxed);
            Poll::Pending
        })
        .await;
    }
}

/// Polls once: nothing a guest may wait for gets ready by waiting.
fn once<T>(work: impl Future<Output = T>) -> Option<T> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// The same for streams, which are never other than ready.
fn at_once<T>(work: impl Future<Output = StreamResult<T>>) -> StreamResult<T> {
    once(work).unwrap_or_else(|| Err(StreamError::Trap(stop("it waits for a stream that is never ready"))))
}

impl clocks::wall_clock::Host for Wasi {
    fn now(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        let nanoseconds = u32::try_from(self.wall_ms % 1000 * 1_000_000)?;
        Ok(clocks::wall_clock::Datetime { seconds: self.wall_ms / 1000, nanoseconds })
    }

    fn resolution(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        Ok(clocks::wall_clock::Datetime { seconds: 0, nanoseconds: 1_000_000 })
    }
}

impl clocks::monotonic_clock::Host for Wasi {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.time.now.load(Ordering::Relaxed))
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(1_000_000)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.timer(when)
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let now = self.time.now.load(Ordering::Relaxed);
        self.timer(now.saturating_add(duration))
    }
}

impl random::random::Host for Wasi {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.bytes(len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.next_u64())
    }
}

impl random::insecure::Host for Wasi {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.bytes(len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.next_u64())
    }
}

impl random::insecure_seed::Host for Wasi {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok((self.next_u64(), self.next_u64()))
    }
}

impl cli::stdout::Host for Wasi {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        let stream: DynOutputStream = Box::new(Output(self.stdout.clone()));
        Ok(self.table.push(stream)?)
    }
}

impl cli::stderr::Host for Wasi {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        let stream: DynOutputStream = Box::new(Output(self.stderr.clone()));
        Ok(self.table.push(stream)?)
    }
}

impl udp_create_socket::Host for Wasi {
    // The one of wasmtime-wasi needs an executor even to say no.
    fn create_udp_socket(
        &mut self,
        _: sockets::network::IpAddressFamily,
    ) -> SocketResult<Resource<UdpSocket>> {
        Err(sockets::network::ErrorCode::AccessDenied.into())
    }
}

/// What the bindings want of whoever implements a function of sockets.
impl sockets::network::Host for Wasi {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<sockets::network::ErrorCode> {
        self.sockets().convert_error_code(error)
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<sockets::network::ErrorCode>> {
        self.sockets().network_error_code(error)
    }
}

impl sockets::network::HostNetwork for Wasi {
    fn drop(&mut self, network: Resource<sockets::network::Network>) -> wasmtime::Result<()> {
        sockets::network::HostNetwork::drop(&mut self.sockets(), network)
    }
}

impl poll::Host for Wasi {
    fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        if pollables.len() > POLLABLES_MAX {
            return Err(stop(format!(
                "it waits for {} things at once, at most {POLLABLES_MAX}",
                pollables.len()
            )));
        }
        let again = || pollables.iter().map(|pollable| Resource::new_borrow(pollable.rep())).collect();
        self.wait(|table| once(async_io::poll::Host::poll(table, again())))?
    }
}

impl poll::HostPollable for Wasi {
    fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        once(async_io::poll::HostPollable::ready(&mut self.table, pollable)).unwrap_or(Ok(false))
    }

    fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        let again = || Resource::new_borrow(pollable.rep());
        self.wait(|table| once(async_io::poll::HostPollable::block(table, again())))?
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        async_io::poll::HostPollable::drop(&mut self.table, pollable)
    }
}

/// Hands every call to the one of `wasmtime-wasi` for executors, polled once.
mod io {

    use super::async_io::streams::{HostInputStream, HostOutputStream};
    use super::{
        DynInputStream, DynOutputStream, DynPollable, Resource, ResourceTable, StreamError, StreamResult,
        Wasi, at_once, once, stop, streams,
    };

    impl streams::Host for Wasi {
        fn convert_stream_error(&mut self, error: StreamError) -> wasmtime::Result<streams::StreamError> {
            streams::Host::convert_stream_error(&mut self.table, error)
        }
    }

    fn dropped(done: Option<wasmtime::Result<()>>) -> wasmtime::Result<()> {
        done.unwrap_or_else(|| Err(stop("it drops a stream that never ends")))
    }

    impl streams::HostInputStream for Wasi {
        fn read(&mut self, stream: Resource<DynInputStream>, len: u64) -> StreamResult<Vec<u8>> {
            HostInputStream::read(&mut self.table, stream, len)
        }

        fn blocking_read(&mut self, stream: Resource<DynInputStream>, len: u64) -> StreamResult<Vec<u8>> {
            at_once(HostInputStream::blocking_read(&mut self.table, stream, len))
        }

        fn skip(&mut self, stream: Resource<DynInputStream>, len: u64) -> StreamResult<u64> {
            HostInputStream::skip(&mut self.table, stream, len)
        }

        fn blocking_skip(&mut self, stream: Resource<DynInputStream>, len: u64) -> StreamResult<u64> {
            at_once(HostInputStream::blocking_skip(&mut self.table, stream, len))
        }

        fn subscribe(&mut self, stream: Resource<DynInputStream>) -> wasmtime::Result<Resource<DynPollable>> {
            HostInputStream::subscribe(&mut self.table, stream)
        }

        fn drop(&mut self, stream: Resource<DynInputStream>) -> wasmtime::Result<()> {
            dropped(once(<ResourceTable as HostInputStream>::drop(&mut self.table, stream)))
        }
    }

    impl streams::HostOutputStream for Wasi {
        fn check_write(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<u64> {
            HostOutputStream::check_write(&mut self.table, stream)
        }

        fn write(&mut self, stream: Resource<DynOutputStream>, bytes: Vec<u8>) -> StreamResult<()> {
            HostOutputStream::write(&mut self.table, stream, bytes)
        }

        fn blocking_write_and_flush(
            &mut self,
            stream: Resource<DynOutputStream>,
            bytes: Vec<u8>,
        ) -> StreamResult<()> {
            at_once(HostOutputStream::blocking_write_and_flush(&mut self.table, stream, bytes))
        }

        fn flush(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<()> {
            HostOutputStream::flush(&mut self.table, stream)
        }

        fn blocking_flush(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<()> {
            at_once(HostOutputStream::blocking_flush(&mut self.table, stream))
        }

        fn subscribe(
            &mut self,
            stream: Resource<DynOutputStream>,
        ) -> wasmtime::Result<Resource<DynPollable>> {
            HostOutputStream::subscribe(&mut self.table, stream)
        }

        fn write_zeroes(&mut self, stream: Resource<DynOutputStream>, len: u64) -> StreamResult<()> {
            HostOutputStream::write_zeroes(&mut self.table, stream, len)
        }

        fn blocking_write_zeroes_and_flush(
            &mut self,
            stream: Resource<DynOutputStream>,
            len: u64,
        ) -> StreamResult<()> {
            at_once(HostOutputStream::blocking_write_zeroes_and_flush(&mut self.table, stream, len))
        }

        fn splice(
            &mut self,
            to: Resource<DynOutputStream>,
            from: Resource<DynInputStream>,
            len: u64,
        ) -> StreamResult<u64> {
            HostOutputStream::splice(&mut self.table, to, from, len)
        }

        fn blocking_splice(
            &mut self,
            to: Resource<DynOutputStream>,
            from: Resource<DynInputStream>,
            len: u64,
        ) -> StreamResult<u64> {
            at_once(HostOutputStream::blocking_splice(&mut self.table, to, from, len))
        }

        fn drop(&mut self, stream: Resource<DynOutputStream>) -> wasmtime::Result<()> {
            dropped(once(<ResourceTable as HostOutputStream>::drop(&mut self.table, stream)))
        }
    }
}
