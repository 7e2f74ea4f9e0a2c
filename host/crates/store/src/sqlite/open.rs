//! Opening: lock, format, connections.
//!
//! A file that is not ours, or not of our format, is left as it is.

use std::fs::{self, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::Options;
use super::catalogue::Catalogue;
use super::fault::File;
use super::room::{Purpose, Room};
use super::schema::{APPLICATION_ID, FORMAT_VERSION, TABLES};
use crate::{Error, Result};

/// SQLite from 3.7.0 to 3.51.2 can corrupt a file when two connections write and checkpoint at once.
const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// How long a statement waits for another connection of ours, which happens around checkpoints only.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Everything the threads need.
pub(super) struct Opened {
    pub(super) writer: Connection,
    /// Where the file's size is bounded.
    pub(super) room: Option<Room>,
    pub(super) readers: Vec<Connection>,
    pub(super) catalogue: Catalogue,
    /// Slots that hold records nobody can reach.
    pub(super) garbage: Vec<i64>,
    pub(super) lock: fs::File,
}

pub(super) fn open(file: &File, options: Options) -> Result<Opened> {
    create_directory(&file.path)?;
    let lock = lock(&file.path)?;
    check_header(&file.path)?;
    let failed = |error| file.open_error(error);
    let mut writer = Connection::open_with_flags(
        &file.path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(failed)?;
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        let cause = format!("SQLite {} is too old, at least 3.51.3 is needed", rusqlite::version());
        return Err(Error::Open { path: file.path.clone(), cause: Arc::from(Box::from(cause)) });
    }
    writer.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let is_new = is_new(file, &writer)?;
    let room = prepare_writer(&writer, options).map_err(failed)?;
    if is_new {
        create(&mut writer).map_err(failed)?;
    }
    let catalogue = Catalogue::load(&writer).map_err(failed)?;
    let garbage = super::sweep::find(&writer).map_err(failed)?;
    let readers = (0..options.readers.max(1))
        .map(|_| open_reader(&file.path))
        .collect::<rusqlite::Result<Vec<_>>>()
        .map_err(failed)?;
    Ok(Opened { writer, room, readers, catalogue, garbage, lock })
}

/// Tells whether there is nothing in the file yet; refuses what others wrote.
fn is_new(file: &File, connection: &Connection) -> Result<bool> {
    let pragma = |name| {
        connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(|e| file.open_error(e))
    };
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    if application == i64::from(APPLICATION_ID) {
        let found = u32::try_from(version).unwrap_or(u32::MAX);
        let format = Error::Format { path: file.path.clone(), found, known: FORMAT_VERSION };
        return if found == FORMAT_VERSION { Ok(false) } else { Err(format) };
    }
    // A process killed while it created the file leaves one with no table and no id.
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|error| file.open_error(error))?;
    if application == 0 && version == 0 && tables == 0 {
        return Ok(true);
    }
    Err(Error::Foreign { path: file.path.clone() })
}

fn prepare_writer(connection: &Connection, options: Options) -> rusqlite::Result<Option<Room>> {
    connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // The writer checkpoints by itself, after it has answered.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |row| row.get::<_, i64>(0))?;
    connection.set_prepared_statement_cache_capacity(64);
    let Some(bytes) = options.file_bytes_max else { return Ok(None) };
    let page_bytes: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let room = Room::new(super::schema::stored(bytes) / page_bytes);
    room.bound(connection, Purpose::Relief)?;
    Ok(Some(room))
}

fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", FORMAT_VERSION)?;
    transaction.commit()
}

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    Ok(connection)
}

/// Creates the directory of the file, if there is none.
fn create_directory(path: &Path) -> Result<()> {
    let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) else {
        return Ok(());
    };
    fs::create_dir_all(directory)
        .map_err(|error| Error::Open { path: directory.to_path_buf(), cause: Arc::new(error) })
}

/// Takes the lock file, which the system frees when this process ends, however it ends.
fn lock(path: &Path) -> Result<fs::File> {
    let lock = with_suffix(path, ".lock");
    let failed = |error| Error::Open { path: lock.clone(), cause: Arc::new(error) };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(failed(error)),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // The number is a courtesy: without it the error still says what to do.
            let _ = file.take(32).read_to_string(&mut text);
            let holder = text.trim().parse().ok();
            return Err(Error::InUse { path: path.to_path_buf(), lock, holder });
        }
    }
    // A full disk must not keep the store from opening, so neither may a note for others.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// Refuses a file that does not begin as an SQLite file does, before SQLite touches it.
fn check_header(path: &Path) -> Result<()> {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let failed = |error| Error::Open { path: path.to_path_buf(), cause: Arc::new(error) };
    let mut head = Vec::new();
    match fs::File::open(path) {
        Ok(file) => file.take(MAGIC.len() as u64).read_to_end(&mut head).map_err(failed)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if head.is_empty() || head == MAGIC {
        return Ok(());
    }
    Err(Error::Foreign { path: path.to_path_buf() })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_syncs_every_commit_to_a_write_ahead_log() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let opened = open(&File::new(&home.path().join("store.db")), Options::default()).expect("opens");
        let number = |name| opened.writer.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let mode = opened.writer.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
        assert_eq!(mode.as_deref(), Ok("wal"));
        assert_eq!(number("synchronous"), Ok(2), "FULL");
        assert_eq!(number("wal_autocheckpoint"), Ok(0), "the writer does it after it has answered");
        assert_eq!(opened.readers.len(), 2);
    }
}
