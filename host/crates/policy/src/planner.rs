//! The claiming role in service: asks the bound policy for a plan, verifies it, and plans natively when it fails.
//!
//! A plan may take up to the claiming deadline: never on a serving thread. Invariants: every plan is made by exactly
//! one policy version or by the fallback; a plan that comes out is legal for its cycle.

use std::collections::HashMap;
use std::sync::Arc;

use fulcrum_core::claiming::{self, Cycle, Plan};
use fulcrum_core::time::Clock;
use parking_lot::Mutex;
use serde_json::Value;

use crate::artifact::Loaded;
use crate::breaker::{Breaker, State};
use crate::claim::ClaimingPolicy;
use crate::failure::{Failure, Outcome};
use crate::fallback;
use crate::manager::Manager;
use crate::probation::Verdict;
use crate::seat::{Identity, ScoringFactory as _};
use crate::status::{self, Status};
use crate::tally::Tally;
use crate::tap::Claimed;

/// Versions with instances at the same time; the longest unused goes first.
const SLOTS_MAX: usize = 64;
/// Idle instances kept per version.
const IDLE_MAX: usize = 2;

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
}

#[derive(Default)]
struct Slots {
    by_version: HashMap<Arc<Identity>, Slot>,
    breakers: HashMap<String, Breaker>,
    tally: Tally,
    uses: u64,
}

struct Slot {
    loaded: Arc<Loaded>,
    idle: Vec<Box<dyn ClaimingPolicy>>,
    used: u64,
}

impl Planner {
    /// Makes a planner over the manager's policies.
    #[must_use]
    pub fn new(manager: Arc<Manager>, clock: Arc<dyn Clock>) -> Self {
        Self { manager, clock, slots: Mutex::default() }
    }

    /// Returns the version that would plan for a group now.
    ///
    /// Errors with what keeps the policy or its configuration from being used, in words.
    pub fn version(&self, group: &str, wish: &Wish) -> Result<Arc<Identity>, String> {
        self.loaded(group, wish).map(|loaded| loaded.identity().clone())
    }

    /// Plans one cycle. Blocks, up to the claiming deadline.
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
        let breaker = self.slots.lock().breakers.get(&identity.digest).map(Breaker::state);
        let probation = self.manager.probation(&identity);
        if probation.as_ref().is_some_and(|probation| probation.verdict() == Verdict::Spent) {
            let problem = "it spent its error budget and is being taken back".to_owned();
            return self.native(cycle, Some(&identity), Outcome::Open, Some(problem), begun);
        }
        let is_trial = match breaker {
            Some(State::Open { trial_at }) if trial_at <= now => true,
            Some(State::Open { .. } | State::Quarantined) => {
                let problem = "it kept failing and is not asked for a while".to_owned();
                return self.native(cycle, Some(&identity), Outcome::Open, Some(problem), begun);
            }
            _ => false,
        };
        let result = self.attempt(&loaded, cycle);
        let outcome = result.as_ref().map_or_else(Failure::outcome, |_| Outcome::Ok);
        let opened = {
            let mut slots = self.slots.lock();
            let breaker = slots.breakers.entry(identity.digest.clone()).or_default();
            if is_trial {
                breaker.trial(result.is_ok(), now);
                false
            } else {
                breaker.record(outcome, now)
            }
        };
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

    /// Returns what was planned since the host started.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.slots.lock().tally.clone()
    }

    /// Returns how every policy stands, with the decisions and the plans up to now.
    #[must_use]
    pub fn statuses(&self) -> Vec<Status> {
        let mut statuses = self.manager.statuses();
        for line in self.slots.lock().tally.lines() {
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
            None => loaded.make_claiming()?,
        };
        let proposal = instance.plan(cycle);
        // An instance that failed with anything but an error of its own is dropped.
        if matches!(proposal, Ok(_) | Err(Failure::Declared(_))) {
            let mut slots = self.slots.lock();
            if let Some(slot) = slots.by_version.get_mut(identity)
                && slot.idle.len() < IDLE_MAX
            {
                slot.idle.push(instance);
            }
        }
        claiming::verify(cycle, &proposal?).map_err(|error| Failure::Illegal(error.to_string()))
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
        let mut slots = self.slots.lock();
        slots.uses += 1;
        let uses = slots.uses;
        if let Some(slot) = slots.by_version.get_mut(&wanted) {
            slot.used = uses;
            return Ok(slot.loaded.clone());
        }
        drop(slots);
        let loaded = if is_same {
            base
        } else {
            Arc::new(base.artifact().configured(&name, config).map_err(|refusal| refusal.to_string())?)
        };
        let mut slots = self.slots.lock();
        if slots.by_version.len() >= SLOTS_MAX {
            let oldest = slots.by_version.iter().min_by_key(|(_, slot)| slot.used);
            if let Some(identity) = oldest.map(|(identity, _)| identity.clone()) {
                slots.by_version.remove(&identity);
            }
        }
        let slot = Slot { loaded: loaded.clone(), idle: Vec::new(), used: uses };
        slots.by_version.insert(loaded.identity().clone(), slot);
        Ok(loaded)
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
