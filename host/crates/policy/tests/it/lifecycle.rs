//! The life cycle of versions on real folders: pushing, promoting, taking back, rolling back, and kills in between.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::support::testing::cycle;
use crate::support::*;
use fulcrum_core::claiming::Cycle;
use fulcrum_core::time::Clock as _;
use fulcrum_policy::artifact::digest;
use fulcrum_policy::lifecycle::{EMBEDDED, Error, Promote, TriedOn, Upload};
use fulcrum_policy::manager::BindError;
use fulcrum_policy::planner::Wish;
use fulcrum_policy::status::{Canary, PromotionState, Rebind, Source, State, TaskState, Way};
use fulcrum_policy::trust::{Content, PrivateKey, TrustedKeys};
use fulcrum_policy::{Gone, Outcome, Planner};
use serde_json::{Value, json};

/// Chooses the last row that may be chosen; the base guest chooses the first.
pub(super) const LAST: &str = include_str!("../last.wat");
/// Crashes when a client with a name of 66 bytes asks.
pub(super) const TRAP: &str = include_str!("../guests/trap.wat");

pub(super) fn armed() -> String {
    "x".repeat(66)
}

pub(super) fn component(wasm: &[u8]) -> Upload {
    Upload { component: Some(wasm.to_vec()), ..Upload::default() }
}

pub(super) fn config(text: &str) -> Upload {
    Upload { config: Some(text.to_owned()), ..Upload::default() }
}

pub(super) fn candidate(upload: Upload) -> Upload {
    Upload { is_candidate: true, ..upload }
}

pub(super) fn scoring() -> Promote {
    Promote { scoring: true, ..Promote::default() }
}

fn canary(policy: &str, share: f64) -> Rebind {
    Rebind { canary: Some(Some(Canary { policy: policy.to_owned(), share })), ..Rebind::default() }
}

/// The smallest claiming policy, made to crash when a group with a name of 66 bytes is planned.
pub(super) fn claims(crashes: bool) -> Vec<u8> {
    let text = include_str!("../tiny.wat")
        .replace("(memory (;0;) 1)", "(memory (;0;) 256) (global (mut i32) (i32.const 1024))")
        .replace(
            "i32.const 1024\n",
            "global.get 0 global.get 0 local.get 3 i32.add i32.const 7 i32.add i32.const -8 i32.and global.set 0\n",
        );
    let plan =
        if crashes { "local.get 0 i32.load offset=4 i32.const 66 i32.eq if unreachable end" } else { "" };
    let (before, after) = text.split_once("(func (;3;) (type 3) (param i32) (result i32)").unwrap();
    let text = format!(
        "{before}(func (;3;) (type 3) (param i32) (result i32)
        {plan} i32.const 1024 global.set 0 {after}"
    );
    wat::parse_str(text).unwrap()
}

impl Fixture {
    pub(super) fn push(&self, name: &str, upload: Upload) -> Result<(), Error> {
        self.manager.push(name, upload)
    }

    pub(super) fn code(&self, name: &str, upload: Upload) -> &'static str {
        match self.push(name, upload) {
            Err(Error::Refused(refusal)) => refusal.code(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn promotion(&self, name: &str) -> PromotionState {
        self.status(name).promotion.unwrap().state
    }

    /// Who decides for a client, by digest.
    pub(super) fn by(&self, client: &str) -> Option<String> {
        self.decide(client).by.map(|identity| identity.digest.clone())
    }

    /// The files of the folder that are no work in progress.
    pub(super) fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(super) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
            std::thread::yield_now();
        }
    }

    fn configs(&self, name: &str) -> Vec<(Value, bool)> {
        let kept = self.status(name).versions;
        kept.into_iter().map(|version| (version.config, version.in_use)).collect()
    }
}

