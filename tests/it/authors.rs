//! What authors' commands do where something is in the way: where results go, what is refused, what is left behind.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::support::*;

const GUEST: &str = include_str!("../../host/crates/policy/tests/guests/base.wat");

/// A folder to work in.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn put(&self, file: &str, bytes: &[u8]) -> PathBuf {
        std::fs::create_dir_all(self.at(file).parent().unwrap()).unwrap();
        std::fs::write(self.at(file), bytes).unwrap();
        self.at(file)
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    /// Makes a project of no known language that a script builds.
    fn project(&self, script: &str) -> PathBuf {
        self.put("p/fulcrum-policy.toml", b"name = \"mine\"\nrole = \"scoring\"\n");
        self.put("p/base.wat", GUEST.as_bytes());
        self.put("p/build.sh", format!("set -e\nmkdir -p build\n{script}\n").as_bytes());
        self.at("p")
    }
}

/// Builds the policy of a [project](Files::project).
const PACK: &str = "\"$FULCRUM\" policy pack base.wat -o build/mine.wasm --world scoring-policy";

/// The binary with the search path of this process, which build scripts need.
fn author(arguments: &[&str]) -> Command {
    let mut command = command();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).arg("policy").args(arguments);
    command
}

async fn end(command: &mut Command) -> Ended {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = tokio::time::timeout(SOON * 3, child.wait_with_output()).await.expect("it ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Makes a pipe with a link to it, and reads what is written there.
fn pipe(files: &Files, name: &str) -> tokio::task::JoinHandle<Vec<u8>> {
    let (pipe, link) = (files.at(&format!("{name}.pipe")), files.at(name));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink(&pipe, link).unwrap();
    tokio::task::spawn_blocking(move || std::fs::read(pipe).unwrap())
}

#[test]
fn results_go_through_links_and_never_replace_what_is_no_file() {
    run(async {
        let files = Files::new();
        let core = files.put("base.wat", GUEST.as_bytes());
        let made = async |name: &str, command: &mut Command| {
            let reader = pipe(&files, name);
            let ended = end(command).await;
            assert_eq!(ended.code, Some(0), "{ended:?}");
            let bytes = reader.await.unwrap();
            let kind = std::fs::symlink_metadata(files.at(&format!("{name}.pipe"))).unwrap().file_type();
            assert!(kind.is_fifo() && files.at(name).is_symlink(), "{name} was replaced");
            bytes
        };
        let mut pack = author(&["pack", "--world", "scoring-policy"]);
        pack.arg(&core).arg("-o").arg(files.at("packed"));
        assert_eq!(made("packed", &mut pack).await, *FIRST);

        let project = files.project(PACK);
        let mut build = author(&["build"]);
        build.arg(&project).arg("--out").arg(files.at("built"));
        assert_eq!(made("built", &mut build).await, *FIRST);

        let key = files.at("key");
        end(author(&["keygen", "--out"]).arg(&key)).await.ok();
        let component = files.put("mine.wasm", &FIRST);
        let mut sign = author(&["sign"]);
        sign.arg(component).arg("--key").arg(&key);
        assert_eq!(made("mine.wasm.sig", &mut sign).await.len(), 89);

        // A link to a file: the file is replaced, as a whole.
        files.put("real.wasm", b"old");
        symlink("real.wasm", files.at("link.wasm")).unwrap();
        let mut pack = author(&["pack", "--world", "scoring-policy"]);
        end(pack.arg(&core).arg("-o").arg(files.at("link.wasm"))).await.ok();
        assert!(files.at("link.wasm").is_symlink());
        assert_eq!(std::fs::read(files.at("real.wasm")).unwrap(), *FIRST);
        assert!(files.names("").iter().all(|name| !name.ends_with(".part")), "{:?}", files.names(""));
    });
}

/// Runs a command on a disk that is full after half a kilobyte per file.
async fn on_a_full_disk(arguments: &[&str], path: &Path) -> Ended {
    let binary = command().as_std().get_program().to_owned();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg("trap '' XFSZ; ulimit -f 1; exec \"$0\" policy \"$@\"").arg(binary);
    end(shell.args(arguments).arg(path)).await
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    run(async {
        let files = Files::new();
        files.put("base.wat", GUEST.as_bytes());
        std::fs::create_dir(files.at("empty")).unwrap();
        let core = files.at("base.wat");
        let pack = ["pack", core.to_str().unwrap(), "--world", "scoring-policy", "-o"];
        let new = ["new", "mine", "--lang", "go", "--dir"];
        for (arguments, path) in [(&pack[..], "out.wasm"), (&new, "a/b"), (&new, "empty")] {
            let ended = on_a_full_disk(arguments, &files.at(path)).await;
            assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{ended:?}");
            assert!(ended.err.contains("cannot write") && ended.err.contains(path), "{ended:?}");
        }
        assert_eq!(files.names(""), ["base.wat", "empty"]);
        assert!(files.names("empty").is_empty(), "it was there before, and stays");
    });
}

#[test]
fn a_build_is_looked_at_before_it_is_read() {
    run(async {
        let files = Files::new();
        for (script, words) in [
            ("mkfifo build/mine.wasm", "no regular file"),
            ("mkdir build/mine.wasm", "no regular file"),
            ("truncate -s 65M build/mine.wasm", "a host takes at most"),
            ("true", "did not write"),
        ] {
            let project = files.project(script);
            let ended = end(author(&["build"]).arg(&project)).await;
            assert!(ended.code == Some(1) && ended.err.contains(words), "{ended:?}");
            std::fs::remove_dir_all(project).unwrap();
        }
    });
}

#[test]
fn a_build_that_is_told_to_stop_takes_its_children_along() {
    run(async {
        for signal in ["TERM", "INT", "HUP"] {
            let files = Files::new();
            // The second child does not listen.
            let script = "sleep 600 & sh -c 'trap \"\" TERM INT; sleep 600' & echo >started; wait";
            let project = files.project(script);
            let mut build = author(&["build"]);
            build.arg(&project).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            let child = build.spawn().unwrap();
            let id = child.id().unwrap().to_string();
            eventually("it builds", SOON, async || project.join("started").exists().then_some(())).await;
            let sent = Command::new("kill").args(["-s", signal, &id]).status().await.unwrap();
            assert!(sent.success());
            // All of them hold its stderr open.
            let output = tokio::time::timeout(SOON, child.wait_with_output()).await;
            let output = output.expect("they end").unwrap();
            assert_eq!(output.status.code(), Some(1));
            assert!(String::from_utf8_lossy(&output.stderr).contains("told to stop"), "{output:?}");
        }
    });
}

#[test]
fn a_build_can_be_stopped_after_the_script_too() {
    run(async {
        let files = Files::new();
        let project = files.project(PACK);
        let out = files.at("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&out).status().unwrap().success());
        let mut build = author(&["build"]);
        build.arg(&project).arg("--out").arg(&out).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = build.stderr(Stdio::null()).spawn().unwrap();
        // It was checked, and now waits for somebody who reads the pipe.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let checked = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.ends_with("is a policy a host accepts") {
                    return;
                }
            }
            panic!("it was not checked");
        };
        tokio::time::timeout(SOON, checked).await.expect("it is checked");
        let id = child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().await.unwrap().success());
        let status = tokio::time::timeout(SOON, child.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.code(), Some(1));
    });
}

