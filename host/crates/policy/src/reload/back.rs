//! The task's way back: which version a rollback returns to, and what decides until that serves.
//!
//! Invariants: from the moment a rollback is carried out, what it takes back decides nothing any more; a version that
//! is still loaded returns without being compiled or proven, since it served before; an order that fails leaves
//! everything as it was.

use std::sync::Arc;

use serde_json::Value;

use super::acts::{Cause, Install, TakenBackBy};
use super::keep::Version;
use super::lifecycle::{Choice, EMBEDDED, Error, Turn};
use super::showing::is_empty;
use super::state::Promotion;
use super::task::{Proven, Task};
use crate::artifact::{Artifact, Loaded};
use crate::seat::{self, Identity, ScoringFactory as _};
use crate::status::{Bindings, PromotionState, Rebind, Way};

/// Most names whose former version stays loaded; the one that was replaced longest ago goes first.
const FORMERS_MAX: usize = 16;
/// Why nothing answers for a name for a moment.
const SUSPENDED: &str = "it is being rolled back, its former version is not loaded yet";
/// Why nothing answers for a name that nobody knows.
pub(super) const MISSING: &str = "it does not exist";

/// A version that is being taken back.
pub(super) struct Suspended {
    identity: Arc<Identity>,
    /// What decides in its place; `None` is the fallback.
    instead: Option<Arc<Loaded>>,
    /// Whether what its promotion bound counts as given back already.
    undoes: bool,
}

impl Task {
    /// Chooses what a rollback returns to and takes what is in use out of decisions. If it is loaded the rollback is
    /// carried out at once; else it is answered what has to be proven first, and [`Self::end_rollback`] or
    /// [`Self::resume`] must follow.
    pub(super) fn begin_rollback(&mut self, name: &str, to: Option<&str>) -> Result<Option<Choice>, Error> {
        let mut choice = self.choose(name, to)?;
        if choice.turn != Turn::Forth {
            self.suspend(name, &choice);
        }
        if choice.version.is_some() && choice.proven.is_none() {
            return Ok(Some(choice));
        }
        let done = self.roll_back(name, choice.proven.take(), choice.turn);
        self.resume(name);
        done.map(|()| None)
    }

    /// Carries a rollback out, unless another version than `used` came into use while its version was proven.
    pub(super) fn end_rollback(
        &mut self,
        name: &str,
        proven: Option<Proven>,
        turn: Turn,
        used: Option<&Version>,
    ) -> Result<(), Error> {
        let present = self.version_in_use(name, 0);
        let is_overtaken = match (&present, used) {
            (Some(present), Some(used)) => !present.is_same(used),
            (present, used) => present.is_some() != used.is_some(),
        };
        let is_there = present.zip(proven.as_ref()).is_some_and(|(present, proven)| proven.is_of(&present));
        let done = match (is_overtaken, is_there) {
            (false, _) => self.roll_back(name, proven, turn),
            (true, true) => Err(Error::AlreadyInUse(name.to_owned())),
            (true, false) => Err(Error::Overtaken(name.to_owned())),
        };
        self.resume(name);
        done
    }

    /// Ends what [`Self::begin_rollback`] began: the version in use decides again.
    pub(super) fn resume(&mut self, name: &str) {
        if self.suspended.remove(name).is_some() {
            self.fill_seat();
            self.show();
        }
    }

