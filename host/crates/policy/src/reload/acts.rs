//! The task's part of orders: choosing, and carrying a change out as a whole.

use std::borrow::Cow;

use serde_json::Value;

use super::folder::Files;
use super::keep::Version;
use super::lifecycle::{Basis, Choice, EMBEDDED, Error, Promote};
use super::showing::is_empty;
use super::signed::Signatures;
use super::state::{Installing, Promotion, State};
use super::task::{Proven, Task};
use crate::probation::Budget;
use crate::status::{PromotionState, Rebind, Source};

/// Most names with a candidate.
const CANDIDATES_MAX: usize = 100;

/// What shall become of the files of one name.
pub(super) struct Install {
    pub name: String,
    /// The version that shall be there; `None` is no file at all.
    pub version: Option<Version>,
    /// The same, loaded; without, it is loaded and proven anew.
    pub proven: Option<Proven>,
    /// Its component, unless that is kept already.
    pub wasm: Option<Vec<u8>>,
    /// The candidate of the name afterwards.
    pub candidate: Option<Version>,
}

impl Task {
    /// Returns what an upload that brings only a part is completed with: for a candidate what is the candidate now, else
    /// the version in use.
    pub(super) fn basis(&mut self, name: &str, is_candidate: bool) -> Basis {
        if is_candidate
            && let Some(version) = self.keep.candidate(name).cloned()
            && let Ok(loaded) = self.candidate_of(name)
        {
            let Version { config, signatures, .. } = version;
            return Basis { artifact: Some(loaded.artifact().clone()), config, signatures };
        }
        if let Ok(loaded) = self.use_of(name) {
            let used = self.entries.get(name).and_then(|entry| entry.used.as_ref());
            return Basis {
                artifact: Some(loaded.artifact().clone()),
                config: loaded.config().clone(),
                signatures: used.map(|used| used.signatures.clone()).unwrap_or_default(),
            };
        }
        let refused = self.entries.get(name).and_then(|entry| entry.refused.clone());
        let config = refused.map_or_else(|| Value::Object(serde_json::Map::new()), |(_, config)| config);
        Basis { artifact: None, config, signatures: Signatures::default() }
    }

    pub(super) fn push(
        &mut self,
        name: &str,
        proven: Proven,
        wasm: Option<Vec<u8>>,
        is_candidate: bool,
    ) -> Result<(), Error> {
        let version = proven.version(self.clock.now().0);
        if is_candidate {
            return self.set_candidate(name, version, proven, wasm);
        }
        let candidate = self.keep.candidate(name).filter(|candidate| !candidate.is_same(&version)).cloned();
        let install = Install {
            name: name.to_owned(),
            version: Some(version.clone()),
            proven: Some(proven),
            wasm,
            candidate,
        };
        self.carry_out(self.state.clone(), Some(install))?;
        self.expect_in_use(name, &version)
    }

    fn set_candidate(
        &mut self,
        name: &str,
        version: Version,
        proven: Proven,
        wasm: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let others = self.keep.records().iter().filter(|(other, _)| *other != name);
        if others.filter(|(_, record)| record.candidate.is_some()).count() >= CANDIDATES_MAX {
            return Err(Error::TooManyCandidates { max: CANDIDATES_MAX });
        }
        let (digest, config) = (version.digest.clone(), version.config.to_string());
        let stored = wasm
            .or_else(|| self.component(name, &digest))
            .map_or(Ok(()), |wasm| self.keep.store(name, &wasm))
            .and_then(|()| self.keep.set_candidate(name, Some(version)));
        stored.map_err(|error| self.unstorable(&error))?;
        self.candidates.insert(name.to_owned(), Ok(proven.loaded));
        tracing::info!(policy.name = name, policy.digest = digest, config, "a candidate was pushed");
        self.fill_seat();
        self.show();
        Ok(())
    }

