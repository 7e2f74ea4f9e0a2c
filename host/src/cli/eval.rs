//! `fulcrum policy eval`: a policy answers questions from stdin, without fallback and without breaker.
//!
//! One line in, one line out, in order. A line that cannot be answered gives `{"error","code"}`, the others go on.

mod claiming;
mod input;
mod scoring;

use std::io::{self, BufRead, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use fulcrum_policy::claim::ClaimingPolicy;
use fulcrum_policy::failure::{Declared, Failure};
use fulcrum_policy::seat::{ScoringFactory, ScoringPolicy};
use fulcrum_policy::{Limits, Loaded};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::policy;

/// Arguments of `policy eval`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Every field but `id`, `topic` and `partition` may be left out, unknown fields are ignored.

Scoring, in:
  {\"roster\":[{\"id\",\"zone\",\"capacity\",\"labels\",\"ageMs\"}],
   \"loads\":[{\"activeSessions\",\"inflowBytesPerSec\",\"outflowBytesPerSec\",\"cpuLoad\",
             \"heartbeatAgeMs\",\"pending\",\"draining\"} or null],
   \"request\":{\"clientId\",\"sessions\":{\"id\":n},\"inflowBytesPerSec\",\"outflowBytesPerSec\",
              \"exclude\":[],\"seed\",\"nowMs\"},\"requests\":N}
Scoring, out: {\"id\",\"score\"}, with `requests` {\"picks\":[ids]}: request k has seed + k and knows the pick before it.

Claiming, in:
  {\"members\":[{\"id\",\"zone\",\"labels\",\"capacity\",\"topics\"}],
   \"partitions\":[{\"topic\",\"partition\",\"place\",\"owner\",\"weight\"}],\"reason\",\"seed\",\"nowMs\"}
Claiming, out: {\"claims\":[{\"topic\",\"partition\",\"member\",\"reason\"}],\"releases\":[],\"nextCycleMs\",\"owners\":[ids or null]}
A member without `topics` reads all of them; an owner who is no member counts as gone.

A line that cannot be answered gives {\"error\",\"code\"}; the exit code is 1 then.

Example:
  echo '{\"roster\":[{\"id\":\"a\"},{\"id\":\"b\"}],\"loads\":[{\"activeSessions\":9},{\"activeSessions\":1}]}' |
    fulcrum policy eval weighted --role scoring")]
pub(super) struct Eval {
    /// Name of an embedded policy, or a component file
    #[arg(value_name = "NAME|FILE")]
    policy: String,
    /// Which question to ask
    #[arg(long, value_enum)]
    role: Role,
    /// The policy's configuration, a JSON file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Longest time one call may take, in milliseconds
    ///
    /// More than a host gives, so that the answers do not depend on how busy this machine is.
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    deadline_ms: u64,
    #[command(flatten)]
    mode: policy::Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Which instance should the next session go to?
    Scoring,
    /// Which member should own which partition?
    Claiming,
}

impl Eval {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let deadline = Duration::from_millis(self.deadline_ms);
        let limits = Limits { scoring_deadline: deadline, claiming_deadline: deadline, ..Limits::default() };
        let runtime = self.mode.runtime(limits)?;
        let (name, artifact) = policy::load(&runtime, &self.policy)?;
        let roles = artifact.roles();
        let is_offered = match self.role {
            Role::Scoring => roles.scoring,
            Role::Claiming => roles.claiming,
        };
        if !is_offered {
            bail!("{} answers {} only", self.policy, policy::role_names(roles).join(" and "));
        }
        let loaded = artifact
            .configured(&name, policy::configuration(self.config.as_deref())?)
            .map_err(|refusal| anyhow!("{}: {refusal}", self.policy))?;
        let mut evaluator = Evaluator::new(self.role, &loaded);
        let failed = answer_lines(io::stdin().lock(), &mut BufWriter::new(io::stdout().lock()), |line| {
            evaluator.answer(line)
        })?;
        match failed {
            0 => Ok(()),
            1 => bail!("1 line could not be answered"),
            failed => bail!("{failed} lines could not be answered"),
        }
    }
}

/// Why a line has no answer.
#[derive(Debug, PartialEq)]
enum Trouble {
    /// The line itself is at fault: code and message.
    Input(&'static str, String),
    /// The policy is.
    Policy(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Policy(failure)
    }
}

impl Trouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Input(code, _) => code,
            Self::Policy(Failure::Declared(declared)) => match declared {
                Declared::InvalidConfig(_) => "invalid_config",
                Declared::InvalidInput(_) => "invalid_input",
                Declared::NoCandidate => "no_candidate",
                Declared::Unsupported => "unsupported",
                Declared::Failed(_) => "failed",
            },
            Self::Policy(failure) => failure.outcome().name(),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Input(_, message) => message.clone(),
            Self::Policy(failure) => format!("the policy {failure}"),
        }
    }

    /// An instance that crashed must not be asked again.
    fn ends_instance(&self) -> bool {
        matches!(self, Self::Policy(failure) if !matches!(failure, Failure::Declared(_)))
    }
}

/// Keeps an instance for as long as it behaves.
enum Evaluator<'a> {
    Scoring(&'a Loaded, Option<Box<dyn ScoringPolicy>>),
    Claiming(&'a Loaded, Option<Box<dyn ClaimingPolicy>>),
}

impl<'a> Evaluator<'a> {
    fn new(role: Role, loaded: &'a Loaded) -> Self {
        match role {
            Role::Scoring => Self::Scoring(loaded, None),
            Role::Claiming => Self::Claiming(loaded, None),
        }
    }

    fn answer(&mut self, line: &str) -> Result<Value, Trouble> {
        let result = match self {
            Self::Scoring(loaded, slot) => {
                let case = parse::<scoring::Case>(line)?;
                let policy = match slot {
                    Some(policy) => policy,
                    None => slot.insert(loaded.make()?),
                };
                scoring::answer(&case, &mut **policy)
            }
            Self::Claiming(loaded, slot) => {
                let case = parse::<claiming::Case>(line)?;
                let policy = match slot {
                    Some(policy) => policy,
                    None => slot.insert(loaded.make_claiming()?),
                };
                claiming::answer(&case, &mut **policy)
            }
        };
        if result.as_ref().is_err_and(Trouble::ends_instance) {
            match self {
                Self::Scoring(_, slot) => *slot = None,
                Self::Claiming(_, slot) => *slot = None,
            }
        }
        result
    }
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T, Trouble> {
    // An array would be read as the fields in their order.
    if line.trim_start().starts_with('[') {
        return Err(input::bad("expected a JSON object, found an array"));
    }
    serde_json::from_str(line).map_err(|error| {
        let code = if error.is_data() { "invalid_input" } else { "invalid_json" };
        Trouble::Input(code, error.to_string())
    })
}

/// Answers every line; returns how many could not be answered.
fn answer_lines(
    mut input: impl BufRead,
    output: &mut impl Write,
    mut answer: impl FnMut(&str) -> Result<Value, Trouble>,
) -> anyhow::Result<u64> {
    let mut failed = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).context("cannot read stdin")? == 0 {
            output.flush()?;
            return Ok(failed);
        }
        let answered = match std::str::from_utf8(&line) {
            Ok(text) => answer(text.trim_end_matches(['\n', '\r'])),
            Err(error) => Err(Trouble::Input("invalid_json", error.to_string())),
        };
        let answered = answered.unwrap_or_else(|trouble| {
            failed += 1;
            json!({ "error": trouble.message(), "code": trouble.code() })
        });
        writeln!(output, "{answered}")?;
        // Whoever talks to us line by line waits for this answer before the next question.
        output.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_gets_one_line() {
        let answer = |line: &str| match line {
            "" => Err(Trouble::Input("invalid_json", "empty".to_owned())),
            "crash" => Err(Trouble::Policy(Failure::Trap("unreachable".to_owned()))),
            line => Ok(json!(line)),
        };
        let mut out = Vec::new();
        let failed =
            answer_lines(&b"a\n\ncrash\r\n\xff\nb"[..], &mut out, answer).expect("memory does not fail");
        let lines: Vec<_> = std::str::from_utf8(&out).expect("text").lines().collect();
        assert_eq!(failed, 3);
        assert_eq!(lines[0], "\"a\"");
        assert_eq!(lines[1], r#"{"code":"invalid_json","error":"empty"}"#);
        assert_eq!(lines[2], r#"{"code":"trap","error":"the policy crashed: unreachable"}"#);
        assert!(lines[3].contains("invalid_json"));
        assert_eq!((lines[4], lines.len()), ("\"b\"", 5));
    }

    #[test]
    fn what_is_no_case_is_named() {
        let code = |line: &str| parse::<scoring::Case>(line).err().map(|trouble| trouble.code());
        assert_eq!(code("{"), Some("invalid_json"));
        assert_eq!(code("[]"), Some("invalid_input"));
        assert_eq!(code(r#"{"roster":[{}]}"#), Some("invalid_input"));
        assert_eq!(code(r#"{"unknown":1}"#), None);
    }
}
