//! Files that take long to prove, and who does not wait for them.

use std::sync::atomic::Ordering;

use crate::fixture::Fixture;
use crate::lifecycle::*;
use crate::support::*;
use fulcrum_policy::lifecycle::Promote;
use fulcrum_policy::status::{Source, State};
use serde_json::json;

/// Takes the whole deadline of a call while it is loaded.
const SLOW: &str = include_str!("../guests/loop-describe.wat");
/// Names of slow files.
const NAMES: [&str; 3] = ["slow1", "slow2", "slow3"];

/// Slow components, none of which is like another one.
fn slow(number: usize) -> Vec<u8> {
    let text = guest_text(SLOW).replace("by hand", &format!("by s{number:03}"));
    fulcrum_pack::from_wat(&text, "scoring-policy").unwrap()
}

fn put(folder: &std::path::Path, file: &str, bytes: &[u8]) {
    std::fs::create_dir_all(folder).unwrap();
    let beside = folder.join(format!(".{file}"));
    std::fs::write(&beside, bytes).unwrap();
    age(&beside);
    std::fs::rename(&beside, folder.join(file)).unwrap();
}

/// Makes a file old enough to be complete for a host that starts.
fn age(file: &std::path::Path) {
    let hour = std::time::Duration::from_secs(3600);
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_modified(std::time::SystemTime::now() - hour).unwrap();
}

fn put_slow(folder: &std::path::Path) {
    for (number, name) in NAMES.into_iter().enumerate() {
        put(folder, &format!("{name}.wasm"), &slow(number));
    }
}

impl Fixture {
    fn proving(&self) -> Vec<String> {
        self.manager.task().proving
    }
}

#[test]
fn no_order_waits_for_files_that_are_slow_to_prove() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(""))).unwrap();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    put_slow(&fixture.path(""));
    fixture.until("all of them are seen", |fixture| {
        // Where no event tells, they settle.
        fixture.clock.advance(std::time::Duration::from_millis(10));
        fixture.proving().len() == NAMES.len()
    });
    assert_eq!(fixture.status("slow3").state, State::Proving);
    let error = fixture.bind("slow3").unwrap_err().to_string();
    assert!(error.contains("still being proven"), "{error}");
    assert!(fixture.manager.policy("slow3").err().unwrap().contains("still being proven"));
    fixture.bind("mine").unwrap();
    assert_eq!(fixture.row(), 2);
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!(fixture.row(), 0);
    fixture.manager.promote("mine", Promote::default()).unwrap();
    fixture.push("other", component(&guest(LAST))).unwrap();
    assert_eq!(fixture.status("other").state, State::Ready);
    assert!(fixture.manager.policy("base").is_ok());
    assert!(fixture.manager.policy("nobody").err().unwrap().contains("does not exist"));
    assert!(!fixture.proving().is_empty(), "all that was done while files were proven");
    // Whoever asks for a look gets an answer when all is told.
    let report = fixture.manager.reload();
    let refused: Vec<_> = report.refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((refused, fixture.proving()), (NAMES.to_vec(), Vec::new()));
    for name in NAMES {
        let state = fixture.status(name).state;
        assert_eq!((fixture.problem(name).as_deref(), state), (Some("describe"), State::Refused));
    }
    // A file that was never tried does not wait for those that are tried once more.
    std::thread::scope(|scope| {
        let report = scope.spawn(|| fixture.manager.reload());
        fixture.until("they are tried once more", |fixture| fixture.proving().len() == NAMES.len());
        put(&fixture.path(""), "zebra.wasm", &guest(""));
        fixture.until("it is ready", |fixture| {
            fixture.clock.advance(std::time::Duration::from_millis(10));
            fixture.manager.statuses().iter().any(|it| it.name == "zebra" && it.state == State::Ready)
        });
        assert!(!fixture.proving().is_empty(), "it had its turn before the last of them");
        let report = report.join().unwrap();
        assert_eq!((report.changed, report.refused.len()), (vec!["zebra".to_owned()], NAMES.len()));
    });
}

