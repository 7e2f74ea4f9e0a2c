//! Every setting of a host: one typed tree, read once at start and passed down.
//!
//! Invariants: a later layer wins (defaults < file < environment < flags); a [`Config`] that [`load`] returned is valid
//! as a whole; an unknown key in the file or on the command line is a problem, never ignored; all problems are
//! reported at once.

mod field;
mod layers;
mod rules;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
pub use field::{Authority, Format, JournalMode, Wasi};
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
        /// Time `/readyz` says 503 before the host takes no more connections, once it is told to stop, in milliseconds:
        /// as long as a load balancer in front takes to notice.
        drain_notice_ms: u64 = 0;
        /// Time running requests get to finish once the host is told to stop, in milliseconds.
        drain_ms: u64 = 10_000;
        /// Most connections at once; more wait to be taken in.
        connections_max: u64 = 50_000;
        /// Time a connection may take to send the head of its next request, idle time between two requests included,
        /// in milliseconds; then it is closed.
        header_timeout_ms: u64 = 120_000;
        /// Largest size of the file that holds events and groups, in bytes; 0 leaves it to the disk. Events get seven
        /// eighths of it, then publishing is refused (503 `disk_full`) while everything else goes on.
        store_bytes_max: u64 = 0;
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
        /// Longest time compiling a policy may take, in milliseconds.
        compile_deadline_ms: u64 = 120_000;
        /// Longest time one call may take while a policy is loaded, in milliseconds.
        load_deadline_ms: u64 = 10_000;
        /// Memory one policy instance may use, in MiB.
        memory_mib: u64 = 64;
        /// Largest policy file, in MiB.
        artifact_mib_max: u64 = 64;
        /// `off` refuses policies that import WASI; `compat` gives them an empty one: no files, no network, no
        /// environment, clocks that stand still, chance from the seed of each decision.
        wasi: Wasi = Wasi::Off;
        /// Keeps compiled policies in `compiled` in `data_dir`, so that each is compiled once and not at every start.
        cache: bool = true;
        /// Most bytes of compiled policies kept; those not used for longest go first.
        cache_bytes_max: u64 = 512 * 1024 * 1024;
        /// Public keys, each in base64 or as the path of a file that holds it. With any, a policy file is refused unless
        /// one of them signed it (`fulcrum policy sign`); in a text, they are separated by commas, and an empty one is a
        /// mistake.
        trusted_keys: Vec<String> = Vec::new();
        /// Versions of each policy that `fulcrum policy rollback` can return to, the one in use included.
        keep_versions: u64 = 5;
        /// Most failures of a version among its first `promote_decisions` after it was promoted, or as a canary; one more,
        /// and what served before serves again.
        promote_failures_max: u64 = 5;
        /// Decisions and plans after which a promoted version has stood its trial.
        promote_decisions: u64 = 1000;
        /// Time between two looks at the policies folder when no change was announced, in milliseconds.
        poll_ms: u64 = 2000;
        /// Time a policy file must stay the same before it is read, in milliseconds.
        settle_ms: u64 = 100;
    }
    /// Events and their topics.
    events: Events = "events" {
        /// Partitions of a topic that is made by the first event published to it.
        default_partitions: u64 = 4;
        /// Deliveries a client may have in hand of one message group and topic; with so many it gets no more until it
        /// settles some.
        in_flight_max: u64 = 1000;
        /// Time a delivery is kept from others unless its subscription says otherwise, in milliseconds.
        invisible_ms: u64 = 60_000;
        /// Deliveries of one event after which it becomes a dead letter, unless its subscription says otherwise.
        deliveries_max: u64 = 17;
        /// Positions of one partition that a message group reads ahead of the lowest one it has not settled.
        window: u64 = 10_000;
        /// Time after its last use at which a client's own group (BROADCAST, MULTICAST) is dropped, in milliseconds.
        private_ttl_ms: u64 = 10 * 60 * 1000;
        /// Requests that may wait for their reply at once.
        requests_max: u64 = 10_000;
        /// Age at which events go, in milliseconds; 0 keeps them for ever. This and the next two hold for topics that do
        /// not say otherwise. Events that a group still needs stay.
        retention_ms: u64 = 7 * 24 * 3600 * 1000;
        /// Bytes of events of a partition beyond which the oldest go; 0 is no limit. Events that a group still needs
        /// stay.
        retention_bytes: u64 = 0;
        /// Bytes of events of a partition beyond which the oldest go even if a group still needs them; 0 is no limit.
        /// Message groups get them as dead letters, members of other groups see a gap.
        hard_limit_bytes: u64 = 0;
        /// Time between two looks for events that may go, in milliseconds.
        retention_interval_ms: u64 = 60_000;
    }
    /// How fast what comes from outside may come; without a value there is no limit. Beyond, calls are refused (429).
    limits: Limits = "limits" {
        /// Events published to one topic each second.
        topic_events_per_sec: Option<u64> = None;
        /// Bytes of events published to one topic each second. A single event always fits.
        topic_bytes_per_sec: Option<u64> = None;
        /// Turns started and messages published on one session each second.
        session_turns_per_sec: Option<u64> = None;
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
    /// The decision journal, in `journal` in `data_dir`.
    journal: Journal = "journal" {
        /// `off`; `sampled` records every `sample_every`-th scoring decision, `full` each one. Both record every plan.
        mode: JournalMode = JournalMode::Off;
        /// Every how many-th scoring decision `sampled` records.
        sample_every: u64 = 100;
        /// Most bytes of recorded decisions; the oldest go first.
        bytes_max: u64 = 256 * 1024 * 1024;
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
        /// Time a turn may take that does not say, in milliseconds.
        turn_timeout_ms: u64 = 60_000;
        /// Time a chunk of an answer waits for a client that reads slowly before it is refused, in milliseconds.
        chunk_wait_ms: u64 = 5000;
        /// Largest chunk of an answer, and largest message published to a session, in bytes.
        chunk_bytes_max: u64 = 256 * 1024;
        /// Most chunks a session keeps for its subscriber.
        replay_chunks: u64 = 256;
        /// Most bytes a session keeps for its subscriber, but for a single chunk.
        replay_bytes: u64 = 256 * 1024;
        /// Memory all sessions together keep for their subscribers, in MiB; beyond, the oldest chunks are dropped.
        replay_mib_max: u64 = 256;
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

    /// Returns the folder for what is kept of policies beside their files: versions, candidates, bindings, promotions.
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

    /// Returns the bounds and defaults of message groups.
    #[must_use]
    pub fn pulls(&self) -> fulcrum_coordinator::pulls::Settings {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        fulcrum_coordinator::pulls::Settings {
            in_flight_max: narrow(self.events.in_flight_max),
            invisible: Duration::from_millis(self.events.invisible_ms),
            deliveries_max: narrow(self.events.deliveries_max),
            private_ttl: Duration::from_millis(self.events.private_ttl_ms),
            window: self.events.window,
            ..fulcrum_coordinator::pulls::Settings::default()
        }
    }

    /// Returns how much of a topic is kept that does not say otherwise.
    #[must_use]
    pub fn retention(&self) -> fulcrum_coordinator::retention::Limits {
        let limit = |value: u64| Some(value).filter(|value| *value > 0);
        fulcrum_coordinator::retention::Limits {
            age_ms: limit(self.events.retention_ms),
            bytes: limit(self.events.retention_bytes),
            hard_bytes: limit(self.events.hard_limit_bytes),
        }
    }

    /// Returns how fast things may come.
    #[must_use]
    pub fn rates(&self) -> fulcrum_coordinator::rates::Settings {
        let limit = |value: Option<u64>| value.and_then(|value| NonZeroU32::new(u32::try_from(value).ok()?));
        fulcrum_coordinator::rates::Settings {
            topic_events_per_sec: limit(self.limits.topic_events_per_sec),
            topic_bytes_per_sec: limit(self.limits.topic_bytes_per_sec),
            session_turns_per_sec: limit(self.limits.session_turns_per_sec),
        }
    }

    /// Returns how the store is opened.
    #[must_use]
    pub fn store_options(&self) -> fulcrum_store::Options {
        let file_bytes_max = Some(self.host.store_bytes_max).filter(|bytes| *bytes > 0);
        fulcrum_store::Options { file_bytes_max, ..fulcrum_store::Options::default() }
    }

    /// Returns how turns behave.
    #[must_use]
    pub fn turns(&self) -> fulcrum_coordinator::turns::Settings {
        let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        fulcrum_coordinator::turns::Settings {
            timeout: Duration::from_millis(self.session.turn_timeout_ms),
            chunk_wait: Duration::from_millis(self.session.chunk_wait_ms),
            chunk_bytes_max: size(self.session.chunk_bytes_max),
            replay_chunks_max: size(self.session.replay_chunks),
            replay_bytes_max: size(self.session.replay_bytes),
            replay_bytes_total_max: size(self.session.replay_mib_max * 1024 * 1024),
            // Three signs of life within the shorter time to live.
            beat: Duration::from_millis(self.heartbeat.ttl_ms.min(self.session.ttl_ms) / 3),
            ..fulcrum_coordinator::turns::Settings::default()
        }
    }

    /// Returns how decisions are recorded, if they are.
    #[must_use]
    pub fn journal_settings(&self) -> Option<crate::journal::Settings> {
        let sample_every = match self.journal.mode {
            JournalMode::Off => return None,
            JournalMode::Sampled => self.journal.sample_every,
            JournalMode::Full => 1,
        };
        Some(crate::journal::Settings {
            folder: self.host.data_dir.join("journal"),
            sample_every,
            bytes_max: self.journal.bytes_max,
            header: fulcrum_policy::journal::Header::new(env!("CARGO_PKG_VERSION"), &self.policy_limits()),
        })
    }

    /// Returns what a version may fail after its promotion, unless that says otherwise.
    #[must_use]
    pub fn promote_budget(&self) -> fulcrum_policy::probation::Budget {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        fulcrum_policy::probation::Budget {
            failures_max: narrow(self.policy.promote_failures_max),
            decisions: narrow(self.policy.promote_decisions),
            renews: false,
        }
    }

    /// Returns the folder where compiled policies are kept.
    #[must_use]
    pub fn cache_dir(&self) -> PathBuf {
        self.host.data_dir.join("compiled")
    }

    /// Returns the keys that policy files must be signed with, if any; reads those that are given as files.
    ///
    /// Errors with the first entry that is no key.
    pub fn trusted_keys(&self) -> anyhow::Result<Option<fulcrum_policy::TrustedKeys>> {
        let mut keys = Vec::new();
        for (at, entry) in self.policy.trusted_keys.iter().enumerate() {
            // Not repeated in the message: logs are no place for it.
            if fulcrum_policy::trust::holds_private_key(entry) {
                anyhow::bail!(
                    "policy.trusted_keys: an entry is a private key; give the public one, and make a new pair (entries \
                     are separated by commas, without quotes or brackets)"
                );
            }
            // Base64 of 32 bytes has 44 characters and ends with =, which nobody calls a file.
            let is_key = entry.len() == 44 && entry.ends_with('=');
            // Private keys have many forms (base64 with and without its end, hex, PEM): only the name of a file is shown.
            let shown = if is_file_name(entry) { format!("{entry:?}") } else { format!("entry {}", at + 1) };
            let bad = || {
                format!(
                    "policy.trusted_keys: cannot use {shown} (entries are public keys or files that hold one, separated \
                     by commas, without quotes or brackets)"
                )
            };
            let key =
                if is_key { entry.clone() } else { std::fs::read_to_string(entry).with_context(bad)? };
            fulcrum_policy::TrustedKeys::parse([key.as_str()]).with_context(bad)?;
            keys.push(key);
        }
        Ok(fulcrum_policy::TrustedKeys::parse(keys.iter().map(String::as_str))?)
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
            compile_deadline: Duration::from_millis(self.policy.compile_deadline_ms),
            load_deadline: Duration::from_millis(self.policy.load_deadline_ms),
            ..fulcrum_policy::Limits::default()
        }
    }
}

