//! The claiming role in service: asks the bound policy for a plan, verifies it, and plans natively when it fails.
//!
//! A plan may take up to the claiming deadline: never on a serving thread. Invariants: every plan is made by exactly
//! one policy version or by the fallback; a plan that comes out is legal for its cycle; instances keep to the share of
//! plans, and those that nobody asks for are let go.

mod health;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::claiming::{self, Cycle, Plan};
use fulcrum_core::time::{Clock, Timestamp};
use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use self::health::Health;
use crate::artifact::{Artifact, Loaded};
use crate::breaker::State;
use crate::claim::ClaimingPolicy;
use crate::failure::{Failure, Outcome};
use crate::fallback;
use crate::manager::Manager;
use crate::places::Share;
use crate::probation::Verdict;
use crate::refusal::Refusal;
use crate::seat::{Identity, ScoringFactory as _};
use crate::status::{self, Status};
use crate::tally::Tally;
use crate::tap::Claimed;

/// Versions kept ready, groups' own configurations included; the longest unused goes first.
const SLOTS_MAX: usize = 64;
/// Idle instances kept per version.
const IDLE_MAX: usize = 2;
/// How long a version is kept ready that nobody asks for: its group may be gone, or be configured otherwise by now.
const READY_FOR: Duration = Duration::from_secs(60);

/// What a group wants to be planned by.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Name of the policy; `None` is what the bindings say.
    pub policy: Option<String>,
    /// The group's own configuration: a JSON merge patch over the policy's.
    pub config: Value,
}

/// A verified plan.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Which policy version made it; `None` is the fallback.
    pub by: Option<Arc<Identity>>,
    /// Which version is bound, whether it planned or not; `None` if it cannot be used.
    pub asked: Option<Arc<Identity>>,
    /// How the policy's own attempt went.
    pub outcome: Outcome,
    /// Why the policy gave no plan.
    pub problem: Option<String>,
}

/// See the module.
pub struct Planner {
    manager: Arc<Manager>,
    clock: Arc<dyn Clock>,
    slots: Mutex<Slots>,
    /// Told when an instance is idle or gone.
    returns: Condvar,
}

#[derive(Default)]
struct Slots {
    by_version: HashMap<Arc<Identity>, Slot>,
    health: Vec<Health>,
    tally: Tally,
    uses: u64,
    /// How often an instance came back or ended.
    returns: u64,
}

struct Slot {
    loaded: Arc<Loaded>,
    idle: Vec<Box<dyn ClaimingPolicy>>,
    used: u64,
    used_at: Timestamp,
}

impl Slots {
    /// Takes out what nobody asked for in a while, to be dropped without the lock.
    fn stale(&mut self, now: Timestamp) -> Vec<Slot> {
        self.health.retain(Health::is_loaded);
        let is_stale = |slot: &Slot| now.since(slot.used_at) > READY_FOR;
        self.by_version.extract_if(|_, slot| is_stale(slot)).map(|(_, slot)| slot).collect()
    }

    /// Takes the idle instance out that was not asked for longest.
    fn oldest_idle(&mut self) -> Option<Box<dyn ClaimingPolicy>> {
        let slots = self.by_version.values_mut().filter(|slot| !slot.idle.is_empty());
        slots.min_by_key(|slot| slot.used)?.idle.pop()
    }

    fn health(&self, artifact: &Arc<Artifact>) -> Option<&Health> {
        self.health.iter().find(|health| health.is_of(artifact))
    }
}

impl Planner {
    /// Makes a planner over the manager's policies.
    #[must_use]
    pub fn new(manager: Arc<Manager>, clock: Arc<dyn Clock>) -> Self {
        Self { manager, clock, slots: Mutex::default(), returns: Condvar::new() }
    }

    /// Returns the version that would plan for a group now.
    ///
    /// Errors with what keeps the policy or its configuration from being used, in words.
    pub fn version(&self, group: &str, wish: &Wish) -> Result<Arc<Identity>, String> {
        self.loaded(group, wish).map(|loaded| loaded.identity().clone())
    }

