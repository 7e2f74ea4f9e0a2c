use super::*;

/// A scoring policy in text; `extra` goes behind its imports.
fn policy(imports: &str, extra: &str) -> String {
    format!(
        r#"(module {imports}
            (memory (export "memory") 1)
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
            (func (export "fulcrum:policy/lifecycle@1.0.0#describe") (result i32) (i32.const 0))
            (func (export "fulcrum:policy/lifecycle@1.0.0#configure") (param i32 i32) (result i32) (i32.const 0))
            (func (export "fulcrum:policy/scoring@1.0.0#roster") (param i32 i32) (result i32) (i32.const 0))
            (func (export "fulcrum:policy/scoring@1.0.0#refresh")
              (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 0))
            (func (export "fulcrum:policy/scoring@1.0.0#recommend")
              (param i32 i32 i32 i32 i32 i32 f64 f64 i32 i32 i32 i32 i64 i64) (result i32) (i32.const 0))
            (func (export "fulcrum:policy/scoring@1.0.0#explain")
              (param i32 i32 i32 i32 i32 i32 f64 f64 i32 i32 i32 i32 i64 i64) (result i32) (i32.const 0))
            {extra})"#
    )
}

/// Names of a component's imports.
fn imports(component: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload.expect("a valid component") {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 0 => {
                names.extend(section.into_iter().map(|import| import.expect("valid").name.name.to_owned()));
            }
            _ => {}
        }
    }
    names
}

