//! The folder stays within its bound and each of its segments stands alone; what cannot be written is counted.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use fulcrum_core::claiming::{Cycle, Plan, Reason};
use fulcrum_core::scoring::{Instance, Loads, Recommendation, Roster, Score, ScoringSnapshot};
use fulcrum_core::time::Timestamp;
use fulcrum_policy::journal::{Reader, Record};
use fulcrum_policy::planner::{Planned, Wish};
use fulcrum_policy::seat::{Decision, OwnedRequest};
use fulcrum_policy::{Limits, Outcome};

use super::*;

/// A clock that stands until it is told.
#[derive(Default)]
struct Still(AtomicU64);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp(0)
    }

    fn nanos(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn settings(folder: &Path, bytes_max: u64) -> Settings {
    let header = Header::new("0.0.0", &Limits::default());
    Settings { folder: folder.join("journal"), sample_every: 1, bytes_max, header }
}

fn start(settings: Settings) -> Journal {
    Journal::start(settings, Arc::new(Still::default())).expect("a thread starts")
}

fn snapshot() -> Arc<ScoringSnapshot> {
    let row = |id| Instance {
        id: Arc::from(id),
        zone: String::new(),
        capacity: 1.0,
        labels: Vec::new(),
        age_ms: 0,
    };
    let roster = Arc::new(Roster::new(vec![row("a"), row("b")]).expect("ids differ"));
    Arc::new(ScoringSnapshot { roster, loads: Loads::unknown(2), roster_revision: 1 })
}

/// A decision that is told by its seed.
fn scored(snapshot: &Arc<ScoringSnapshot>, seed: u64) -> Arc<Scored> {
    let recommendation = Recommendation { row: 1, score: Score::new(0.5).expect("a number") };
    Arc::new(Scored {
        snapshot: snapshot.clone(),
        committed: Vec::new(),
        request: OwnedRequest { seed, ..OwnedRequest::default() },
        asked: None,
        failure: None,
        decision: Decision { recommendation, by: None, outcome: Outcome::Open },
        nanos: 1,
    })
}

/// A cycle of nobody and nothing.
pub(crate) fn cycle(group: &str, topics: Vec<String>) -> Cycle {
    Cycle {
        group: group.to_owned(),
        members: Vec::new(),
        topics,
        places: Vec::new(),
        topic: Vec::new(),
        number: Vec::new(),
        place: Vec::new(),
        owner: Vec::new(),
        moving: Vec::new(),
        weight: Vec::new(),
        held_ms: Vec::new(),
        movement_budget: None,
        reason: Reason::Join,
        now_ms: 7,
        seed: 0,
    }
}

fn claimed(group: &str, topics: Vec<String>) -> Arc<Claimed> {
    let cycle = cycle(group, topics);
    let planned =
        Planned { plan: Plan::default(), by: None, asked: None, outcome: Outcome::Open, problem: None };
    let wish = Wish { policy: None, config: serde_json::Value::Null };
    Arc::new(Claimed { group: group.to_owned(), wish, cycle, planned, nanos: 1 })
}

/// The seeds of the scoring decisions in a folder, and how many segments they are in.
fn seeds(folder: &Path) -> (Vec<u64>, usize) {
    let mut seeds = Vec::new();
    let segments = segments_of(&folder.join("journal")).expect("the folder is there");
    for path in &segments {
        let file = fs::File::open(path).expect("it is there");
        let reader = Reader::open(path.display().to_string(), BufReader::new(file)).expect("a segment");
        for entry in reader {
            if let Record::Scoring(scoring) = entry.expect("it is sound and stands alone").record {
                seeds.push(scoring.request.seed);
            }
        }
    }
    (seeds, segments.len())
}

fn bytes(folder: &Path) -> u64 {
    let segments = segments_of(&folder.join("journal")).expect("the folder is there");
    segments.iter().map(|path| fs::metadata(path).expect("it is there").len()).sum()
}

/// Waits until so many decisions are written or dropped.
fn until(journal: &Journal, count: u64) -> Counts {
    let begun = Instant::now();
    loop {
        let counts = journal.counts();
        if counts.written + counts.dropped >= count {
            return counts;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{counts:?}, not {count}");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_decided_is_there_once_it_stopped_and_appended_to_by_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let snapshot = snapshot();
    for life in 0..3 {
        let journal = start(settings(folder.path(), 1 << 20));
        let observer = journal.observer();
        for seed in 0..10 {
            assert!(observer.wants_scored());
            observer.scored(&scored(&snapshot, life * 10 + seed));
        }
        observer.claimed(&claimed("g", Vec::new()));
        journal.stop();
        assert_eq!((journal.counts().written, journal.counts().dropped), (11, 0));
        assert_eq!(journal.counts().bytes, bytes(folder.path()));
        observer.scored(&scored(&snapshot, 99));
        assert!(!observer.wants_scored(), "it is closed");
        assert_eq!(journal.counts().dropped, 2);
    }
    assert_eq!(seeds(folder.path()), ((0..30).collect(), 3));
    // A life without decisions leaves no file.
    start(settings(folder.path(), 1 << 20)).stop();
    assert_eq!(seeds(folder.path()).1, 3);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&folder.path().join("journal")), 0o700);
        assert_eq!(mode(&segments_of(&folder.path().join("journal")).expect("listed")[0]), 0o600);
    }
}

