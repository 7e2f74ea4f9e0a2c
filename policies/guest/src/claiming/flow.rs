//! The even assignment under different subscriptions, as a flow of partitions from classes to members.
//!
//! What is minimised is, first, the sum of squared loads, which for such flows is the lexicographic best load vector
//! (Frank, Murota, "Decreasing minimization on M-convex sets", Math. Programming 2022), and second the number of
//! partitions that leave a member which may keep them. One flow is an integer per edge: how many partitions of the
//! class the member gets. Cost of the flow x on an edge that has h now: `max(0, h - x)`.
//!
//! Invariant: there is never a cycle of negative cost in the residual graph. It holds where every member keeps what it
//! has and free ones are on top, as no step has a negative cost then. It holds after members above the mean, that got
//! no free ones, gave some to others below it ([`Net::spread`]): a step of cost -1 then leads to one that gave, and
//! every step away from it costs 1. And from there on each change is made along a path of least cost. At the end no
//! path evens anything out ([`Net::even_out`]), and none trades places between a member and another that has one
//! partition less at a gain ([`Net::settle`]); no other cycle can be negative, so the flow is optimal.

use super::subscribers::Subscribers;

/// Most steps over an edge that one plan may take: well below half a second.
const WORK_MAX: u64 = 25_000_000;
const FAR: i32 = i32::MAX;

/// A flow. Nodes are the members, by row, and after them the classes.
#[derive(Debug)]
pub(super) struct Net<'a> {
    subscribers: &'a Subscribers,
    /// Per edge: its class.
    class: Vec<u32>,
    /// Per member: the start of its edges in `edges`; one more entry than members.
    start: Vec<u32>,
    edges: Vec<u32>,
    /// Per edge: partitions the member has now, and those it gets.
    have: Vec<u32>,
    flow: Vec<u32>,
    /// Per member: partitions in total.
    load: Vec<u32>,
    /// Per member: the part of the graph that is looked at.
    part: Vec<u32>,
    /// Per node: cost of the cheapest path from a source.
    cost: Vec<i32>,
    queue: std::collections::VecDeque<u32>,
    queued: Vec<bool>,
    /// Per node: how many of its edges were tried, and whether it is on the path or a dead end.
    tried: Vec<u32>,
    seen: Vec<bool>,
    work: u64,
    uneven: bool,
}

impl<'a> Net<'a> {
    /// Starts with what members have, and `pool` more partitions per class given to the least loaded.
    pub(super) fn new(subscribers: &'a Subscribers, have: &[u32], fixed: &[u32], pool: &[u32]) -> Self {
        let (members, classes) = (fixed.len(), subscribers.classes());
        let mut class = vec![0; subscribers.edges()];
        let mut start = vec![0_u32; members + 1];
        for of in 0..classes {
            class[subscribers.edges_of(of)].fill(of as u32);
        }
        for &member in subscribers.members() {
            start[member as usize + 1] += 1;
        }
        for row in 0..members {
            start[row + 1] += start[row];
        }
        let mut next = start.clone();
        let mut edges = vec![0; subscribers.edges()];
        let mut load = fixed.to_vec();
        for (edge, &member) in subscribers.members().iter().enumerate() {
            let next = &mut next[member as usize];
            edges[*next as usize] = edge as u32;
            *next += 1;
            load[member as usize] += have[edge];
        }
        let nodes = members + classes;
        let mut net = Self {
            subscribers,
            class,
            start,
            edges,
            have: have.to_vec(),
            flow: have.to_vec(),
            load,
            part: vec![0; members],
            cost: vec![FAR; nodes],
            queue: std::collections::VecDeque::with_capacity(nodes),
            queued: vec![false; nodes],
            tried: vec![0; nodes],
            seen: vec![false; nodes],
            work: 0,
            uneven: false,
        };
        for (class, &count) in pool.iter().enumerate() {
            net.pour(class, count);
        }
        net.spread();
        net
    }

    /// Moves partitions straight from members above the mean to others of the class below it.
    fn spread(&mut self) {
        let mut has_free = vec![false; self.load.len()];
        for (edge, &member) in self.subscribers.members().iter().enumerate() {
            has_free[member as usize] |= self.flow[edge] > self.have[edge];
        }
        let has_free = |edge: usize| has_free[self.subscribers.members()[edge] as usize];
        let (total, members) = (self.load.iter().sum::<u32>(), self.load.len() as u32);
        // Nobody gives and takes: members stay on their side of the mean.
        let (floor, ceiling) = (total / members, total.div_ceil(members));
        for class in 0..self.subscribers.classes() {
            let edges = || self.subscribers.edges_of(class);
            let mut givers: Vec<usize> = edges()
                .filter(|&edge| self.flow[edge] > 0 && self.load_of(edge) > ceiling && !has_free(edge))
                .collect();
            let takers: Vec<usize> = edges().filter(|&edge| self.load_of(edge) < floor).collect();
            for taker in takers {
                while self.load_of(taker) < floor {
                    let Some(&giver) = givers.last() else { break };
                    let can = self.flow[giver].min(self.load_of(giver) - ceiling);
                    if can == 0 {
                        givers.pop();
                        continue;
                    }
                    let count = can.min(floor - self.load_of(taker));
                    self.add(taker, count);
                    self.flow[giver] -= count;
                    self.load[self.subscribers.members()[giver] as usize] -= count;
                }
            }
        }
    }

