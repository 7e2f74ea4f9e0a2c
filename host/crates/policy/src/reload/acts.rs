//! The task's part of orders: choosing, and carrying a change out as a whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fulcrum_core::time::Timestamp;
use serde_json::Value;

use super::folder::{Files, SIDECAR_BYTES_MAX, check_config_size};
use super::keep::Version;
use super::lifecycle::{Basis, Error, Promote, Taken};
use super::showing::is_empty;
use super::signed::Signatures;
use super::state::{Between, Installing, Promotion, State};
use super::task::{Blocked, Proven, Task};
use crate::artifact::Loaded;
use crate::probation::Budget;
use crate::refusal::Refusal;
use crate::seat::{self, ScoringFactory as _};
use crate::status::{PromotionState, Rebind, Source, Way};

/// Why a trial passed that somebody ended.
const ACCEPTED: &str = "accepted by hand";
/// Most names with a candidate.
const CANDIDATES_MAX: usize = 100;
/// Longest configuration, in bytes of compact JSON, that is written for people.
const PRETTY_BYTES_MAX: usize = 64 << 10;

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
    /// Why.
    pub cause: Cause,
}

/// Why the version in use of a name becomes another one.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    /// How the next one comes.
    pub came: Way,
    /// Why the one in use leaves.
    pub left: Way,
    pub reason: Option<String>,
}

impl Cause {
    pub(super) fn new(came: Way, left: Way) -> Self {
        Self { came, left, reason: None }
    }
}

/// What becomes of a trial that is over by order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenBackBy {
    Host,
    Hand,
}

/// A version that shall come into use on trial.
struct Trial {
    next: Version,
    proven: Proven,
    /// What is bound to it.
    rebind: Rebind,
    failures_max: u32,
    decisions: u32,
    /// Whether what is on trial itself counts as passed where the way back would lead to it.
    accept: bool,
    /// The candidate of the name afterwards.
    candidate: Option<Version>,
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
            let used = self.used(name);
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

