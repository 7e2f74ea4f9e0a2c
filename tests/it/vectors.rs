//! EventMesh's own figures: its scores and choices through our `weighted`, and the herd that must not be ours.
//!
//! Every case is used: scored by `fulcrum policy eval`, or refused at the door of a running host, or answered with
//! the host itself because nobody lives.

use serde_json::{Value, json};

use crate::support::*;

const RECOMMEND: &str = include_str!("../vectors/eventmesh/recommend.json");
const HERD: &str = include_str!("../vectors/eventmesh/herd.json");
const LOAD_FIELDS: [&str; 4] = ["activeSessions", "inflowBytesPerSec", "outflowBytesPerSec", "cpuLoad"];

/// One case of `recommend.json`.
struct Case {
    name: String,
    now_ms: u64,
    ttl_ms: u64,
    own_address: String,
    records: Vec<Record>,
    live: Vec<Live>,
    chosen: Option<String>,
    tied: Vec<String>,
    url: String,
}

/// A heartbeat record: `ts|address[|activeSessions|inflowBytesPerSec|outflowBytesPerSec|cpuLoad]`.
struct Record {
    id: String,
    timestamp_ms: Option<u64>,
    address: String,
    load: Vec<String>,
}

/// An instance that EventMesh considers alive.
struct Live {
    id: String,
    /// Not a number where EventMesh's score is none.
    score: f64,
    load_known: bool,
}

/// What a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Scored and chosen by `policy eval`.
    Eval,
    /// Its negative or non-number load is refused by a host.
    Refused,
    /// Nobody lives.
    Nobody,
}

impl Case {
    fn all() -> Vec<Self> {
        let document: Value = serde_json::from_str(RECOMMEND).unwrap();
        document["cases"].as_array().unwrap().iter().map(Self::read).collect()
    }

    fn read(case: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let live = |(id, row): (&String, &Value)| Live {
            id: id.clone(),
            score: row["score"].as_f64().unwrap_or(f64::NAN),
            load_known: row["load_known"].as_bool().unwrap(),
        };
        let expect = &case["expect"];
        Self {
            name: text(&case["name"]),
            now_ms: case["now_ms"].as_u64().unwrap(),
            ttl_ms: case["ttl_ms"].as_u64().unwrap(),
            own_address: text(&case["self_address"]),
            records: case["heartbeats"].as_array().unwrap().iter().map(Record::read).collect(),
            live: expect["live"].as_object().unwrap().iter().map(live).collect(),
            chosen: expect["chosen"].as_str().map(str::to_owned),
            tied: expect["tied"].as_array().unwrap().iter().map(text).collect(),
            url: text(&expect["instance_url"]),
        }
    }

    fn used_for(&self) -> Use {
        if self.live.iter().any(|row| row.load_known && self.record(&row.id).is_nonsense()) {
            Use::Refused
        } else if self.live.is_empty() {
            Use::Nobody
        } else {
            Use::Eval
        }
    }

    fn record(&self, id: &str) -> &Record {
        self.records.iter().find(|record| record.id == id).expect("a live row has a record")
    }

    /// The question for `policy eval`: the live rows, all of them excluded but `only`.
    fn question(&self, only: Option<&str>) -> Value {
        let roster: Vec<_> = self.live.iter().map(|row| json!({ "id": row.id })).collect();
        let load = |row: &Live| {
            let numbers = row.load_known.then(|| self.record(&row.id).numbers());
            numbers.map_or(Value::Null, |numbers| load_fields(numbers.map(|number| json!(number))))
        };
        let loads: Vec<_> = self.live.iter().map(load).collect();
        let others = self.live.iter().filter(|row| only.is_some_and(|only| only != row.id));
        let exclude: Vec<_> = others.map(|row| &row.id).collect();
        json!({ "roster": roster, "loads": loads, "request": { "exclude": exclude, "nowMs": self.now_ms } })
    }
}

