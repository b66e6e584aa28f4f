//! Hugepages of this kernel: real pages of 2 MiB, allocated, refused where memory is too little, and restored to the
//! count after a plan was killed at any step.

#[path = "common/changes.rs"]
mod changes;

use changes::{change, executor};
use nearpath_host::Root;
use nearpath_model::{Change, HugepagePools, PoolCounts, State, Sysctl, Target, Value};
use nearpath_tune::{Executor, Journal, Live, TuneError, Writer};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// In the process to be killed: the journal's directory.
const FOLDER: &str = "NEARPATH_TEST_KILLED_IN";
/// In the process to be killed: the step at which it ends.
const STEP: &str = "NEARPATH_TEST_KILLED_AT";
/// A sysctl of the whole machine that a plan may set to another value for a moment.
const SYSCTL: &str = "/proc/sys/vm/stat_interval";

/// The tests change the same pools.
static POOLS: Mutex<()> = Mutex::new(());

fn root_with_pools() -> bool {
    nearpath_testing::require_root() && Path::new(&pools().folder(None)).exists()
}

fn pools() -> HugepagePools {
    HugepagePools::new(2048).unwrap()
}

/// The count of all nodes, read without the code under test.
fn count() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let of = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    of("HugePages_Total:") - of("HugePages_Surp:")
}

/// The counts now, and the same with more or fewer pages in the last pool.
fn counts(more: i64) -> (String, String) {
    let nodes = Root::live().list("/sys/devices/system/node").unwrap_or_default();
    let node = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
    let mut nodes: Vec<u32> = nodes.iter().filter_map(|entry| node(&entry.name)).collect();
    nodes.sort_unstable();
    let read = |folder: String| -> u64 {
        std::fs::read_to_string(format!("{folder}/nr_hugepages")).unwrap().trim().parse().unwrap()
    };
    if nodes.is_empty() {
        let now = read(pools().folder(None));
        return (now.to_string(), now.saturating_add_signed(more).to_string());
    }
    let now: Vec<u64> = nodes
        .iter()
        .map(|node| read(pools().folder(Some(nearpath_model::NodeId(*node)))))
        .collect();
    let text = |more: i64| {
        let last = nodes.len() - 1;
        let pools = nodes.iter().zip(&now).enumerate();
        let pools = pools.map(|(at, (node, now))| {
            format!("{node}:{}", now.saturating_add_signed(if at == last { more } else { 0 }))
        });
        pools.collect::<Vec<_>>().join(",")
    };
    (text(0), text(more))
}

fn hugepages(more: i64) -> Change {
    let (before, after) = counts(more);
    change(Target::Hugepages(pools()), &before, &after)
}

#[test]
fn pages_are_reserved_and_freed_exactly() {
    let _alone = POOLS.lock().unwrap_or_else(|e| e.into_inner());
    if !root_with_pools() {
        return;
    }
    let (dir, before) = (tempfile::tempdir().unwrap(), count());
    let mut executor = executor(dir.path());
    executor.apply(vec![hugepages(8)]).unwrap();
    assert_eq!(count(), before + 8);
    let entries = executor.entries();
    // Mapped pages cannot be freed: they become surplus, and are freed with the mapping.
    let length = 4 << 21;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
    // SAFETY: a new mapping, which nothing else uses.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    assert!(mapped != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    executor.undo(&entries[0]).unwrap();
    assert_eq!(count(), before, "with pages in use");
    // SAFETY: the mapping of above.
    assert_eq!(unsafe { libc::munmap(mapped, length) }, 0);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find(|line| line.starts_with("HugePages_Total")).unwrap();
    assert!(total.ends_with(&format!(" {before}")), "{total}");
}

