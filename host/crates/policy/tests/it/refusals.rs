//! What is not a policy is refused, by name and with advice; damage never goes live.

use std::time::Duration;

use crate::support::*;
use fulcrum_policy::contract::WIT;
use fulcrum_policy::{Artifact, Limits, Refusal, Runtime, proof};
use proptest::prelude::*;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Makes a component of another contract: `wit` is its text, `core` the text of the module.
fn component(wit: &str, world: &str, core: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_source("other.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = wat::parse_str(core).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().module(&module).unwrap().validate(true).encode().unwrap()
}

fn check(bytes: &[u8], code: &str, texts: &[&str]) {
    let refusal =
        Artifact::load(&runtime(), bytes).err().unwrap_or_else(|| panic!("{code}: it was accepted"));
    let message = refusal.to_string();
    assert_eq!(refusal.code(), code, "{message}");
    for text in texts {
        assert!(message.contains(text), "{message:?} lacks {text:?}");
    }
}

#[test]
fn other_files_are_named() {
    let component = guest("");
    let core = wat::parse_str(guest_text("")).unwrap();
    check(b"", "empty", &["rename it when complete"]);
    check(b"\x7fELF\x02\x01\x01", "precompiled", &["never runs native code"]);
    check(&core, "core_module", &["fulcrum policy pack"]);
    check(b"(component)", "text", &["fulcrum policy pack"]);
    check(b"\n ;; a policy\n (module)", "text", &["fulcrum policy pack"]);
    check(b"#!/bin/sh\n", "not_wasm", &["#!/bin/s"]);
    check(b"PK\x03\x04", "not_wasm", &["drop a component"]);
    check(&component[..6], "damaged", &["cut off"]);
    check(&component[..component.len() / 2], "damaged", &["copy it again"]);
    check(b"\0asm\x0d\0\x01\0\xff\xff", "damaged", &["copy it again"]);
}

#[test]
fn native_code_is_refused() {
    let engine = wasmtime::Engine::default();
    let native = engine.precompile_component(&guest("")).unwrap();
    check(&native, "precompiled", &["drop the .wasm component it was made from"]);
}

#[test]
fn large_files_are_refused() {
    let small = Runtime::new(Limits { artifact_bytes: 100, ..Limits::default() }).unwrap();
    let refusal = Artifact::load(&small, &guest("")).err().unwrap();
    assert_eq!(refusal.code(), "too_large");
    assert!(refusal.to_string().contains("at most 100 are allowed"), "{refusal}");
}

#[test]
fn other_worlds_and_versions_are_named() {
    check(&wat::parse_str("(component)").unwrap(), "other_world", &["exports nothing", "wit/policy.wit"]);
    let run = "package a:b; interface run { run: func(); } world w { export run; }";
    let core = r#"(module (func (export "a:b/run#run")))"#;
    check(&component(run, "w", core), "other_world", &["a:b/run", "fulcrum:policy/scoring@1.0.0"]);

    let newer = WIT.replace("@1.0.0", "@2.1.0");
    let core = guest_text("").replace("@1.0.0", "@2.1.0");
    check(&component(&newer, "scoring-policy", &core), "version", &["fulcrum:policy@2.1.0", "speaks 1.0.0"]);

    let importing = WIT.replace(
        "world scoring-policy {",
        "interface clock { now: func() -> u64; }\nworld scoring-policy {\n  import clock;",
    );
    let core = guest_text(
        ";; <import>\n(import \"fulcrum:policy/clock@1.0.0\" \"now\" (func $now (result i64)))\n;; </import>",
    );
    check(
        &component(&importing, "scoring-policy", &core),
        "imports",
        &["fulcrum:policy/clock@1.0.0", "may import nothing but"],
    );
}

#[test]
fn differences_are_named() {
    let cases: [(&str, &str, &[&str]); 6] = [
        (
            "    seed: u64,\n  }\n\n  /// The answer: one row",
            "    sead: u64,\n  }\n\n  /// The answer: one row",
            &[
                "field `seed` of parameter `request` of `scoring.recommend` is missing, it must be u64",
                "`sead`",
            ],
        ),
        (
            "    /// The policy does not offer this optional function.\n    unsupported,\n",
            "",
            &["case `unsupported`"],
        ),
        (
            "    now-ms: u64,\n    /// Chance for this decision",
            "    now-ms: s64,\n    /// Chance for this decision",
            &["field `now-ms` of parameter `request` of `scoring.recommend` is s64, it must be u64"],
        ),
        (
            "    no-candidate,\n",
            "    no-candidate,\n    too-busy,\n",
            &["case `too-busy`", "does not exist in this version"],
        ),
        (
            "roster: func(instances:",
            "roster: func(rows:",
            &["parameter `instances` of `scoring.roster` is missing"],
        ),
        (
            "    inflow: list<f64>,\n    /// Bytes per second it sends out. Finite, 0 or more.\n    outflow: list<f64>,",
            "    outflow: list<f64>,\n    /// Bytes per second it sends out. Finite, 0 or more.\n    inflow: list<f64>,",
            &["the fields of parameter `loads` of `scoring.refresh` stand in another order"],
        ),
    ];
    for (from, to, texts) in cases {
        let wit = WIT.replacen(from, to, 1);
        assert_ne!(wit, WIT, "the contract has {from:?}");
        check(&component(&wit, "scoring-policy", &guest_text("")), "differences", texts);
    }

    let explain = WIT.find("  explain: func").unwrap();
    let end = explain + WIT[explain..].find('\n').unwrap();
    let without = format!("{}{}", &WIT[..explain], &WIT[end..]);
    let without = without.replacen("record score-parts {\n", "record score-parts-unused {\n", 1);
    check(
        &component(&without, "scoring-policy", &guest_text("")),
        "differences",
        &["`scoring.explain` is missing, expected func(request: record { client-id, "],
    );
}

/// Loads and proves as a reload does.
fn goes_live(bytes: &[u8]) -> Result<(), Refusal> {
    let artifact = Artifact::load(&quick(), bytes)?;
    let loaded = artifact.configured("flipped", serde_json::json!({}))?;
    proof::run(&loaded, &TestClock::default()).map(|_| ())
}

/// A flipped byte may well make an endless loop: do not wait long for it.
fn quick() -> std::sync::Arc<Runtime> {
    static RUNTIME: std::sync::LazyLock<std::sync::Arc<Runtime>> = std::sync::LazyLock::new(|| {
        let limits = Limits {
            load_deadline: Duration::from_millis(500),
            scoring_deadline: Duration::from_millis(10),
            claiming_deadline: Duration::from_millis(50),
            ..Limits::default()
        };
        Runtime::new(limits).unwrap()
    });
    RUNTIME.clone()
}

#[test]
fn no_prefix_and_no_flip_panics_or_goes_live_unproven() {
    let whole = tiny();
    assert!(whole.len() <= 1024, "the fixture has {} bytes", whole.len());
    goes_live(&whole).unwrap();
    let mut live = Vec::new();
    for len in 0..whole.len() {
        if goes_live(&whole[..len]).is_ok() {
            live.push(format!("prefix {len}"));
        }
    }
    // Cut anywhere, something the contract needs is gone.
    assert!(live.is_empty(), "{live:?}");
    let mut accepted = 0;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        accepted += usize::from(goes_live(&bytes).is_ok());
    }
    // A flip in a name of the guest's own, or in a text it shows, leaves a complete and legal policy.
    assert!(accepted < whole.len() / 4, "{accepted} of {} flips passed the proof", whole.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_damage_panics(at in 0_usize..1024, byte in any::<u8>(), cut in 0_usize..1024) {
        let mut bytes = tiny();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut % 16);
        drop(goes_live(&bytes));
    }
}

/// A complete claiming policy of less than a kilobyte: it never changes anything.
fn tiny() -> Vec<u8> {
    wat::parse_str(include_str!("../tiny.wat")).unwrap()
}
