//! Only what the cache itself wrote comes back, whatever happens to its files.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// A component of a few hundred bytes; nothing here looks at what it does.
const SMALL: &[u8] = b"\0asm\x0d\0\x01\0";
const DIGEST: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const OTHER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

struct Fixture {
    folder: tempfile::TempDir,
    engine: Engine,
    component: Component,
}

impl Fixture {
    fn new() -> Self {
        let engine = engine(true);
        let component = Component::from_binary(&engine, SMALL).expect("it compiles");
        Self { folder: tempfile::tempdir().expect("a temporary folder"), engine, component }
    }

    fn folder(&self) -> PathBuf {
        self.folder.path().join("data/compiled")
    }

    fn open(&self, fresh: u8) -> Arc<Cache> {
        self.open_with(fresh, 1 << 30)
    }

    fn open_with(&self, fresh: u8, bytes_max: u64) -> Arc<Cache> {
        let settings = Settings { folder: self.folder(), bytes_max, fresh_key: [fresh; 32] };
        Cache::open(settings).expect("it opens")
    }

    fn store(&self, cache: &Cache, digest: &str) -> PathBuf {
        cache.store(&self.engine, digest, &self.component);
        self.folder().join(Header::of(&self.engine, digest).file_name())
    }

    fn is_hit(&self, cache: &Cache, digest: &str) -> bool {
        cache.load(&self.engine, digest).is_some()
    }

    /// Checks that the file is ignored as it is, and mended by the next compilation.
    fn check_refused(&self, cache: &Cache, what: &str) {
        let before = cache.counts().refused;
        assert!(!self.is_hit(cache, DIGEST), "{what} was loaded");
        assert_eq!(cache.counts().refused, before + 1, "{what} was missed, not refused");
        self.store(cache, DIGEST);
        assert!(self.is_hit(cache, DIGEST), "{what} was not mended");
    }
}

fn engine(nan_canonicalization: bool) -> Engine {
    let mut config = wasmtime::Config::new();
    config.cranelift_nan_canonicalization(nan_canonicalization);
    Engine::new(&config).expect("the engine starts")
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn what_was_compiled_comes_back_after_a_restart() {
    let fixture = Fixture::new();
    let cache = fixture.open(1);
    assert!(!fixture.is_hit(&cache, DIGEST));
    let file = fixture.store(&cache, DIGEST);
    assert!(fixture.is_hit(&cache, DIGEST));
    assert!(!fixture.is_hit(&cache, OTHER));
    assert_eq!(cache.counts(), Counts { hits: 1, misses: 2, refused: 0, stored: 1 });
    let modes = [mode(&fixture.folder()), mode(&file), mode(&fixture.folder().join("key"))];
    assert_eq!(modes, [0o700, 0o600, 0o600]);

    let later = fixture.open(2);
    assert!(fixture.is_hit(&later, DIGEST), "the key is made once");
}

#[test]
fn no_changed_byte_is_believed() {
    let fixture = Fixture::new();
    let cache = fixture.open(1);
    let file = fixture.store(&cache, DIGEST);
    let whole = fs::read(&file).expect("written");
    let front = HEADER_BYTES + KEY_BYTES;
    let body = (front..whole.len()).step_by(whole.len() / 64);
    for at in (0..front).chain(body).chain([whole.len() - 1]) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&file, bytes).expect("written");
        assert!(!fixture.is_hit(&cache, DIGEST), "byte {at}");
    }
    let shorter = (0..front).chain((front..whole.len()).step_by(997));
    for len in shorter {
        fs::write(&file, &whole[..len]).expect("written");
        assert!(!fixture.is_hit(&cache, DIGEST), "{len} bytes");
    }
    let misses = cache.counts().misses;
    assert_eq!(cache.counts().refused, misses, "each was refused, none just missed");
    fs::write(&file, [whole.as_slice(), b"\0"].concat()).expect("written");
    fixture.check_refused(&cache, "a byte too many");
    assert_eq!(fs::read(&file).expect("there").len(), whole.len(), "it was written over");
}

#[test]
fn a_true_file_in_another_place_is_not_believed() {
    let fixture = Fixture::new();
    let cache = fixture.open(1);
    let (mine, others) = (fixture.store(&cache, DIGEST), fixture.store(&cache, OTHER));
    fs::copy(&others, &mine).expect("copied");
    fixture.check_refused(&cache, "the code of another component");

    let engine = engine(false);
    assert!(cache.load(&engine, DIGEST).is_none(), "it was compiled by another engine");
    let misplaced = fixture.folder().join(Header::of(&engine, DIGEST).file_name());
    assert_ne!(misplaced, mine);
    fs::copy(&mine, misplaced).expect("copied");
    let before = cache.counts().refused;
    assert!(cache.load(&engine, DIGEST).is_none());
    assert_eq!(cache.counts().refused, before + 1);
}