    fn roll_back(&mut self, name: &str, proven: Option<Proven>, turn: Turn) -> Result<(), Error> {
        let reason = "rolled back by hand".to_owned();
        match turn {
            Turn::Undo if self.undoable(name).is_some() => {
                return self.return_to_former(name, TakenBackBy::Hand, reason, proven);
            }
            Turn::Forth => return self.go_forth(name, proven),
            _ => {}
        }
        let version = proven.as_ref().map(|proven| proven.version(self.clock.now().0));
        if version.as_ref().is_some_and(|version| !self.has_component(name, &version.digest)) {
            // Other orders pushed it out of what is kept.
            return Err(Error::Overtaken(name.to_owned()));
        }
        let candidate = self.keep.candidate(name).cloned();
        let install = Install {
            name: name.to_owned(),
            version: version.clone(),
            proven,
            wasm: None,
            candidate,
            cause: Cause::new(Way::RolledBack, Way::RolledBack),
        };
        self.carry_out(self.state.clone(), Some(install))?;
        tracing::info!(policy.name = name, "rolled back by hand");
        version.map_or(Ok(()), |version| self.expect_in_use(name, &version))
    }

    /// Chooses the version to return to.
    fn choose(&mut self, name: &str, to: Option<&str>) -> Result<Choice, Error> {
        let embedded = self.embedded_digest(name).map(str::to_owned);
        let kept = self.keep.versions(name).to_vec();
        if kept.is_empty() && embedded.is_none() {
            let is_known = self.entries.contains_key(name) || self.keep.candidate(name).is_some();
            return Err(match is_known {
                true => Error::NoFormer(name.to_owned()),
                false => Error::Unknown(name.to_owned()),
            });
        }
        let is_plain =
            |version: &Version| embedded.as_ref() == Some(&version.digest) && is_empty(&version.config);
        let used = self.used(name).map(|used| used.version(0));
        let is_used = |version: &Version| match &used {
            Some(used) => used.is_same(version),
            None => is_plain(version),
        };
        let undone = self.undoable(name);
        let forth = self.forth(name);
        let (version, turn) = match (to, &undone, forth) {
            // Where no version is replaced, only what was bound changes.
            (None, Some(promotion), _) => {
                (promotion.former.clone().filter(|_| promotion.replaces), Turn::Undo)
            }
            (None, None, Some((promotion, next, _))) => {
                (Some(next).filter(|next| promotion.replaces && !is_plain(next)), Turn::Forth)
            }
            (Some(EMBEDDED), ..) if embedded.is_some() => {
                if used.as_ref().is_none_or(is_plain) && !self.present.contains(name) {
                    return Err(Error::AlreadyInUse(name.to_owned()));
                }
                (None, Turn::Plain)
            }
            (Some(digest), ..) => {
                let version = pick(name, digest, &kept, embedded.as_deref(), is_used)?;
                (Some(version).filter(|version| !is_plain(version)), Turn::Plain)
            }
            // What was taken back comes only if it is asked for.
            (None, None, None) => {
                match kept.iter().find(|version| !is_used(version) && version.taken_back().is_none()) {
                    Some(version) => (Some(version.clone()).filter(|it| !is_plain(it)), Turn::Plain),
                    None if embedded.is_some() && used.as_ref().is_some_and(|used| !is_plain(used)) => {
                        (None, Turn::Plain)
                    }
                    None => return Err(Error::NoFormer(name.to_owned())),
                }
            }
        };
        let turn = match &undone {
            // That is the way back of the trial, by another name.
            Some(promotion) if promotion.is_running() && promotion.replaces => {
                let is_former = match (&promotion.former, &version) {
                    (Some(former), Some(version)) => former.is_same(version),
                    (None, None) => true,
                    _ => false,
                };
                if is_former { Turn::Undo } else { turn }
            }
            _ => turn,
        };
        let used = self.version_in_use(name, 0);
        let mut choice = Choice { version, proven: None, artifact: None, wasm: None, turn, used };
        if let Some(version) = &choice.version {
            self.check_kept(name, version).map_err(Error::Refused)?;
            choice.proven = self.former(name).filter(|former| former.is_of(version)).cloned();
            choice.artifact = self.loaded_artifact(name, &version.digest);
            choice.wasm = self.component(name, &version.digest).filter(|_| choice.proven.is_none());
        }
        Ok(choice)
    }

