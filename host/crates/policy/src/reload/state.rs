//! What was asked for at run time and must survive a restart: bindings, promotions, and the change of the policies
//! folder that is under way.
//!
//! Invariant: the file is replaced as a whole, so that a change of the folder, of bindings and of promotions happens
//! altogether or not at all: once the file names the change, a host that is killed carries it out when it starts again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keep::{Version, replace};
use crate::probation::Budget;
use crate::status::{Bindings, PromotionState, Rebind};

/// No policy can have this name.
const FILE: &str = "_state.json";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct State {
    /// What the settings said when this was written.
    pub settings: Roles,
    /// Who serves what.
    pub bindings: Bindings,
    /// The last promotion of each name.
    pub promotions: BTreeMap<String, Promotion>,
    /// A change of the folder that may be half done.
    pub installing: Option<Installing>,
}

/// The policies that the settings name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Roles {
    pub scoring: String,
    pub claiming: String,
}

/// A change of one name's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Installing {
    pub name: String,
    /// The version to be in the folder; `None` is no file at all.
    pub version: Option<Version>,
    /// The candidate there is afterwards.
    pub candidate: Option<Version>,
}

/// A version that was put into service on trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Promotion {
    /// Tells promotions of one name apart, counted up; 0 in what a former build wrote.
    #[serde(default)]
    pub number: u64,
    pub state: PromotionState,
    pub digest: String,
    pub config: Value,
    pub failures_max: u32,
    pub decisions: u32,
    pub asked: u32,
    pub failed: u32,
    /// Whether the name had another version before, or none: it is taken back then.
    pub replaces: bool,
    /// The files that version had; `None` had none.
    pub former: Option<Version>,
    /// What was bound otherwise before.
    pub undo: Rebind,
    /// After a rollback by hand: what that took from it, to go forth again.
    #[serde(default)]
    pub redo: Rebind,
    pub reason: Option<String>,
    pub at_ms: u64,
}

impl Promotion {
    pub(super) fn is_running(&self) -> bool {
        self.state == PromotionState::Running
    }

    /// Says whether it is about this version.
    pub(super) fn is_of(&self, version: &Version) -> bool {
        self.digest == version.digest && self.config == version.config
    }

    /// Returns what gives its bindings back, as far as they are bound to it still.
    pub(super) fn way_back(&self, name: &str, bindings: &Bindings) -> Rebind {
        let Rebind { scoring, claiming, groups, .. } = self.undo.clone();
        Rebind {
            scoring: scoring.filter(|_| bindings.scoring == name),
            claiming: claiming.filter(|_| bindings.claiming == name),
            groups: groups
                .into_iter()
                .filter(|(group, _)| bindings.groups.get(group).is_some_and(|policy| policy == name))
                .collect(),
            canary: None,
        }
    }

    pub(super) fn budget(&self) -> Budget {
        Budget { failures_max: self.failures_max, decisions: self.decisions, renews: false }
    }

    /// Ends it.
    pub(super) fn end(&mut self, state: PromotionState, reason: Option<String>, now_ms: u64) {
        self.state = state;
        self.reason = reason;
        self.at_ms = now_ms;
    }
}

