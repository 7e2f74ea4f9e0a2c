//! What was asked for at run time and must survive a restart: bindings, promotions, and the change of the policies
//! folder that is under way.
//!
//! Invariant: the file is replaced as a whole, so that a change of the folder, of bindings and of promotions happens
//! altogether or not at all: once the file names the change, a host that is killed carries it out when it starts again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::{Prints, open_regular};
use super::keep::{Version, replace};
use crate::probation::Budget;
use crate::status::{Bindings, PromotionState, Rebind};

/// No policy can have this name.
const FILE: &str = "_state.json";
/// Most promotions kept that are over; what ended longest ago goes first.
const ENDED_MAX: usize = 100;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct State {
    /// What the settings said when this was written.
    pub settings: Roles,
    /// Who serves what.
    pub bindings: Bindings,
    /// The last promotion of each name, as far as it is kept.
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
    /// The files it found, and those it leaves; absent in what a former build wrote.
    #[serde(default)]
    pub files: Option<Between>,
}

/// The files of a name before and after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Between {
    pub before: Prints,
    pub after: Prints,
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
    /// Whether its budget is spent: it is not asked any more, whatever keeps it from being taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spent: bool,
    /// Whether the name had another version before, or none: it is taken back then.
    pub replaces: bool,
    /// The files that version had; `None` had none.
    pub former: Option<Version>,
    /// What was bound otherwise before.
    pub undo: Rebind,
    /// What other policies had in use that are bound again then, as far as they had files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, Version>,
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

    /// Returns the other policies that its way back leads to, and whether one of them serves scoring then.
    pub(super) fn leads_to(&self, name: &str, bindings: &Bindings) -> BTreeMap<String, bool> {
        let Rebind { scoring, claiming, groups, .. } = self.way_back(name, bindings);
        let plans = claiming.into_iter().chain(groups.into_values().flatten()).map(|other| (other, false));
        let mut others: BTreeMap<_, _> = plans.collect();
        others.extend(scoring.map(|other| (other, true)));
        others.remove(name);
        others
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
        let mut bytes = Vec::new();
        let stored = match open_regular(&path).and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => serde_json::from_slice::<Self>(&bytes).map_err(|error| error.to_string()),
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
        let former = former.flat_map(|(name, promotion)| {
            let own = promotion.former.iter().map(move |version| (name, version));
            own.chain(&promotion.others)
        });
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

    /// Returns the names on trial whose way back leads to another policy.
    pub(super) fn returning_to(&self, other: &str) -> Vec<String> {
        let running = self.promotions.iter().filter(|(_, promotion)| promotion.is_running());
        let leads = |(name, promotion): &(&String, &Promotion)| {
            promotion.leads_to(name, &self.bindings).contains_key(other)
        };
        running.filter(leads).map(|(name, _)| name.clone()).collect()
    }

    /// Forgets promotions that are over and that nobody can ask for: of names that are not known any more, and beyond
    /// [`ENDED_MAX`]. Returns how many.
    pub(super) fn forget_ended(&mut self, is_known: impl Fn(&str) -> bool) -> usize {
        let before = self.promotions.len();
        self.promotions.retain(|name, promotion| promotion.is_running() || is_known(name));
        let ended = self.promotions.iter().filter(|(_, promotion)| !promotion.is_running());
        let mut ended: Vec<_> = ended.map(|(name, promotion)| (promotion.at_ms, name.clone())).collect();
        ended.sort();
        let many = ended.len().saturating_sub(ENDED_MAX);
        for (_, name) in ended.into_iter().take(many) {
            self.promotions.remove(&name);
        }
        before - self.promotions.len()
    }

    /// Returns the names on trial that a change of bindings would make a way back lead to.
    pub(super) fn on_trial(&self, undo: &Rebind) -> BTreeSet<String> {
        let is_on_trial = |name: &&str| self.promotions.get(*name).is_some_and(Promotion::is_running);
        undo.policies().filter(is_on_trial).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
            spent: false,
            replaces: false,
            former: None,
            undo,
            others: BTreeMap::new(),
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
    fn a_pipe_in_place_of_the_file_holds_nobody_up() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = std::process::Command::new("mkfifo").arg(folder.path().join(FILE)).status();
        assert!(made.expect("there is a mkfifo command").success());
        assert_eq!(State::load(folder.path(), roles("p2c", "sticky")), fresh());
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
    fn promotions_that_are_over_are_kept_within_bounds() {
        let mut state = fresh();
        let ended = |at_ms| Promotion { state: PromotionState::Passed, at_ms, ..promotion(scoring("p2c")) };
        state.promotions.insert("runs".to_owned(), Promotion { at_ms: 0, ..promotion(Rebind::default()) });
        state.promotions.insert("gone".to_owned(), ended(9999));
        for at in 0..ENDED_MAX as u64 {
            state.promotions.insert(format!("p{at}"), ended(at));
        }
        let is_known = |name: &str| name != "gone" && name != "runs";
        assert_eq!(state.forget_ended(is_known), 1, "there is nothing that it could be shown with");
        assert_eq!(state.forget_ended(is_known), 0);
        state.promotions.insert("new".to_owned(), ended(5000));
        assert_eq!(state.forget_ended(is_known), 1);
        assert!(!state.promotions.contains_key("p0"), "the oldest is out");
        assert!(state.promotions.contains_key("p1") && state.promotions.contains_key("runs"));
        assert_eq!(state.promotions.len(), ENDED_MAX + 1);
    }

    #[test]
    fn a_way_back_leads_to_what_was_bound_before() {
        let mut state = fresh();
        let groups: BTreeMap<_, _> =
            [("g".to_owned(), Some("greedy".to_owned())), ("h".to_owned(), None)].into();
        let own = ["g", "h"].map(|group| (group.to_owned(), Some("mine".to_owned())));
        state.bindings.apply(&Rebind { groups: own.into(), ..scoring("mine") });
        let way_back = promotion(Rebind { groups, ..scoring("p2c") });
        state.promotions.insert("mine".to_owned(), way_back);
        let mine = ["mine".to_owned()];
        for (other, expected) in [("p2c", &mine[..]), ("greedy", &mine[..]), ("mine", &[]), ("sticky", &[])] {
            assert_eq!(state.returning_to(other), expected, "{other}");
        }
        // What is bound by hand since is not bound again.
        state.rebind(&scoring("weighted"), 2);
        assert_eq!((state.returning_to("p2c").len(), state.returning_to("greedy").len()), (0, 1));
        state.promotions.get_mut("mine").expect("there").end(PromotionState::Passed, None, 3);
        assert!(state.returning_to("greedy").is_empty());
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
