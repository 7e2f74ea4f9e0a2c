//! The policies folder as it is now: which policies lie there, and which files are complete.
//!
//! Invariant: a file counts as complete only when its last event was a close-after-write or a rename into place, when
//! two looks some time apart found the same content, or when it was old already at the first look. The files of a name
//! are changed all or not at all: what was there is kept until the last one is in its place. Nothing is written through
//! what others put into the folder: whatever lies where a file is to be written is removed, and the file made anew.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fulcrum_core::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::signed::{Signatures, SignedConfig};
use crate::artifact::digest;
use crate::json::Plain;
use crate::refusal::Refusal;
use crate::trust::TrustedKeys;

/// Longest configuration, digest or signature file, in bytes; a configuration has no more as compact JSON either.
pub(super) const SIDECAR_BYTES_MAX: usize = 1 << 20;
/// A file that was not touched for so long before the host started is complete.
const OLD_AT_BOOT: Duration = Duration::from_secs(2);

/// What lies in the folder under one policy name.
#[derive(Clone, Debug)]
pub(super) enum Look {
    /// Complete and readable.
    Found(Found),
    /// Still being written, or not looked at often enough.
    Waiting,
    /// Complete, but unusable before anything is even compiled.
    Refused {
        /// Why.
        refusal: Refusal,
        /// Digest of the component, empty if it could not be read.
        digest: String,
    },
}

/// The complete files of one policy name.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The component; `None` when there is only a configuration, for the embedded policy of that name.
    pub wasm: Option<Component>,
    /// The configuration, an object; `{}` when there is no file.
    pub config: Value,
    /// What vouches for both; checked already, if the host asks for signatures.
    pub signatures: Signatures,
}

/// A component and its digest.
#[derive(Clone, Debug)]
pub(super) struct Component {
    /// Where it lies.
    pub path: PathBuf,
    /// Lower-case hex sha256.
    pub digest: String,
}

/// See the module.
pub(super) struct Folder {
    path: PathBuf,
    settle: Duration,
    wasm_bytes_max: usize,
    /// With keys, a file without a valid signature is refused; without, signatures are not even looked at.
    trusted: Option<TrustedKeys>,
    files: HashMap<PathBuf, File>,
    is_first_look: bool,
    /// Names that were complained about.
    ignored: HashSet<String>,
}

struct File {
    stat: Stat,
    content: Result<Content, Refusal>,
    first_seen: Timestamp,
    /// The last event said that the writer is done.
    closed: bool,
    complete: bool,
}

