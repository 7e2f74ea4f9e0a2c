//! Orders against what others do at the same time, and against what others put into the folders.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use crate::fixture::Fixture;
use crate::lifecycle::*;
use crate::support::*;
use fulcrum_policy::artifact::digest;
use fulcrum_policy::lifecycle::{Error, Upload};
use fulcrum_policy::trust::{Content, PrivateKey, TrustedKeys};
use serde_json::{Value, json};

fn both(wasm: &[u8], text: &str) -> Upload {
    Upload { config: Some(text.to_owned()), ..component(wasm) }
}

/// Pushes, and does something else once the version is being proven.
fn meanwhile(fixture: &Fixture, upload: Upload, other: impl FnOnce(&Fixture)) -> Result<(), Error> {
    let gate = fixture.host.gate.lock();
    let asked = fixture.host.asked.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let push = scope.spawn(|| fixture.push("mine", upload));
        fixture.until("it is being proven", |fixture| fixture.host.asked.load(Ordering::Relaxed) > asked);
        other(fixture);
        drop(gate);
        push.join().unwrap()
    })
}

#[test]
fn what_is_completed_with_a_version_is_overtaken_if_that_is_replaced() {
    type Other = fn(&Fixture);
    let back: Other = |fixture| fixture.manager.roll_back("mine", None).unwrap();
    let removed: Other = |fixture| fixture.manager.remove("mine", false, Vec::new()).unwrap();
    let dropped: Other = |fixture| fixture.manager.drop_candidate("mine").unwrap();
    let check = |before: &[Upload], upload: &Upload, other: Other, text: &str| {
        let start = || {
            let fixture = Fixture::start();
            before.iter().for_each(|upload| fixture.push("mine", upload.clone()).unwrap());
            fixture
        };
        let end = |fixture: &Fixture| {
            fixture.settle();
            let status = fixture.manager.statuses().into_iter().find(|status| status.name == "mine");
            let found = status
                .map(|it| (it.state, it.digest, it.config, it.candidate.map(|it| (it.digest, it.config))));
            (found, fixture.files())
        };
        let alone = start();
        other(&alone);
        let fixture = start();
        let refused = meanwhile(&fixture, upload.clone(), other).unwrap_err();
        assert!(matches!(refused, Error::Overtaken(_)), "{text}: {refused}");
        assert_eq!(end(&fixture), end(&alone), "{text}");
        let kept = |fixture: &Fixture| std::fs::read_dir(fixture.folder.path().join("keep")).unwrap().count();
        assert_eq!(kept(&fixture), kept(&alone), "{text}: nothing is left of it");
    };
    let versions = [both(&guest(""), r#"{"a":1}"#), both(&guest(LAST), "{}")];
    check(&versions, &config(r#"{"k":1}"#), back, "the component was rolled back");
    check(&versions, &component(&guest(TRAP)), back, "the configuration was rolled back");
    check(&versions, &config(r#"{"k":1}"#), removed, "the component was removed");
    check(&versions, &candidate(config(r#"{"k":1}"#)), back, "a candidate of what was rolled back");
    let waiting = [candidate(component(&guest(LAST)))];
    check(&waiting, &candidate(config(r#"{"k":1}"#)), dropped, "the candidate was dropped");
}

#[test]
fn what_brings_all_itself_is_not_overtaken() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(""))).unwrap();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    let back = |fixture: &Fixture| fixture.manager.roll_back("mine", None).unwrap();
    meanwhile(&fixture, both(&guest(TRAP), r#"{"k":1}"#), back).unwrap();
    let status = fixture.status("mine");
    assert_eq!((status.digest, status.config), (digest(&guest(TRAP)), json!({"k": 1})));
}

#[test]
fn a_candidate_is_not_recorded_without_its_component() {
    let fixture = Fixture::start();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    let kept = format!("keep/mine.{}.wasm", digest(&guest(LAST)));
    std::fs::remove_file(fixture.folder.path().join(kept)).unwrap();
    let refused = fixture.push("mine", candidate(config(r#"{"k":1}"#))).unwrap_err();
    assert!(matches!(refused, Error::State { .. }), "{refused}");
    assert!(refused.to_string().contains("the component is lost or damaged; nothing changed"), "{refused}");
    assert_eq!(fixture.status("mine").candidate.unwrap().config, json!({}));
}

/// Puts something into a place that leads elsewhere.
type Trap = fn(place: &Path, victim: &Path);

#[test]
fn nothing_is_written_through_what_lies_in_the_folders() {
    let traps: [(&str, Trap); 4] = [
        ("a link", |place, victim| std::os::unix::fs::symlink(victim, place).unwrap()),
        ("a link to nothing", |place, victim| {
            std::os::unix::fs::symlink(victim.with_extension("none"), place).unwrap();
        }),
        ("the same file", |place, victim| std::fs::hard_link(victim, place).unwrap()),
        ("a pipe", |place, _| assert!(Command::new("mkfifo").arg(place).status().unwrap().success())),
    ];
    let stored = format!("keep/mine.{}.wasm.new", digest(&guest(LAST)));
    let places = [
        "policies/.mine.wasm.fulcrum-new",
        "policies/.mine.json.fulcrum-new",
        "policies/.mine.wasm.fulcrum-old",
        "policies/.mine.json.fulcrum-old",
        "keep/mine.json.new",
        "keep/_state.json.new",
        &stored,
    ];
    for (trap, put) in traps {
        let fixture = Fixture::start();
        fixture.push("mine", both(&guest(""), r#"{"a":1}"#)).unwrap();
        let at = |place: &str| fixture.folder.path().join(place);
        let victims = places.map(|place| (place, at(&place.replace(['/', '.'], "-"))));
        for (place, victim) in &victims {
            std::fs::write(victim, "precious").unwrap();
            put(&at(place), victim);
        }
        fixture.push("mine", both(&guest(LAST), r#"{"b":2}"#)).unwrap();
        for (place, victim) in &victims {
            assert_eq!(std::fs::read_to_string(victim).unwrap(), "precious", "{trap} at {place}");
            assert!(!victim.with_extension("none").exists(), "{trap} at {place}");
            assert!(std::fs::symlink_metadata(at(place)).is_err(), "{trap} at {place}");
        }
        assert_eq!(fixture.files(), ["mine.json", "mine.wasm"], "{trap}");
        assert_eq!(std::fs::read(fixture.path("mine.wasm")).unwrap(), guest(LAST), "{trap}");
        let is_file = |file| std::fs::symlink_metadata(fixture.path(file)).unwrap().is_file();
        assert!(is_file("mine.wasm") && is_file("mine.json"), "{trap}");
    }
}

#[test]
fn a_folder_where_a_file_is_to_be_staged_is_named() {
    let fixture = Fixture::start();
    std::fs::create_dir(fixture.path(".mine.wasm.fulcrum-new")).unwrap();
    let refused = fixture.push("mine", component(&guest(LAST))).unwrap_err();
    assert!(matches!(refused, Error::Folder { .. }), "{refused}");
    assert!(refused.to_string().contains(".mine.wasm.fulcrum-new is a directory"), "{refused}");
}

#[test]
fn a_configuration_of_many_lines_goes_every_way() {
    let fixture = Fixture::start();
    // Written one number a line it would be too large.
    let large = json!({ "a": vec![1; 200_000] });
    fixture.push("mine", both(&guest(""), &large.to_string())).unwrap();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    fixture.manager.promote("mine", scoring()).unwrap();
    let check = |fixture: &Fixture, wasm: &[u8], text: &str| {
        let status = fixture.status("mine");
        assert_eq!((status.digest, status.problem), (digest(wasm), None), "{text}");
        assert!(status.config == large, "{text}");
        assert!(std::fs::metadata(fixture.path("mine.json")).unwrap().len() <= 1 << 20, "{text}");
    };
    check(&fixture, &guest(TRAP), "promoted");
    fixture.manager.roll_back("mine", None).unwrap();
    check(&fixture, &guest(LAST), "rolled back");
    let fixture = Fixture::restart(fixture.stop());
    fixture.settle();
    check(&fixture, &guest(LAST), "restarted");
}

#[test]
fn what_would_be_written_too_large_is_refused_before_anything_changes() {
    let fixture = Fixture::start();
    // 5 bytes each as they are sent, 19 as they are written.
    let text = format!("{{\"a\":[{}1]}}", "1e15,".repeat(100_000));
    for upload in [both(&guest(LAST), &text), candidate(both(&guest(LAST), &text))] {
        assert_eq!(fixture.code("mine", upload), "too_large");
    }
    assert!(fixture.files().is_empty() && fixture.manager.statuses().iter().all(|it| it.name != "mine"));
    // A candidate that a former build had taken.
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    let folder = fixture.stop();
    let record = folder.path().join("keep/mine.json");
    let mut kept: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    kept["candidate"]["config"] = serde_json::from_str(&text).unwrap();
    std::fs::write(&record, kept.to_string()).unwrap();
    let fixture = Fixture::restart(folder);
    let refused = fixture.manager.promote("mine", scoring()).unwrap_err();
    assert!(matches!(&refused, Error::Refused(refusal) if refusal.code() == "too_large"), "{refused}");
    assert_eq!((fixture.manager.bindings().scoring.as_str(), fixture.files().len()), ("base", 0));
    assert!(fixture.status("mine").promotion.is_none() && fixture.status("mine").candidate.is_some());
}

#[test]
fn advice_about_a_file_that_is_too_large_fits_it() {
    let key = PrivateKey::from_seed(&[1; 32]);
    let keys = TrustedKeys::parse([key.public().as_str()]).unwrap();
    let fixture = Fixture::restart_with(tempfile::tempdir().unwrap(), |settings| settings.trusted = keys);
    let large = vec![b' '; (1 << 20) + 1];
    let signature = key.sign(Content::Component { digest: &digest(&guest(LAST)) });
    fixture.drop_file("mine.wasm.sig", signature.as_bytes());
    fixture.drop_file("mine.wasm", &guest(LAST));
    assert_eq!(fixture.status("mine").problem, None);
    for (file, advice) in [
        ("mine.json", "make the configuration smaller"),
        ("mine.json.sig", "fulcrum policy sign"),
        ("mine.wasm.sha256", "sha256sum"),
    ] {
        if file == "mine.json.sig" {
            fixture.drop_file("mine.json", b"{\"a\":1}");
        }
        fixture.drop_file(file, &large);
        let problem = fixture.status("mine").problem.unwrap();
        let expected = format!("{file} has 1048577 bytes, at most 1048576 are allowed; ");
        assert_eq!(problem.code, "too_large", "{file}");
        assert!(problem.message.starts_with(&expected), "{}", problem.message);
        assert!(problem.message.contains(advice), "{}", problem.message);
        fixture.remove(file);
    }
}