#[test]
fn sign_takes_only_a_key_that_is_secret_and_a_name_hosts_take() {
    run(async {
        let files = Files::new();
        let key = files.at("my key");
        end(author(&["keygen", "--out"]).arg(&key)).await.ok();
        let sign = async |file: &str| {
            files.put(file, &FIRST);
            end(author(&["sign"]).arg(files.at(file)).arg("--key").arg(&key)).await
        };
        for name in ["a b.wasm", "-a.wasm", "ä.json", "a.b.wasm"] {
            let ended = sign(&format!("d/{name}")).await;
            assert!(ended.code == Some(1) && ended.err.contains("no host takes a file named"), "{ended:?}");
        }
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
            let ended = sign("d/a.wasm").await;
            assert!(ended.code == Some(1) && ended.err.contains("others may read or write"), "{ended:?}");
            assert!(ended.err.contains("chmod 600 '") && ended.err.contains("my key'"), "{ended:?}");
        }
        assert!(files.names("d").iter().all(|name| !name.ends_with(".sig")));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        sign("d/a.wasm").await.ok();
    });
}

#[test]
fn keygen_leaves_no_half_pair() {
    run(async {
        let files = Files::new();
        symlink("nowhere", files.at("key.pub")).unwrap();
        let ended = end(author(&["keygen", "--out"]).arg(files.at("key"))).await;
        assert!(ended.code == Some(1) && ended.err.contains("key.pub"), "{ended:?}");
        assert_eq!(files.names(""), ["key.pub"]);
    });
}