#[test]
fn what_is_pushed_lies_in_the_folder_and_serves() {
    let fixture = Fixture::start();
    fixture.push("base", component(&guest(LAST))).unwrap();
    assert_eq!((fixture.row(), fixture.status("base").source), (2, Source::File));
    assert_eq!(std::fs::read(fixture.path("base.wasm")).unwrap(), guest(LAST));
    fixture.push("base", config(r#"{"a": 1}"#)).unwrap();
    assert_eq!((fixture.row(), fixture.status("base").config), (2, json!({"a": 1})));
    // A component alone keeps the configuration.
    fixture.push("base", component(&guest(""))).unwrap();
    assert_eq!((fixture.row(), fixture.status("base").config), (0, json!({"a": 1})));
    let both = Upload { config: Some("{}".to_owned()), ..component(&guest(LAST)) };
    fixture.push("base", both).unwrap();
    assert_eq!((fixture.files(), fixture.row()), (vec!["base.wasm".to_owned()], 2));
    assert!(fixture.manager.reload().changed.is_empty(), "the folder brings nothing new");
    // A digest file that was about another component does not stay.
    std::fs::write(fixture.path("base.wasm.sha256"), digest(&guest(LAST))).unwrap();
    fixture.push("base", component(&guest(TRAP))).unwrap();
    assert_eq!((fixture.files(), fixture.row()), (vec!["base.wasm".to_owned()], 0));
    let fixture = Fixture::restart(fixture.stop());
    fixture.settle();
    assert_eq!((fixture.row(), fixture.status("base").source), (0, Source::File));
    // What is dropped later wins.
    fixture.drop_file("base.wasm", &guest(LAST));
    assert_eq!(fixture.row(), 2);
}

#[test]
fn embedded_policies_are_configured_too() {
    let fixture = Fixture::start();
    fixture.push("base", config(r#"{"a": 1}"#)).unwrap();
    let status = fixture.status("base");
    assert_eq!((status.source, &status.config), (Source::Embedded, &json!({"a": 1})));
    assert_eq!(fixture.files(), ["base.json"]);
    fixture.push("base", config("{}")).unwrap();
    assert!(fixture.files().is_empty());
    assert_eq!(fixture.status("base").config, json!({}));
    assert_eq!(fixture.configs("base"), [(json!({}), true), (json!({"a": 1}), false)]);
    assert!(matches!(fixture.push("nobody", config("{}")), Err(Error::NoComponent(_))));
}

#[test]
fn what_is_refused_changes_nothing() {
    let fixture = Fixture::start();
    fixture.push("base", component(&guest(LAST))).unwrap();
    let cases = [
        ("empty", Vec::new()),
        ("precompiled", b"\x7fELF".to_vec()),
        ("text", b"(module)".to_vec()),
        ("not_wasm", b"garbage".to_vec()),
        ("core_module", wat::parse_str("(module)").unwrap()),
        ("law", guest(include_str!("../guests/remembers.wat"))),
        ("describe", guest(include_str!("../guests/loop-describe.wat"))),
    ];
    for is_candidate in [false, true] {
        for (code, bytes) in &cases {
            let upload = Upload { is_candidate, ..component(bytes) };
            assert_eq!(fixture.code("base", upload), *code);
            assert_eq!(fixture.code("fresh", Upload { is_candidate, ..component(bytes) }), *code);
        }
    }
    assert_eq!(fixture.code("base", config("[]")), "config_syntax");
    assert_eq!(fixture.code("base", config("{")), "config_syntax");
    for name in ["", "-rf", "a/b", "..", ".hidden", "a.b", &"x".repeat(65), "Ä"] {
        assert!(matches!(fixture.push(name, component(&guest(LAST))), Err(Error::Name)), "{name:?}");
    }
    assert!(matches!(fixture.push("base", Upload::default()), Err(Error::Nothing)));
    let status = fixture.status("base");
    assert_eq!((fixture.row(), status.problem, status.candidate), (2, None, None));
    assert_eq!(fixture.files(), ["base.wasm"]);
    assert_eq!(fixture.manager.statuses().len(), 1);
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_is_named_and_nothing_changes() {
    use std::os::unix::fs::PermissionsExt as _;

    let fixture = Fixture::start();
    fixture.push("base", component(&guest(LAST))).unwrap();
    fixture.push("base", candidate(component(&guest("")))).unwrap();
    let close = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let (policies, keep) = (fixture.path(""), fixture.folder.path().join("keep"));
    close(&policies, 0o500);
    let probe = std::fs::write(policies.join("probe"), b"").is_ok();
    if probe {
        // The superuser may write anywhere; nothing to be seen here.
        close(&policies, 0o700);
        std::fs::remove_file(policies.join("probe")).unwrap();
        return;
    }
    let orders = |fixture: &Fixture| {
        [
            fixture.push("base", component(&guest(TRAP))),
            fixture.manager.promote("base", scoring()),
            fixture.manager.roll_back("base", None),
            fixture.manager.remove("base", false, Vec::new()),
        ]
    };
    for order in orders(&fixture) {
        assert!(matches!(order, Err(Error::Folder { .. })), "{order:?}");
    }
    close(&policies, 0o700);
    close(&keep, 0o500);
    for order in orders(&fixture) {
        assert!(matches!(order, Err(Error::State { .. })), "{order:?}");
    }
    close(&keep, 0o700);
    let status = fixture.status("base");
    assert_eq!((fixture.row(), status.promotion, status.digest), (2, None, digest(&guest(LAST))));
    assert!(status.candidate.is_some());
    assert_eq!(fixture.files(), ["base.wasm"]);
}

#[test]
fn what_was_refused_leaves_no_component_behind() {
    let fixture = Fixture::start();
    let keep = fixture.folder.path().join("keep");
    let components = || -> Vec<_> {
        let names = std::fs::read_dir(&keep).unwrap().map(|entry| entry.unwrap().file_name());
        names
            .map(|name| name.into_string().unwrap())
            .filter(|name| name.contains(".wasm") || name.ends_with("new"))
            .collect()
    };
    // The folder takes no file of that name, and the record of the other one cannot be written.
    std::fs::create_dir(fixture.path("mine.wasm")).unwrap();
    std::fs::create_dir(keep.join("other.json")).unwrap();
    let refused = fixture.push("mine", component(&guest(LAST)));
    assert!(matches!(refused, Err(Error::Folder { .. })), "{refused:?}");
    let refused = fixture.push("other", candidate(component(&guest(LAST))));
    assert!(matches!(refused, Err(Error::State { .. })), "{refused:?}");
    assert!(components().is_empty(), "{:?}", components());
    std::fs::remove_dir(fixture.path("mine.wasm")).unwrap();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    assert_eq!(components(), [format!("mine.{}.wasm", digest(&guest(LAST)))]);
}

#[test]
fn a_candidate_waits_over_a_restart_and_does_not_serve() {
    let fixture = Fixture::start();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    fixture.push("base", candidate(component(&guest(LAST)))).unwrap();
    let check = |fixture: &Fixture| {
        assert_eq!((fixture.row(), fixture.files().len()), (0, 0));
        let status = fixture.status("mine");
        assert_eq!((status.state, status.digest.as_str()), (State::Candidate, ""));
        assert_eq!(status.candidate.unwrap().digest, digest(&guest(LAST)));
        let loaded = fixture.manager.candidate("mine").unwrap();
        assert_eq!(loaded.artifact().digest(), digest(&guest(LAST)));
        assert_eq!(fixture.manager.candidate("base").unwrap().artifact().digest(), digest(&guest(LAST)));
        assert_eq!(fixture.manager.policy("base").unwrap().artifact().digest(), digest(&guest("")));
        assert!(fixture.bind("mine").unwrap_err().to_string().contains("candidate only"));
    };
    check(&fixture);
    let fixture = Fixture::restart(fixture.stop());
    check(&fixture);
    // A configuration goes to the candidate, not to what serves.
    fixture.push("mine", candidate(config(r#"{"a": 1}"#))).unwrap();
    assert_eq!(fixture.status("mine").candidate.unwrap().config, json!({"a": 1}));
    assert!(matches!(fixture.manager.remove("mine", true, Vec::new()), Err(Error::OnlyCandidate(_))));
    fixture.manager.drop_candidate("mine").unwrap();
    assert!(matches!(fixture.manager.drop_candidate("mine"), Err(Error::Unknown(_))));
    fixture.manager.drop_candidate("base").unwrap();
    assert!(matches!(fixture.manager.drop_candidate("base"), Err(Error::NoCandidate(_))));
    assert_eq!(fixture.manager.candidate("base").unwrap().artifact().digest(), digest(&guest("")));
}

#[test]
fn rolling_back_goes_back_and_forth() {
    let fixture = Fixture::start();
    assert!(matches!(fixture.manager.roll_back("nobody", None), Err(Error::Unknown(_))));
    assert!(matches!(fixture.manager.roll_back("base", None), Err(Error::NoFormer(_))));
    fixture.push("base", component(&guest(LAST))).unwrap();
    for expected in [0, 2, 0, 2] {
        fixture.manager.roll_back("base", None).unwrap();
        assert_eq!(fixture.row(), expected);
        assert_eq!(fixture.files().len(), expected / 2, "the embedded version has no file");
    }
    let number = |number: u32| config(&format!(r#"{{"number": {number}}}"#));
    for at in 1..=6 {
        fixture.push("base", number(at)).unwrap();
    }
    let used: Vec<_> =
        fixture.configs("base").into_iter().map(|(config, used)| (config["number"].as_u64(), used)).collect();
    let some = |number| (Some(number), false);
    // Five, and the embedded one, which can always be returned to.
    assert_eq!(used, [(Some(6), true), some(5), some(4), some(3), some(2), (None, false)]);
    for expected in [5, 6, 5] {
        fixture.manager.roll_back("base", None).unwrap();
        assert_eq!(fixture.status("base").config["number"], expected);
    }
    fixture.manager.roll_back("base", Some(EMBEDDED)).unwrap();
    assert_eq!((fixture.row(), fixture.files().len()), (0, 0));
    assert!(matches!(fixture.manager.roll_back("base", Some(EMBEDDED)), Err(Error::AlreadyInUse(_))));
    let fixture = Fixture::restart(fixture.stop());
    fixture.manager.roll_back("base", Some(&digest(&guest(LAST))[..8])).unwrap();
    assert_eq!((fixture.row(), fixture.status("base").config["number"].as_u64()), (2, Some(5)));
    let error = fixture.manager.roll_back("base", Some("00ff00")).unwrap_err().to_string();
    assert!(error.contains(&digest(&guest(LAST))[..12]), "{error}");
    // What was deleted can be returned to.
    fixture.drop_file("mine.wasm", &guest(LAST));
    fixture.remove("mine.wasm");
    assert_eq!(fixture.status("mine").state, State::Removed);
    let error = fixture.bind("mine").unwrap_err().to_string();
    assert!(error.contains("`fulcrum policy rollback mine` brings its last one back"), "{error}");
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!(fixture.status("mine").digest, digest(&guest(LAST)));
}

#[test]
fn files_are_removed_unless_they_are_needed() {
    let fixture = Fixture::start();
    assert!(matches!(fixture.manager.remove("base", true, Vec::new()), Err(Error::Embedded(_))));
    assert!(matches!(fixture.manager.remove("nobody", true, Vec::new()), Err(Error::Unknown(_))));
    fixture.push("base", component(&guest(LAST))).unwrap();
    fixture.manager.remove("base", false, Vec::new()).unwrap();
    assert_eq!(
        (fixture.row(), fixture.files().len(), fixture.status("base").source),
        (0, 0, Source::Embedded)
    );
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.bind("mine").unwrap();
    let error = fixture.manager.remove("mine", false, Vec::new()).unwrap_err();
    assert!(matches!(&error, Error::InUse { roles, .. } if roles == &["scoring"]), "{error}");
    assert_eq!(fixture.row(), 2);
    fixture.manager.remove("mine", true, Vec::new()).unwrap();
    assert_eq!((fixture.row(), fixture.files().len()), (0, 0));
    // It stays in sight, and comes back.
    let status = fixture.status("mine");
    assert_eq!((status.state, status.digest.as_str(), status.versions.len()), (State::Removed, "", 1));
    assert_eq!(status.versions[0].left.as_ref().map(|left| left.by), Some(Way::Removed));
    assert!(matches!(fixture.manager.remove("mine", true, Vec::new()), Err(Error::Removed(_))));
    let error = fixture.manager.promote("mine", scoring()).unwrap_err();
    assert!(matches!(error, Error::Removed(_)), "{error}");
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!((fixture.row(), fixture.status("mine").state), (2, State::Live));
    let own = vec!["orders".to_owned()];
    fixture.bind("base").unwrap();
    let error = fixture.manager.remove("mine", false, own.clone()).unwrap_err().to_string();
    assert!(error.contains("bound to group orders (by its own setting)"), "{error}");
    fixture.manager.remove("mine", true, own).unwrap();
}

#[test]
fn a_promoted_candidate_serves_and_stands_its_trial() {
    let fixture = Fixture::start();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    assert!(matches!(fixture.manager.promote("nobody", scoring()), Err(Error::Unknown(_))));
    let error = fixture.manager.promote("mine", Promote::default()).unwrap_err();
    assert!(matches!(error, Error::NoRole(_)), "{error}");
    let wrong = Promote { claiming: true, ..Promote::default() };
    assert!(fixture.manager.promote("mine", wrong).unwrap_err().to_string().contains("claiming role"));
    fixture.manager.promote("mine", Promote { decisions: Some(10), ..scoring() }).unwrap();
    assert_eq!((fixture.row(), fixture.files()), (2, vec!["mine.wasm".to_owned()]));
    let status = fixture.status("mine");
    let promotion = status.promotion.unwrap();
    assert_eq!(
        (promotion.state, promotion.asked, promotion.budget.decisions),
        (PromotionState::Running, 1, 10)
    );
    assert_eq!((promotion.from.bindings.scoring.as_deref(), status.candidate), (Some("base"), None));
    assert!(matches!(fixture.manager.promote("mine", scoring()), Err(Error::NothingToPromote(_))));
    // It goes on over a restart, and so does what it counted, if it was stored.
    fixture.clock.advance(Duration::from_secs(61));
    drop(fixture.manager.reload());
    let fixture = Fixture::restart(fixture.stop());
    let promotion = fixture.status("mine").promotion.unwrap();
    assert_eq!((fixture.row(), promotion.state, promotion.asked), (2, PromotionState::Running, 1));
    (0..8).for_each(|_| assert_eq!(fixture.row(), 2));
    fixture.until("it passes", |fixture| fixture.promotion("mine") == PromotionState::Passed);
    assert_eq!((fixture.manager.ended().passed, fixture.manager.bindings().scoring.as_str()), (1, "mine"));
    // Without a word on roles, what is bound stays bound.
    fixture.push("mine", candidate(component(&guest("")))).unwrap();
    fixture.manager.promote("mine", Promote::default()).unwrap();
    assert_eq!((fixture.row(), fixture.promotion("mine")), (0, PromotionState::Running));
    let fixture = Fixture::restart(fixture.stop());
    assert_eq!(fixture.manager.bindings().scoring, "mine", "what was bound at run time survives");
    assert_eq!(fixture.promotion("mine"), PromotionState::Running);
    assert_eq!(fixture.manager.unbind().unwrap().scoring, "base");
}

#[test]
fn a_failing_promotion_is_taken_back_within_its_budget() {
    // What served before: the embedded version, a file, and another policy's binding.
    for before in ["embedded", "file", "binding"] {
        let fixture = Fixture::start();
        let name = if before == "binding" { "mine" } else { "base" };
        if before == "file" {
            fixture.push("base", component(&guest(LAST))).unwrap();
        }
        let (row, by) = (fixture.row(), fixture.by(""));
        fixture.push(name, candidate(component(&guest(TRAP)))).unwrap();
        fixture.manager.promote(name, Promote { failures_max: Some(1), ..scoring() }).unwrap();
        assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))), "{before}");
        // Every request is answered.
        for expected in [Outcome::Trap, Outcome::Trap] {
            assert_eq!(fixture.decide(&armed()).outcome, expected, "{before}");
        }
        fixture.until("it is taken back", |fixture| fixture.promotion(name) == PromotionState::Returned);
        assert_eq!((fixture.row(), fixture.by("")), (row, by.clone()), "{before}");
        assert_eq!(fixture.manager.bindings().scoring, "base");
        let status = fixture.status(name);
        let reason = status.promotion.as_ref().unwrap().reason.clone().unwrap();
        assert!(reason.starts_with("2 of 3 decisions failed; the last one: trap"), "{reason}");
        assert_eq!(status.candidate.unwrap().digest, digest(&guest(TRAP)), "for its author to look at");
        assert_eq!(fixture.files().len(), usize::from(before == "file"), "{before}");
        assert_eq!((fixture.manager.ended().returned, fixture.manager.ended().rolled_back), (1, 0));
        let fixture = Fixture::restart(fixture.stop());
        assert_eq!((fixture.row(), fixture.by("")), (row, by), "{before}");
        assert_eq!(fixture.promotion(name), PromotionState::Returned);
    }
}

#[test]
fn an_opened_breaker_ends_a_promotion_too() {
    let fixture = Fixture::start();
    fixture.push("base", candidate(component(&guest(TRAP)))).unwrap();
    fixture.manager.promote("base", Promote { failures_max: Some(1000), ..Promote::default() }).unwrap();
    fixture.until("it is taken back", |fixture| {
        drop(fixture.decide(&armed()));
        fixture.promotion("base") == PromotionState::Returned
    });
    let reason = fixture.status("base").promotion.unwrap().reason.unwrap();
    assert!(reason.contains("its breaker opened"), "{reason}");
    // It can be promoted again: it failed, but it is not in quarantine.
    fixture.manager.promote("base", Promote { again: true, ..Promote::default() }).unwrap();
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
}

#[test]
fn plans_count_against_the_budget() {
    let fixture = Fixture::start();
    let planner = Planner::new(fixture.manager.clone(), fixture.clock.clone());
    fixture.push("steady", component(&claims(false))).unwrap();
    let claiming = Rebind { claiming: Some("steady".to_owned()), ..Rebind::default() };
    fixture.manager.bind(claiming).unwrap();
    fixture.push("mine", candidate(component(&claims(true)))).unwrap();
    let wish =
        Promote { groups: vec!["g".to_owned()], claiming: true, failures_max: Some(0), ..Promote::default() };
    fixture.manager.promote("mine", wish).unwrap();
    let plan = |group: &str| {
        let cycle = Cycle { group: group.to_owned(), ..cycle(1, &[]) };
        planner.plan(group, &Wish { policy: None, config: json!({}) }, &cycle)
    };
    assert_eq!(plan("g").by.unwrap().name, "mine");
    assert_eq!(plan(&armed()).outcome, Outcome::Trap, "and the fallback plans");
    fixture.until("it is taken back", |fixture| fixture.promotion("mine") == PromotionState::Returned);
    let bindings = fixture.manager.bindings();
    assert_eq!((bindings.claiming.as_str(), bindings.groups.len()), ("steady", 0));
    assert_eq!(plan(&armed()).by.unwrap().name, "steady");
}

#[test]
fn a_promotion_rolled_back_by_hand_gives_its_bindings_back() {
    let fixture = Fixture::start();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    fixture.manager.promote("mine", scoring()).unwrap();
    assert_eq!(fixture.row(), 2);
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!((fixture.row(), fixture.files().len()), (0, 0));
    assert_eq!(fixture.manager.bindings().scoring, "base");
    assert_eq!((fixture.manager.ended().rolled_back, fixture.manager.ended().returned), (1, 0));
    let status = fixture.status("mine");
    assert_eq!(status.promotion.unwrap().state, PromotionState::RolledBack);
    let candidate = status.candidate.unwrap();
    assert_eq!((candidate.digest, candidate.taken_back), (digest(&guest(LAST)), None), "nothing is lost");
    // The second call goes forth: with its bindings, on trial anew, also after a restart.
    let fixture = Fixture::restart(fixture.stop());
    fixture.manager.roll_back("mine", None).unwrap();
    let status = fixture.status("mine");
    assert_eq!((fixture.row(), status.candidate, fixture.files().len()), (2, None, 1));
    assert_eq!((fixture.manager.bindings().scoring.as_str(), status.promotion.unwrap().asked), ("mine", 0));
    assert_eq!(fixture.promotion("mine"), PromotionState::Running);
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!((fixture.row(), fixture.files().len()), (0, 0));
    // Only bindings: another policy that is there already, promoted and taken back.
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.manager.promote("mine", scoring()).unwrap();
    assert_eq!((fixture.row(), fixture.promotion("mine")), (2, PromotionState::Running));
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!((fixture.row(), fixture.files().len()), (0, 1));
    assert_eq!(fixture.promotion("mine"), PromotionState::RolledBack);
    // What was bound by hand since stays.
    fixture.manager.roll_back("mine", None).unwrap();
    assert_eq!((fixture.row(), fixture.promotion("mine")), (2, PromotionState::Running));
    fixture.push("other", component(&guest(TRAP))).unwrap();
    fixture.bind("other").unwrap();
    assert_eq!(fixture.promotion("mine"), PromotionState::Superseded);
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
}

#[test]
fn a_version_on_trial_is_no_way_back() {
    let fixture = Fixture::start();
    let accept = || Promote { accept: true, ..Promote::default() };
    let on_trial = |order: Result<(), Error>| match order {
        Err(error @ Error::OnTrial { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    fixture.push("base", candidate(component(&guest(LAST)))).unwrap();
    fixture.manager.promote("base", Promote::default()).unwrap();
    assert_eq!(fixture.row(), 2);
    // The same name, and another one.
    fixture.push("base", candidate(component(&guest(TRAP)))).unwrap();
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    let error = on_trial(fixture.manager.promote("base", Promote::default()));
    assert!(error.contains("(1 of 1000 decisions, 0 of at most 5 failures)"), "{error}");
    assert!(error.contains("`fulcrum policy rollback base`"), "{error}");
    on_trial(fixture.manager.promote("mine", scoring()));
    assert_eq!((fixture.row(), fixture.promotion("base")), (2, PromotionState::Running));
    fixture.manager.promote("mine", Promote { failures_max: Some(0), accept: true, ..scoring() }).unwrap();
    assert_eq!((fixture.promotion("base"), fixture.manager.ended().passed), (PromotionState::Passed, 1));
    drop(fixture.decide(&armed()));
    fixture.until("it is taken back", |fixture| fixture.promotion("mine") == PromotionState::Returned);
    assert_eq!((fixture.row(), fixture.by("")), (2, Some(digest(&guest(LAST)))));
    // Of the same name.
    fixture.manager.promote("base", Promote { failures_max: Some(0), ..accept() }).unwrap();
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
    fixture.push("base", candidate(component(&guest("")))).unwrap();
    on_trial(fixture.manager.promote("base", Promote::default()));
    fixture.manager.promote("base", accept()).unwrap();
    assert_eq!((fixture.by(""), fixture.manager.ended().passed), (Some(digest(&guest(""))), 2));
    let promotion = fixture.status("base").promotion.unwrap();
    assert_eq!((promotion.state, promotion.asked), (PromotionState::Running, 1));
    assert_eq!(promotion.from.digest, Some(digest(&guest(TRAP))));
    // Nothing but that.
    fixture.manager.promote("base", accept()).unwrap();
    assert_eq!((fixture.promotion("base"), fixture.manager.ended().passed), (PromotionState::Passed, 3));
    assert!(matches!(fixture.manager.promote("base", accept()), Err(Error::NothingToPromote(_))));
}

#[test]
fn a_trial_goes_on_with_the_next_version() {
    let next = [
        ("component", component(&guest(include_str!("../guests/divide.wat")))),
        ("configuration", config(r#"{"a": 1}"#)),
        ("file", component(&guest(include_str!("../guests/nan.wat")))),
    ];
    for (what, upload) in next {
        for is_by_hand in [false, true] {
            let fixture = Fixture::start();
            fixture.push("mine", component(&guest(LAST))).unwrap();
            fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
            fixture.manager.promote("mine", Promote { failures_max: Some(0), ..scoring() }).unwrap();
            fixture.push("mine", config(r#"{"b": 2}"#)).unwrap();
            let _decision = fixture.row();
            match what {
                "file" => fixture.drop_file("mine.wasm", upload.component.as_deref().unwrap()),
                _ => fixture.push("mine", upload.clone()).unwrap(),
            }
            let fixture = if is_by_hand { Fixture::restart(fixture.stop()) } else { fixture };
            let status = fixture.status("mine");
            let promotion = status.promotion.unwrap();
            assert_eq!((promotion.state, promotion.asked), (PromotionState::Running, 0), "{what}");
            assert_eq!((&promotion.digest, &promotion.config), (&status.digest, &status.config), "{what}");
            assert_eq!(promotion.from.digest, Some(digest(&guest(LAST))), "{what}");
            if is_by_hand {
                fixture.manager.roll_back("mine", None).unwrap();
            } else {
                drop(fixture.decide(&armed()));
                fixture.until("it is taken back", |fixture| {
                    fixture.promotion("mine") == PromotionState::Returned
                });
            }
            let status = fixture.status("mine");
            assert_eq!((status.digest, status.config), (digest(&guest(LAST)), json!({})), "{what}");
            assert_eq!(fixture.manager.bindings().scoring, "base", "{what}");
        }
    }
    // The former version itself ends it, and so does a push when only bindings were on trial.
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.manager.promote("mine", scoring()).unwrap();
    fixture.push("mine", component(&guest(TRAP))).unwrap();
    assert_eq!(fixture.status("mine").promotion.unwrap().from.digest, Some(digest(&guest(LAST))));
    fixture.drop_file("mine.wasm", &guest(LAST));
    assert_eq!((fixture.row(), fixture.promotion("mine")), (2, PromotionState::Superseded));
    assert_eq!(fixture.manager.ended().superseded, 1);
    assert_eq!(fixture.manager.bindings().scoring, "mine");
}

#[test]
fn what_is_loaded_still_returns_without_a_proof() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(""))).unwrap();
    fixture.bind("mine").unwrap();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    fixture.manager.promote("mine", Promote::default()).unwrap();
    // Another configuration of the bad version does not push it out.
    fixture.push("mine", config(r#"{"a": 1}"#)).unwrap();
    for (row, text) in [(0, "back"), (2, "forth"), (0, "back")] {
        let before = fixture.host.snapshots.load(Ordering::Relaxed);
        fixture.manager.roll_back("mine", None).unwrap();
        assert_eq!(fixture.row(), row, "{text}");
        let proofs = fixture.host.snapshots.load(Ordering::Relaxed) - before - 1;
        assert_eq!(proofs, 0, "only its instance is made: {text}");
    }
}

#[test]
fn a_bad_version_decides_nothing_while_the_former_one_is_loaded() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(""))).unwrap();
    fixture.bind("mine").unwrap();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    fixture.manager.promote("mine", Promote::default()).unwrap();
    let fixture = Fixture::restart(fixture.stop());
    assert_eq!(fixture.by(""), Some(digest(&guest(LAST))));
    let gate = fixture.host.gate.lock();
    std::thread::scope(|scope| {
        let rollback = scope.spawn(|| fixture.manager.roll_back("mine", None));
        // It cannot be proven yet, and the bad one is out already.
        fixture.until("the fallback decides", |fixture| fixture.by("").is_none());
        assert!(!rollback.is_finished());
        assert_eq!(fixture.manager.bindings().scoring, "mine");
        drop(gate);
        rollback.join().unwrap().unwrap();
    });
    assert_eq!(fixture.by(""), Some(digest(&guest(""))));
    // When it cannot be loaded, nothing has changed.
    let fixture = Fixture::restart(fixture.stop());
    let kept = format!("mine.{}.wasm", digest(&guest(LAST)));
    std::fs::remove_file(fixture.folder.path().join("keep").join(kept)).unwrap();
    let refused = fixture.manager.roll_back("mine", Some(&digest(&guest(LAST))));
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert_eq!(fixture.by(""), Some(digest(&guest(""))));
}

#[test]
fn what_was_taken_back_is_promoted_again_only_if_that_is_said() {
    let fixture = Fixture::start();
    let once = || Promote { failures_max: Some(0), ..scoring() };
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    fixture.manager.promote("mine", once()).unwrap();
    drop(fixture.decide(&armed()));
    fixture.until("it is taken back", |fixture| fixture.promotion("mine") == PromotionState::Returned);
    let refused = |fixture: &Fixture| {
        let taken_back = fixture.status("mine").candidate.unwrap().taken_back.unwrap();
        assert!(taken_back.reason.starts_with("1 of 1 decisions failed") && taken_back.at > 0);
        let error = fixture.manager.promote("mine", once()).unwrap_err();
        assert!(matches!(&error, Error::TakenBack { reason, .. } if *reason == taken_back.reason), "{error}");
    };
    refused(&fixture);
    assert!(matches!(fixture.manager.roll_back("mine", None), Err(Error::NoFormer(_))), "not by itself");
    let fixture = Fixture::restart(fixture.stop());
    refused(&fixture);
    // The same again is no better, another one is.
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    refused(&fixture);
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    assert_eq!(fixture.status("mine").candidate.unwrap().taken_back, None);
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    refused(&fixture);
    fixture.manager.promote("mine", Promote { again: true, ..once() }).unwrap();
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.drop_file("mine.wasm", &guest(""));
    let ways: Vec<_> = fixture
        .status("mine")
        .versions
        .into_iter()
        .map(|kept| (kept.came_by.unwrap(), kept.left.map(|left| left.by)))
        .collect();
    assert_eq!(
        ways,
        [(Way::Dropped, None), (Way::Pushed, Some(Way::Dropped)), (Way::Promoted, Some(Way::Pushed)),]
    );
}

#[test]
fn a_canary_decides_for_its_share_until_it_fails() {
    let fixture = Fixture::start();
    assert!(fixture.manager.bind(canary("base", 0.5)).unwrap_err().to_string().contains("serves already"));
    assert!(
        fixture.manager.bind(canary("nobody", 0.5)).unwrap_err().to_string().contains("there is no policy")
    );
    fixture.push("base", candidate(component(&guest(LAST)))).unwrap();
    assert!(fixture.manager.bind(canary("base", 0.0)).is_err());
    assert!(fixture.manager.bind(canary("base", f64::NAN)).is_err());
    fixture.manager.bind(canary("base", 0.5)).unwrap();
    let sides = |fixture: &Fixture| -> Vec<usize> {
        (0..200).map(|client| fixture.decide(&format!("client-{client}")).recommendation.row).collect()
    };
    let first = sides(&fixture);
    let count = first.iter().filter(|row| **row == 2).count();
    assert!((70..130).contains(&count), "{count} of 200");
    assert_eq!(sides(&fixture), first, "a client stays on its side");
    let fixture = Fixture::restart(fixture.stop());
    assert_eq!(sides(&fixture), first, "over a restart, too");
    // A newer candidate takes its place; then it fails.
    fixture.push("base", candidate(component(&guest(TRAP)))).unwrap();
    fixture.manager.bind(canary("base", 1.0)).unwrap();
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
    fixture.until("it is taken out", |fixture| {
        drop(fixture.decide(&armed()));
        fixture.manager.bindings().canary.is_none()
    });
    assert_eq!((fixture.by(""), fixture.by(&armed())), (Some(digest(&guest(""))), Some(digest(&guest("")))));
    let ended = fixture.status("base").canary.unwrap();
    assert!(ended.share == 0.0 && ended.reason.unwrap().contains("breaker opened"), "it says so");
    assert_eq!(fixture.manager.ended().canaries_returned, 1);
    assert!(fixture.status("base").candidate.is_some(), "the candidate is still there");
    // A canary that becomes what serves is none any more.
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    fixture.manager.bind(canary("mine", 0.25)).unwrap();
    fixture.manager.promote("mine", Promote::default()).unwrap();
    let bindings = fixture.manager.bindings();
    assert_eq!((bindings.scoring.as_str(), bindings.canary, fixture.row()), ("mine", None, 2));
    // One whose candidate is dropped ends.
    fixture.push("mine", candidate(component(&guest("")))).unwrap();
    fixture.manager.bind(canary("mine", 1.0)).unwrap();
    assert_eq!(fixture.row(), 0);
    fixture.manager.drop_candidate("mine").unwrap();
    assert_eq!((fixture.row(), fixture.manager.bindings().canary), (2, None));
}

#[test]
fn what_a_shadow_was_tried_on_is_bound() {
    let fixture = Fixture::start();
    fixture.push("mine", candidate(component(&guest(LAST)))).unwrap();
    let tried_on = TriedOn { scoring: true, ..TriedOn::default() };
    fixture.manager.promote("mine", Promote { tried_on, ..Promote::default() }).unwrap();
    assert_eq!((fixture.row(), fixture.manager.bindings().scoring.as_str()), (2, "mine"));
}

#[test]
fn signatures_go_with_every_version() {
    let (mine, other) = (PrivateKey::from_seed(&[1; 32]), PrivateKey::from_seed(&[2; 32]));
    let trusted = |keys: &[&PrivateKey]| {
        let keys: Vec<_> = keys.iter().map(|key| key.public()).collect();
        TrustedKeys::parse(keys.iter().map(String::as_str)).unwrap()
    };
    let start = |folder, keys: &[&PrivateKey]| {
        Fixture::restart_with(folder, |settings| settings.trusted = trusted(keys))
    };
    let signed = |key: &PrivateKey, wasm: &[u8]| Upload {
        component_signature: Some(key.sign(Content::Component { digest: &digest(wasm) })),
        ..component(wasm)
    };
    let configured = |key: &PrivateKey, text: &str| Upload {
        config_signature: Some(
            key.sign(Content::Config { policy: "base", digest: &digest(text.as_bytes()) }),
        ),
        ..config(text)
    };
    let fixture = start(tempfile::tempdir().unwrap(), &[&mine, &other]);
    assert_eq!(fixture.code("base", component(&guest(LAST))), "unsigned");
    assert_eq!(fixture.code("base", signed(&PrivateKey::from_seed(&[3; 32]), &guest(LAST))), "signature");
    fixture.push("base", signed(&mine, &guest(LAST))).unwrap();
    assert_eq!(fixture.files(), ["base.wasm", "base.wasm.sig"]);
    assert_eq!(fixture.code("base", config(r#"{"a":1}"#)), "unsigned");
    fixture.push("base", configured(&mine, r#"{ "a":1 }"#)).unwrap();
    assert_eq!(fixture.files(), ["base.json", "base.json.sig", "base.wasm", "base.wasm.sig"]);
    fixture.push("base", candidate(signed(&other, &guest(TRAP)))).unwrap();
    fixture.manager.promote("base", Promote::default()).unwrap();
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
    fixture.manager.roll_back("base", None).unwrap();
    assert_eq!((fixture.row(), fixture.status("base").config), (2, json!({"a": 1})));
    assert_eq!(
        std::fs::read_to_string(fixture.path("base.json")).unwrap(),
        r#"{ "a":1 }"#,
        "as it was signed"
    );
    fixture.push("base", candidate(signed(&other, &guest(include_str!("../guests/nan.wat"))))).unwrap();
    // The other key is not trusted any more.
    let fixture = start(fixture.stop(), &[&mine]);
    assert_eq!(fixture.row(), 2);
    let error = fixture.manager.roll_back("base", Some(&digest(&guest(TRAP)))).unwrap_err();
    assert!(matches!(&error, Error::Refused(refusal) if refusal.code() == "signature"), "{error}");
    let error = fixture.manager.promote("base", Promote::default()).unwrap_err();
    assert!(error.to_string().contains("does not vouch"), "{error}");
    fixture.manager.remove("base", false, Vec::new()).unwrap();
    assert!(fixture.files().is_empty());
}

#[test]
fn the_quarantine_holds_for_every_way_in() {
    let fixture = Fixture::start();
    fixture.push("base", component(&guest(TRAP))).unwrap();
    fixture.until("it is in quarantine", |fixture| {
        drop(fixture.decide(&armed()));
        fixture.clock.advance(Duration::from_secs(31));
        drop(fixture.manager.reload());
        fixture.problem("base").is_some()
    });
    assert_eq!(fixture.problem("base").as_deref(), Some("quarantined"));
    let refused = |order: Result<(), Error>| match order {
        Err(Error::Refused(refusal)) => assert_eq!(refusal.code(), "quarantined"),
        other => panic!("{other:?}"),
    };
    refused(fixture.push("base", component(&guest(TRAP))));
    refused(fixture.push("mine", candidate(component(&guest(TRAP)))));
    refused(fixture.manager.roll_back("base", Some(&digest(&guest(TRAP)))));
    assert_eq!(fixture.row(), 0);
}

#[test]
fn what_is_bound_at_run_time_yields_to_a_changed_setting() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.bind("mine").unwrap();
    let fixture = Fixture::restart(fixture.stop());
    assert_eq!((fixture.row(), fixture.manager.bindings().scoring.as_str()), (2, "mine"));
    let folder = fixture.stop();
    let fixture = Fixture::restart_with(folder, |settings| settings.scoring = "other".to_owned());
    assert_eq!((fixture.row(), fixture.manager.bindings().scoring.as_str()), (0, "other"));
    let fixture = Fixture::restart_with(fixture.stop(), |settings| settings.scoring = "other".to_owned());
    assert_eq!(fixture.manager.bindings().scoring, "other");
}

#[test]
fn what_was_taken_back_is_in_use_no_more_even_if_the_former_version_is_refused() {
    for name in ["mine", "base"] {
        let fixture = Fixture::start();
        fixture.push(name, component(&guest(LAST))).unwrap();
        fixture.bind(name).unwrap();
        fixture.push(name, candidate(component(&guest(TRAP)))).unwrap();
        fixture.manager.promote(name, Promote { failures_max: Some(0), ..scoring() }).unwrap();
        let folder = fixture.stop();
        // While the host is down, something changes that the former version cannot pass.
        let quarantined = format!("{} it crashed\n", digest(&guest(LAST)));
        std::fs::write(folder.path().join("keep/quarantine.list"), quarantined).unwrap();
        let fixture = Fixture::restart(folder);
        fixture.settle();
        assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))), "{name}: on trial still");
        assert_eq!(fixture.decide(&armed()).outcome, Outcome::Trap, "{name}");
        fixture.until("it is taken back", |fixture| fixture.promotion(name) == PromotionState::Returned);
        let check = |fixture: &Fixture| {
            fixture.settle();
            assert_eq!(fixture.by(""), Some(digest(&guest(""))), "{name}: what is compiled in serves");
            assert_eq!(fixture.decide(&armed()).outcome, Outcome::Ok, "{name}");
            let status = fixture.status(name);
            assert_ne!(status.digest, digest(&guest(TRAP)), "{name}");
            assert!(
                status
                    .versions
                    .iter()
                    .all(|version| version.digest != digest(&guest(TRAP)) || !version.in_use)
            );
            assert_eq!(fixture.problem(name).as_deref(), Some("quarantined"), "{name}");
            let promotion = status.promotion.unwrap();
            assert_eq!(promotion.state, PromotionState::Returned, "{name}");
            let reason = promotion.reason.unwrap();
            assert!(reason.contains("what served before it cannot be used ("), "{reason}");
            let serves = if name == "base" { "compiled into the host" } else { "the default policy" };
            assert!(reason.contains(serves), "{reason}");
            assert_eq!(status.candidate.unwrap().digest, digest(&guest(TRAP)), "for its author to look at");
        };
        check(&fixture);
        check(&Fixture::restart(fixture.stop()));
    }
}

#[test]
fn a_file_that_cannot_be_replaced_leaves_the_others_as_they_were() {
    let before = Upload { config: Some(r#"{"a": 1}"#.to_owned()), ..component(&guest(LAST)) };
    let after = || Upload { config: Some(r#"{"b": 2}"#.to_owned()), ..component(&guest(TRAP)) };
    for (place, present) in [
        ("base.wasm.sha256", "base.json base.wasm"),
        ("base.wasm.sig", "base.json base.wasm"),
        ("base.json.sig", "base.json base.wasm"),
        ("base.json", "base.wasm"),
        ("base.wasm", "base.json"),
    ] {
        let fixture = Fixture::start();
        let before = Upload {
            component: before.component.clone().filter(|_| place != "base.wasm"),
            config: before.config.clone().filter(|_| place != "base.json"),
            ..Upload::default()
        };
        fixture.push("base", before).unwrap();
        std::fs::create_dir(fixture.path(place)).unwrap();
        let present: Vec<_> = present.split(' ').collect();
        let contents =
            || -> Vec<_> { present.iter().map(|file| std::fs::read(fixture.path(file)).unwrap()).collect() };
        let expected = (contents(), fixture.files(), fixture.status("base").digest, fixture.row());
        let orders = [
            fixture.push("base", after()),
            fixture
                .push("base", candidate(after()))
                .and_then(|()| fixture.manager.promote("base", scoring())),
            fixture.manager.remove("base", true, Vec::new()),
            fixture.manager.roll_back("base", Some(EMBEDDED)),
        ];
        for order in orders {
            assert!(matches!(order, Err(Error::Folder { .. })), "{place}: {order:?}");
        }
        fixture.settle();
        let found = (contents(), fixture.files(), fixture.status("base").digest, fixture.row());
        assert_eq!(found, expected, "{place}");
        std::fs::remove_dir(fixture.path(place)).unwrap();
        fixture.push("base", after()).unwrap();
        assert_eq!(fixture.files(), ["base.json", "base.wasm"], "{place}: nothing is left over");
        assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))), "{place}");
    }
}

#[test]
fn what_a_kill_left_of_a_change_is_removed() {
    let fixture = Fixture::start();
    for file in [".base.wasm.fulcrum-old", ".base.json.fulcrum-new"] {
        std::fs::write(fixture.path(file), b"{}").unwrap();
    }
    let fixture = Fixture::restart(fixture.stop());
    assert!(fixture.files().is_empty());
}

#[test]
fn a_spent_trial_waits_for_its_return_and_is_not_asked_meanwhile() {
    let fixture = Fixture::start();
    fixture.push("mine", component(&guest(LAST))).unwrap();
    fixture.bind("mine").unwrap();
    fixture.push("mine", candidate(component(&guest(TRAP)))).unwrap();
    fixture.manager.promote("mine", Promote { failures_max: Some(0), ..scoring() }).unwrap();
    // The way back is blocked.
    std::fs::create_dir(fixture.path("mine.wasm.sha256")).unwrap();
    assert_eq!(fixture.decide(&armed()).outcome, Outcome::Trap);
    fixture.settle();
    assert_eq!((fixture.promotion("mine"), fixture.by("")), (PromotionState::Running, None));
    // The failing component with another configuration is the failing component.
    fixture.drop_file("mine.json", b"{\"a\": 1}");
    assert_eq!((fixture.promotion("mine"), fixture.by("")), (PromotionState::Running, None));
    std::fs::remove_dir(fixture.path("mine.wasm.sha256")).unwrap();
    fixture.settle();
    fixture.until("it is taken back", |fixture| fixture.promotion("mine") == PromotionState::Returned);
    assert_eq!((fixture.by(""), fixture.files()), (Some(digest(&guest(LAST))), vec!["mine.wasm".to_owned()]));
    let candidate = fixture.status("mine").candidate.unwrap();
    assert_eq!((candidate.digest, candidate.config), (digest(&guest(TRAP)), json!({})));
}

#[test]
fn a_crash_of_the_task_is_no_success_and_the_task_goes_on() {
    let fixture = Fixture::start();
    let crashes = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let armed = crashes.clone();
    fixture.manager.on_change(std::sync::Arc::new(move || {
        assert!(!armed.swap(false, Ordering::Relaxed), "this crash is part of the test");
    }));
    crashes.store(true, Ordering::Relaxed);
    let error = fixture.push("base", component(&guest(LAST))).unwrap_err();
    assert!(matches!(error, Error::Gone(Gone::Crashed)), "{error}");
    assert!(error.to_string().contains("restart the host"), "{error}");
    fixture.until("it is counted", |fixture| fixture.manager.task().crashes == 1);
    let task = fixture.manager.task();
    assert_eq!((task.state, task.last_crash_at), (TaskState::Running, Some(fixture.clock.now().0)));
    fixture.push("base", component(&guest(TRAP))).unwrap();
    assert_eq!(fixture.by(""), Some(digest(&guest(TRAP))));
    // A look at the folder, too; whether a file event or the reload is first is open.
    crashes.store(true, Ordering::Relaxed);
    std::fs::remove_file(fixture.path("base.wasm")).unwrap();
    fixture.until("the task crashed and went on", |fixture| {
        drop(fixture.manager.reload());
        !crashes.load(Ordering::Relaxed) && fixture.manager.reload().error.is_none()
    });
    fixture.push("mine", component(&guest(LAST))).unwrap();
    crashes.store(true, Ordering::Relaxed);
    assert!(matches!(fixture.bind("mine"), Err(BindError::Gone(Gone::Crashed))));
    fixture.bind("mine").unwrap();
    assert_eq!(fixture.row(), 2);
    // Where there is no task any more, nothing was reloaded.
    fixture.manager.stop();
    let report = fixture.manager.reload();
    assert_eq!(report.gone, Some(Gone::Stopping));
    assert!(report.error.is_some_and(|error| error.contains("stopping")));
    assert!(matches!(fixture.push("base", component(&guest(TRAP))), Err(Error::Gone(Gone::Stopping))));
    assert!(matches!(fixture.bind("base"), Err(BindError::Gone(Gone::Stopping))));
    fixture.until("it has ended", |fixture| fixture.manager.task().state == TaskState::Stopped);
}

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => std::fs::copy(entry.path(), to).map(|_| ()).unwrap(),
        }
    }
}

/// Writes the stored state as it is while the folder is changed.
pub(super) fn installing(keep: &Path, change: &Value) {
    let path = keep.join("_state.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    state["installing"] = change.clone();
    std::fs::write(path, state.to_string()).unwrap();
}

#[test]
fn a_kill_at_any_step_leaves_the_former_or_the_new_version_in_service() {
    // From a configured file to a promoted candidate without configuration, and back.
    let fixture = Fixture::start();
    let former = Upload { config: Some(r#"{"a": 1}"#.to_owned()), ..component(&guest("")) };
    fixture.push("mine", former).unwrap();
    fixture.bind("mine").unwrap();
    let new = Upload { config: Some(r#"{"b": 2}"#.to_owned()), ..component(&guest(LAST)) };
    fixture.push("mine", candidate(new)).unwrap();
    let place = tempfile::tempdir().unwrap();
    let (before, after) = (place.path().join("before"), place.path().join("after"));
    copy(fixture.folder.path(), &before);
    let candidate = fixture.status("mine").candidate.unwrap();
    fixture.manager.promote("mine", Promote::default()).unwrap();
    copy(fixture.folder.path(), &after);
    let change = json!({
        "name": "mine",
        "version": { "digest": candidate.digest, "config": candidate.config },
        "candidate": null,
    });
    // Which files are in place when the kill comes, and whether the order had been stored, or carried out.
    let steps: [(&str, &[&str], bool, bool); 6] = [
        ("staged", &[".mine.wasm.fulcrum-new", ".mine.json.fulcrum-new"], false, false),
        ("stored", &[], true, false),
        ("first file", &["mine.json"], true, false),
        ("all files", &["mine.json", "mine.wasm"], true, false),
        ("candidate noted", &["mine.json", "mine.wasm"], true, true),
        ("done", &["mine.json", "mine.wasm"], false, true),
    ];
    for (step, files, is_stored, is_noted) in steps {
        let folder = tempfile::tempdir().unwrap();
        copy(&before, folder.path());
        let (policies, keep) = (folder.path().join("policies"), folder.path().join("keep"));
        for file in files {
            let from = file.trim_start_matches('.').trim_end_matches(".fulcrum-new");
            std::fs::copy(after.join("policies").join(from), policies.join(file)).unwrap();
        }
        let is_ordered = is_stored || is_noted;
        if is_ordered {
            std::fs::copy(after.join("keep/_state.json"), keep.join("_state.json")).unwrap();
        }
        if is_noted {
            std::fs::copy(after.join("keep/mine.json"), keep.join("mine.json")).unwrap();
        }
        if is_stored {
            installing(&keep, &change);
        }
        let fixture = Fixture::restart(folder);
        fixture.settle();
        let status = fixture.status("mine");
        let found = (fixture.row(), status.config, status.candidate.is_some());
        let expected = if is_ordered { (2, json!({"b": 2}), false) } else { (0, json!({"a": 1}), true) };
        assert_eq!(found, expected, "{step}");
        assert_eq!(fixture.files(), ["mine.json", "mine.wasm"], "{step}");
        let promotion = status.promotion.map(|promotion| promotion.state);
        assert_eq!(promotion, is_ordered.then_some(PromotionState::Running), "{step}");
        // A second start changes nothing more, and the way back is open.
        let fixture = Fixture::restart(fixture.stop());
        fixture.settle();
        assert_eq!(fixture.row(), expected.0, "{step}");
        if is_ordered {
            fixture.manager.roll_back("mine", None).unwrap();
            assert_eq!((fixture.row(), fixture.status("mine").config), (0, json!({"a": 1})), "{step}");
        }
    }
}

#[test]
fn orders_from_many_threads_end_in_one_state() {
    let fixture = Fixture::start();
    fixture.push("base", component(&guest(LAST))).unwrap();
    let wasm = [guest(LAST), guest(TRAP), guest(include_str!("../guests/dead-row.wat"))];
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (fixture, wasm) = (&fixture, &wasm);
            scope.spawn(move || {
                for turn in 0..6_usize {
                    let bytes = &wasm[(thread + turn) % wasm.len()];
                    // Which of them are refused depends on who was first.
                    match (thread + turn) % 5 {
                        0 => drop(fixture.push("base", component(bytes))),
                        1 => {
                            drop(fixture.push("base", candidate(component(bytes))));
                            drop(
                                fixture
                                    .manager
                                    .promote("base", Promote { accept: true, ..Promote::default() }),
                            );
                        }
                        2 => drop(fixture.manager.roll_back("base", None)),
                        3 => {
                            let beside = fixture.path(&format!(".{thread}.part"));
                            std::fs::write(&beside, bytes).unwrap();
                            std::fs::rename(&beside, fixture.path("base.wasm")).unwrap();
                        }
                        _ => drop(fixture.push("base", config(&format!(r#"{{"turn": {turn}}}"#)))),
                    }
                }
            });
        }
    });
    fixture.settle();
    let status = fixture.status("base");
    let file = std::fs::read(fixture.path("base.wasm"));
    assert_eq!(status.digest, file.map_or_else(|_| digest(&guest("")), |bytes| digest(&bytes)));
    let text = std::fs::read_to_string(fixture.path("base.json"));
    let config: Value = text.map_or(json!({}), |text| serde_json::from_str(&text).unwrap());
    assert_eq!((&status.config, status.problem), (&config, None));
    assert_eq!(fixture.by(""), Some(status.digest.clone()));
    let left: Vec<_> = fixture.files().into_iter().filter(|file| file.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
    let fixture = Fixture::restart(fixture.stop());
    fixture.settle();
    assert_eq!((fixture.by(""), fixture.status("base").config), (Some(status.digest), config));
}
