//! Every setting of a host: one typed tree, read once at start and passed down.
//!
//! Invariants: a later layer wins (defaults < file < environment < flags); a [`Config`] that [`load`] returned is valid
//! as a whole; an unknown key in the file or on the command line is a problem, never ignored; all problems are
//! reported at once.

mod field;
mod layers;
mod rules;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use field::{Authority, Format};
pub(crate) use field::{Field, Raw};
pub use layers::{Layers, Loaded, Origin, Problems, load};

/// One setting, as the layers and `fulcrum config print` see it.
pub(crate) struct Setting {
    /// Its table in the file, empty for the top level.
    pub(crate) table: &'static str,
    /// Its name within the table.
    pub(crate) name: &'static str,
    /// What it means, lines joined.
    pub(crate) about: &'static str,
    /// Reads a value into the tree.
    pub(crate) set: fn(&mut Config, &Raw<'_>) -> Result<(), String>,
    /// Writes the value as TOML; `None` when it is not set.
    pub(crate) get: fn(&Config) -> Option<String>,
}

impl Setting {
    /// Returns the name with its table, for example `policy.poll_ms`.
    pub(crate) fn key(&self) -> String {
        if self.table.is_empty() { self.name.to_owned() } else { format!("{}.{}", self.table, self.name) }
    }

