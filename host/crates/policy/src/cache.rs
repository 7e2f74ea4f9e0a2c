//! Compiled code on disk, so that a component is compiled once and not at every start.
//!
//! Layout of the folder: `key` holds the key of the MACs (32 random bytes, made once), `DIGEST.ENGINE.native` the code
//! compiled from one component by one engine. A file is a header (mark, format, digest of the component, hash of the
//! engine, contract version, length of the code), the HMAC-SHA-256 over header and code, and the code.
//!
//! Invariants: bytes reach `deserialize` only if their MAC verifies under the folder's key and their header names the
//! component, engine and contract at hand; whatever else lies there is ignored, compiled anew and written over. The
//! cache never fails a load: without it a host is only slower to start. Folder and key may be deleted at any time: they
//! are made again, at the latest with the next file that is written. Only regular files are ever removed.

use std::fs;
use std::hash::{Hash as _, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hmac::{Hmac, Mac as _};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::artifact::is_of_the_pool;
use crate::contract;
use crate::private::{self, Fault};

/// Bytes of the key and of a MAC.
const KEY_BYTES: usize = 32;
/// First bytes of a file: mark and format.
const MARK: &[u8; 12] = b"fulcrum\0\x01\0\0\0";
/// Digest in hex, hash of the engine, contract version, length of the code.
const HEADER_BYTES: usize = MARK.len() + 64 + 32 + 16 + 8;
/// Ending of a file with code.
const SUFFIX: &str = ".native";
/// Ending of a file that is still being written.
const UNFINISHED: &str = ".new";
/// Age from which an unfinished file is taken for what a crash left.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);

/// The folder cannot be used; a host goes on without a cache.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be made, or is not a private folder of this user.
    #[error("cannot use the folder {} for compiled policies", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The key can be neither read nor written.
    #[error("cannot keep the key {} of the compiled policies", path.display())]
    Key {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How a cache is opened.
pub struct Settings {
    /// Its folder; made if missing.
    pub folder: PathBuf,
    /// Most bytes of code it keeps; what was not used for longest goes first.
    pub bytes_max: u64,
    /// Unguessable bytes: the key, if the folder has none that can be trusted.
    pub fresh_key: [u8; KEY_BYTES],
}

/// What a cache did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Components whose code came from the folder.
    pub hits: u64,
    /// Components that had to be compiled.
    pub misses: u64,
    /// Files that were there but not to be trusted, or of no use; each is a miss, too.
    pub refused: u64,
    /// Files written.
    pub stored: u64,
}

/// See the module.
pub struct Cache {
    folder: PathBuf,
    bytes_max: u64,
    key: Mutex<[u8; KEY_BYTES]>,
    counts: Mutex<Counts>,
    /// Tells unfinished files of this cache from those of others; process ids of two containers may be the same.
    tag: String,
    /// Tells its own unfinished files apart.
    serial: AtomicU64,
}

impl Cache {
    /// Opens the folder, and makes it and its key if they are missing.
    ///
    /// A folder or a key that others could read has no secret any more: it is closed, and gets a fresh key. Files made
    /// under another key than the folder's are removed when it gets a fresh one.
    pub fn open(settings: Settings) -> Result<Arc<Self>, Error> {
        let Settings { folder, bytes_max, fresh_key } = settings;
        let failed = |source| Error::Folder { path: folder.clone(), source };
        private::make_folder(&folder).map_err(failed)?;
        let was_open = private::is_folder_open(&folder).map_err(failed)?;
        if was_open {
            tracing::warn!(
                folder = %folder.display(),
                "others could look into the folder of compiled policies: it is closed and its key replaced"
            );
            private::close_folder(&folder).map_err(failed)?;
        }
        tidy(&folder).map_err(failed)?;
        let path = folder.join("key");
        let tag = hex(&Sha256::digest(fresh_key)[..8]);
        // As of before there is a fresh key: what another host writes from then on is of that key.
        let older = files(&folder).map_err(failed)?;
        let (key, is_new) =
            key(&path, was_open, fresh_key, &tag).map_err(|source| Error::Key { path, source })?;
        if is_new && !older.is_empty() {
            older.iter().for_each(|file| drop(fs::remove_file(&file.path)));
            tracing::warn!(
                folder = %folder.display(),
                files = older.len(),
                "the key of the compiled policies is new: the files made under another one are dropped"
            );
        }
        Ok(Arc::new(Self {
            folder,
            bytes_max,
            key: Mutex::new(key),
            counts: Mutex::default(),
            tag,
            serial: AtomicU64::new(0),
        }))
    }

    /// Returns what it did since it was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// Returns the code compiled earlier from the component of that digest (lower-case hex), if there is any.
    pub(crate) fn load(&self, engine: &Engine, digest: &str) -> Option<Component> {
        let header = Header::of(engine, digest);
        let path = self.folder.join(header.file_name());
        let component = self.read(engine, &header, &path);
        let mut counts = self.counts.lock();
        match component {
            Ok(component) => {
                counts.hits += 1;
                Some(component)
            }
            Err(fault) => {
                counts.misses += 1;
                if let Fault::Unfit(reason) = fault {
                    counts.refused += 1;
                    tracing::warn!(
                        file = %path.display(), reason,
                        "file of compiled code ignored: the policy is compiled anew"
                    );
                }
                None
            }
        }
    }

    fn read(&self, engine: &Engine, header: &Header, path: &Path) -> Result<Component, Fault> {
        let unfit = |reason: &str| Fault::Unfit(reason.to_owned());
        let (bytes, file) = private::read(path, self.bytes_max.saturating_add(1 << 20))?;
        let (found, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| unfit("it is cut off"))?;
        let (mac, code) = rest.split_at_checked(KEY_BYTES).ok_or_else(|| unfit("it is cut off"))?;
        // Before anything in the file is believed. Takes the same time wherever the first wrong byte is.
        self.mac(found, code).verify_slice(mac).map_err(|_| unfit("its MAC is wrong"))?;
        if found != header.bytes(code.len()) {
            return Err(unfit("it is of another component, engine or contract"));
        }
        let component = deserialize(engine, code).map_err(|error| {
            if is_of_the_pool(&error) {
                // Nothing is wrong with the file: the limits have changed, and compiling will say so.
                return Fault::Missing;
            }
            Fault::Unfit(format!("the engine refuses it: {error:#}"))
        })?;
        // The order of use is the order of these times. A file that cannot be touched is only removed earlier.
        drop(file.set_modified(SystemTime::now()));
        Ok(component)
    }

    /// Keeps the code of a component. Failures are told in the log: nothing depends on it.
    pub(crate) fn store(&self, engine: &Engine, digest: &str, component: &Component) {
        let header = Header::of(engine, digest);
        let path = self.folder.join(header.file_name());
        match self.write(&header, &path, component) {
            Ok(true) => self.counts.lock().stored += 1,
            Ok(false) => {}
            Err(error) => tracing::warn!(
                file = %path.display(), error = format!("{error:#}"),
                "cannot keep compiled code: the policy will be compiled again at the next start"
            ),
        }
    }

    /// Returns whether it was written; what does not fit at all is not.
    fn write(&self, header: &Header, path: &Path, component: &Component) -> wasmtime::Result<bool> {
        let code = component.serialize()?;
        let header = header.bytes(code.len());
        if (header.len() + KEY_BYTES + code.len()) as u64 > self.bytes_max {
            tracing::debug!(file = %path.display(), bytes = code.len(), "compiled code is larger than the cache");
            return Ok(false);
        }
        self.restore()?;
        let mac = self.mac(&header, &code).finalize().into_bytes();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_added_extension(format!("{}-{serial}{UNFINISHED}", self.tag));
        let written = private::write_new(&beside, &[&header, &mac, &code])
            .and_then(|()| fs::rename(&beside, path))
            .and_then(|()| fs::File::open(&self.folder)?.sync_all());
        if let Err(error) = written {
            drop(fs::remove_file(&beside));
            return Err(error.into());
        }
        if let Err(error) = self.sweep() {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot remove compiled code: too much is kept");
        }
        Ok(true)
    }

    /// Makes the folder and the key again if somebody removed them.
    fn restore(&self) -> io::Result<()> {
        let path = self.folder.join("key");
        let mut key = self.key.lock();
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private::make_folder(&self.folder)?;
                make_key(&path, *key, &self.tag)?;
            }
            _ => {}
        }
        // Another host may have been first, with a key of its own. One that is not to be trusted is for the next start.
        if let Ok(found) = read_key(&path) {
            *key = found;
        }
        Ok(())
    }

    fn mac(&self, header: &[u8], code: &[u8]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&*self.key.lock()).expect("HMAC takes keys of any length");
        mac.update(header);
        mac.update(code);
        mac
    }

    /// Removes what was not used for longest until the rest fits. Errors with the last of those that stay for it, if too
    /// much is left.
    fn sweep(&self) -> io::Result<()> {
        let mut files = files(&self.folder)?;
        files.sort_by(|a, b| (a.used_at, &a.path).cmp(&(b.used_at, &b.path)));
        let mut total: u64 = files.iter().map(|file| file.len).sum();
        let mut failed = Ok(());
        for file in files {
            if total <= self.bytes_max {
                return Ok(());
            }
            match fs::remove_file(&file.path) {
                // Another host may have removed it in between.
                Err(error) if error.kind() != io::ErrorKind::NotFound => failed = Err(error),
                _ => total -= file.len,
            }
        }
        if total <= self.bytes_max { Ok(()) } else { failed }
    }
}