impl Record {
    fn read(record: &Value) -> Self {
        let mut fields = record["value"].as_str().unwrap().split('|');
        Self {
            id: record["id"].as_str().unwrap().to_owned(),
            timestamp_ms: fields.next().and_then(|field| field.parse().ok()),
            address: fields.next().unwrap_or_default().to_owned(),
            load: fields.map(|field| field.trim().to_owned()).collect(),
        }
    }

    /// The four load figures; what is not given is 0, as for EventMesh.
    fn numbers(&self) -> [f64; 4] {
        std::array::from_fn(|at| self.load.get(at).map_or(0.0, |field| field.parse().expect("a number")))
    }

    /// Whether it holds numbers that are negative or none.
    fn is_nonsense(&self) -> bool {
        self.numbers().iter().any(|number| number.is_nan() || *number < 0.0)
    }

    /// Whether a figure is given that cannot be read as a number.
    fn is_unreadable(&self) -> bool {
        self.load.len() == 4 && self.load.iter().any(|field| field.parse::<f64>().is_err())
    }

    /// The same heartbeat for our host; what JSON has no number for stays text.
    fn body(&self) -> Value {
        let number = |at: usize| {
            let field = self.load.get(at).map_or("0", String::as_str);
            let number = field.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
            number.map_or_else(|| json!(field), Value::Number)
        };
        let mut body =
            if self.load.is_empty() { json!({}) } else { load_fields(std::array::from_fn(number)) };
        body["address"] = json!(self.address);
        body
    }
}

fn load_fields(values: [Value; 4]) -> Value {
    // EventMesh counts sessions in whole numbers, and so do we.
    let whole =
        |value: Value| value.as_f64().filter(|number| *number >= 0.0).map_or(value, |n| json!(n as u64));
    let [sessions, rest @ ..] = values;
    LOAD_FIELDS.map(str::to_owned).into_iter().zip([whole(sessions)].into_iter().chain(rest)).collect()
}

fn is_close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}

async fn eval(policy: &str, questions: &[Value]) -> Ended {
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    fulcrum(&["policy", "eval", policy, "--role", "scoring"], &lines).await
}

/// A host whose own row takes part only where the case says so: it drains, so that only the others are chosen.
async fn host_of(case: &Case) -> Host {
    let advertise = (!case.own_address.is_empty()).then(|| case.own_address.parse().unwrap());
    let host = Host::with(|config| {
        config.policy.scoring = "weighted".to_owned();
        config.host.advertise = advertise;
        config.heartbeat.ttl_ms = case.ttl_ms;
    })
    .await;
    if !case.own_address.is_empty() {
        host.post(&format!("/instances/{}/drain", case.own_address), &json!({})).await.ok();
    }
    host
}

#[test]
fn every_case_has_its_use() {
    let cases = Case::all();
    let count = |of: Use| cases.iter().filter(|case| case.used_for() == of).count();
    assert_eq!(cases.len(), 104);
    assert_eq!((count(Use::Eval), count(Use::Refused), count(Use::Nobody)), (97, 3, 4));
}

#[test]
fn scores_and_choices_are_those_of_eventmesh() {
    run(async {
        let cases: Vec<_> = Case::all().into_iter().filter(|case| case.used_for() == Use::Eval).collect();
        let mut questions = Vec::new();
        for case in &cases {
            questions.push(case.question(None));
            questions.extend(case.live.iter().map(|row| case.question(Some(&row.id))));
        }
        let ended = eval("weighted", &questions).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let mut answers = ended.lines().into_iter();
        let mut rows = 0;
        for case in &cases {
            let choice = answers.next().expect("one answer per line");
            let id = choice["id"].as_str().expect("somebody lives");
            assert!(case.tied.iter().any(|tied| tied == id), "{}: {choice}", case.name);
            for row in &case.live {
                let answer = answers.next().expect("one answer per line");
                let score = answer["score"].as_f64().expect("a number");
                assert_eq!(answer["id"], row.id, "{}", case.name);
                assert!(is_close(score, row.score), "{}: {answer} instead of {}", case.name, row.score);
                rows += 1;
                if row.id == id {
                    assert_eq!(choice["score"], answer["score"], "{}", case.name);
                }
            }
        }
        assert_eq!(answers.next(), None);
        println!("{} cases and the scores of {rows} rows are EventMesh's", cases.len());
    });
}

