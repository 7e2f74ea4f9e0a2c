//! The conformance kit: policies that pass the self-test and misbehave in a corner are found there, with the case that
//! shows it again and the mistake's name; those of the host pass.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::support::*;
use fulcrum_policy::conformance::{self, Finding, Kind, Options, Report};
use fulcrum_policy::{Artifact, Limits, Loaded, Runtime, proof};
use serde_json::json;

/// The deadlines of service; a machine that is busy with other tests must not fail a good policy.
fn patient() -> Arc<Runtime> {
    static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
        let limits = Limits {
            scoring_deadline: Duration::from_millis(500),
            claiming_deadline: Duration::from_secs(10),
            ..Limits::default()
        };
        Runtime::new(limits).expect("the engine starts")
    });
    RUNTIME.clone()
}

fn load(runtime: &Arc<Runtime>, wasm: &[u8]) -> Loaded {
    Artifact::load(runtime, wasm).unwrap().configured("mine", json!({})).unwrap()
}

fn run(policy: &Loaded, metered: Option<&Loaded>, options: &Options) -> Report {
    conformance::run(policy, metered, options, &TestClock::default(), &mut |_| {})
}

fn only(case: &str) -> Options {
    Options { only: Some(case.to_owned()), ..Options::default() }
}

fn texts(folder: &str) -> Vec<(String, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    found.sort();
    found
}

/// Makes a component of a corner: a scoring guest, or a claiming one where it has a plan.
fn corner(text: &str) -> Vec<u8> {
    let mut base = include_str!("../claims.wat").to_owned();
    let mut is_claiming = false;
    for block in ["plan", "more"] {
        let (open, close) = (format!(";; <{block}>"), format!(";; </{block}>"));
        let body = |text: &str| Some((text.find(&open)? + open.len(), text.find(&close)?));
        if let (Some((from, to)), Some((into, until))) = (body(text), body(&base)) {
            base.replace_range(into..until, &text[from..to]);
            is_claiming = true;
        }
    }
    if is_claiming {
        fulcrum_pack::from_wat(&base, "claiming-policy").expect("the guest is well formed")
    } else {
        guest(text)
    }
}

fn expectation(text: &str) -> (&str, &str) {
    let line = text.lines().find_map(|line| line.strip_prefix(";; expect: ")).expect("every guest says it");
    line.split_once(' ').expect("two words")
}

fn words(findings: &[Finding]) -> Vec<String> {
    let line = |finding: &Finding| format!("{} {}: {}", finding.kind.code(), finding.case, finding.message);
    findings.iter().map(line).collect()
}

#[test]
fn a_policy_that_fails_in_a_corner_only_is_found_there() {
    let corners = texts("corners");
    assert!(corners.len() >= 14, "{}", corners.len());
    for (name, text) in corners {
        let (kind, class) = expectation(&text);
        // What is slow is slow by the deadline of service.
        let runtime = if kind == "slow" { runtime() } else { patient() };
        let policy = load(&runtime, &corner(&text));
        proof::run(&policy, &TestClock::default())
            .unwrap_or_else(|refusal| panic!("{name} should pass the self-test: {refusal}"));
        let options = if kind == "slow" { only(&format!("{class}/0")) } else { Options::default() };
        let report = run(&policy, None, &options);
        let shown = words(&report.findings);
        let finding = report.findings.iter().find(|finding| finding.class == class);
        let finding = finding.unwrap_or_else(|| panic!("{name}: nothing in {class}, but {shown:?}"));
        assert_eq!(finding.kind.code(), kind, "{name}: {shown:?}");
        assert_eq!(report.passed(), !finding.kind.is_failure(), "{name}: {shown:?}");
        // Nothing else is wrong with it.
        assert!(report.findings.iter().all(|other| other.kind == finding.kind), "{name}: {shown:?}");
        assert!(finding.kind.fix().len() > 30, "{name}");
        // The case alone shows the same again.
        let again = run(&policy, None, &only(&finding.case));
        let cases: usize = again.classes.iter().map(|class| class.cases).sum();
        assert_eq!(cases, 1, "{name}: {}", finding.case);
        let repeated: Vec<_> = again.findings.iter().map(|found| (found.kind, &found.case)).collect();
        assert_eq!(repeated, [(finding.kind, &finding.case)], "{name}");
        if kind != "slow" {
            assert_eq!(again.findings[0].message, finding.message, "{name}");
        }
    }
}

