//! A cgroup with the reader in it and a task that uses up its quota.

use crate::faults::spin_and_record;
use crate::scene::{Fault, Scene, VICTIM};
use crate::worker::{Policy, Worker, spin};
use nearpath_model::{Share, ShareKind};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Quota of the group per period, in microseconds.
const PERIOD_US: u32 = 40_000;
const QUOTA_US: u32 = 4_000;

pub struct Quota {
    hog: Worker,
    /// When the hog could not run.
    stood: Arc<Mutex<Vec<RangeInclusive<u64>>>>,
    _group: Cgroup,
}

impl Quota {
    /// Puts the scene's reader into a group with a quota.
    pub fn new(scene: &Scene) -> Self {
        let group = Cgroup::new().expect("a group could be made before");
        let stood = Arc::new(Mutex::new(Vec::new()));
        let mine = Arc::clone(&stood);
        let hog = Worker::new("hog", VICTIM, Policy::Nice(0), move |_| {
            let ran = spin_and_record(Duration::from_micros((2 * PERIOD_US).into()));
            let between = |pair: &[RangeInclusive<u64>]| *pair[0].end()..=*pair[1].start();
            mine.lock().unwrap().extend(ran.windows(2).map(between));
        });
        group.add(scene.reader.thread());
        group.add(hog.thread());
        Self { hog, stood, _group: group }
    }
}

impl Fault for Quota {
    fn begin(&mut self, _: &Scene) {
        self.hog.begin();
        // It has used up the quota by then, and runs on in the next period.
        spin(Duration::from_micros((QUOTA_US * 2).into()));
    }

    fn end(&mut self, _: &Scene) {
        self.hog.end();
    }

    fn times(&self) -> Option<Vec<RangeInclusive<u64>>> {
        Some(self.stood.lock().unwrap().clone())
    }

    fn is_named(&self, share: &Share) -> bool {
        share.share == ShareKind::Throttled
            && share.who.as_ref().and_then(|who| who.comm.as_deref()) == Some("reader")
    }
}

/// Whether there are quotas here, and whether it can be seen that they are used up.
pub fn can_be_set() -> bool {
    if !Path::new("/sys/bus/event_source/devices/kprobe").exists() {
        nearpath_testing::skip("this kernel does not let programs be attached to functions");
        return false;
    }
    let can = Cgroup::new().is_some();
    if !can {
        nearpath_testing::skip("no cgroup with the cpu controller can be created");
    }
    can
}

/// A group of threads, removed when it is dropped.
struct Cgroup {
    folder: PathBuf,
    /// The group that its threads go back to.
    above: PathBuf,
    /// The file that takes thread ids.
    threads: &'static str,
}

impl Cgroup {
    fn new() -> Option<Self> {
        let name = format!("nearpath-test-{}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup");
        let (above, threads) = if unified.join("cgroup.controllers").exists() {
            (unified.to_owned(), "cgroup.threads")
        } else {
            (unified.join("cpu"), "tasks")
        };
        let folder = above.join(name);
        std::fs::create_dir(&folder).ok()?;
        let group = Self { folder, above, threads };
        let set = if threads == "tasks" {
            group.write("cpu.cfs_period_us", &PERIOD_US.to_string())
                && group.write("cpu.cfs_quota_us", &QUOTA_US.to_string())
        } else {
            std::fs::write(group.above.join("cgroup.subtree_control"), "+cpu").is_ok()
                && group.write("cgroup.type", "threaded")
                && group.write("cpu.max", &format!("{QUOTA_US} {PERIOD_US}"))
        };
        set.then_some(group)
    }

    fn write(&self, file: &str, value: &str) -> bool {
        std::fs::write(self.folder.join(file), value).is_ok()
    }

    fn add(&self, thread: i32) {
        std::fs::write(self.folder.join(self.threads), thread.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let left = std::fs::read_to_string(self.folder.join(self.threads)).unwrap_or_default();
        for thread in left.lines() {
            let _ = std::fs::write(self.above.join(self.threads), thread);
        }
        let _ = std::fs::remove_dir(&self.folder);
    }
}