#[derive(Clone)]
enum Content {
    /// A component is large: its bytes are read again when they are needed, and hashed again then.
    Digest(String),
    Text(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Stat {
    len: u64,
    modified: Option<SystemTime>,
    inode: (u64, u64, i64, i64),
}

impl Folder {
    pub(super) fn new(
        path: PathBuf,
        settle: Duration,
        wasm_bytes_max: usize,
        trusted: Option<TrustedKeys>,
    ) -> Self {
        // Events name absolute paths.
        let path = std::path::absolute(&path).unwrap_or(path);
        Self {
            path,
            settle,
            wasm_bytes_max,
            trusted,
            files: HashMap::new(),
            is_first_look: true,
            ignored: HashSet::new(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes an event: the writer of `path` is done (`closed`), or the file changed in another way.
    pub(super) fn note(&mut self, path: &Path, closed: bool) {
        if let Some(file) = self.files.get_mut(path) {
            file.closed = closed;
            file.complete = false;
        } else if closed {
            // Seen by its event before any look: remember the event, read it at the next look.
            self.files.insert(path.to_owned(), File::unread(true));
        }
    }

    /// Writes what one name's files shall be, beside their places: nothing changes until [`Self::commit`].
    ///
    /// Errors, and leaves nothing behind, if the folder cannot be written or the disk is full.
    pub(super) fn stage(&self, policy: &str, files: &Files<'_>) -> io::Result<Staging> {
        let mut staging = Staging { files: Vec::new(), prints: Prints::default() };
        for (suffix, bytes) in files.all() {
            // Both start with a dot: no look takes them for files of the folder.
            let beside = |end: &str| self.path.join(format!(".{policy}{suffix}{end}"));
            let (place, aside) = (self.path.join(format!("{policy}{suffix}")), beside(ASIDE));
            let beside = bytes.map(|_| beside(STAGED));
            staging.files.push(Change { place, beside: beside.clone(), aside, was_there: None });
            let Some((bytes, beside)) = bytes.zip(beside) else { continue };
            let mut file = make_anew(&beside)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            staging.prints.0.insert(suffix.to_owned(), digest(bytes));
        }
        Ok(staging)
    }

    /// Puts staged files into their places and removes those that shall not be there: all of them, or none if it errors.
    pub(super) fn commit(&mut self, mut staging: Staging) -> io::Result<()> {
        let done = staging.files.iter_mut().try_for_each(Change::make).and_then(|()| self.sync());
        if let Err(error) = done {
            for change in staging.files.iter().rev().filter(|change| change.was_there.is_some()) {
                if let Err(error) = change.undo() {
                    let file = change.place.display();
                    tracing::error!(%file, %error, "cannot put a file of the policies folder back");
                }
                self.note(&change.place, true);
            }
            // What matters is why it could not be done.
            drop(self.sync());
            return Err(error);
        }
        for change in &staging.files {
            change.forget();
            if change.is_there() {
                self.note(&change.place, true);
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    /// Tells the files of a name from others that are put there later, however often a change of them fails; `None` if the
    /// folder is not there.
    pub(super) fn stamp(&self, policy: &str) -> Option<Stamp> {
        fs::read_dir(&self.path).ok()?;
        let stat = |(suffix, _): (&str, _)| {
            let metadata = fs::metadata(self.path.join(format!("{policy}{suffix}"))).ok();
            let metadata = metadata.filter(fs::Metadata::is_file)?;
            let Stat { len, modified, inode: (device, inode, ..) } = Stat::of(&metadata);
            Some((len, modified, device, inode))
        };
        Some(Stamp(Files::default().all().map(stat)))
    }

    /// Removes what a host that was killed had staged or kept. What it had only moved away of the policy whose change is not
    /// finished is put back.
    pub(super) fn tidy(&self, unfinished: Option<&str>) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let Some(left) = file.to_str().and_then(|file| file.strip_prefix('.')) else { continue };
            let (is_aside, name) = match (left.strip_suffix(STAGED), left.strip_suffix(ASIDE)) {
                (Some(name), _) => (false, name),
                (None, Some(name)) => (true, name),
                (None, None) => continue,
            };
            // Other files of that kind are not ours.
            let Some((policy, _)) = kind_of(name) else { continue };
            let place = self.path.join(name);
            let is_empty =
                || fs::symlink_metadata(&place).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            // Left there, it does no harm either.
            drop(match is_aside && unfinished == Some(policy) && is_empty() {
                true => fs::rename(entry.path(), &place),
                false => fs::remove_file(entry.path()),
            });
        }
    }

    /// Tells the files of a name from others by what is in them.
    pub(super) fn prints(&self, policy: &str) -> Prints {
        let print = |(suffix, _): (&'static str, _)| {
            let path = self.path.join(format!("{policy}{suffix}"));
            let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
            let known =
                self.files.get(&path).filter(|file| file.complete && file.stat == Stat::of(&metadata));
            let print = match known.map(|file| &file.content) {
                Some(Ok(Content::Digest(known))) => known.clone(),
                Some(Ok(Content::Text(text))) => digest(text.as_bytes()),
                _ => match read_at_most(&path, self.wasm_bytes_max.max(SIDECAR_BYTES_MAX)) {
                    Ok(bytes) => digest(&bytes),
                    Err(_) => "unreadable".to_owned(),
                },
            };
            Some((suffix.to_owned(), print))
        };
        Prints(Files::default().all().into_iter().filter_map(print).collect())
    }

    /// Reads the component of a name, if it is the one with this digest.
    pub(super) fn component(&self, policy: &str, digest: &str) -> Option<Vec<u8>> {
        let path = self.path.join(format!("{policy}.wasm"));
        Component { path, digest: digest.to_owned() }.read(self.wasm_bytes_max).ok()
    }

    /// Looks at the folder. Errors if the folder itself cannot be read: then nothing is known, not even absence.
    pub(super) fn look(&mut self, now: Timestamp) -> io::Result<BTreeMap<String, Look>> {
        let mut present = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with('.') {
                continue;
            }
            if kind_of(name).is_none() {
                if name.ends_with(".wasm") && self.ignored.insert(name.to_owned()) {
                    tracing::warn!(
                        file = name,
                        "file ignored: a policy's name is 1 to 64 of letters, digits, - and _"
                    );
                }
                continue;
            }
            let path = self.path.join(name);
            // Follows links: mounted configuration is switched by a link.
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => {
                    present.push((name.to_owned(), path, Stat::of(&metadata)));
                }
                _ => {}
            }
        }
        let paths: HashSet<&Path> = present.iter().map(|(_, path, _)| path.as_path()).collect();
        self.files.retain(|path, _| paths.contains(path.as_path()));
        for (name, path, stat) in &present {
            self.look_at(name, path, *stat, now);
        }
        self.is_first_look = false;
        let mut looks = BTreeMap::new();
        for (name, _, _) in &present {
            if let Some((policy, Kind::Wasm | Kind::Config)) = kind_of(name)
                && !looks.contains_key(policy)
            {
                looks.insert(policy.to_owned(), self.judge(policy));
            }
        }
        Ok(looks)
    }

    fn look_at(&mut self, name: &str, path: &Path, stat: Stat, now: Timestamp) {
        let before = self.files.get(path);
        if before.is_some_and(|file| file.complete && file.stat == stat) {
            return;
        }
        let closed = before.is_some_and(|file| file.closed);
        let content = self.read(name, path);
        let stat_after = fs::metadata(path).ok().map(|metadata| Stat::of(&metadata));
        let unchanged = before.filter(|file| file.same_content(&content));
        let first_seen = unchanged.map_or(now, |file| file.first_seen);
        let is_old = self.is_first_look
            && stat.modified.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > OLD_AT_BOOT);
        let is_quiet = stat_after == Some(stat);
        let settled = unchanged.is_some() && now.since(first_seen) >= self.settle;
        let complete = is_quiet && (closed || settled || is_old);
        // An event vouches for one look: without a new one, the next change has to settle.
        let closed = closed && !complete;
        self.files.insert(path.to_owned(), File { stat, content, first_seen, closed, complete });
    }

    fn read(&self, name: &str, path: &Path) -> Result<Content, Refusal> {
        let unreadable =
            |error: io::Error| Refusal::Unreadable { what: name.to_owned(), error: error.to_string() };
        let is_wasm = matches!(kind_of(name), Some((_, Kind::Wasm)));
        let max = if is_wasm { self.wasm_bytes_max } else { SIDECAR_BYTES_MAX };
        let bytes = read_at_most(path, max).map_err(unreadable)?;
        if bytes.len() > max {
            let bytes = fs::metadata(path).map_or(bytes.len() as u64, |metadata| metadata.len());
            return Err(match is_wasm {
                true => Refusal::TooLarge { bytes, max },
                false => Refusal::FileTooLarge { file: name.to_owned(), bytes, max },
            });
        }
        if is_wasm {
            return Ok(Content::Digest(digest(&bytes)));
        }
        String::from_utf8(bytes)
            .map(Content::Text)
            .map_err(|_| Refusal::Unreadable { what: name.to_owned(), error: "it is not UTF-8".to_owned() })
    }

    fn judge(&self, policy: &str) -> Look {
        let path = |suffix: &str| self.path.join(format!("{policy}{suffix}"));
        let file = |suffix: &str| self.files.get(&path(suffix));
        let (wasm, config, sum) = (file(".wasm"), file(".json"), file(".wasm.sha256"));
        let signatures = |suffix| self.trusted.as_ref().and_then(|_| file(suffix));
        let (wasm_sig, config_sig) = (signatures(".wasm.sig"), signatures(".json.sig"));
        if [wasm, config, sum, wasm_sig, config_sig].into_iter().flatten().any(|file| !file.complete) {
            return Look::Waiting;
        }
        let digest = match wasm.map(|file| &file.content) {
            Some(Ok(Content::Digest(digest))) => Some(digest.clone()),
            Some(Err(refusal)) => return Look::Refused { refusal: refusal.clone(), digest: String::new() },
            _ => None,
        };
        let refused = |refusal| Look::Refused { refusal, digest: digest.clone().unwrap_or_default() };
        if let (Some(sum), Some(found)) = (sum, &digest)
            && let Err(refusal) = check_digest(policy, &sum.content, found)
        {
            return refused(refusal);
        }
        let found = || {
            let text = |file: Option<&File>| file.map(|file| text(&file.content)).transpose();
            let config_text = text(config)?;
            let signatures = Signatures {
                component: text(wasm_sig)?,
                config: config_text
                    .clone()
                    .zip(text(config_sig)?)
                    .map(|(text, signature)| SignedConfig { text, signature }),
            };
            let config = config_text
                .map_or(Ok(Value::Object(serde_json::Map::new())), |text| parse_config(policy, &text))?;
            if let Some(keys) = &self.trusted {
                signatures.check(keys, policy, digest.as_deref(), &config)?;
            }
            let wasm = digest.clone().map(|digest| Component { path: path(".wasm"), digest });
            Ok(Found { wasm, config, signatures })
        };
        found().map_or_else(refused, Look::Found)
    }
}

/// See [`Folder::stamp`]. Without the time of a file's last link, which a change that is undone leaves another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp([Option<Place>; 5]);

/// Length, time of the last change, device and inode of a file.
type Place = (u64, Option<SystemTime>, u64, u64);

/// What is in the files of one name that are there: sha256 by suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prints(BTreeMap<String, String>);

impl Prints {
    /// Says whether each file is as it was before a change or as it shall be after it.
    pub(super) fn is_between(&self, before: &Self, after: &Self) -> bool {
        let suffixes = Files::default().all().map(|(suffix, _)| suffix);
        let of = |prints: &Self, suffix| prints.0.get(suffix).cloned();
        suffixes.into_iter().all(|suffix| {
            let found = of(self, suffix);
            found == of(before, suffix) || found == of(after, suffix)
        })
    }
}

/// What the files of one name shall be; `None` is no such file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Files<'a> {
    pub wasm: Option<&'a [u8]>,
    pub wasm_signature: Option<&'a str>,
    pub config: Option<&'a str>,
    pub config_signature: Option<&'a str>,
}

impl<'a> Files<'a> {
    /// Returns every file a name can have, by suffix, the component first. A digest file was about another component.
    fn all(&self) -> [(&'static str, Option<&'a [u8]>); 5] {
        [
            (".wasm", self.wasm),
            (".wasm.sha256", None),
            (".wasm.sig", self.wasm_signature.map(str::as_bytes)),
            (".json", self.config.map(str::as_bytes)),
            (".json.sig", self.config_signature.map(str::as_bytes)),
        ]
    }
}

/// End of the names of staged files.
const STAGED: &str = ".fulcrum-new";
/// End of the names of files that are kept until a change is complete.
const ASIDE: &str = ".fulcrum-old";

/// Files beside their places. Dropped, those that were not put there are removed.
#[derive(Debug)]
pub(super) struct Staging {
    files: Vec<Change>,
    prints: Prints,
}

impl Staging {
    /// Returns what the files will be.
    pub(super) fn prints(&self) -> &Prints {
        &self.prints
    }
}

/// What becomes of one file.
#[derive(Debug)]
struct Change {
    place: PathBuf,
    /// What shall be there; `None` is nothing, or that it is there already.
    beside: Option<PathBuf>,
    /// Where what was there is kept meanwhile.
    aside: PathBuf,
    /// Whether something was there; `None` until the change begins.
    was_there: Option<bool>,
}

impl Change {
    /// Keeps what is there, and puts the staged file into its place. What was done when it errors is undone by
    /// [`Self::undo`].
    fn make(&mut self) -> io::Result<()> {
        self.forget();
        match fs::symlink_metadata(&self.place) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(io::Error::other(format!("{} is a directory", self.place.display())));
            }
            // With a link there is a file at the place all the time; not every file system has them.
            Ok(_) => {
                fs::hard_link(&self.place, &self.aside).or_else(|_| fs::rename(&self.place, &self.aside))?;
                self.was_there = Some(true);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.was_there = Some(false),
            Err(error) => return Err(error),
        }
        match &self.beside {
            Some(beside) => {
                fs::rename(beside, &self.place)?;
                self.beside = None;
                Ok(())
            }
            None => remove_if_there(&self.place),
        }
    }

    /// Puts back what was there.
    fn undo(&self) -> io::Result<()> {
        match self.was_there {
            Some(true) => {
                fs::rename(&self.aside, &self.place)?;
                // Renaming one link of a file over another one leaves both.
                remove_if_there(&self.aside)
            }
            Some(false) if self.beside.is_none() => remove_if_there(&self.place),
            Some(false) | None => Ok(()),
        }
    }

    /// Removes what is kept of what was there.
    fn forget(&self) {
        // Left there, it is removed when the host starts.
        drop(fs::remove_file(&self.aside));
    }

    fn is_there(&self) -> bool {
        self.place.exists()
    }
}

/// Makes a file in place of whatever lies there, be it a link to another file or a pipe: that one is not touched. Errors
/// if a folder lies there, or if something is put there at the same moment.
pub(super) fn make_anew(path: &Path) -> io::Result<fs::File> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        return Err(io::Error::other(format!("{} is a directory", path.display())));
    }
    remove_if_there(path)?;
    fs::OpenOptions::new().write(true).create_new(true).open(path)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for beside in self.files.iter().filter_map(|change| change.beside.as_ref()) {
            // What is left is removed when the host starts.
            drop(fs::remove_file(beside));
        }
    }
}