#[test]
fn a_replaced_key_makes_all_files_worthless() {
    let fixture = Fixture::new();
    let key = fixture.folder().join("key");
    let file = fixture.store(&fixture.open(1), DIGEST);
    fs::write(&key, [9; 32]).expect("written");
    fixture.check_refused(&fixture.open(2), "the code of another key");

    type Spoil = fn(&Path);
    let cases: [(&str, Spoil); 5] = [
        ("a short key", |key| fs::write(key, [1; 31]).expect("written")),
        ("a long key", |key| fs::write(key, [1; 33]).expect("written")),
        ("a key others may read", |key| set_mode(key, 0o640)),
        ("a link", |key| {
            let aside = key.with_extension("aside");
            fs::rename(key, &aside).expect("moved");
            symlink(aside, key).expect("linked");
        }),
        ("an open folder", |key| set_mode(key.parent().expect("its folder"), 0o750)),
    ];
    for (at, (what, spoil)) in cases.into_iter().enumerate() {
        spoil(&key);
        let fresh = 10 + u8::try_from(at).expect("few");
        let cache = fixture.open(fresh);
        assert_eq!(fs::read(&key).expect("there"), [fresh; 32], "{what}");
        assert_eq!((mode(&key), mode(&fixture.folder())), (0o600, 0o700), "{what}");
        // Dropped together: none is met and refused one by one.
        assert!(!file.exists() && !fixture.is_hit(&cache, DIGEST), "{what}");
        assert_eq!(cache.counts().refused, 0, "{what}");
        fixture.store(&cache, DIGEST);
        assert!(fixture.is_hit(&cache, DIGEST), "{what}");
    }
}

#[test]
fn a_new_key_drops_the_files_of_the_old_one_and_nothing_else() {
    let fixture = Fixture::new();
    let file = fixture.store(&fixture.open(1), DIGEST);
    let folder = fixture.folder();
    fs::create_dir(folder.join("a.native")).expect("made");
    fs::write(folder.join("notes"), b"x").expect("written");
    fs::remove_file(folder.join("key")).expect("removed");
    let cache = fixture.open(2);
    assert!(!file.exists() && folder.join("a.native").exists() && folder.join("notes").exists());
    assert!(!fixture.is_hit(&cache, DIGEST));
    assert_eq!(cache.counts(), Counts { hits: 0, misses: 1, refused: 0, stored: 0 });
}

#[test]
fn what_was_deleted_is_made_again() {
    let fixture = Fixture::new();
    let cache = fixture.open(1);
    fixture.store(&cache, DIGEST);
    fs::remove_file(fixture.folder().join("key")).expect("removed");
    fixture.store(&cache, OTHER);
    let later = fixture.open(2);
    let hits = [DIGEST, OTHER].map(|digest| fixture.is_hit(&later, digest));
    assert_eq!((hits, later.counts().refused), ([true, true], 0), "the key was still known");

    fs::remove_dir_all(fixture.folder()).expect("removed");
    assert!(!fixture.is_hit(&cache, DIGEST));
    let file = fixture.store(&cache, DIGEST);
    assert!(fixture.is_hit(&cache, DIGEST) && fixture.is_hit(&fixture.open(3), DIGEST));
    assert_eq!((mode(&fixture.folder()), mode(&file)), (0o700, 0o600));

    // A host that came after the key was gone has made another one: this one goes on with that.
    fs::remove_dir_all(fixture.folder()).expect("removed");
    let newer = fixture.open(4);
    fixture.store(&cache, OTHER);
    assert!(fixture.is_hit(&newer, OTHER));
}

#[test]
fn folders_with_the_names_of_files_are_left_alone() {
    let fixture = Fixture::new();
    let len = fs::metadata(fixture.store(&fixture.open(1), DIGEST)).expect("there").len();
    let old = |path: &Path| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        fs::File::open(path).and_then(|file| file.set_modified(at)).expect("it is ours");
    };
    let folders = ["x.new", "a.native"].map(|name| fixture.folder().join(name));
    for folder in &folders {
        fs::create_dir(folder).expect("made");
        old(folder);
    }
    let cache = fixture.open_with(1, len);
    fixture.store(&cache, OTHER);
    assert!(!fixture.is_hit(&cache, DIGEST) && fixture.is_hit(&cache, OTHER), "it was swept");
    assert!(folders.iter().all(|folder| folder.exists()));

    let key = fixture.folder().join("key");
    fs::remove_file(&key).expect("removed");
    fs::create_dir(&key).expect("made");
    let settings = Settings { folder: fixture.folder(), bytes_max: len, fresh_key: [2; 32] };
    let error = Cache::open(settings).err().expect("it has no place for a key");
    let said = format!("{error}: {}", std::error::Error::source(&error).expect("a cause"));
    assert!(said.contains(&*key.to_string_lossy()) && said.contains("it is a folder; remove it"), "{said}");
}

