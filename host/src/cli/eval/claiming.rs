//! The claiming question as JSON.

use std::collections::BTreeSet;

use fulcrum_core::claiming::{self, Cycle, Member, Reason};
use fulcrum_policy::claim::ClaimingPolicy;
use fulcrum_policy::failure::Failure;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Trouble;
use super::input::{self, Labels, bad};

/// One line of input.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Case {
    group: String,
    members: Vec<Processor>,
    partitions: Vec<Partition>,
    movement_budget: Option<u32>,
    reason: Option<String>,
    #[serde(deserialize_with = "input::seed")]
    seed: u64,
    now_ms: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Processor {
    id: String,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    labels: Labels,
    #[serde(default = "input::one")]
    capacity: f64,
    #[serde(default)]
    since_ms: u64,
    /// All topics when left out.
    topics: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Partition {
    topic: String,
    partition: u32,
    #[serde(default)]
    place: String,
    owner: Option<String>,
    #[serde(default = "input::one")]
    weight: f64,
    #[serde(default)]
    moving: bool,
    #[serde(default)]
    held_ms: u32,
}

/// Asks the policy.
pub(super) fn answer(case: &Case, policy: &mut dyn ClaimingPolicy) -> Result<Value, Trouble> {
    let Ordered { cycle, inputs } = case.cycle()?;
    let proposal = policy.plan(&cycle)?;
    let plan =
        claiming::verify(&cycle, &proposal).map_err(|illegal| Failure::Illegal(illegal.to_string()))?;
    let named = |partition: usize| {
        let input = &case.partitions[inputs[partition]];
        let mut out = json!({ "topic": input.topic, "partition": input.partition });
        if !input.place.is_empty() {
            out["place"] = input.place.as_str().into();
        }
        out
    };
    let claims: Vec<_> = plan
        .claims
        .iter()
        .map(|claim| {
            let mut out = named(claim.partition);
            out["member"] = cycle.members[claim.member].id.as_str().into();
            out["reason"] = claim.reason.as_str().into();
            out
        })
        .collect();
    let mut owners = vec![None; inputs.len()];
    for (partition, owner) in claiming::apply(&cycle, &plan).into_iter().enumerate() {
        owners[inputs[partition]] = owner.map(|member| cycle.members[member].id.as_str());
    }
    Ok(json!({
        "claims": claims,
        "releases": plan.releases.iter().map(|&partition| named(partition)).collect::<Vec<_>>(),
        "nextCycleMs": plan.next_cycle_ms,
        "owners": owners,
    }))
}

/// A cycle with its partitions ordered as the contract has them.
struct Ordered {
    cycle: Cycle,
    /// Per partition of the cycle: its index in the input.
    inputs: Vec<usize>,
}

impl Case {
    fn cycle(&self) -> Result<Ordered, Trouble> {
        let topics: BTreeSet<_> = self
            .partitions
            .iter()
            .map(|partition| partition.topic.as_str())
            .chain(self.members.iter().flat_map(|member| member.topics.iter().flatten()).map(String::as_str))
            .collect();
        let topics: Vec<_> = topics.into_iter().map(str::to_owned).collect();
        let places: BTreeSet<_> =
            self.partitions.iter().map(|partition| partition.place.as_str()).chain([""]).collect();
        let places: Vec<_> = places.into_iter().map(str::to_owned).collect();
        let members = self.members(&topics)?;

        let key = |index: &usize| {
            let partition = &self.partitions[*index];
            (&partition.topic, &partition.place, partition.partition)
        };
        let mut inputs: Vec<_> = (0..self.partitions.len()).collect();
        inputs.sort_by_key(key);
        if let Some(pair) = inputs.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
            let (topic, place, number) = key(&pair[0]);
            let place = if place.is_empty() { String::new() } else { format!(" at {place:?}") };
            return Err(bad(format!("partition {number} of {topic:?}{place} stands there twice")));
        }
        let reason = match &self.reason {
            None => Reason::Manual,
            Some(word) => Reason::from_word(word).ok_or_else(|| {
                let words: Vec<_> = Reason::WORDS.iter().map(|(_, word)| *word).collect();
                bad(format!("{word:?} is not a reason, there are: {}", words.join(", ")))
            })?,
        };
        let mut cycle = Cycle {
            group: self.group.clone(),
            members,
            topics,
            places,
            topic: Vec::new(),
            number: Vec::new(),
            place: Vec::new(),
            owner: Vec::new(),
            moving: Vec::new(),
            weight: Vec::new(),
            held_ms: Vec::new(),
            movement_budget: self.movement_budget,
            reason,
            now_ms: self.now_ms,
            seed: self.seed,
        };
        for &input in &inputs {
            push(&mut cycle, &self.partitions[input])?;
        }
        Ok(Ordered { cycle, inputs })
    }

    fn members(&self, topics: &[String]) -> Result<Vec<Member>, Trouble> {
        let mut members = self
            .members
            .iter()
            .map(|member| {
                input::check_id("a member", &member.id)?;
                input::check_capacity(&member.id, member.capacity)?;
                let mut subscribed: Vec<_> = match &member.topics {
                    None => (0..topics.len()).map(index).collect(),
                    Some(names) => names.iter().map(|name| index_of(topics, name)).collect(),
                };
                subscribed.sort_unstable();
                subscribed.dedup();
                Ok(Member {
                    id: member.id.clone(),
                    zone: member.zone.clone(),
                    labels: input::labels(&member.labels),
                    capacity: member.capacity,
                    since_ms: member.since_ms,
                    topics: subscribed,
                })
            })
            .collect::<Result<Vec<_>, Trouble>>()?;
        members.sort_by(|a, b| a.id.cmp(&b.id));
        match members.windows(2).find(|pair| pair[0].id == pair[1].id) {
            Some(pair) => Err(bad(format!("the member {:?} stands there twice", pair[0].id))),
            None => Ok(members),
        }
    }
}