#[test]
fn decisions_are_written_without_a_stop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = start(settings(folder.path(), 1 << 20));
    journal.observer().scored(&scored(&snapshot(), 1));
    assert_eq!(until(&journal, 1).written, 1);
    assert_eq!(seeds(folder.path()).0, [1]);
}

#[test]
fn the_folder_keeps_its_bound_and_the_newest() {
    const BYTES_MAX: u64 = 64 * 1024;
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("journal")).expect("made");
    let foreign = folder.path().join("journal/notes.jsonl");
    fs::write(&foreign, vec![b'x'; 100_000]).expect("written");
    let journal = start(settings(folder.path(), BYTES_MAX));
    let (observer, snapshot) = (journal.observer(), snapshot());
    for seed in 0..2000 {
        observer.scored(&scored(&snapshot, seed));
        if seed % 100 == 0 {
            until(&journal, seed);
            let bytes = bytes(folder.path());
            assert!(bytes <= BYTES_MAX && journal.counts().bytes <= BYTES_MAX, "{bytes} bytes");
        }
    }
    journal.stop();
    let (found, segments) = seeds(folder.path());
    assert!((14..=17).contains(&segments), "{segments} segments");
    let first = found[0];
    assert!(first > 0 && found == (first..2000).collect::<Vec<_>>(), "{found:?}");
    assert!(bytes(folder.path()) > BYTES_MAX / 16 * 14);
    assert!(foreign.exists(), "what is no segment stays");

    // A smaller bound counts from the start.
    start(settings(folder.path(), BYTES_MAX / 4)).stop();
    let (found, _) = seeds(folder.path());
    assert!(bytes(folder.path()) <= BYTES_MAX / 4 && found.last() == Some(&1999), "{found:?}");
}

#[test]
fn a_large_decision_has_a_segment_of_its_own_and_one_too_large_none() {
    const BYTES_MAX: u64 = 64 * 1024;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = start(settings(folder.path(), BYTES_MAX));
    let (observer, snapshot) = (journal.observer(), snapshot());
    let topic = |len: u64| vec!["t".repeat(usize::try_from(len).expect("small"))];
    observer.scored(&scored(&snapshot, 1));
    observer.claimed(&claimed("large", topic(BYTES_MAX / 2)));
    observer.scored(&scored(&snapshot, 2));
    observer.claimed(&claimed("too large", topic(BYTES_MAX)));
    observer.scored(&scored(&snapshot, 3));
    journal.stop();
    assert_eq!((journal.counts().written, journal.counts().dropped), (4, 1));
    assert!(bytes(folder.path()) <= BYTES_MAX);
    assert_eq!(seeds(folder.path()).0, [1, 2, 3]);
}