    /// Puts a version into the folder and into use, or keeps it as the candidate. Errors if what it was completed with is
    /// not there any more: nobody has asked for what came of it then.
    pub(super) fn push(
        &mut self,
        name: &str,
        proven: Proven,
        wasm: Option<Vec<u8>>,
        is_candidate: bool,
        taken: &Taken,
    ) -> Result<(), Error> {
        if !self.basis(name, is_candidate).has(taken) {
            return Err(Error::Overtaken(name.to_owned()));
        }
        let version = proven.version(self.clock.now().0);
        // It may have been put into quarantine since.
        self.check_kept(name, &version).map_err(Error::Refused)?;
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
            cause: Cause::new(Way::Pushed, Way::Pushed),
        };
        self.carry_out(self.state.clone(), Some(install))?;
        self.expect_in_use(name, &version).inspect_err(|_| self.sweep(name))
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
        let digest = version.digest.clone();
        // The same version again is no better than it was.
        let left = self.keep.left(name, &version).filter(|left| left.by == Way::TakenBack);
        let version = Version { left, ..version };
        let stored = wasm
            .or_else(|| self.component(name, &digest))
            .ok_or_else(lost)
            .and_then(|wasm| self.keep.store(name, &wasm))
            .and_then(|()| self.keep.set_candidate(name, Some(version)));
        if let Err(error) = stored {
            self.sweep(name);
            return Err(self.unstorable(&error));
        }
        let config_digest = proven.loaded.identity().config_digest();
        self.candidates.insert(name.to_owned(), Ok(proven.loaded));
        tracing::info!(
            policy.name = name,
            policy.digest = digest,
            policy.config_digest = config_digest,
            "a candidate was pushed"
        );
        self.fill_seat();
        self.show();
        Ok(())
    }

    pub(super) fn drop_candidate(&mut self, name: &str) -> Result<(), Error> {
        if self.keep.candidate(name).is_none() {
            let is_known = self.entries.contains_key(name) || !self.keep.versions(name).is_empty();
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

    /// Removes the files of a name. `own_groups` are the groups that name it themselves.
    pub(super) fn remove(&mut self, name: &str, force: bool, own_groups: &[String]) -> Result<(), Error> {
        let is_embedded = self.embedded(name).is_some();
        if !self.present.contains(name) {
            let name = name.to_owned();
            return Err(match self.keep.candidate(&name) {
                _ if is_embedded => Error::Embedded(name),
                Some(_) => Error::OnlyCandidate(name),
                None if !self.keep.versions(&name).is_empty() => Error::Removed(name),
                None => Error::Unknown(name),
            });
        }
        // Not even by force: what it takes to be free of the promotion is said.
        if !is_embedded && let Some(promoted) = self.state.returning_to(name).into_iter().next() {
            return Err(Error::WayBack { name: name.to_owned(), promoted });
        }
        let mut roles = self.state.bindings.roles_of(name);
        roles.extend(own_groups.iter().map(|group| format!("group {group} (by its own setting)")));
        if self.state.bindings.canary.as_ref().is_some_and(|canary| canary.policy == name) {
            roles.push("canary".to_owned());
        }
        if !is_embedded && !force && !roles.is_empty() {
            return Err(Error::InUse { name: name.to_owned(), roles });
        }
        let candidate = self.keep.candidate(name).cloned();
        let cause = Cause::new(Way::Removed, Way::Removed);
        let install =
            Install { name: name.to_owned(), version: None, proven: None, wasm: None, candidate, cause };
        self.carry_out(self.state.clone(), Some(install))
    }

    pub(super) fn promote(&mut self, name: &str, wish: &Promote) -> Result<(), Error> {
        let candidate = self.keep.candidate(name).cloned();
        if candidate.is_none() && !self.entries.contains_key(name) {
            let name = name.to_owned();
            return Err(match self.keep.versions(&name).is_empty() {
                true => Error::Unknown(name),
                false => Error::Removed(name),
            });
        }
        if candidate.is_none() && wish.accept && self.accept(name, wish)? {
            return Ok(());
        }
        let unusable = |message| Error::Unusable { name: name.to_owned(), message };
        let loaded = self.candidate_of(name).map_err(unusable)?;
        if let Some(version) = &candidate {
            // Keys and the quarantine may have changed since it was loaded.
            self.check_kept(name, version).map_err(Error::Refused)?;
        }
        let rebind = self.wanted_bindings(name, wish)?;
        self.check_roles(name, wish, &rebind, &loaded)?;
        self.check_groups(&rebind)?;

        let now = self.clock.now().0;
        let used = self.used(name);
        let next = version_of_candidate(candidate.as_ref(), used.map(|used| used.version(now)), now);
        let Some(next) = next else { return Err(Error::NothingToPromote(name.to_owned())) };
        let replaces = !self.is_in_use(name, &next.digest, &next.config);
        if !replaces && self.state.bindings.difference(&rebind).is_empty() {
            return Err(match candidate {
                Some(_) => Error::AlreadyInUse(name.to_owned()),
                None => Error::NothingToPromote(name.to_owned()),
            });
        }
        if !wish.again {
            self.expect_not_taken_back(name, candidate.as_ref(), &next)?;
        }
        let Budget { failures_max, decisions, .. } = self.settings.promote;
        let trial = Trial {
            proven: Proven { loaded, signatures: next.signatures.clone(), load_ms: 0 },
            next,
            rebind,
            failures_max: wish.failures_max.unwrap_or(failures_max),
            decisions: wish.decisions.unwrap_or(decisions).max(1),
            accept: wish.accept,
            candidate: None,
        };
        self.put_on_trial(name, trial, Cause::new(Way::Promoted, Way::Promoted))?;
        if !replaces && candidate.is_some() {
            self.drop_candidate(name)?;
        }
        Ok(())
    }

    /// Ends the trial of a name as passed, if nothing else is wished; says whether that was so.
    fn accept(&mut self, name: &str, wish: &Promote) -> Result<bool, Error> {
        let is_running = self.state.promotions.get(name).is_some_and(Promotion::is_running);
        if !is_running {
            return Ok(false);
        }
        let rebind = self.wanted_bindings(name, wish)?;
        if !self.state.bindings.difference(&rebind).is_empty() {
            return Ok(false);
        }
        let (mut state, now) = (self.counted(), self.clock.now().0);
        if let Some(promotion) = state.promotions.get_mut(name) {
            promotion.end(PromotionState::Passed, Some(ACCEPTED.to_owned()), now);
        }
        self.carry_out(state, None)?;
        Ok(true)
    }

    /// Checks that a version answers what it would be bound to.
    fn check_roles(&self, name: &str, wish: &Promote, rebind: &Rebind, loaded: &Loaded) -> Result<(), Error> {
        let roles = loaded.artifact().roles();
        let bound = self.state.bindings.roles_of(name);
        let scores = rebind.scoring.is_some() || bound.iter().any(|role| role == "scoring");
        let plans = rebind.claiming.is_some()
            || !rebind.groups.is_empty()
            || !wish.own_groups.is_empty()
            || bound.iter().any(|role| role != "scoring");
        for (role, is_wanted, is_offered) in
            [("scoring", scores, roles.scoring), ("claiming", plans, roles.claiming)]
        {
            if is_wanted && !is_offered {
                return Err(super::manager::BindError::WrongRole { name: name.to_owned(), role }.into());
            }
        }
        Ok(())
    }

    /// Refuses what the host took back when it served last.
    fn expect_not_taken_back(
        &self,
        name: &str,
        candidate: Option<&Version>,
        next: &Version,
    ) -> Result<(), Error> {
        let last = self.state.promotions.get(name);
        let last = last.filter(|last| last.state == PromotionState::Returned && last.is_of(next));
        let reason = last.and_then(|last| last.reason.clone());
        let taken_back = candidate.and_then(Version::taken_back).map(|taken_back| taken_back.reason);
        match reason.or(taken_back) {
            None => Ok(()),
            Some(reason) => {
                let version = seat::label(&next.digest, &next.config.to_string());
                Err(Error::TakenBack { name: name.to_owned(), version, reason })
            }
        }
    }

    /// Puts a version into use and binds it, on trial.
    fn put_on_trial(&mut self, name: &str, trial: Trial, cause: Cause) -> Result<(), Error> {
        let Trial { next, proven, rebind, failures_max, decisions, accept, candidate } = trial;
        let now = self.clock.now().0;
        let undo = self.state.bindings.difference(&rebind);
        let mut state = self.counted();
        let mut on_trial = state.on_trial(&undo);
        if state.promotions.get(name).is_some_and(Promotion::is_running) {
            on_trial.insert(name.to_owned());
        }
        for tried in &on_trial {
            let Some(promotion) = state.promotions.get_mut(tried) else { continue };
            if !accept {
                return Err(Error::OnTrial {
                    name: tried.clone(),
                    version: seat::label(&promotion.digest, &promotion.config.to_string()),
                    asked: promotion.asked,
                    decisions: promotion.decisions,
                    failed: promotion.failed,
                    failures_max: promotion.failures_max,
                });
            }
            promotion.end(PromotionState::Passed, Some(ACCEPTED.to_owned()), now);
        }
        let replaces = !self.is_in_use(name, &next.digest, &next.config);
        let is_file =
            |used: &&super::task::Used| used.source != Source::Embedded || !is_empty(used.loaded.config());
        let used = self.used(name);
        let former = used.filter(is_file).map(|used| used.version(now));
        let others = undo.policies().filter(|other| *other != name && self.embedded(other).is_none());
        let others = others.filter_map(|other| Some((other.to_owned(), self.used(other)?.version(now))));
        let others = others.collect();
        let mut bindings = rebind;
        if state.bindings.canary.as_ref().is_some_and(|canary| canary.policy == name) {
            bindings.canary = Some(None);
        }
        state.rebind(&bindings, now);
        let number = state.promotions.get(name).map_or(1, |promotion| promotion.number.saturating_add(1));
        let promotion = Promotion {
            number,
            state: PromotionState::Running,
            digest: next.digest.clone(),
            config: next.config.clone(),
            failures_max,
            decisions,
            asked: 0,
            failed: 0,
            spent: false,
            replaces,
            former,
            undo,
            others,
            redo: Rebind::default(),
            reason: None,
            at_ms: now,
        };
        state.promotions.insert(name.to_owned(), promotion);
        self.forget_ended(&mut state);
        let install = replaces.then(|| Install {
            name: name.to_owned(),
            version: Some(next.clone()),
            proven: Some(proven),
            wasm: None,
            candidate,
            cause,
        });
        self.carry_out(state, install)?;
        self.expect_in_use(name, &next)?;
        tracing::info!(policy.name = name, policy.digest = next.digest, "policy promoted, it is on trial");
        Ok(())
    }

    /// Goes forth again to a promotion that was rolled back by hand.
    pub(super) fn go_forth(&mut self, name: &str, proven: Option<Proven>) -> Result<(), Error> {
        let (promotion, next, redo) = self.forth(name).ok_or_else(|| Error::Overtaken(name.to_owned()))?;
        let proven = match proven {
            Some(proven) => proven,
            // Only bindings change.
            None => {
                let loaded = self.use_of(name).map_err(|message| {
                    let name = name.to_owned();
                    Error::Unusable { name, message }
                })?;
                Proven { loaded, signatures: next.signatures.clone(), load_ms: 0 }
            }
        };
        let trial = Trial {
            candidate: self.keep.candidate(name).filter(|candidate| !candidate.is_same(&next)).cloned(),
            next: Version { at_ms: self.clock.now().0, left: None, ..next },
            proven,
            rebind: redo,
            failures_max: promotion.failures_max,
            decisions: promotion.decisions,
            accept: false,
        };
        self.put_on_trial(name, trial, Cause::new(Way::RolledBack, Way::RolledBack))
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
        let serves = !self.state.bindings.roles_of(name).is_empty() || !wish.own_groups.is_empty();
        if rebind.is_empty() && !serves {
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
    pub(super) fn carry_out(&mut self, state: State, install: Option<Install>) -> Result<(), Error> {
        let name = install.as_ref().map(|install| install.name.clone());
        let done = self.change(state, install);
        if let (Err(_), Some(name)) = (&done, name) {
            self.sweep(&name);
        }
        done
    }

    /// Removes components that an order had stored which was refused then.
    fn sweep(&self, name: &str) {
        // What came into use and could not be noted yet is needed still.
        if self.unsaved.iter().any(|unsaved| unsaved.name == name) {
            return;
        }
        if let Err(error) = self.keep.sweep(name) {
            tracing::warn!(policy.name = name, %error, "cannot remove what is left of a refused order");
        }
    }

    fn change(&mut self, mut state: State, install: Option<Install>) -> Result<(), Error> {
        let Some(Install { name, version, proven, wasm, candidate, cause }) = install else {
            state.save(self.keep.path()).map_err(|error| self.unstorable(&error))?;
            self.take(state);
            self.fill_seat();
            self.show();
            return Ok(());
        };
        if let Some(unfinished) = &self.state.installing {
            // There is one change under way.
            let why = self.blocked.as_ref().map_or("it is tried again", |blocked| &blocked.error);
            let error = format!("an earlier order about `{}` is not finished: {why}", unfinished.name);
            return Err(Error::Folder { path: self.folder.path().to_owned(), error });
        }
        let wasm = self.stored_component(&name, version.as_ref(), wasm)?;
        let staging = self.staged(&name, version.as_ref(), wasm.as_deref())?;
        drop(wasm);
        let files = Between { before: self.folder.prints(&name), after: staging.prints().clone() };
        let installing =
            Installing { name: name.clone(), version, candidate: candidate.clone(), files: Some(files) };
        state.installing = Some(installing);
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
        (self.proven, self.cause) = (proven, Some((name, cause)));
        drop(self.reconcile());
        (self.proven, self.cause) = (None, None);
        Ok(())
    }

    /// Goes on with the change of the folder that was cut short, now and then until it is done. It is given up where its
    /// component is lost, and where somebody put other files into the folder since: they win.
    pub(super) fn redo(&mut self) {
        let Some(Installing { name, version, candidate, files }) = self.state.installing.clone() else {
            return;
        };
        let (now, stamp) = (self.clock.now(), self.folder.stamp(&name));
        if let Some(blocked) = &self.blocked {
            if let (Some(then), Some(stamp)) = (&blocked.stamp, &stamp)
                && then != stamp
            {
                self.give_way(&name);
                return;
            }
            // Each try writes into the folder, which wakes this task.
            if now.since(blocked.tried_at) < self.settings.poll {
                return;
            }
        }
        // Without its folder nothing is known of them.
        if let Some(Between { before, after }) = &files
            && stamp.is_some()
            && !self.folder.prints(&name).is_between(before, after)
        {
            self.give_way(&name);
            return;
        }
        let redone = self
            .stored_component(&name, version.as_ref(), None)
            .and_then(|wasm| self.staged(&name, version.as_ref(), wasm.as_deref()))
            .and_then(|staging| self.folder.commit(staging).map_err(|error| self.unwritable(&error)));
        let is_lost = || {
            let version = version.as_ref().filter(|version| !self.is_embedded(&name, &version.digest));
            version.is_some_and(|version| self.component(&name, &version.digest).is_none())
        };
        match redone {
            Ok(()) => {
                tracing::info!(policy.name = name, "finished a change that was cut short");
                self.after_files(&name, candidate);
                self.end_redo();
            }
            Err(error) if is_lost() => {
                tracing::error!(policy.name = name, %error, "gave up a change that was cut short");
                self.end_redo();
            }
            Err(error) => {
                let error = match error {
                    Error::Folder { path, error } => format!("cannot write {}: {error}", path.display()),
                    error => error.to_string(),
                };
                if self.blocked.as_ref().is_none_or(|blocked| blocked.error != error) {
                    tracing::error!(
                        policy.name = name,
                        error,
                        "cannot finish a change that was cut short yet, trying again"
                    );
                }
                self.blocked = Some(Blocked { error, stamp, tried_at: now });
            }
        }
    }

    /// Leaves the folder to files that were dropped since.
    fn give_way(&mut self, name: &str) {
        tracing::warn!(policy.name = name, "gave up a change that was cut short: other files were dropped");
        self.end_redo();
    }

    fn end_redo(&mut self) {
        self.blocked = None;
        self.state.installing = None;
        self.keep.pin(self.state.pins());
        self.store_state();
    }

    /// Returns the name whose change was cut short and is not finished yet, with the digest it was to have and what to say.
    pub(super) fn interrupted(&self) -> BTreeMap<String, (String, Refusal)> {
        let unfinished = self.state.installing.iter().zip(&self.blocked);
        unfinished
            .map(|(Installing { name, version, .. }, blocked)| {
                let digest = version.as_ref().map_or_else(String::new, |version| version.digest.clone());
                (name.clone(), (digest, Refusal::Interrupted { error: blocked.error.clone() }))
            })
            .collect()
    }

    /// Tries what could not be done so far at once.
    pub(super) fn try_again(&mut self) {
        if let Some(blocked) = &mut self.blocked {
            blocked.tried_at = Timestamp::default();
        }
        self.blocked_returns.clear();
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
        // Else the next look would refuse it.
        check_config_size(name, config.as_ref().map_or(0, |text| text.len())).map_err(Error::Refused)?;
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
        let used = self.used(name);
        used.is_some_and(|used| used.loaded.artifact().digest() == digest && used.loaded.config() == config)
    }

    /// A file that was dropped at the same moment may have won.
    pub(super) fn expect_in_use(&self, name: &str, version: &Version) -> Result<(), Error> {
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

fn lost() -> std::io::Error {
    std::io::Error::other("the component is lost or damaged")
}

/// Returns the text of a version's configuration file: the very one that was signed, if there is one. It is not longer
/// than what a look at the folder reads, if it is that as compact JSON.
fn config_text(version: &Version) -> Option<Cow<'_, str>> {
    let signed = version.signatures.config.as_ref().filter(|signed| {
        serde_json::from_str::<Value>(&signed.text).is_ok_and(|config| config == version.config)
    });
    match signed {
        Some(signed) => Some(Cow::Borrowed(signed.text.as_str())),
        None if is_empty(&version.config) => None,
        None => {
            let compact = version.config.to_string();
            // Deep lists grow to a multiple.
            let pretty = (compact.len() <= PRETTY_BYTES_MAX).then(|| format!("{:#}\n", version.config));
            Some(Cow::Owned(pretty.filter(|text| text.len() <= SIDECAR_BYTES_MAX).unwrap_or(compact)))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reload::signed::SignedConfig;

    #[test]
    fn a_signed_configuration_is_written_as_it_was_signed() {
        let check = |config: Value, signed: Option<&str>, expected: Option<&str>| {
            let mut version = Version::new("aa", config);
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

    #[test]
    fn a_configuration_does_not_outgrow_its_file() {
        let check = |config: Value, is_pretty: bool| {
            let version = Version::new("aa", config);
            let text = config_text(&version).expect("one");
            assert_eq!(text.contains('\n'), is_pretty, "{}", text.len());
            assert!(text.len() <= SIDECAR_BYTES_MAX, "{}", text.len());
        };
        check(json!({ "a": vec![1; 20_000] }), true);
        check(json!({ "a": vec![1; 200_000] }), false);
        // Each line of it is longer than most that there are.
        let deep = (0..100).fold(json!(vec![1; 20_000]), |value, _| json!([value]));
        check(json!({ "a": deep }), false);
        check(json!({ "a": "x".repeat(SIDECAR_BYTES_MAX - 8) }), false);
    }
}