    /// Makes the flow optimal.
    pub(super) fn solve(&mut self) {
        self.even_out();
        self.uneven = self.is_tired();
        self.settle();
    }

    /// Returns the flow, by edge.
    pub(super) fn flow(&self) -> &[u32] {
        &self.flow
    }

    /// Returns the loads, by member.
    pub(super) fn load(&self) -> &[u32] {
        &self.load
    }

    /// Says whether the loads may not be the best, as that would have been too much work. What was done is a step
    /// towards it.
    pub(super) fn cut_short(&self) -> bool {
        self.uneven
    }

    fn is_tired(&self) -> bool {
        self.work > WORK_MAX
    }

    /// Gives `count` partitions of a class to its least loaded members.
    fn pour(&mut self, class: usize, count: u32) {
        let mut order: Vec<usize> = self.subscribers.edges_of(class).collect();
        order.sort_by_key(|&edge| self.load_of(edge));
        let mut left = count;
        let mut level = 0;
        let mut filled = 0;
        // Raise the lowest ones together to the level of the next one.
        while filled < order.len() {
            level = self.load_of(order[filled]);
            while filled < order.len() && self.load_of(order[filled]) == level {
                filled += 1;
            }
            let Some(&next) = order.get(filled) else { break };
            let raise = u64::from(self.load_of(next) - level) * filled as u64;
            if raise > u64::from(left) {
                break;
            }
            for &edge in &order[..filled] {
                self.add(edge, self.load_of(next) - level);
            }
            left -= raise as u32;
            level = self.load_of(next);
        }
        debug_assert!(count == 0 || order[..filled].iter().all(|&edge| self.load_of(edge) == level));
        let (each, rest) = (left / filled as u32, left as usize % filled);
        for (at, &edge) in order[..filled].iter().enumerate() {
            self.add(edge, each + u32::from(at < rest));
        }
    }

    fn load_of(&self, edge: usize) -> u32 {
        self.load[self.subscribers.members()[edge] as usize]
    }

    fn add(&mut self, edge: usize, count: u32) {
        self.flow[edge] += count;
        self.load[self.subscribers.members()[edge] as usize] += count;
    }

    /// Removes every path from a member to another that has at least two partitions less.
    ///
    /// Divide and conquer: after everything that can flow from above a level to below it has done so, nothing can
    /// ever usefully flow between the members reachable from above and the others.
    fn even_out(&mut self) {
        let mut sets: Vec<Vec<u32>> = vec![(0..self.load.len() as u32).collect()];
        let mut part = 0;
        while let Some(set) = sets.pop() {
            let loads = || set.iter().map(|&row| self.load[row as usize]);
            let (Some(least), Some(most)) = (loads().min(), loads().max()) else { continue };
            if most - least <= 1 || self.is_tired() {
                continue;
            }
            part += 1;
            for &row in &set {
                self.part[row as usize] = part;
            }
            let level = least.midpoint(most);
            loop {
                let above: Vec<u32> =
                    set.iter().copied().filter(|&row| self.load[row as usize] > level).collect();
                self.label(&above, part);
                let can_reach =
                    |row: &u32| self.load[*row as usize] < level && self.cost[*row as usize] != FAR;
                if !set.iter().any(can_reach) || self.is_tired() {
                    break;
                }
                for &row in &above {
                    while self.load[row as usize] > level
                        && self.push(row, part, level, |load, _| load < level)
                    {}
                }
            }
            let (reached, others): (Vec<u32>, Vec<u32>) =
                set.into_iter().partition(|&row| self.cost[row as usize] != FAR);
            sets.push(reached);
            sets.push(others);
        }
        self.part.fill(0);
    }

    /// Lets members whose loads differ by one change places wherever that keeps more partitions.
    fn settle(&mut self) {
        let mut levels = self.load.clone();
        levels.sort_unstable();
        levels.dedup();
        loop {
            let mut gained = false;
            for &level in levels.iter().rev() {
                // No load is new here: members only change places.
                if level == 0 || levels.binary_search(&(level - 1)).is_err() {
                    continue;
                }
                loop {
                    let above: Vec<u32> =
                        (0..self.load.len() as u32).filter(|&row| self.load[row as usize] == level).collect();
                    self.label(&above, 0);
                    let gains = |row: usize| self.load[row] + 1 == level && self.cost[row] < 0;
                    if !(0..self.load.len()).any(gains) || self.is_tired() {
                        break;
                    }
                    for &row in &above {
                        if self.cost[row as usize] == 0 && self.load[row as usize] == level {
                            let gains = |load, cost| load + 1 == level && cost < 0;
                            gained |= self.push(row, 0, level - 1, gains);
                        }
                    }
                }
            }
            if !gained || self.is_tired() {
                return;
            }
        }
    }

