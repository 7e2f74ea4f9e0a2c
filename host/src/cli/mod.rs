//! The command line: one file per command. Data goes to stdout, everything else to stderr.

mod client;
mod config;
mod eval;
mod group;
mod policy;
mod replay;
mod serve;
mod settings;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A balancing host whose decisions are WebAssembly.
#[derive(Debug, Parser)]
#[command(name = "fulcrum", version, max_term_width = 100, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a host
    Serve(serve::Serve),
    /// Write, check, try, push, promote and roll back policies, and see how they stand
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Make recorded decisions again, or let another policy make them
    Replay(replay::Replay),
    /// Take part in consumer groups
    #[command(subcommand)]
    Group(group::Group),
    /// Check or print the configuration a host would run with
    #[command(subcommand)]
    Config(config::Command),
}

/// Runs the command the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(command) => command.run(),
        Command::Policy(command) => command.run(),
        Command::Replay(command) => command.run(),
        Command::Group(command) => command.run(),
        Command::Config(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough, as in `fulcrum policy list | head -1`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes data for the user.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes JSON for the user, indented.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Tells the user about something that is no failure.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "warning: {text}");
}

/// Lays rows out as columns: two spaces between, the last column as it is.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "bb".to_owned()], vec!["ccc".to_owned(), "d".to_owned()]];
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }
}