    pub(super) fn drop_candidate(&mut self, name: &str) -> Result<(), Error> {
        if self.keep.candidate(name).is_none() {
            let is_known = self.entries.contains_key(name);
            return Err(match is_known {
                true => Error::NoCandidate(name.to_owned()),
                false => Error::Unknown(name.to_owned()),
            });
        }
        self.keep.set_candidate(name, None).map_err(|error| self.unstorable(&error))?;
        self.candidates.remove(name);
        tracing::info!(policy.name = name, "the candidate was dropped");
        self.fill_seat();
        self.show();
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str, force: bool) -> Result<(), Error> {
        let is_embedded = self.embedded(name).is_some();
        if !self.present.contains(name) {
            let name = name.to_owned();
            return Err(match self.keep.candidate(&name) {
                _ if is_embedded => Error::Embedded(name),
                Some(_) => Error::OnlyCandidate(name),
                None => Error::Unknown(name),
            });
        }
        let mut roles = self.state.bindings.roles_of(name);
        if self.state.bindings.canary.as_ref().is_some_and(|canary| canary.policy == name) {
            roles.push("canary".to_owned());
        }
        if !is_embedded && !force && !roles.is_empty() {
            return Err(Error::InUse { name: name.to_owned(), roles });
        }
        let candidate = self.keep.candidate(name).cloned();
        let install = Install { name: name.to_owned(), version: None, proven: None, wasm: None, candidate };
        self.carry_out(self.state.clone(), Some(install))
    }

    /// Chooses the version to return to.
    pub(super) fn choose(&mut self, name: &str, to: Option<&str>) -> Result<Choice, Error> {
        let embedded = self.embedded_digest(name).map(str::to_owned);
        let kept = self.keep.versions(name).to_vec();
        if kept.is_empty() && embedded.is_none() {
            let is_known = self.entries.contains_key(name);
            return Err(match is_known {
                true => Error::NoFormer(name.to_owned()),
                false => Error::Unknown(name.to_owned()),
            });
        }
        let is_plain =
            |version: &Version| embedded.as_ref() == Some(&version.digest) && is_empty(&version.config);
        let used = self.entries.get(name).and_then(|entry| entry.used.as_ref()).map(|used| used.version(0));
        let is_used = |version: &Version| match &used {
            Some(used) => used.is_same(version),
            None => is_plain(version),
        };
        let undone = to.is_none().then(|| self.undoable(name)).flatten();
        let undoes = undone.is_some();
        let version = match (undone, to) {
            (Some(promotion), _) if promotion.replaces => promotion.former,
            // Only what was bound changes.
            (Some(_), _) => used.clone().filter(|used| !is_plain(used)),
            (None, Some(EMBEDDED)) if embedded.is_some() => {
                if used.as_ref().is_none_or(is_plain) && !self.present.contains(name) {
                    return Err(Error::AlreadyInUse(name.to_owned()));
                }
                None
            }
            (None, Some(digest)) => {
                Some(pick(name, digest, &kept, embedded.as_deref(), is_used)?).filter(|it| !is_plain(it))
            }
            (None, None) => match kept.iter().find(|version| !is_used(version)) {
                Some(version) => Some(version.clone()).filter(|version| !is_plain(version)),
                None if embedded.is_some() && used.as_ref().is_some_and(|used| !is_plain(used)) => None,
                None => return Err(Error::NoFormer(name.to_owned())),
            },
        };
        let mut choice = Choice { version, artifact: None, wasm: None, undoes };
        if let Some(version) = &choice.version {
            self.check_kept(name, version).map_err(Error::Refused)?;
            let used = self.entries.get(name).and_then(|entry| entry.used.as_ref());
            let artifact = used.map(|used| used.loaded.artifact());
            choice.artifact = artifact.filter(|artifact| artifact.digest() == version.digest).cloned();
            choice.wasm = self.component(name, &version.digest);
        }
        Ok(choice)
    }

    /// Returns the last promotion of a name, if the way back from it is open still.
    fn undoable(&self, name: &str) -> Option<Promotion> {
        let promotion = self.state.promotions.get(name)?;
        let is_over = !matches!(promotion.state, PromotionState::Running | PromotionState::Passed);
        let former = promotion.former.as_ref().filter(|_| promotion.replaces);
        let is_lost = former.is_some_and(|former| {
            !self.is_embedded(name, &former.digest) && !self.keep.has(name, &former.digest)
        });
        (!is_over && !is_lost && self.is_in_use(name, &promotion.digest, &promotion.config))
            .then(|| promotion.clone())
    }

    pub(super) fn roll_back(
        &mut self,
        name: &str,
        proven: Option<Proven>,
        undoes: bool,
    ) -> Result<(), Error> {
        let reason = "rolled back by hand".to_owned();
        if undoes && self.undoable(name).is_some() {
            return self.return_to_former(name, reason, false, proven);
        }
        let now = self.clock.now().0;
        let version = proven.as_ref().map(|proven| proven.version(now));
        let mut state = self.state.clone();
        if let Some(promotion) = state.promotions.get_mut(name).filter(|promotion| promotion.is_running()) {
            promotion.end(PromotionState::Superseded, Some(reason), now);
        }
        let candidate = self.keep.candidate(name).cloned();
        let install =
            Install { name: name.to_owned(), version: version.clone(), proven, wasm: None, candidate };
        self.carry_out(state, Some(install))?;
        tracing::info!(policy.name = name, "rolled back by hand");
        version.map_or(Ok(()), |version| self.expect_in_use(name, &version))
    }

