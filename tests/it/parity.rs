//! Native `logic.rs` and its prebuilt component answer the same, bit for bit: rows, scores, explanations, refusals.
//!
//! Both run side by side behind the guests' own trait, so that the guests' own property check drives them.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fulcrum_core::scoring as host;
use fulcrum_guest::testing;
use fulcrum_guest::{Description, Error, Loads, Recommendation, Request, Row, ScoreParts, Scoring};
use fulcrum_policy::failure::{Declared, Failure};
use fulcrum_policy::seat::{ExplainedRow, ScoringFactory, ScoringPolicy};
use fulcrum_policy::{Artifact, Limits, Runtime};
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::support::*;

/// Worlds tried per policy, configuration and seed.
const WORLDS: u32 = 150;

/// A policy twice: native, and as its prebuilt component.
struct Both<P> {
    native: P,
    wasm: Box<dyn ScoringPolicy>,
}

/// Which artifact belongs to a native policy.
trait Prebuilt: Scoring {
    fn artifact() -> &'static Arc<Artifact>;
}

impl Prebuilt for weighted::logic::Weighted {
    fn artifact() -> &'static Arc<Artifact> {
        static ARTIFACT: LazyLock<Arc<Artifact>> = LazyLock::new(|| prebuilt("weighted"));
        &ARTIFACT
    }
}

impl Prebuilt for p2c::logic::P2c {
    fn artifact() -> &'static Arc<Artifact> {
        static ARTIFACT: LazyLock<Arc<Artifact>> = LazyLock::new(|| prebuilt("p2c"));
        &ARTIFACT
    }
}

fn prebuilt(name: &str) -> Arc<Artifact> {
    static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
        // What is compared are answers, not how busy this machine is.
        let limits = Limits { scoring_deadline: Duration::from_secs(10), ..Limits::default() };
        Runtime::new(limits).expect("the engine starts")
    });
    let wasm = fulcrum::embedded::find(name).expect("it is embedded");
    Artifact::load(&RUNTIME, wasm).expect("a prebuilt component loads")
}

impl<P: Prebuilt> Scoring for Both<P> {
    fn describe() -> Description {
        P::describe()
    }

    fn configure(config: &str) -> Result<Self, Error> {
        let value = serde_json::from_str(config).expect("configurations of tests are JSON");
        let loaded = P::artifact().configured("parity", value).expect("configurations of tests are good");
        Ok(Self { native: P::configure(config)?, wasm: loaded.make().expect("an instance starts") })
    }

    fn roster(&mut self, rows: Vec<Row>) -> Result<(), Error> {
        let row = |row: &Row| host::Instance {
            id: Arc::from(&*row.id),
            zone: row.zone.clone(),
            capacity: row.capacity,
            labels: row.labels.clone(),
            age_ms: row.age_ms,
        };
        let roster = host::Roster::new(rows.iter().map(row).collect()).expect("generated ids differ");
        let wasm = self.wasm.roster(&roster).map_err(declared);
        same(self.native.roster(rows), &wasm)
    }

    fn refresh(&mut self, loads: Loads) -> Result<(), Error> {
        let Loads { sessions, inflow, outflow, cpu, heartbeat_age_ms, pending, flags } = loads.clone();
        let columns = host::Loads { sessions, inflow, outflow, cpu, heartbeat_age_ms, pending, flags };
        let wasm = self.wasm.refresh(&columns).map_err(declared);
        same(self.native.refresh(loads), &wasm)
    }

    fn recommend(&mut self, request: &Request<'_>) -> Result<Recommendation, Error> {
        let wasm = self.wasm.recommend(&lowered(request), request.committed).map_err(declared);
        let native = self.native.recommend(request);
        let bits = |row: u32, score: f64| (row, score.to_bits());
        same(
            native.clone().map(|answer| bits(answer.row, answer.score)),
            &wasm.map(|answer| bits(answer.row, answer.score)),
        )?;
        native
    }

    fn explain(&mut self, request: &Request<'_>) -> Result<Vec<ScoreParts>, Error> {
        let wasm = self.wasm.explain(&lowered(request), request.committed).map_err(declared);
        let wasm = wasm.map(|rows| rows.expect("the default policies explain"));
        let native = self.native.explain(request);
        same(native.clone().map(|rows| native_bits(&rows)), &wasm.map(|rows| wasm_bits(&rows)))?;
        native
    }
}

/// Fails unless both are the same.
#[track_caller]
fn same<T: PartialEq + std::fmt::Debug>(
    native: Result<T, Error>,
    wasm: &Result<T, Error>,
) -> Result<T, Error> {
    assert_eq!(&native, wasm, "left is native, right is wasm");
    native
}

type Bits = Vec<(u32, u64, Vec<(String, u64)>)>;

