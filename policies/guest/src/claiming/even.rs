//! The most even and most sticky assignment by partition count.
//!
//! Among all legal assignments it takes those with the lexicographically best load vector (loads in descending
//! order, compared from the largest on; a member's load is how many partitions it owns), and among these one that
//! keeps the most partitions where they are. Partitions on their way count for their new owner and are not touched.
//!
//! With equal subscriptions there is a closed form, in O(partitions + members): everybody gets the floor or the
//! ceiling of the mean, and the spare partitions stay with members that have one (unlike apache/kafka#19677). With
//! different subscriptions it is a flow problem, solved by the module `flow`.

use super::flow::Net;
use super::subscribers::{NONE, Subscribers};
use super::{Cycle, Error};

/// Partitions and who gets them; both of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// Index of the partition.
    pub partition: Vec<u32>,
    /// Row of the member.
    pub member: Vec<u32>,
}

impl Moves {
    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.partition.len()
    }

    /// Says whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partition.is_empty()
    }

    /// Adds one.
    pub fn push(&mut self, partition: u32, member: u32) {
        self.partition.push(partition);
        self.member.push(member);
    }
}

/// The way to the best assignment. Each partition is in at most one of the lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebalance {
    /// Free partitions.
    pub free: Moves,
    /// Partitions whose owner does not subscribe to their topic.
    pub forced: Moves,
    /// Partitions that change owner for the sake of the balance.
    pub moves: Moves,
    /// Owned partitions of topics that nobody subscribes to.
    pub orphans: Vec<u32>,
    /// Per member: how many partitions it has in the end.
    pub load: Vec<u32>,
    /// Partitions per member if everybody may own everything: numerator and denominator of the fair share.
    pub share: Option<(u32, u32)>,
    /// The loads may not be the best, as that would have been more work than one plan may do; the next plan goes on.
    pub cut_short: bool,
}

/// In which order a plan lists what members give up; it matters where only the first moves are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In the order of partitions.
    Partition,
    /// Those with the most partitions first.
    MostLoaded,
}

/// Finds the best assignment.
///
/// Errors like [`Cycle::check`].
pub fn rebalance(cycle: &Cycle<'_>, order: Order) -> Result<Rebalance, Error> {
    cycle.check()?;
    let subscribers = Subscribers::of(cycle);
    Ok(if cycle.members.is_empty() {
        Rebalance::default()
    } else if !subscribers.is_single(cycle.members.len()) {
        several(cycle, &subscribers, order)
    } else if cycle.any_moving() {
        single::<true>(cycle, order)
    } else {
        single::<false>(cycle, order)
    })
}

/// Everybody may own everything: the closed form. `MOVING` says whether a hand-over is under way.
fn single<const MOVING: bool>(cycle: &Cycle<'_>, order: Order) -> Rebalance {
    let members = cycle.members.len();
    let is_moving = |partition: usize| MOVING && cycle.moving[partition] != 0;
    // Entry 0 counts the free partitions, entry r + 1 those of row r.
    let mut held = vec![0_u32; members + 1];
    let mut fixed = vec![0_u32; if MOVING { members + 1 } else { 0 }];
    for &owner in cycle.owner {
        held[owner.wrapping_add(1) as usize] += 1;
    }
    if MOVING {
        for (partition, &owner) in cycle.owner.iter().enumerate() {
            fixed[owner.wrapping_add(1) as usize] += u32::from(is_moving(partition));
        }
    }
    let fixed_of = |row: usize| if MOVING { fixed[row + 1] } else { 0 };
    let free_count = held[0] - if MOVING { fixed[0] } else { 0 };
    let held = &held[1..];
    let total = held.iter().sum::<u32>() + free_count;
    let load = quotas(total, held, fixed_of, rotation(cycle));

    let mut free = Vec::with_capacity(free_count as usize);
    let mut surplus = Vec::new();
    let surplus_count: u32 = (0..members).map(|row| held[row].saturating_sub(load[row])).sum();
    if surplus_count == 0 {
        if free_count == total && !MOVING {
            free.extend(0..total);
        } else if free_count > 0 {
            collect_free(cycle.owner, &mut free, |partition| !is_moving(partition));
        }
    } else {
        surplus.reserve(surplus_count as usize);
        let mut thin = vec![Thin::default(); members + 1];
        for row in 0..members {
            let (give, of) = (held[row].saturating_sub(load[row]), held[row] - fixed_of(row));
            thin[row + 1] = Thin::new(give, of, row, members);
        }
        for (partition, &owner) in cycle.owner.iter().enumerate() {
            if is_moving(partition) {
                continue;
            }
            let thin = &mut thin[owner.wrapping_add(1) as usize];
            if owner < 0 {
                free.push(partition as u32);
            } else if thin.gives() {
                surplus.push(partition as u32);
            }
        }
    }
    if order == Order::MostLoaded {
        relieve_first(cycle, held.to_vec(), &mut surplus);
    }
    let mut receivers: Vec<(u32, u32)> = (0..members)
        .filter(|&row| load[row] > held[row])
        .map(|row| (row as u32, load[row] - held[row]))
        .collect();
    let mut to = deal(&mut receivers, free.len() + surplus.len());
    let to_surplus = to.split_off(free.len());
    Rebalance {
        free: Moves { partition: free, member: to },
        moves: Moves { partition: surplus, member: to_surplus },
        load,
        share: Some((total, members as u32)),
        ..Rebalance::default()
    }
}

