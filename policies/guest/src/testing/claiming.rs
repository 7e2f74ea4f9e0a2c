//! Groups to test a claiming policy with, and the laws every plan must obey.

use proptest::prelude::*;

use crate::claiming::Reason;
use crate::config::Value;
use crate::seeded::Seeded;
use crate::{Changes, Claiming, Cycle, Member};

/// An owned cycle.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of Cycle")]
pub struct Group {
    pub name: String,
    pub members: Vec<Member>,
    pub topics: Vec<String>,
    pub places: Vec<String>,
    pub topic: Vec<u32>,
    pub number: Vec<u32>,
    pub place: Vec<u32>,
    pub owner: Vec<i32>,
    pub moving: Vec<u8>,
    pub weight: Vec<f64>,
    pub held_ms: Vec<u32>,
    pub movement_budget: Option<u32>,
    pub reason: Reason,
    pub seed: u64,
}

/// Makes a member of capacity 1.0 that subscribes to some topics.
#[must_use]
pub fn member(id: &str, topics: &[u32]) -> Member {
    Member {
        id: id.to_owned(),
        zone: String::new(),
        labels: Vec::new(),
        capacity: 1.0,
        since_ms: 0,
        topics: topics.to_vec(),
    }
}

impl Group {
    /// Makes a group of `members` that all subscribe to one topic of `partitions` free partitions.
    #[must_use]
    pub fn cold(members: usize, partitions: usize) -> Self {
        let ids: Vec<String> = (0..members).map(|row| format!("m{row:05}")).collect();
        Self::of(ids.iter().map(|id| member(id, &[0])).collect(), &[("t", partitions)])
    }

    /// Makes a group of members, ordered by id, and topics, ordered by name, with so many free partitions each.
    #[must_use]
    pub fn of(members: Vec<Member>, topics: &[(&str, usize)]) -> Self {
        let mut group = Self {
            name: "g".to_owned(),
            members,
            topics: topics.iter().map(|(name, _)| (*name).to_owned()).collect(),
            places: vec![String::new()],
            topic: Vec::new(),
            number: Vec::new(),
            place: Vec::new(),
            owner: Vec::new(),
            moving: Vec::new(),
            weight: Vec::new(),
            held_ms: Vec::new(),
            movement_budget: None,
            reason: Reason::Manual,
            seed: 0,
        };
        for (topic, (_, partitions)) in topics.iter().enumerate() {
            for number in 0..*partitions {
                group.add(topic as u32, number as u32, 0, -1);
            }
        }
        group
    }

    /// Adds one partition of weight 1.0; call it in the order of the columns.
    pub fn add(&mut self, topic: u32, number: u32, place: u32, owner: i32) {
        self.topic.push(topic);
        self.number.push(number);
        self.place.push(place);
        self.owner.push(owner);
        self.moving.push(0);
        self.weight.push(1.0);
        self.held_ms.push(0);
    }

