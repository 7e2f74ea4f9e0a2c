//! A component that is a policy: sniffed, compiled within limits, checked against the contract, described.
//!
//! Nothing here ever hands bytes of a component to `deserialize`: a dropped file cannot become native code. Code that
//! was compiled from the very same component before comes from the [`cache`](crate::cache), which keeps that promise too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use wasmtime::component::{Component, InstancePre};
use wasmtime::{Engine, Precompiled};

use crate::claim::ClaimingPolicy;
use crate::contract::shape::{self, Mismatch, Roles};
use crate::contract::v1::exports::fulcrum::policy::{claiming, lifecycle, scoring};
use crate::failure::Failure;
use crate::guest::{self, WasmClaiming, WasmScoring};
use crate::places::Share;
use crate::refusal::Refusal;
use crate::runtime::{self, Answer, GuestLog, GuestState, Runtime};
use crate::schema::Schema;
use crate::seat::{Identity, ScoringFactory, ScoringPolicy};

/// Components of at most this size compile at once, whatever else is being compiled: that takes them a moment. Every
/// policy that is part of the host is smaller.
pub const SMALL_BYTES: usize = 256 << 10;
/// Longest wait for another compilation. Short, because whoever waits keeps the reload task from everything else.
const GATE_WAIT_MAX: Duration = Duration::from_secs(10);

/// What a policy says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its own name; the host knows it by its file name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// JSON Schema of its configuration, empty for any object.
    pub config_schema: String,
}

/// See the module. Compiled once, shared by all instances.
pub struct Artifact {
    runtime: Arc<Runtime>,
    digest: String,
    size_bytes: usize,
    pre: InstancePre<GuestState>,
    /// Places of the pool that an instance takes.
    places: u32,
    lifecycle: lifecycle::GuestIndices,
    scoring: Option<scoring::GuestIndices>,
    claiming: Option<claiming::GuestIndices>,
    description: Description,
    schema: Schema,
}

impl Artifact {
    /// Loads a component. Takes milliseconds to seconds: never on a serving thread.
    pub fn load(runtime: &Arc<Runtime>, bytes: &[u8]) -> Result<Arc<Self>, Refusal> {
        sniff(bytes, runtime.limits().artifact_bytes)?;
        let digest = digest(bytes);
        let component = compile(runtime, bytes, &digest)?;
        let ty = component.component_type();
        let roles =
            shape::check(runtime.engine(), &ty, runtime.offers_wasi()).map_err(
                |mismatch| match mismatch {
                    Mismatch::Version(found) => Refusal::Version { found },
                    Mismatch::Imports(names) => Refusal::Imports { names },
                    Mismatch::Wasi(names) => Refusal::Wasi { names },
                    Mismatch::OtherWorld(exports) => Refusal::OtherWorld { exports },
                    Mismatch::Differences(lines) => Refusal::Differences { lines },
                },
            )?;
        let resources = |error: wasmtime::Error| Refusal::Resources { error: format!("{error:#}") };
        component.initialize_copy_on_write_image().map_err(resources)?;
        let pre = runtime.linker().instantiate_pre(&component).map_err(|error| {
            // Nothing else can be missing: the shape of the contract's own import was compared.
            if ty.imports(runtime.engine()).any(|(name, _)| crate::wasi::offers(name)) {
                Refusal::WasiLink { error: format!("{error:#}") }
            } else {
                resources(error)
            }
        })?;
        let lifecycle = lifecycle::GuestIndices::new(&pre).map_err(resources)?;
        let scoring = roles.scoring.then(|| scoring::GuestIndices::new(&pre)).transpose();
        let claiming = roles.claiming.then(|| claiming::GuestIndices::new(&pre)).transpose();
        let mut artifact = Self {
            runtime: runtime.clone(),
            digest,
            size_bytes: bytes.len(),
            places: runtime::places_of(&component),
            lifecycle,
            scoring: scoring.map_err(resources)?,
            claiming: claiming.map_err(resources)?,
            pre,
            description: Description {
                name: String::new(),
                version: String::new(),
                summary: String::new(),
                config_schema: String::new(),
            },
            schema: Schema::any(),
        };
        artifact.description = artifact.ask_description()?;
        artifact.schema = Schema::parse(&artifact.description.config_schema)?;
        Ok(Arc::new(artifact))
    }