#[test]
fn a_full_queue_drops_and_counts() {
    let check = |len_max, bytes_max, expected: u64| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tally = Arc::<Tally>::default();
        // No thread takes anything out.
        let tap = Tap {
            queue: Queue::new(len_max, bytes_max),
            tally: tally.clone(),
            sample_every: 1,
            seen: AtomicU64::new(0),
        };
        let snapshot = snapshot();
        let mut wanted = 0;
        for seed in 0..10 {
            if tap.wants_scored() {
                wanted += 1;
                tap.scored(&scored(&snapshot, seed));
            }
        }
        tap.claimed(&claimed("g", Vec::new()));
        assert_eq!((wanted, tally.dropped.load(Ordering::Relaxed)), (expected, 11 - expected));
        // What was taken in comes out, and there is room again.
        let items = tap.queue.take().expect("there is something");
        assert_eq!(items.len() as u64, expected);
        assert!(tap.wants_scored());
        tap.queue.close();
        assert!(tap.queue.take().is_none());
        drop(folder);
    };
    check(4, usize::MAX, 4);
    check(usize::MAX, 1, 1);
}

#[test]
fn every_nth_scoring_decision_is_recorded_and_every_plan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = start(Settings { sample_every: 10, ..settings(folder.path(), 1 << 20) });
    let (observer, snapshot) = (journal.observer(), snapshot());
    for seed in 0..95 {
        if observer.wants_scored() {
            observer.scored(&scored(&snapshot, seed));
        }
        if seed < 3 {
            observer.claimed(&claimed("g", Vec::new()));
        }
    }
    journal.stop();
    assert_eq!(seeds(folder.path()).0, (0..10).map(|at| at * 10).collect::<Vec<_>>());
    assert_eq!((journal.counts().written, journal.counts().dropped), (13, 0));
}

#[test]
fn a_folder_that_cannot_be_written_pauses_the_journal_until_it_can() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("journal");
    fs::write(&path, b"not a folder").expect("written");
    let (clock, snapshot) = (Arc::<Still>::default(), snapshot());
    let journal = Journal::start(settings(folder.path(), 1 << 20), clock.clone()).expect("a thread starts");
    let observer = journal.observer();
    let put = |seed| {
        observer.scored(&scored(&snapshot, seed));
        until(&journal, seed)
    };
    let counts = put(1);
    assert_eq!((counts.written, counts.dropped, journal.counts().is_paused), (0, 1, true));
    let problem = journal.problem().expect("it says why");
    assert!(problem.contains("journal cannot be written: ") && problem.ends_with("every 5 s"), "{problem}");
    assert_eq!(journal.latest(&Filter::default(), 9).len(), 1, "it is shown all the same");

    fs::remove_file(&path).expect("removed");
    assert_eq!(put(2).dropped, 2, "it is not yet time to try again");
    let retry = u64::try_from(writer::RETRY.as_nanos()).expect("small");
    clock.0.fetch_add(retry, Ordering::SeqCst);
    let counts = put(3);
    assert_eq!((counts.written, counts.dropped), (1, 2));
    journal.stop();
    assert_eq!((journal.counts().is_paused, journal.problem()), (false, None));
    assert_eq!(seeds(folder.path()).0, [3]);
}

/// Says to the child of [`a_full_disk_keeps_what_is_there_and_leaves_nothing_behind`] where it is to write.
#[cfg(unix)]
const FULL: &str = "FULCRUM_TEST_FULL_DISK";

#[test]
#[cfg(unix)]
fn a_full_disk_keeps_what_is_there_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = start(settings(folder.path(), 1 << 20));
    journal.observer().scored(&scored(&snapshot(), 1));
    journal.stop();
    // No file of a process with this limit can have a byte, while it can make as many as it likes.
    let limited = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let child = std::process::Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().expect("there is one"))
        .args(["--ignored", "--exact", "journal::tests::on_a_full_disk", "--nocapture"])
        .env(FULL, folder.path())
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    assert_eq!(seeds(folder.path()), (vec![1], 1));
}