impl State {
    /// Reads what was stored, for settings that may say something else by now.
    pub(super) fn load(folder: &Path, settings: Roles) -> Self {
        let path = folder.join(FILE);
        let stored = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<Self>(&bytes).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.to_string()),
        };
        let stored = stored.unwrap_or_else(|error| {
            tracing::error!(file = %path.display(), error, "bindings set at run time are lost");
            Self::default()
        });
        stored.under(settings)
    }

    /// Lets a setting that was changed since win over what was bound at run time.
    fn under(mut self, settings: Roles) -> Self {
        let stale = |stored: &str, now: &str| stored != now;
        if stale(&self.settings.scoring, &settings.scoring) {
            self.bindings.scoring.clone_from(&settings.scoring);
        }
        if stale(&self.settings.claiming, &settings.claiming) {
            self.bindings.claiming.clone_from(&settings.claiming);
        }
        self.settings = settings;
        self
    }

    pub(super) fn save(&self, folder: &Path) -> io::Result<()> {
        replace(&folder.join(FILE), &serde_json::to_vec(self)?)
    }

    /// Returns the components that it depends on: names and digests.
    pub(super) fn pins(&self) -> BTreeSet<(String, String)> {
        let former = self.promotions.iter().filter(|(_, promotion)| promotion.is_running());
        let former = former.filter_map(|(name, promotion)| Some((name, promotion.former.as_ref()?)));
        let installing =
            self.installing.iter().filter_map(|change| Some((&change.name, change.version.as_ref()?)));
        former.chain(installing).map(|(name, version)| (name.clone(), version.digest.clone())).collect()
    }

    /// Changes bindings by hand: what a running promotion would undo and was bound otherwise since is not undone any
    /// more, and a promotion that serves nothing any more is over.
    pub(super) fn rebind(&mut self, rebind: &Rebind, now_ms: u64) {
        let before = self.bindings.clone();
        let changed = before.difference(rebind);
        self.bindings.apply(rebind);
        let bindings = &self.bindings;
        for (name, promotion) in self.promotions.iter_mut().filter(|(_, promotion)| promotion.is_running()) {
            promotion.undo.forget(&changed);
            if bindings.roles_of(name).is_empty() && !before.roles_of(name).is_empty() {
                let reason = "other policies were bound".to_owned();
                promotion.end(PromotionState::Superseded, Some(reason), now_ms);
            }
        }
    }

    /// Returns the names on trial that a change of bindings would make a way back lead to.
    pub(super) fn on_trial(&self, undo: &Rebind) -> BTreeSet<String> {
        let names = undo.scoring.iter().chain(&undo.claiming).chain(undo.groups.values().flatten());
        let is_on_trial = |name: &&String| self.promotions.get(*name).is_some_and(Promotion::is_running);
        names.filter(is_on_trial).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::Canary;

    fn roles(scoring: &str, claiming: &str) -> Roles {
        Roles { scoring: scoring.to_owned(), claiming: claiming.to_owned() }
    }

    fn scoring(name: &str) -> Rebind {
        Rebind { scoring: Some(name.to_owned()), ..Rebind::default() }
    }

    fn promotion(undo: Rebind) -> Promotion {
        Promotion {
            number: 1,
            state: PromotionState::Running,
            digest: "d".to_owned(),
            config: json!({}),
            failures_max: 5,
            decisions: 1000,
            asked: 0,
            failed: 0,
            replaces: false,
            former: None,
            undo,
            redo: Rebind::default(),
            reason: None,
            at_ms: 1,
        }
    }

    fn fresh() -> State {
        State::default().under(roles("p2c", "sticky"))
    }

    #[test]
    fn what_was_bound_survives_until_the_settings_change() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut state = fresh();
        assert_eq!(State::load(folder.path(), roles("p2c", "sticky")), state);
        let groups = [("g".to_owned(), Some("greedy".to_owned()))].into();
        let canary = Some(Some(Canary { policy: "mine".to_owned(), share: 0.25 }));
        let claiming = Some("balanced".to_owned());
        state.rebind(&Rebind { claiming, groups, canary, ..scoring("weighted") }, 1);
        state.promotions.insert("weighted".to_owned(), promotion(scoring("p2c")));
        state.save(folder.path()).expect("stored");
        assert_eq!(State::load(folder.path(), roles("p2c", "sticky")), state);
        let changed = State::load(folder.path(), roles("p2c", "greedy"));
        let names = (changed.bindings.scoring.as_str(), changed.bindings.claiming.as_str());
        assert_eq!((names, changed.bindings.groups.len()), (("weighted", "greedy"), 1));
        let changed = State::load(folder.path(), roles("mine", "sticky"));
        let names = (changed.bindings.scoring.as_str(), changed.bindings.claiming.as_str());
        assert_eq!((names, changed.bindings.canary.is_some()), (("mine", "balanced"), true));
        fs::write(folder.path().join(FILE), b"{").expect("written");
        assert_eq!(
            State::load(folder.path(), roles("p2c", "sticky")),
            fresh(),
            "a damaged file is no obstacle"
        );
    }

    #[test]
    fn a_promotion_leaves_alone_what_was_bound_by_hand_since() {
        let mut state = fresh();
        let mut wish = scoring("mine");
        wish.groups.insert("g".to_owned(), Some("mine".to_owned()));
        let undo = state.bindings.difference(&wish);
        assert_eq!(undo, Rebind { groups: [("g".to_owned(), None)].into(), ..scoring("p2c") });
        state.bindings.apply(&wish);
        state.promotions.insert("mine".to_owned(), promotion(undo));
        state.rebind(&scoring("mine"), 2);
        assert_eq!(state.promotions["mine"].undo.scoring.as_deref(), Some("p2c"), "nothing changed");
        state.rebind(&scoring("weighted"), 3);
        let promotion = &state.promotions["mine"];
        assert_eq!((promotion.state, &promotion.undo.scoring), (PromotionState::Running, &None));
        state.rebind(&Rebind { groups: [("g".to_owned(), None)].into(), ..Rebind::default() }, 4);
        assert_eq!(
            (state.promotions["mine"].state, state.promotions["mine"].at_ms),
            (PromotionState::Superseded, 4)
        );
    }

    #[test]
    fn what_is_on_trial_is_no_way_back() {
        let mut state = fresh();
        let wish = Rebind { groups: [("g".to_owned(), Some("b".to_owned()))].into(), ..scoring("b") };
        let undo = |state: &State| state.bindings.difference(&wish);
        assert!(state.on_trial(&undo(&state)).is_empty());
        state.bindings.apply(&scoring("a"));
        state.promotions.insert("a".to_owned(), promotion(scoring("p2c")));
        assert_eq!(state.on_trial(&undo(&state)), ["a".to_owned()].into());
        assert!(state.on_trial(&state.bindings.difference(&scoring("a"))).is_empty());
        state.promotions.get_mut("a").expect("there").end(PromotionState::Passed, None, 2);
        assert!(state.on_trial(&undo(&state)).is_empty());
    }
}
