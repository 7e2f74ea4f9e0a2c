//! Finding the component of a digest, and configuring it.
//!
//! Invariant: whatever a journal names, no more than [`VERSIONS_MAX`] versions are kept, and no more than
//! [`CONFIGS_BYTES_MAX`] bytes of their configurations unless a single one has more. One that is asked for again is loaded
//! again, and answers the same.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use fulcrum_policy::artifact::digest;
use fulcrum_policy::journal::Record;
use fulcrum_policy::seat::Identity;
use fulcrum_policy::{Artifact, Loaded, Runtime};
use serde_json::{Map, Value};

use super::super::ARTIFACT_BYTES_MAX;
use super::super::policy;
use super::kept::Kept;
use crate::embedded;

/// Folders within folders that are looked into.
const DEPTH_MAX: u32 = 3;
/// Versions kept, and as many components.
const VERSIONS_MAX: usize = 32;
/// Bytes of their configurations.
const CONFIGS_BYTES_MAX: usize = 64 << 20;

/// Why a version cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unable {
    /// Its component is found nowhere.
    Missing,
    /// Its component is there; the reason says what is wrong.
    Unusable(Arc<str>),
}

impl Unable {
    fn unusable(reason: &impl ToString) -> Self {
        Self::Unusable(reason.to_string().into())
    }
}

/// The versions that decided.
pub(super) struct Versions {
    runtime: Arc<Runtime>,
    components: Components,
    /// By digest.
    artifacts: Kept<String, Result<Arc<Artifact>, Unable>>,
    loaded: Kept<Arc<Identity>, Result<Arc<Loaded>, Unable>>,
}

impl Versions {
    pub(super) fn new(runtime: &Arc<Runtime>, folders: Vec<PathBuf>) -> Self {
        Self::with(runtime, folders, VERSIONS_MAX)
    }

    /// Makes one that keeps so many versions.
    pub(super) fn with(runtime: &Arc<Runtime>, folders: Vec<PathBuf>, versions_max: usize) -> Self {
        Self {
            runtime: runtime.clone(),
            components: Components::new(folders),
            artifacts: Kept::new(versions_max, usize::MAX),
            loaded: Kept::new(versions_max, CONFIGS_BYTES_MAX),
        }
    }

    /// Loads everything anew from now on, in another runtime.
    pub(super) fn renew(&mut self, runtime: &Arc<Runtime>) {
        self.runtime = runtime.clone();
        self.artifacts.clear();
        self.loaded.clear();
    }

    /// Returns a version as it was when it decided.
    pub(super) fn find(&mut self, identity: &Arc<Identity>) -> Result<Arc<Loaded>, Unable> {
        if let Some(known) = self.loaded.get(identity) {
            return known.clone();
        }
        let loaded = self.load(identity);
        self.loaded.put(identity.clone(), loaded.clone(), identity.config.len());
        loaded
    }

    /// Returns what could not be read where components were looked for.
    pub(super) fn unreadable(&self) -> &[String] {
        &self.components.unreadable
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.loaded.len().max(self.artifacts.len())
    }

    fn load(&mut self, identity: &Identity) -> Result<Arc<Loaded>, Unable> {
        let artifact = self.artifact(&identity.digest)?;
        let config = serde_json::from_str(&identity.config)
            .map_err(|error| Unable::unusable(&format!("its configuration is not JSON: {error}")))?;
        let loaded = artifact.configured(&identity.name, config);
        loaded.map(Arc::new).map_err(|refusal| Unable::unusable(&refusal))
    }

    fn artifact(&mut self, digest: &str) -> Result<Arc<Artifact>, Unable> {
        if let Some(known) = self.artifacts.get(digest) {
            return known.clone();
        }
        let found = self.components.find(digest);
        let artifact = found.and_then(|bytes| {
            Artifact::load(&self.runtime, &bytes).map_err(|refusal| Unable::unusable(&refusal))
        });
        // What is nowhere is quickly found to be nowhere again.
        if !matches!(artifact, Err(Unable::Missing)) {
            self.artifacts.put(digest.to_owned(), artifact.clone(), 0);
        }
        artifact
    }
}

/// Where components are found by their digest.
struct Components {
    folders: Vec<PathBuf>,
    embedded: HashMap<String, &'static [u8]>,
    /// Made when an embedded one does not do.
    files: Option<HashMap<String, PathBuf>>,
    /// What could not be read while they were made.
    unreadable: Vec<String>,
}

impl Components {
    fn new(folders: Vec<PathBuf>) -> Self {
        let embedded = embedded::policies().into_iter().map(|policy| (digest(policy.wasm), policy.wasm));
        Self { folders, embedded: embedded.collect(), files: None, unreadable: Vec::new() }
    }

    fn find(&mut self, wanted: &str) -> Result<Vec<u8>, Unable> {
        if let Some(wasm) = self.embedded.get(wanted) {
            return Ok(wasm.to_vec());
        }
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(index(&self.folders, &mut self.unreadable)),
        };
        let path = files.get(wanted).ok_or(Unable::Missing)?;
        let bytes = policy::read(path).map_err(|error| Unable::unusable(&format!("{error:#}")))?;
        // It may have been replaced since.
        if digest(&bytes) == wanted { Ok(bytes) } else { Err(Unable::Missing) }
    }
}

