//! The life cycle of policy versions by order: push, remove, promote, roll back.
//!
//! Invariants: the policies folder says what is in use, so every order ends in files there; an order is carried out as a
//! whole or not at all, a kill of the host included; what comes into use was proven before anything changed, on the
//! thread of whoever orders it and not on that of the reload task.

use std::path::PathBuf;
use std::sync::Arc;

use fulcrum_core::time::millis;
use serde_json::Value;

use super::folder::{SIDECAR_BYTES_MAX, is_policy_name, parse_config};
use super::keep::Version;
use super::life::Gone;
use super::manager::{BindError, Manager};
use super::signed::{Signatures, SignedConfig};
use super::task::{Proven, prove_live, version_of};
use crate::artifact::{Artifact, digest};
use crate::proof;
use crate::refusal::Refusal;

/// The word that stands for the version compiled into the host where a digest is expected.
pub const EMBEDDED: &str = "embedded";
/// Longest configuration, in bytes.
pub const CONFIG_BYTES_MAX: usize = SIDECAR_BYTES_MAX;

/// What somebody wants to put into service, or to keep as a candidate. What is `None` stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Upload {
    /// A component.
    pub component: Option<Vec<u8>>,
    /// Text of the component's `.sig` file.
    pub component_signature: Option<String>,
    /// Text of a configuration file.
    pub config: Option<String>,
    /// Text of the configuration's `.sig` file.
    pub config_signature: Option<String>,
    /// Whether it is to be kept as the candidate.
    pub is_candidate: bool,
}

/// What a promotion shall bind, and what the version may fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promote {
    /// Binds scoring to the name.
    pub scoring: bool,
    /// Binds claiming to the name.
    pub claiming: bool,
    /// Groups whose own policy becomes the name.
    pub groups: Vec<String>,
    /// Most failures among the first decisions; `None` is what the settings say.
    pub failures_max: Option<u32>,
    /// Decisions after which it has stood the test, at least 1; `None` is what the settings say.
    pub decisions: Option<u32>,
    /// Whether versions on trial count as passed where the way back would lead to them; without anything else to promote,
    /// only that.
    pub accept: bool,
    /// Whether a version that the host took back may be tried once more.
    pub again: bool,
    /// Groups that name the policy in their own settings: it serves them already.
    pub own_groups: Vec<String>,
    /// What it was tried on beside what serves: bound if nothing else is said and the name is bound to nothing.
    pub tried_on: TriedOn,
}

/// What a shadow answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of Promote")]
pub struct TriedOn {
    pub scoring: bool,
    pub claiming: bool,
    pub groups: Vec<String>,
}

