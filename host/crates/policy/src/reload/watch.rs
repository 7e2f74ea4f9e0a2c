//! File-system events of the policies folder, boiled down to "look again" and "this writer is done".

use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use super::manager::Message;

/// Watches a folder for as long as it lives.
pub(super) struct Watch {
    _watcher: RecommendedWatcher,
    folder: Option<Identity>,
}

/// Tells a folder from another one that took its place.
type Identity = (u64, u64);

impl Watch {
    /// Starts watching. Events that do not fit into the queue are lost: the slow poll finds what they told.
    pub(super) fn start(folder: &Path, queue: SyncSender<Message>) -> notify::Result<Self> {
        let own = folder.to_owned();
        let handler = move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else {
                drop(queue.try_send(Message::Look));
                return;
            };
            // The folder itself was deleted or moved: another one of its name may even get its inode.
            if event.paths.contains(&own) && (event.kind.is_remove() || is_moved_away(&event)) {
                drop(queue.try_send(Message::FolderGone));
                return;
            }
            match boil(&event) {
                Some((path, closed)) => drop(queue.try_send(Message::Changed { path: path.clone(), closed })),
                None if event.need_rescan() || event.kind.is_remove() || is_moved_away(&event) => {
                    drop(queue.try_send(Message::Look));
                }
                None => {}
            }
        };
        let mut watcher = notify::recommended_watcher(handler)?;
        let identity = identity(folder);
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(Self { _watcher: watcher, folder: identity })
    }

    /// Says whether the folder of that path is still the one that is watched.
    pub(super) fn is_of(&self, folder: &Path) -> bool {
        self.folder == identity(folder)
    }
}

/// Returns the file an event is about, and whether it says that the writer is done.
fn boil(event: &notify::Event) -> Option<(&PathBuf, bool)> {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)) => {
            event.paths.last().map(|path| (path, true))
        }
        EventKind::Create(_) | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any) => {
            event.paths.first().map(|path| (path, false))
        }
        _ => None,
    }
}

fn is_moved_away(event: &notify::Event) -> bool {
    matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)))
}

#[cfg(unix)]
fn identity(folder: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(folder: &Path) -> Option<Identity> {
    folder.exists().then_some((0, 0))
}