/// Returns the component files in folders by their digest; a folder that is not there is empty. What cannot be read may
/// not be needed: it is put on the list.
fn index(folders: &[PathBuf], unreadable: &mut Vec<String>) -> HashMap<String, PathBuf> {
    let mut files = HashMap::new();
    let mut open: Vec<(PathBuf, u32)> = folders.iter().map(|folder| (folder.clone(), 0)).collect();
    while let Some((folder, depth)) = open.pop() {
        if !folder.is_dir() {
            continue;
        }
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                unreadable.push(format!("{}: {error}", folder.display()));
                continue;
            }
        };
        for entry in entries {
            let kind = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
            let (path, kind) = match kind {
                Ok(found) => found,
                Err(error) => {
                    unreadable.push(format!("{}: {error}", folder.display()));
                    continue;
                }
            };
            if kind.is_dir() && depth < DEPTH_MAX {
                open.push((path, depth + 1));
            } else if path.is_file() && path.extension().is_some_and(|extension| extension == "wasm") {
                match digest_of(&path) {
                    Ok(digest) => drop(files.insert(digest, path)),
                    Err(error) => unreadable.push(format!("{error:#}")),
                }
            }
        }
    }
    files
}

/// Returns the digest of a file, unless it is too large for a component.
fn digest_of(path: &Path) -> anyhow::Result<String> {
    let bytes = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?.len();
    if bytes > ARTIFACT_BYTES_MAX as u64 {
        bail!("{} has {bytes} bytes: no component has more than {ARTIFACT_BYTES_MAX}", path.display());
    }
    Ok(digest(&policy::read(path)?))
}

/// The other policy, in each configuration it is asked under.
pub(super) struct Candidate {
    name: String,
    artifact: Arc<Artifact>,
    /// Its own configuration; `None` takes the recorded ones.
    config: Option<Value>,
    /// By recorded configuration: the version, or why it does not take it.
    loaded: Kept<String, Result<Arc<Loaded>, String>>,
}

impl Candidate {
    /// Loads it: a name is one of the folder `beside` the journal or that of an embedded policy, anything else a file.
    pub(super) fn load(
        runtime: &Arc<Runtime>,
        policy: &str,
        config: Option<&Path>,
        beside: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let is_name = !policy.contains(['/', '.']);
        // A dropped file goes before an embedded policy of that name, as on the host.
        let dropped = beside.filter(|_| is_name).map(|folder| folder.join(format!("{policy}.wasm")));
        let (name, artifact) = match dropped.filter(|path| path.is_file()) {
            Some(path) => {
                let artifact = Artifact::load(runtime, &policy::read(&path)?)
                    .map_err(|refusal| anyhow!("{}: {refusal}", path.display()))?;
                (policy.to_owned(), artifact)
            }
            None => policy::load(runtime, policy)?,
        };
        let config = config.map(|path| policy::configuration(Some(path))).transpose()?;
        Ok(Self { name, artifact, config, loaded: Kept::new(VERSIONS_MAX, CONFIGS_BYTES_MAX) })
    }

    /// Says whether it answers such a question.
    pub(super) fn answers(&self, record: &Record) -> bool {
        let roles = self.artifact.roles();
        match record {
            Record::Scoring(_) => roles.scoring,
            Record::Claiming(_) => roles.claiming,
        }
    }

    /// Returns it as it is to answer a question that was up to `asked`, or says why it does not take the recorded
    /// configuration.
    ///
    /// Errors if it does not take its own one.
    pub(super) fn configured(
        &mut self,
        asked: Option<&Identity>,
    ) -> anyhow::Result<Result<Arc<Loaded>, String>> {
        let recorded = asked.map_or("{}", |asked| &asked.config);
        let key = if self.config.is_some() { "" } else { recorded };
        if let Some(loaded) = self.loaded.get(key) {
            return Ok(loaded.clone());
        }
        let config = match &self.config {
            Some(config) => config.clone(),
            None => serde_json::from_str(recorded).unwrap_or_else(|_| Value::Object(Map::new())),
        };
        let loaded = self.artifact.configured(&self.name, config);
        if let (Some(_), Err(refusal)) = (&self.config, &loaded) {
            bail!("{} does not take its configuration: {refusal}", self.name);
        }
        let refused = |refusal| {
            format!(
                "{} does not take the configuration {}: {refusal}; give it one of its own with --config FILE",
                self.name,
                shown(key)
            )
        };
        let loaded = loaded.map(Arc::new).map_err(refused);
        self.loaded.put(key.to_owned(), loaded.clone(), key.len());
        Ok(loaded)
    }
}

/// Returns a configuration as it is told: its beginning, if it is long.
fn shown(config: &str) -> String {
    const CHARS_MAX: usize = 400;
    let mut shown: String = config.chars().take(CHARS_MAX).collect();
    if shown.len() < config.len() {
        shown.push('…');
    }
    shown
}
