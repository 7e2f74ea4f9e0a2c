//! Makes a policy component out of a core wasm module, so that no author needs another tool for it.
//!
//! [`component`] takes what a compiler wrote (or WebAssembly text), adds the contract's type information if the
//! module does not carry it, stands in for WASI preview 1 if the module imports it, checks imports and exports
//! against its world with errors that say what to do, and writes a validated component.
//!
//! Invariants: the result imports nothing but what its world imports; the same input gives the same bytes.

use std::borrow::Cow;
use std::error::Error as StdError;

use wasmparser::{Encoding, Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::{Resolve, WorldId, WorldItem};

/// The contract: the text of `wit/policy.wit`.
pub const WIT: &str = include_str!("../../../../wit/policy.wit");
/// Names of the contract's worlds.
pub const WORLDS: [&str; 3] = ["scoring-policy", "claiming-policy", "policy"];

/// Module name under which WASI preview 1 is imported.
const PREVIEW1: &str = "wasi_snapshot_preview1";
/// Stands in for it without any import of its own.
const PREVIEW1_STAND_IN: &str = include_str!("preview1.wat");
const TEXT_STARTS: [&[u8]; 2] = [b"(", b";;"];

/// How to make the component.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// One of [`WORLDS`], for a module that carries no type information of its own; ignored for others.
    pub world: Option<&'a str>,
}

/// Why no component could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to pack.
    #[error("the file is a component already; use it as it is")]
    AlreadyComponent,
    /// The input is neither wasm nor its text form.
    #[error("the file is neither a wasm module nor WebAssembly text; give the .wasm that the compiler wrote")]
    NotWasm,
    /// The text form does not parse.
    #[error("the WebAssembly text is not valid")]
    Text(#[source] wat::Error),
    /// The module does not parse.
    #[error("the wasm module is damaged or cut off; build it again")]
    Module(#[source] wasmparser::BinaryReaderError),
    /// Nothing says which world the module is for.
    #[error(
        "the module carries no type information and no world was given; name one of: {}", WORLDS.join(", ")
    )]
    NoWorld,
    /// The world is not one of the contract's.
    #[error("there is no world `{world}` in the contract; name one of: {}", WORLDS.join(", "))]
    UnknownWorld {
        /// The name that was given.
        world: String,
    },
    /// The type information in the module cannot be read.
    #[error(
        "the type information in the module cannot be read; generate its bindings again from wit/policy.wit"
    )]
    Metadata(#[source] Box<dyn StdError + Send + Sync>),
    /// The module needs something that nobody offers.
    #[error("the module imports `{name}` from `{module}`, which no host offers; {}", advice(module))]
    ForeignImport {
        /// Module name of the import.
        module: String,
        /// Field name of the import.
        name: String,
    },
    /// The module lacks something that its world asks for.
    #[error("the module does not export `{name}`, which its world asks for; implement and export it")]
    MissingExport {
        /// Name of the core export.
        name: String,
    },
    /// The encoder refused the module, for example because a function has another type than the contract's.
    #[error("the module does not fit its world; generate its bindings again from wit/policy.wit")]
    Encode(#[source] Box<dyn StdError + Send + Sync>),
}

/// Makes a component out of a core module, given as wasm or as text.
///
/// Errors with an [`Error`] that says what is wrong with the module and what to do about it.
pub fn component(core: &[u8], options: Options<'_>) -> Result<Vec<u8>, Error> {
    let mut module = binary(core)?.into_owned();
    let facts = Facts::read(&module)?;
    if !facts.has_metadata {
        let (resolve, world) = contract(options.world.ok_or(Error::NoWorld)?)?;
        wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
            .map_err(|source| Error::Metadata(source.into()))?;
    }
    let (_, bindings) =
        wit_component::metadata::decode(&module).map_err(|source| Error::Metadata(source.into()))?;
    facts.check(&bindings.resolve, bindings.world)?;

    let mut encoder = ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .map_err(|source| Error::Encode(source.into()))?;
    if facts.imports.iter().any(|(module, _)| module == PREVIEW1) {
        let stand_in =
            wat::parse_str(PREVIEW1_STAND_IN).expect("the stand-in is valid text, a test assembles it");
        encoder = encoder.adapter(PREVIEW1, &stand_in).map_err(|source| Error::Encode(source.into()))?;
    }
    encoder.encode().map_err(|source| Error::Encode(source.into()))
}

/// Makes a component out of WebAssembly text that uses the plain export names, for fixtures in tests.
///
/// Errors like [`component`].
pub fn from_wat(text: &str, world: &str) -> Result<Vec<u8>, Error> {
    let module = wat::parse_str(text).map_err(Error::Text)?;
    component(&module, Options { world: Some(world) })
}

/// What a look into a module shows.
struct Facts {
    imports: Vec<(String, String)>,
    exports: Vec<String>,
    has_metadata: bool,
}

impl Facts {
    fn read(module: &[u8]) -> Result<Self, Error> {
        let mut facts = Self { imports: Vec::new(), exports: Vec::new(), has_metadata: false };
        for payload in Parser::new(0).parse_all(module) {
            match payload.map_err(Error::Module)? {
                Payload::Version { encoding: Encoding::Component, .. } => {
                    return Err(Error::AlreadyComponent);
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import.map_err(Error::Module)?;
                        facts.imports.push((import.module.to_owned(), import.name.to_owned()));
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        facts.exports.push(export.map_err(Error::Module)?.name.to_owned());
                    }
                }
                Payload::CustomSection(section) => {
                    facts.has_metadata |= section.name().starts_with("component-type");
                }
                _ => {}
            }
        }
        Ok(facts)
    }

    /// Checks imports and exports by name; types are the encoder's business.
    fn check(&self, resolve: &Resolve, world: WorldId) -> Result<(), Error> {
        let world = &resolve.worlds[world];
        let offered: Vec<String> = world.imports.keys().map(|key| resolve.name_world_key(key)).collect();
        for (module, name) in &self.imports {
            // `[export]` modules hold the intrinsics of exported resources, `$root` the world's own functions.
            let is_offered = offered.contains(module) || module.starts_with("[export]") || module == "$root";
            if module != PREVIEW1 && !is_offered {
                return Err(Error::ForeignImport { module: module.clone(), name: name.clone() });
            }
        }
        let mut asked = vec!["memory".to_owned()];
        for (key, item) in &world.exports {
            let key = resolve.name_world_key(key);
            match item {
                WorldItem::Interface { id, .. } => {
                    asked
                        .extend(resolve.interfaces[*id].functions.keys().map(|name| format!("{key}#{name}")));
                }
                WorldItem::Function(_) => asked.push(key),
                WorldItem::Type { .. } => {}
            }
        }
        asked.push("cabi_realloc".to_owned());
        match asked.into_iter().find(|name| !self.exports.contains(name)) {
            Some(name) => Err(Error::MissingExport { name }),
            None => Ok(()),
        }
    }
}