#[test]
fn fewer_pages_than_requested_are_a_refusal() {
    let _alone = POOLS.lock().unwrap_or_else(|e| e.into_inner());
    if !root_with_pools() {
        return;
    }
    let (dir, before) = (tempfile::tempdir().unwrap(), count());
    // Of 1 GiB, of which memory has none in one piece for so many.
    let gib = HugepagePools::new(1 << 20).unwrap();
    let (now, _) = counts(0);
    let of_gib = now.parse::<PoolCounts>().unwrap();
    let zero = |more: u64| {
        let text = |(node, _): (Option<nearpath_model::NodeId>, u64)| match node {
            Some(node) => format!("{node}:{more}"),
            None => more.to_string(),
        };
        of_gib.iter().map(text).collect::<Vec<_>>().join(",")
    };
    if !Path::new(&gib.folder(None)).exists() {
        return;
    }
    let plan = vec![hugepages(2), change(Target::Hugepages(gib), &zero(0), &zero(100_000))];
    let error = executor(dir.path()).apply(plan).unwrap_err();
    assert!(matches!(error, TuneError::Kernel { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("has only") && said.contains("pages of 1G"), "{said}");
    assert_eq!(count(), before);
    let file = format!("{}/nr_hugepages", gib.folder(None));
    assert_eq!(std::fs::read_to_string(file).unwrap().trim(), "0");
    assert_eq!(Journal::read(dir.path()).unwrap(), []);
}

/// The live writer, which kills its process at a step: before, within and after each write and each undo.
struct Killed {
    live: Live,
    steps: u32,
}

impl Killed {
    fn step(&mut self) {
        if self.steps == 0 {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
        self.steps -= 1;
    }

    /// As if it ended while the kernel allocated: some of the pages.
    fn half(&mut self, change: &Change, undoing: bool) {
        if self.steps == 0
            && let Target::Hugepages(_) = &change.target
        {
            let parse = |value: &Value| value.text().unwrap().parse::<PoolCounts>().unwrap();
            let (before, after) = (parse(&change.before), parse(&change.after));
            for (node, after) in after.iter() {
                let before = before.of(node).unwrap();
                // It frees pages without being interrupted.
                if (before < after) == undoing {
                    continue;
                }
                let middle = before.midpoint(after);
                let file = format!("{}/nr_hugepages", pools().folder(node));
                std::fs::write(file, middle.to_string()).unwrap();
            }
        }
        self.step();
    }
}

impl Writer for Killed {
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError> {
        self.live.prepare(change)
    }

    fn write(&mut self, change: &Change) -> Result<(), TuneError> {
        self.step();
        self.half(change, false);
        self.live.write(change)?;
        self.step();
        Ok(())
    }

    fn undo(&mut self, change: &Change, state: State) -> Result<(), TuneError> {
        self.step();
        self.half(change, true);
        self.live.undo(change, state)?;
        self.step();
        Ok(())
    }
}

/// Applies a plan of two changes and undoes it, killed at a step.
fn apply_and_undo(folder: &Path, steps: u32, more: i64) {
    let now = std::fs::read_to_string(SYSCTL).unwrap();
    let after = (now.trim().parse::<u32>().unwrap() + 1).to_string();
    let sysctl = change(Sysctl::StatInterval.into(), now.trim(), &after);
    let writer = Killed { live: Live::new(), steps };
    let mut executor = Executor::new(Journal::open(folder, "boot").unwrap(), writer);
    executor.apply(vec![sysctl, hugepages(more)]).unwrap();
    for (_, undone) in executor.rollback(None, "boot") {
        undone.unwrap();
    }
}

#[test]
fn the_count_is_restored_after_a_kill_at_each_step() {
    if let (Some(folder), Some(step)) = (std::env::var_os(FOLDER), std::env::var(STEP).ok()) {
        let (step, more) = step.split_once(' ').unwrap();
        return apply_and_undo(folder.as_ref(), step.parse().unwrap(), more.parse().unwrap());
    }
    let _alone = POOLS.lock().unwrap_or_else(|e| e.into_inner());
    if !root_with_pools() {
        return;
    }
    restored_at_each_step(6);
    // A pool that shrinks.
    let dir = tempfile::tempdir().unwrap();
    let mut executor = executor(dir.path());
    executor.apply(vec![hugepages(9)]).unwrap();
    restored_at_each_step(-7);
    executor.undo(&executor.entries()[0]).unwrap();
}

fn restored_at_each_step(more: i64) {
    let before = (count(), std::fs::read_to_string(SYSCTL).unwrap());
    let name = std::thread::current().name().unwrap().to_owned();
    let mut in_between = 0;
    // Three steps of each of two writes and two undos, and one without a kill.
    for step in 0..=12 {
        let dir = tempfile::tempdir().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact"])
            .env(FOLDER, dir.path())
            .env(STEP, format!("{step} {more}"))
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.success(), step == 12, "{step}: {status}");
        in_between += u32::from(count() != before.0);
        let mut executor = executor(dir.path());
        for (entry, undone) in executor.rollback(None, "boot") {
            undone.unwrap_or_else(|error| panic!("step {step}: {}: {error}", entry.change.target));
        }
        assert!(executor.entries().is_empty());
        assert_eq!((count(), std::fs::read_to_string(SYSCTL).unwrap()), before, "step {step}");
    }
    assert!(in_between >= 3, "other counts at {in_between} steps");
}
