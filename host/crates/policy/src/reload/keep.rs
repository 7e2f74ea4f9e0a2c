//! What outlives the host besides the policies folder: versions that served, candidates, and the digests in quarantine.
//!
//! Layout of the folder: `NAME.json` is the record of one name, `NAME.DIGEST.wasm` a component it names,
//! `quarantine.list` one `DIGEST failure` per line, `NAME.json.damaged` a record that could not be read. Everything is written
//! beside and renamed into place. Invariants: a record on disk names only components that are there (but for those
//! compiled into the host); a record that a former release wrote can be read, and the last good version of a record of
//! ours can be read by that release; of a name whose record is damaged nothing is removed; whatever else lies in the
//! folder, a link or a pipe, is neither read nor waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::{is_policy_name, make_anew, open_regular};
use super::signed::Signatures;
use crate::artifact::digest;
use crate::status::{Left, TakenBack, Way};

/// The digests in quarantine.
const QUARANTINE: &str = "quarantine.list";
/// End of the name of a record that was put aside.
const DAMAGED: &str = ".json.damaged";
/// Most names without a file whose versions are kept; the one that served longest ago goes first.
const RETIRED_MAX: usize = 100;

/// One version of a policy, apart from its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Version {
    /// Lower-case hex sha256 of the component.
    pub digest: String,
    /// Its configuration, an object.
    pub config: Value,
    /// What vouched for both; to be checked again, as keys may have changed. Absent in what a host wrote that knew no
    /// signatures.
    #[serde(default)]
    pub signatures: Signatures,
    /// What the component says of its version.
    #[serde(default)]
    pub version: String,
    /// When it came into use last, or was pushed; milliseconds since 1970.
    #[serde(default)]
    pub at_ms: u64,
    /// How it came into use last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came_by: Option<Way>,
    /// Why it is not in use any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Left>,
}

impl Version {
    /// Makes one of which nothing else is known.
    pub(super) fn new(digest: impl Into<String>, config: Value) -> Self {
        Self {
            digest: digest.into(),
            config,
            signatures: Signatures::default(),
            version: String::new(),
            at_ms: 0,
            came_by: None,
            left: None,
        }
    }

    /// Says whether it is the same component with the same configuration.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest && self.config == other.config
    }

    /// Says how it failed, if the host took it back when it served last.
    pub(super) fn taken_back(&self) -> Option<TakenBack> {
        let left = self.left.as_ref().filter(|left| left.by == Way::TakenBack)?;
        Some(TakenBack { reason: left.reason.clone().unwrap_or_default(), at: left.at })
    }
}

/// What is kept of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The version that serves while the file in the folder cannot; `None` once there is no file.
    #[serde(flatten)]
    pub good: Option<Version>,
    /// Versions that were in use, the latest first.
    #[serde(default)]
    pub versions: Vec<Version>,
    /// A version that waits for its promotion.
    #[serde(default)]
    pub candidate: Option<Version>,
}

impl Record {
    fn names(&self, digest: &str) -> bool {
        let all = self.good.iter().chain(&self.candidate).chain(&self.versions);
        all.into_iter().any(|version| version.digest == digest)
    }
}

/// See the module.
pub(super) struct Keep {
    path: PathBuf,
    versions_max: usize,
    records: BTreeMap<String, Record>,
    /// Names of which a record was put aside: only that says which of their components are needed.
    damaged: BTreeSet<String>,
    /// Components that must stay for another reason than a record: name and digest.
    pins: BTreeSet<(String, String)>,
}

