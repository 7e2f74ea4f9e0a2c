use super::*;

const TTL: Duration = Duration::from_secs(15);
const LIMITS: Limits =
    Limits { ttl: TTL, forget_after: Duration::from_secs(600), instances_max: 3, roster_bytes_max: 100 };

fn report(id: &str) -> Report {
    Report { id: id.to_owned(), address: format!("{id}:1"), capacity: 1.0, ..Report::default() }
}

/// Heartbeats of the given ids at time 0.
fn members(ids: &[&str]) -> Members {
    let mut members = Members::new(LIMITS);
    ids.iter().for_each(|id| members.apply(report(id), Timestamp(0)).expect("valid"));
    members.freshen(Timestamp(0));
    members
}

fn revisions(members: &Members) -> (u64, u64) {
    (members.roster_revision, members.loads_revision)
}

#[test]
fn a_row_lives_for_exactly_its_ttl_and_is_kept_for_a_while() {
    let cases = [(0, 1, 0), (15_000, 1, 0), (15_001, 0, 1), (615_000, 0, 1), (615_001, 0, 0)];
    for (now, live, dead) in cases {
        let mut members = members(&["a"]);
        members.expire(Timestamp(now));
        assert_eq!(members.counts(), Counts { live, dead, draining: 0 }, "at {now} ms");
    }
    // The same in one life.
    let mut members = members(&["a"]);
    for (now, live, dead) in cases {
        members.expire(Timestamp(now));
        assert_eq!(members.counts(), Counts { live, dead, draining: 0 }, "at {now} ms");
    }
}

#[test]
fn the_age_of_a_heartbeat_counts() {
    let mut members = members(&["a"]);
    let aged = |age| Report { age: Duration::from_millis(age), ..report("b") };
    assert_eq!(members.apply(aged(15_000), Timestamp(20_000)), Ok(()));
    members.expire(Timestamp(20_000));
    assert_eq!(members.counts(), Counts { live: 1, dead: 1, draining: 0 });
    members.expire(Timestamp(20_001));
    assert_eq!(members.counts(), Counts { live: 0, dead: 2, draining: 0 });
    let refused = members.apply(aged(15_001), Timestamp(20_000));
    assert_eq!(refused, Err(Error::TooOld { age: Duration::from_millis(15_001), ttl: TTL }));
}

#[test]
fn revisions_say_what_changed() {
    let load = Some(Load { sessions: 3, ..Load::default() });
    type Step = fn(&mut Members);
    let cases: [(&str, Step, (u64, u64)); 8] = [
        ("same identity", |m| m.apply(report("a"), Timestamp(1)).expect("valid"), (0, 1)),
        (
            "other zone",
            |m| m.apply(Report { zone: "z".into(), ..report("a") }, Timestamp(1)).expect("valid"),
            (1, 1),
        ),
        ("new row", |m| m.apply(report("c"), Timestamp(1)).expect("valid"), (1, 1)),
        ("drain", |m| assert!(m.drain("a", true)), (0, 1)),
        ("no drain", |m| assert!(m.drain("a", false)), (0, 0)),
        ("leave", |m| assert!(m.leave("a")), (1, 1)),
        ("given out", |m| m.give_out(0), (0, 0)),
        (
            "older heartbeat",
            |m| {
                m.apply(report("a"), Timestamp(5)).expect("valid");
                let before = revisions(m);
                let older = Report { age: Duration::from_millis(3), zone: "z".into(), ..report("a") };
                m.apply(older, Timestamp(6)).expect("valid");
                assert_eq!(revisions(m), before);
            },
            (0, 1),
        ),
    ];
    for (name, step, (roster, loads)) in cases {
        let mut members = members(&["a", "b"]);
        members.apply(Report { load, ..report("a") }, Timestamp(0)).expect("valid");
        let before = revisions(&members);
        step(&mut members);
        assert_eq!(revisions(&members), (before.0 + roster, before.1 + loads), "{name}");
    }
}