/// A file with code.
struct Kept {
    path: PathBuf,
    len: u64,
    used_at: SystemTime,
}

/// Lists the regular files with code; what cannot be looked at is left out.
fn files(folder: &Path) -> io::Result<Vec<Kept>> {
    let file = |path: PathBuf| {
        let metadata = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let used_at = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Kept { path, len: metadata.len(), used_at })
    };
    let paths = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| has_suffix(path, SUFFIX)).filter_map(file).collect())
}

/// What compiled code belongs to.
struct Header {
    digest: String,
    engine: [u8; 32],
}

impl Header {
    fn of(engine: &Engine, digest: &str) -> Self {
        let mut feed = Feed(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut feed);
        Self { digest: digest.to_owned(), engine: feed.0.finalize().into() }
    }

    fn file_name(&self) -> String {
        format!("{}.{}{SUFFIX}", self.digest, hex(&self.engine[..8]))
    }

    fn bytes(&self, code_len: usize) -> Vec<u8> {
        let mut contract = [0; 16];
        contract[..contract::VERSION.len()].copy_from_slice(contract::VERSION.as_bytes());
        let code_len = (code_len as u64).to_le_bytes();
        [MARK.as_slice(), self.digest.as_bytes(), &self.engine, &contract, &code_len].concat()
    }
}

