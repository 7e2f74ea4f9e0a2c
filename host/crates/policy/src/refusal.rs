//! Why a file does not become a live policy: what is wrong, and what to do about it.

use crate::failure::Failure;

/// A refusal. Display says what is wrong and what to do; [`Refusal::code`] is stable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Refusal {
    #[error("cannot read {what}: {error}; check that the file exists and that the host may read it")]
    Unreadable { what: String, error: String },
    #[error(
        "there is no component {name}.wasm beside {name}.json, and no policy of that name in the host; drop the component, too, or name the file after the policy it is for"
    )]
    Alone { name: String },
    #[error(
        "the file is empty; it may still be on its way: write it under another name and rename it when complete"
    )]
    Empty,
    #[error(
        "the component has {bytes} bytes, at most {max} are allowed; strip it (wasm-opt, `strip = true`) or raise policy.artifact_mib_max"
    )]
    TooLarge { bytes: u64, max: usize },
    #[error("{file} has {bytes} bytes, at most {max} are allowed; {}", smaller(file))]
    FileTooLarge { file: String, bytes: u64, max: usize },
    #[error(
        "this is precompiled native code (an ELF file); the host never runs native code from the policies folder: drop the .wasm component it was made from"
    )]
    Precompiled,
    #[error(
        "this is a core WebAssembly module, not a component; turn it into one with `fulcrum policy pack`"
    )]
    CoreModule,
    #[error("this is WebAssembly text; build a component from it with `fulcrum policy pack`")]
    Text,
    #[error(
        "this is not WebAssembly (it starts with {start}); drop a component, a file that starts with \\0asm"
    )]
    NotWasm { start: String },
    #[error("not a valid component: {error}; the file is incomplete or damaged, copy it again")]
    Damaged { error: String },
    #[error("the component speaks fulcrum:policy@{found}, this host speaks {expected}; rebuild it with wit/policy.wit of this host (`fulcrum policy wit`)", expected = crate::contract::VERSION)]
    Version { found: String },
    #[error("the component imports {}; a policy may import nothing but fulcrum:policy/host@{}: build it without WASI, or pack the core module with `fulcrum policy pack`", names.join(", "), crate::contract::VERSION)]
    Imports { names: Vec<String> },
    #[error("the component imports WASI ({}), which this host does not offer: build it without WASI, or pack the core module with `fulcrum policy pack`; if neither can be done, set policy.wasi = \"compat\" (no files, no network, clocks that stand still)", names.join(", "))]
    Wasi { names: Vec<String> },
    #[error(
        "the component imports of WASI what this host does not offer: {error}; build it without WASI, or with a tool chain that imports wasi 0.2 of this host's release or older"
    )]
    WasiLink { error: String },
    #[error("the component is of another world: it exports {}; a policy exports fulcrum:policy/lifecycle@{version} and fulcrum:policy/scoring@{version} or claiming@{version}: build it with wit/policy.wit (`fulcrum policy wit`)", list(exports), version = crate::contract::VERSION)]
    OtherWorld { exports: Vec<String> },
    #[error("the component does not match the contract:\n  {}\nrebuild it with wit/policy.wit of this host (`fulcrum policy wit`)", lines.join("\n  "))]
    Differences { lines: Vec<String> },
    #[error(
        "the component needs more than the pool offers: {error}; make it smaller or use fewer memories and tables"
    )]
    Resources { error: String },
    #[error(
        "compiling took longer than {deadline_ms} ms; make the component smaller or raise policy.compile_deadline_ms"
    )]
    Slow { deadline_ms: u64 },
    #[error(
        "another component is still being compiled; this one was not tried yet, and is tried again by itself or with POST /admin/policies/reload"
    )]
    Busy,
    #[error("the host itself crashed while it proved this file; the log of the host has the panic")]
    Crashed,
    #[error("it cannot be started: {failure}")]
    Start { failure: Failure },
    #[error("`describe` failed: {failure}")]
    Describe { failure: Failure },
    #[error("`describe` answers badly: {error}")]
    Description { error: String },
    #[error("its configuration schema is unusable: {error}")]
    Schema { error: String },
    #[error("{file} is not a JSON object: {error}")]
    ConfigSyntax { file: String, error: String },
    #[error("the configuration does not fit the policy's schema:\n  {}", problems.join("\n  "))]
    Config { problems: Vec<String> },
    #[error("`configure` refuses the configuration: {failure}")]
    Configure { failure: Failure },
    #[error("the self-test failed in case \"{case}\": {failure}")]
    SelfTest { case: String, failure: Failure },
    #[error("the self-test failed in case \"{case}\": {error}")]
    Law { case: String, error: String },
    #[error(
        "the digest is {found}, but {file} says {expected}; copy both files again, the .sha256 file first"
    )]
    Digest { file: String, expected: String, found: String },
    #[error(
        "{file} does not start with a sha256 digest in hex; write it with `sha256sum NAME.wasm > NAME.wasm.sha256`"
    )]
    DigestSyntax { file: String },
    #[error(
        "{file} is not signed, and this host takes only signed files (policy.trusted_keys): sign it with `fulcrum policy sign {file} --key KEY` and put {file}.sig beside it"
    )]
    Unsigned { file: String },
    #[error("{file}.sig does not vouch for {file}: {error}")]
    Signature { file: String, error: String },
    #[error(
        "this version kept failing and is in quarantine ({failure}); drop another version, or remove the file and drop it again"
    )]
    Quarantined { failure: String },
    #[error(
        "an order about this policy was cut short and cannot be finished yet: {error}; what served before goes on, and the \
         order is finished as soon as the policies folder can be written, unless other files are dropped there"
    )]
    Interrupted { error: String },
}

