//! The candidate in the claiming role: plans the cycles that were planned, with each group's own configuration.
//!
//! Invariants: a plan that is compared is legal for its cycle; an instance that failed is never asked again; at most the
//! latest configuration has an instance, so that shadows keep to their share of the pool.

use std::sync::Arc;
use std::time::Duration;

use fulcrum_core::claiming::{self, Cycle, Plan};
use fulcrum_core::time::millis;
use serde_json::Value;

use super::book::{Mishap, Times, Verdict};
use super::report::{After, ClaimExample, Elsewhere, PlanSide, Sides};
use super::run::Spent;
use crate::artifact::Loaded;
use crate::claim::ClaimingPolicy;
use crate::failure::{Failure, Outcome};
use crate::fallback;
use crate::places::Share;
use crate::planner::merge;
use crate::refusal::Refusal;
use crate::seat::{Identity, ScoringFactory as _};
use crate::tap::Claimed;

/// Configurations of groups kept ready; the longest unused goes first.
const CONFIGS_MAX: usize = 16;
/// Partitions in one example.
const ELSEWHERE_MAX: usize = 16;

/// See the module.
pub(super) struct Claimer {
    base: Arc<Loaded>,
    /// What one plan may take, in processor time.
    deadline: Duration,
    /// What it may take by the clock.
    patience: Duration,
    /// The latest last.
    configs: Vec<Configured>,
}

/// The candidate with a group's own configuration.
struct Configured {
    config: Value,
    /// The version, or why it does not take the configuration.
    made: Result<Arc<Loaded>, Refusal>,
    instance: Option<Box<dyn ClaimingPolicy>>,
}

/// How one comparison came out, with what the breaker has to know.
pub(super) struct Answered {
    pub(super) verdict: Verdict<ClaimExample>,
    pub(super) outcome: Outcome,
    /// Why it gave no usable plan.
    pub(super) failure: Option<Failure>,
    pub(super) times: Times,
    /// Moves of both plans and how the group stands after them, if both planned.
    pub(super) shape: Option<(Sides<u64>, Sides<After>)>,
}

impl Claimer {
    pub(super) fn new(base: Arc<Loaded>, deadline: Duration, patience: Duration) -> Self {
        Self { base, deadline, patience, configs: Vec::new() }
    }

    /// Says whether a plan was up to this very version, the group's own configuration included.
    pub(super) fn is_own(&self, claimed: &Claimed) -> bool {
        let own = self.base.identity();
        let is_component = |asked: &Identity| asked.name == own.name && asked.digest == own.digest;
        let asked = claimed.planned.asked.as_deref().filter(|asked| is_component(asked));
        asked.is_some_and(|asked| {
            let config = self.config(&claimed.wish.config).to_string();
            config == asked.config
        })
    }

    /// Lets the candidate plan a cycle that was planned, and compares. `example` is the number of the next difference,
    /// if that should become an example.
    pub(super) fn compare(&mut self, claimed: &Claimed, example: Option<u64>, spent: &Spent<'_>) -> Answered {
        let (plan, nanos) = self.plan(claimed, spent);
        let times = Sides { live: claimed.nanos, candidate: nanos };
        match plan {
            Ok(plan) => {
                let found = compare(&claimed.cycle, &claimed.planned.plan, &plan);
                let verdict = if found.elsewhere.is_empty() {
                    Verdict::Same
                } else {
                    let identity = self.base.identity();
                    Verdict::Different(example.map(|number| show(claimed, identity, &plan, &found, number)))
                };
                let shape = Some((found.moves, found.after));
                Answered { verdict, outcome: Outcome::Ok, failure: None, times, shape }
            }
            Err(mishap) => {
                let failure = match &mishap {
                    Mishap::Failure(failure) => Some(failure.clone()),
                    Mishap::Refused(_) => None,
                };
                // A configuration it does not take costs nothing: it is remembered.
                let outcome = failure.as_ref().map_or(Outcome::Declared, Failure::outcome);
                Answered { verdict: Verdict::Failed(mishap), outcome, failure, times, shape: None }
            }
        }
    }

    fn plan(&mut self, claimed: &Claimed, spent: &Spent<'_>) -> (Result<Plan, Mishap>, u64) {
        let (deadline, patience) = (self.deadline, self.patience);
        let configured = self.configured(&claimed.wish.config);
        let loaded = match &configured.made {
            Ok(loaded) => loaded.clone(),
            Err(refusal) => return (Err(Mishap::Refused(refusal.to_string())), 0),
        };
        let instance = match configured.instance.take() {
            Some(instance) => Ok(instance),
            None => {
                let made = loaded.make_claiming_in(Share::Shadows, patience);
                made.map(|made| Box::new(made) as Box<dyn ClaimingPolicy>)
            }
        };
        let mut instance = match instance {
            Ok(instance) => instance,
            Err(failure) => return (Err(Mishap::Failure(failure)), 0),
        };
        let begun = spent();
        let proposal = instance.plan(&claimed.cycle);
        let nanos = spent().saturating_sub(begun);
        if matches!(proposal, Ok(_) | Err(Failure::Declared(_))) {
            configured.instance = Some(instance);
        }
        let plan = proposal.and_then(|proposal| {
            // Its thread is one of low priority, so it gets longer by the clock; what counts is what it used.
            if Duration::from_nanos(nanos) > deadline {
                return Err(Failure::Timeout { deadline_ms: millis(deadline) });
            }
            claiming::verify(&claimed.cycle, &proposal).map_err(|error| Failure::Illegal(error.to_string()))
        });
        (plan.map_err(Mishap::Failure), nanos)
    }