    /// Returns the lower-case hex sha256 of the component.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the size of the component in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns what the policy says about itself.
    #[must_use]
    pub fn describe(&self) -> &Description {
        &self.description
    }

    /// Returns the questions it answers.
    #[must_use]
    pub fn roles(&self) -> Roles {
        Roles { scoring: self.scoring.is_some(), claiming: self.claiming.is_some() }
    }

    /// Gives it a name and a configuration, checked against its schema and by its own `configure`.
    pub fn configured(self: &Arc<Self>, name: &str, config: Value) -> Result<Loaded, Refusal> {
        self.configured_in(Share::Proofs, name, config)
    }

    /// The same, with an instance of another share of the pool.
    pub(crate) fn configured_in(
        self: &Arc<Self>,
        share: Share,
        name: &str,
        config: Value,
    ) -> Result<Loaded, Refusal> {
        self.schema.check(&config)?;
        let text = config.to_string();
        let identity =
            Arc::new(Identity { name: name.to_owned(), digest: self.digest.clone(), config: text });
        let log = GuestLog::new(name, &self.digest, self.runtime.limits());
        let loaded = Loaded { artifact: self.clone(), identity, config, log };
        let start = |failure| Refusal::Start { failure };
        let mut body = loaded.instantiate(share, self.runtime.limits().load_deadline).map_err(start)?;
        loaded
            .configure(&mut body, self.runtime.limits().load_deadline)
            .map_err(|failure| Refusal::Configure { failure })?;
        Ok(loaded)
    }

    fn ask_description(&self) -> Result<Description, Refusal> {
        let limits = self.runtime.limits();
        let mut cell = self.runtime.cell(GuestLog::new("?", &self.digest, limits));
        let start = |failure| Refusal::Start { failure };
        let places = (Share::Proofs, self.places);
        let instance = cell.instantiate(&self.pre, places, limits.load_deadline).map_err(start)?;
        let found = cell
            .enter(limits.load_deadline, Answer::Lists, |store| {
                self.lifecycle.load(&mut *store, &instance)?.call_describe(store)
            })
            .map_err(|failure| Refusal::Describe { failure })?;
        let bad = |error: String| Err(Refusal::Description { error });
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if found.name.is_empty() || found.name.len() > 64 || !found.name.chars().all(is_name) {
            return bad(format!("the name must be 1 to 64 of a-z, 0-9 and -, it is {:.64?}", found.name));
        }
        let texts = [
            ("version", found.version.len(), 64),
            ("summary", found.summary.len(), 1024),
            ("config-schema", found.config_schema.len(), 65_536),
        ];
        if let Some((field, len, max)) = texts.into_iter().find(|(_, len, max)| len > max) {
            return bad(format!("the field {field} has {len} bytes, at most {max} are allowed"));
        }
        for (field, text) in [("version", &found.version), ("summary", &found.summary)] {
            if text.contains(char::is_control) {
                return bad(format!("the field {field} must be one line without control characters"));
            }
        }
        let lifecycle::Description { name, version, summary, config_schema } = found;
        Ok(Description { name, version, summary, config_schema })
    }
}

/// A policy version: an artifact with its name and effective configuration. Makes instances.
pub struct Loaded {
    artifact: Arc<Artifact>,
    identity: Arc<Identity>,
    config: Value,
    log: Arc<GuestLog>,
}

impl Loaded {
    /// Returns the artifact.
    #[must_use]
    pub fn artifact(&self) -> &Arc<Artifact> {
        &self.artifact
    }

    /// Returns the effective configuration.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Returns how many log lines of this version were dropped.
    #[must_use]
    pub fn log_lines_dropped(&self) -> u64 {
        self.log.dropped()
    }

    /// Makes an instance for the scoring role with other deadlines than in service, for loading and proving.
    pub(crate) fn make_scoring(&self, deadline: Duration) -> Result<WasmScoring, Failure> {
        self.make_scoring_in(Share::Proofs, deadline)
    }

    /// Makes an instance for the scoring role, of some share of the pool.
    pub(crate) fn make_scoring_in(&self, share: Share, deadline: Duration) -> Result<WasmScoring, Failure> {
        let Some(indices) = &self.artifact.scoring else {
            return Err(Failure::Illegal("it does not offer the scoring role".to_owned()));
        };
        let mut body = self.instantiate(share, deadline)?;
        self.configure(&mut body, deadline)?;
        let exports = indices
            .load(body.cell.store(), &body.instance)
            .map_err(|error| Failure::Illegal(format!("{error:#}")))?;
        Ok(WasmScoring::new(body.cell, exports, deadline))
    }