    /// Returns a component of a name that is loaded.
    fn loaded_artifact(&self, name: &str, digest: &str) -> Option<Arc<Artifact>> {
        let used = self.used(name).map(|used| &used.loaded);
        let former = self.former(name).map(|former| &former.loaded);
        let all = used.into_iter().chain(former);
        all.map(|loaded| loaded.artifact()).find(|artifact| artifact.digest() == digest).cloned()
    }

    /// Returns the last promotion of a name, if the way back from it is open still.
    fn undoable(&self, name: &str) -> Option<Promotion> {
        let promotion = self.state.promotions.get(name)?;
        let is_over = !matches!(promotion.state, PromotionState::Running | PromotionState::Passed);
        let former = promotion.former.as_ref().filter(|_| promotion.replaces);
        let is_lost = former.is_some_and(|former| !self.has_component(name, &former.digest));
        (!is_over && !is_lost && self.is_in_use(name, &promotion.digest, &promotion.config))
            .then(|| promotion.clone())
    }

    /// Returns the last promotion of a name, its version and what is to be bound again, if it was rolled back by hand
    /// and that was the last thing that happened.
    pub(super) fn forth(&self, name: &str) -> Option<(Promotion, Version, Rebind)> {
        let promotion = self.state.promotions.get(name)?;
        if promotion.state != PromotionState::RolledBack {
            return None;
        }
        let used = self.used(name).map(|used| used.version(0));
        let is_back = match &promotion.former {
            _ if !promotion.replaces => self.is_in_use(name, &promotion.digest, &promotion.config),
            Some(former) => used.as_ref().is_some_and(|used| used.is_same(former)),
            None => !self.present.contains(name),
        };
        let bindings = &self.state.bindings;
        let Rebind { scoring, claiming, groups, .. } = promotion.redo.clone();
        // What was bound otherwise since stays.
        let redo = Rebind {
            scoring: scoring.filter(|_| promotion.undo.scoring.as_ref() == Some(&bindings.scoring)),
            claiming: claiming.filter(|_| promotion.undo.claiming.as_ref() == Some(&bindings.claiming)),
            groups: groups
                .into_iter()
                .filter(|(group, _)| {
                    promotion
                        .undo
                        .groups
                        .get(group)
                        .is_some_and(|own| bindings.groups.get(group) == own.as_ref())
                })
                .collect(),
            canary: None,
        };
        let mut kept =
            self.keep.candidate(name).into_iter().chain(self.keep.versions(name)).cloned().chain(used);
        let next = kept.find(|version| promotion.is_of(version))?;
        let is_new = promotion.replaces || !redo.is_empty();
        (is_back && is_new && self.has_component(name, &next.digest)).then(|| (promotion.clone(), next, redo))
    }

    pub(super) fn has_component(&self, name: &str, digest: &str) -> bool {
        self.is_embedded(name, digest) || self.keep.has(name, digest)
    }

    /// Takes the version in use out of decisions: what is bound after the rollback decides, or the fallback until that
    /// is loaded.
    fn suspend(&mut self, name: &str, choice: &Choice) {
        let used = self.used(name);
        let Some(identity) = used.map(|used| used.loaded.identity().clone()) else { return };
        let promotion = self.undoable(name).filter(|_| choice.turn == Turn::Undo);
        let way_back = promotion.as_ref().map(|promotion| promotion.way_back(name, &self.state.bindings));
        let mut bindings = self.state.bindings.clone();
        bindings.apply(&way_back.unwrap_or_default());
        let is_replaced = promotion.as_ref().is_none_or(|promotion| promotion.replaces);
        let instead = match (&choice.version, &choice.proven) {
            (Some(_), proven) => proven.as_ref().map(|proven| proven.loaded.clone()),
            (None, _) => self.former(name).filter(|former| self.is_plain(former)).map(|it| it.loaded.clone()),
        };
        let is_ready = match bindings.scoring.as_str() {
            scoring if scoring == name => !is_replaced || instead.is_some(),
            scoring => self.used(scoring).is_some(),
        };
        if !is_ready {
            self.unseat(&identity);
        }
        if is_replaced {
            let undoes = promotion.is_some();
            self.suspended.insert(name.to_owned(), Suspended { identity, instead, undoes });
            self.fill_seat();
            self.show();
        }
    }

