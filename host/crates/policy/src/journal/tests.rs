//! What was written is read back bit for bit; what is torn is left out; what is not of the format is named.

use std::sync::Arc;

use fulcrum_core::claiming::{Claim, Cycle, Plan, Reason};
use fulcrum_core::scoring::{Instance, Loads, Recommendation, Roster, Score, ScoringSnapshot};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::failure::Failure;
use crate::planner::{Planned, Wish};
use crate::seat::{Decision, ScoringFactory, ScoringPolicy};
use crate::tap::{Claimed, Scored};

/// A version that is only named.
struct Named(Arc<Identity>);

impl ScoringFactory for Named {
    fn identity(&self) -> &Arc<Identity> {
        &self.0
    }

    fn make(&self) -> Result<Box<dyn ScoringPolicy>, Failure> {
        Err(Failure::Trap("it is only a name".to_owned()))
    }
}

fn identity(name: &str, config: &str) -> Arc<Identity> {
    Arc::new(Identity { name: name.to_owned(), digest: "ab".repeat(32), config: config.to_owned() })
}

fn named(name: &str, config: &str) -> Arc<dyn ScoringFactory> {
    Arc::new(Named(identity(name, config)))
}

fn encoder() -> Encoder {
    Encoder::new(Header::new("1.2.3", &Limits::default()))
}

/// The decisions of a text, which must be sound.
fn read(text: &[u8]) -> Vec<Record> {
    let reader = Reader::open("a.jsonl", text).expect("it is a segment");
    reader.map(|entry| entry.expect("it is sound").record).collect()
}

/// What is wrong with a text, line by line.
fn problems(text: &[u8]) -> Vec<String> {
    match Reader::open("a.jsonl", text) {
        Ok(reader) => reader.filter_map(|entry| entry.err().map(|error| error.to_string())).collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn instance(id: &str, capacity: f64) -> Instance {
    Instance {
        id: Arc::from(id),
        zone: "z\"1\n".to_owned(),
        capacity,
        labels: vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), "\u{1F980}".to_owned())],
        age_ms: u64::MAX,
    }
}

fn snapshot(roster: &Arc<Roster>, number: f64) -> Arc<ScoringSnapshot> {
    let mut loads = Loads::unknown(roster.len());
    loads.inflow.fill(number);
    loads.pending.fill(u32::MAX);
    Arc::new(ScoringSnapshot { roster: roster.clone(), loads, roster_revision: 0 })
}

fn two_rows() -> Arc<Roster> {
    Arc::new(Roster::new(vec![instance("i0", 1.0), instance("i1", 0.1)]).expect("ids differ"))
}

fn scored(snapshot: &Arc<ScoringSnapshot>, asked: Option<Arc<dyn ScoringFactory>>, score: f64) -> Scored {
    Scored {
        snapshot: snapshot.clone(),
        committed: vec![1, 0, 1],
        request: OwnedRequest {
            client_id: "c".to_owned(),
            session_rows: vec![1],
            session_counts: vec![7],
            client_inflow: 0.1 + 0.2,
            client_outflow: -0.0,
            avoid: vec![0],
            now_ms: 1_700_000_000_123,
            seed: u64::MAX,
        },
        failure: None,
        decision: Decision {
            recommendation: Recommendation { row: 1, score: Score::new(score).expect("a number") },
            by: asked.as_ref().map(|asked| asked.identity().clone()),
            outcome: if asked.is_some() { Outcome::Ok } else { Outcome::Open },
        },
        asked,
        nanos: 1234,
    }
}

fn expected(scored: &Scored) -> Record {
    Record::Scoring(Box::new(Scoring {
        snapshot: scored.snapshot.clone(),
        committed: scored.committed.clone(),
        request: scored.request.clone(),
        course: Course {
            asked: scored.asked.as_ref().map(|asked| asked.identity().clone()),
            outcome: scored.decision.outcome,
            failure: scored.failure.as_ref().map(ToString::to_string),
            is_by_policy: scored.decision.by.is_some(),
            nanos: scored.nanos,
        },
        answer: scored.decision.recommendation,
    }))
}