    /// Makes an instance for the claiming role.
    pub fn make_claiming(&self) -> Result<Box<dyn ClaimingPolicy>, Failure> {
        let deadline = self.artifact.runtime.limits().claiming_deadline;
        Ok(Box::new(self.make_claiming_in(Share::Whole, deadline)?))
    }

    /// Makes an instance for the claiming role with another deadline than in service, for loading and proving.
    pub(crate) fn make_claiming_within(&self, deadline: Duration) -> Result<WasmClaiming, Failure> {
        self.make_claiming_in(Share::Proofs, deadline)
    }

    /// Makes an instance for the claiming role, of some share of the pool.
    pub(crate) fn make_claiming_in(&self, share: Share, deadline: Duration) -> Result<WasmClaiming, Failure> {
        let Some(indices) = &self.artifact.claiming else {
            return Err(Failure::Illegal("it does not offer the claiming role".to_owned()));
        };
        let mut body = self.instantiate(share, deadline)?;
        self.configure(&mut body, deadline)?;
        let exports = indices
            .load(body.cell.store(), &body.instance)
            .map_err(|error| Failure::Illegal(format!("{error:#}")))?;
        Ok(WasmClaiming::new(body.cell, exports, deadline))
    }

    /// Returns the runtime its instances run in.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.artifact.runtime
    }

    fn instantiate(&self, share: Share, deadline: Duration) -> Result<Body, Failure> {
        let mut cell = self.artifact.runtime.cell(self.log.clone());
        let instance = cell.instantiate(&self.artifact.pre, (share, self.artifact.places), deadline)?;
        Ok(Body { cell, instance })
    }

    fn configure(&self, body: &mut Body, deadline: Duration) -> Result<(), Failure> {
        let result = body.cell.enter(deadline, Answer::Short, |store| {
            let exports = self.artifact.lifecycle.load(&mut *store, &body.instance)?;
            exports.call_configure(store, &self.identity.config)
        })?;
        result.map_err(guest::declared)
    }
}

impl ScoringFactory for Loaded {
    fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    fn make(&self) -> Result<Box<dyn ScoringPolicy>, Failure> {
        Ok(Box::new(self.make_scoring_in(Share::Whole, self.artifact.runtime.limits().scoring_deadline)?))
    }
}

struct Body {
    cell: crate::runtime::Cell,
    instance: wasmtime::component::Instance,
}

/// Returns the lower-case hex sha256 of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Tells a component from everything people drop by mistake, before any parser sees it.
fn sniff(bytes: &[u8], size_max: usize) -> Result<(), Refusal> {
    const CORE: [u8; 8] = *b"\0asm\x01\0\0\0";
    const COMPONENT: [u8; 8] = *b"\0asm\x0d\0\x01\0";
    if bytes.is_empty() {
        return Err(Refusal::Empty);
    }
    if bytes.len() > size_max {
        return Err(Refusal::TooLarge { bytes: bytes.len() as u64, max: size_max });
    }
    if bytes.starts_with(b"\x7fELF") || Engine::detect_precompiled(bytes).is_some_and(is_native) {
        return Err(Refusal::Precompiled);
    }
    if bytes.starts_with(&CORE) {
        return Err(Refusal::CoreModule);
    }
    if bytes.starts_with(&COMPONENT) {
        return Ok(());
    }
    if bytes.starts_with(b"\0asm") {
        return Err(Refusal::Damaged { error: "the header is cut off or of an unknown version".to_owned() });
    }
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with(";;");
    if text.lines().find(is_code).is_some_and(|line| {
        line.trim_start().starts_with("(component") || line.trim_start().starts_with("(module")
    }) {
        return Err(Refusal::Text);
    }
    Err(Refusal::NotWasm { start: format!("{:?}", text.chars().take(8).collect::<String>()) })
}

fn is_native(kind: Precompiled) -> bool {
    matches!(kind, Precompiled::Module | Precompiled::Component)
}

/// How a compilation gets on.
enum Step {
    /// It begins: nothing holds it up any more.
    Begun,
    /// Another one is still at work.
    Busy,
    Done(wasmtime::Result<Component>),
}