    /// Plans one cycle. Blocks, up to the claiming deadline, and as long again where many groups are planned at once.
    pub fn plan(&self, group: &str, wish: &Wish, cycle: &Cycle) -> Planned {
        let begun = self.clock.nanos();
        let planned = self.decide(group, wish, cycle, begun);
        let observers = self.manager.observers();
        if !observers.is_empty() {
            let nanos = self.clock.nanos().saturating_sub(begun);
            let claimed = Arc::new(Claimed {
                group: group.to_owned(),
                wish: wish.clone(),
                cycle: cycle.clone(),
                planned: planned.clone(),
                nanos,
            });
            observers.iter().for_each(|observer| observer.claimed(&claimed));
        }
        planned
    }

    fn decide(&self, group: &str, wish: &Wish, cycle: &Cycle, begun: u64) -> Planned {
        let loaded = match self.loaded(group, wish) {
            Ok(loaded) => loaded,
            Err(problem) => return self.native(cycle, None, Outcome::Open, Some(problem), begun),
        };
        let identity = loaded.identity().clone();
        let now = self.clock.now();
        let probation = self.manager.probation(&identity);
        if probation.as_ref().is_some_and(|probation| probation.verdict() == Verdict::Spent) {
            let problem = "it spent its error budget and is being taken back".to_owned();
            return self.native(cycle, Some(&identity), Outcome::Open, Some(problem), begun);
        }
        let (standing, given_up) = {
            let slots = self.slots.lock();
            let health = slots.health(loaded.artifact());
            (health.map(Health::breaker), health.and_then(Health::given_up))
        };
        let trial = match standing {
            Some(State::Open { trial_at }) if trial_at <= now => Some(trial_at),
            Some(State::Open { .. } | State::Quarantined) => {
                if let Some(failure) = given_up {
                    self.manager.quarantine(&loaded, failure);
                }
                let problem = "it kept failing and is not asked for a while".to_owned();
                return self.native(cycle, Some(&identity), Outcome::Open, Some(problem), begun);
            }
            Some(State::Closed) | None => None,
        };
        let result = self.attempt(&loaded, cycle);
        let outcome = result.as_ref().map_or_else(Failure::outcome, |_| Outcome::Ok);
        let opened = self.settle(&loaded, trial, result.as_ref().err(), now);
        if let Some(probation) = &probation {
            probation.record(outcome);
            if opened {
                probation.spend();
            }
        }
        match result {
            Ok(plan) => {
                self.count(Some(&identity), Outcome::Ok, begun);
                Planned {
                    plan,
                    by: Some(identity.clone()),
                    asked: Some(identity),
                    outcome: Outcome::Ok,
                    problem: None,
                }
            }
            Err(failure) => {
                tracing::warn!(
                    group, policy.name = identity.name, policy.digest = identity.digest, %failure,
                    "claim policy failed, the fallback plans"
                );
                self.native(cycle, Some(&identity), outcome, Some(failure.to_string()), begun)
            }
        }
    }

    /// Counts an attempt (`trial`: of a breaker whose pause was over at that time) and has a version put into quarantine
    /// that kept failing for too long; returns true if this attempt opened its breaker.
    fn settle(
        &self,
        loaded: &Arc<Loaded>,
        trial: Option<Timestamp>,
        failure: Option<&Failure>,
        now: Timestamp,
    ) -> bool {
        let (identity, artifact) = (loaded.identity(), loaded.artifact());
        let (opened, given_up) = {
            let mut slots = self.slots.lock();
            let at = slots.health.iter().position(|health| health.is_of(artifact)).unwrap_or_else(|| {
                slots.health.push(Health::new(loaded, self.manager.is_embedded(identity)));
                slots.health.len() - 1
            });
            let health = &mut slots.health[at];
            (health.settle(trial, failure, now), health.given_up())
        };
        let Identity { name, digest, .. } = &**identity;
        if trial.is_some() {
            let passed = failure.is_none();
            tracing::info!(policy.name = name, policy.digest = digest, passed, "trial of an open breaker");
        }
        if opened {
            tracing::warn!(
                policy.name = name,
                policy.digest = digest,
                "policy keeps failing, its breaker opened and the fallback plans"
            );
        }
        if let Some(failure) = given_up {
            self.manager.quarantine(loaded, failure);
        }
        opened
    }