#[test]
#[cfg(unix)]
#[ignore = "runs in a process that can write no file, see above"]
fn on_a_full_disk() {
    let Some(folder) = std::env::var_os(FULL) else { return };
    let folder = Path::new(&folder);
    let (clock, snapshot) = (Arc::<Still>::default(), snapshot());
    let journal = Journal::start(settings(folder, 1 << 20), clock.clone()).expect("a thread starts");
    let observer = journal.observer();
    for seed in 1..=5 {
        assert!(observer.wants_scored(), "nobody waits for the disk");
        observer.scored(&scored(&snapshot, seed));
        let counts = until(&journal, seed);
        assert_eq!((counts.written, counts.dropped, journal.counts().is_paused), (0, seed, true));
        let problem = journal.problem().expect("it says why");
        assert!(problem.contains("journal cannot be written: File too large"), "{problem}");
        clock.0.fetch_add(u64::try_from(writer::RETRY.as_nanos()).expect("small"), Ordering::SeqCst);
    }
    journal.stop();
}

#[test]
fn a_folder_that_goes_away_is_survived() {
    const BYTES_MAX: u64 = 64 * 1024;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("journal");
    let (clock, snapshot) = (Arc::<Still>::default(), snapshot());
    let journal = Journal::start(settings(folder.path(), BYTES_MAX), clock.clone()).expect("a thread starts");
    let observer = journal.observer();
    let mut seed = 0;
    let mut put = |count: u64| {
        for _ in 0..count {
            seed += 1;
            observer.scored(&scored(&snapshot, seed));
        }
        until(&journal, seed)
    };
    put(1);
    // The next segment finds a file in the folder's place.
    fs::remove_dir_all(&path).expect("removed");
    fs::write(&path, b"not a folder").expect("written");
    let counts = put(100);
    assert!(counts.dropped > 0 && journal.counts().is_paused, "{counts:?}");

    // Removed alone, it is made again.
    fs::remove_file(&path).expect("removed");
    clock.0.fetch_add(u64::try_from(writer::RETRY.as_nanos()).expect("small"), Ordering::SeqCst);
    let counts = put(1);
    journal.stop();
    assert_eq!(seeds(folder.path()).0, [102], "{counts:?}");
    assert_eq!(journal.counts().written + journal.counts().dropped, 102);
}

#[test]
fn what_is_removed_meanwhile_is_begun_anew() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("journal");
    let (journal, snapshot) = (start(settings(folder.path(), 1 << 20)), snapshot());
    let observer = journal.observer();
    let put = |seed| {
        observer.scored(&scored(&snapshot, seed));
        until(&journal, seed)
    };
    put(1);
    fs::remove_dir_all(&path).expect("removed");
    put(2);
    assert_eq!(seeds(folder.path()).0, [2], "the folder is made again at once");
    // Another file in the place of the segment is not ours.
    let segment = segments_of(&path).expect("the folder is there").remove(0);
    fs::rename(&segment, folder.path().join("moved")).expect("moved");
    fs::write(&segment, b"").expect("written");
    put(3);
    journal.stop();
    assert_eq!((seeds(folder.path()).0, fs::read(&segment).expect("it is there").len()), (vec![3], 0));
    let counts = journal.counts();
    assert_eq!((counts.written, counts.dropped, counts.is_paused), (3, 0, false));
}

