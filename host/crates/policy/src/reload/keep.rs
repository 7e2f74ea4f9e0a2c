//! The versions that served last, and the digests in quarantine, on disk: both survive a restart.
//!
//! Layout of the folder: `NAME.json` holds digest and configuration, `NAME.DIGEST.wasm` the component,
//! `quarantine.list` one `DIGEST failure` per line. Everything is written beside and renamed into place.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::signed::Signatures;
use crate::artifact::digest;

/// See the module.
pub(super) struct Keep {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Record {
    digest: String,
    config: Value,
    /// Absent in what a host wrote that knew no signatures.
    #[serde(default)]
    signatures: Signatures,
}

/// A version that served last.
pub(super) struct Kept {
    /// The component.
    pub wasm: Vec<u8>,
    /// Its configuration.
    pub config: Value,
    /// What vouched for both; to be checked again, as keys may have changed.
    pub signatures: Signatures,
}

impl Keep {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        let keep = Self { path };
        keep.tidy()?;
        Ok(keep)
    }

    /// Removes what a crash left half done: files never renamed into place, and components without a record.
    fn tidy(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let file = entry.file_name();
            let Some(file) = file.to_str() else { continue };
            let orphaned = file
                .strip_suffix(".wasm")
                .and_then(|stem| stem.rsplit_once('.'))
                .is_some_and(|(name, _)| !self.record(name).exists());
            if orphaned || file.ends_with(".new") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Keeps a version as the last good one of its name.
    pub(super) fn save(
        &self,
        name: &str,
        wasm: &[u8],
        config: &Value,
        signatures: &Signatures,
    ) -> io::Result<()> {
        let digest = digest(wasm);
        let file = self.wasm(name, &digest);
        if !file.exists() {
            replace(&file, wasm)?;
        }
        let (config, signatures) = (config.clone(), signatures.clone());
        let record = serde_json::to_vec(&Record { digest: digest.clone(), config, signatures })?;
        replace(&self.record(name), &record)?;
        self.sweep(name, &digest)
    }

    /// Returns the last good version of a name; `None` if there is none, or it is damaged.
    pub(super) fn load(&self, name: &str) -> Option<Kept> {
        let record: Record = serde_json::from_slice(&fs::read(self.record(name)).ok()?).ok()?;
        let wasm = fs::read(self.wasm(name, &record.digest)).ok()?;
        let is_whole = digest(&wasm) == record.digest;
        let Record { config, signatures, .. } = record;
        is_whole.then_some(Kept { wasm, config, signatures })
    }

    /// Forgets the last good version of a name.
    pub(super) fn forget(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.record(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.sweep(name, "")
    }

    /// Returns the names that have a last good version.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            if let Some(name) = entry?.file_name().to_str().and_then(|name| name.strip_suffix(".json")) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns the digests in quarantine, each with its last failure.
    pub(super) fn quarantine(&self) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.path.join("quarantine.list")).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(digest, failure)| (digest.to_owned(), failure.to_owned()))
            .collect()
    }

    /// Stores the digests in quarantine.
    pub(super) fn set_quarantine(&self, digests: &BTreeMap<String, String>) -> io::Result<()> {
        let line =
            |(digest, failure): (&String, &String)| format!("{digest} {}\n", failure.replace('\n', " "));
        replace(&self.path.join("quarantine.list"), digests.iter().map(line).collect::<String>().as_bytes())
    }

    fn record(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.json"))
    }

    fn wasm(&self, name: &str, digest: &str) -> PathBuf {
        self.path.join(format!("{name}.{digest}.wasm"))
    }

    /// Removes the components of a name but one.
    fn sweep(&self, name: &str, digest_kept: &str) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let file = entry.file_name();
            let middle = file
                .to_str()
                .and_then(|file| file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".wasm"));
            if middle.is_some_and(|digest| digest != digest_kept) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Writes a file beside its place, makes it durable and renames it into place.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = fs::File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    if let Some(folder) = path.parent() {
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_are_kept_replaced_and_forgotten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keep = Keep::open(folder.path().join("deep/er")).expect("made");
        assert!(keep.load("a").is_none());
        keep.save("a", b"one", &json!({"x": 1}), &Signatures::default()).expect("saved");
        keep.save("ab", b"other", &json!({}), &Signatures::default()).expect("saved");
        keep.save("a", b"two", &json!({"x": 2}), &Signatures::default()).expect("saved");
        let kept = keep.load("a").expect("kept");
        assert_eq!((kept.wasm.as_slice(), kept.config), (b"two".as_slice(), json!({"x": 2})));
        let files = fs::read_dir(&keep.path).expect("listed").count();
        assert_eq!(files, 4, "the first version is swept away");
        keep.forget("a").expect("forgotten");
        keep.forget("a").expect("twice is fine");
        assert!(keep.load("a").is_none());
        assert_eq!(keep.names().expect("listed"), ["ab"]);
    }

    #[test]
    fn a_damaged_version_is_not_used() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keep = Keep::open(folder.path().to_owned()).expect("made");
        keep.save("a", b"good", &json!({}), &Signatures::default()).expect("saved");
        fs::write(keep.wasm("a", &digest(b"good")), b"evil").expect("written");
        assert!(keep.load("a").is_none());
    }

    #[test]
    fn what_a_crash_left_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keep = Keep::open(folder.path().to_owned()).expect("made");
        keep.save("a", b"good", &json!({}), &Signatures::default()).expect("saved");
        for left in ["a.bb.wasm.new", "gone.bb.wasm", "gone.json.new"] {
            fs::write(folder.path().join(left), b"x").expect("written");
        }
        let keep = Keep::open(folder.path().to_owned()).expect("opened");
        assert!(keep.load("a").is_some());
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2);
    }

    #[test]
    fn quarantine_survives() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keep = Keep::open(folder.path().to_owned()).expect("made");
        assert!(keep.quarantine().is_empty());
        let digests = BTreeMap::from([("ab".to_owned(), "crashed: two\nlines".to_owned())]);
        keep.set_quarantine(&digests).expect("stored");
        assert_eq!(keep.quarantine(), BTreeMap::from([("ab".to_owned(), "crashed: two lines".to_owned())]));
    }
}