impl Component {
    /// Reads the bytes, and refuses them if they are not those that were looked at.
    pub(super) fn read(&self, max: usize) -> Result<Vec<u8>, Refusal> {
        let what = self.path.display().to_string();
        let bytes = read_at_most(&self.path, max)
            .map_err(|error| Refusal::Unreadable { what: what.clone(), error: error.to_string() })?;
        if digest(&bytes) == self.digest {
            Ok(bytes)
        } else {
            Err(Refusal::Unreadable { what, error: "it changed while it was read".to_owned() })
        }
    }
}

impl File {
    fn unread(closed: bool) -> Self {
        Self {
            stat: Stat { len: 0, modified: None, inode: (0, 0, 0, 0) },
            content: Err(Refusal::Empty),
            first_seen: Timestamp::default(),
            closed,
            complete: false,
        }
    }

    fn same_content(&self, content: &Result<Content, Refusal>) -> bool {
        match (&self.content, content) {
            (Ok(Content::Digest(a)), Ok(Content::Digest(b)) | Ok(Content::Text(b)))
            | (Ok(Content::Text(a)), Ok(Content::Text(b)) | Ok(Content::Digest(b))) => a == b,
            (Err(a), Err(b)) => a == b && self.stat.modified.is_some(),
            _ => false,
        }
    }
}

