//! A script with everything it starts: it does not outlive this program.
//!
//! Invariant: while the script runs, SIGTERM, SIGINT, SIGHUP and SIGQUIT end it and its children, and then this program. A
//! terminal sends them only to the group in front, which the script is not in.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{self, SignalKind, signal};

use crate::cli::serve::Stops;

/// Time a script that is told to end may take to clean up.
const CLEAN_UP: Duration = Duration::from_secs(2);

const UNHEARD: &str = "cannot listen for signals";

/// Runs a command as the leader of a process group of its own until it ends, then `then` with how it ended.
///
/// Errors if it cannot be run, or if a signal came; then its group is gone. What is heard once no longer ends the program
/// by itself: that is why `then` runs here.
pub(super) fn run(
    command: Command,
    then: impl FnOnce(ExitStatus) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let result = runtime.block_on(run_heard(command, then));
    // What was given up is not waited for.
    runtime.shutdown_background();
    result
}

async fn run_heard(
    mut command: Command,
    then: impl FnOnce(ExitStatus) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    // Before the script: a signal in between must not be missed.
    let mut stops = Stops::new().context(UNHEARD)?;
    let [hangup, quit] = [SignalKind::hangup(), SignalKind::quit()].map(signal);
    let mut others = (hangup.context(UNHEARD)?, quit.context(UNHEARD)?);
    let mut child =
        command.process_group(0).spawn().context("cannot run sh, which build.sh is written for")?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a child has an id");
    let mut ended = tokio::task::spawn_blocking(move || child.wait());
    let status = tokio::select! {
        status = &mut ended => status.context("waiting for build.sh crashed")?.context("cannot wait for build.sh")?,
        () = next(&mut stops, &mut others) => {
            // A group that is gone by itself needs no signal.
            let _ = kill_process_group(group, Signal::TERM);
            drop(tokio::time::timeout(CLEAN_UP, &mut ended).await);
            let _ = kill_process_group(group, Signal::KILL);
            bail!("told to stop; build.sh and what it started were ended");
        }
    };
    tokio::select! {
        result = tokio::task::spawn_blocking(move || then(status)) => result.context("the check crashed")?,
        () = next(&mut stops, &mut others) => bail!("told to stop; nothing was put anywhere"),
    }
}

/// Waits for any signal that ends a program.
async fn next(stops: &mut Stops, (hangup, quit): &mut (unix::Signal, unix::Signal)) {
    tokio::select! {
        () = stops.next() => {}
        _ = hangup.recv() => {}
        _ = quit.recv() => {}
    }
}
