//! The command line, as the real binary: what it prints, where, and how it ends.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::*;

/// Files for a command to work on.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, file: &str) -> String {
        self.0.path().join(file).to_str().unwrap().to_owned()
    }

    fn put(&self, file: &str, bytes: &[u8]) -> String {
        std::fs::write(self.0.path().join(file), bytes).unwrap();
        self.path(file)
    }
}

/// Writes an embedded policy into a file, as it lies in `policies/prebuilt`.
fn prebuilt(files: &Files, name: &str) -> String {
    files.put(&format!("{name}.wasm"), fulcrum::embedded::find(name).unwrap())
}

/// Checks a failure: exit code 1, nothing of a success on stdout, and all `words` in the message.
#[track_caller]
fn fails(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.starts_with("error: "), "{ended:?}");
    for word in words {
        assert!(ended.err.contains(word), "{word:?} is not in {ended:?}");
    }
}

#[test]
fn serve_says_where_it_listens_and_ends_on_a_signal() {
    run(async {
        for signal in ["TERM", "INT"] {
            let mut process = Process::serve(&["--advertise", "lb.test:0"]).await;
            let port =
                process.first_line.strip_prefix("listening on http://127.0.0.1:").expect("the first line");
            assert_ne!(port.parse::<u16>().unwrap(), 0);
            assert_eq!(process.get("/healthz").await.ok(), json!({ "status": "ok" }));
            assert_eq!(process.recommend("").await["instanceUrl"], format!("http://lb.test:{port}"));
            process.signal(signal);
            assert_eq!(process.ended().await, Some(0), "{}", process.log());
            assert!(process.log().contains("host has stopped"), "{}", process.log());
        }
    });
}

#[test]
fn serve_waits_for_what_runs_but_not_for_ever() {
    run(async {
        let mut process = Process::serve(&["--set", "drain_ms=300"]).await;
        // A request whose body never comes.
        let address = process.url().strip_prefix("http://").unwrap();
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = b"PUT /instances/a HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
        tokio::io::AsyncWriteExt::write_all(&mut stream, head).await.unwrap();
        // It is counted as soon as its head is read.
        let is_in = r#"fulcrum_http_body_bytes_total{direction="in"} 9"#;
        let read =
            async || process.get("/metrics").await.text.lines().any(|line| line == is_in).then_some(());
        eventually("the request has begun", SOON, read).await;
        process.signal("TERM");
        assert_eq!(process.ended().await, Some(0), "{}", process.log());
        assert!(process.log().contains("cut off"), "{}", process.log());
    });
}

#[test]
fn serve_refuses_to_be_open_to_everybody() {
    run(async {
        let files = Files::new();
        let data = files.path("data");
        for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            let ended = fulcrum(&["serve", "--listen", listen, "--data-dir", &data], "").await;
            fails(&ended, &[listen, "running code", "--insecure", "127.0.0.1"]);
            assert_eq!(ended.out, "");
        }
        assert!(!Path::new(&data).exists(), "nothing was started");
        fulcrum(&["config", "check", "--listen", "0.0.0.0:0", "--insecure"], "").await.ok();
    });
}

#[test]
fn serve_names_every_problem_before_it_starts() {
    run(async {
        let files = Files::new();
        let config = files.put("f.toml", b"listne = \"127.0.0.1:0\"\n[policy]\npoll_ms = 1\n");
        let ended = fulcrum(
            &["serve", "--config", &config, "--set", "capacity=-1", "--data-dir", &files.path("d")],
            "",
        )
        .await;
        fails(&ended, &["3 problems", "did you mean listen?", "policy.poll_ms (file)", "capacity (flag)"]);
        assert!(!Path::new(&files.path("d")).exists());
        fails(
            &fulcrum(&["serve", "--config", &files.path("none.toml")], "").await,
            &["cannot read", "none.toml"],
        );

        let process = Process::serve(&[]).await;
        let address = process.url().strip_prefix("http://").unwrap();
        let ended = fulcrum(&["serve", "--listen", address, "--data-dir", &files.path("d")], "").await;
        fails(&ended, &["cannot listen on", address]);
    });
}

