//! Puts a command's result in its place.
//!
//! Invariants: a regular file is there as a whole or as it was before, also for a host that watches its folder; what is
//! there and is no regular file (a device, a pipe) is written into and never replaced; links are followed; on an error
//! nothing is left behind.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Most links that are followed one after the other, as the kernel has it.
const LINKS_MAX: u32 = 40;

/// Writes a result. Errors with the path.
pub(super) fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut tag = [0; 8];
    getrandom::fill(&mut tag).context("the operating system gave no randomness")?;
    put_tagged(path, bytes, u64::from_ne_bytes(tag))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes by way of a file whose name has an unguessable part, so that nobody can have put a link there in advance.
fn put_tagged(path: &Path, bytes: &[u8], tag: u64) -> io::Result<()> {
    let (target, permissions) = match fs::metadata(path) {
        Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        // The kernel alone knows where some links lead, as that of /dev/stdout.
        Ok(there) if !there.is_file() => return OpenOptions::new().write(true).open(path)?.write_all(bytes),
        Ok(there) => (fs::canonicalize(path)?, Some(there.permissions())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (end_of_links(path)?, None),
        Err(error) => return Err(error),
    };
    // A host ignores names like that.
    let aside = target.with_file_name(format!(".fulcrum-{tag:016x}.part"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&aside)?;
    let fill = || {
        permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, &target)
    };
    fill().inspect_err(|_| drop(fs::remove_file(&aside)))
}

/// Returns what the path of something that does not exist yet stands for.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many links"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("listed");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn files_are_replaced_and_links_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).expect("made");
        symlink("sub/file", at("link")).expect("linked");
        symlink("link", at("link-to-link")).expect("linked");
        // Dangling at first, then not.
        for text in ["one", "two"] {
            put(&at("link-to-link"), text.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(at("sub/file")).expect("there"), text);
        }
        fs::set_permissions(at("sub/file"), fs::Permissions::from_mode(0o600)).expect("ours");
        put(&at("sub/file"), b"three").expect("written");
        assert_eq!(fs::metadata(at("sub/file")).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["link", "link-to-link", "sub"]);
        assert_eq!(names(&at("sub")), ["file"]);
        assert!(at("link").is_symlink() && at("link-to-link").is_symlink());
    }

    #[test]
    fn what_is_no_regular_file_is_written_into() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
        assert!(made.success());
        symlink("pipe", &link).expect("linked");
        for path in [&pipe, &link] {
            let read = std::thread::scope(|scope| {
                let reader = scope.spawn(|| fs::read(&pipe));
                put(path, b"through the pipe").expect("written");
                reader.join().expect("it ends").expect("read")
            });
            assert_eq!(read, b"through the pipe");
            assert!(fs::symlink_metadata(&pipe).expect("there").file_type().is_fifo(), "it was not replaced");
        }
        assert!(link.is_symlink());
        assert_eq!(names(folder.path()), ["link", "pipe"]);
    }

    #[test]
    fn what_fails_leaves_nothing_and_touches_nothing_of_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).expect("made");
        symlink("round", at("round")).expect("linked");
        for path in ["sub", "sub/none/file", "round"] {
            let error = put(&at(path), b"x").expect_err(path).to_string();
            assert!(error.starts_with("cannot write ") && error.ends_with(path), "{error}");
        }
        // Somebody knew the name.
        fs::write(at(".fulcrum-0000000000000007.part"), b"theirs").expect("written");
        put_tagged(&at("file"), b"x", 7).expect_err("it is theirs");
        assert_eq!(fs::read(at(".fulcrum-0000000000000007.part")).expect("there"), b"theirs");
        assert_eq!(names(folder.path()), [".fulcrum-0000000000000007.part", "round", "sub"]);
    }
}