/// Compiles on a thread of its own and gives up waiting when the deadline is over. Code in the cache need not be
/// compiled.
///
/// Large components are compiled one at a time. One that was given up goes on to its end and keeps others out until then:
/// their deadline begins when they do, and what cannot begin soon enough is refused as [`Refusal::Busy`], not as slow.
fn compile(runtime: &Arc<Runtime>, bytes: &[u8], digest: &str) -> Result<Component, Refusal> {
    let deadline = runtime.limits().compile_deadline;
    let wait = deadline.min(GATE_WAIT_MAX);
    // Room for all it sends: an abandoned compilation must not wait for a reader.
    let (sender, steps) = mpsc::sync_channel(2);
    let (engine, gate, owned) = (runtime.engine().clone(), runtime.compiling.clone(), bytes.to_vec());
    let (cache, digest) = (runtime.cache().cloned(), digest.to_owned());
    let is_awaited = Arc::new(AtomicBool::new(true));
    let still_awaited = is_awaited.clone();
    let work = move || {
        if let Some(component) = cache.as_ref().and_then(|cache| cache.load(&engine, &digest)) {
            drop(sender.send(Step::Done(Ok(component))));
            return;
        }
        let is_large = owned.len() > SMALL_BYTES;
        let one_at_a_time = is_large.then(|| gate.try_lock_for(wait));
        if matches!(one_at_a_time, Some(None)) {
            drop(sender.send(Step::Busy));
            return;
        }
        if !still_awaited.load(Ordering::Acquire) {
            return;
        }
        drop(sender.send(Step::Begun));
        let component = compile_apart(&engine, &owned);
        // What took too long was refused, and must not be quick the next time.
        if let (Some(cache), Ok(component), true) = (cache, &component, still_awaited.load(Ordering::Acquire))
        {
            cache.store(&engine, &digest, component);
        }
        drop(sender.send(Step::Done(component)));
    };
    std::thread::Builder::new()
        .name("policy-compile".to_owned())
        .spawn(work)
        .map_err(|error| Refusal::Resources { error: error.to_string() })?;
    // Before the wait a thread is started and the cache is read: of no component's making, so not within its deadline.
    let mut step = steps.recv_timeout(GATE_WAIT_MAX.saturating_add(wait));
    let has_begun = matches!(step, Ok(Step::Begun));
    if has_begun {
        step = steps.recv_timeout(deadline);
    }
    match step {
        Ok(Step::Done(Ok(component))) => Ok(component),
        Ok(Step::Done(Err(error))) => Err(refusal_of(&error)),
        Ok(Step::Busy) => Err(Refusal::Busy),
        Ok(Step::Begun) | Err(mpsc::RecvTimeoutError::Timeout) => {
            is_awaited.store(false, Ordering::Release);
            if !has_begun {
                return Err(Refusal::Busy);
            }
            Err(Refusal::Slow { deadline_ms: fulcrum_core::time::millis(deadline) })
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(Refusal::Damaged { error: "the compiler gave up on it".to_owned() })
        }
    }
}