    /// Borrows it as a cycle.
    #[must_use]
    pub fn cycle(&self) -> Cycle<'_> {
        Cycle {
            group: &self.name,
            members: &self.members,
            topics: &self.topics,
            places: &self.places,
            topic: &self.topic,
            number: &self.number,
            place: &self.place,
            owner: &self.owner,
            moving: &self.moving,
            weight: &self.weight,
            held_ms: &self.held_ms,
            movement_budget: self.movement_budget,
            reason: self.reason,
            now_ms: 1_800_000_000_000,
            seed: self.seed,
        }
    }

    /// Says whether a member subscribes to a partition's topic.
    #[must_use]
    pub fn may_own(&self, row: usize, partition: usize) -> bool {
        self.members[row].topics.binary_search(&self.topic[partition]).is_ok()
    }

    /// Returns how many partitions each member owns.
    #[must_use]
    pub fn loads(&self) -> Vec<u32> {
        let mut loads = vec![0; self.members.len()];
        for &owner in &self.owner {
            if let Some(load) = loads.get_mut(owner as usize) {
                *load += 1;
            }
        }
        loads
    }

    /// Removes the member of a row; its partitions are free.
    pub fn leave(&mut self, row: usize) {
        self.members.remove(row);
        for (owner, moving) in self.owner.iter_mut().zip(&mut self.moving) {
            match (*owner).cmp(&(row as i32)) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => (*owner, *moving) = (-1, 0),
                std::cmp::Ordering::Greater => *owner -= 1,
            }
        }
    }

    /// Adds a member at its place in the order of ids; returns its row.
    ///
    /// # Panics
    ///
    /// If the id is there already.
    pub fn join(&mut self, member: Member) -> usize {
        let row = self.members.binary_search_by(|other| other.id.cmp(&member.id)).expect_err("a new id");
        self.members.insert(row, member);
        for owner in &mut self.owner {
            *owner += i32::from(*owner >= row as i32);
        }
        row
    }

    /// Carries out a plan; every hand-over ends at once.
    pub fn apply(&mut self, changes: &Changes) {
        for (&partition, &member) in changes.partition.iter().zip(&changes.member) {
            self.owner[partition as usize] = member as i32;
        }
        for &partition in &changes.releases {
            self.owner[partition as usize] = -1;
        }
    }

    /// Makes a group from a seed: up to `members` members, some topics with up to `partitions` partitions each,
    /// everything that a contract allows: odd owners, hand-overs, weights, capacities, places and budgets.
    #[must_use]
    pub fn random(seed: u64, members: u32, partitions: u32) -> Self {
        let mut seeded = Seeded::new(seed);
        let mut any = |bound: u32| seeded.below(bound);
        let topics = 1 + any(5);
        let equal = any(3) == 0;
        let capacities = any(3) == 0;
        let weights = any(3);
        let rooms = any(4);
        let mut rows = Vec::new();
        for row in 0..any(members + 1) {
            let mut subscribed: Vec<u32> = (0..topics).filter(|_| equal || any(3) > 0).collect();
            subscribed.dedup();
            let mut new = member(&format!("r{}-m{row:04}", row % 3), &subscribed);
            new.zone = if any(2) == 0 { String::new() } else { format!("r{}", any(3)) };
            new.capacity = if capacities { [0.5, 1.0, 2.0, 3.0][any(4) as usize] } else { 1.0 };
            rows.push(new);
        }
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        let names: Vec<String> = (0..topics).map(|topic| format!("t{topic}")).collect();
        let mut group = Self::of(rows, &[]);
        group.topics = names;
        for room in 0..rooms {
            group.places.push(format!("r{room}@b"));
        }
        let (free, odd, moving) = (any(5), any(6) == 0, any(4) == 0);
        for topic in 0..topics {
            let count = any(partitions + 1);
            for place in 0..=rooms {
                for number in 0..count / (rooms + 1) {
                    group.add(topic, number, place, -1);
                }
            }
        }
        for partition in 0..group.owner.len() {
            let row = any(group.members.len() as u32) as usize;
            let legal = !group.members.is_empty() && group.may_own(row, partition);
            if !group.members.is_empty() && any(5) >= free && (legal || odd) {
                // Skewed, so that there is something to do.
                let row = if any(3) == 0 && group.may_own(row / 2, partition) { row / 2 } else { row };
                group.owner[partition] = row as i32;
                group.moving[partition] = u8::from(moving && any(4) == 0);
                group.held_ms[partition] = any(100_000);
            }
            group.weight[partition] = match weights {
                0 => [0.0, 1.0, 2.0, 10.0, 1000.0][any(5) as usize],
                _ => 1.0,
            };
        }
        group.movement_budget = (any(3) == 0).then(|| any(6));
        group.seed = u64::from(any(u32::MAX));
        group
    }
}

/// Groups of up to 8 members and 12 partitions per topic.
pub fn groups() -> impl Strategy<Value = Group> {
    any::<u64>().prop_map(|seed| Group::random(seed, 8, 12))
}