impl Keep {
    pub(super) fn open(
        path: PathBuf,
        versions_max: usize,
        pins: BTreeSet<(String, String)>,
    ) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        let mut keep = Self { path, versions_max, records: BTreeMap::new(), damaged: BTreeSet::new(), pins };
        keep.read()?;
        keep.tidy()?;
        Ok(keep)
    }

    fn read(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let file = entry.file_name();
            let Some(file) = file.to_str() else { continue };
            if let Some(name) = file.strip_suffix(DAMAGED).filter(|name| is_policy_name(name)) {
                self.damaged.insert(name.to_owned());
                continue;
            }
            let name = file.strip_suffix(".json").filter(|name| is_policy_name(name));
            let Some(name) = name else { continue };
            let record = read_own(&entry.path())
                .and_then(|bytes| serde_json::from_slice::<Record>(&bytes).map_err(io::Error::other));
            match record {
                Ok(mut record) => {
                    if record.versions.is_empty() {
                        record.versions.extend(record.good.clone());
                    }
                    self.records.insert(name.to_owned(), record);
                }
                Err(error) => {
                    let (file, aside) = (entry.path(), self.path.join(format!("{name}{DAMAGED}")));
                    // What comes next of that name is not to overwrite it.
                    let moved = fs::rename(&file, &aside);
                    tracing::error!(
                        policy.name = name, file = %file.display(), %error,
                        aside = moved.is_ok().then(|| aside.display().to_string()),
                        "what is kept of a policy cannot be read: its components stay, but there is nothing to return to"
                    );
                    self.damaged.insert(name.to_owned());
                }
            }
        }
        for name in &self.damaged {
            let file = self.path.join(format!("{name}{DAMAGED}"));
            tracing::warn!(
                policy.name = name, file = %file.display(),
                "a damaged record keeps the components of a policy; mend and rename it, or remove it"
            );
        }
        Ok(())
    }

    /// Removes what a crash left half done: files never renamed into place, and components that nothing names.
    fn tidy(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let file = entry.file_name();
            let Some(file) = file.to_str() else { continue };
            let orphaned = file
                .strip_suffix(".wasm")
                .and_then(|stem| stem.rsplit_once('.'))
                .is_some_and(|(name, digest)| !self.is_needed(name, digest));
            if (orphaned || file.ends_with(".new"))
                && let Err(error) = fs::remove_file(entry.path())
            {
                // It takes room and does no other harm: no reason not to start.
                let file = entry.path();
                tracing::warn!(file = %file.display(), %error, "cannot remove what is left of a policy");
            }
        }
        Ok(())
    }

    fn is_needed(&self, name: &str, digest: &str) -> bool {
        self.damaged.contains(name)
            || self.records.get(name).is_some_and(|record| record.names(digest))
            || self.pins.contains(&(name.to_owned(), digest.to_owned()))
    }

    /// Says which components must stay, whatever the records say: names and digests.
    pub(super) fn pin(&mut self, pins: BTreeSet<(String, String)>) {
        self.pins = pins;
    }

    /// Returns the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what is kept of every name.
    pub(super) fn records(&self) -> &BTreeMap<String, Record> {
        &self.records
    }

    /// Returns the last good version of a name.
    pub(super) fn good(&self, name: &str) -> Option<&Version> {
        self.records.get(name)?.good.as_ref()
    }

    /// Returns the candidate of a name.
    pub(super) fn candidate(&self, name: &str) -> Option<&Version> {
        self.records.get(name)?.candidate.as_ref()
    }

    /// Returns the versions of a name that were in use, the latest first.
    pub(super) fn versions(&self, name: &str) -> &[Version] {
        self.records.get(name).map_or(&[], |record| &record.versions)
    }

    /// Stores a component, so that a record can name it.
    pub(super) fn store(&self, name: &str, wasm: &[u8]) -> io::Result<()> {
        let file = self.file(name, &digest(wasm));
        if is_own(&file) { Ok(()) } else { replace(&file, wasm) }
    }

    /// Returns a component that was stored; `None` if it is not there, or damaged.
    pub(super) fn load(&self, name: &str, wanted: &str) -> Option<Vec<u8>> {
        let wasm = read_own(&self.file(name, wanted)).ok()?;
        (digest(&wasm) == wanted).then_some(wasm)
    }

    /// Says whether a component is stored.
    pub(super) fn has(&self, name: &str, digest: &str) -> bool {
        is_own(&self.file(name, digest))
    }

    /// Notes that a version came into use, and why the one before left; `is_good` makes it the last good one of its
    /// name.
    pub(super) fn came_into_use(
        &mut self,
        name: &str,
        version: Version,
        is_good: bool,
        left: &Left,
    ) -> io::Result<()> {
        let versions_max = self.versions_max;
        self.change(name, |record| {
            let mut version = version;
            version.left = None;
            if let Some(latest) = record.versions.first_mut() {
                if !latest.is_same(&version) {
                    latest.left.get_or_insert_with(|| left.clone());
                } else if latest.left.is_none() {
                    // A restart brings nothing new into use.
                    (version.at_ms, version.came_by) = (latest.at_ms, latest.came_by);
                }
            }
            record.versions.retain(|other| !other.is_same(&version));
            record.good = is_good.then(|| version.clone());
            record.versions.insert(0, version);
            record.versions.truncate(versions_max);
        })
    }

    /// Returns what became of a version, as far as that is kept.
    pub(super) fn left(&self, name: &str, version: &Version) -> Option<Left> {
        let kept = self.candidate(name).into_iter().chain(self.versions(name));
        kept.filter(|kept| kept.is_same(version)).find_map(|kept| kept.left.clone())
    }

    /// Replaces the candidate of a name.
    pub(super) fn set_candidate(&mut self, name: &str, candidate: Option<Version>) -> io::Result<()> {
        self.change(name, |record| record.candidate = candidate)
    }

    /// Notes that a name has no good version any more: its file is gone. Its versions stay, within bounds.
    pub(super) fn retire(&mut self, name: &str, left: &Left) -> io::Result<()> {
        if self.good(name).is_some() {
            self.change(name, |record| {
                record.good = None;
                if let Some(latest) = record.versions.first_mut() {
                    latest.left.get_or_insert_with(|| left.clone());
                }
            })?;
        }
        let latest = |record: &Record| record.versions.first().map_or(0, |version| version.at_ms);
        let retired = |record: &Record| record.good.is_none() && record.candidate.is_none();
        let mut names: Vec<_> = self
            .records
            .iter()
            .filter(|(_, record)| retired(record))
            .map(|(name, record)| (latest(record), name.clone()))
            .collect();
        names.sort();
        let many = names.len().saturating_sub(RETIRED_MAX);
        for (_, name) in names.into_iter().take(many) {
            self.change(&name, |record| record.versions.clear())?;
        }
        Ok(())
    }

    /// Changes a record: on disk first, so that nothing is promised that a restart would not keep.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let before = self.records.get(name).cloned().unwrap_or_default();
        let mut record = before.clone();
        change(&mut record);
        if record == before {
            return Ok(());
        }
        if record == Record::default() {
            match fs::remove_file(self.record(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => drop(self.records.remove(name)),
            }
        } else {
            replace(&self.record(name), &serde_json::to_vec(&record)?)?;
            self.records.insert(name.to_owned(), record);
        }
        self.sweep(name)
    }

    /// Returns the digests in quarantine, each with its last failure.
    pub(super) fn quarantine(&self) -> BTreeMap<String, String> {
        let file = self.path.join(QUARANTINE);
        let text = read_own(&file).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::error!(file = %file.display(), %error, "which versions are in quarantine is lost");
            }
            Vec::new()
        });
        String::from_utf8_lossy(&text)
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(digest, failure)| (digest.to_owned(), failure.to_owned()))
            .collect()
    }

    /// Stores the digests in quarantine.
    pub(super) fn set_quarantine(&self, digests: &BTreeMap<String, String>) -> io::Result<()> {
        let line =
            |(digest, failure): (&String, &String)| format!("{digest} {}\n", failure.replace('\n', " "));
        replace(&self.path.join(QUARANTINE), digests.iter().map(line).collect::<String>().as_bytes())
    }

    fn record(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.json"))
    }

    fn file(&self, name: &str, digest: &str) -> PathBuf {
        self.path.join(format!("{name}.{digest}.wasm"))
    }

    /// Removes the components of a name that nothing needs.
    pub(super) fn sweep(&self, name: &str) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let file = entry.file_name();
            let middle = file
                .to_str()
                .and_then(|file| file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".wasm"));
            // What is no file of ours was told of at the start.
            if middle.is_some_and(|digest| !self.is_needed(name, digest)) && is_own(&entry.path()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Says whether there is a file, and no link, pipe or folder.
fn is_own(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Reads a file of the host's own, which is no link.
fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file beside its place, makes it durable and renames it into place. Errors name the file.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    replace_unnamed(path, bytes).map_err(named)
}

fn replace_unnamed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = make_anew(Path::new(&beside))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // On a full disk, half a file would take the room that something else needs.
        drop(fs::remove_file(&beside));
        return Err(error);
    }
    fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))?;
    if let Some(folder) = path.parent() {
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(wasm: &[u8], config: Value, at_ms: u64) -> Version {
        let signatures = Signatures::default();
        let (version, came_by, left) = (String::new(), Some(Way::Pushed), None);
        Version { digest: digest(wasm), config, signatures, version, at_ms, came_by, left }
    }

    fn left(by: Way, at: u64) -> Left {
        Left { by, reason: None, at }
    }

    fn open(path: &Path) -> Keep {
        Keep::open(path.to_owned(), 3, BTreeSet::new()).expect("opened")
    }

    fn came(keep: &mut Keep, name: &str, wasm: &[u8], at_ms: u64) {
        keep.store(name, wasm).expect("stored");
        let version = version(wasm, json!({"at": at_ms}), at_ms);
        keep.came_into_use(name, version, true, &left(Way::Pushed, at_ms)).expect("kept");
    }

    fn files(keep: &Keep) -> usize {
        fs::read_dir(&keep.path).expect("listed").count()
    }

    #[test]
    fn versions_are_kept_in_order_of_use_and_within_their_number() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keep = open(&folder.path().join("deep/er"));
        assert!(keep.good("a").is_none());
        for (at, wasm) in [b"one", b"two", b"six"].iter().enumerate() {
            came(&mut keep, "a", *wasm, at as u64);
        }
        came(&mut keep, "ab", b"other", 9);
        let configs = |keep: &Keep| -> Vec<Value> {
            keep.versions("a").iter().map(|version| version.config["at"].clone()).collect()
        };
        assert_eq!(configs(&keep), [2, 1, 0]);
        assert_eq!(files(&keep), 6);
        // Back to the first one: it is not kept twice.
        let back = version(b"one", json!({"at": 0}), 3);
        keep.came_into_use("a", back.clone(), true, &left(Way::RolledBack, 3)).expect("kept");
        assert_eq!(configs(&keep), [0, 2, 1]);
        let lefts = |keep: &Keep| -> Vec<_> {
            keep.versions("a").iter().map(|version| version.left.as_ref().map(|left| left.by)).collect()
        };
        assert_eq!(lefts(&keep), [None, Some(Way::RolledBack), Some(Way::Pushed)]);
        // A restart brings nothing new.
        let again = Version { at_ms: 4, came_by: Some(Way::Dropped), ..back };
        keep.came_into_use("a", again, true, &left(Way::Dropped, 4)).expect("kept");
        assert_eq!((keep.versions("a")[0].at_ms, keep.versions("a")[0].came_by), (3, Some(Way::Pushed)));
        came(&mut keep, "a", b"new", 4);
        assert_eq!((configs(&keep), files(&keep)), (vec![json!(4), json!(0), json!(2)], 6));
        assert_eq!(keep.load("a", &digest(b"two")), None, "swept away");
        let again = open(&keep.path);
        assert_eq!((again.records(), configs(&again)), (keep.records(), configs(&keep)));
        assert_eq!(again.load("a", &digest(b"new")).as_deref(), Some(b"new".as_slice()));
    }

    #[test]
    fn a_file_that_is_gone_leaves_its_versions_within_bounds() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keep = open(folder.path());
        for at in 0..=RETIRED_MAX {
            let name = format!("p{at}");
            came(&mut keep, &name, b"same", at as u64);
            keep.retire(&name, &left(Way::Removed, 7)).expect("retired");
            keep.retire(&name, &left(Way::Dropped, 8)).expect("twice is fine");
            assert!(keep.good(&name).is_none());
        }
        assert!(keep.versions("p0").is_empty(), "the oldest is out");
        assert_eq!(keep.versions("p1").len(), 1);
        assert_eq!(keep.versions("p1")[0].left, Some(left(Way::Removed, 7)));
        assert_eq!(files(&keep), 2 * RETIRED_MAX);
    }

    #[test]
    fn candidates_and_pins_keep_their_components() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keep = open(folder.path());
        keep.store("a", b"new").expect("stored");
        keep.set_candidate("a", Some(version(b"new", json!({}), 1))).expect("kept");
        let mut keep = open(folder.path());
        assert_eq!(keep.candidate("a").map(|version| version.digest.clone()), Some(digest(b"new")));
        keep.pin([("a".to_owned(), digest(b"new"))].into());
        keep.set_candidate("a", None).expect("dropped");
        assert!(keep.has("a", &digest(b"new")) && keep.records().is_empty());
        assert!(!open(folder.path()).has("a", &digest(b"new")), "nothing needs it any more");
    }

    #[test]
    fn a_record_of_the_former_release_is_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let record = json!({ "digest": digest(b"good"), "config": {"x": 1} });
        fs::write(folder.path().join("a.json"), record.to_string()).expect("written");
        fs::write(folder.path().join(format!("a.{}.wasm", digest(b"good"))), b"good").expect("written");
        let mut keep = open(folder.path());
        let good = keep.good("a").cloned().expect("kept");
        assert_eq!((&good.config, keep.versions("a")), (&json!({"x": 1}), [good.clone()].as_slice()));
        // And that release finds in ours what it needs.
        came(&mut keep, "a", b"newer", 5);
        let text = fs::read(folder.path().join("a.json")).expect("written");
        let found: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!((&found["digest"], &found["config"]), (&json!(digest(b"newer")), &json!({"at": 5})));
    }

    #[test]
    fn a_damaged_version_is_not_used() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keep = open(folder.path());
        came(&mut keep, "a", b"good", 1);
        fs::write(keep.file("a", &digest(b"good")), b"evil").expect("written");
        assert!(keep.load("a", &digest(b"good")).is_none());
    }

    #[test]
    fn a_damaged_record_keeps_its_components() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keep = open(folder.path());
        came(&mut keep, "a", b"one", 1);
        came(&mut keep, "b", b"one", 1);
        let aside = folder.path().join("a.json.damaged");
        let record = fs::read(keep.record("a")).expect("there");
        fs::write(keep.record("a"), &record[..record.len() / 2]).expect("written");
        let mut keep = open(folder.path());
        assert_eq!((keep.records().len(), fs::read(&aside).expect("put aside").len()), (1, record.len() / 2));
        assert!(keep.has("a", &digest(b"one")));
        // What serves next leaves them alone, and so do the next starts.
        came(&mut keep, "a", b"two", 2);
        let keep = open(folder.path());
        assert!(keep.has("a", &digest(b"one")) && keep.versions("a").len() == 1);
        // Mended, it is as before.
        fs::write(keep.record("a"), &record).expect("written");
        fs::remove_file(&aside).expect("removed");
        let keep = open(folder.path());
        assert!(keep.has("a", &digest(b"one")) && !keep.has("a", &digest(b"two")));
        assert_eq!(keep.good("a").map(|version| version.digest.clone()), Some(digest(b"one")));
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_neither_waited_for_nor_in_the_way() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |file: &str| folder.path().join(file);
        let pipe = |path: &Path| {
            let made = std::process::Command::new("mkfifo").arg(path).status().expect("it runs");
            assert!(made.success());
        };
        let mut keep = open(folder.path());
        came(&mut keep, "a", b"good", 1);
        let digests = BTreeMap::from([("ab".to_owned(), "crashed".to_owned())]);
        pipe(&at("p.json"));
        pipe(&at("quarantine.list"));
        pipe(&at("a.json.new"));
        fs::create_dir(at("d.json")).expect("made");
        fs::create_dir(at("d.new")).expect("made");
        fs::create_dir(keep.file("a", "cc")).expect("made");
        symlink(at("a.json"), at("l.json")).expect("made");
        let elsewhere = tempfile::tempdir().expect("another one");
        let other = elsewhere.path().join("other");
        fs::write(&other, b"good").expect("written");
        symlink(&other, keep.file("l", &digest(b"good"))).expect("made");
        let mut keep = open(folder.path());
        assert_eq!(keep.records().keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!((keep.load("l", &digest(b"good")), keep.quarantine()), (None, BTreeMap::new()));
        // All of it can be written again, and nothing beyond the folder is.
        came(&mut keep, "a", b"newer", 2);
        came(&mut keep, "l", b"good", 2);
        keep.set_quarantine(&digests).expect("stored");
        assert_eq!((keep.quarantine(), fs::read(&other).expect("there")), (digests, b"good".to_vec()));
        assert_eq!(keep.load("l", &digest(b"good")).as_deref(), Some(b"good".as_slice()));
        fs::create_dir(at("taken.json")).expect("made");
        let error = keep.set_candidate("taken", Some(version(b"new", json!({}), 1))).expect_err("taken");
        assert!(error.to_string().contains("taken.json"), "{error}");
    }

    #[test]
    fn what_a_crash_left_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        came(&mut open(folder.path()), "a", b"good", 1);
        for left in ["a.bb.wasm.new", "gone.bb.wasm", "gone.json.new", "a.bb.wasm"] {
            fs::write(folder.path().join(left), b"x").expect("written");
        }
        // What cannot be removed keeps nothing from starting.
        fs::create_dir(folder.path().join("gone.cc.wasm")).expect("made");
        let keep = open(folder.path());
        assert!(keep.good("a").is_some());
        assert_eq!(files(&keep), 3);
    }

    #[test]
    fn a_file_that_cannot_take_its_place_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keep = open(folder.path());
        fs::create_dir(folder.path().join("a.json")).expect("made");
        keep.set_candidate("a", Some(version(b"new", json!({}), 1))).expect_err("the place is taken");
        assert_eq!(files(&keep), 1);
    }

    #[test]
    fn quarantine_survives() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keep = open(folder.path());
        assert!(keep.quarantine().is_empty());
        let digests = BTreeMap::from([("ab".to_owned(), "crashed: two\nlines".to_owned())]);
        keep.set_quarantine(&digests).expect("stored");
        assert_eq!(keep.quarantine(), BTreeMap::from([("ab".to_owned(), "crashed: two lines".to_owned())]));
    }
}