#[test]
fn config_is_checked_and_printed() {
    run(async {
        let files = Files::new();
        assert_eq!(fulcrum(&["config", "check"], "").await.ok(), "the configuration is valid\n");
        let config = files.put("f.toml", b"[policy]\npoll_ms = 500\nscoring = \"weighted\"\n");
        let printed =
            fulcrum(&["config", "print", "--config", &config, "--set", "policy.poll_ms=700"], "").await.ok();
        for line in [
            "poll_ms = 700",
            "# From flag; environment: FULCRUM_POLICY_POLL_MS",
            "scoring = \"weighted\"",
            "# From file; environment: FULCRUM_POLICY_SCORING",
            "listen = \"127.0.0.1:8080\"",
            "# advertise is not set",
        ] {
            assert!(printed.lines().any(|found| found == line), "{line:?} is not in {printed}");
        }
        let again = files.put("again.toml", printed.as_bytes());
        let values = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let reprinted = fulcrum(&["config", "print", "--config", &again], "").await.ok();
        assert_eq!(values(&reprinted), values(&printed));
        let bad = files.put("bad.toml", b"[heartbeat]\nttl_ms = 10\n");
        fails(
            &fulcrum(&["config", "check", "--config", &bad], "").await,
            &["heartbeat.ttl_ms (file)", "out of range"],
        );
    });
}

#[test]
fn policies_are_listed_and_described() {
    run(async {
        let files = Files::new();
        let listed = fulcrum(&["policy", "list"], "").await.ok();
        let documents: Value =
            serde_json::from_str(&fulcrum(&["policy", "list", "--json"], "").await.ok()).unwrap();
        let documents = documents.as_array().unwrap();
        assert!(listed.starts_with("NAME") && listed.lines().count() == documents.len() + 1, "{listed}");
        for (policy, line) in fulcrum::embedded::policies().iter().zip(listed.lines().skip(1)) {
            let document = documents.iter().find(|document| document["name"] == policy.name).unwrap();
            assert_eq!(document["digest"], digest(policy.wasm));
            assert_eq!(document["sizeBytes"], policy.wasm.len());
            assert!(line.starts_with(policy.name) && line.contains(&digest(policy.wasm)[..12]), "{line}");
        }

        let text = fulcrum(&["policy", "describe", "weighted"], "").await.ok();
        assert!(
            text.starts_with("weighted ") && text.contains("sessionWeight") && text.contains("JSON Schema"),
            "{text}"
        );
        let described =
            fulcrum(&["policy", "describe", &prebuilt(&files, "weighted"), "--json"], "").await.ok();
        let described: Value = serde_json::from_str(&described).unwrap();
        assert_eq!((&described["name"], &described["roles"]), (&json!("weighted"), &json!(["scoring"])));
        assert_eq!(described["configSchema"]["properties"]["sessionWeight"]["default"], 1);
        fails(
            &fulcrum(&["policy", "describe", "wieghted"], "").await,
            &["no embedded policy", "weighted", "p2c"],
        );
        fails(&fulcrum(&["policy", "describe", "./none.wasm"], "").await, &["cannot read ./none.wasm"]);
        assert_eq!(fulcrum(&["policy", "wit"], "").await.ok(), fulcrum_pack::WIT);
    });
}

/// Deadlines that no busy machine misses.
const PATIENT: [&str; 4] = ["--scoring-deadline-ms", "2000", "--claiming-deadline-ms", "20000"];