    /// Cost of taking one partition of an edge away, if there is one.
    fn taking(&self, edge: usize) -> Option<i32> {
        (self.flow[edge] > 0).then(|| i32::from(self.flow[edge] <= self.have[edge]))
    }

    /// Cost of giving one partition more to an edge.
    fn giving(&self, edge: usize) -> i32 {
        -i32::from(self.flow[edge] < self.have[edge])
    }

    fn edges_from(&self, node: usize) -> std::ops::Range<usize> {
        match node.checked_sub(self.load.len()) {
            None => self.start[node] as usize..self.start[node + 1] as usize,
            Some(class) => self.subscribers.edges_of(class),
        }
    }

    /// Returns the node and the cost of a step from `node` along its edge at `at`, and the edge itself.
    fn step(&self, node: usize, at: usize, part: u32) -> Option<(usize, i32, usize)> {
        if node < self.load.len() {
            let edge = self.edges[at] as usize;
            Some((self.load.len() + self.class[edge] as usize, self.taking(edge)?, edge))
        } else {
            let member = self.subscribers.members()[at] as usize;
            (self.part[member] == part).then(|| (member, self.giving(at), at))
        }
    }

    /// Finds the cost of the cheapest path from any of `sources` to each node of a part. Source: Bellman and Ford,
    /// with a queue.
    fn label(&mut self, sources: &[u32], part: u32) {
        self.cost.fill(FAR);
        self.tried.fill(0);
        self.seen.fill(false);
        for &source in sources {
            self.cost[source as usize] = 0;
            self.queue.push_back(source);
            self.queued[source as usize] = true;
        }
        while let Some(node) = self.queue.pop_front() {
            let node = node as usize;
            self.queued[node] = false;
            let edges = self.edges_from(node);
            self.work += edges.len() as u64 + 1;
            if self.is_tired() {
                // The costs are not final, but nobody goes on from here.
                self.queue.clear();
                return;
            }
            for at in edges {
                let Some((next, cost, _)) = self.step(node, at, part) else { continue };
                let cost = self.cost[node] + cost;
                if cost < self.cost[next] {
                    self.cost[next] = cost;
                    if !self.queued[next] {
                        self.queued[next] = true;
                        self.queue.push_back(next as u32);
                    }
                }
            }
        }
    }

    /// Moves partitions from `source` along one cheapest path to a member that `is_target` (by load and cost); at
    /// most until the source falls, or the target rises, to `level`, but always one. Says whether there was a path.
    ///
    /// What was tried in vain since the last [`label`](Self::label) is not tried again.
    fn push(&mut self, source: u32, part: u32, level: u32, is_target: impl Fn(u32, i32) -> bool) -> bool {
        let members = self.load.len();
        let mut node = source as usize;
        // The edges of the path: from a member, from a class, from a member, ...
        let mut path: Vec<usize> = Vec::new();
        if self.seen[node] {
            return false;
        }
        self.seen[node] = true;
        loop {
            if node < members && !path.is_empty() && is_target(self.load[node], self.cost[node]) {
                break;
            }
            let edges = self.edges_from(node);
            let mut next = None;
            while edges.start + (self.tried[node] as usize) < edges.end {
                self.work += 1;
                let at = edges.start + self.tried[node] as usize;
                match self.step(node, at, part) {
                    Some((to, cost, edge)) if !self.seen[to] && self.cost[node] + cost == self.cost[to] => {
                        next = Some((to, edge));
                        break;
                    }
                    _ => self.tried[node] += 1,
                }
            }
            if let Some((to, edge)) = next {
                self.seen[to] = true;
                path.push(edge);
                node = to;
            } else {
                let Some(edge) = path.pop() else { return false };
                node = self.origin(edge, path.len());
                self.tried[node] += 1;
            }
        }
        let (source, target) = (source as usize, node);
        let mut count = (self.load[source] - level).min(level.saturating_sub(self.load[target])).max(1);
        for (at, &edge) in path.iter().enumerate() {
            let (flow, have) = (self.flow[edge], self.have[edge]);
            count = count.min(match is_take(at) {
                true if flow > have => flow - have,
                true => flow,
                false if flow < have => have - flow,
                false => u32::MAX,
            });
        }
        for (at, &edge) in path.iter().enumerate() {
            let flow = self.flow[edge];
            self.flow[edge] = if is_take(at) { flow - count } else { flow + count };
            let origin = self.origin(edge, at);
            self.seen[origin] = false;
        }
        self.seen[target] = false;
        self.load[source] -= count;
        self.load[target] += count;
        true
    }

    /// Returns the node from which a path's edge at `at` starts.
    fn origin(&self, edge: usize, at: usize) -> usize {
        if is_take(at) {
            self.subscribers.members()[edge] as usize
        } else {
            self.load.len() + self.class[edge] as usize
        }
    }
}

/// Says whether a path's edge at `at` takes from a member; the others give to one.
fn is_take(at: usize) -> bool {
    at.is_multiple_of(2)
}
