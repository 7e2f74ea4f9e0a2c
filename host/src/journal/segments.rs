//! The folder of segments: names, ages, and the bound on all of them.
//!
//! Files are `decisions-NNNNNNNNNN.jsonl`, numbered in the order they were begun, so that names sort by age. Invariants:
//! a file is only ever appended to by the host that began it, and never again after a failure or a restart, so that a
//! torn line can only be the last of a file; the files together never have more than `bytes_max` bytes. What has such a
//! name and is no regular file is neither counted nor touched.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use fulcrum_policy::journal::SEGMENT_BYTES_MAX;

const PREFIX: &str = "decisions-";
const SUFFIX: &str = ".jsonl";
/// Segments that fill the bound.
const SEGMENTS: u64 = 16;

/// Returns what has the name of a segment in a folder, oldest first, be it a file or not.
pub fn segments_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(numbers(folder)?.into_iter().map(|number| path(folder, number)).collect())
}

/// See the module.
pub(super) struct Segments {
    folder: PathBuf,
    bytes_max: u64,
    /// Number and length, oldest first; the one being written is not in here.
    finished: VecDeque<(u64, u64)>,
    current: Option<Current>,
    next: u64,
}

struct Current {
    number: u64,
    file: File,
    len: u64,
}

impl Segments {
    /// Opens the folder, makes it if it is missing, and removes what is beyond the bound.
    pub(super) fn open(folder: PathBuf, bytes_max: u64) -> io::Result<Self> {
        make(&folder)?;
        let mut finished = VecDeque::new();
        let numbers = numbers(&folder)?;
        for &number in &numbers {
            match fs::symlink_metadata(path(&folder, number)) {
                Ok(found) if found.is_file() => finished.push_back((number, found.len())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // A name that is taken is taken, whatever by.
        let next = numbers.last().map_or(1, |number| number.saturating_add(1));
        let mut segments = Self { folder, bytes_max, finished, current: None, next };
        segments.make_room(0)?;
        Ok(segments)
    }

    /// Returns the size of one segment; a decision that is larger has one of its own.
    pub(super) fn segment_bytes(&self) -> u64 {
        (self.bytes_max / SEGMENTS).min(SEGMENT_BYTES_MAX)
    }

    /// Returns the length of the segment being written, 0 if there is none.
    pub(super) fn len(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.len)
    }

    /// Says whether the segment being written is not in its place any more: what went there would be lost.
    pub(super) fn is_lost(&self) -> bool {
        let is_lost = |current: &Current| !is_in_place(&path(&self.folder, current.number), &current.file);
        self.current.as_ref().is_some_and(is_lost)
    }

    /// Returns the size of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.finished.iter().map(|(_, len)| len).sum::<u64>() + self.len()
    }

    /// Appends whole lines to the segment being written, or to a new one; removes old segments for them.
    ///
    /// After an error the segment is over, and has at most a torn line at its end.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.make_room(lines.len() as u64)?;
        let written = self.begun().and_then(|current| {
            let end = current.len;
            let result = current.file.write_all(lines);
            match result {
                Ok(()) => current.len += lines.len() as u64,
                // On a full disk a part may be there. If it cannot be cut off, readers leave it out, too.
                Err(_) => {
                    let cut = current.file.set_len(end);
                    let left = if cut.is_ok() { Some(end) } else { None };
                    let measured = || current.file.metadata().map(|metadata| metadata.len());
                    current.len = left.map_or_else(measured, Ok).unwrap_or(end + lines.len() as u64);
                }
            }
            result
        });
        if written.is_err() {
            self.give_up();
        }
        written
    }

    /// Ends the segment being written; it is synced, because it is never touched again.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        let synced = self.current.as_ref().map_or(Ok(()), |current| current.file.sync_data());
        self.end();
        synced
    }

    /// Ends the segment after a failure. One in which nothing stands goes: else each attempt on a full disk left one.
    fn give_up(&mut self) {
        let empty = self.current.take_if(|current| current.len == 0);
        match empty {
            Some(current) => drop(fs::remove_file(path(&self.folder, current.number))),
            None => self.end(),
        }
    }

    fn end(&mut self) {
        if let Some(Current { number, len, .. }) = self.current.take() {
            self.finished.push_back((number, len));
        }
    }

    fn begun(&mut self) -> io::Result<&mut Current> {
        if self.current.is_none() {
            // It may have been removed while the host runs.
            make(&self.folder)?;
            let number = self.next;
            // Whatever comes of it: a name that is taken is not tried again.
            self.next = number.checked_add(1).ok_or_else(|| {
                io::Error::other("the numbers are used up: take away the segment with the highest one")
            })?;
            let mut options = OpenOptions::new();
            options.append(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let file = options.open(path(&self.folder, number))?;
            self.current = Some(Current { number, file, len: 0 });
        }
        self.current.as_mut().ok_or_else(|| io::Error::other("there is no segment"))
    }

    /// Removes the oldest segments until so many bytes more fit.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        while self.bytes().saturating_add(bytes) > self.bytes_max {
            let Some((number, _)) = self.finished.front() else { break };
            let path = path(&self.folder, *number);
            match fs::remove_file(&path) {
                // What is there by now may be something else, which is not counted.
                Err(error) if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) => {
                    return Err(error);
                }
                _ => drop(self.finished.pop_front()),
            }
        }
        Ok(())
    }
}

/// Says whether an open file is still the one of that name.
fn is_in_place(path: &Path, file: &File) -> bool {
    let (Ok(found), Ok(open)) = (fs::symlink_metadata(path), file.metadata()) else { return false };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        (found.dev(), found.ino()) == (open.dev(), open.ino())
    }
    #[cfg(not(unix))]
    {
        found.is_file() && found.len() == open.len()
    }
}

/// Makes the folder, closed to others: client ids are in there.
fn make(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(folder) {
        Err(_) if folder.is_dir() => Ok(()),
        made => made,
    }
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{number:010}{SUFFIX}"))
}

/// Returns the numbers of the segments, ascending.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let middle = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        let Some(number) = middle.and_then(|middle| middle.parse().ok()) else { continue };
        // No host wrote the very last one: another has to come after it.
        if number == u64::MAX {
            continue;
        }
        // Not what somebody wrote with other zeros: it could not be found again.
        if path(folder, number).file_name() == Some(&name) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