/// Compiles with threads of its own: in the pool of the process, whatever is being compiled already would come first.
fn compile_apart(engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Component> {
    let pool = rayon::ThreadPoolBuilder::new().thread_name(|at| format!("policy-compile-{at}")).build();
    let compile = || Component::from_binary(engine, bytes);
    // Without threads to be had it goes the slower way.
    pool.map_or_else(|_| compile(), |pool| pool.install(compile))
}

/// Tells what is unsound from what is sound but has no place in the pool, which the compiler refuses, too.
fn refusal_of(error: &wasmtime::Error) -> Refusal {
    if !is_of_the_pool(error) {
        return Refusal::Damaged { error: format!("{:#}", error.root_cause()) };
    }
    let mut error = format!("{error:#}");
    if error.contains("minimum byte size") {
        error.push_str(" (policy.memory_mib sets it)");
    }
    Refusal::Resources { error }
}

/// Says whether the engine refused a component because an instance of it would not fit the pool.
pub(crate) fn is_of_the_pool(error: &wasmtime::Error) -> bool {
    // The pool's own words; it has no type for them.
    const WORDS: [&str; 5] = [
        "pooling allocator",
        "exceeds the limit of",
        "exceeds the configured maximum",
        "exceeds the per-instance limit",
        "exceeds the total tables limit",
    ];
    error.chain().any(|cause| {
        let text = cause.to_string();
        WORDS.iter().any(|words| text.contains(words))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    /// A component of more than [`SMALL_BYTES`]: a custom section, which costs nothing to compile.
    fn large() -> Vec<u8> {
        let text = format!("(component (@custom \"x\" \"{}\"))", "x".repeat(SMALL_BYTES));
        wat::parse_str(text).expect("it is a component")
    }

    fn loaded(runtime: &Arc<Runtime>, bytes: &[u8]) -> &'static str {
        // Neither is a policy: compiled is what was refused for its exports.
        Artifact::load(runtime, bytes).err().expect("it exports nothing").code()
    }

    #[test]
    fn only_a_large_component_waits_for_another_one_and_that_is_not_called_slow() {
        let small = wat::parse_str("(component)").expect("it is a component");
        let limits = Limits { compile_deadline: Duration::from_millis(1), ..Limits::default() };
        let hasty = Runtime::new(limits).expect("the engine starts");
        let patient = Runtime::new(Limits::default()).expect("the engine starts");
        let (at_work, also) = (hasty.compiling.lock(), patient.compiling.lock());
        assert_eq!(loaded(&hasty, &large()), "busy");
        assert_eq!(loaded(&patient, &small), "other_world");
        // It waits, and goes on as soon as the other one is done.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| loaded(&patient, &large()));
            drop(also);
            assert_eq!(waiting.join().expect("it ends"), "other_world");
        });
        drop(at_work);
    }

    #[test]
    fn what_was_given_up_as_slow_keeps_only_large_ones_waiting() {
        // A second of work or so.
        let body = "(i32.add (i32.mul (local.get 0) (i32.const 77777777)) (i32.const 77777777)) ".repeat(2);
        let function = format!("(func (param i32) (result i32) {body} i32.xor)\n");
        let text = format!("(component (core module {}))", function.repeat(20_000));
        let slow = wat::parse_str(text).expect("it is a component");
        assert!(slow.len() > SMALL_BYTES);
        let limits = Limits { compile_deadline: Duration::from_millis(1), ..Limits::default() };
        let hasty = Runtime::new(limits).expect("the engine starts");
        assert_eq!(loaded(&hasty, &slow), "slow");
        assert_eq!(loaded(&hasty, &large()), "busy");
    }

    #[test]
    fn what_has_no_place_in_the_pool_is_not_called_damaged() {
        let runtime = Runtime::new(Limits { memory_bytes: 1 << 20, ..Limits::default() }).expect("starts");
        if !runtime.is_pooled() {
            return;
        }
        let check = |module: &str, words: &[&str]| {
            let text = format!("(component (core module $m {module}) (core instance (instantiate $m)))");
            let bytes = wat::parse_str(text).expect("it is a component");
            let refusal = Artifact::load(&runtime, &bytes).err().expect("it does not fit");
            assert_eq!(refusal.code(), "resources", "{module}: {refusal}");
            assert!(words.iter().all(|word| refusal.to_string().contains(word)), "{refusal}");
        };
        check("(memory 17)", &["1114112", "policy.memory_mib"]);
        check("(memory 1) (memory 1) (memory 1) (memory 1) (memory 1)", &[]);
        check("(table 20001 funcref)", &["20001"]);
    }

    #[test]
    fn an_instance_takes_places_by_what_it_needs_of_the_pool() {
        let runtime = Runtime::new(Limits::default()).expect("the engine starts");
        let check = |modules: &[&str], expected: u32| {
            let mut text = String::from("(component ");
            for (at, module) in modules.iter().enumerate() {
                text += &format!("(core module $m{at} {module}) (core instance (instantiate $m{at}))");
            }
            let bytes = wat::parse_str(text + ")").expect("it is a component");
            let component = Component::from_binary(runtime.engine(), &bytes).expect("it fits the pool");
            assert_eq!(runtime::places_of(&component), expected, "{modules:?}");
        };
        check(&[""], 1);
        check(&["(memory 1)", "(memory 1)"], 1);
        check(&["(memory 1)", "(memory 1)", "(memory 1)"], 2);
        check(&["(memory 1) (table 1 funcref)"; 2], 1);
        check(&["(table 1 funcref)"; 4], 1);
        check(&["(table 1 funcref)"; 5], 2);
        check(&["(table 1 funcref)"; 20], 5);
    }
}