#[test]
fn nonsense_loads_are_refused_at_the_door() {
    run(async {
        for case in Case::all().into_iter().filter(|case| case.used_for() == Use::Refused) {
            let host = host_of(&case).await;
            let mut refused = Vec::new();
            for record in &case.records {
                let path = format!("/instances/{}", record.id);
                let answer = host.put(&path, &record.body()).await;
                if record.is_nonsense() {
                    answer.refused(400, "invalid_value");
                    // NaN as many JSON writers put it.
                    let body = record.body().to_string().replace("\"NaN\"", "NaN");
                    let request = host.request(reqwest::Method::PUT, &path).body(body.clone());
                    let code = if body.contains("NaN") { "invalid_json" } else { "invalid_value" };
                    host.send(request.header("content-type", "application/json")).await.refused(400, code);
                    refused.push(record.id.clone());
                } else {
                    answer.ok();
                }
            }
            assert_eq!(refused.len(), 1, "{}", case.name);
            let answer = host.recommend("clientId=c").await;
            match &case.chosen {
                // Upstream takes negative loads and prefers them.
                Some(chosen) if !refused.contains(chosen) => {
                    assert_eq!(answer["instanceUrl"], case.url, "{}", case.name);
                }
                Some(_) => assert_eq!(answer["instanceUrl"], "http://h2:1", "{}", case.name),
                None => assert_eq!(answer["instanceUrl"], case.url, "{}", case.name),
            }
            host.stop().await;
        }
    });
}

#[test]
fn other_records_that_are_none_are_refused_too() {
    run(async {
        let host = Host::with(|config| config.heartbeat.ttl_ms = 15_000).await;
        let (mut future, mut unreadable) = (0, 0);
        for case in Case::all() {
            for record in &case.records {
                let path = format!("/instances/{}", record.id);
                if record.timestamp_ms.is_some_and(|at| at > case.now_ms) {
                    let ahead_ms = record.timestamp_ms.unwrap() - case.now_ms;
                    let mut body = record.body();
                    body["timestampMs"] = json!(now_ms() + ahead_ms);
                    host.put(&path, &body).await.refused(400, "timestamp_in_future");
                    future += 1;
                }
                if record.is_unreadable() {
                    let mut body = record.body();
                    body["address"] = json!("h:1");
                    let answer = host.put(&path, &body).await;
                    let message = answer.refused(400, "invalid_value");
                    assert!(LOAD_FIELDS.iter().any(|field| message.starts_with(field)), "{message}");
                    unreadable += 1;
                }
            }
        }
        assert_eq!((future, unreadable), (1, 19));
        assert_eq!(host.get("/instances?all=1").await.ok(), json!([]), "nothing of it was taken in");
        host.stop().await;
    });
}

#[test]
fn with_nobody_alive_the_host_names_itself() {
    run(async {
        let cases: Vec<_> = Case::all().into_iter().filter(|case| case.used_for() == Use::Nobody).collect();
        let questions: Vec<_> = cases.iter().map(|case| case.question(None)).collect();
        let ended = eval("weighted", &questions).await;
        assert_eq!(ended.code, Some(1));
        assert!(ended.lines().iter().all(|line| line["code"] == "no_candidate"), "{ended:?}");
        let mut urls = Vec::new();
        for case in cases {
            let host = host_of(&case).await;
            for record in &case.records {
                let mut body = record.body();
                let age_ms = case.now_ms - record.timestamp_ms.expect("they have one");
                assert!(age_ms > case.ttl_ms);
                // Some are dead by one millisecond, and no two clocks agree that well.
                body["timestampMs"] = json!(now_ms() - age_ms - 1000);
                let answer = host.put(&format!("/instances/{}", record.id), &body).await;
                answer.refused(400, "timestamp_too_old");
            }
            let answer = host.recommend("clientId=c").await;
            let nobody = json!({ "instanceUrl": case.url, "instanceId": "", "score": null, "policy": "", "digest": "" });
            assert_eq!(answer, nobody, "{}", case.name);
            urls.push(case.url);
            host.stop().await;
        }
        assert!(urls.iter().any(String::is_empty) && urls.iter().any(|url| !url.is_empty()), "{urls:?}");
    });
}