#[test]
fn check_passes_what_a_host_accepts() {
    run(async {
        let files = Files::new();
        for policy in fulcrum::embedded::policies() {
            let path = prebuilt(&files, policy.name);
            let text = fulcrum(&[&["policy", "check", &path][..], &PATIENT].concat(), "").await.ok();
            assert!(text.ends_with(&format!("{path} is a policy a host accepts\n")), "{text}");
            let steps = [
                "size",
                "sha256",
                "policy",
                "contract",
                "compiled",
                "configured",
                "self-test",
                "memory",
                "conformance",
            ];
            assert!(steps.iter().all(|step| text.lines().any(|line| line.starts_with(step))), "{text}");
            assert!(text.contains(&digest(policy.wasm)), "{text}");
        }
        let scoring = fulcrum(&["policy", "check", "--quick", &prebuilt(&files, "weighted")], "").await.ok();
        assert!(scoring.contains("over 100 rows") && scoring.contains("explain     offered"), "{scoring}");
        let config = files.put("c.json", br#"{"overload": "smooth"}"#);
        let configured =
            fulcrum(&["policy", "check", "--quick", &prebuilt(&files, "weighted"), "--config", &config], "")
                .await
                .ok();
        assert!(configured.contains(r#"with {"overload":"smooth"}"#), "{configured}");
    });
}

#[test]
fn check_says_what_is_wrong_and_what_to_do() {
    run(async {
        let files = Files::new();
        let component = |text: &str| wat::parse_str(text).unwrap();
        let lacking =
            component(r#"(component (instance $i) (export "fulcrum:policy/scoring@1.0.0" (instance $i)))"#);
        let version =
            component(r#"(component (instance $i) (export "fulcrum:policy/scoring@2.0.0" (instance $i)))"#);
        let mut table: Vec<(String, Vec<u8>, String, &str)> = vec![
            ("empty".to_owned(), vec![], "empty".to_owned(), "rename it when complete"),
            ("core".to_owned(), component("(module)"), "core_module".to_owned(), "fulcrum policy pack"),
            ("text".to_owned(), b"(module)".to_vec(), "text".to_owned(), "fulcrum policy pack"),
            ("native".to_owned(), b"\x7fELF".to_vec(), "precompiled".to_owned(), "drop the .wasm component"),
            ("cut".to_owned(), FIRST[..2000].to_vec(), "damaged".to_owned(), "copy it again"),
            (
                "lacking".to_owned(),
                lacking,
                "differences".to_owned(),
                "`scoring.recommend` is missing, expected func(",
            ),
            ("version".to_owned(), version, "version".to_owned(), "fulcrum:policy@2.0.0"),
        ];
        // Loops are cut off by the loading deadline of ten seconds: `reload` tests them with a shorter one.
        let sins = sins().into_iter().filter(|sin| sin.stage == "load" && !sin.name.starts_with("loop-"));
        table.extend(sins.map(|sin| (sin.name, sin.wasm, sin.expected, "")));
        assert!(table.len() >= 11, "{}", table.len());
        for (name, bytes, code, words) in table {
            let path = files.put(&format!("{name}.wasm"), &bytes);
            let ended = fulcrum(&["policy", "check", &path], "").await;
            fails(&ended, &[&format!("a host refuses this file ({code})")]);
            assert!(
                ended.out.contains(&format!("refused ({code})")) && ended.out.contains(words),
                "{name}: {ended:?}"
            );
            assert!(!ended.out.contains("accepts"), "{name}: {ended:?}");
        }
        let law = fulcrum(&["policy", "check", &files.path("remembers.wasm")], "").await;
        assert!(
            law.out.contains("a fresh instance answers") || law.out.contains("as `committed`"),
            "{law:?}"
        );
        let config = files.put("c.json", br#"{"sessionWeight": -1, "x": 1}"#);
        let ended =
            fulcrum(&["policy", "check", &prebuilt(&files, "weighted"), "--config", &config], "").await;
        fails(&ended, &["(config)"]);
        assert!(
            ended.out.contains("/sessionWeight: -1 is less") && ended.out.contains("'x' was unexpected"),
            "{ended:?}"
        );
        fails(&fulcrum(&["policy", "check", &files.path("none")], "").await, &["cannot read"]);
    });
}

#[test]
fn check_reports_for_programs() {
    run(async {
        let files = Files::new();
        let good =
            fulcrum(&["policy", "check", "--quick", "--json", &prebuilt(&files, "weighted")], "").await.ok();
        let good: Value = serde_json::from_str(&good).unwrap();
        assert_eq!(
            (&good["format"], &good["accepted"], &good["refusal"]),
            (&json!(1), &json!(true), &Value::Null)
        );
        assert_eq!(
            (&good["digest"], &good["name"]),
            (&json!(digest(fulcrum::embedded::find("weighted").unwrap())), &json!("weighted"))
        );
        assert_eq!(good["conformance"], Value::Null);
        let all = [&["policy", "check", "--json", "sticky"][..], &PATIENT].concat();
        let claims = fulcrum(&all, "").await.ok();
        let claims: Value = serde_json::from_str(&claims).unwrap();
        assert!(claims["planNanos"].is_u64() && claims["recommendNanos"].is_null(), "{claims}");
        assert_eq!((&claims["explains"], &claims["roles"]), (&Value::Null, &json!(["claiming"])));
        let found = &claims["conformance"];
        assert_eq!((&found["passed"], &found["findings"]), (&json!(true), &json!([])), "{claims}");
        assert!(found["classes"].as_array().unwrap().len() > 10 && found["cuts"][0]["cuts"] == 4, "{found}");

        let bad = fulcrum(&["policy", "check", "--json", &files.put("bad.wasm", b"\x7fELF")], "").await;
        let report: Value = serde_json::from_str(&bad.out).unwrap();
        assert_eq!((bad.code, &report["accepted"]), (Some(1), &json!(false)), "{bad:?}");
        assert_eq!(
            (&report["refusal"]["step"], &report["refusal"]["code"]),
            (&json!("contract"), &json!("precompiled"))
        );
        assert!(bad.err.contains("(precompiled)"), "{bad:?}");
    });
}

/// The fields of docs/POLICIES.md, and what people are told: the case, the command that repeats it, what to do.
#[test]
fn check_finds_in_a_corner_what_a_host_accepts() {
    run(async {
        let files = Files::new();
        let sin = include_str!("../../host/crates/policy/tests/corners/look-alike.wat");
        let file = files.put("look alike.wasm", &guest(sin));
        fulcrum(&["policy", "check", "--quick", &file], "").await.ok();
        let only = [&["policy", "check", &file, "--only", "scoring/hostile-text"][..], &PATIENT].concat();
        let ended = fulcrum(&only, "").await;
        fails(&ended, &["it does not conform (not_a_number)"]);
        let last = format!("{file} is a policy a host accepts, but it does not conform\n");
        assert!(
            ended.out.ends_with(&last) && ended.out.contains("to mend it: look for 0 divided by 0"),
            "{ended:?}"
        );

        let report = fulcrum(&[&only[..], &["--json"]].concat(), "").await;
        let report: Value = serde_json::from_str(&report.out).unwrap();
        let found = &report["conformance"];
        assert_eq!((&report["accepted"], &found["passed"]), (&json!(true), &json!(false)), "{report}");
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let fields = [
            "calls",
            "cases",
            "classes",
            "cuts",
            "failed",
            "findings",
            "memoryBytes",
            "memoryBytesMax",
            "passed",
            "seed",
            "skipped",
            "slowest",
        ];
        assert_eq!(names(found), fields);
        let fields = [
            "calls",
            "cases",
            "class",
            "deadlineNanos",
            "errors",
            "failed",
            "medianNanos",
            "memoryBytes",
            "p99Nanos",
            "skipped",
            "worstNanos",
        ];
        assert_eq!(names(&found["classes"][0]), fields);
        let finding = &found["findings"][0];
        assert_eq!(names(finding), ["case", "cases", "class", "code", "failure", "fix", "message", "repeat"]);
        let case = finding["case"].as_str().unwrap();
        let expected = format!(
            "fulcrum policy check '{file}' --scoring-deadline-ms 2000 --claiming-deadline-ms 20000 --only {case}"
        );
        assert_eq!(finding["repeat"], expected, "the command that runs the case again");
        let again = fulcrum(&["policy", "check", &file, "--json", "--only", case], "").await;
        let again: Value = serde_json::from_str(&again.out).unwrap();
        let again = &again["conformance"];
        assert_eq!((&again["cases"], &again["findings"][0]["message"]), (&json!(1), &finding["message"]));

        fails(
            &fulcrum(&["policy", "check", &file, "--only", "claiming"], "").await,
            &["no case \"claiming\""],
        );
        fails(&fulcrum(&["policy", "check", "wieghted"], "").await, &["no embedded policy", "weighted"]);
    });
}

#[test]
fn authors_choose_the_hosts_a_policy_is_for() {
    run(async {
        let files = Files::new();
        let file = files.put("clock.wasm", &wasi::wasi_guest(wasi::WALL_CLOCK.0, wasi::WALL_CLOCK.1));
        let case = r#"{"roster":[{"id":"a"}],"request":{"nowMs":7000}}"#;
        let eval = ["policy", "eval", &file, "--role", "scoring"];
        for (arguments, input) in [
            (&["policy", "describe", &file][..], ""),
            (&["policy", "check", "--quick", "--json", &file], ""),
            (&eval, case),
        ] {
            let strict = fulcrum(arguments, input).await;
            assert_eq!(strict.code, Some(1), "{strict:?}");
            let said = format!("{}{}", strict.out, strict.err);
            assert!(
                said.contains("policy.wasi = \\\"compat\\\"") || said.contains("policy.wasi = \"compat\""),
                "{said}"
            );
            fulcrum(&[arguments, &["--wasi"]].concat(), input).await.ok();
        }
        // Its cost is the time it sees.
        let answer = fulcrum(&[&eval[..], &["--wasi"]].concat(), case).await;
        assert_eq!(answer.lines(), [json!({ "id": "a", "score": 7000.0 })]);
        let report = fulcrum(&["policy", "check", "--quick", "--json", "--wasi", &file], "").await.ok();
        assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["wasi"], true);
    });
}

#[test]
fn pack_makes_a_component_that_passes_check() {
    run(async {
        let files = Files::new();
        let text = include_str!("../../host/crates/policy/tests/guests/base.wat");
        let (core, out) = (files.put("my_policy.wat", text.as_bytes()), files.path("out.wasm"));
        let packed =
            fulcrum(&["policy", "pack", &core, "-o", &out, "--world", "scoring-policy"], "").await.ok();
        assert_eq!(packed, format!("{out}, {} bytes\n", FIRST.len()));
        assert_eq!(std::fs::read(&out).unwrap(), *FIRST, "the same input gives the same bytes");
        fulcrum(&["policy", "check", "--quick", &out], "").await.ok();
        let pack = async |arguments: &[&str]| fulcrum(&[&["policy", "pack"], arguments].concat(), "").await;
        fails(&pack(&[&core, "-o", &out]).await, &["no world was given", "scoring-policy"]);
        fails(&pack(&[&out, "-o", &files.path("again.wasm")]).await, &["a component already"]);
        fails(&pack(&[&core, "-o", &core, "--world", "scoring-policy"]).await, &["would replace"]);
        fails(
            &pack(&[&core, "-o", &files.path("c.wasm"), "--world", "policy"]).await,
            &["claiming", "#plan"],
        );
        let wasi = files.put("wasi.wat", br#"(module (import "env" "open" (func)))"#);
        fails(
            &pack(&[&wasi, "-o", &files.path("w.wasm"), "--world", "scoring-policy"]).await,
            &["env", "open"],
        );
        assert!(!Path::new(&files.path("w.wasm")).exists() && !Path::new(&files.path("c.wasm")).exists());
        assert_eq!(std::fs::read_to_string(&core).unwrap(), text);
    });
}

#[test]
fn eval_answers_line_by_line() {
    run(async {
        let files = Files::new();
        let case =
            r#"{"roster":[{"id":"b"},{"id":"a"}],"loads":[{"activeSessions":9},{"activeSessions":1}]}"#;
        let eval = async |policy: &str, more: &[&str], input: &str| {
            fulcrum(&[&["policy", "eval", policy, "--role", "scoring"], more].concat(), input).await
        };
        let one = eval("weighted", &[], &format!("{case}\n{case}")).await;
        assert_eq!(one.lines(), [json!({ "id": "a", "score": 1.0 }), json!({ "id": "a", "score": 1.0 })]);
        assert_eq!((one.code, &*one.err), (Some(0), ""));
        assert_eq!(eval("weighted", &[], "").await.ok(), "");

        let lines = format!("{case}\nnonsense\n{{\"roster\":[{{\"id\":\"a\",\"capacity\":0}}]}}\n\n{case}\n");
        let mixed = eval("weighted", &[], &lines).await;
        let codes: Vec<_> =
            mixed.lines().iter().map(|line| line["code"].as_str().unwrap_or("answered").to_owned()).collect();
        assert_eq!(codes, ["answered", "invalid_json", "invalid_input", "invalid_json", "answered"]);
        fails(&mixed, &["3 lines could not be answered"]);

        // Without fallback and without breaker: a crash is told, and the next line has a fresh instance.
        let trap = sins().into_iter().find(|sin| sin.name == "trap").unwrap();
        let trap = files.put("trap.wasm", &trap.wasm);
        let trouble = format!(r#"{{"roster":[{{"id":"a"}}],"request":{{"clientId":"{TROUBLE}"}}}}"#);
        let crashed = eval(&trap, &[], &format!("{trouble}\n{case}\n").repeat(5)).await;
        let answers = crashed.lines();
        assert_eq!((crashed.code, answers.len()), (Some(1), 10));
        for pair in answers.chunks(2) {
            assert_eq!((&pair[0]["code"], &pair[1]["id"]), (&json!("trap"), &json!("a")));
        }

        let config = files.put("c.json", br#"{"sessionWeight": 3}"#);
        assert_eq!(eval("weighted", &["--config", &config], case).await.lines()[0]["score"], 3.0);
        let bad = files.put("bad.json", br#"{"sessionWeight": -3}"#);
        let refused = eval("weighted", &["--config", &bad], case).await;
        fails(&refused, &["/sessionWeight"]);
        assert_eq!(refused.out, "");
        fails(
            &fulcrum(&["policy", "eval", "p2c", "--role", "claiming"], "").await,
            &["p2c answers scoring only"],
        );
    });
}

#[test]
fn eval_draws_from_the_seed() {
    run(async {
        let roster: Vec<_> = (0..50).map(|row| json!({ "id": format!("i{row}") })).collect();
        let line = |seed: Value| {
            json!({ "roster": roster, "request": { "seed": seed }, "requests": 40 }).to_string()
        };
        let seeds = [json!(7), json!("7"), json!(8), json!("18446744073709551615")];
        let input = seeds.map(line).join("\n");
        let eval = async || fulcrum(&["policy", "eval", "p2c", "--role", "scoring"], &input).await;
        let (first, second) = (eval().await, eval().await);
        assert_eq!(first.out, second.out, "the same on every run");
        let lines = first.lines();
        assert_eq!((first.code, &lines[0]), (Some(0), &lines[1]));
        assert_ne!(lines[0], lines[2]);
        // Request k has seed + k, so the next seed is the same stream one later, but for what was given out before.
        assert_eq!(lines[2]["picks"].as_array().unwrap().len(), 40);
        assert_eq!(lines[3]["picks"].as_array().unwrap().len(), 40);
    });
}

#[test]
fn status_shows_a_running_host() {
    run(async {
        let process =
            Process::serve(&["--set", "policy.scoring=mine", "--set", "policy.scoring_deadline_ms=2000"])
                .await;
        process.beat("a", 0).await;
        process.policies().put("mine.wasm", &FIRST);
        process.until_in_use("mine", &digest(&FIRST)).await;
        process.policies().put("mine.wasm", b"nonsense");
        process.until_refused("mine", "not_wasm").await;
        process.recommend("").await;
        let status = async |more: &[&str]| {
            fulcrum(&[&["policy", "status", "--host", process.url()], more].concat(), "").await
        };
        let text = status(&[]).await.ok();
        let line = text.lines().find(|line| line.starts_with("mine ")).unwrap_or_else(|| panic!("{text}"));
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            cells,
            ["mine", "live", "last-good", "scoring", &format!("{}…", &digest(&FIRST)[..8]), "1", "0"]
        );
        assert!(text.contains("mine: the newest file is not used: this is not WebAssembly"), "{text}");
        let json: Value = serde_json::from_str(&status(&["mine", "--json"]).await.ok()).unwrap();
        assert_eq!(json, process.policy("mine").await);
        fails(&status(&["nothing"]).await, &["there is no policy `nothing`"]);
        let url = process.url().to_owned();
        drop(process);
        fails(&fulcrum(&["policy", "status", "--host", &url], "").await, &["no host answers"]);
    });
}

#[test]
fn wrong_arguments_end_with_two() {
    run(async {
        for arguments in
            [&["serv"][..], &["serve", "--port", "1"], &["policy", "eval", "p2c", "--role", "x"], &[]]
        {
            let ended = fulcrum(arguments, "").await;
            assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{ended:?}");
            assert!(ended.err.contains("--help") || ended.err.contains("Usage: fulcrum"), "{ended:?}");
        }
        assert!(fulcrum(&["--version"], "").await.ok().starts_with("fulcrum 0."));
    });
}