    /// Leaves the seat to the fallback, if this version is in it.
    pub(super) fn unseat(&self, identity: &Identity) {
        let mut previous = None;
        self.host.with_seat(&mut |seat| {
            if seat.health().is_some_and(|health| *health.identity == *identity) {
                previous = seat.install(None);
            }
        });
        if previous.is_some() {
            tracing::info!(
                policy.name = identity.name,
                policy.digest = identity.digest,
                "policy is out of decisions, the fallback decides until another one is loaded"
            );
        }
    }

    /// Returns how the version in use of a name is being taken back, if it is.
    fn suspension(&self, name: &str) -> Option<&Suspended> {
        let used = self.used(name)?;
        self.suspended.get(name).filter(|suspended| suspended.identity == *used.loaded.identity())
    }

    /// Returns the version whose decisions of a name nobody makes now.
    pub(super) fn abandoned(&self, name: &str) -> Option<Arc<Identity>> {
        let suspended = self.suspension(name).filter(|suspended| suspended.instead.is_none())?;
        Some(suspended.identity.clone())
    }

    /// Returns the version that answers for a name: the one in use, unless that is being taken back.
    pub(super) fn serving_of(&mut self, name: &str) -> Result<Arc<Loaded>, String> {
        match self.suspension(name) {
            Some(suspended) => suspended.instead.clone().ok_or_else(|| SUSPENDED.to_owned()),
            None => self.use_of(name),
        }
    }

    /// The same as far as it is loaded.
    pub(super) fn answering(&self, name: &str) -> Option<Arc<Loaded>> {
        match self.suspension(name) {
            Some(suspended) => suspended.instead.clone(),
            None => Some(self.used(name)?.loaded.clone()),
        }
    }

    /// Returns why nothing answers for a name, unless it is only that the embedded policy of that name is not loaded yet.
    pub(super) fn unanswered(&self, name: &str) -> Option<String> {
        if self.answering(name).is_some() {
            return None;
        }
        if self.suspension(name).is_some() {
            return Some(SUSPENDED.to_owned());
        }
        let why = || self.why_unusable(name).unwrap_or_else(|| MISSING.to_owned());
        self.embedded(name).is_none().then(why)
    }

    /// Returns what is bound, without what is being given back.
    pub(super) fn effective_bindings(&self) -> Bindings {
        let mut bindings = self.state.bindings.clone();
        for (name, suspended) in &self.suspended {
            if suspended.undoes
                && self.suspension(name).is_some()
                && let Some(promotion) = self.state.promotions.get(name)
            {
                bindings.apply(&promotion.way_back(name, &self.state.bindings));
            }
        }
        bindings
    }

    /// Returns what a name had in use before, if that is still loaded.
    pub(super) fn former(&self, name: &str) -> Option<&Proven> {
        self.formers.iter().find(|former| former.loaded.identity().name == name)
    }

    /// Keeps a version loaded that was replaced. While the one after it is on trial, what the trial returns to goes first.
    pub(super) fn remember(&mut self, name: &str, former: Proven) {
        let promotion = self.state.promotions.get(name).filter(|promotion| promotion.is_running());
        let is_needed = self.former(name).zip(promotion).is_some_and(|(present, promotion)| {
            promotion.replaces
                && match &promotion.former {
                    Some(version) => present.is_of(version),
                    None => self.is_plain(present),
                }
        });
        if is_needed {
            return;
        }
        self.formers.retain(|other| other.loaded.identity().name != name);
        self.formers.insert(0, former);
        self.formers.truncate(FORMERS_MAX);
    }

