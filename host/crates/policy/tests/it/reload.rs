//! The reload task on a real folder: what serves after each change, and what comes back after a restart.

use std::path::Path;
use std::time::Duration;

use crate::fixture::Fixture;
use crate::lifecycle::{candidate, component, scoring};
use crate::support::*;
use fulcrum_policy::Outcome;
use fulcrum_policy::status::{Source, State};

/// Chooses the last row that may be chosen; the base guest chooses the first.
const LAST: &str = include_str!("../last.wat");

fn exists(path: &Path) -> bool {
    std::fs::read_dir(path).unwrap().count() > 0
}

#[test]
fn a_dropped_file_serves_and_a_deleted_one_gives_way() {
    let fixture = Fixture::start();
    assert_eq!((fixture.row(), fixture.status("base").source), (0, Source::Embedded));
    fixture.drop_file("base.wasm", &guest(LAST));
    let status = fixture.status("base");
    assert_eq!((fixture.row(), status.source, status.state), (2, Source::File, State::Live));
    fixture.remove("base.wasm");
    assert_eq!((fixture.row(), fixture.status("base").source), (0, Source::Embedded));
}

#[test]
fn a_bad_file_changes_nothing_until_it_is_replaced() {
    let fixture = Fixture::start();
    fixture.drop_file("base.wasm", &guest(LAST));
    let digest = fixture.status("base").digest;
    for (bytes, code) in [(&b""[..], "empty"), (b"\x7fELF", "precompiled"), (b"(module)", "text")] {
        fixture.drop_file("base.wasm", bytes);
        let status = fixture.status("base");
        assert_eq!((fixture.row(), &status.digest), (2, &digest), "{code}");
        assert_eq!((status.problem.unwrap().code.as_str(), status.source), (code, Source::LastGood));
    }
    fixture.drop_file("base.wasm", &guest(LAST));
    assert_eq!((fixture.row(), fixture.problem("base")), (2, None));
    assert_eq!(fixture.status("base").source, Source::File);
}

#[test]
fn the_last_good_version_survives_a_restart() {
    let fixture = Fixture::start();
    fixture.drop_file("base.wasm", &guest(LAST));
    fixture.drop_file("base.wasm", b"garbage");
    let fixture = Fixture::restart(fixture.stop());
    fixture.settle();
    let status = fixture.status("base");
    assert_eq!((fixture.row(), status.source, status.state), (2, Source::LastGood, State::Live));
    assert_eq!(status.problem.unwrap().code, "not_wasm");
    // Deleting the bad file means: I want the embedded one.
    fixture.remove("base.wasm");
    assert_eq!((fixture.row(), fixture.status("base").source), (0, Source::Embedded));
}

#[test]
fn a_file_deleted_while_the_host_is_down_does_not_come_back() {
    let fixture = Fixture::start();
    fixture.drop_file("base.wasm", &guest(LAST));
    assert!(exists(&fixture.folder.path().join("keep")));
    let path = fixture.path("base.wasm");
    let folder = fixture.stop();
    std::fs::remove_file(path).unwrap();
    let fixture = Fixture::restart(folder);
    assert_eq!((fixture.row(), fixture.status("base").source), (0, Source::Embedded));
    fixture.drop_file("base.wasm", b"garbage");
    assert_eq!((fixture.row(), fixture.status("base").source), (0, Source::Embedded));
}

#[test]
fn a_digest_file_guards_its_component() {
    let fixture = Fixture::start();
    let wasm = guest(LAST);
    let sum = format!("{}  base.wasm\n", fulcrum_policy::artifact::digest(&wasm));
    fixture.drop_file("base.wasm.sha256", sum.as_bytes());
    for at in (0..wasm.len()).step_by(wasm.len() / 20) {
        let mut flipped = wasm.clone();
        flipped[at] ^= 0x20;
        fixture.drop_file("base.wasm", &flipped);
        assert_eq!((fixture.row(), fixture.problem("base").as_deref()), (0, Some("digest")), "flip at {at}");
    }
    fixture.drop_file("base.wasm", &wasm);
    assert_eq!((fixture.row(), fixture.problem("base")), (2, None));
    fixture.drop_file("base.wasm.sha256", b"hello");
    assert_eq!((fixture.row(), fixture.problem("base").as_deref()), (2, Some("digest_syntax")));
}