fn binary(core: &[u8]) -> Result<Cow<'_, [u8]>, Error> {
    if core.starts_with(b"\0asm") {
        return Ok(Cow::Borrowed(core));
    }
    let text = std::str::from_utf8(core).map_err(|_| Error::NotWasm)?;
    let start = text.trim_start().as_bytes();
    if !TEXT_STARTS.iter().any(|prefix| start.starts_with(prefix)) {
        return Err(Error::NotWasm);
    }
    wat::parse_str(text).map(Cow::Owned).map_err(Error::Text)
}

fn contract(world: &str) -> Result<(Resolve, WorldId), Error> {
    let unknown = || Error::UnknownWorld { world: world.to_owned() };
    if !WORLDS.contains(&world) {
        return Err(unknown());
    }
    let mut resolve = Resolve::default();
    let package =
        resolve.push_str("policy.wit", WIT).expect("the contract parses, every build of a guest shows it");
    let world = resolve.select_world(&[package], Some(world)).map_err(|_| unknown())?;
    Ok((resolve, world))
}

/// Says what to do about an import from `module`.
fn advice(module: &str) -> &'static str {
    match module {
        "env" => "a symbol was left undefined at link time: link what defines it, or remove the call",
        "wasi_unstable" => "build with a newer WASI SDK, for preview 1",
        _ if module.starts_with("wasi:") => {
            "build for preview 1 (wasm32-wasip1) or without WASI, not for preview 2, so that it can be stood in for"
        }
        _ if module.starts_with("fulcrum:policy/") => {
            "its bindings are of another contract version: generate them again from wit/policy.wit"
        }
        _ => "a policy may import `fulcrum:policy/host` and WASI preview 1 only",
    }
}

#[cfg(test)]
mod tests;