/// Returns how many partitions each member gets, with the spare ones where they are.
fn quotas(total: u32, held: &[u32], fixed: impl Fn(usize) -> u32, first: usize) -> Vec<u32> {
    let members = held.len();
    // The largest level with room for everybody at it, or above it with what cannot be taken away.
    let mut level = total / members as u32;
    let filled = |level: u32| (0..members).map(|row| fixed(row).max(level)).sum::<u32>();
    if (0..members).any(|row| fixed(row) > level) {
        let (mut low, mut high) = (0, level);
        while low < high {
            let middle = high - (high - low) / 2;
            if filled(middle) <= total { low = middle } else { high = middle - 1 }
        }
        level = low;
    }
    let mut load: Vec<u32> = (0..members).map(|row| fixed(row).max(level)).collect();
    let mut spare = total - load.iter().sum::<u32>();
    if spare == 0 {
        return load;
    }
    // First those that have one more already, then anybody; not always the first rows.
    for wants in [true, false] {
        for row in (first..members).chain(0..first) {
            if spare > 0 && load[row] == level && fixed(row) <= level && (held[row] > level) == wants {
                load[row] += 1;
                spare -= 1;
            }
        }
    }
    load
}

/// Returns the row at which to start handing out spare partitions, so that it is not the first one in every group.
#[must_use]
pub fn rotation(cycle: &Cycle<'_>) -> usize {
    let hash = cycle.group.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    if cycle.members.is_empty() { 0 } else { (hash % cycle.members.len() as u64) as usize }
}

/// Collects the free partitions; blocks without any are stepped over.
fn collect_free(owner: &[i32], free: &mut Vec<u32>, may: impl Fn(usize) -> bool) {
    const BLOCK: usize = 16;
    for (block, owners) in owner.chunks(BLOCK).enumerate() {
        if owners.iter().fold(0, |any, owner| any | owner) < 0 {
            for (at, &owner) in owners.iter().enumerate() {
                let partition = block * BLOCK + at;
                if owner < 0 && may(partition) {
                    free.push(partition as u32);
                }
            }
        }
    }
}

/// Chooses which partitions a member gives up: spread evenly over what it has, as neighbours belong together (one
/// topic, one place); and at another place for each member, so that a newcomer gets a mixture.
#[derive(Debug, Clone, Copy, Default)]
struct Thin {
    give: u32,
    of: u32,
    carry: u32,
}

impl Thin {
    fn new(give: u32, of: u32, row: usize, rows: usize) -> Self {
        let carry = if give == 0 { 0 } else { u64::from(of) * row as u64 / rows as u64 };
        Self { give, of, carry: carry as u32 }
    }

    /// Says whether to give up the next one; over all `of` of them exactly `give` times.
    #[inline]
    fn gives(&mut self) -> bool {
        if self.give == 0 {
            return false;
        }
        self.carry += self.give;
        let gives = self.carry >= self.of;
        if gives {
            self.carry -= self.of;
        }
        gives
    }
}