    /// Says whether it is the version compiled into the host, not configured.
    pub(super) fn is_plain(&self, proven: &Proven) -> bool {
        let name = &proven.loaded.identity().name;
        self.is_embedded(name, proven.loaded.artifact().digest()) && is_empty(proven.loaded.config())
    }
}

impl Proven {
    /// Says whether it is this version.
    pub(super) fn is_of(&self, version: &Version) -> bool {
        self.loaded.artifact().digest() == version.digest && *self.loaded.config() == version.config
    }
}

/// Finds the version whose digest begins so, or whose short name this is, see [`seat::label`].
fn pick(
    name: &str,
    digest: &str,
    kept: &[Version],
    embedded: Option<&str>,
    is_used: impl Fn(&Version) -> bool,
) -> Result<Version, Error> {
    let plain = embedded.map(|digest| Version::new(digest, Value::Object(serde_json::Map::new())));
    let wanted = digest.to_ascii_lowercase();
    let (component, config) = wanted.split_once('+').unwrap_or((&wanted, ""));
    let component = component.trim_end_matches(['…', '.']);
    let begins = |version: &&Version| {
        let label = seat::label(&version.digest, &version.config.to_string());
        let has_config = config.is_empty() || label.rsplit_once('+').is_some_and(|(_, own)| own == config);
        !component.is_empty() && version.digest.starts_with(component) && has_config
    };
    let found: Vec<_> = kept.iter().chain(&plain).filter(begins).collect();
    let short = |version: &Version| version.digest.get(..12).unwrap_or_default().to_owned();
    let names = |versions: &[&Version]| {
        let mut names: Vec<_> = versions.iter().map(|version| short(version)).collect();
        names.dedup();
        names
    };
    let (name, digest) = (name.to_owned(), digest.to_owned());
    match found.as_slice() {
        [] => {
            let kept = names(&kept.iter().chain(&plain).collect::<Vec<_>>());
            Err(Error::NoVersion { name, digest, kept })
        }
        all if all.iter().any(|version| version.digest != all[0].digest) => {
            Err(Error::Ambiguous { name, digest, kept: names(all) })
        }
        // The same component may have served with several configurations: the latest that does not serve now.
        all => all
            .iter()
            .find(|version| !is_used(version))
            .map_or_else(|| Err(Error::AlreadyInUse(name)), |version| Ok((**version).clone())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_are_found_by_the_start_of_their_digest() {
        let kept = [
            Version::new("aa11", json!({"x": 2})),
            Version::new("ab22", json!({})),
            Version::new("aa11", json!({"x": 1})),
        ];
        let check = |digest: &str, expected: Result<(&str, Value), &str>| {
            let found = pick("mine", digest, &kept, Some("ee00"), |version| version.is_same(&kept[0]));
            let found =
                found.map(|version| (version.digest, version.config)).map_err(|error| error.to_string());
            match expected {
                Ok((digest, config)) => assert_eq!(found, Ok((digest.to_owned(), config)), "{digest}"),
                Err(text) => {
                    assert!(found.as_ref().is_err_and(|error| error.contains(text)), "{digest}: {found:?}");
                }
            }
        };
        check("ab", Ok(("ab22", json!({}))));
        check("AB2", Ok(("ab22", json!({}))));
        check("aa", Ok(("aa11", json!({"x": 1}))));
        check("ee", Ok(("ee00", json!({}))));
        // As it is printed.
        check("ab22…", Ok(("ab22", json!({}))));
        check(&seat::label("aa11", "{\"x\":1}"), Ok(("aa11", json!({"x": 1}))));
        check(&seat::label("aa11", "{\"x\":2}"), Err("in use already"));
        check("aa11…+00", Err("kept are: "));
        check("a", Err("begins several"));
        check("zz", Err("kept are: "));
        check("", Err("kept are: "));
        let only = [Version::new("aa11", json!({}))];
        let found = pick("mine", "aa", &only, None, |_| true);
        assert!(matches!(found, Err(Error::AlreadyInUse(_))), "{found:?}");
    }
}
