//! Who may own what: topics with the same subscribers are one *class*, so that a group in which everybody reads
//! everything is one class, however many topics it has.

use super::Cycle;

/// Stands for "no class" and "no edge".
pub const NONE: u32 = u32::MAX;

/// The classes of a cycle. A pair of a class and one of its subscribers is an *edge*; edges of one class are
/// consecutive and ordered by member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribers {
    /// Per topic: its class, [`NONE`] if nobody subscribes or it has no partitions.
    class_of_topic: Vec<u32>,
    /// Per class: its first edge; one more entry than classes.
    start: Vec<u32>,
    /// Per edge: row of the member.
    member: Vec<u32>,
}

impl Subscribers {
    /// Finds the classes of a cycle that passed [`Cycle::check`].
    #[must_use]
    pub fn of(cycle: &Cycle<'_>) -> Self {
        let topics = cycle.topics.len();
        if cycle.members.iter().all(|member| member.topics.len() == topics) && !cycle.members.is_empty() {
            let members = cycle.members.len() as u32;
            return Self {
                class_of_topic: vec![0; topics],
                start: vec![0, members],
                member: (0..members).collect(),
            };
        }
        let mut used = vec![false; topics];
        for run in runs(cycle.topic) {
            used[cycle.topic[run.start] as usize] = true;
        }
        let mut readers = vec![Vec::new(); topics];
        for (row, member) in cycle.members.iter().enumerate() {
            for &topic in &member.topics {
                readers[topic as usize].push(row as u32);
            }
        }
        let mut order: Vec<usize> =
            (0..topics).filter(|&topic| used[topic] && !readers[topic].is_empty()).collect();
        // Stable, so that classes are numbered by their first topic among equals.
        order.sort_by(|&a, &b| readers[a].cmp(&readers[b]));
        let mut found = Self { class_of_topic: vec![NONE; topics], start: vec![0], member: Vec::new() };
        for (at, &topic) in order.iter().enumerate() {
            if at == 0 || readers[order[at - 1]] != readers[topic] {
                found.member.extend_from_slice(&readers[topic]);
                found.start.push(found.member.len() as u32);
            }
            found.class_of_topic[topic] = found.start.len() as u32 - 2;
        }
        found
    }

    /// Returns how many classes there are.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.start.len() - 1
    }

    /// Returns how many edges there are.
    #[must_use]
    pub fn edges(&self) -> usize {
        self.member.len()
    }

    /// Returns the class of a topic, [`NONE`] if nobody may own its partitions.
    #[must_use]
    pub fn class(&self, topic: u32) -> u32 {
        self.class_of_topic[topic as usize]
    }

    /// Returns the edges of a class.
    #[must_use]
    pub fn edges_of(&self, class: usize) -> std::ops::Range<usize> {
        self.start[class] as usize..self.start[class + 1] as usize
    }

    /// Returns the rows of the members of all edges, by edge.
    #[must_use]
    pub fn members(&self) -> &[u32] {
        &self.member
    }

    /// Returns the rows of the members that subscribe to a topic, ascending.
    #[must_use]
    pub fn of_topic(&self, topic: u32) -> &[u32] {
        match self.class(topic) {
            NONE => &[],
            class => &self.member[self.edges_of(class as usize)],
        }
    }

    /// Says whether every one of `members` members may own every partition.
    #[must_use]
    pub fn is_single(&self, members: usize) -> bool {
        self.classes() == 1 && self.member.len() == members && !self.class_of_topic.contains(&NONE)
    }

    /// Calls `visit` with each partition and its edge ([`NONE`] if it is free or its owner may not own it), and its
    /// class ([`NONE`] if nobody may own it).
    pub fn each(&self, cycle: &Cycle<'_>, mut visit: impl FnMut(usize, u32, u32)) {
        let mut edge_of = vec![NONE; cycle.members.len()];
        let mut current = NONE;
        for run in runs(cycle.topic) {
            let class = self.class(cycle.topic[run.start]);
            if class != current {
                if current != NONE {
                    for edge in self.edges_of(current as usize) {
                        edge_of[self.member[edge] as usize] = NONE;
                    }
                }
                if class != NONE {
                    for edge in self.edges_of(class as usize) {
                        edge_of[self.member[edge] as usize] = edge as u32;
                    }
                }
                current = class;
            }
            for partition in run {
                let edge = edge_of.get(cycle.owner[partition] as usize).copied().unwrap_or(NONE);
                visit(partition, class, edge);
            }
        }
    }
}

/// Returns the stretches of equal entries.
pub fn runs(column: &[u32]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = column.get(at)?;
        let start = at;
        at += column[at..].iter().take_while(|entry| *entry == first).count();
        Some(start..at)
    })
}