#[test]
fn new_refuses_what_would_not_build_and_says_how_to_go_on() {
    run(async {
        let files = Files::new();
        symlink("nowhere", files.at("dangling")).unwrap();
        let new = async |name: &str, lang: &str, dir: &str, more: &[&str]| {
            let mut command = author(&["new", name, "--lang", lang]);
            end(command.args(more).arg("--dir").arg(files.at(dir))).await
        };
        for (name, lang, dir, more, words) in [
            ("fulcrum-guest", "rust", "x", &[][..], "a package the project depends on"),
            ("mine", "rust", "x", &["--guest", "a\"\nb"], "a path in one line"),
            ("mine", "rust", "x", &["--guest", ""], "a path in one line"),
            ("mine", "c", "dangling", &[], "is a link to nowhere, which does not exist"),
        ] {
            let ended = new(name, lang, dir, more).await;
            assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{ended:?}");
            assert!(ended.err.contains(words), "{words:?} is not in {ended:?}");
        }
        assert_eq!(files.names(""), ["dangling"]);
        new("fulcrum-guest", "c", "it's fine", &[]).await.ok();
        let said = new("mine", "c", "my policies/mine", &[]).await.ok();
        let command = format!("`fulcrum policy build '{}'`", files.at("my policies/mine").display());
        assert!(said.contains(&command), "{said}");
        // Nothing is on an empty path.
        let missing = end(command_without_path().args(["policy", "build"]).arg(files.at("it's fine"))).await;
        assert!(missing.err.contains("it'\\''s fine/.venv/bin/pip'"), "{missing:?}");
    });
}

fn command_without_path() -> Command {
    let mut command = command();
    command.env("PATH", "/nonexistent");
    command
}

#[test]
fn every_embedded_policy_compiles_at_once() {
    for policy in fulcrum::embedded::policies() {
        assert!(policy.wasm.len() <= fulcrum_policy::artifact::SMALL_BYTES, "{} is too large", policy.name);
    }
}

#[test]
fn trusted_keys_are_counted_and_never_off_by_mistake() {
    run(async {
        let files = Files::new();
        let public = end(author(&["keygen", "--out"]).arg(files.at("key"))).await.ok();
        let process = Process::serve(&["--set", &format!("policy.trusted_keys={}", public.trim())]).await;
        assert_eq!(process.get("/healthz").await.ok(), json!({ "status": "ok" }));
        assert!(process.log().contains("keys trusted to sign policy files"), "{}", process.log());
        assert!(
            process.log().contains("keys=1") || process.log().contains("keys\u{1b}[0m"),
            "{}",
            process.log()
        );

        let data = files.at("data");
        let mut serve = command();
        serve.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
        let ended = end(serve.env("FULCRUM_POLICY_TRUSTED_KEYS", "")).await;
        assert!(ended.code == Some(1) && ended.err.contains("FULCRUM_POLICY_TRUSTED_KEYS"), "{ended:?}");
        assert!(ended.err.contains("found nothing"), "{ended:?}");
        assert!(!data.exists());

        let private = std::fs::read_to_string(files.at("key")).unwrap();
        let secret = private.trim().rsplit(' ').next().unwrap().trim_end_matches('=');
        for (entry, words) in [
            (format!("[\"{}\"]", private.trim()), "is a private key"),
            (secret.to_owned(), "cannot use entry 1"),
        ] {
            let setting = format!("policy.trusted_keys={entry}");
            let data = data.to_str().unwrap();
            for arguments in
                [vec!["config", "check"], vec!["config", "print"], vec!["serve", "--data-dir", data]]
            {
                let ended = end(command().args(&arguments).args(["--set", &setting])).await;
                assert!(ended.code == Some(1) && ended.err.contains(words), "{ended:?}");
                assert!(!ended.err.contains(secret) && !ended.out.contains(secret), "{ended:?}");
            }
        }
        let setting = format!("policy.trusted_keys={}", public.trim());
        let printed = end(command().args(["config", "print", "--set", &setting])).await.ok();
        assert!(printed.contains(&format!("trusted_keys = [\"{}\"]", public.trim())), "{printed}");
    });
}