    pub(super) fn promote(&mut self, name: &str, wish: &Promote) -> Result<(), Error> {
        let candidate = self.keep.candidate(name).cloned();
        if candidate.is_none() && !self.entries.contains_key(name) {
            return Err(Error::Unknown(name.to_owned()));
        }
        let unusable = |message| Error::Unusable { name: name.to_owned(), message };
        let loaded = self.candidate_of(name).map_err(unusable)?;
        if let Some(version) = &candidate {
            // Keys and the quarantine may have changed since it was loaded.
            self.check_kept(name, version).map_err(Error::Refused)?;
        }
        let rebind = self.wanted_bindings(name, wish)?;
        let roles = loaded.artifact().roles();
        let bound = self.state.bindings.roles_of(name);
        let scores = rebind.scoring.is_some() || bound.iter().any(|role| role == "scoring");
        let plans = rebind.claiming.is_some()
            || !rebind.groups.is_empty()
            || bound.iter().any(|role| role != "scoring");
        for (role, is_wanted, is_offered) in
            [("scoring", scores, roles.scoring), ("claiming", plans, roles.claiming)]
        {
            if is_wanted && !is_offered {
                return Err(super::manager::BindError::WrongRole { name: name.to_owned(), role }.into());
            }
        }
        self.check_groups(&rebind)?;

        let now = self.clock.now().0;
        let used = self.entries.get(name).and_then(|entry| entry.used.as_ref());
        let next = version_of_candidate(candidate.as_ref(), used.map(|used| used.version(now)), now);
        let Some(next) = next else { return Err(Error::NothingToPromote(name.to_owned())) };
        let replaces = !self.is_in_use(name, &next.digest, &next.config);
        let mut undo = self.state.undo(&rebind);
        if !replaces && undo.is_empty() {
            return Err(match candidate {
                Some(_) => Error::AlreadyInUse(name.to_owned()),
                None => Error::NothingToPromote(name.to_owned()),
            });
        }
        let is_file =
            |used: &&super::task::Used| used.source != Source::Embedded || !is_empty(used.loaded.config());
        let mut former = used.filter(is_file).map(|used| used.version(now));
        let mut state = self.state.clone();
        if let Some(running) = state.promotions.get(name).filter(|promotion| promotion.is_running()) {
            // The way back leads to what stood its test, past what is on trial itself.
            if running.replaces {
                former.clone_from(&running.former);
            }
            undo = merged(running.undo.clone(), undo);
        }
        let mut bindings = rebind;
        if state.bindings.canary.as_ref().is_some_and(|canary| canary.policy == name) {
            bindings.canary = Some(None);
        }
        state.rebind(&bindings, now);
        let Budget { failures_max, decisions, .. } = self.settings.promote;
        state.promotions.insert(
            name.to_owned(),
            Promotion {
                state: PromotionState::Running,
                digest: next.digest.clone(),
                config: next.config.clone(),
                failures_max: wish.failures_max.unwrap_or(failures_max),
                decisions: wish.decisions.unwrap_or(decisions).max(1),
                asked: 0,
                failed: 0,
                replaces,
                former,
                undo,
                reason: None,
                at_ms: now,
            },
        );
        let before = used.filter(|_| replaces).map(|used| Proven {
            loaded: used.loaded.clone(),
            signatures: used.signatures.clone(),
            load_ms: used.load_ms,
        });
        let install = replaces.then(|| Install {
            name: name.to_owned(),
            version: Some(next.clone()),
            proven: Some(Proven { loaded, signatures: next.signatures.clone(), load_ms: 0 }),
            wasm: None,
            candidate: None,
        });
        self.carry_out(state, install)?;
        if let Some(before) = before {
            self.formers.entry(name.to_owned()).or_insert(before);
        }
        if !replaces && candidate.is_some() {
            self.drop_candidate(name)?;
        }
        self.expect_in_use(name, &next)?;
        tracing::info!(policy.name = name, policy.digest = next.digest, "policy promoted, it is on trial");
        Ok(())
    }