fn check(core: &[u8], world: Option<&str>, expected: &str) {
    let said = match component(core, Options { world }) {
        Ok(component) => format!("ok {:?}", imports(&component)),
        Err(error) => error.to_string(),
    };
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn a_module_without_metadata_becomes_a_component_of_the_named_world() {
    let text = policy("", "");
    check(text.as_bytes(), Some("scoring-policy"), "ok []");
    check(&wat::parse_str(&text).expect("valid"), Some("scoring-policy"), "ok []");
    assert!(from_wat(&text, "scoring-policy").is_ok());
    check(
        text.as_bytes(),
        None,
        "the module carries no type information and no world was given; name one of: scoring",
    );
    check(text.as_bytes(), Some("wrong"), "there is no world `wrong`");
    check(
        text.as_bytes(),
        Some("claiming-policy"),
        "the module does not export `fulcrum:policy/claiming@1.0.0#plan`, which its world asks for",
    );
}

#[test]
fn the_host_may_be_imported() {
    let log = r#"(import "fulcrum:policy/host@1.0.0" "log" (func (param i32 i32 i32)))"#;
    check(policy(log, "").as_bytes(), Some("scoring-policy"), r#"ok ["fulcrum:policy/host@1.0.0"]"#);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let text = policy("", "");
    assert_eq!(from_wat(&text, "scoring-policy").ok(), from_wat(&text, "scoring-policy").ok());
}

/// Every function of preview 1, as `(name, parameters, has a result)`.
const PREVIEW1_FUNCTIONS: [(&str, &str, bool); 46] = [
    ("args_get", "i32 i32", true),
    ("args_sizes_get", "i32 i32", true),
    ("clock_res_get", "i32 i32", true),
    ("clock_time_get", "i32 i64 i32", true),
    ("environ_get", "i32 i32", true),
    ("environ_sizes_get", "i32 i32", true),
    ("fd_advise", "i32 i64 i64 i32", true),
    ("fd_allocate", "i32 i64 i64", true),
    ("fd_close", "i32", true),
    ("fd_datasync", "i32", true),
    ("fd_fdstat_get", "i32 i32", true),
    ("fd_fdstat_set_flags", "i32 i32", true),
    ("fd_fdstat_set_rights", "i32 i64 i64", true),
    ("fd_filestat_get", "i32 i32", true),
    ("fd_filestat_set_size", "i32 i64", true),
    ("fd_filestat_set_times", "i32 i64 i64 i32", true),
    ("fd_pread", "i32 i32 i32 i64 i32", true),
    ("fd_prestat_dir_name", "i32 i32 i32", true),
    ("fd_prestat_get", "i32 i32", true),
    ("fd_pwrite", "i32 i32 i32 i64 i32", true),
    ("fd_read", "i32 i32 i32 i32", true),
    ("fd_readdir", "i32 i32 i32 i64 i32", true),
    ("fd_renumber", "i32 i32", true),
    ("fd_seek", "i32 i64 i32 i32", true),
    ("fd_sync", "i32", true),
    ("fd_tell", "i32 i32", true),
    ("fd_write", "i32 i32 i32 i32", true),
    ("path_create_directory", "i32 i32 i32", true),
    ("path_filestat_get", "i32 i32 i32 i32 i32", true),
    ("path_filestat_set_times", "i32 i32 i32 i32 i64 i64 i32", true),
    ("path_link", "i32 i32 i32 i32 i32 i32 i32", true),
    ("path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32", true),
    ("path_readlink", "i32 i32 i32 i32 i32 i32", true),
    ("path_remove_directory", "i32 i32 i32", true),
    ("path_rename", "i32 i32 i32 i32 i32 i32", true),
    ("path_symlink", "i32 i32 i32 i32 i32", true),
    ("path_unlink_file", "i32 i32 i32", true),
    ("poll_oneoff", "i32 i32 i32 i32", true),
    ("proc_exit", "i32", false),
    ("proc_raise", "i32", true),
    ("random_get", "i32 i32", true),
    ("sched_yield", "", true),
    ("sock_accept", "i32 i32 i32", true),
    ("sock_recv", "i32 i32 i32 i32 i32 i32", true),
    ("sock_send", "i32 i32 i32 i32 i32", true),
    ("sock_shutdown", "i32 i32", true),
];

#[test]
fn preview_1_is_stood_in_for() {
    let write = r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#;
    check(policy(write, "").as_bytes(), Some("scoring-policy"), "ok []");

    let import = |(name, parameters, has_result): &(&str, &str, bool)| {
        let result = if *has_result { "(result i32)" } else { "" };
        format!("(import \"wasi_snapshot_preview1\" \"{name}\" (func (param {parameters}) {result}))")
    };
    let all: String = PREVIEW1_FUNCTIONS.iter().map(import).collect();
    let go = r#"(import "wasi_snapshot_preview1" "adapter_monotonic_clock_set_paused" (func (param i32)))"#;
    check(policy(&format!("{all}{go}"), "").as_bytes(), Some("scoring-policy"), "ok []");

    let no_such = r#"(import "wasi_snapshot_preview1" "fd_bogus" (func))"#;
    check(policy(no_such, "").as_bytes(), Some("scoring-policy"), "the module does not fit its world");
}

#[test]
fn says_what_is_wrong_and_what_to_do() {
    let world = Some("scoring-policy");
    let good = from_wat(&policy("", ""), "scoring-policy").expect("good");
    check(&good, world, "the file is a component already");
    check(b"", world, "the file is neither");
    check(b"#!/bin/sh", world, "the file is neither");
    check(b"\x7fELF\xff", world, "the file is neither");
    check(b"(module", world, "the WebAssembly text is not valid");
    let module = wat::parse_str(policy("", "")).expect("valid");
    check(&module[..module.len() - 3], world, "the wasm module is damaged");
    for (import, expected) in [
        (
            r#"(import "env" "puts" (func))"#,
            "the module imports `puts` from `env`, which no host offers; a symbol was",
        ),
        (
            r#"(import "wasi:clocks/monotonic-clock@0.2.6" "now" (func (result i64)))"#,
            "the module imports `now` from `wasi:clocks/monotonic-clock@0.2.6`, which no host offers; build for preview 1",
        ),
        (
            r#"(import "fulcrum:policy/host@0.9.0" "log" (func (param i32 i32 i32)))"#,
            "the module imports `log` from `fulcrum:policy/host@0.9.0`, which no host offers; its bindings are of another",
        ),
    ] {
        check(policy(import, "").as_bytes(), world, expected);
    }
    check(
        policy("", "").replace("#recommend", "#recomend").as_bytes(),
        world,
        "the module does not export `fulcrum:policy/scoring@1.0.0#recommend`",
    );
    check(
        policy("", "").replace("cabi_realloc", "realloc").as_bytes(),
        world,
        "the module does not export `cabi_realloc`",
    );
    check(
        policy("", "").replace("(param i32 i32) (result i32) (i32.const 0)", "").as_bytes(),
        world,
        "the module does not fit its world",
    );
}

#[test]
fn every_world_of_the_contract_is_known() {
    for world in WORLDS {
        assert!(contract(world).is_ok(), "{world}");
    }
}