/// Plans one cycle and checks the laws of the contract: columns of one length, known partitions, members and
/// reasons, no partition twice, subscribers only, nothing that is on its way, the movement budget, no claim without
/// effect, and the same answer from a fresh instance.
///
/// # Panics
///
/// If the policy breaks one of them.
pub fn plan<P: Claiming>(config: &str, group: &Group) -> Changes {
    let policy = P::configure(config).expect("the configuration is good");
    let changes = policy.plan(&group.cycle()).expect("the cycle is good");
    let fresh = P::configure(config).expect("the configuration is good");
    assert_eq!(fresh.plan(&group.cycle()).as_ref(), Ok(&changes), "the same cycle, the same plan");
    assert_eq!(policy.plan(&group.cycle()).as_ref(), Ok(&changes), "nothing is remembered");

    let lens = (changes.partition.len(), changes.member.len(), changes.reason.len());
    assert_eq!(lens, (lens.0, lens.0, lens.0), "columns of one length");
    assert!(changes.reasons.len() <= 256 && changes.reasons.iter().all(|reason| reason.len() <= 256));
    let mut named = vec![false; group.owner.len()];
    let mut take = |partition: u32| {
        let named = named.get_mut(partition as usize).expect("the partition is in range");
        assert!(!std::mem::replace(named, true), "partition {partition} is named twice");
        assert_eq!(group.moving[partition as usize], 0, "partition {partition} is on its way");
        group.owner[partition as usize]
    };
    let mut moved = 0;
    for ((&partition, &member), &reason) in changes.partition.iter().zip(&changes.member).zip(&changes.reason)
    {
        let owner = take(partition);
        assert!((member as usize) < group.members.len(), "member {member} is out of range");
        assert!(group.may_own(member as usize, partition as usize), "{member} may not own {partition}");
        assert!(usize::from(reason) < changes.reasons.len(), "reason {reason} is out of range");
        assert_ne!(owner, member as i32, "partition {partition}: a claim that changes nothing");
        moved += u32::from(owner >= 0);
    }
    for &partition in &changes.releases {
        assert!(take(partition) >= 0, "partition {partition} is free and cannot be released");
        moved += 1;
    }
    if let Some(budget) = group.movement_budget {
        assert!(moved <= budget, "moves {moved}, the budget is {budget}");
    }
    changes
}

/// What came of planning again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Cycles that changed something.
    pub cycles: u32,
    /// Owned partitions that changed owner or were released, in total.
    pub moves: u32,
}

/// Carries out plans until one changes nothing.
///
/// # Panics
///
/// If a plan breaks a law, or nothing settles within `cycles_max` cycles.
pub fn settle<P: Claiming>(config: &str, group: &mut Group, cycles_max: u32) -> Settled {
    let mut settled = Settled { cycles: 0, moves: 0 };
    loop {
        let changes = plan::<P>(config, group);
        if changes.partition.is_empty() && changes.releases.is_empty() {
            return settled;
        }
        let owned = changes.partition.iter().filter(|&&partition| group.owner[partition as usize] >= 0);
        settled.moves += (owned.count() + changes.releases.len()) as u32;
        settled.cycles += 1;
        assert!(settled.cycles <= cycles_max, "does not settle: {group:?}");
        group.apply(&changes);
    }
}

/// Checks that the defaults in the schema are the defaults of the policy.
///
/// # Panics
///
/// If they are not.
pub fn defaults_agree<P: Claiming + std::fmt::Debug>() {
    let Ok(Value::Object(schema)) = Value::parse(P::describe().config_schema) else {
        panic!("not an object")
    };
    let properties = schema.into_iter().find(|(name, _)| name == "properties");
    let Some((_, Value::Object(properties))) = properties else { panic!("no properties") };
    let mut explicit = String::from("{");
    for (name, property) in properties {
        let Value::Object(property) = property else { panic!("{name} is not an object") };
        let Some((_, default)) = property.into_iter().find(|(key, _)| key == "default") else { continue };
        let comma = if explicit.len() > 1 { "," } else { "" };
        explicit += &format!("{comma}\"{name}\":{}", json(&default));
    }
    explicit += "}";
    let explicit = P::configure(&explicit).expect("every default is acceptable");
    let implicit = P::configure("{}").expect("empty is acceptable");
    assert_eq!(format!("{explicit:?}"), format!("{implicit:?}"));
}

fn json(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(bool) => bool.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => format!("\"{text}\""),
        Value::Array(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(key, value)| format!("\"{key}\":{}", json(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
    }
}
