//! What an SQLite error means to callers. Nothing else of the engine's errors leaves this room.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::{Cause, Error};

/// The store's file, to name it in errors.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
}

/// A contradiction in what is stored, found by us and not by SQLite.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Contradiction(String);

/// Returns the error for a contradiction in what is stored.
pub(super) fn contradiction(what: String) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(Contradiction(what)))
}

/// Tells whether SQLite found no room; it has then written nothing that counts.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Tells whether what is stored cannot be trusted.
pub(super) fn is_corrupt(error: &rusqlite::Error) -> bool {
    match error {
        // Columns of a type or range that we never write.
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..) => true,
        rusqlite::Error::ToSqlConversionFailure(cause) => cause.is::<Contradiction>(),
        _ => matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)),
    }
}

impl File {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// Returns the error of a read.
    pub(super) fn read_error(&self, operation: &'static str, error: rusqlite::Error) -> Error {
        if is_corrupt(&error) {
            return Error::Corrupt { path: self.path.clone(), operation, cause: cause(error) };
        }
        Error::Unavailable { operation, cause: cause(error) }
    }

    /// Returns the error of a write that was rolled back before its commit.
    pub(super) fn write_error(&self, operation: &'static str, error: rusqlite::Error) -> Error {
        if is_full(&error) {
            return Error::DiskFull { path: self.path.clone(), cause: cause(error) };
        }
        self.read_error(operation, error)
    }

    /// Returns the error of opening the file.
    pub(super) fn open_error(&self, error: rusqlite::Error) -> Error {
        if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) {
            return Error::Foreign { path: self.path.clone() };
        }
        if is_corrupt(&error) || is_full(&error) {
            return self.write_error("open", error);
        }
        Error::Open { path: self.path.clone(), cause: cause(error) }
    }
}

pub(super) fn cause(error: rusqlite::Error) -> Cause {
    Arc::new(error)
}
