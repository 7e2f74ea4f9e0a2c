use proptest::prelude::*;

use super::*;

#[test]
fn a_topics_own_limits_go_before_those_of_the_host() {
    let host = Limits { age_ms: Some(7), bytes: None, hard_bytes: Some(9) };
    let check = |own: Own, expected: Limits| assert_eq!(own.over(host), expected, "{own:?}");
    check(Own::default(), host);
    check(Own { age_ms: Some(0), ..Own::default() }, Limits { age_ms: None, ..host });
    check(Own { age_ms: Some(1), ..Own::default() }, Limits { age_ms: Some(1), ..host });
    check(Own { bytes: Some(5), ..Own::default() }, Limits { bytes: Some(5), ..host });
    check(Own { hard_bytes: Some(0), ..Own::default() }, Limits { hard_bytes: None, ..host });
}

#[test]
fn what_is_trimmed_follows_the_table() {
    // The partition holds 10 to 100.
    let check = |change: fn(&mut Bounds), to: u64, expires: bool, gap: u64| {
        let mut bounds = Bounds { first: 10, end: 100, ..Bounds::default() };
        change(&mut bounds);
        assert_eq!(decide(&bounds), Decision { to, expires, gap }, "{bounds:?}");
    };
    check(|_| {}, 10, false, 0);
    check(|at| at.aged = Some(30), 30, false, 0);
    check(|at| at.sized = Some(40), 40, false, 0);
    check(|at| (at.aged, at.sized) = (Some(30), Some(20)), 30, false, 0);
    check(|at| at.aged = Some(100), 100, false, 0);
    // Nobody is passed.
    check(|at| (at.aged, at.messages) = (Some(50), Some(30)), 30, false, 0);
    check(|at| (at.aged, at.members) = (Some(50), Some(35)), 35, false, 0);
    check(|at| (at.sized, at.messages, at.members) = (Some(50), Some(40), Some(20)), 20, false, 0);
    check(|at| (at.aged, at.messages) = (Some(50), Some(80)), 50, false, 0);
    // One that wants what was trimmed before holds everything.
    check(|at| (at.aged, at.members) = (Some(50), Some(0)), 10, false, 0);
    check(|at| (at.aged, at.messages) = (Some(50), Some(200)), 50, false, 0);
    // Unless there is a hard limit.
    check(|at| at.hard = Some(60), 60, false, 0);
    check(|at| (at.hard, at.messages) = (Some(60), Some(30)), 60, true, 0);
    check(|at| (at.hard, at.members) = (Some(60), Some(30)), 60, false, 30);
    check(|at| (at.hard, at.members) = (Some(60), Some(0)), 60, false, 50);
    check(|at| (at.hard, at.messages, at.members) = (Some(60), Some(70), Some(59)), 60, false, 1);
    check(|at| (at.aged, at.hard, at.messages) = (Some(90), Some(60), Some(70)), 70, false, 0);
    check(|at| (at.aged, at.hard, at.messages) = (Some(90), Some(60), Some(50)), 60, true, 0);
    check(|at| at.hard = Some(10), 10, false, 0);
}

prop_compose! {
    fn bounds()(
        first in 0..50_u64,
        len in 0..50_u64,
        found in prop::array::uniform3(prop::option::of(0..=1000_u64)),
        floors in prop::array::uniform2(prop::option::of(0..120_u64)),
    ) -> Bounds {
        let end = first + len;
        // What a store finds lies within the partition.
        let [aged, sized, hard] = found.map(|found| found.map(|found| first + found * len / 1000));
        let [messages, members] = floors;
        Bounds { first, end, aged, sized, hard, messages, members }
    }
}

proptest! {
    #[test]
    fn limits_are_kept_and_nobody_is_passed(bounds in bounds()) {
        let Decision { to, expires, gap } = decide(&bounds);
        prop_assert!((bounds.first..=bounds.end).contains(&to));
        let wanted = bounds.aged.max(bounds.sized).max(bounds.hard).unwrap_or(bounds.first);
        prop_assert!(to <= wanted.max(bounds.first), "more than any limit asks for");
        prop_assert!(bounds.hard.is_none_or(|hard| hard <= to), "a hard limit is not kept");
        // Whatever goes beyond a floor is the hard limit's doing, and is told.
        let without_hard = decide(&Bounds { hard: None, ..bounds });
        prop_assert!(!without_hard.expires && without_hard.gap == 0);
        for floor in bounds.messages.into_iter().chain(bounds.members) {
            prop_assert!(without_hard.to <= floor.max(bounds.first));
            prop_assert!(to <= floor.max(bounds.hard.unwrap_or(0)).max(bounds.first));
        }
        let passes = |floor: Option<u64>| floor.is_some_and(|floor| floor.max(bounds.first) < to);
        prop_assert_eq!(expires, passes(bounds.messages));
        prop_assert_eq!(gap > 0, passes(bounds.members));
        // Once trimmed, there is nothing left to do.
        let again = decide(&Bounds { first: to, ..bounds });
        prop_assert_eq!(again.to, to);
        prop_assert_eq!((again.expires, again.gap), (false, 0));
    }

    #[test]
    fn a_group_that_goes_on_never_brings_anything_back(bounds in bounds(), step in 0..20_u64) {
        let further = Bounds { messages: bounds.messages.map(|floor| floor + step), ..bounds };
        prop_assert!(decide(&bounds).to <= decide(&further).to);
    }
}