impl Stat {
    #[cfg(unix)]
    fn of(metadata: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let inode = (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
        Self { len: metadata.len(), modified: metadata.modified().ok(), inode }
    }

    #[cfg(not(unix))]
    fn of(metadata: &fs::Metadata) -> Self {
        Self { len: metadata.len(), modified: metadata.modified().ok(), inode: (0, 0, 0, 0) }
    }
}

enum Kind {
    Wasm,
    Config,
    Sum,
    Signature,
}

/// Splits a file name into the policy's name and what the file is; `None` for anything else in the folder.
fn kind_of(file: &str) -> Option<(&str, Kind)> {
    let (name, kind) = if let Some(name) = file.strip_suffix(".wasm") {
        (name, Kind::Wasm)
    } else if let Some(name) = file.strip_suffix(".json") {
        (name, Kind::Config)
    } else if let Some(name) = file.strip_suffix(".wasm.sha256") {
        (name, Kind::Sum)
    } else {
        (file.strip_suffix(".wasm.sig").or_else(|| file.strip_suffix(".json.sig"))?, Kind::Signature)
    };
    is_policy_name(name).then_some((name, kind))
}

/// Says whether a policy may have this name: 1 to 64 of letters, digits, `-`, `_`, not starting with a sign.
pub(super) fn is_policy_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_word)
}

