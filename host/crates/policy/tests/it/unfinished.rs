//! Changes of the folder that a kill cut short and that cannot be finished at once: they are kept, told and tried again.

use std::path::{Path, PathBuf};

use crate::fixture::Fixture;
use crate::lifecycle::*;
use crate::support::*;
use fulcrum_policy::Outcome;
use fulcrum_policy::artifact::digest;
use fulcrum_policy::lifecycle::{Error, Promote};
use fulcrum_policy::status::{PromotionState, Source};
use serde_json::{Value, json};

/// What lies in the place of a file and cannot be replaced, as in a folder that is mounted read-only.
const OBSTACLE: &str = "mine.wasm.sha256";

/// The folders of a host before and after an order.
struct Order {
    place: tempfile::TempDir,
    /// As it is written down.
    change: Value,
}

impl Order {
    /// Promotes a candidate in place of a configured file.
    fn promotion() -> Self {
        let fixture = Fixture::start();
        let former = fulcrum_policy::lifecycle::Upload {
            config: Some(r#"{"a": 1}"#.to_owned()),
            ..component(&guest(""))
        };
        fixture.push("mine", former).unwrap();
        fixture.bind("mine").unwrap();
        fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
        let waits = fixture.status("mine").candidate.unwrap();
        let version = json!({ "digest": waits.digest, "config": waits.config });
        let change = json!({ "name": "mine", "version": version, "candidate": null });
        let place = tempfile::tempdir().unwrap();
        copy(fixture.folder.path(), &place.path().join("before"));
        fixture.manager.promote("mine", Promote::default()).unwrap();
        copy(fixture.folder.path(), &place.path().join("after"));
        Self { place, change }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    /// A host that was killed once the order was written down, and that finds the obstacle.
    fn cut_short(&self) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        copy(&self.path("before"), folder.path());
        std::fs::copy(self.path("after/keep/_state.json"), folder.path().join("keep/_state.json")).unwrap();
        block(folder.path());
        installing(&folder.path().join("keep"), &self.change);
        let fixture = Fixture::restart(folder);
        fixture.settle();
        fixture
    }
}

fn block(folder: &Path) {
    std::fs::create_dir(folder.join("policies").join(OBSTACLE)).unwrap();
}

fn unblock(fixture: &Fixture) {
    std::fs::remove_dir(fixture.path(OBSTACLE)).unwrap();
    fixture.settle();
}

#[test]
fn a_change_that_cannot_be_finished_is_kept_and_tried_again() {
    let order = Order::promotion();
    let mut fixture = order.cut_short();
    for restart in 0..2 {
        let status = fixture.status("mine");
        assert_eq!(
            (fixture.row(), status.config, status.source),
            (0, json!({"a": 1}), Source::LastGood),
            "{restart}"
        );
        let problem = status.problem.unwrap();
        assert_eq!(
            (problem.code.as_str(), problem.digest),
            ("interrupted", digest(&guest(LAST))),
            "{restart}"
        );
        assert!(problem.message.contains("is a directory"), "{}", problem.message);
        assert_eq!(status.promotion.unwrap().state, PromotionState::Running, "{restart}");
        assert!(fixture.manager.reload().refused.iter().any(|(name, _)| name == "mine"), "{restart}");
        // One change at a time; what needs no file is done.
        let refused = fixture.push("other", component(&guest(TRAP))).unwrap_err();
        assert!(matches!(refused, Error::Folder { .. }), "{refused}");
        assert!(refused.to_string().contains("an earlier order about `mine` is not finished"), "{refused}");
        fixture.bind("mine").unwrap();
        fixture = Fixture::restart(fixture.stop());
        fixture.settle();
    }
    unblock(&fixture);
    let status = fixture.status("mine");
    assert_eq!((fixture.row(), status.config, status.problem), (2, json!({"a": 1}), None));
    assert_eq!((status.source, status.candidate), (Source::File, None));
    assert_eq!(fixture.files(), ["mine.json", "mine.wasm"]);
    fixture.push("other", component(&guest(TRAP))).unwrap();
    let fixture = Fixture::restart(fixture.stop());
    assert_eq!((fixture.row(), fixture.status("mine").problem), (2, None));
}

#[test]
fn a_trial_begins_when_its_change_is_finished() {
    let order = Order::promotion();
    let fixture = order.cut_short();
    assert_eq!(fixture.promotion("mine"), PromotionState::Running);
    unblock(&fixture);
    assert_eq!((fixture.row(), fixture.promotion("mine")), (2, PromotionState::Running));
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!((fixture.row(), fixture.status("mine").config), (0, json!({"a": 1})));
}

#[test]
fn other_files_dropped_meanwhile_win() {
    let order = Order::promotion();
    let fixture = order.cut_short();
    fixture.drop_file("mine.wasm", &guest(TRAP));
    let status = fixture.status("mine");
    assert_eq!((fixture.by(""), status.problem), (Some(digest(&guest(TRAP))), None));
    assert_eq!((status.config, status.source), (json!({"a": 1}), Source::File));
    unblock(&fixture);
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
    fixture.push("other", component(&guest(LAST))).unwrap();
}

/// The files of the policy in a folder, as they are written down: sha256 by suffix.
fn prints(folder: &Path) -> Value {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let print = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let print = digest(&std::fs::read(entry.path()).unwrap());
        (name.strip_prefix("mine").unwrap().to_owned(), Value::String(print))
    };
    Value::Object(files.map(print).collect())
}