#[test]
fn a_start_waits_only_for_what_is_bound_or_served_before() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.push("mine", config(r#"{"a": 1}"#)).unwrap();
    fixture.push("idle", component(&guest(""))).unwrap();
    fixture.bind("mine").unwrap();
    fixture.files().iter().for_each(|file| age(&fixture.path(file)));
    let folder = fixture.stop();
    put_slow(&folder.path().join("policies"));
    // What was bound has a new file, too: the one before serves until that is proven.
    put(&folder.path().join("policies"), "mine.wasm", &slow(9));
    let fixture = Fixture::restart(folder);
    let mut proving = fixture.proving();
    proving.retain(|name| name != "mine");
    assert!(proving.len() >= 2, "the host started before they were proven: {proving:?}");
    let (mine, idle) = (fixture.status("mine"), fixture.status("idle"));
    assert_eq!((fixture.row(), mine.state, mine.source), (2, State::Live, Source::LastGood));
    assert_eq!((mine.config, idle.state, idle.source), (json!({"a": 1}), State::Ready, Source::File));
    fixture.settle();
    assert_eq!((fixture.row(), fixture.problem("mine").as_deref()), (2, Some("describe")));
    assert_eq!(fixture.proving(), [""; 0]);
}

#[test]
fn what_is_bound_on_a_first_start_is_proven_before_the_host_listens() {
    let folder = tempfile::tempdir().unwrap();
    put(&folder.path().join("policies"), "mine.wasm", &guest(LAST));
    put_slow(&folder.path().join("policies"));
    let fixture = Fixture::restart_with(folder, |settings| settings.scoring = "mine".to_owned());
    assert_eq!((fixture.row(), fixture.status("mine").state), (2, State::Live));
    assert!(!fixture.proving().is_empty());
}

#[test]
fn a_file_that_is_replaced_while_it_is_proven_comes_to_nothing() {
    let fixture = Fixture::start();
    let gate = fixture.host.gate.lock();
    put(&fixture.path(""), "mine.wasm", &guest(TRAP));
    fixture.until("it is being proven", |fixture| {
        fixture.clock.advance(std::time::Duration::from_millis(10));
        fixture.proving() == ["mine"]
    });
    put(&fixture.path(""), "mine.wasm", &guest(LAST));
    drop(gate);
    fixture.settle();
    assert_eq!(fixture.status("mine").digest, fulcrum_policy::artifact::digest(&guest(LAST)));
    let gate = fixture.host.gate.lock();
    put(&fixture.path(""), "gone.wasm", &guest(TRAP));
    fixture.until("it is being proven", |fixture| {
        fixture.clock.advance(std::time::Duration::from_millis(10));
        fixture.proving() == ["gone"]
    });
    std::fs::remove_file(fixture.path("gone.wasm")).unwrap();
    drop(gate);
    fixture.settle();
    assert!(fixture.manager.statuses().iter().all(|status| status.name != "gone"));
}

#[test]
fn a_proof_that_crashes_the_host_is_told_and_not_made_again_and_again() {
    let fixture = Fixture::start();
    fixture.host.crashes.store(true, Ordering::Relaxed);
    fixture.drop_file("mine.wasm", &guest(LAST));
    fixture.host.crashes.store(false, Ordering::Relaxed);
    let crashes = fixture.manager.task().crashes;
    assert!((1..10).contains(&crashes), "{crashes}");
    assert_eq!(fixture.problem("mine").as_deref(), Some("proof_crashed"));
    fixture.bind("base").unwrap();
    assert_eq!(fixture.manager.task().crashes, crashes);
    // Whoever asks has it tried again.
    fixture.settle();
    assert_eq!((fixture.problem("mine"), fixture.status("mine").state), (None, State::Ready));
}
