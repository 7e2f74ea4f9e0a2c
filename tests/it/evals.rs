//! The components of the embedded policies as a planner for the conformance suite, through `fulcrum policy eval`.
//!
//! Invariants: one process answers all questions to one policy with one configuration; a plan counts only if the
//! owners the command shows are those its claims and releases lead to.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use conformance::Planner;
use fulcrum_guest::Changes;
use fulcrum_guest::claiming::Reason;
use fulcrum_guest::testing::claiming::Group;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::command;

/// Asks the real binary.
pub(crate) struct Evals {
    configs: TempDir,
    /// By policy and configuration.
    running: HashMap<(String, String), Eval>,
    answers: usize,
}

/// One `fulcrum policy eval` that waits for the next line; it ends with its input.
struct Eval {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Evals {
    fn new() -> Self {
        let configs = tempfile::tempdir().expect("a temporary folder");
        Self { configs, running: HashMap::new(), answers: 0 }
    }

    /// Asks everything a suite wants to know, and tells how much that was.
    pub(crate) fn check(suite: fn(&mut Self)) {
        let mut evals = Self::new();
        suite(&mut evals);
        println!("{} plans", evals.end());
    }

    /// Ends all processes, which must have had an answer to every line; returns how many answers there were.
    fn end(self) -> usize {
        for ((policy, config), eval) in self.running {
            assert!(eval.end(), "{policy} with {config}");
        }
        self.answers
    }
}

impl Planner for Evals {
    fn plan(&mut self, policy: &str, config: &str, group: &Group) -> Changes {
        let file = self.configs.path().join(format!("{}.json", self.running.len()));
        let key = (policy.to_owned(), config.to_owned());
        let eval = self.running.entry(key).or_insert_with(|| {
            std::fs::write(&file, config).expect("the folder can be written");
            let mut command = command().into_std();
            command.args(["policy", "eval", policy, "--role", "claiming", "--config"]).arg(file);
            Eval::start(command)
        });
        let answer = eval.answer(&question(group));
        self.answers += 1;
        changes(group, &answer)
    }
}

impl Eval {
    fn start(mut command: std::process::Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary can be run");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, input, output }
    }

    fn answer(&mut self, question: &Value) -> Value {
        let input = self.input.as_mut().expect("it is piped");
        // It reads the whole line before it answers.
        input.write_all(format!("{question}\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes text");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?} to {question}"))
    }

    /// Says whether it ended well.
    fn end(mut self) -> bool {
        drop(self.input.take());
        self.child.wait().expect("waited for").success()
    }
}

/// A group as a line of input, its partitions in the order of its columns.
fn question(group: &Group) -> Value {
    let cycle = group.cycle();
    let topics = |topics: &[u32]| -> Vec<&str> {
        topics.iter().map(|&topic| cycle.topics[topic as usize].as_str()).collect()
    };
    let members: Vec<_> = cycle
        .members
        .iter()
        .map(|member| {
            json!({ "id": member.id, "zone": member.zone, "capacity": member.capacity,
                "topics": topics(&member.topics) })
        })
        .collect();
    let partitions: Vec<_> = (0..cycle.owner.len())
        .map(|at| {
            json!({ "topic": cycle.topics[cycle.topic[at] as usize], "partition": cycle.number[at],
                "place": cycle.places[cycle.place[at] as usize], "weight": cycle.weight[at],
                "moving": cycle.moving[at] == 1, "heldMs": cycle.held_ms[at], "owner": owner(group, at) })
        })
        .collect();
    let reason = match cycle.reason {
        Reason::Join => "join",
        Reason::Manual => "manual",
        other => panic!("no vector has the reason {other:?}"),
    };
    json!({ "group": cycle.group, "members": members, "partitions": partitions, "reason": reason,
        "movementBudget": cycle.movement_budget, "seed": cycle.seed, "nowMs": cycle.now_ms })
}

/// The id of a partition's owner.
fn owner(group: &Group, partition: usize) -> Option<&str> {
    let row = usize::try_from(group.owner[partition]).ok()?;
    Some(&group.members[row].id)
}

/// The plan in an answer; its reasons are left out.
fn changes(group: &Group, answer: &Value) -> Changes {
    let list = |name: &str| answer[name].as_array().unwrap_or_else(|| panic!("{answer}"));
    let partition = |named: &Value| {
        let text = |name: &str| named[name].as_str().unwrap_or_default();
        let is_it = |&at: &usize| {
            group.topics[group.topic[at] as usize] == text("topic")
                && named["partition"] == group.number[at]
                && group.places[group.place[at] as usize] == text("place")
        };
        (0..group.owner.len()).find(is_it).unwrap_or_else(|| panic!("{named}")) as u32
    };
    let member = |claim: &Value| {
        let row = group.members.iter().position(|member| claim["member"] == *member.id);
        row.unwrap_or_else(|| panic!("{claim}")) as u32
    };
    let changes = Changes {
        partition: list("claims").iter().map(partition).collect(),
        member: list("claims").iter().map(member).collect(),
        releases: list("releases").iter().map(partition).collect(),
        ..Changes::default()
    };
    let mut after = group.clone();
    after.apply(&changes);
    let owners: Vec<_> = (0..after.owner.len()).map(|at| owner(&after, at)).collect();
    assert_eq!(answer["owners"], json!(owners), "the owners after {answer}");
    changes
}