/// Orders partitions that are given up: each time one of the owner that has the most left.
fn relieve_first(cycle: &Cycle<'_>, mut held: Vec<u32>, surplus: &mut [u32]) {
    let mut order: Vec<(std::cmp::Reverse<u32>, u32)> = surplus
        .iter()
        .map(|&partition| {
            let left = &mut held[cycle.owner[partition as usize] as usize];
            *left -= 1;
            (std::cmp::Reverse(*left), partition)
        })
        .collect();
    order.sort_unstable();
    for (place, (_, partition)) in surplus.iter_mut().zip(order) {
        *place = partition;
    }
}

/// Deals `count` partitions one at a time to members that lack as many in total; returns the rows in order.
fn deal(receivers: &mut Vec<(u32, u32)>, count: usize) -> Vec<u32> {
    let mut to = Vec::with_capacity(count);
    let mut rows: Vec<u32> = Vec::with_capacity(receivers.len());
    let mut dealt = 0;
    while to.len() < count {
        receivers.retain(|&(_, lacks)| lacks > dealt);
        let Some(lacks) = receivers.iter().map(|&(_, lacks)| lacks).min() else { break };
        rows.clear();
        rows.extend(receivers.iter().map(|&(row, _)| row));
        for _ in dealt..lacks {
            to.extend_from_slice(&rows);
        }
        dealt = lacks;
    }
    debug_assert_eq!(to.len(), count, "what is dealt is what is lacking");
    to
}

/// Different subscriptions.
fn several(cycle: &Cycle<'_>, subscribers: &Subscribers, order: Order) -> Rebalance {
    let classes = subscribers.classes();
    let mut have = vec![0_u32; subscribers.edges()];
    let mut pool = vec![0_u32; classes];
    let mut fixed = vec![0_u32; cycle.members.len()];
    let is_moving = |partition: usize| cycle.moving[partition] != 0;
    subscribers.each(cycle, |partition, class, edge| {
        if is_moving(partition) {
            if let Some(fixed) = fixed.get_mut(cycle.owner[partition] as usize) {
                *fixed += 1;
            }
        } else if edge != NONE {
            have[edge as usize] += 1;
        } else if class != NONE {
            pool[class as usize] += 1;
        }
    });
    let mut held = fixed.clone();
    for (&member, have) in subscribers.members().iter().zip(&have) {
        held[member as usize] += have;
    }
    let mut net = Net::new(subscribers, &have, &fixed, &pool);
    net.solve();
    let want = net.flow();

    let members = cycle.members.len();
    let mut thin: Vec<Thin> = (0..subscribers.edges())
        .map(|edge| {
            let give = have[edge].saturating_sub(want[edge]);
            Thin::new(give, have[edge], subscribers.members()[edge] as usize, members)
        })
        .collect();
    let mut lists = vec![<[Vec<u32>; 3]>::default(); classes];
    let mut out = Rebalance::default();
    subscribers.each(cycle, |partition, class, edge| {
        let owned = cycle.owner[partition] >= 0;
        if is_moving(partition) {
        } else if class == NONE {
            if owned {
                out.orphans.push(partition as u32);
            }
        } else if edge == NONE {
            lists[class as usize][usize::from(owned)].push(partition as u32);
        } else if thin[edge as usize].gives() {
            lists[class as usize][2].push(partition as u32);
        }
    });
    for (class, mut lists) in lists.into_iter().enumerate() {
        if order == Order::MostLoaded {
            relieve_first(cycle, held.clone(), &mut lists[2]);
        }
        let lacks = |edge: usize| want[edge].saturating_sub(have[edge]);
        let mut receivers: Vec<(u32, u32)> = subscribers
            .edges_of(class)
            .filter(|&edge| lacks(edge) > 0)
            .map(|edge| (subscribers.members()[edge], lacks(edge)))
            .collect();
        let to = deal(&mut receivers, lists.iter().map(Vec::len).sum());
        let mut to = to.into_iter();
        for (moves, partitions) in [&mut out.free, &mut out.forced, &mut out.moves].into_iter().zip(lists) {
            moves.member.extend(to.by_ref().take(partitions.len()));
            moves.partition.extend(partitions);
        }
    }
    out.load = net.load().to_vec();
    out.cut_short = net.cut_short();
    out
}