fn claimed(cycle: Cycle, plan: Plan, asked: Option<Arc<Identity>>) -> Claimed {
    let planned =
        Planned { plan, by: asked.clone(), asked, outcome: Outcome::Ok, problem: Some("why".to_owned()) };
    let wish = Wish { policy: None, config: Value::Null };
    Claimed { group: cycle.group.clone(), wish, cycle, planned, nanos: 5 }
}

fn small_cycle() -> Cycle {
    let mut cycle = Cycle {
        moving: vec![0, 1],
        weight: vec![1.0, 0.3],
        held_ms: vec![0, 9],
        now_ms: 9,
        seed: 3,
        ..crate::testing::cycle(2, &[-1, 1])
    };
    cycle.members.iter_mut().for_each(|member| member.since_ms = 3);
    cycle
}

fn small_plan() -> Plan {
    let claim = |partition, member, reason: &str| Claim { partition, member, reason: reason.to_owned() };
    Plan {
        claims: vec![claim(0, 1, "free"), claim(1, 0, "even"), claim(1, 1, "free")],
        releases: vec![1],
        next_cycle_ms: Some(50),
    }
}

/// A segment of two policies, two rosters, three snapshots and six decisions.
fn small() -> (Vec<u8>, Vec<Record>) {
    let (mut encoder, mut text, mut records) = (encoder(), Vec::new(), Vec::new());
    encoder.begin(&mut text).expect("written");
    let (one, other) = (two_rows(), two_rows());
    let snapshots = [snapshot(&one, 1.5), snapshot(&one, f64::INFINITY), snapshot(&other, -0.0)];
    for (at, snapshot) in snapshots.iter().enumerate() {
        let asked = (at != 1).then(|| named("p", r#"{"b":0.1,"a":[1e300]}"#));
        let mut scored = scored(snapshot, asked, 0.1 * at as f64);
        scored.failure = (at == 1).then(|| Failure::Trap("unreachable".to_owned()));
        encoder.scored(&scored, &mut text).expect("written");
        encoder.scored(&scored, &mut text).expect("written");
        records.extend([expected(&scored), expected(&scored)]);
    }
    let claimed = claimed(small_cycle(), small_plan(), Some(identity("q", "{}")));
    encoder.claimed(&claimed, &mut text).expect("written");
    records.push(Record::Claiming(Box::new(Claiming {
        cycle: small_cycle(),
        course: Course {
            asked: Some(identity("q", "{}")),
            outcome: Outcome::Ok,
            failure: Some("why".to_owned()),
            is_by_policy: true,
            nanos: 5,
        },
        plan: small_plan(),
    })));
    (text, records)
}

#[test]
fn a_segment_is_read_back() {
    let (text, records) = small();
    // As read, a configuration is in canonical order.
    let canonical = |record: &Record| match record {
        Record::Scoring(scoring) => {
            let mut scoring = scoring.clone();
            if let Some(asked) = &scoring.course.asked {
                let config: Value = serde_json::from_str(&asked.config).expect("JSON");
                scoring.course.asked =
                    Some(Arc::new(Identity { config: config.to_string(), ..(**asked).clone() }));
            }
            Record::Scoring(scoring)
        }
        other => other.clone(),
    };
    assert_eq!(read(&text), records.iter().map(canonical).collect::<Vec<_>>());
    let lines = std::str::from_utf8(&text).expect("text").lines();
    let kinds: Vec<_> = lines
        .map(|line| {
            serde_json::from_str::<Value>(line).expect("JSON")["kind"].as_str().unwrap_or("").to_owned()
        })
        .collect();
    let shared =
        "header policy roster snapshot scoring scoring snapshot scoring scoring policy roster snapshot";
    let expected =
        format!("{} scoring scoring policy claiming", shared.replace("policy roster snapshot", "§"));
    // The second `p` is the same version, so it does not stand there twice.
    let expected = expected.replacen('§', "policy roster snapshot", 1).replace('§', "roster snapshot");
    assert_eq!(kinds.join(" "), expected);
}

#[test]
fn snapshots_are_shared_when_read() {
    let (text, _) = small();
    let snapshots: Vec<_> = read(&text)
        .into_iter()
        .filter_map(|record| match record {
            Record::Scoring(scoring) => Some(scoring.snapshot),
            Record::Claiming(_) => None,
        })
        .collect();
    assert!(Arc::ptr_eq(&snapshots[0], &snapshots[1]) && !Arc::ptr_eq(&snapshots[1], &snapshots[2]));
    assert!(Arc::ptr_eq(&snapshots[0].roster, &snapshots[2].roster));
}

#[test]
fn each_segment_carries_what_it_refers_to() {
    let (mut encoder, snapshot) = (encoder(), snapshot(&two_rows(), 0.0));
    let scored = scored(&snapshot, Some(named("p", "{}")), 1.0);
    let segment = |encoder: &mut Encoder| {
        let mut text = Vec::new();
        encoder.begin(&mut text).expect("written");
        encoder.scored(&scored, &mut text).expect("written");
        text
    };
    let (first, second) = (segment(&mut encoder), segment(&mut encoder));
    assert_eq!(first, second);
    assert_eq!(read(&second), [expected(&scored)]);
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let (mut encoder, mut text, snapshot) = (encoder(), Vec::new(), snapshot(&two_rows(), 0.0));
    encoder.begin(&mut text).expect("written");
    let before = text.clone();
    encoder.scored(&scored(&snapshot, Some(named("p", "{")), 1.0), &mut text).expect_err("no JSON");
    assert_eq!(text, before);
    let good = scored(&snapshot, Some(named("p", "{}")), 1.0);
    encoder.scored(&good, &mut text).expect("written");
    assert_eq!(read(&text), [expected(&good)]);
}

#[test]
fn every_prefix_gives_a_prefix_of_the_records() {
    let (text, _) = small();
    let whole = read(&text);
    let mut seen = 0;
    for len in 0..=text.len() {
        let mut reader = Reader::open("a.jsonl", &text[..len]).expect("torn is not foreign");
        let records: Vec<_> = reader.by_ref().map(|entry| entry.expect("torn is no error").record).collect();
        assert_eq!(records, whole[..records.len()], "{len} bytes");
        assert!(records.len() >= seen, "{len} bytes");
        let is_cut = len > 0 && text[len - 1] != b'\n';
        assert_eq!(reader.is_torn(), is_cut, "{len} bytes");
        seen = records.len();
    }
    assert_eq!(seen, whole.len());
}

#[test]
fn zeros_after_the_end_are_torn() {
    // What a power failure leaves where a file grew before its bytes were there.
    let (mut text, records) = small();
    text.extend([0; 4096]);
    let mut reader = Reader::open("a.jsonl", &*text).expect("a segment");
    assert_eq!(reader.by_ref().filter(Result::is_ok).count(), records.len());
    assert!(reader.is_torn());
}

#[test]
fn a_line_that_is_too_long_is_passed_over() {
    let (text, records) = small();
    let max = text.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
    let read = |text: &[u8], max| {
        let mut reader = Reader::open_with("a.jsonl", text, max).expect("a segment");
        let entries: Vec<_> = reader.by_ref().collect();
        let problems = entries.iter().filter_map(|entry| entry.as_ref().err().map(ToString::to_string));
        let problems: Vec<_> = problems.collect();
        (entries.len() - problems.len(), problems, reader.is_torn())
    };
    assert_eq!(read(&text, max), (records.len(), Vec::new(), false), "the longest is not too long");
    let header = text.iter().position(|byte| *byte == b'\n').expect("lines") + 1;
    let long = [&text[..header], &vec![b'x'; 3 * max], b"\n", &text[header..]].concat();
    let problem = format!("a.jsonl:2: the line is longer than {max} bytes");
    assert_eq!(read(&long, max), (records.len(), vec![problem], false), "the others are read");
    let endless = [&*text, &vec![0; 3 * max]].concat();
    assert_eq!(read(&endless, max), (records.len(), Vec::new(), true), "without an end it is torn");
    let error = Reader::open_with("a.jsonl", &*text, 5).err().expect("not even a header").to_string();
    assert!(error.contains("no segment"), "{error}");

    // What nobody would read is not written.
    let (mut encoder, mut text, snapshot) = (encoder(), Vec::new(), snapshot(&two_rows(), 0.0));
    encoder.begin(&mut text).expect("written");
    let before = text.clone();
    let mut scored = scored(&snapshot, None, 1.0);
    scored.request.client_id = "x".repeat(LINE_BYTES_MAX);
    let error = encoder.scored(&scored, &mut text).expect_err("it is too long");
    assert!(error.to_string().contains("longer") && text == before, "{error}");
}

#[test]
fn only_the_last_snapshots_rosters_and_policies_are_kept() {
    // Two per decision: far more than are kept, and none that was written is missed.
    let (mut encoder, mut text) = (encoder(), Vec::new());
    encoder.begin(&mut text).expect("written");
    let version = |at: usize| named(&format!("p{at}"), "{}");
    let rosters = [two_rows(), two_rows()];
    let count = 3 * POLICIES_KEPT;
    let mut expectations = Vec::new();
    for at in 0..count {
        let snapshot = snapshot(&rosters[at % 2], 1.0);
        for asked in [at, at.saturating_sub(1)] {
            let scored = scored(&snapshot, Some(version(asked)), 1.0);
            encoder.scored(&scored, &mut text).expect("written");
            expectations.push(expected(&scored));
        }
    }
    let mut reader = Reader::open("a.jsonl", &*text).expect("a segment");
    let records: Vec<_> = reader.by_ref().map(|entry| entry.expect("it is sound").record).collect();
    assert!(records == expectations);
    let kept = reader.kept();
    assert_eq!(kept, [POLICIES_KEPT, SNAPSHOTS_KEPT, SNAPSHOTS_KEPT]);
    // A line that refers to what is long gone is named.
    let text = String::from_utf8(text).expect("text");
    let last = text.lines().last().expect("lines");
    let snapshot = serde_json::from_str::<Value>(last).expect("JSON")["snapshot"].to_string();
    let old = last.replace(&format!("\"snapshot\":{snapshot}"), "\"snapshot\":3");
    let found = problems(format!("{text}{old}\n").as_bytes());
    assert!(found.len() == 1 && found[0].contains("the snapshot 3 is not among the last 4"), "{found:?}");
}

#[test]
fn policies_with_large_configurations_are_forgotten_sooner() {
    const LARGE: usize = 20 << 20;
    let (mut encoder, mut text) = (encoder(), Vec::new());
    encoder.begin(&mut text).expect("written");
    let (snapshot, config) = (snapshot(&two_rows(), 1.0), format!("\"{}\"", "a".repeat(LARGE)));
    let names = ["a", "b", "a", "c", "d", "a", "d"];
    for name in names {
        encoder.scored(&scored(&snapshot, Some(named(name, &config)), 1.0), &mut text).expect("written");
    }
    let mut reader = Reader::open("a.jsonl", &*text).expect("a segment");
    let asked = |entry: Result<Entry, Error>| {
        let record = entry.expect("what it refers to is still there").record;
        record.course().asked.as_ref().expect("one was").name.clone()
    };
    assert_eq!(reader.by_ref().map(asked).collect::<Vec<_>>(), names);
    assert_eq!(reader.kept()[0], POLICIES_BYTES_KEPT / LARGE);
}

/// Replaces text in the one line that has it; says what is wrong then.
fn check(from: &str, to: &str, expected: &[&str]) {
    let (text, _) = small();
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains(from), "{from}");
    let found = problems(text.replacen(from, to, 1).as_bytes());
    assert_eq!(found.is_empty(), expected.is_empty(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{from} → {to}: {found}, not {expected}");
    }
}

#[test]
fn bad_lines_are_named_and_the_others_read() {
    check(r#"{"kind":"header","format":1"#, r#"{"kind":"header","format":2"#, &["a.jsonl: it has format 2"]);
    check(r#"{"kind":"header""#, r#"{"kind":"head""#, &["a.jsonl: it is no segment"]);
    check(r#"{"kind":"header""#, "garbage\n{", &["a.jsonl: it is no segment"]);
    check("\n", "\ngarbage\n", &["a.jsonl:2: it is no JSON object"]);
    check("\n", "\n{\"kind\":\"other\"}\n", &["a.jsonl:2: the kind \"other\" is unknown"]);
    check("\n", "\n{\"kind\":\"scoring\"}\n", &["a.jsonl:2: missing field"]);
    check("\n", "\n{\"kind\":\"scoring\n", &["a.jsonl:2: EOF"]);
    check("\n", "\n[\"scoring\"]\n", &["a.jsonl:2: it is no JSON object"]);
    check(r#""row":1,"id":"i1""#, r#""row":0,"id":"i1""#, &["a.jsonl:5: row 0 is \"i0\", not \"i1\""]);
    check(r#""row":1,"#, r#""row":2,"#, &["a.jsonl:5: row 2 is out of range"]);
    check(r#""committed":[1,0,1]"#, r#""committed":[1,2,1]"#, &["a.jsonl:5: committed names row 2"]);
    check(r#""score":0.0"#, r#""score":"nan""#, &["a.jsonl:5: the score is not a number"]);
    check(r#""score":0.0"#, r#""score":"x""#, &["a.jsonl:5: invalid value"]);
    check(r#""outcome":"ok""#, r#""outcome":"okay""#, &["a.jsonl:5: the outcome"]);
    check(r#""seed":"18446744073709551615""#, r#""seed":"x""#, &["a.jsonl:5: \"x\" is not a seed"]);
    check(
        r#""pending":[4294967295,"#,
        r#""pending":["#,
        &["a.jsonl:4: the column pending", "a.jsonl:5: the snapshot 3"],
    );
    check(
        r#"{"id":"i0""#,
        r#"{"id":"i2""#,
        &["a.jsonl:3: the roster is not ordered", "a.jsonl:4: the roster 2"],
    );
    check(r#""policy":1"#, r#""policy":77"#, &["a.jsonl:5: the policy 77"]);
    check(r#""by":"policy""#, r#""by":"fallback""#, &[]);
    check(
        r#""outcome":"ok""#,
        r#""outcome":"trap""#,
        &["a.jsonl:5: it is by a policy, whose outcome \"trap\""],
    );
    check(
        r#""outcome":"ok""#,
        r#""outcome":"open""#,
        &["a.jsonl:5: it is by a policy, whose outcome \"open\""],
    );
    check(r#""number":[0,1]"#, r#""number":[1,1]"#, &["t/1 stands in the cycle twice"]);
    check(r#""topics":["t"],"places":"#, r#""topics":["t","t"],"places":"#, &[]);
    check(r#""by":"fallback""#, r#""by":"policy""#, &["a.jsonl:8: it is by a policy"]);
    check(r#""owner":[-1,1]"#, r#""owner":[-1,2]"#, &["owner 2 is out of range"]);
    check(r#""topic":[0,0]"#, r#""topic":[0,1]"#, &["topic 1 is out of range"]);
    check(r#""moving":[0,1]"#, r#""moving":[0]"#, &["the column moving"]);
    check(r#""member":[1,0,1]"#, r#""member":[1,0]"#, &["the column member"]);
    check(r#""member":[1,0,1]"#, r#""member":[1,0,2]"#, &["member 2 is out of range"]);
    check(r#""partition":[0,1,1]"#, r#""partition":[0,1,2]"#, &["partition 2 is out of range"]);
    check(r#""reason":[0,1,0]"#, r#""reason":[0,1,2]"#, &["reason 2 is out of range"]);
    check(r#""releases":[1]"#, r#""releases":[2]"#, &["partition 2 is out of range"]);
    check(r#""reason":"join""#, r#""reason":"joy""#, &["the reason \"joy\" is unknown"]);
    check(r#""nanos":1234"#, r#""nanos":1234,"added":"later""#, &[]);
}

/// Any float, the odd ones often.
fn float() -> impl Strategy<Value = f64> {
    let odd = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, 5e-324, f64::MAX, 0.1 + 0.2];
    prop_oneof![
        prop::sample::select(odd.to_vec()),
        any::<f64>().prop_filter("a number", |value| !value.is_nan())
    ]
}

fn bits(loads: &Loads) -> Vec<u64> {
    [&loads.inflow, &loads.outflow, &loads.cpu].into_iter().flatten().map(|value| value.to_bits()).collect()
}

proptest! {
    #[test]
    fn scoring_is_read_back_bit_for_bit(
        rows in prop::collection::vec(("\\PC{0,8}", float(), any::<u64>()), 1..5),
        columns in prop::collection::vec((any::<u32>(), float(), float(), float(), any::<u32>(), any::<u8>()), 5),
        client in ("\\PC{0,12}", float(), float(), any::<u64>(), any::<u64>()),
        score in float(),
        picks in prop::collection::vec(0_u32..5, 0..6),
        config in float(),
    ) {
        let row = |(at, (zone, capacity, age_ms)): (usize, &(String, f64, u64))| Instance {
            id: Arc::from(format!("{at}{zone}")),
            zone: zone.clone(),
            capacity: *capacity,
            labels: vec![(zone.clone(), zone.clone())],
            age_ms: *age_ms,
        };
        let roster = Arc::new(Roster::new(rows.iter().enumerate().map(row).collect()).expect("ids differ"));
        let len = roster.len();
        let columns = &columns[..len];
        let loads = Loads {
            sessions: columns.iter().map(|column| column.0).collect(),
            inflow: columns.iter().map(|column| column.1).collect(),
            outflow: columns.iter().map(|column| column.2).collect(),
            cpu: columns.iter().map(|column| column.3).collect(),
            heartbeat_age_ms: columns.iter().map(|column| column.4).collect(),
            pending: columns.iter().map(|column| column.4).collect(),
            flags: columns.iter().map(|column| column.5).collect(),
        };
        let snapshot = Arc::new(ScoringSnapshot { roster, loads, roster_revision: 0 });
        let config = if config.is_finite() { serde_json::json!({ "x": config }) } else { Value::Null };
        let mut scored = scored(&snapshot, Some(named("p", &config.to_string())), score);
        scored.decision.recommendation.row = len - 1;
        scored.committed = picks.into_iter().filter(|row| (*row as usize) < len).collect();
        scored.request = OwnedRequest {
            client_id: client.0, client_inflow: client.1, client_outflow: client.2, now_ms: client.3, seed: client.4,
            ..OwnedRequest::default()
        };
        let (mut encoder, mut text) = (encoder(), Vec::new());
        encoder.begin(&mut text).expect("written");
        encoder.scored(&scored, &mut text).expect("written");
        let records = read(&text);
        prop_assert_eq!(&records, &[expected(&scored)]);
        let Record::Scoring(found) = &records[0] else { panic!("another kind") };
        prop_assert_eq!(bits(&found.snapshot.loads), bits(&snapshot.loads));
        prop_assert_eq!(found.answer.score.get().to_bits(), score.to_bits());
        prop_assert_eq!(found.request.client_outflow.to_bits(), scored.request.client_outflow.to_bits());
        let capacities = |roster: &Roster| roster.rows().iter().map(|row| row.capacity.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(capacities(&found.snapshot.roster), capacities(&snapshot.roster));
    }

    #[test]
    fn cycles_are_read_back_bit_for_bit(
        weights in prop::collection::vec(float(), 2),
        capacity in float(),
        words in prop::collection::vec("\\PC{0,6}", 3),
        numbers in (any::<u64>(), any::<u64>(), any::<u32>()),
        next in any::<Option<u32>>(),
        reason in 0..Reason::WORDS.len(),
    ) {
        let mut cycle = small_cycle();
        cycle.weight = weights;
        cycle.members[0].capacity = capacity;
        cycle.topics = vec![words[0].clone()];
        (cycle.seed, cycle.now_ms) = (numbers.0, numbers.1);
        (cycle.movement_budget, cycle.reason) = (Some(numbers.2), Reason::WORDS[reason].0);
        let mut plan = small_plan();
        plan.next_cycle_ms = next;
        for (claim, word) in plan.claims.iter_mut().zip(&words) {
            claim.reason = word.clone();
        }
        let (mut encoder, mut text) = (encoder(), Vec::new());
        encoder.begin(&mut text).expect("written");
        encoder.claimed(&claimed(cycle.clone(), plan.clone(), None), &mut text).expect("written");
        let text = String::from_utf8(text).expect("text");
        let records = read(text.as_bytes());
        let Record::Claiming(found) = &records[0] else { panic!("another kind") };
        prop_assert_eq!((&found.cycle, &found.plan), (&cycle, &plan));
        let bits = |cycle: &Cycle| cycle.weight.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&found.cycle), bits(&cycle));
    }

    #[test]
    fn no_text_makes_the_reader_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let (mut text, _) = small();
        let at = at.index(text.len());
        if cut { let _ = text.remove(at); } else { text[at] = byte; }
        let name = "a.jsonl";
        if let Ok(reader) = Reader::open(name, &*text) {
            for entry in reader {
                if let Err(error) = entry {
                    prop_assert!(error.to_string().starts_with(name));
                }
            }
        }
    }
}