/// Says whether a text is a file's name and no key in some form: a file that is there, or a name with an extension, as
/// none of those forms have dots.
fn is_file_name(text: &str) -> bool {
    let path = Path::new(text);
    path.is_file() || path.extension().is_some() && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use fulcrum_policy::trust::PrivateKey;

    use super::*;

    #[test]
    fn a_private_key_among_the_trusted_ones_is_not_repeated() {
        let private = PrivateKey::from_seed(&[3; 32]).to_text();
        let private = private.trim();
        let secret = private.split(' ').next_back().expect("its second word");
        for entry in [
            private.to_owned(),
            format!("[\"{private}\"]"),
            format!("'{private}'"),
            format!("x {private} y"),
            // In place of a private key without its mark: a number that is no key to trust.
            format!("{}=", "A".repeat(43)),
            // Other forms of one.
            secret.trim_end_matches('=').to_owned(),
            format!("{secret}\n"),
            "03".repeat(32),
            format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n"),
            format!("my.key {secret}"),
        ] {
            let mut config = Config::default();
            config.policy.trusted_keys = vec![entry.clone()];
            let error = format!("{:#}", config.trusted_keys().expect_err("no key to trust"));
            assert!(error.contains("separated by commas"), "{error}");
            let core = secret.trim_end_matches('=');
            assert!(!error.contains(core) && !error.contains(&entry), "{error}");
            assert!(!error.contains(&format!("{entry:?}")), "{error}");
        }
    }

    #[test]
    fn a_file_of_keys_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let plain = folder.path().join("key");
        std::fs::write(&plain, "no key").expect("written");
        for entry in ["nowhere.pub", "no/where.pub", plain.to_str().expect("a plain name")] {
            let mut config = Config::default();
            config.policy.trusted_keys = vec![entry.to_owned()];
            let error = format!("{:#}", config.trusted_keys().expect_err("no key to trust"));
            assert!(error.contains(entry) && !error.contains("no key"), "{error}");
        }
    }

    #[test]
    fn trusted_keys_are_counted() {
        let mut config = Config::default();
        let count = |config: &Config| config.trusted_keys().expect("keys").map(|keys| keys.count());
        assert_eq!(count(&config), None);
        config.policy.trusted_keys = [1, 2].map(|seed| PrivateKey::from_seed(&[seed; 32]).public()).to_vec();
        assert_eq!(count(&config), Some(2));
    }

    #[test]
    fn every_setting_is_in_the_docs() {
        let docs = include_str!("../../docs/OPERATING.md");
        let (_, section) = docs.split_once("\n## Settings\n").expect("it has the section");
        let (section, _) = section.split_once("\n## ").expect("others follow");
        let plain = |cell: &str| cell.trim_matches(['`', '"']).to_owned();
        let rows: Vec<Vec<&str>> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .map(|row| row.split(" | ").collect())
            .collect();
        let told: Vec<_> = rows.iter().map(|row| plain(row[0])).collect();
        assert_eq!(told, SETTINGS.iter().map(Setting::key).collect::<Vec<_>>());
        let default = Config::default();
        for (setting, row) in SETTINGS.iter().zip(rows) {
            assert_eq!(plain(row[3]), setting.variable(), "{}", setting.key());
            if let Some(value) = (setting.get)(&default) {
                assert_eq!(plain(row[1]), plain(&value), "{}", setting.key());
            }
        }
    }
}
