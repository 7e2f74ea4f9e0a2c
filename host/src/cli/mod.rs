//! The command line: one file per command. Data goes to stdout, everything else to stderr.

mod client;
mod config;
mod eval;
mod group;
mod policy;
mod replay;
mod serve;
mod settings;

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Largest component that is read: the most that a host can be set to take.
const ARTIFACT_BYTES_MAX: usize = 1 << 30;
/// Longest cell of a table, in characters, but for the last one of a line.
const CELL_CHARS_MAX: usize = 200;

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
            let _ = writeln!(io::stderr(), "error: {}", printable(&format!("{error:#}"), &['\n', '\t']));
            ExitCode::FAILURE
        }
    }
}

/// Writes data for the user.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(printable(text, &['\n', '\t']).as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes JSON for the user, indented.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Tells the user about something that is no failure.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "warning: {}", printable(text, &['\n', '\t']));
}

/// Escapes the control characters but for some: names and texts of policies, journals and hosts must not reach the
/// terminal's own language.
fn printable<'a>(text: &'a str, but: &[char]) -> Cow<'a, str> {
    let is_control = |letter: char| letter.is_control() && !but.contains(&letter);
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_control(letter) { out.extend(letter.escape_debug()) } else { out.push(letter) }
    }
    Cow::Owned(out)
}

/// Returns a cell of a table as it is shown: on one line, and cut unless it is the last one.
fn cell(text: &str, is_last: bool) -> String {
    let text = printable(text, &[]);
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((cut, _)) if !is_last => format!("{}…", &text[..cut]),
        _ => text.into_owned(),
    }
}

/// Lays rows out as columns: two spaces between, the last column in full.
fn table(rows: &[Vec<String>]) -> String {
    let shown = |row: &Vec<String>| {
        let cells = row.iter().enumerate();
        cells.map(|(column, text)| cell(text, column + 1 == row.len())).collect::<Vec<_>>()
    };
    let rows: Vec<_> = rows.iter().map(shown).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    // The width of a last cell is nobody's.
    let width = |column: usize| {
        let cells = rows.iter().filter(|row| column + 1 < row.len()).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
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
        assert_eq!(table(&[vec!["a".to_owned()], rows[1].clone()]), "a\nccc  d\n");
    }

    #[test]
    fn what_strangers_named_is_shown_on_one_line_within_bounds() {
        let long = "é".repeat(100_000);
        let rows = [vec!["a\u{1b}[2J\nb".to_owned(), "\0".to_owned()], vec![long.clone(), long.clone()]];
        let cut = "é".repeat(CELL_CHARS_MAX);
        assert_eq!(table(&rows), format!("{:201}  \\0\n{cut}…  {long}\n", "a\\u{1b}[2J\\nb"));
        assert_eq!(printable("a\r\n\tb\u{7}", &['\n', '\t']), "a\\r\n\tb\\u{7}");
        assert!(matches!(printable("plain\n", &['\n']), Cow::Borrowed("plain\n")));
    }
}