#[test]
fn the_sins_that_hide_from_the_self_test_are_found() {
    // Loops are cut off here after a hundred times this.
    let limits = Limits { scoring_deadline: Duration::from_millis(20), ..Limits::default() };
    let runtime = Runtime::new(limits).unwrap();
    let expected = |outcome: &str, kind: Kind| match outcome {
        "timeout" => kind == Kind::Slow,
        "trap" => kind == Kind::Trap,
        "limit" => kind == Kind::Limit,
        // An answer that cannot be read counts as a crash of the call here.
        "illegal" => !matches!(kind, Kind::Slow | Kind::Limit | Kind::HiddenState | Kind::Law),
        _ => false,
    };
    let mut found = 0;
    for (name, text) in texts("guests").into_iter().filter(|(name, _)| name != "base") {
        let (stage, outcome) = expectation(&text);
        if stage == "load" {
            continue;
        }
        let policy = load(&runtime, &guest(&text));
        // Client ids of 66 bytes.
        let report = run(&policy, None, &only("scoring/text-lengths/4"));
        let shown = words(&report.findings);
        match outcome {
            "ok" => assert!(report.passed() || name == "log-flood", "{name}: {shown:?}"),
            // Its own error is an answer.
            "error" => {
                assert!(report.passed(), "{name}: {shown:?}");
                assert!(report.classes[0].errors.values().sum::<usize>() > 0, "{name}");
            }
            outcome => {
                let finding = report.findings.iter().find(|finding| finding.kind.is_failure());
                let finding = finding.unwrap_or_else(|| panic!("{name}: nothing found"));
                assert!(expected(outcome, finding.kind), "{name} ({outcome}): {shown:?}");
                found += 1;
            }
        }
    }
    assert!(found >= 12, "{found}");
}

#[test]
fn the_policies_of_the_host_conform() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../policies/prebuilt");
    let metered = conformance::metered_runtime(patient().limits(), false).unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "wasm") {
            continue;
        }
        let wasm = std::fs::read(&path).unwrap();
        let policy = load(&patient(), &wasm);
        let report = run(&policy, Some(&load(&metered, &wasm)), &Options::default());
        assert!(report.findings.is_empty(), "{}: {:#?}", path.display(), words(&report.findings));
        let cases: usize = report.classes.iter().map(|class| class.cases).sum();
        assert!(cases > 200, "{}: {cases} cases", path.display());
        assert!(!report.cuts.is_empty() && report.cuts.iter().all(|cut| cut.cuts >= 3), "{:?}", report.cuts);
        assert!(report.cuts.iter().all(|cut| cut.instructions > 10), "{:?}", report.cuts);
        count += 1;
    }
    assert!(count >= 11, "{count}");
}

#[test]
fn another_seed_makes_other_cases_and_the_same_seed_the_same() {
    let policy = load(&patient(), &corner(include_str!("../corners/look-alike.wat")));
    let found = |seed: u64| {
        let options = Options { seed, ..only("scoring/hostile-text") };
        words(&run(&policy, None, &options).findings)
    };
    assert_eq!(found(1), found(1));
    assert!((2..10).any(|seed| found(seed) != found(1)));
}

#[test]
fn sizes_beyond_what_was_asked_for_are_left_out() {
    let policy = load(&patient(), &corner(include_str!("../corners/past-the-end.wat")));
    let report = run(&policy, None, &Options { rows_max: 999, ..Options::default() });
    assert!(report.passed(), "{:?}", words(&report.findings));
}