#[test]
fn limits_that_changed_are_not_blamed_on_the_file() {
    let engine_of = |memory_bytes: usize| {
        let mut pool = wasmtime::PoolingAllocationConfig::new();
        pool.total_memories(1).max_memory_size(memory_bytes);
        let mut config = wasmtime::Config::new();
        config.allocation_strategy(wasmtime::InstanceAllocationStrategy::Pooling(pool));
        Engine::new(&config)
    };
    let (Ok(wide), Ok(narrow)) = (engine_of(2 << 20), engine_of(1 << 20)) else { return };
    let text = "(component (core module $m (memory 17)) (core instance (instantiate $m)))";
    let component =
        Component::from_binary(&wide, &wat::parse_str(text).expect("a component")).expect("it fits");
    let fixture = Fixture::new();
    let cache = fixture.open(1);
    cache.store(&wide, DIGEST, &component);
    assert!(cache.load(&wide, DIGEST).is_some());
    assert!(cache.load(&narrow, DIGEST).is_none());
    assert_eq!(cache.counts(), Counts { hits: 1, misses: 1, refused: 0, stored: 1 });
}

#[test]
fn files_of_a_doubtful_kind_are_not_read() {
    let fixture = Fixture::new();
    let cache = fixture.open(1);
    let file = fixture.store(&cache, DIGEST);
    set_mode(&file, 0o644);
    fixture.check_refused(&cache, "a file others may read");
    assert_eq!(mode(&file), 0o600);

    let aside = fixture.folder().join("aside");
    fs::rename(&file, &aside).expect("moved");
    symlink(&aside, &file).expect("linked");
    fixture.check_refused(&cache, "a link to a true file");
    assert!(fs::symlink_metadata(&file).expect("there").is_file());

    fs::remove_file(&file).expect("removed");
    fs::create_dir(&file).expect("made");
    assert!(!fixture.is_hit(&cache, DIGEST));
    fixture.store(&cache, DIGEST);
    assert_eq!(cache.counts().stored, 3, "a folder in its place is left alone");
    assert!(!has_unfinished(&fixture.folder()));
}

fn has_unfinished(folder: &Path) -> bool {
    fs::read_dir(folder)
        .expect("listed")
        .any(|entry| has_suffix(&entry.expect("an entry").path(), UNFINISHED))
}

#[test]
fn the_least_recently_used_goes_first() {
    let fixture = Fixture::new();
    let len = fs::metadata(fixture.store(&fixture.open(1), DIGEST)).expect("there").len();
    let cache = fixture.open_with(1, len * 2 + len / 2);
    let third = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";
    let old = |file: &Path, seconds: u64| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::open(file).and_then(|file| file.set_modified(at)).expect("it is ours");
    };
    old(&fixture.store(&cache, DIGEST), 1);
    old(&fixture.store(&cache, OTHER), 2);
    assert!(fixture.is_hit(&cache, DIGEST), "used again, so the other one is older now");
    fixture.store(&cache, third);
    let left = [DIGEST, OTHER, third].map(|digest| fixture.is_hit(&cache, digest));
    assert_eq!(left, [true, false, true]);

    let tiny = fixture.open_with(1, len - 1);
    let before = tiny.counts().stored;
    fixture.store(&tiny, OTHER);
    assert_eq!(tiny.counts().stored, before, "what does not fit alone is not written");
}

#[test]
fn hosts_that_share_a_folder_do_not_disturb_each_other() {
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for fresh in 0..8 {
            let fixture = &fixture;
            scope.spawn(move || {
                let settings =
                    Settings { folder: fixture.folder(), bytes_max: 1 << 30, fresh_key: [fresh; 32] };
                let cache = Cache::open(settings).expect("it opens");
                for _ in 0..20 {
                    fixture.store(&cache, DIGEST);
                    fixture.is_hit(&cache, DIGEST);
                }
                assert_eq!(cache.counts().refused, 0, "all have one key, and no file is ever half there");
            });
        }
    });
    let cache = fixture.open(99);
    assert!(fixture.is_hit(&cache, DIGEST));
    assert!(!has_unfinished(&fixture.folder()));
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let fixture = Fixture::new();
    let open = |folder: PathBuf| {
        Cache::open(Settings { folder, bytes_max: 1, fresh_key: [1; 32] })
            .err()
            .map(|error| error.to_string())
    };
    let file = fixture.folder.path().join("file");
    fs::write(&file, b"x").expect("written");
    let link = fixture.folder.path().join("link");
    symlink(fixture.folder.path(), &link).expect("linked");
    for path in [file.clone(), file.join("below"), link] {
        let expected = format!("cannot use the folder {} for compiled policies", path.display());
        assert_eq!(open(path), Some(expected));
    }
}

#[test]
fn a_folder_that_cannot_be_written_costs_only_time() {
    let fixture = Fixture::new();
    let cache = fixture.open(1);
    fs::remove_dir_all(fixture.folder()).expect("removed");
    fs::write(fixture.folder(), b"in the way").expect("written");
    assert!(!fixture.is_hit(&cache, DIGEST));
    fixture.store(&cache, DIGEST);
    assert_eq!(cache.counts().stored, 0);
}