fn native_bits(rows: &[ScoreParts]) -> Bits {
    let part = |(name, value): &(Cow<'static, str>, f64)| (name.to_string(), value.to_bits());
    rows.iter().map(|row| (row.row, row.score.to_bits(), row.parts.iter().map(part).collect())).collect()
}

fn wasm_bits(rows: &[ExplainedRow]) -> Bits {
    let part = |(name, value): &(String, f64)| (name.clone(), value.to_bits());
    rows.iter().map(|(row, parts)| (row.row, row.score.to_bits(), parts.iter().map(part).collect())).collect()
}

fn lowered<'a>(request: &Request<'a>) -> host::Request<'a> {
    host::Request {
        client_id: request.client_id,
        session_rows: request.session_rows,
        session_counts: request.session_counts,
        client_inflow: request.client_inflow,
        client_outflow: request.client_outflow,
        avoid: request.avoid,
        now_ms: request.now_ms,
        seed: request.seed,
    }
}

/// The guest's error of a failure; a crash is none.
fn declared(failure: Failure) -> Error {
    match failure {
        Failure::Declared(Declared::InvalidConfig(text)) => Error::InvalidConfig(text),
        Failure::Declared(Declared::InvalidInput(text)) => Error::InvalidInput(text),
        Failure::Declared(Declared::NoCandidate) => Error::NoCandidate,
        Failure::Declared(Declared::Unsupported) => Error::Unsupported,
        Failure::Declared(Declared::Failed(text)) => Error::Failed(text),
        crash => panic!("the component {crash}"),
    }
}

fn holds<P: Prebuilt>(configs: &[&str]) {
    // One seed that is always the same, and one that nobody has tried yet.
    let seeds = [test_seed(), now_ms()];
    for (seed, config) in seeds.into_iter().flat_map(|seed| configs.iter().map(move |config| (seed, config)))
    {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut runner = TestRunner::new_with_rng(
            Config { cases: WORLDS, failure_persistence: None, ..Config::default() },
            TestRng::from_seed(RngAlgorithm::ChaCha, &bytes),
        );
        let tried = runner.run(&(testing::worlds(), testing::calls()), |(world, calls)| {
            testing::check::<Both<P>>(config, &world, &calls, |_, _, _| {});
            Ok(())
        });
        match tried {
            Ok(()) => {}
            Err(TestError::Fail(why, input)) => panic!("seed {seed}, {config}: {why} for {input:#?}"),
            Err(error) => panic!("seed {seed}, {config}: {error}"),
        }
    }
}

#[test]
fn weighted_is_the_same_natively() {
    holds::<weighted::logic::Weighted>(&[
        "{}",
        r#"{"overload":"smooth","overloadWidth":0.5,"pendingWeight":3,"clientTrafficWeight":2}"#,
    ]);
}

#[test]
fn p2c_is_the_same_natively() {
    holds::<p2c::logic::P2c>(&[
        "{}",
        r#"{"choices":1}"#,
        r#"{"choices":16,"overload":"cliff","byteWeight":0}"#,
    ]);
}

#[test]
fn bad_input_is_refused_with_the_same_words() {
    fn check<P: Prebuilt>() {
        let mut both: Both<P> = testing::policy("{}", &[1.0, 2.0], testing::idle(2));
        let base = Request::default();
        for request in [
            Request { avoid: &[2], ..base },
            Request { avoid: &[1, 0], ..base },
            Request { session_rows: &[0], ..base },
            Request { session_rows: &[0], session_counts: &[0], ..base },
            Request { client_inflow: f64::NAN, ..base },
            Request { committed: &[2], ..base },
        ] {
            assert!(matches!(both.recommend(&request), Err(Error::InvalidInput(_))), "{request:?}");
            assert!(matches!(both.explain(&request), Err(Error::InvalidInput(_))), "{request:?}");
        }
        assert!(matches!(both.refresh(testing::idle(3)), Err(Error::InvalidInput(_))));
        assert_eq!(both.recommend(&Request { avoid: &[0, 1], ..base }), Err(Error::NoCandidate));
        assert!(both.recommend(&base).is_ok(), "it lives on");
    }
    check::<weighted::logic::Weighted>();
    check::<p2c::logic::P2c>();
}

#[test]
fn descriptions_are_the_same() {
    fn check<P: Prebuilt>() {
        let (native, wasm) = (P::describe(), P::artifact().describe());
        assert_eq!((native.name, native.version), (&*wasm.name, &*wasm.version));
        assert_eq!((native.summary, native.config_schema), (&*wasm.summary, &*wasm.config_schema));
    }
    check::<weighted::logic::Weighted>();
    check::<p2c::logic::P2c>();
}