    /// Returns the candidate's configuration with a group's own over it.
    fn config(&self, patch: &Value) -> Value {
        let mut config = self.base.config().clone();
        merge(&mut config, patch);
        config
    }

    /// Returns the version for a group's own configuration, and makes it the latest.
    fn configured(&mut self, patch: &Value) -> &mut Configured {
        let config = self.config(patch);
        // What may work a moment later is tried again.
        self.configs.retain(|other| other.made.as_ref().err().is_none_or(|refusal| !refusal.is_retryable()));
        let at = self.configs.iter().position(|configured| configured.config == config);
        if let Some(latest) = self.configs.last_mut().filter(|latest| latest.config != config) {
            latest.instance = None;
        }
        let configured = match at {
            Some(at) => self.configs.remove(at),
            None => {
                if self.configs.len() >= CONFIGS_MAX {
                    self.configs.remove(0);
                }
                let made = if config == *self.base.config() {
                    Ok(self.base.clone())
                } else {
                    let (name, artifact) = (&self.base.identity().name, self.base.artifact());
                    artifact.configured_in(Share::Shadows, name, config.clone()).map(Arc::new)
                };
                Configured { config, made, instance: None }
            }
        };
        self.configs.push(configured);
        self.configs.last_mut().expect("pushed just now")
    }
}

/// What two plans of one cycle come to.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    moves: Sides<u64>,
    after: Sides<After>,
    /// Partitions with different owners, ascending, and those: by the live plan, by the candidate's.
    elsewhere: Vec<(usize, Option<usize>, Option<usize>)>,
}

fn compare(cycle: &Cycle, live: &Plan, candidate: &Plan) -> Found {
    let (live, candidate) = (claiming::apply(cycle, live), claiming::apply(cycle, candidate));
    let pairs = live.iter().zip(&candidate).enumerate();
    let elsewhere =
        pairs.filter(|(_, (live, candidate))| live != candidate).map(|(at, (a, b))| (at, *a, *b)).collect();
    Found {
        moves: Sides { live: moves(cycle, &live), candidate: moves(cycle, &candidate) },
        after: Sides { live: after(cycle, &live), candidate: after(cycle, &candidate) },
        elsewhere,
    }
}

/// Counts owned partitions that change their owner or lose it.
fn moves(cycle: &Cycle, owners: &[Option<usize>]) -> u64 {
    let before = cycle.owner.iter().map(|&owner| usize::try_from(owner).ok());
    before.zip(owners).filter(|(before, after)| before.is_some() && before != *after).count() as u64
}

fn after(cycle: &Cycle, owners: &[Option<usize>]) -> After {
    let mut owned = vec![0_u64; cycle.members.len()];
    for owner in owners.iter().flatten() {
        if let Some(count) = owned.get_mut(*owner) {
            *count += 1;
        }
    }
    let (most, fewest) = (owned.iter().max(), owned.iter().min());
    After {
        spread: most.zip(fewest).map_or(0, |(most, fewest)| most - fewest),
        free: owners.iter().filter(|owner| owner.is_none()).count() as u64,
    }
}

fn show(claimed: &Claimed, candidate: &Identity, plan: &Plan, found: &Found, number: u64) -> ClaimExample {
    let Claimed { group, cycle, planned, .. } = claimed;
    let member = |row: Option<usize>| row.and_then(|row| cycle.members.get(row)).map(|it| it.id.clone());
    let elsewhere = |&(at, live, new): &(usize, Option<usize>, Option<usize>)| Elsewhere {
        topic: cycle.topics[cycle.topic[at] as usize].clone(),
        partition: cycle.number[at],
        owner: member(usize::try_from(cycle.owner[at]).ok()),
        live: member(live),
        live_reason: reason(&planned.plan, at),
        candidate: member(new),
        candidate_reason: reason(plan, at),
    };
    let by = planned.by.as_deref();
    ClaimExample {
        number,
        group: group.clone(),
        reason: cycle.reason.word().to_owned(),
        now_ms: cycle.now_ms,
        seed: cycle.seed.to_string(),
        members: cycle.members.len(),
        partitions: cycle.owner.len(),
        live: PlanSide {
            policy: by.map_or(fallback::NAME, |by| &by.name).to_owned(),
            digest: by.map(|by| by.digest.clone()).unwrap_or_default(),
            moves: found.moves.live,
            after: found.after.live,
        },
        candidate: PlanSide {
            policy: candidate.name.clone(),
            digest: candidate.digest.clone(),
            moves: found.moves.candidate,
            after: found.after.candidate,
        },
        elsewhere: found.elsewhere.iter().take(ELSEWHERE_MAX).map(elsewhere).collect(),
        elsewhere_count: found.elsewhere.len(),
    }
}