    /// Returns what a promotion binds.
    fn wanted_bindings(&self, name: &str, wish: &Promote) -> Result<Rebind, Error> {
        let own = || Some(name.to_owned());
        let mut rebind = Rebind {
            scoring: wish.scoring.then(own).flatten(),
            claiming: wish.claiming.then(own).flatten(),
            groups: wish.groups.iter().map(|group| (group.clone(), own())).collect(),
            canary: None,
        };
        if rebind.is_empty() && self.state.bindings.roles_of(name).is_empty() {
            let is_canary = self.state.bindings.canary.as_ref().is_some_and(|canary| canary.policy == name);
            rebind.scoring = (wish.tried_on.scoring || is_canary).then(own).flatten();
            rebind.claiming = wish.tried_on.claiming.then(own).flatten();
            rebind.groups = wish.tried_on.groups.iter().map(|group| (group.clone(), own())).collect();
            if rebind.is_empty() {
                return Err(Error::NoRole(name.to_owned()));
            }
        }
        Ok(rebind)
    }

    /// Carries a change out: all of it, or nothing if it errors.
    pub(super) fn carry_out(&mut self, mut state: State, install: Option<Install>) -> Result<(), Error> {
        let Some(Install { name, version, proven, wasm, candidate }) = install else {
            state.save(self.keep.path()).map_err(|error| self.unstorable(&error))?;
            self.take(state);
            self.fill_seat();
            self.show();
            return Ok(());
        };
        let wasm = self.stored_component(&name, version.as_ref(), wasm)?;
        let staging = self.staged(&name, version.as_ref(), wasm.as_deref())?;
        drop(wasm);
        state.installing = Some(Installing { name: name.clone(), version, candidate: candidate.clone() });
        self.keep.pin(state.pins());
        // From here on a host that is killed goes on with it when it starts again.
        if let Err(error) = state.save(self.keep.path()) {
            self.keep.pin(self.state.pins());
            return Err(self.unstorable(&error));
        }
        if let Err(error) = self.folder.commit(staging) {
            self.keep.pin(self.state.pins());
            self.store_state();
            return Err(self.unwritable(&error));
        }
        state.installing = None;
        self.after_files(&name, candidate);
        self.take(state);
        self.store_state();
        self.proven = proven;
        drop(self.reconcile());
        self.proven = None;
        Ok(())
    }

    /// Goes on with the change of the folder that a kill interrupted.
    pub(super) fn redo(&mut self) {
        let Some(Installing { name, version, candidate }) = self.state.installing.clone() else { return };
        let redone = self
            .stored_component(&name, version.as_ref(), None)
            .and_then(|wasm| self.staged(&name, version.as_ref(), wasm.as_deref()))
            .and_then(|staging| self.folder.commit(staging).map_err(|error| self.unwritable(&error)));
        match redone {
            Ok(()) => {
                tracing::info!(policy.name = name, "finished a change that was cut short");
                self.after_files(&name, candidate);
            }
            Err(error) => {
                tracing::error!(policy.name = name, %error, "cannot finish a change that was cut short");
            }
        }
        self.state.installing = None;
        self.store_state();
    }

    fn after_files(&mut self, name: &str, candidate: Option<Version>) {
        if self.keep.candidate(name) != candidate.as_ref() {
            self.candidates.remove(name);
        }
        if let Err(error) = self.keep.set_candidate(name, candidate) {
            tracing::error!(policy.name = name, %error, "cannot note which candidate there is");
        }
    }

    /// Makes sure that a version's component is kept; returns its bytes, unless they need no file.
    fn stored_component(
        &self,
        name: &str,
        version: Option<&Version>,
        wasm: Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(version) = version.filter(|version| !self.is_embedded(name, &version.digest)) else {
            return Ok(None);
        };
        let lost = || std::io::Error::other("the component is lost or damaged");
        let wasm = wasm.or_else(|| self.component(name, &version.digest));
        let wasm = wasm.ok_or_else(|| self.unstorable(&lost()))?;
        self.keep.store(name, &wasm).map_err(|error| self.unstorable(&error))?;
        Ok(Some(wasm))
    }

    /// Writes a version's files beside their places.
    fn staged(
        &self,
        name: &str,
        version: Option<&Version>,
        wasm: Option<&[u8]>,
    ) -> Result<super::folder::Staging, Error> {
        let config = version.and_then(config_text);
        let signatures = version.map(|version| &version.signatures);
        let files = Files {
            wasm,
            wasm_signature: signatures
                .and_then(|signatures| signatures.component.as_deref())
                .filter(|_| wasm.is_some()),
            config: config.as_deref(),
            config_signature: signatures
                .and_then(|signatures| Some(signatures.config.as_ref()?.signature.as_str()))
                .filter(|_| config.is_some()),
        };
        self.folder.stage(name, &files).map_err(|error| self.unwritable(&error))
    }

