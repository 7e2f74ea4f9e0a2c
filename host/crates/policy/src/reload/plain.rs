//! The policies compiled into the host, without any configuration: loaded when they are needed first, by whoever needs one.
//!
//! That way nobody waits for the task: it may be proving dropped files, for half a minute each. Invariant: each is loaded
//! once.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulcrum_core::time::{Clock, millis};
use parking_lot::Mutex;
use serde_json::Value;

use super::manager::Embedded;
use crate::artifact::{Artifact, Loaded, digest};
use crate::refusal::Refusal;
use crate::runtime::Runtime;

/// See the module. Shared by the task and its handle.
pub(super) struct Plain {
    embedded: Vec<Embedded>,
    digests: BTreeMap<&'static str, String>,
    runtime: Arc<Runtime>,
    clock: Arc<dyn Clock>,
    loaded: Mutex<BTreeMap<&'static str, Ready>>,
}

/// One that is loaded, and how long that took, in milliseconds.
pub(super) type Ready = (Arc<Loaded>, u64);

impl Plain {
    pub(super) fn new(embedded: Vec<Embedded>, runtime: Arc<Runtime>, clock: Arc<dyn Clock>) -> Self {
        let digests = embedded.iter().map(|policy| (policy.name, digest(policy.wasm))).collect();
        Self { embedded, digests, runtime, clock, loaded: Mutex::default() }
    }

    /// Returns the one of a name, `None` if there is none. Blocks while it is compiled, if it was not needed before.
    pub(super) fn load(&self, name: &str) -> Option<Result<Ready, Refusal>> {
        let policy = self.of(name)?;
        // Held all along: of two that need it at once, one waits for the other.
        let mut loaded = self.loaded.lock();
        if let Some(ready) = loaded.get(name) {
            return Some(Ok(ready.clone()));
        }
        let begun = self.clock.now();
        let empty = Value::Object(serde_json::Map::new());
        let found = Artifact::load(&self.runtime, policy.wasm)
            .and_then(|artifact| artifact.configured(name, empty))
            .map(|plain| (Arc::new(plain), millis(self.clock.now().since(begun))));
        if let Ok(ready) = &found {
            loaded.insert(policy.name, ready.clone());
        }
        Some(found)
    }

    /// Returns the names of those that are loaded.
    pub(super) fn loaded(&self) -> Vec<&'static str> {
        self.loaded.lock().keys().copied().collect()
    }

    /// Returns all names.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.embedded.iter().map(|policy| policy.name)
    }

    /// Returns the component of a name.
    pub(super) fn of(&self, name: &str) -> Option<Embedded> {
        self.embedded.iter().copied().find(|policy| policy.name == name)
    }

    /// Returns the digest of that component.
    pub(super) fn digest(&self, name: &str) -> Option<&str> {
        self.digests.get(name).map(String::as_str)
    }
}