#[test]
fn configuration_is_checked_and_hot() {
    let fixture = Fixture::start();
    fixture.drop_file("base.json", b"{\"a\":");
    assert_eq!(fixture.problem("base").as_deref(), Some("config_syntax"));
    fixture.drop_file("base.json", b"{\"a\": 1}");
    assert_eq!((fixture.problem("base"), fixture.status("base").config), (None, serde_json::json!({"a": 1})));
    assert_eq!(fixture.decide("").by.unwrap().config, "{\"a\":1}");
    fixture.remove("base.json");
    assert_eq!(fixture.decide("").by.unwrap().config, "{}");
    fixture.drop_file("lonely.json", b"{}");
    assert_eq!(fixture.problem("lonely").as_deref(), Some("no_component"));
}

#[test]
fn other_files_in_the_folder_are_ignored() {
    let fixture = Fixture::start();
    std::fs::create_dir(fixture.path("sub")).unwrap();
    std::fs::create_dir(fixture.path("dir.wasm")).unwrap();
    std::fs::write(fixture.path("sub/base.wasm"), guest(LAST)).unwrap();
    fixture.drop_file("README.txt", b"hello");
    fixture.drop_file(".hidden.wasm", &guest(LAST));
    fixture.drop_file("-rf.wasm", &guest(LAST));
    let names: Vec<_> = fixture.manager.statuses().into_iter().map(|status| status.name).collect();
    assert_eq!((names, fixture.row()), (vec!["base".to_owned()], 0));
}

#[test]
fn binding_needs_a_usable_policy_of_the_role() {
    let fixture = Fixture::start();
    assert!(fixture.bind("nobody").unwrap_err().to_string().contains("push nobody.wasm"));
    fixture.drop_file("bad.wasm", b"(module)");
    assert!(fixture.bind("bad").unwrap_err().to_string().contains("fulcrum policy pack"));
    let claiming = wat::parse_str(include_str!("../tiny.wat")).unwrap();
    fixture.drop_file("claims.wasm", &claiming);
    assert_eq!(fixture.problem("claims"), None);
    assert!(fixture.bind("claims").unwrap_err().to_string().contains("does not offer the scoring role"));
    assert_eq!(fixture.row(), 0, "nothing changed");
    fixture.drop_file("last.wasm", &guest(LAST));
    assert_eq!(fixture.bind("last").unwrap().scoring, "last");
    assert_eq!((fixture.row(), fixture.status("base").state), (2, State::Ready));
    // A bound policy that disappears gives way to the default, and takes its seat again when it is back.
    fixture.remove("last.wasm");
    assert_eq!((fixture.row(), fixture.manager.bindings().scoring.as_str()), (0, "last"));
    fixture.drop_file("last.wasm", &guest(LAST));
    assert_eq!(fixture.row(), 2);
}