    pub(super) fn is_in_use(&self, name: &str, digest: &str, config: &Value) -> bool {
        let used = self.entries.get(name).and_then(|entry| entry.used.as_ref());
        used.is_some_and(|used| used.loaded.artifact().digest() == digest && used.loaded.config() == config)
    }

    /// A file that was dropped at the same moment may have won.
    fn expect_in_use(&self, name: &str, version: &Version) -> Result<(), Error> {
        if self.is_in_use(name, &version.digest, &version.config) {
            Ok(())
        } else {
            Err(Error::Overtaken(name.to_owned()))
        }
    }

    fn unwritable(&self, error: &std::io::Error) -> Error {
        Error::Folder { path: self.folder.path().to_owned(), error: error.to_string() }
    }

    pub(super) fn unstorable(&self, error: &std::io::Error) -> Error {
        Error::State { path: self.keep.path().to_owned(), error: error.to_string() }
    }
}

fn version_of_candidate(candidate: Option<&Version>, used: Option<Version>, now_ms: u64) -> Option<Version> {
    candidate.map(|version| Version { at_ms: now_ms, ..version.clone() }).or(used)
}

/// Returns the text of a version's configuration file: the very one that was signed, if there is one.
fn config_text(version: &Version) -> Option<Cow<'_, str>> {
    let signed = version.signatures.config.as_ref().filter(|signed| {
        serde_json::from_str::<Value>(&signed.text).is_ok_and(|config| config == version.config)
    });
    match signed {
        Some(signed) => Some(Cow::Borrowed(signed.text.as_str())),
        None if is_empty(&version.config) => None,
        None => Some(Cow::Owned(format!("{:#}\n", version.config))),
    }
}

/// Joins what two changes undo; the first one was made first, so what it undoes is further back.
fn merged(first: Rebind, second: Rebind) -> Rebind {
    let mut groups = second.groups;
    groups.extend(first.groups);
    Rebind {
        scoring: first.scoring.or(second.scoring),
        claiming: first.claiming.or(second.claiming),
        groups,
        canary: None,
    }
}

/// Finds the version whose digest begins so.
fn pick(
    name: &str,
    digest: &str,
    kept: &[Version],
    embedded: Option<&str>,
    is_used: impl Fn(&Version) -> bool,
) -> Result<Version, Error> {
    let plain = embedded.map(|digest| Version {
        digest: digest.to_owned(),
        config: Value::Object(serde_json::Map::new()),
        signatures: Signatures::default(),
        version: String::new(),
        at_ms: 0,
    });
    let wanted = digest.to_ascii_lowercase();
    let begins = |version: &&Version| !wanted.is_empty() && version.digest.starts_with(&wanted);
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
    use crate::reload::signed::SignedConfig;

    fn version(digest: &str, config: Value) -> Version {
        let signatures = Signatures::default();
        Version { digest: digest.to_owned(), config, signatures, version: String::new(), at_ms: 0 }
    }

    #[test]
    fn versions_are_found_by_the_start_of_their_digest() {
        let kept =
            [version("aa11", json!({"x": 2})), version("ab22", json!({})), version("aa11", json!({"x": 1}))];
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
        check("a", Err("begins several"));
        check("zz", Err("kept are: "));
        check("", Err("kept are: "));
        let only = [version("aa11", json!({}))];
        let found = pick("mine", "aa", &only, None, |_| true);
        assert!(matches!(found, Err(Error::AlreadyInUse(_))), "{found:?}");
    }

    #[test]
    fn a_signed_configuration_is_written_as_it_was_signed() {
        let check = |config: Value, signed: Option<&str>, expected: Option<&str>| {
            let mut version = version("aa", config);
            version.signatures.config =
                signed.map(|text| SignedConfig { text: text.to_owned(), signature: String::new() });
            assert_eq!(config_text(&version).as_deref(), expected, "{version:?}");
        };
        check(json!({}), None, None);
        check(json!({"x": 1}), None, Some("{\n  \"x\": 1\n}\n"));
        check(json!({"x": 1}), Some("{ \"x\":1 }"), Some("{ \"x\":1 }"));
        check(json!({"x": 2}), Some("{ \"x\":1 }"), Some("{\n  \"x\": 2\n}\n"));
        check(json!({}), Some("{}"), Some("{}"));
    }
}
