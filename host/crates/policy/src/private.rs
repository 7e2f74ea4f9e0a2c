//! Files that only this process's user may read or write.
//!
//! Invariant: bytes are returned only from a regular file, not reached through a link, that belongs to this process's
//! user and that nobody else may read or write. All of it is asked of the open file, so nothing can be swapped in
//! between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// Why a file's bytes are not to be had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is none.
    Missing,
    /// It is there, but not fit to be trusted: why.
    Unfit(String),
}

/// Makes a folder that only this process's user may enter, its parents as usual; does nothing if it is there.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Says whether others may look into a folder.
///
/// Errors if the path is no folder, leads through a link in its last part, or belongs to somebody else.
pub(crate) fn is_folder_open(path: &Path) -> io::Result<bool> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Err(io::Error::other("it is not a folder"));
    }
    if !is_own(&metadata) {
        return Err(io::Error::other("it belongs to another user"));
    }
    Ok(is_open(&metadata))
}

/// Takes everybody else's rights to a folder away.
pub(crate) fn close_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Reads a file of at most `bytes_max` bytes; returns it open, too.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<(Vec<u8>, File), Fault> {
    let unfit = |error: io::Error| Fault::Unfit(error.to_string());
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        // A pipe that took the file's place must not hold the caller up.
        libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY,
    );
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Fault::Missing),
        Err(error) => return Err(unfit(error)),
    };
    let metadata = file.metadata().map_err(unfit)?;
    let fault = if !metadata.is_file() {
        Some("it is not a regular file".to_owned())
    } else if !is_own(&metadata) {
        Some("it belongs to another user".to_owned())
    } else if is_open(&metadata) {
        Some("others may read or write it".to_owned())
    } else if metadata.len() > bytes_max {
        Some(format!("it has {} bytes, at most {bytes_max} are expected", metadata.len()))
    } else {
        None
    };
    if let Some(fault) = fault {
        return Err(Fault::Unfit(fault));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    (&file).take(bytes_max + 1).read_to_end(&mut bytes).map_err(unfit)?;
    Ok((bytes, file))
}

/// Writes a new file, durably; errors if there is one already. What could not be written whole is removed.
pub(crate) fn write_new(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    make_new(path, |file| {
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    })
}

fn make_new(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    fill(&mut file).inspect_err(|_| drop(fs::remove_file(path)))
}

#[cfg(unix)]
fn is_own(metadata: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(metadata) == rustix::process::geteuid().as_raw()
}

#[cfg(unix)]
fn is_open(metadata: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::mode(metadata) & 0o077 != 0
}

// Elsewhere a folder in the user's profile is private by inheritance.
#[cfg(not(unix))]
fn is_own(_: &fs::Metadata) -> bool {
    true
}

#[cfg(not(unix))]
fn is_open(_: &fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_whole_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        let full = |file: &mut File| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        assert_eq!(make_new(&path, full).map_err(|error| error.kind()), Err(io::ErrorKind::StorageFull));
        assert!(!path.exists());
        // What was there before is nobody's to remove.
        write_new(&path, &[b"a", b"b"]).expect("it is new");
        let again = write_new(&path, &[b"c"]).map_err(|error| error.kind());
        assert_eq!(
            (again, fs::read(&path).expect("there")),
            (Err(io::ErrorKind::AlreadyExists), b"ab".to_vec())
        );
    }
}