#[test]
fn files_dropped_between_a_kill_and_the_start_win() {
    let order = Order::promotion();
    let mut change = order.change.clone();
    let [before, after] = ["before/policies", "after/policies"].map(|path| prints(&order.path(path)));
    change["files"] = json!({ "before": before, "after": after });
    let check = |text: &str, touch: &dyn Fn(&Path), wasm: &[u8], config: Value| {
        let folder = tempfile::tempdir().unwrap();
        copy(&order.path("before"), folder.path());
        std::fs::copy(order.path("after/keep/_state.json"), folder.path().join("keep/_state.json")).unwrap();
        installing(&folder.path().join("keep"), &change);
        touch(&folder.path().join("policies"));
        let fixture = Fixture::restart(folder);
        fixture.settle();
        let status = fixture.status("mine");
        assert_eq!((status.digest, status.config, status.problem), (digest(wasm), config, None), "{text}");
        assert_eq!(std::fs::read(fixture.path("mine.wasm")).unwrap(), wasm, "{text}");
        assert_eq!(fixture.files(), ["mine.json", "mine.wasm"], "{text}");
        fixture.push("other", component(&guest(TRAP))).unwrap();
    };
    let a = || json!({"a": 1});
    let new = order.path("after/policies/mine.wasm");
    check("nothing was done", &|_| {}, &guest(LAST), a());
    check(
        "the first file is there",
        &|at| drop(std::fs::copy(&new, at.join("mine.wasm"))),
        &guest(LAST),
        a(),
    );
    let aside = |at: &Path| std::fs::rename(at.join("mine.wasm"), at.join(".mine.wasm.fulcrum-old")).unwrap();
    check("the first file was moved away", &aside, &guest(LAST), a());
    let write =
        |file: &'static str, bytes: Vec<u8>| move |at: &Path| std::fs::write(at.join(file), &bytes).unwrap();
    check("a component", &write("mine.wasm", guest(TRAP)), &guest(TRAP), a());
    check("a configuration", &write("mine.json", b"{\"b\":2}".to_vec()), &guest(""), json!({"b": 2}));
    let both = |at: &Path| {
        std::fs::copy(&new, at.join("mine.wasm")).unwrap();
        std::fs::write(at.join("mine.json"), b"{\"b\":2}").unwrap();
    };
    check("a configuration over half a change", &both, &guest(LAST), json!({"b": 2}));
}

#[test]
fn a_change_whose_component_is_lost_holds_nobody_up() {
    let order = Order::promotion();
    let fixture = order.cut_short();
    let kept = format!("keep/mine.{}.wasm", digest(&guest(LAST)));
    std::fs::remove_file(fixture.folder.path().join(kept)).unwrap();
    fixture.settle();
    let status = fixture.status("mine");
    assert_eq!((fixture.row(), status.problem, status.source), (0, None, Source::File));
    assert_eq!(fixture.promotion("mine"), PromotionState::Superseded);
    fixture.push("other", component(&guest(TRAP))).unwrap();
}

#[test]
fn what_was_to_be_taken_back_is_not_asked_until_it_is() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.bind("mine").unwrap();
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    fixture.manager.promote("mine", Promote { failures_max: Some(0), ..scoring() }).unwrap();
    let place = tempfile::tempdir().unwrap();
    copy(&fixture.path(""), &place.path().join("policies"));
    assert_eq!(fixture.decide(&armed()).outcome, Outcome::Trap);
    fixture.until("it is taken back", |fixture| fixture.promotion("mine") == PromotionState::Returned);
    copy(&fixture.folder.path().join("keep"), &place.path().join("keep"));
    // As it was when the return had been written down: the failed version has no right to be restored.
    let record = place.path().join("keep/mine.json");
    let mut kept: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    ["digest", "config"].iter().for_each(|key| drop(kept.as_object_mut().unwrap().remove(*key)));
    std::fs::write(&record, kept.to_string()).unwrap();
    block(place.path());
    let change = json!({
        "name": "mine",
        "version": { "digest": digest(&guest(LAST)), "config": {} },
        "candidate": { "digest": digest(&guest(TRAP)), "config": {} },
    });
    installing(&place.path().join("keep"), &change);
    let fixture = Fixture::restart(place);
    fixture.settle();
    let asked = fixture.decide(&armed());
    let by = asked.by.map(|by| by.digest.clone());
    assert_eq!((asked.outcome, by), (Outcome::Ok, Some(digest(&guest("")))), "the default decides");
    assert_eq!(fixture.problem("mine").as_deref(), Some("interrupted"));
    unblock(&fixture);
    assert_eq!((fixture.by(""), fixture.problem("mine")), (Some(digest(&guest(LAST))), None));
}