#[test]
fn a_heartbeat_clears_pending_and_death_but_not_draining() {
    let mut members = members(&["a"]);
    members.give_out(0);
    members.drain("a", true);
    members.expire(Timestamp(20_000));
    assert_eq!(members.loads.flags[0], flags::LOAD_UNKNOWN | flags::DRAINING | flags::DEAD);
    assert_eq!(members.loads.pending[0], 1);
    let load = Some(Load { sessions: 1, ..Load::default() });
    members.apply(Report { load, ..report("a") }, Timestamp(20_000)).expect("valid");
    assert_eq!((members.loads.flags[0], members.loads.pending[0]), (flags::DRAINING, 0));
    members.leave("a");
    members.apply(report("a"), Timestamp(20_000)).expect("valid");
    assert_eq!(members.loads.flags[0], flags::LOAD_UNKNOWN, "leaving ends the draining");
}

#[test]
fn ages_are_told_anew_after_a_second() {
    let mut members = members(&["a"]);
    let told = revisions(&members);
    for (now, loads, age) in [(1000, 0, 0), (1001, 1, 1001), (2001, 1, 1001), (2002, 2, 2002)] {
        members.freshen(Timestamp(now));
        let found = (revisions(&members), members.loads.heartbeat_age_ms[0]);
        assert_eq!(found, ((told.0, told.1 + loads), age), "at {now} ms");
    }
    members.apply(report("a"), Timestamp(2100)).expect("valid");
    members.freshen(Timestamp(2103));
    assert_eq!((revisions(&members).1, members.loads.heartbeat_age_ms[0]), (told.1 + 3, 3));
}

#[test]
fn the_roster_is_bounded() {
    let mut members = members(&["a", "b", "c"]);
    assert_eq!(members.apply(report("d"), Timestamp(0)), Err(Error::TooManyInstances { max: 3 }));
    assert_eq!(members.apply(report("c"), Timestamp(0)), Ok(()));
}

#[test]
fn rows_are_avoided_by_id_url_and_label() {
    let mut members = Members::new(LIMITS);
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let rows =
        [("a", "x:1", vec![label("gpu", "1"), label("az", "1")]), ("b", "y:1", vec![]), ("c", "x:1", vec![])];
    for (id, address, labels) in rows {
        let report = Report { address: address.to_owned(), labels, ..report(id) };
        members.apply(report, Timestamp(0)).expect("valid");
    }
    members.freshen(Timestamp(0));
    type Case<'a> = (&'a [&'a str], &'a [(String, String)], &'a [u32]);
    let cases: [Case<'_>; 8] = [
        (&[], &[], &[]),
        (&["c", "a", "c", "nobody"], &[], &[0, 2]),
        (&["http://x:1"], &[], &[0, 2]),
        (&["http://y:1/", "b"], &[], &[1]),
        (&["http://z:1", "x:1"], &[], &[]),
        (&[], &[label("gpu", "1")], &[1, 2]),
        (&["a"], &[label("az", "1"), label("gpu", "1")], &[0, 1, 2]),
        (&[], &[label("gpu", "2")], &[0, 1, 2]),
    ];
    let mut avoid = vec![9];
    for (exclude, labels, expected) in cases {
        let exclude: Vec<String> = exclude.iter().map(|name| (*name).to_owned()).collect();
        members.avoid(&exclude, labels, &mut avoid);
        assert_eq!(avoid, expected, "{exclude:?} {labels:?}");
    }
}

#[test]
fn what_policies_are_told_of_all_rows_is_bounded() {
    let mut members = Members::new(LIMITS);
    let zoned = |id: &str, bytes: usize| Report { zone: "z".repeat(bytes), ..report(id) };
    let mut check = |id: &str, bytes: usize, fits: bool| {
        let expected = if fits { Ok(()) } else { Err(Error::RosterTooLarge { max_bytes: 100 }) };
        assert_eq!(members.apply(zoned(id, bytes), Timestamp(0)), expected, "{id} with {bytes}");
    };
    check("a", 49, true);
    check("b", 50, false);
    check("b", 49, true);
    check("a", 50, false);
    check("a", 9, true);
    check("b", 89, true);
    members.leave("b");
    let mut check = |id: &str, bytes: usize| members.apply(zoned(id, bytes), Timestamp(0)).is_ok();
    assert_eq!([check("c", 90), check("c", 89), check("a", 8)], [false, true, true]);
}