/// An order was refused, or could not be carried out; nothing changed, unless the message says so.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("a policy's name is 1 to 64 of letters, digits, - and _, and starts with a letter or digit")]
    Name,
    #[error("there is no policy `{0}`")]
    Unknown(String),
    #[error("there is no policy `{0}` to configure; push its component, too")]
    NoComponent(String),
    #[error("nothing was sent: give a component, a configuration, or both")]
    Nothing,
    #[error("{0}")]
    Refused(Refusal),
    #[error("the policy `{0}` is compiled into the host and has no files to remove")]
    Embedded(String),
    #[error(
        "the policy `{0}` is removed already; `fulcrum policy rollback {0}` brings its last version back, \
         `fulcrum policy push` another one"
    )]
    Removed(String),
    #[error(
        "of the policy `{0}` there is only a candidate; drop that with `fulcrum policy remove {0} --candidate`"
    )]
    OnlyCandidate(String),
    #[error("the policy `{0}` has no candidate")]
    NoCandidate(String),
    #[error(
        "at most {max} policies can have a candidate; drop one with `fulcrum policy remove NAME --candidate`"
    )]
    TooManyCandidates { max: usize },
    #[error(
        "the policy `{name}` is bound to {}; bind another one first (`fulcrum policy bind`), or force it (--force)",
        roles.join(", ")
    )]
    InUse { name: String, roles: Vec<String> },
    #[error(
        "the promotion of `{promoted}` is on trial and would return to `{name}`: accept it first \
         (`fulcrum policy promote {promoted} --accept`), or roll it back (`fulcrum policy rollback {promoted}`)"
    )]
    WayBack { name: String, promoted: String },
    #[error("no version of `{name}` that is kept begins with {digest:?}; kept are: {}", kept.join(", "))]
    NoVersion { name: String, digest: String, kept: Vec<String> },
    #[error("{digest:?} begins several versions of `{name}`: {}", kept.join(", "))]
    Ambiguous { name: String, digest: String, kept: Vec<String> },
    #[error(
        "there is no former version of `{0}` to return to; `fulcrum policy status {0}` lists what is kept, and \
         `fulcrum policy push` brings another one"
    )]
    NoFormer(String),
    #[error("that version of `{0}` is in use already")]
    AlreadyInUse(String),
    #[error("the candidate of `{name}` cannot be used: {message}")]
    Unusable { name: String, message: String },
    #[error(
        "there is nothing to promote: `{0}` has no candidate and is bound to all that already; push one with \
         `fulcrum policy push --candidate`"
    )]
    NothingToPromote(String),
    #[error(
        "`{0}` is bound to nothing yet; say what it shall serve: scoring, claiming or groups (--scoring, --claiming, \
         --group)"
    )]
    NoRole(String),
    #[error(
        "`{name}` {version} is on trial ({asked} of {decisions} decisions, {failed} of at most {failures_max} \
         failures) and is no way back yet: wait for the end of its trial, accept it (--accept), or roll it back first \
         (`fulcrum policy rollback {name}`)"
    )]
    OnTrial { name: String, version: String, asked: u32, decisions: u32, failed: u32, failures_max: u32 },
    #[error(
        "`{name}` {version} was taken back when it served last: {reason}; to try it once more, say so (--again)"
    )]
    TakenBack { name: String, version: String, reason: String },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(
        "another order or file about `{0}` came first; see how it stands (`fulcrum policy status {0}`), and order again"
    )]
    Overtaken(String),
    #[error("cannot write the policies folder {}: {error}; nothing changed", path.display())]
    Folder { path: PathBuf, error: String },
    #[error("cannot store what is kept of policies in {}: {error}; nothing changed", path.display())]
    State { path: PathBuf, error: String },
    #[error(transparent)]
    Gone(#[from] Gone),
}

impl Manager {
    /// Proves a version and puts it into the folder and into use, or keeps it as the candidate. Blocks while it is
    /// compiled and proven.
    pub fn push(&self, name: &str, upload: Upload) -> Result<(), Error> {
        if !is_policy_name(name) {
            return Err(Error::Name);
        }
        if upload.component.is_none() && upload.config.is_none() {
            return Err(Error::Nothing);
        }
        let is_candidate = upload.is_candidate;
        let wanted = name.to_owned();
        let basis = self.work(move |task| task.basis(&wanted, is_candidate))?;
        let taken = Taken {
            component: upload.component.is_none().then(|| basis.digest().map(str::to_owned)),
            config: upload.config.is_none().then(|| basis.config.clone()),
        };
        let mut signatures = basis.signatures;
        let mut artifact = basis.artifact;
        let digest = match (&upload.component, &artifact) {
            (Some(wasm), _) => digest(wasm),
            (None, Some(artifact)) => artifact.digest().to_owned(),
            (None, None) => return Err(Error::NoComponent(name.to_owned())),
        };
        if upload.component.is_some() {
            signatures.component = upload.component_signature;
            artifact = artifact.filter(|artifact| artifact.digest() == digest);
        }
        let mut config = basis.config;
        if let Some(text) = upload.config {
            config = parse_config(name, &text).map_err(Error::Refused)?;
            signatures.config = upload.config_signature.map(|signature| SignedConfig { text, signature });
        }
        let (version, at_ms, came_by, left) = (String::new(), 0, None, None);
        let version = Version { digest, config, signatures, version, at_ms, came_by, left };
        self.check(name, &version)?;
        let proven = self.prove(name, artifact, upload.component.as_deref(), &version)?;
        let (name, wasm) = (name.to_owned(), upload.component);
        self.work(move |task| task.push(&name, proven, wasm, is_candidate, &taken))?
    }

    /// Drops the candidate of a name.
    pub fn drop_candidate(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.work(move |task| task.drop_candidate(&name))?
    }

    /// Removes the files of a name; its versions and its candidate are kept.
    ///
    /// `own_groups` are the groups that name it in their own settings: it is in use for them, too. `force` removes what is in
    /// use, but not what a promotion on trial would return to.
    pub fn remove(&self, name: &str, force: bool, own_groups: Vec<String>) -> Result<(), Error> {
        let name = name.to_owned();
        self.work(move |task| task.remove(&name, force, &own_groups))?
    }