    /// Returns what was planned since the host started.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tidy();
        self.slots.lock().tally.clone()
    }

    /// Returns how every policy stands, with the decisions and the plans up to now.
    #[must_use]
    pub fn statuses(&self) -> Vec<Status> {
        self.tidy();
        let mut statuses = self.manager.statuses();
        let slots = self.slots.lock();
        slots.health.iter().for_each(|health| health.show(&mut statuses));
        for line in slots.tally.lines() {
            let name = line.identity.as_ref().map(|identity| &identity.name);
            let Some(status) = statuses.iter_mut().find(|status| Some(&status.name) == name) else {
                continue;
            };
            status::count(&mut status.plans, line);
        }
        statuses
    }

    fn attempt(&self, loaded: &Arc<Loaded>, cycle: &Cycle) -> Result<Plan, Failure> {
        let identity = loaded.identity();
        let idle = self.slots.lock().by_version.get_mut(identity).and_then(|slot| slot.idle.pop());
        let mut instance = match idle {
            Some(instance) => instance,
            None => self.in_room(
                |failure| matches!(failure, Failure::NoRoom(_)),
                || {
                    let deadline = loaded.runtime().limits().claiming_deadline;
                    let made = loaded.make_claiming_in(Share::Plans, deadline)?;
                    Ok(Box::new(made) as Box<dyn ClaimingPolicy>)
                },
            )?,
        };
        let proposal = instance.plan(cycle);
        // An instance that failed with anything but an error of its own is dropped.
        let is_sound = matches!(proposal, Ok(_) | Err(Failure::Declared(_)));
        self.give_back(loaded, instance, is_sound);
        claiming::verify(cycle, &proposal?).map_err(|error| Failure::Illegal(error.to_string()))
    }

    /// Makes what takes a place of the share of plans. While there is none, idle instances give theirs, the longest unused
    /// first; where none is idle, it waits for the busy ones, up to the claiming deadline.
    fn in_room<T, E>(&self, is_full: impl Fn(&E) -> bool, make: impl Fn() -> Result<T, E>) -> Result<T, E> {
        let (begun, patience) = (self.clock.nanos(), self.manager.runtime().limits().claiming_deadline);
        loop {
            let returns = self.slots.lock().returns;
            let made = make();
            if !made.as_ref().err().is_some_and(&is_full) {
                return made;
            }
            let oldest = self.slots.lock().oldest_idle();
            if oldest.is_some() {
                drop(oldest);
                continue;
            }
            let waited = Duration::from_nanos(self.clock.nanos().saturating_sub(begun));
            let left = patience.saturating_sub(waited);
            if left.is_zero() {
                return made;
            }
            self.returns.wait_while_for(&mut self.slots.lock(), |slots| slots.returns == returns, left);
        }
    }

    /// Keeps an instance for the next plan, if it is sound and there are not enough of them.
    fn give_back(&self, loaded: &Arc<Loaded>, instance: Box<dyn ClaimingPolicy>, is_sound: bool) {
        let mut instance = Some(instance);
        if is_sound
            && let Some(slot) = self.slots.lock().by_version.get_mut(loaded.identity())
            && Arc::ptr_eq(&slot.loaded, loaded)
            && slot.idle.len() < IDLE_MAX
        {
            slot.idle.extend(instance.take());
        }
        // Its place is free before anybody hears of it.
        drop(instance);
        self.returned();
    }

    /// Lets go what nobody asked for in a while.
    fn tidy(&self) {
        let stale = self.slots.lock().stale(self.clock.now());
        if !stale.is_empty() {
            drop(stale);
            self.returned();
        }
    }

    fn returned(&self) {
        self.slots.lock().returns += 1;
        self.returns.notify_all();
    }

    /// Finds the version for a group, and remembers it.
    fn loaded(&self, group: &str, wish: &Wish) -> Result<Arc<Loaded>, String> {
        let name = wish.policy.clone().unwrap_or_else(|| self.manager.claiming_of(group));
        let base = self.manager.policy(&name)?;
        if !base.artifact().roles().claiming {
            return Err(format!("the policy `{name}` does not offer the claiming role"));
        }
        let mut config = base.config().clone();
        merge(&mut config, &wish.config);
        let is_same = config == *base.config();
        let wanted = Identity {
            name: name.clone(),
            digest: base.artifact().digest().to_owned(),
            config: config.to_string(),
        };
        self.tidy();
        let now = self.clock.now();
        let known = {
            let mut slots = self.slots.lock();
            slots.uses += 1;
            let used = slots.uses;
            // Of a component that was dropped anew, the former one is not asked any more.
            let known = slots
                .by_version
                .get_mut(&wanted)
                .filter(|slot| Arc::ptr_eq(slot.loaded.artifact(), base.artifact()));
            known.map(|slot| {
                (slot.used, slot.used_at) = (used, now);
                slot.loaded.clone()
            })
        };
        if let Some(loaded) = known {
            return Ok(loaded);
        }
        let loaded = if is_same { base } else { self.configured(&base, &name, &config)? };
        let (mut slots, mut gone) = (self.slots.lock(), None);
        if slots.by_version.len() >= SLOTS_MAX {
            let oldest = slots.by_version.iter().min_by_key(|(_, slot)| slot.used);
            let oldest = oldest.map(|(identity, _)| identity.clone());
            gone = oldest.and_then(|identity| slots.by_version.remove(&identity));
        }
        let slot = Slot { loaded: loaded.clone(), idle: Vec::new(), used: slots.uses, used_at: now };
        let former = slots.by_version.insert(loaded.identity().clone(), slot);
        drop(slots);
        drop((gone, former));
        self.returned();
        Ok(loaded)
    }

    /// Gives a version a group's own configuration, if it takes that.
    fn configured(&self, base: &Loaded, name: &str, config: &Value) -> Result<Arc<Loaded>, String> {
        let make = || base.artifact().configured_in(Share::Plans, name, config.clone());
        let made = self.in_room(Refusal::is_retryable, make);
        // The instance that tried it is gone.
        self.returned();
        made.map(Arc::new).map_err(|refusal| refusal.to_string())
    }

    fn native(
        &self,
        cycle: &Cycle,
        asked: Option<&Arc<Identity>>,
        outcome: Outcome,
        problem: Option<String>,
        begun: u64,
    ) -> Planned {
        let plan = fallback::plan(cycle);
        self.count(asked, outcome, begun);
        Planned { plan, by: None, asked: asked.cloned(), outcome, problem }
    }

    fn count(&self, asked: Option<&Arc<Identity>>, outcome: Outcome, begun: u64) {
        let nanos = self.clock.nanos().saturating_sub(begun);
        self.slots.lock().tally.record(asked, outcome, nanos);
    }
}

/// Applies a JSON merge patch: objects merge field by field, null removes, anything else replaces.
///
/// Source: RFC 7386.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(into) = target else { return };
    for (name, value) in fields {
        if value.is_null() {
            into.remove(name);
        } else {
            merge(into.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_patches_are_those_of_the_rfc() {
        // Source: RFC 7386, appendix A.
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!(["a", "b"]), json!({"a": "b"}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ];
        for (mut target, patch, expected) in cases {
            merge(&mut target, &patch);
            assert_eq!(target, expected, "{patch}");
        }
    }
}