/// Reads a regular file, of which at most one byte more than `max`.
fn read_at_most(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file. Anything else that took its place since it was looked at (a pipe, a device) must neither hold
/// the task up nor be read.
pub(super) fn open_regular(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Returns the text of a file, or why it has none.
fn text(content: &Result<Content, Refusal>) -> Result<String, Refusal> {
    match content {
        Ok(Content::Text(text) | Content::Digest(text)) => Ok(text.clone()),
        Err(refusal) => Err(refusal.clone()),
    }
}

fn check_digest(policy: &str, content: &Result<Content, Refusal>, found: &str) -> Result<(), Refusal> {
    let file = format!("{policy}.wasm.sha256");
    let text = text(content)?;
    let expected = text.split_whitespace().next().unwrap_or("").to_ascii_lowercase();
    if expected.len() != 64 || !expected.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Refusal::DigestSyntax { file });
    }
    if expected == found { Ok(()) } else { Err(Refusal::Digest { file, expected, found: found.to_owned() }) }
}

/// Reads the text of a configuration file. What is too large as compact JSON is refused, too: the host could not write it
/// again.
pub(super) fn parse_config(policy: &str, text: &str) -> Result<Value, Refusal> {
    let file = || format!("{policy}.json");
    let syntax = |error: String| Refusal::ConfigSyntax { file: file(), error };
    check_config_size(policy, text.len())?;
    let config = match serde_json::from_str(text) {
        Ok(Plain(Value::Object(fields))) => Value::Object(fields),
        Ok(_) => return Err(syntax("it is another kind of value".to_owned())),
        Err(error) => return Err(syntax(error.to_string())),
    };
    // Only numbers grow, as from 1e5 to 100000.0, and none of them to eight times its length.
    if text.len() > SIDECAR_BYTES_MAX / 8 {
        check_config_size(policy, config.to_string().len())?;
    }
    Ok(config)
}

