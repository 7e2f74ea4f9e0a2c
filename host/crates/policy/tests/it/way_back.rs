//! Ways back of promotions: what they lead to is not removed, is put back, or is told to be lost; what failed is not asked
//! again whatever keeps it from being taken back; and rollbacks that others overtake.

use crate::fixture::Fixture;
use crate::lifecycle::*;
use crate::support::*;
use fulcrum_policy::Outcome;
use fulcrum_policy::artifact::digest;
use fulcrum_policy::lifecycle::{Error, Promote};
use fulcrum_policy::status::{PromotionState, Rebind, Way};
use serde_json::{Value, json};

/// On trial is `mine`, which crashes when it is armed; its way back leads to `old`.
fn on_trial() -> Fixture {
    let fixture = Fixture::start();
    fixture.push("old", component(&guest(LAST))).unwrap();
    fixture.bind("old").unwrap();
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    fixture.manager.promote("mine", Promote { failures_max: Some(0), ..scoring() }).unwrap();
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
    fixture
}

fn missing(fixture: &Fixture) -> String {
    fixture.status("mine").promotion.unwrap().from.problem.unwrap_or_default()
}

/// Lets `mine` fail, until it is taken back; returns why it was.
fn fail(fixture: &Fixture) -> String {
    assert_eq!(fixture.decide(&armed()).outcome, Outcome::Trap);
    fixture.until("it is taken back", |fixture| fixture.promotion("mine") == PromotionState::Returned);
    fixture.status("mine").promotion.unwrap().reason.unwrap()
}

#[test]
fn what_a_promotion_on_trial_would_return_to_is_not_removed() {
    let fixture = on_trial();
    for force in [false, true] {
        let error = fixture.manager.remove("old", force, Vec::new()).unwrap_err();
        assert!(matches!(&error, Error::WayBack { promoted, .. } if promoted == "mine"), "{error}");
        let text = error.to_string();
        assert!(text.contains("`fulcrum policy promote mine --accept`"), "{text}");
        assert!(text.contains("`fulcrum policy rollback mine`"), "{text}");
    }
    assert_eq!(fixture.files(), ["mine.wasm", "old.wasm"]);
    fixture.manager.promote("mine", Promote { accept: true, ..Promote::default() }).unwrap();
    fixture.manager.remove("old", false, Vec::new()).unwrap();
    assert_eq!(fixture.files(), ["mine.wasm"]);
    // Where the way back is none any more because something else was bound, too.
    let fixture = on_trial();
    fixture.bind("base").unwrap();
    fixture.manager.remove("old", false, Vec::new()).unwrap();
}

#[test]
fn a_policy_whose_file_is_gone_is_put_back_when_a_way_back_leads_to_it() {
    for (is_by_hand, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
        let told = format!("by hand: {is_by_hand}, restarts: {restarts}");
        let fixture = on_trial();
        assert_eq!(missing(&fixture), "");
        fixture.remove("old.wasm");
        let fixture = if restarts { Fixture::restart(fixture.stop()) } else { fixture };
        fixture.settle();
        assert!(
            missing(&fixture).starts_with("`old` has no file any more; "),
            "{told}: {}",
            missing(&fixture)
        );
        assert!(missing(&fixture).ends_with("is kept and put back if this is taken back"), "{told}");
        if is_by_hand {
            fixture.manager.roll_back("mine", None).unwrap();
        } else {
            let reason = fail(&fixture);
            assert!(!reason.contains("old"), "{told}: {reason}");
        }
        assert_eq!((fixture.by(""), fixture.row()), (Some(digest(&guest(LAST))), 2), "{told}");
        assert_eq!(fixture.manager.bindings().scoring, "old", "{told}");
        assert_eq!(fixture.files(), ["old.wasm"], "{told}");
        let came = if is_by_hand { Way::RolledBack } else { Way::Returned };
        assert_eq!(fixture.status("old").versions[0].came_by, Some(came), "{told}");
        let fixture = Fixture::restart(fixture.stop());
        assert_eq!(fixture.by(""), Some(digest(&guest(LAST))), "{told}");
    }
}

