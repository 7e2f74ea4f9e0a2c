//! The one wasmtime engine of the process, its clock ticks, and the only way into a guest.
//!
//! Invariants: a deadline, or the fuel that stands for it, is set before every entry; ticks come at a steady pace while
//! any guest runs, and the ticking thread sleeps while none does; what a guest hands over in a call into the host is
//! bounded before it is looked at, as no tick interrupts host code; a store whose call failed with anything but a
//! policy's own error is not entered again (its owner drops it).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker};
use wasmtime::{
    CallHook, Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, ResourceLimiter, Store,
    Trap,
};

use crate::cache::Cache;
use crate::contract::v1;
use crate::contract::v1::fulcrum::policy::host::Level;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::places::{Place, Places, Share};
use crate::wasi::{self, Explained, Wasi};

/// How often guests are checked against their deadlines: a guest is stopped at most one tick after its deadline.
const TICK: Duration = Duration::from_micros(500);
/// Ticks in a second.
const TICKS_PER_SECOND: u64 = 2000;
/// Ticks without any guest running before the ticking thread goes to sleep.
const IDLE_TICKS: u32 = 200;
/// Core modules in one component: the one of a Python policy has 38.
const CORE_INSTANCES_MAX: u32 = 64;
/// Tables in one component.
const TABLES_MAX: u32 = 20;
/// Memories in one component.
const MEMORIES_MAX: u32 = 4;
/// Tables that the pool has for each instance.
const TABLES_EACH: u32 = 4;
/// Memories that the pool has for each instance.
const MEMORIES_EACH: u32 = 2;

/// The engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// wasmtime refused the configuration.
    #[error("cannot start the WebAssembly engine")]
    Engine(#[source] wasmtime::Error),
    /// The ticking thread could not be started.
    #[error("cannot start the deadline thread")]
    Thread(#[source] std::io::Error),
}

/// What ends a call that does not end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Wall time: its deadline.
    #[default]
    Time,
    /// Instructions: this many units of fuel for each millisecond of its deadline, so that a call ends the same way on
    /// every machine and however busy that is. Guests run at about half the speed then.
    Fuel(u64),
}

/// What a runtime offers beyond the rule.
#[derive(Default)]
pub struct Options {
    /// What bounds calls.
    pub bound: Bound,
    /// Offers WASI to policies that import it (see `wasi`); else they are refused.
    pub wasi: bool,
    /// Where compiled code is kept; `None` compiles every component anew.
    pub cache: Option<Arc<Cache>>,
}

/// See the module. One per process.
pub struct Runtime {
    engine: Engine,
    linker: Linker<GuestState>,
    limits: Limits,
    ticker: Arc<Ticker>,
    pooled: bool,
    options: Options,
    places: Arc<Places>,
    /// Held while a component is compiled: one at a time, so that reloads cannot starve the serving threads.
    pub(crate) compiling: Arc<Mutex<()>>,
}

impl Runtime {
    /// Starts the engine without any option.
    pub fn new(limits: Limits) -> Result<Arc<Self>, Error> {
        Self::with(limits, Options::default())
    }

    /// Starts the engine, with the pooling allocator where the machine has the address space for it.
    pub fn with(limits: Limits, options: Options) -> Result<Arc<Self>, Error> {
        let (engine, pooled) = match Engine::new(&config(&limits, options.bound, true)) {
            Ok(engine) => (engine, true),
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "no address space for pooled guest memory; starting an instance will be slower"
                );
                (Engine::new(&config(&limits, options.bound, false)).map_err(Error::Engine)?, false)
            }
        };
        let mut linker = Linker::new(&engine);
        v1::fulcrum::policy::host::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)
            .map_err(Error::Engine)?;
        if options.wasi {
            wasi::add_to_linker(&mut linker).map_err(Error::Engine)?;
        }
        let ticker = Ticker::start(&engine)?;
        let (places, compiling) = (Places::new(limits.instances), Arc::default());
        Ok(Arc::new(Self { engine, linker, limits, ticker, pooled, options, places, compiling }))
    }

    /// Returns the limits guests run under.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Says whether instances come from the pool.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Says whether policies may import WASI.
    #[must_use]
    pub fn offers_wasi(&self) -> bool {
        self.options.wasi
    }

    /// Returns where compiled code is kept.
    #[must_use]
    pub fn cache(&self) -> Option<&Arc<Cache>> {
        self.options.cache.as_ref()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn linker(&self) -> &Linker<GuestState> {
        &self.linker
    }

    /// Makes the store of one instance.
    pub(crate) fn cell(self: &Arc<Self>, log: Arc<GuestLog>) -> Cell {
        let print = |level| {
            let (log, ticker) = (log.clone(), self.ticker.clone());
            Box::new(move |line: &str| log.write(level, line, ticker.ticks()))
        };
        let wasi = self.options.wasi.then(|| {
            let (out, err) = (print(Level::Info), print(Level::Warn));
            Box::new(Wasi::new(self.limits.log_line_bytes, out, err))
        });
        let state = GuestState {
            wasi,
            memory_bytes: 0,
            memory_bytes_max: self.limits.memory_bytes,
            was_denied: false,
            answer_bytes: 0,
            log,
            ticker: self.ticker.clone(),
        };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| state);
        // What may be read of a guest is one figure of the store, for arguments of its calls and for its answer.
        let argument_bytes = self.limits.argument_bytes;
        store.call_hook(move |mut store, event| {
            match event {
                CallHook::CallingHost => store.set_hostcall_fuel(argument_bytes),
                CallHook::ReturningFromHost => {
                    let answer_bytes = store.data().answer_bytes;
                    store.set_hostcall_fuel(answer_bytes);
                }
                CallHook::CallingWasm | CallHook::ReturningFromWasm => {}
            }
            Ok(())
        });
        Cell { store, runtime: self.clone(), place: None }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.ticker.stop();
    }
}