/// Refuses a configuration file of so many bytes if it is too large.
pub(super) fn check_config_size(policy: &str, bytes: usize) -> Result<(), Refusal> {
    if bytes <= SIDECAR_BYTES_MAX {
        return Ok(());
    }
    let file = format!("{policy}.json");
    Err(Refusal::FileTooLarge { file, bytes: bytes as u64, max: SIDECAR_BYTES_MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_have_a_size_as_sent_and_as_written() {
        let check = |text: String, expected: Option<&str>| {
            let found = parse_config("a", &text).err();
            assert_eq!(found.as_ref().map(Refusal::code), expected, "{:?} {}", found, text.len());
        };
        let padded = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
        check(padded(SIDECAR_BYTES_MAX), None);
        check(padded(SIDECAR_BYTES_MAX + 1), Some("too_large"));
        check(format!("{{}}{}", " ".repeat(SIDECAR_BYTES_MAX)), Some("too_large"));
        // The text of a number may be longer as it is written.
        let numbers = |count: usize| format!("{{\"a\":[{}1]}}", "1e15,".repeat(count));
        check(numbers(50_000), None);
        check(numbers(100_000), Some("too_large"));
    }

    #[test]
    fn only_what_the_host_left_is_tidied() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let at = |file: &str| place.path().join(file);
        let folder = Folder::new(place.path().to_owned(), Duration::ZERO, 100, None);
        let kept =
            [".keep.fulcrum-new", ".x.txt.fulcrum-old", ".m.json.part", "m.json", ".-.wasm.fulcrum-new"];
        let left =
            [".m.wasm.fulcrum-new", ".m.json.fulcrum-old", ".o.wasm.sig.fulcrum-old", ".m.wasm.fulcrum-old"];
        for file in kept.into_iter().chain(left) {
            fs::write(at(file), file).expect("written");
        }
        folder.tidy(Some("m"));
        for file in kept {
            assert!(at(file).exists(), "{file}");
        }
        for file in left {
            assert!(!at(file).exists(), "{file}");
        }
        assert_eq!(fs::read(at("m.wasm")).expect("put back"), b".m.wasm.fulcrum-old");
        assert_eq!(fs::read(at("m.json")).expect("as it was"), b"m.json");
        assert!(!at("o.wasm.sig").exists());
    }

    #[test]
    fn prints_tell_what_lies_there() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let write = |file: &str, bytes: &[u8]| fs::write(place.path().join(file), bytes).expect("written");
        let mut folder = Folder::new(place.path().to_owned(), Duration::ZERO, 100, None);
        write("m.wasm", b"one");
        let before = folder.prints("m");
        let files = Files { wasm: Some(b"two"), config: Some("{}"), ..Files::default() };
        let staging = folder.stage("m", &files).expect("staged");
        let after = staging.prints().clone();
        assert_eq!(folder.prints("m"), before);
        let check = |folder: &Folder, is_between: bool, text: &str| {
            assert_eq!(folder.prints("m").is_between(&before, &after), is_between, "{text}");
        };
        check(&folder, true, "nothing was done yet");
        folder.commit(staging).expect("done");
        assert_eq!(folder.prints("m"), after);
        write("m.wasm", b"one");
        check(&folder, true, "one of two files");
        write("m.wasm", b"six");
        check(&folder, false, "another one");
        write("m.wasm", b"two");
        write("m.json.sig", b"");
        check(&folder, false, "one more");
    }
}