#[test]
fn a_way_back_that_is_lost_is_told() {
    let fixture = on_trial();
    fixture.remove("old.wasm");
    let kept = format!("keep/old.{}.wasm", digest(&guest(LAST)));
    std::fs::remove_file(fixture.folder.path().join(kept)).unwrap();
    drop(fixture.bind("mine"));
    let expected =
        "`old` has no version that can be used; if this is taken back, the default, `base`, decides";
    assert_eq!(missing(&fixture), expected);
    let reason = fail(&fixture);
    let expected = "`old` is bound again, but cannot be used (it has no file): the default, `base`, decides";
    assert!(reason.ends_with(expected), "{reason}");
    assert_eq!((fixture.by(""), missing(&fixture)), (Some(digest(&guest(""))), String::new()));
    let fixture = Fixture::restart(fixture.stop());
    assert!(fixture.status("mine").promotion.unwrap().reason.unwrap().ends_with(expected));

    // Of claims, by hand.
    let claiming = Rebind { claiming: Some("steady".to_owned()), ..Rebind::default() };
    fixture.push("steady", component(&claims(false))).unwrap();
    fixture.manager.bind(claiming).unwrap();
    fixture.push("plans", candidate(component(&claims(true)))).unwrap();
    fixture.manager.promote("plans", Promote { claiming: true, ..Promote::default() }).unwrap();
    fixture.remove("steady.wasm");
    let kept = format!("keep/steady.{}.wasm", digest(&claims(false)));
    std::fs::remove_file(fixture.folder.path().join(kept)).unwrap();
    fixture.manager.roll_back("plans", None).unwrap();
    let reason = fixture.status("plans").promotion.unwrap().reason.unwrap();
    assert!(
        reason.ends_with("`steady` is bound again, but cannot be used (it has no file): the fallback plans")
    );
}

#[test]
fn what_had_no_version_before_is_none_that_is_lost() {
    let settings = |settings: &mut fulcrum_policy::manager::Settings| settings.scoring = "none".to_owned();
    let fixture = Fixture::restart_with(tempfile::tempdir().unwrap(), settings);
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    fixture.manager.promote("mine", scoring()).unwrap();
    assert!(missing(&fixture).contains("if this is taken back, the default, `base`, decides"));
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!((fixture.row(), fixture.manager.bindings().scoring.as_str()), (0, "none"));
}

#[test]
fn a_spent_version_is_not_asked_after_a_restart_either() {
    // By its budget, and by its breaker.
    for failures_max in [0, 1000] {
        let fixture = Fixture::start();
        fixture.push("mine", component(&guest(LAST))).unwrap();
        fixture.bind("mine").unwrap();
        fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
        let wish = Promote { failures_max: Some(failures_max), ..scoring() };
        fixture.manager.promote("mine", wish).unwrap();
        // The way back is blocked.
        std::fs::create_dir(fixture.path("mine.wasm.sha256")).unwrap();
        fixture.until("it is spent", |fixture| fixture.decide(&armed()).outcome == Outcome::Open);
        fixture.settle();
        let mut fixture = fixture;
        for restart in 0..2 {
            fixture = Fixture::restart(fixture.stop());
            fixture.settle();
            let asked = fixture.decide(&armed());
            assert_eq!((asked.outcome, asked.by), (Outcome::Open, None), "{failures_max}, restart {restart}");
            assert_eq!(fixture.promotion("mine"), PromotionState::Running);
        }
        std::fs::remove_dir(fixture.path("mine.wasm.sha256")).unwrap();
        fixture.settle();
        fixture.until("it is taken back", |fixture| fixture.promotion("mine") == PromotionState::Returned);
        assert_eq!(fixture.by(""), Some(digest(&guest(LAST))), "{failures_max}");
        // A later trial of it begins with a budget of its own.
        fixture.manager.promote("mine", Promote { again: true, ..scoring() }).unwrap();
        assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))), "{failures_max}");
    }
}

#[test]
fn a_rollback_that_others_overtook_is_refused_as_a_promotion_is() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.push("mine", component(&claims(false))).unwrap();
    // The former version is not loaded any more, and there is no room for a third one.
    let fixture = Fixture::restart_with(fixture.stop(), |settings| settings.keep_versions = 2);
    let gate = fixture.host.gate.lock();
    std::thread::scope(|scope| {
        let rollback = scope.spawn(|| fixture.manager.roll_back("mine", None));
        fixture.until("the rollback has begun", |fixture| {
            fixture.manager.policy("mine").is_err_and(|text| text.contains("being rolled back"))
        });
        // Its proof needs no snapshot, since it does not score.
        fixture.push("mine", component(&claims(true))).unwrap();
        drop(gate);
        let overtaken = rollback.join().unwrap();
        assert!(matches!(overtaken, Err(Error::Overtaken(_))), "{overtaken:?}");
    });
    assert_eq!(fixture.status("mine").digest, digest(&claims(true)));
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!(fixture.status("mine").digest, digest(&claims(false)));
}

#[test]
fn a_promotion_of_a_name_that_is_gone_is_forgotten() {
    let fixture = Fixture::start();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    fixture.manager.promote("mine", scoring()).unwrap();
    fixture.manager.promote("mine", Promote { accept: true, ..Promote::default() }).unwrap();
    let folder = fixture.stop();
    let path = folder.path().join("keep/_state.json");
    let stored = |path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let mut state = stored(&path);
    state["promotions"]["gone"] = state["promotions"]["mine"].clone();
    std::fs::write(&path, state.to_string()).unwrap();
    let fixture = Fixture::restart(folder);
    let state = stored(&path);
    assert_eq!(
        (&state["promotions"]["gone"], &state["promotions"]["mine"]["state"]),
        (&Value::Null, &json!("passed"))
    );
    assert_eq!(fixture.promotion("mine"), PromotionState::Passed);
}
