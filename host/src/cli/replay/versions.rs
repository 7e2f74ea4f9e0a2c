//! Finding the component of a digest, and configuring it.

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

use super::super::policy;
use crate::embedded;

/// Folders within folders that are looked into.
const DEPTH_MAX: u32 = 3;

/// A version's component is found nowhere.
pub(super) struct Missing;

/// The versions that decided.
pub(super) struct Versions {
    runtime: Arc<Runtime>,
    folders: Vec<PathBuf>,
    /// By digest; made when an embedded one does not do.
    files: Option<HashMap<String, PathBuf>>,
    artifacts: HashMap<String, Option<Arc<Artifact>>>,
    loaded: HashMap<Arc<Identity>, Arc<Loaded>>,
}

impl Versions {
    pub(super) fn new(runtime: &Arc<Runtime>, folders: Vec<PathBuf>) -> Self {
        let (artifacts, loaded) = (HashMap::new(), HashMap::new());
        Self { runtime: runtime.clone(), folders, files: None, artifacts, loaded }
    }

    /// Returns a version as it was when it decided.
    ///
    /// Errors if its component is there and cannot be used.
    pub(super) fn find(&mut self, identity: &Arc<Identity>) -> anyhow::Result<Result<Arc<Loaded>, Missing>> {
        if let Some(loaded) = self.loaded.get(identity) {
            return Ok(Ok(loaded.clone()));
        }
        let Some(artifact) = self.artifact(identity)? else { return Ok(Err(Missing)) };
        let about = || format!("the policy {} ({})", identity.name, identity.digest);
        let config = serde_json::from_str(&identity.config)
            .with_context(|| format!("{}: its configuration is not JSON", about()))?;
        let loaded = artifact
            .configured(&identity.name, config)
            .map_err(|refusal| anyhow!("{} cannot be used here: {refusal}", about()))?;
        let loaded = Arc::new(loaded);
        self.loaded.insert(identity.clone(), loaded.clone());
        Ok(Ok(loaded))
    }

    fn artifact(&mut self, identity: &Identity) -> anyhow::Result<Option<Arc<Artifact>>> {
        if let Some(known) = self.artifacts.get(&identity.digest) {
            return Ok(known.clone());
        }
        let artifact = match self.component(&identity.digest)? {
            Some(bytes) => {
                let artifact = Artifact::load(&self.runtime, &bytes).map_err(|refusal| {
                    anyhow!(
                        "the policy {} ({}) cannot be used here: {refusal}",
                        identity.name,
                        identity.digest
                    )
                })?;
                Some(artifact)
            }
            None => None,
        };
        self.artifacts.insert(identity.digest.clone(), artifact.clone());
        Ok(artifact)
    }

    fn component(&mut self, wanted: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let is_wanted = |bytes: &[u8]| digest(bytes) == wanted;
        if let Some(policy) = embedded::policies().into_iter().find(|policy| is_wanted(policy.wasm)) {
            return Ok(Some(policy.wasm.to_vec()));
        }
        let files = match &mut self.files {
            Some(files) => files,
            none => none.insert(index(&self.folders)?),
        };
        let Some(path) = files.get(wanted) else { return Ok(None) };
        let bytes = policy::read(path)?;
        // It may have been replaced since.
        Ok(is_wanted(&bytes).then_some(bytes))
    }
}

/// Returns the component files in folders by their digest. A folder that is not there is empty.
fn index(folders: &[PathBuf]) -> anyhow::Result<HashMap<String, PathBuf>> {
    let mut files = HashMap::new();
    let mut open: Vec<(PathBuf, u32)> = folders.iter().map(|folder| (folder.clone(), 0)).collect();
    while let Some((folder, depth)) = open.pop() {
        if !folder.is_dir() {
            continue;
        }
        let shown = folder.display();
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read the folder {shown}"))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read the folder {shown}"))?;
            let path = entry.path();
            let kind = entry.file_type().with_context(|| format!("cannot look at {}", path.display()))?;
            if kind.is_dir() && depth < DEPTH_MAX {
                open.push((path, depth + 1));
            } else if path.is_file() && path.extension().is_some_and(|extension| extension == "wasm") {
                files.insert(digest(&policy::read(&path)?), path);
            }
        }
    }
    Ok(files)
}

/// The other policy, in each configuration it is asked under.
pub(super) struct Candidate {
    name: String,
    artifact: Arc<Artifact>,
    /// Its own configuration; `None` takes the recorded ones.
    config: Option<Value>,
    /// By recorded configuration: the version, or why it does not take it.
    loaded: HashMap<String, Result<Arc<Loaded>, String>>,
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
        Ok(Self { name, artifact, config, loaded: HashMap::new() })
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
                "{} does not take the configuration {key}: {refusal}; give it one of its own with --config FILE",
                self.name
            )
        };
        let loaded = loaded.map(Arc::new).map_err(refused);
        self.loaded.insert(key.to_owned(), loaded.clone());
        Ok(loaded)
    }
}