fn config(limits: &Limits, bound: Bound, pooled: bool) -> Config {
    let mut config = Config::new();
    config
        // Policies are synchronous; with it on, every call would cost three times as much.
        .concurrency_support(false)
        .epoch_interruption(bound == Bound::Time)
        .consume_fuel(bound != Bound::Time)
        .max_wasm_stack(limits.stack_bytes)
        // Registering unwind data gets slow with many loads and unloads; wasm backtraces do not need it.
        .native_unwind_info(false)
        // Same answers on every machine.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        // What no supported tool chain needs.
        .wasm_memory64(false)
        .wasm_multi_memory(true);
    if pooled {
        let count = limits.instances;
        let mut pool = PoolingAllocationConfig::new();
        pool.total_component_instances(count)
            .total_core_instances(count * CORE_INSTANCES_MAX)
            .total_memories(count * MEMORIES_EACH)
            .total_tables(count * TABLES_EACH)
            .max_core_instances_per_component(CORE_INSTANCES_MAX)
            .max_memories_per_component(MEMORIES_MAX)
            .max_tables_per_component(TABLES_MAX)
            .max_memory_size(limits.memory_bytes)
            .table_elements(20_000)
            .linear_memory_keep_resident(256 << 10)
            .table_keep_resident(16 << 10)
            .max_unused_warm_slots(8);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    config
}

/// Returns the fuel of one call.
fn fuel(per_ms: u64, deadline: Duration) -> u64 {
    per_ms.saturating_mul(fulcrum_core::time::millis(deadline).max(1))
}

/// The store of one instance, and the only way into it.
pub(crate) struct Cell {
    store: Store<GuestState>,
    runtime: Arc<Runtime>,
    /// Given back after the store is gone: fields are dropped in this order.
    place: Option<Place>,
}

/// Returns how many places of the pool an instance of a component takes.
pub(crate) fn places_of(component: &Component) -> u32 {
    let (memories, tables) = component
        .resources_required()
        .map_or((MEMORIES_MAX, TABLES_MAX), |it| (it.num_memories, it.num_tables));
    memories.div_ceil(MEMORIES_EACH).max(tables.div_ceil(TABLES_EACH)).max(1)
}

impl Cell {
    /// Runs guest code under a deadline, or the fuel that stands for it.
    pub(crate) fn enter<T>(
        &mut self,
        deadline: Duration,
        answer: Answer,
        call: impl FnOnce(&mut Store<GuestState>) -> wasmtime::Result<T>,
    ) -> Result<T, Failure> {
        self.enter_with(None, deadline, answer, call)
    }

    /// Runs guest code that is told a time (in milliseconds since 1970) and a seed: WASI shows the same.
    pub(crate) fn enter_at<T>(
        &mut self,
        now_ms: u64,
        seed: u64,
        deadline: Duration,
        answer: Answer,
        call: impl FnOnce(&mut Store<GuestState>) -> wasmtime::Result<T>,
    ) -> Result<T, Failure> {
        self.enter_with(Some((now_ms, seed)), deadline, answer, call)
    }

    fn enter_with<T>(
        &mut self,
        input: Option<(u64, u64)>,
        deadline: Duration,
        answer: Answer,
        call: impl FnOnce(&mut Store<GuestState>) -> wasmtime::Result<T>,
    ) -> Result<T, Failure> {
        let answer_bytes = match answer {
            Answer::Short => self.runtime.limits.argument_bytes,
            Answer::Lists => self.runtime.limits.answer_bytes,
        };
        let state = self.store.data_mut();
        state.was_denied = false;
        state.answer_bytes = answer_bytes;
        if let Some(wasi) = &mut state.wasi {
            wasi.begin(input);
        }
        self.store.set_hostcall_fuel(answer_bytes);
        let _running = self.runtime.ticker.running();
        match self.runtime.options.bound {
            Bound::Time => {
                let ticks = deadline.as_nanos().div_ceil(TICK.as_nanos());
                self.store.set_epoch_deadline(u64::try_from(ticks).unwrap_or(u64::MAX / 2).saturating_add(1));
            }
            Bound::Fuel(per_ms) => {
                self.store.set_fuel(fuel(per_ms, deadline)).expect("the engine was made to count fuel");
            }
        }
        call(&mut self.store).map_err(|error| self.classify(&error, deadline))
    }

    /// Instantiates, in as many places of a share as that takes: start code is guest code too.
    pub(crate) fn instantiate(
        &mut self,
        pre: &InstancePre<GuestState>,
        (share, places): (Share, u32),
        deadline: Duration,
    ) -> Result<wasmtime::component::Instance, Failure> {
        self.place = Some(self.runtime.places.take(share, places).map_err(Failure::NoRoom)?);
        self.enter(deadline, Answer::Short, |store| pre.instantiate(store))
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.store.data().memory_bytes
    }

    /// Returns the fuel that the last call left; `None` where calls are bounded by time.
    pub(crate) fn fuel_left(&self) -> Option<u64> {
        self.store.get_fuel().ok()
    }

    /// Says whether more than three quarters of the memory limit are used.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.memory_bytes() > self.runtime.limits.memory_bytes / 4 * 3
    }

    pub(crate) fn store(&mut self) -> &mut Store<GuestState> {
        &mut self.store
    }

    fn classify(&self, error: &wasmtime::Error, deadline: Duration) -> Failure {
        let limits = &self.runtime.limits;
        match error.downcast_ref::<Trap>() {
            Some(Trap::Interrupt) => Failure::Timeout { deadline_ms: fulcrum_core::time::millis(deadline) },
            Some(Trap::OutOfFuel) => {
                let Bound::Fuel(per_ms) = self.runtime.options.bound else {
                    return Failure::Trap(Trap::OutOfFuel.to_string());
                };
                let fuel = fuel(per_ms, deadline);
                Failure::Limit(format!("used more than {fuel} instructions of fuel"))
            }
            Some(Trap::StackOverflow) => {
                Failure::Limit(format!("the call stack of {} KiB is used up", limits.stack_bytes >> 10))
            }
            _ if self.store.data().was_denied => {
                Failure::Limit(format!("wanted more memory than {} MiB", limits.memory_bytes >> 20))
            }
            Some(trap) => {
                let text = trap.to_string();
                let text = text.trim_start_matches("wasm trap: ");
                Failure::Trap(match guest_function(error) {
                    Some(function) => format!("{text} in {function}"),
                    None => text.to_owned(),
                })
            }
            None => {
                match wasi::explain(error) {
                    Some(Explained::Crash(text)) => return Failure::Trap(text),
                    Some(Explained::Limit(text)) => return Failure::Limit(text),
                    None => {}
                }
                let text = format!("{:#}", error.root_cause());
                if text.contains("fuel allocated for hostcalls") {
                    // Guest code stood on the stack only while it was calling.
                    let is_calling = error.downcast_ref::<wasmtime::WasmBacktrace>().is_some();
                    Failure::Limit(if is_calling {
                        format!("a call into the host carried more than {}", bytes(limits.argument_bytes))
                    } else {
                        format!("the answer is larger than {}", bytes(self.store.data().answer_bytes))
                    })
                } else if text.contains("maximum concurrent limit") {
                    Failure::NoRoom(text)
                } else if text.contains("pooling allocator") {
                    Failure::Limit(format!("no instance of it fits the pool: {text}"))
                } else {
                    Failure::Illegal(text)
                }
            }
        }
    }
}