fn push(cycle: &mut Cycle, partition: &Partition) -> Result<(), Trouble> {
    let Partition { topic, partition: number, place, owner, weight, moving, held_ms } = partition;
    input::check_amount(&format!("weight of partition {number} of {topic:?}"), *weight)?;
    let owner = owner
        .as_ref()
        .and_then(|owner| cycle.members.binary_search_by(|member| member.id.cmp(owner)).ok())
        .and_then(|row| i32::try_from(row).ok());
    cycle.topic.push(index_of(&cycle.topics, topic));
    cycle.number.push(*number);
    cycle.place.push(index_of(&cycle.places, place));
    cycle.owner.push(owner.unwrap_or(-1));
    cycle.moving.push(u8::from(*moving && owner.is_some()));
    cycle.weight.push(*weight);
    cycle.held_ms.push(if owner.is_some() { *held_ms } else { 0 });
    Ok(())
}

/// Returns the index of a name in the table that was made from all names.
fn index_of(table: &[String], name: &str) -> u32 {
    index(table.binary_search_by(|entry| entry.as_str().cmp(name)).expect("the table holds every name"))
}

fn index(index: usize) -> u32 {
    u32::try_from(index).expect("one line of input is shorter than 4 billion names")
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use fulcrum_core::claiming::Proposal;

    /// Gives every free partition to the first member that reads it; releases what the last member owns.
    struct First;

    impl ClaimingPolicy for First {
        fn plan(&mut self, cycle: &Cycle) -> Result<Proposal, Failure> {
            let mut plan = Proposal { reasons: vec!["free".to_owned()], ..Proposal::default() };
            for (partition, &owner) in cycle.owner.iter().enumerate() {
                let reader =
                    cycle.members.iter().position(|member| member.topics.contains(&cycle.topic[partition]));
                match (owner, reader) {
                    (-1, Some(member)) => {
                        plan.partition.push(partition as u32);
                        plan.member.push(member as u32);
                        plan.reason.push(0);
                    }
                    (owner, _) if owner > 0 => plan.releases.push(partition as u32),
                    _ => {}
                }
            }
            plan.next_cycle_ms = Some(cycle.seed as u32);
            Ok(plan)
        }
    }

    fn check(line: &str, expected: Result<Value, &str>) {
        let found = parse::<Case>(line).and_then(|case| answer(&case, &mut First));
        let found = found.map_err(|trouble| trouble.code().to_owned());
        assert_eq!(found, expected.map_err(str::to_owned), "{line}");
    }

    #[test]
    fn lines_are_answered_in_input_order() {
        check("{}", Ok(json!({ "claims": [], "releases": [], "nextCycleMs": 0, "owners": [] })));
        check(
            r#"{"members":[{"id":"m2"},{"id":"m1","topics":["t","u"]}],"seed":"5","partitions":[
                {"topic":"t","partition":1,"place":"b"},{"topic":"t","partition":0,"owner":"m2"},
                {"topic":"t","partition":1,"place":"a","owner":"gone"},{"topic":"s","partition":0}]}"#
                .replace('\n', "")
                .as_str(),
            Ok(json!({
                "claims": [
                    { "topic": "s", "partition": 0, "member": "m2", "reason": "free" },
                    { "topic": "t", "partition": 1, "place": "a", "member": "m1", "reason": "free" },
                    { "topic": "t", "partition": 1, "place": "b", "member": "m1", "reason": "free" },
                ],
                "releases": [{ "topic": "t", "partition": 0 }],
                "nextCycleMs": 5,
                "owners": ["m1", null, "m1", "m2"],
            })),
        );
    }

    #[test]
    fn bad_lines_are_named() {
        let twice = r#"{"topic":"t","partition":0}"#;
        check(&format!(r#"{{"partitions":[{twice},{twice}]}}"#), Err("invalid_input"));
        check(r#"{"members":[{"id":"m"},{"id":"m"}]}"#, Err("invalid_input"));
        check(r#"{"members":[{"id":"m","capacity":-1}]}"#, Err("invalid_input"));
        check(r#"{"partitions":[{"topic":"t"}]}"#, Err("invalid_input"));
        check(r#"{"partitions":[{"topic":"t","partition":0,"weight":-1}]}"#, Err("invalid_input"));
        check(r#"{"reason":"because"}"#, Err("invalid_input"));
        check(
            r#"{"reason":"join"}"#,
            Ok(json!({ "claims": [], "releases": [], "nextCycleMs": 0, "owners": [] })),
        );
        let line = r#"{"members":[{"id":"a"},{"id":"b"}],"movementBudget":0,
            "partitions":[{"topic":"t","partition":0,"owner":"b"}]}"#;
        check(&line.replace('\n', ""), Err("illegal"));
    }
}