    /// Returns the environment variable, for example `FULCRUM_POLICY_POLL_MS`.
    pub(crate) fn variable(&self) -> String {
        format!("FULCRUM_{}", self.key().replace('.', "_").to_uppercase())
    }
}

/// Makes the tree and the list of settings from one text: a doc comment is also the setting's help.
macro_rules! tree {
    ($(
        $(#[doc = $doc:literal])+
        $place:ident: $kind:ident = $table:literal {
            $( $(#[doc = $about:literal])+ $field:ident: $type:ty = $default:expr; )+
        }
    )+) => {
        /// Everything a host is told when it starts.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Config { $( $(#[doc = $doc])+ pub $place: $kind, )+ }

        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $kind { $( $(#[doc = $about])+ pub $field: $type, )+ }

            impl Default for $kind {
                fn default() -> Self { Self { $( $field: $default, )+ } }
            }
        )+

        /// Every setting, top level first, tables in order.
        pub(crate) const SETTINGS: &[Setting] = &[$($(
            Setting {
                table: $table,
                name: stringify!($field),
                about: concat!($($about, "\n"),+),
                set: |config, raw| {
                    config.$place.$field = Field::read(raw)?;
                    Ok(())
                },
                get: |config| config.$place.$field.show(),
            },
        )+)+];
    };
}

tree! {
    /// The host itself; top level of the file.
    host: Host = "" {
        /// Address to listen on, as IP:PORT; port 0 takes any free one. Beyond loopback only with `insecure`.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080));
        /// Address clients reach this host at, as HOST:PORT (port 0: the port it listens on). With it the host is a
        /// row of its own roster and can recommend itself.
        advertise: Option<Authority> = None;
        /// Name of this host in rosters; its advertised address when not set.
        instance_id: Option<String> = None;
        /// Failure domain or place of this host, empty when unknown.
        zone: String = String::new();
        /// Relative capacity of this host: 1.0 is a standard instance, 2.0 takes twice as much.
        capacity: f64 = 1.0;
        /// Allows listening beyond loopback. Whoever reaches the port can then change policies, which is running
        /// code: only for networks where everyone may.
        insecure: bool = false;
        /// Folder for everything the host keeps; made if missing.
        data_dir: PathBuf = PathBuf::from("fulcrum-data");
        /// Folder watched for policies (`NAME.wasm`, `NAME.json`); `policies` in `data_dir` when not set. Made if
        /// missing.
        policies_dir: Option<PathBuf> = None;
        /// Largest request body, in bytes.
        body_bytes_max: u64 = 1024 * 1024;
        /// Time running requests get to finish once the host is told to stop, in milliseconds.
        drain_ms: u64 = 10_000;
    }
    /// Policies: which one serves, and what one may use.
    policy: Policy = "policy" {
        /// Policy that serves the scoring role.
        scoring: String = crate::embedded::DEFAULT_SCORING.to_owned();
        /// Policy that plans the claims of groups without one of their own.
        claiming: String = crate::embedded::DEFAULT_CLAIMING.to_owned();
        /// Longest time one scoring decision may take, in milliseconds; then the host decides by itself.
        scoring_deadline_ms: u64 = 10;
        /// Longest time one claim plan may take, in milliseconds.
        claiming_deadline_ms: u64 = 1000;
        /// Longest time loading and configuring a policy may take, in milliseconds.
        load_deadline_ms: u64 = 10_000;
        /// Memory one policy instance may use, in MiB.
        memory_mib: u64 = 64;
        /// Largest policy file, in MiB.
        artifact_mib_max: u64 = 64;
        /// Time between two looks at the policies folder when no change was announced, in milliseconds.
        poll_ms: u64 = 2000;
        /// Time a policy file must stay the same before it is read, in milliseconds.
        settle_ms: u64 = 100;
    }
    /// Events and their topics.
    events: Events = "events" {
        /// Partitions of a topic that is made by the first event published to it.
        default_partitions: u64 = 4;
    }
    /// Consumer groups, until `PUT /groups/{group}` says otherwise.
    group: Group = "group" {
        /// Time between two claim cycles of a group when nothing happens, in milliseconds.
        interval_ms: u64 = 10_000;
        /// Time a member without a `ttlMs` of its own may be silent, in milliseconds.
        ownership_expiry_ms: u64 = 30_000;
        /// Time an old owner may take to release a partition, in milliseconds.
        handover_deadline_ms: u64 = 30_000;
        /// Time joins and other changes are gathered before a claim cycle runs, in milliseconds.
        gather_ms: u64 = 100;
    }
    /// Heartbeats of instances and agents.
    heartbeat: Heartbeat = "heartbeat" {
        /// Time between two heartbeats of an instance, in milliseconds.
        interval_ms: u64 = 5000;
        /// Age of the last heartbeat at which an instance or agent counts as dead, in milliseconds.
        ttl_ms: u64 = 15_000;
    }
    /// Sessions of clients.
    session: Session = "session" {
        /// Refuses to open a session (429) when no agent is ready; else it opens without an agent.
        require_agent: bool = true;
        /// Time a client stays bound to its agent after its last session call, in milliseconds.
        binding_ttl_ms: u64 = 30 * 60 * 1000;
        /// Time after its last use at which a session that was not closed is forgotten, in milliseconds.
        ttl_ms: u64 = 60 * 60 * 1000;
    }
    /// What the host writes to stderr.
    log: Log = "log" {
        /// `text` for people or `json`, one object per line.
        format: Format = Format::Text;
        /// What to log: `error`, `warn`, `info`, `debug`, `trace`, also per module (`info,fulcrum_policy=debug`).
        filter: String = "info".to_owned();
    }
}

impl Config {
    /// Returns the folder watched for policies.
    #[must_use]
    pub fn policies_dir(&self) -> PathBuf {
        self.host.policies_dir.clone().unwrap_or_else(|| self.host.data_dir.join("policies"))
    }

    /// Returns the folder where the last good version of each policy is kept.
    #[must_use]
    pub fn keep_dir(&self) -> PathBuf {
        self.host.data_dir.join("state").join("policies")
    }

    /// Returns the file that holds topics, events and groups.
    #[must_use]
    pub fn store_file(&self) -> PathBuf {
        self.host.data_dir.join("store.db")
    }

    /// Returns what a group is set to until it is told otherwise.
    #[must_use]
    pub fn group_defaults(&self) -> fulcrum_coordinator::groups::Spec {
        let mut spec = fulcrum_coordinator::groups::Spec::default();
        spec.settings.interval = Duration::from_millis(self.group.interval_ms);
        spec.settings.ownership_expiry = Duration::from_millis(self.group.ownership_expiry_ms);
        spec.settings.handover_deadline = Duration::from_millis(self.group.handover_deadline_ms);
        spec.gather = Duration::from_millis(self.group.gather_ms);
        spec
    }

    /// Returns the limits policies run within.
    #[must_use]
    pub fn policy_limits(&self) -> fulcrum_policy::Limits {
        let bytes = |mib: u64| usize::try_from(mib * 1024 * 1024).unwrap_or(usize::MAX);
        fulcrum_policy::Limits {
            memory_bytes: bytes(self.policy.memory_mib),
            artifact_bytes: bytes(self.policy.artifact_mib_max),
            scoring_deadline: Duration::from_millis(self.policy.scoring_deadline_ms),
            claiming_deadline: Duration::from_millis(self.policy.claiming_deadline_ms),
            load_deadline: Duration::from_millis(self.policy.load_deadline_ms),
            ..fulcrum_policy::Limits::default()
        }
    }
}