/// How much a guest may answer, see [`Limits`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// A row, an error, or nothing.
    Short,
    /// As much as the longest lists take.
    Lists,
}

/// Writes a limit for people.
fn bytes(limit: usize) -> String {
    match limit {
        ..0x10_0000 => format!("{} KiB", limit >> 10),
        _ => format!("{} MiB", limit >> 20),
    }
}

/// Names the innermost guest function of a crash.
fn guest_function(error: &wasmtime::Error) -> Option<String> {
    let backtrace = error.downcast_ref::<wasmtime::WasmBacktrace>()?;
    backtrace.frames().iter().find_map(|frame| frame.func_name().map(str::to_owned))
}

/// What a store keeps beside the guest: its memory budget and its log.
pub(crate) struct GuestState {
    /// Only where the runtime offers WASI.
    wasi: Option<Box<Wasi>>,
    memory_bytes: usize,
    memory_bytes_max: usize,
    was_denied: bool,
    /// What the answer of the call under way may have.
    answer_bytes: usize,
    log: Arc<GuestLog>,
    ticker: Arc<Ticker>,
}

impl GuestState {
    fn grow(&mut self, bytes: usize) -> bool {
        let wanted = self.memory_bytes.saturating_add(bytes);
        if wanted > self.memory_bytes_max {
            self.was_denied = true;
            return false;
        }
        self.memory_bytes = wanted;
        true
    }
}

