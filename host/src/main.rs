//! The `fulcrum` binary: arguments, then one command.

use std::process::ExitCode;

fn main() -> ExitCode {
    fulcrum::cli::main()
}