#[test]
fn what_only_looks_like_a_segment_stops_nothing() {
    const BYTES_MAX: u64 = 64 * 1024;
    let check = |name: &str, is_folder: bool| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let odd = folder.path().join("journal").join(name);
        fs::create_dir_all(odd.join("sub")).expect("made");
        if !is_folder {
            fs::remove_dir_all(&odd).expect("removed");
            fs::write(&odd, b"x\n").expect("written");
        }
        let (journal, snapshot) = (start(settings(folder.path(), BYTES_MAX)), snapshot());
        let observer = journal.observer();
        for seed in 1..=600 {
            observer.scored(&scored(&snapshot, seed));
            if seed % 100 == 0 {
                until(&journal, seed);
            }
        }
        journal.stop();
        let counts = journal.counts();
        assert_eq!((counts.written, counts.dropped, counts.is_paused), (600, 0, false), "{name}");
        assert!(counts.bytes <= BYTES_MAX && counts.bytes > BYTES_MAX / 2, "{name}: {counts:?}");
        assert_eq!(odd.is_dir(), is_folder, "{name}");
    };
    check("decisions-0000000001.jsonl", true);
    check("decisions-9999999999.jsonl", true);
    check("decisions-18446744073709551615.jsonl", true);
    check("decisions-18446744073709551615.jsonl", false);
    check("decisions-9999999999.jsonl", false);
}

#[test]
fn without_a_number_left_the_journal_pauses_until_there_is_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let last = folder.path().join("journal/decisions-18446744073709551614.jsonl");
    fs::create_dir(folder.path().join("journal")).expect("made");
    fs::write(&last, b"").expect("written");
    let (clock, snapshot) = (Arc::<Still>::default(), snapshot());
    let journal = Journal::start(settings(folder.path(), 1 << 20), clock.clone()).expect("a thread starts");
    let observer = journal.observer();
    observer.scored(&scored(&snapshot, 1));
    let counts = until(&journal, 1);
    assert_eq!((counts.written, counts.dropped, journal.counts().is_paused), (0, 1, true));
    fs::remove_file(&last).expect("removed");
    clock.0.fetch_add(u64::try_from(writer::RETRY.as_nanos()).expect("small"), Ordering::SeqCst);
    observer.scored(&scored(&snapshot, 2));
    until(&journal, 2);
    journal.stop();
    assert_eq!((seeds(folder.path()).0, journal.counts().is_paused), (vec![2], false));
}

#[test]
fn a_thread_that_crashed_shows_as_paused_and_what_it_held_is_counted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (journal, snapshot) = (start(settings(folder.path(), 1 << 20)), snapshot());
    let observer = journal.observer();
    observer.scored(&scored(&snapshot, 1));
    until(&journal, 1);
    // A row that is none: no host decides so.
    let mut bad = Arc::into_inner(scored(&snapshot, 2)).expect("it is the only one");
    bad.decision.recommendation.row = 9;
    observer.scored(&Arc::new(bad));
    until(&journal, 2);
    assert!(!observer.wants_scored(), "nobody takes it");
    observer.claimed(&claimed("g", Vec::new()));
    journal.stop();
    let counts = journal.counts();
    assert_eq!((counts.written, counts.dropped, counts.is_paused), (1, 3, true));
    assert!(journal.problem().is_some_and(|problem| problem.contains("restart the host")));
}

#[test]
fn the_latest_are_shown_newest_first_and_by_what_they_are() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = start(settings(folder.path(), 1 << 20));
    let (observer, snapshot) = (journal.observer(), snapshot());
    for seed in 0..1100 {
        observer.scored(&scored(&snapshot, seed));
    }
    for group in ["g", "h"] {
        observer.claimed(&claimed(group, Vec::new()));
    }
    journal.stop();
    let check = |role, group, limit, expected: usize| {
        let found = journal.latest(&Filter { role, group, client_id: None }, limit);
        assert_eq!(found.len(), expected, "{role:?} {group:?}");
        found
    };
    check(None, None, 5000, 1000);
    check(Some("scoring"), None, 5000, 998);
    check(Some("claiming"), None, 5000, 2);
    check(Some("scoring"), Some("g"), 5000, 0);
    check(None, Some("g"), 5000, 1);
    let newest = check(None, None, 1, 1);
    let expected = serde_json::json!({ "role": "claiming", "atMs": 7, "group": "h", "reason": "join", "claims": 0,
        "releases": 0, "nextCycleMs": null, "policy": null, "digest": null, "config": null, "by": "fallback", "outcome": "open",
        "failure": null, "nanos": 1 });
    assert_eq!(serde_json::to_value(&newest[0]).expect("JSON"), expected);
}