/// Says what to do about a file that is too large.
fn smaller(file: &str) -> &'static str {
    match file {
        _ if file.ends_with(".sig") => "this is no signature: write it with `fulcrum policy sign`",
        _ if file.ends_with(".sha256") => "this is no digest file: write it with `sha256sum`",
        _ => "make the configuration smaller, it has to fit as compact JSON, too",
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

impl Refusal {
    /// Says whether the same file may pass a moment later, with nothing changed: it is waited for, not judged.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy) || self.is_for_want_of_room()
    }

    /// Says whether nothing is known against the file, there was just no room to try it.
    fn is_for_want_of_room(&self) -> bool {
        match self {
            Self::Start { failure }
            | Self::Describe { failure }
            | Self::Configure { failure }
            | Self::SelfTest { failure, .. } => matches!(failure, Failure::NoRoom(_)),
            _ => false,
        }
    }

    /// Returns the stable name of this kind of refusal.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            _ if self.is_for_want_of_room() => "no_room",
            Self::Unreadable { .. } => "unreadable",
            Self::Alone { .. } => "no_component",
            Self::Empty => "empty",
            Self::TooLarge { .. } | Self::FileTooLarge { .. } => "too_large",
            Self::Precompiled => "precompiled",
            Self::CoreModule => "core_module",
            Self::Text => "text",
            Self::NotWasm { .. } => "not_wasm",
            Self::Damaged { .. } => "damaged",
            Self::Version { .. } => "version",
            Self::Imports { .. } | Self::Wasi { .. } | Self::WasiLink { .. } => "imports",
            Self::OtherWorld { .. } => "other_world",
            Self::Differences { .. } => "differences",
            Self::Resources { .. } => "resources",
            Self::Slow { .. } => "slow",
            Self::Busy => "busy",
            Self::Crashed => "proof_crashed",
            Self::Start { .. } => "start",
            Self::Describe { .. } => "describe",
            Self::Description { .. } => "description",
            Self::Schema { .. } => "schema",
            Self::ConfigSyntax { .. } => "config_syntax",
            Self::Config { .. } => "config",
            Self::Configure { .. } => "configure",
            Self::SelfTest { .. } => "self_test",
            Self::Law { .. } => "law",
            Self::Digest { .. } => "digest",
            Self::DigestSyntax { .. } => "digest_syntax",
            Self::Unsigned { .. } => "unsigned",
            Self::Signature { .. } => "signature",
            Self::Quarantined { .. } => "quarantined",
            Self::Interrupted { .. } => "interrupted",
        }
    }
}
