//! `fulcrum serve`: runs a host until it is told to stop.

use std::io::IsTerminal;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::settings::Settings;
use crate::app::App;
use crate::config::{Config, Format, Log};

/// Stack of the threads that run policy code: a guest may use 512 KiB of it.
const STACK_BYTES: usize = 4 << 20;

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
The first line on stdout is `listening on http://HOST:PORT`; logs go to stderr.
SIGTERM or SIGINT drains and stops the host, a second one stops it at once.

Examples:
  fulcrum serve
  fulcrum serve --advertise lb1.example:8080 --listen 0.0.0.0:8080 --insecure
  fulcrum serve --set policy.scoring=weighted --policies-dir ./policies")]
pub(super) struct Serve {
    #[command(flatten)]
    settings: Settings,
}

impl Serve {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let loaded = self.settings.load()?;
        start_logging(&loaded.config.log)?;
        for warning in &loaded.warnings {
            tracing::warn!(warning, "setting ignored");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .context("cannot start the async runtime")?;
        let served = runtime.block_on(serve(&loaded.config));
        // What still runs on a blocking thread (a policy being compiled, an admin call that waits for it) must not
        // hold the exit up.
        runtime.shutdown_background();
        served
    }
}

async fn serve(config: &Config) -> anyhow::Result<()> {
    let mut stops = Stops::new().context("cannot listen for signals")?;
    let mut running = App::start(config).await?;
    super::print(&format!("listening on {}\n", running.url())).context("cannot write to stdout")?;
    tokio::select! {
        () = stops.next() => {}
        error = running.failed() => return Err(error),
    }
    tokio::select! {
        () = running.stop() => Ok(()),
        () = stops.next() => anyhow::bail!("told to stop a second time, running requests were cut off"),
    }
}

/// SIGTERM and SIGINT.
pub(super) struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn start_logging(log: &Log) -> anyhow::Result<()> {
    let filter = log.filter.parse::<EnvFilter>().context("cannot read log.filter")?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Else a line that cannot be written (a full disk, a reader that is gone) is told on stderr, and that panics.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match log.format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|error| anyhow::anyhow!(error))
    .context("cannot start logging")
}