    /// Puts a former version into the folder and into use: that with this digest, given by its first digits or as
    /// [`EMBEDDED`], else the one before the one in use. Returning from the last promotion undoes what that bound, too,
    /// and returning again goes forth to it, on trial anew.
    ///
    /// What is in use decides nothing any more from the beginning. Blocks while the version is loaded and proven, unless
    /// it is loaded still.
    pub fn roll_back(&self, name: &str, to: Option<&str>) -> Result<(), Error> {
        let (wanted, to) = (name.to_owned(), to.map(str::to_owned));
        let begin = move |task: &mut super::task::Task| task.begin_rollback(&wanted, to.as_deref());
        let Some(choice) = self.work(begin)?? else { return Ok(()) };
        let _resume = Resume { manager: self, name };
        let proven = match &choice.version {
            Some(version) => Some(self.prove(name, choice.artifact, choice.wasm.as_deref(), version)?),
            None => None,
        };
        let (name, turn, used) = (name.to_owned(), choice.turn, choice.used);
        self.work(move |task| task.end_rollback(&name, proven, turn, used.as_ref()))?
    }

    /// Puts the candidate into use, binds roles and groups to the name, and puts it on trial. Without a candidate the
    /// version in use is bound. Blocks until it serves.
    pub fn promote(&self, name: &str, wish: Promote) -> Result<(), Error> {
        let name = name.to_owned();
        self.work(move |task| task.promote(&name, &wish))?
    }

    fn check(&self, name: &str, version: &Version) -> Result<(), Error> {
        let (name, version) = (name.to_owned(), version.clone());
        self.work(move |task| task.check_kept(&name, &version))?.map_err(Error::Refused)
    }

    /// Loads a version, unless its component is loaded, and self-tests it.
    fn prove(
        &self,
        name: &str,
        artifact: Option<Arc<Artifact>>,
        wasm: Option<&[u8]>,
        version: &Version,
    ) -> Result<Proven, Error> {
        let begun = self.clock.now();
        let proven = || -> Result<Proven, Refusal> {
            let artifact = match artifact {
                Some(artifact) => artifact,
                None => Artifact::load(&self.runtime, wasm.unwrap_or_default())?,
            };
            let loaded = artifact.configured(name, version.config.clone())?;
            proof::run(&loaded, &*self.clock)?;
            prove_live(&loaded, &*self.host, &*self.clock)?;
            let load_ms = millis(self.clock.now().since(begun));
            Ok(Proven { loaded: Arc::new(loaded), signatures: version.signatures.clone(), load_ms })
        };
        proven().map_err(Error::Refused)
    }
}

/// Lets a version decide again whose rollback failed.
struct Resume<'a> {
    manager: &'a Manager,
    name: &'a str,
}

impl Drop for Resume<'_> {
    fn drop(&mut self) {
        let name = self.name.to_owned();
        // After a rollback that was carried out there is nothing to do.
        let _resumed = self.manager.work(move |task| task.resume(&name));
    }
}

impl Proven {
    /// Returns what is to be kept of it.
    pub(super) fn version(&self, at_ms: u64) -> Version {
        version_of(&self.loaded, self.signatures.clone(), at_ms)
    }
}

/// What an upload that brings only a part is completed with.
pub(super) struct Basis {
    pub artifact: Option<Arc<Artifact>>,
    pub config: Value,
    pub signatures: Signatures,
}

impl Basis {
    /// Returns the digest of its component.
    fn digest(&self) -> Option<&str> {
        self.artifact.as_ref().map(|artifact| artifact.digest())
    }

    /// Says whether it still has what an upload was completed with.
    pub(super) fn has(&self, taken: &Taken) -> bool {
        let Taken { component, config } = taken;
        component.as_ref().is_none_or(|component| component.as_deref() == self.digest())
            && config.as_ref().is_none_or(|config| *config == self.config)
    }
}

/// What an upload took from its basis, as it did not bring it itself.
pub(super) struct Taken {
    /// Digest of the component, if the basis had one.
    pub component: Option<Option<String>>,
    pub config: Option<Value>,
}

/// What is rolled back to.
pub(super) struct Choice {
    /// `None` is the embedded version, or none.
    pub version: Option<Version>,
    /// The same, loaded and proven.
    pub proven: Option<Proven>,
    pub artifact: Option<Arc<Artifact>>,
    pub wasm: Option<Vec<u8>>,
    pub turn: Turn,
    /// What was in use when this was chosen.
    pub used: Option<Version>,
}

/// What a rollback is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Another version.
    Plain,
    /// The last promotion is undone.
    Undo,
    /// The last promotion was undone and is made again.
    Forth,
}
