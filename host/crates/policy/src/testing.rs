//! What the tests of this crate make by hand in one way: those beside the code, and those in `tests/it`.

use fulcrum_core::claiming::{Cycle, Member, Reason};

/// Makes a cycle of the group `g` with the members `m0`, `m1` and so on, who all read the one topic `t`. Its partitions
/// have the numbers from 0 and weigh 1.0; `owner` has the row of each one's owner, -1 where it is free.
pub(crate) fn cycle(members: usize, owner: &[i32]) -> Cycle {
    let member = |row: usize| Member {
        id: format!("m{row}"),
        zone: String::new(),
        labels: Vec::new(),
        capacity: 1.0,
        since_ms: 0,
        topics: vec![0],
    };
    let len = owner.len();
    Cycle {
        group: "g".to_owned(),
        members: (0..members).map(member).collect(),
        topics: vec!["t".to_owned()],
        places: vec![String::new()],
        topic: vec![0; len],
        number: (0..).take(len).collect(),
        place: vec![0; len],
        owner: owner.to_vec(),
        moving: vec![0; len],
        weight: vec![1.0; len],
        held_ms: vec![0; len],
        movement_budget: None,
        reason: Reason::Join,
        now_ms: 1,
        seed: 2,
    }
}