impl AsMut<Wasi> for GuestState {
    fn as_mut(&mut self) -> &mut Wasi {
        self.wasi.as_mut().expect("only a runtime that gives every store one links WASI")
    }
}

impl ResourceLimiter for GuestState {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current)))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current).saturating_mul(size_of::<usize>())))
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }
}

impl v1::fulcrum::policy::host::Host for GuestState {
    fn log(&mut self, level: Level, message: String) {
        self.log.write(level, &message, self.ticker.ticks());
    }
}

/// The log of one policy version: bounded, attributed, and counted where it drops.
pub(crate) struct GuestLog {
    name: String,
    digest: String,
    line_bytes: usize,
    lines_per_second: u32,
    window: AtomicU64,
    lines: AtomicU32,
    dropped: AtomicU64,
}

impl GuestLog {
    pub(crate) fn new(name: &str, digest: &str, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            digest: digest.to_owned(),
            line_bytes: limits.log_line_bytes,
            lines_per_second: limits.log_lines_per_second,
            window: AtomicU64::new(u64::MAX),
            lines: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
        })
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn write(&self, level: Level, message: &str, ticks: u64) {
        // Time here is ticks, which come only while any guest runs.
        let window = ticks / TICKS_PER_SECOND;
        if self.window.swap(window, Ordering::Relaxed) != window {
            self.lines.store(0, Ordering::Relaxed);
        }
        if self.lines.fetch_add(1, Ordering::Relaxed) >= self.lines_per_second {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let cut = (0..=self.line_bytes.min(message.len())).rev().find(|&at| message.is_char_boundary(at));
        // A guest may write control characters; a log line must stay one line.
        let text = message[..cut.unwrap_or(0)].escape_debug().to_string();
        let (name, digest) = (&self.name, &self.digest);
        match level {
            Level::Error => tracing::error!(policy.name = name, policy.digest = digest, text, "policy says"),
            Level::Warn => tracing::warn!(policy.name = name, policy.digest = digest, text, "policy says"),
            Level::Info => tracing::info!(policy.name = name, policy.digest = digest, text, "policy says"),
            Level::Debug => tracing::debug!(policy.name = name, policy.digest = digest, text, "policy says"),
        }
    }
}

/// Moves the engine's epoch on while guests run.
struct Ticker {
    running: AtomicUsize,
    asleep: AtomicBool,
    stopped: AtomicBool,
    ticks: AtomicU64,
    thread: Mutex<Option<std::thread::Thread>>,
}

impl Ticker {
    fn start(engine: &Engine) -> Result<Arc<Self>, Error> {
        let ticker = Arc::new(Self {
            running: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
            thread: Mutex::new(None),
        });
        let (engine, run) = (engine.clone(), ticker.clone());
        let thread = std::thread::Builder::new()
            .name("policy-deadlines".to_owned())
            .spawn(move || run.run(&engine))
            .map_err(Error::Thread)?;
        *ticker.thread.lock() = Some(thread.thread().clone());
        Ok(ticker)
    }

    fn run(&self, engine: &Engine) {
        let mut idle = 0;
        let mut last = Instant::now();
        while !self.stopped.load(Ordering::Acquire) {
            // From tick to tick, else every one would be late by what those before it were late. Ticks that were missed
            // are not made up for: they would stop a guest before its deadline.
            std::thread::sleep((last + TICK).saturating_duration_since(Instant::now()));
            let now = Instant::now();
            last = if now < last + 2 * TICK { last + TICK } else { now };
            engine.increment_epoch();
            self.ticks.fetch_add(1, Ordering::Relaxed);
            idle = if self.running.load(Ordering::SeqCst) == 0 { idle + 1 } else { 0 };
            if idle < IDLE_TICKS {
                continue;
            }
            idle = 0;
            self.asleep.store(true, Ordering::SeqCst);
            // Whoever enters now either is seen here or sees `asleep` and wakes this thread.
            while self.running.load(Ordering::SeqCst) == 0
                && self.asleep.load(Ordering::SeqCst)
                && !self.stopped.load(Ordering::Acquire)
            {
                std::thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
    }

    fn running(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
        Running(self)
    }

    #[cold]
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }
}

/// A guest runs as long as this lives.
struct Running<'a>(&'a Ticker);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}