/// The gap between the most and the fewest sessions, at the start and after each pick.
fn gaps(start: &[i64], picks: &[Value]) -> Vec<i64> {
    let mut sessions = start.to_vec();
    let gap = |sessions: &[i64]| sessions.iter().max().unwrap() - sessions.iter().min().unwrap();
    let mut gaps = vec![gap(&sessions)];
    for pick in picks {
        let row: usize = pick.as_str().unwrap().parse().expect("ids are row numbers");
        sessions[row] += 1;
        gaps.push(gap(&sessions));
    }
    gaps
}

/// All arrivals between two heartbeats, the worst there is.
fn arrivals(start: &[i64], requests: i64, seed: u64) -> Value {
    let ids: Vec<_> = (0..start.len()).map(|row| json!({ "id": row.to_string() })).collect();
    let loads: Vec<_> = start.iter().map(|sessions| json!({ "activeSessions": sessions })).collect();
    json!({ "roster": ids, "loads": loads, "request": { "seed": seed }, "requests": requests })
}

#[test]
fn the_herd_is_not_ours() {
    run(async {
        let document: Value = serde_json::from_str(HERD).unwrap();
        let cases = document["cases"].as_array().unwrap();
        let worst = cases.iter().find(|case| case["arrivals_per_heartbeat_period"] == 300).unwrap();
        assert_eq!(
            (&worst["largest_gap_seen"], &worst["gap_at_end"]),
            (&json!(300), &json!(300)),
            "the fault"
        );

        let starts: Vec<Vec<i64>> = cases
            .iter()
            .map(|case| {
                case["sessions_at_start"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
            })
            .collect();
        let questions: Vec<_> = cases
            .iter()
            .zip(&starts)
            .map(|(case, start)| arrivals(start, case["arrivals"].as_i64().unwrap(), 0))
            .collect();
        let ended = eval("weighted", &questions).await;
        let lines = ended.lines();
        assert_eq!((ended.code, lines.len()), (Some(0), cases.len()));
        for ((case, start), line) in cases.iter().zip(&starts).zip(lines) {
            let picks = line["picks"].as_array().unwrap();
            assert_eq!(picks.len() as i64, case["arrivals"].as_i64().unwrap());
            let gaps = gaps(start, picks);
            let largest = *gaps.iter().max().unwrap();
            // Nobody can do better than what is there at the start.
            assert!(largest <= gaps[0].max(3), "{largest} from {start:?}");
            assert!(*gaps.last().unwrap() <= 1, "{gaps:?}");
            assert!(*gaps.last().unwrap() <= case["gap_at_end"].as_i64().unwrap());
        }
    });
}

#[test]
fn two_choices_spread_too() {
    run(async {
        // Neighbouring seeds share most of their chance, distant ones none.
        let seeds: Vec<u64> = (0..32).chain((1..=32).map(|seed| seed * 1_000_003)).collect();
        let questions: Vec<_> = seeds.iter().map(|seed| arrivals(&[0; 3], 300, *seed)).collect();
        let ended = eval("p2c", &questions).await;
        let lines = ended.lines();
        assert_eq!((ended.code, lines.len()), (Some(0), seeds.len()));
        let mut largest = 0;
        for (seed, line) in seeds.iter().zip(lines) {
            let gaps = gaps(&[0; 3], line["picks"].as_array().unwrap());
            let end = *gaps.last().unwrap();
            assert!(end <= 5, "seed {seed} ends with a gap of {end}");
            largest = largest.max(*gaps.iter().max().unwrap());
        }
        println!("p2c: largest gap at any moment over {} seeds: {largest}", seeds.len());
    });
}
