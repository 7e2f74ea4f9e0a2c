//! `fulcrum group member`: a member of a consumer group that prints what it reads.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use fulcrum_client::wire::Held;
use fulcrum_client::{Batch, Member, Options};
use serde_json::json;
use tokio::sync::watch;

use super::client::host_url;
use super::serve::Stops;

/// Commands about consumer groups.
#[derive(Debug, Subcommand)]
pub(super) enum Group {
    /// Join a group, print its events as JSON lines, checkpoint them; SIGINT or SIGTERM leaves
    Member(GroupMember),
}

impl Group {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let Self::Member(member) = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")?;
        runtime.block_on(member.run())
    }
}

/// Arguments of `group member`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each event is one line on stdout: {\"topic\",\"partition\",\"epoch\",\"offset\",\"event\"}. What the member owns goes to
stderr as it changes. An event is checkpointed after it was printed.

Examples:
  fulcrum group member --group billing --topic orders
  fulcrum group member --host http://lb1:8080 --host http://lb2:8080 --group billing --topic orders --member worker-1")]
pub(super) struct GroupMember {
    /// URL of a host, HOST:PORT stands for http://HOST:PORT; more of them are asked when the first is lost
    #[arg(
        long,
        value_name = "URL",
        env = "FULCRUM_HOST",
        value_delimiter = ',',
        value_parser = host_url,
        default_value = "http://127.0.0.1:8080"
    )]
    host: Vec<String>,
    /// Group to join; made if there is none
    #[arg(long)]
    group: String,
    /// Topic to read; may be given more than once
    #[arg(long, required = true)]
    topic: Vec<String>,
    /// Name of the member; a random one if not given
    #[arg(long, value_name = "ID")]
    member: Option<String>,
    /// Failure domain or place
    #[arg(long, default_value = "")]
    zone: String,
    /// Relative capacity
    #[arg(long, default_value_t = 1.0)]
    capacity: f64,
    /// Time the member may be silent before it counts as lost, in milliseconds; the group's setting if not given
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u64>,
    /// Fence a live member of the same name
    #[arg(long)]
    takeover: bool,
    /// Most events per checkpoint
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    max: u32,
}

impl GroupMember {
    async fn run(&self) -> anyhow::Result<()> {
        let mut stops = Stops::new().context("cannot listen for signals")?;
        let mut member = Member::join(self.options()).await.context("cannot join")?;
        let mut held = member.held_changes();
        held.mark_changed();
        loop {
            tokio::select! {
                () = stops.next() => break,
                changed = held.changed() => if changed.is_ok() { show(&mut held) },
                batch = member.next() => {
                    let batch = batch.context("out of the group")?;
                    print(&batch)?;
                    // Refused: somebody else owns it by now and prints these again.
                    if let Err(error) = batch.checkpoint().await {
                        super::warn(&format!("{error}; these events come again"));
                    }
                }
            }
        }
        member.leave().await.context("cannot leave")
    }

    fn options(&self) -> Options {
        let mut options = Options::new("", &self.group, &[]);
        options.hosts.clone_from(&self.host);
        options.topics.clone_from(&self.topic);
        options.zone.clone_from(&self.zone);
        if let Some(member) = &self.member {
            options.member.clone_from(member);
        }
        options.capacity = self.capacity;
        options.ttl = self.ttl_ms.map(Duration::from_millis);
        options.takeover = self.takeover;
        options.batch_max = self.max;
        options
    }
}

fn print(batch: &Batch) -> anyhow::Result<()> {
    let Held { place, epoch } = &batch.held;
    let mut lines = String::new();
    for event in &batch.events {
        let line = json!({ "topic": place.topic, "partition": place.partition, "epoch": epoch,
            "offset": event.offset, "event": event.event });
        lines.push_str(&line.to_string());
        lines.push('\n');
    }
    super::print(&lines)
}

fn show(held: &mut watch::Receiver<Vec<Held>>) {
    let names: Vec<_> = held
        .borrow_and_update()
        .iter()
        .map(|held| format!("{}/{}@{}", held.place.topic, held.place.partition, held.epoch))
        .collect();
    let _ = writeln!(std::io::stderr(), "owns {}: {}", names.len(), names.join(" "));
}