#[test]
fn a_failing_policy_is_tried_again_and_ends_in_quarantine() {
    let fixture = Fixture::start();
    let trap = guest(include_str!("../guests/trap.wat"));
    fixture.drop_file("base.wasm", &trap);
    let armed = "x".repeat(66);
    let fail =
        |times: usize| (0..times).for_each(|_| assert_ne!(fixture.decide(&armed).outcome, Outcome::Ok));
    fail(3);
    assert_eq!(fixture.status("base").state, State::Open);
    let last_failure = fixture.status("base").last_failure.unwrap();
    assert!(last_failure.starts_with("trap: crashed: wasm `unreachable`"), "{last_failure}");
    assert_eq!(fixture.decide("").outcome, Outcome::Open, "the fallback decides");

    // The trial runs the input it failed on: it fails again, until the version is in quarantine.
    let mut trials = 0;
    while fixture.problem("base").is_none() {
        fixture.clock.advance(Duration::from_secs(31));
        drop(fixture.manager.reload());
        drop(fixture.manager.reload());
        trials += 1;
        assert!(trials < 20, "it never ends");
    }
    assert_eq!(fixture.problem("base").as_deref(), Some("quarantined"));
    let decision = fixture.decide(&armed);
    assert_eq!((decision.outcome, decision.recommendation.row), (Outcome::Ok, 0), "the embedded one serves");

    // It stays out over a restart, and until the file is removed.
    let fixture = Fixture::restart(fixture.stop());
    fixture.settle();
    assert_eq!(fixture.problem("base").as_deref(), Some("quarantined"));
    fixture.drop_file("base.wasm", &trap);
    assert_eq!(fixture.problem("base").as_deref(), Some("quarantined"));
    fixture.remove("base.wasm");
    fixture.drop_file("base.wasm", &trap);
    assert_eq!((fixture.problem("base"), fixture.status("base").source), (None, Source::File));
}

#[test]
fn quarantine_is_about_bytes_whatever_their_names() {
    let fixture = Fixture::start();
    let trap = guest(include_str!("../guests/trap.wat"));
    for file in ["a.wasm", "b.wasm", "c.wasm"] {
        fixture.drop_file(file, &trap);
    }
    fixture.manager.push("c", candidate(component(&trap))).unwrap();
    fixture.drop_file("c.wasm", &guest(LAST));
    fixture.bind("a").unwrap();
    (0..3).for_each(|_| drop(fixture.decide(&"x".repeat(66))));
    let mut trials = 0;
    while fixture.problem("a").is_none() {
        fixture.clock.advance(Duration::from_secs(31));
        drop(fixture.manager.reload());
        drop(fixture.manager.reload());
        trials += 1;
        assert!(trials < 20, "it never ends");
    }
    let states = |fixture: &Fixture| ["a", "b", "c"].map(|name| fixture.status(name).state);
    assert_eq!(states(&fixture), [State::Quarantined, State::Quarantined, State::Ready]);
    assert!(fixture.bind("b").unwrap_err().to_string().contains("quarantine"));
    assert!(fixture.manager.promote("c", scoring()).unwrap_err().to_string().contains("quarantine"));
    let fixture = Fixture::restart(fixture.stop());
    fixture.settle();
    assert_eq!(states(&fixture), [State::Quarantined, State::Quarantined, State::Ready]);
    // As long as one of them is there, nobody has asked for it again.
    fixture.remove("b.wasm");
    assert_eq!((fixture.status("a").state, fixture.status("b").state), (State::Quarantined, State::Removed));
    fixture.drop_file("b.wasm", &trap);
    assert_eq!(states(&fixture), [State::Quarantined, State::Quarantined, State::Ready]);
    std::fs::remove_file(fixture.path("a.wasm")).unwrap();
    fixture.remove("b.wasm");
    fixture.drop_file("b.wasm", &trap);
    assert_eq!((fixture.status("a").state, fixture.status("b").state), (State::Removed, State::Ready));
    fixture.manager.promote("c", scoring()).unwrap();
}

#[test]
fn a_missing_folder_changes_nothing() {
    let fixture = Fixture::start();
    fixture.drop_file("base.wasm", &guest(LAST));
    let (policies, away) = (fixture.path(""), fixture.folder.path().join("away"));
    std::fs::rename(&policies, &away).unwrap();
    drop(fixture.manager.reload());
    assert_eq!(fixture.row(), 2);
    std::fs::rename(&away, &policies).unwrap();
    fixture.remove("base.wasm");
    assert_eq!(fixture.row(), 0);
}