/// Says in a plan's own words why it gives a partition to somebody.
fn reason(plan: &Plan, partition: usize) -> Option<String> {
    let claim = plan.claims.iter().find(|claim| claim.partition == partition);
    let released = || plan.releases.contains(&partition).then(|| "released".to_owned());
    claim.map(|claim| claim.reason.clone()).or_else(released)
}

#[cfg(test)]
mod tests {
    use fulcrum_core::claiming::Claim;

    use super::*;
    use crate::planner::{Planned, Wish};

    /// Two members; five partitions of one topic: m0 owns three, m1 one, one is free.
    fn cycle() -> Cycle {
        Cycle { number: (10..15).collect(), ..crate::testing::cycle(2, &[0, 0, 0, 1, -1]) }
    }

    fn plan(claims: &[(usize, usize)], releases: &[usize]) -> Plan {
        let claim = |&(partition, member): &(usize, usize)| Claim {
            partition,
            member,
            reason: format!("to m{member}"),
        };
        Plan { claims: claims.iter().map(claim).collect(), releases: releases.to_vec(), next_cycle_ms: None }
    }

    fn check(live: &Plan, candidate: &Plan, moves: (u64, u64), after: [(u64, u64); 2], elsewhere: &[usize]) {
        let found = compare(&cycle(), live, candidate);
        assert_eq!((found.moves.live, found.moves.candidate), moves, "{live:?} {candidate:?}");
        let shape = |after: After| (after.spread, after.free);
        assert_eq!([shape(found.after.live), shape(found.after.candidate)], after, "{live:?} {candidate:?}");
        let at: Vec<_> = found.elsewhere.iter().map(|(at, _, _)| *at).collect();
        assert_eq!(at, elsewhere, "{live:?} {candidate:?}");
    }

    #[test]
    fn plans_are_compared_by_who_owns_what_in_the_end() {
        let (nothing, fill) = (plan(&[], &[]), plan(&[(4, 1)], &[]));
        check(&nothing, &nothing, (0, 0), [(2, 1), (2, 1)], &[]);
        check(&fill, &fill, (0, 0), [(1, 0), (1, 0)], &[]);
        check(&fill, &nothing, (0, 0), [(1, 0), (2, 1)], &[4]);
        check(&fill, &plan(&[(4, 1), (0, 1)], &[]), (0, 1), [(1, 0), (1, 0)], &[0]);
        check(&plan(&[], &[3]), &plan(&[(3, 0)], &[]), (1, 1), [(3, 2), (4, 1)], &[3]);
        // The order of claims makes no difference.
        check(&plan(&[(4, 1), (0, 1)], &[]), &plan(&[(0, 1), (4, 1)], &[]), (1, 1), [(1, 0), (1, 0)], &[]);
    }

    #[test]
    fn an_example_names_what_would_go_elsewhere_and_why() {
        let (live, candidate) = (plan(&[(4, 1)], &[3]), plan(&[(4, 0), (0, 1)], &[]));
        let by = Arc::new(Identity { name: "old".to_owned(), digest: "d".to_owned(), ..Identity::default() });
        let planned = Planned {
            plan: live.clone(),
            by: Some(by.clone()),
            asked: Some(by),
            outcome: Outcome::Ok,
            problem: None,
        };
        let wish = Wish { policy: None, config: Value::Null };
        let claimed = Claimed { group: "g".to_owned(), wish, cycle: cycle(), planned, nanos: 1 };
        let identity = Identity { name: "new".to_owned(), digest: "e".to_owned(), ..Identity::default() };
        let found = compare(&claimed.cycle, &live, &candidate);
        let example = show(&claimed, &identity, &candidate, &found, 3);
        assert_eq!((example.number, &*example.reason, example.elsewhere_count), (3, "join", 3));
        assert_eq!((&*example.live.policy, &*example.candidate.policy), ("old", "new"));
        let shown: Vec<_> = example
            .elsewhere
            .iter()
            .map(|it| {
                let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
                let [owner, live, candidate] = [&it.owner, &it.live, &it.candidate].map(text);
                let [why_live, why_candidate] = [&it.live_reason, &it.candidate_reason].map(text);
                format!("{} {owner}: {live} ({why_live}), {candidate} ({why_candidate})", it.partition)
            })
            .collect();
        assert_eq!(
            shown,
            ["10 m0: m0 (-), m1 (to m1)", "13 m1: - (released), m1 (-)", "14 -: m1 (to m1), m0 (to m0)",]
        );
    }
}