/// Hashes what wasmtime says its code depends on; the 64 bits of other hashers would be too few.
struct Feed(Sha256);

impl Hasher for Feed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

/// Removes what a crash left half written; a younger file may be another host's that is at it. What stays is only in the
/// way of nothing.
fn tidy(folder: &Path) -> io::Result<()> {
    for path in fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())) {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let is_old = metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNFINISHED_AGE));
        if has_suffix(&path, UNFINISHED) && metadata.is_file() && is_old {
            drop(fs::remove_file(&path));
        }
    }
    Ok(())
}

/// Returns the key of the folder, a fresh one if there is none to be trusted, and whether it is the fresh one.
fn key(
    path: &Path,
    is_exposed: bool,
    fresh: [u8; KEY_BYTES],
    tag: &str,
) -> io::Result<([u8; KEY_BYTES], bool)> {
    match read_key(path) {
        Ok(key) if !is_exposed => return Ok((key, false)),
        Ok(_) => fs::remove_file(path)?,
        Err(Fault::Unfit(reason)) => {
            if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
                return Err(io::Error::other("it is a folder; remove it, and the host makes a key"));
            }
            tracing::warn!(file = %path.display(), reason, "the key of the compiled policies is replaced");
            fs::remove_file(path)?;
        }
        Err(Fault::Missing) => {}
    }
    make_key(path, fresh, tag)?;
    let key = read_key(path).map_err(|fault| io::Error::other(format!("it is unfit at once: {fault:?}")))?;
    Ok((key, key == fresh))
}

/// Reads a key.
fn read_key(path: &Path) -> Result<[u8; KEY_BYTES], Fault> {
    let (bytes, _) = private::read(path, KEY_BYTES as u64)?;
    <[u8; KEY_BYTES]>::try_from(bytes).map_err(|_| Fault::Unfit(format!("it has not {KEY_BYTES} bytes")))
}

/// Writes a key, unless there is one by now: of two hosts that start at once, the later one takes that of the earlier one.
fn make_key(path: &Path, key: [u8; KEY_BYTES], tag: &str) -> io::Result<()> {
    let beside = path.with_added_extension(format!("{tag}{UNFINISHED}"));
    private::write_new(&beside, &[&key])?;
    let linked = fs::hard_link(&beside, path);
    drop(fs::remove_file(&beside));
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(suffix))
}

/// Turns bytes that a cache vouches for into code.
#[allow(unsafe_code, reason = "bytes that wasmtime wrote cannot be told from others by looking at them")]
fn deserialize(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the only caller has verified the MAC over these bytes. The key never leaves this process's user, so they
    // are what `Component::serialize` of this user's host returned. They are read into memory before they are verified
    // and copied by `deserialize`: a later change of the file changes nothing.
    unsafe { Component::deserialize(engine, code) }
}

#[cfg(test)]
mod tests;
