//! Opening a segment: a regular file of bounded size, and only as much of it as was there then.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _, Take};
use std::path::Path;

use anyhow::{Context, bail};
use fulcrum_policy::journal::{Reader, SEGMENT_BYTES_MAX};

/// A segment being read.
pub(super) type Segment = Reader<BufReader<Take<File>>>;

/// Opens a segment and reads its header; `None` if it is not there, as a running host removes old ones.
///
/// Errors if it cannot be read, is no segment, or is larger than one may be. Links are not followed, and pipes and devices
/// not opened: they may have no end.
pub(super) fn open(path: &Path) -> anyhow::Result<Option<Segment>> {
    let shown = path.display();
    let Some(found) = there(fs::symlink_metadata(path)).with_context(|| format!("cannot look at {shown}"))?
    else {
        return Ok(None);
    };
    // Before it is opened: that of a pipe waits for somebody who writes.
    if !found.is_file() {
        bail!("{shown} is no regular file; links are not followed");
    }
    let about = || format!("cannot open {shown}");
    let Some(file) = there(File::open(path)).with_context(about)? else { return Ok(None) };
    let bytes = file.metadata().with_context(about)?.len();
    if bytes > SEGMENT_BYTES_MAX {
        bail!("{shown} has {bytes} bytes: a segment has no more than {SEGMENT_BYTES_MAX}");
    }
    Ok(Some(Reader::open(shown.to_string(), BufReader::new(file.take(bytes)))?))
}

fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
