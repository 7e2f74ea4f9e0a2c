//! The folder of segments: names, ages, and the bound on all of them.
//!
//! Files are `decisions-NNNNNNNNNN.jsonl`, numbered in the order they were begun, so that names sort by age. Invariants:
//! a file is only ever appended to by the host that began it, and never again after a failure or a restart, so that a
//! torn line can only be the last of a file; the files together never have more than `bytes_max` bytes.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const PREFIX: &str = "decisions-";
const SUFFIX: &str = ".jsonl";
/// Segments that fill the bound.
const SEGMENTS: u64 = 16;

/// Returns the segments in a folder, oldest first; other files are not looked at.
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
        for number in numbers(&folder)? {
            finished.push_back((number, fs::metadata(path(&folder, number))?.len()));
        }
        let next = finished.back().map_or(1, |(number, _)| number + 1);
        let mut segments = Self { folder, bytes_max, finished, current: None, next };
        segments.make_room(0)?;
        Ok(segments)
    }

    /// Returns the size of one segment; a decision that is larger has one of its own.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.bytes_max / SEGMENTS
    }

    /// Returns the length of the segment being written, 0 if there is none.
    pub(super) fn len(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.len)
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
            self.end();
        }
        written
    }

    /// Ends the segment being written; it is synced, because it is never touched again.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        let synced = self.current.as_ref().map_or(Ok(()), |current| current.file.sync_data());
        self.end();
        synced
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
            self.next += 1;
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
            match fs::remove_file(path(&self.folder, *number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => drop(self.finished.pop_front()),
            }
        }
        Ok(())
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
        // Not what somebody wrote with other zeros: it could not be found again.
        if path(folder, number).file_name() == Some(&name) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
