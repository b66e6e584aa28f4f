//! Settings in this kernel's files, in a namespace of the test: written, read back, restored byte for byte, and skipped if
//! changed externally.

mod common;

use common::in_namespace;
use nearpath_host::{Root, current_netns};
use nearpath_model::{Change, Persistence, Target, Value};
use nearpath_testing::require_netns;
use nearpath_testing::veth::{Side, VethPair};
use nearpath_tune::{Executor, Journal, Live, ObservedValue, TuneError};
use std::io;
use std::path::Path;

const QUEUES: &str = "/sys/class/net/np1/queues";
const FLOWS: &str = "/sys/class/net/np1/queues/rx-1/rps_flow_cnt";
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// A change of a file, from what is there now.
fn change(path: &str, after: &str) -> Change {
    let netns = current_netns(&Root::live()).inode;
    Change {
        target: Target::parse(path, netns).unwrap(),
        before: Value::Text(text(path)),
        after: Value::Text(after.to_owned()),
        why: "a test".to_owned(),
        persistence: Persistence::UntilReboot,
        snapshot: Vec::new(),
    }
}

fn text(path: &str) -> String {
    Root::live().text(path).unwrap()
}

fn executor(folder: &Path) -> Executor<Live> {
    Executor::new(Journal::open(folder, "boot").unwrap(), Live::new())
}

/// The files of the queues and the one sysctl.
fn all() -> Vec<String> {
    let queues = ["rx-0/rps_cpus", "rx-1/rps_cpus", "tx-0/xps_cpus", "tx-1/xps_cpus"];
    let queues = queues.iter().map(|file| format!("{QUEUES}/{file}"));
    let paths = queues.chain([FLOWS.to_owned(), SOMAXCONN.to_owned()]);
    paths.map(|path| text(&path)).collect()
}

#[test]
fn settings_are_written_and_restored_to_the_byte() {
    in_namespace(|_| {
        let dir = tempfile::tempdir().unwrap();
        let before = all();
        let mut executor = executor(dir.path());
        let plan = vec![
            change(&format!("{QUEUES}/rx-0/rps_cpus"), "1"),
            change(&format!("{QUEUES}/tx-1/xps_cpus"), "00000001"),
            // The kernel rounds it up.
            change(FLOWS, "1000"),
            change(SOMAXCONN, "100"),
        ];
        let made = executor.apply(plan).unwrap();
        assert_eq!([text(FLOWS), text(SOMAXCONN)], ["1024", "100"]);
        assert!(text(&format!("{QUEUES}/tx-1/xps_cpus")).ends_with('1'));
        let live = Live::new();
        for change in &made {
            assert_eq!(live.look(change).unwrap(), ObservedValue::After, "{}", change.target);
        }
        for entry in executor.entries().iter().rev() {
            executor.undo(entry).unwrap();
        }
        assert_eq!(all(), before);
        for change in &made {
            assert_eq!(live.look(change).unwrap(), ObservedValue::Before, "{}", change.target);
        }
        assert!(executor.entries().is_empty());
    });
}

#[test]
fn a_refusal_of_the_kernel_undoes_the_plan() {
    in_namespace(|_| {
        let dir = tempfile::tempdir().unwrap();
        let before = all();
        let path = format!("{QUEUES}/rx-1/rps_cpus");
        // CPU 60000: a mask, but of no machine.
        let beyond = format!("1{}", "0".repeat(15_000));
        let plan = vec![change(FLOWS, "512"), change(&path, &beyond), change(SOMAXCONN, "9")];
        let error = executor(dir.path()).apply(plan).unwrap_err();
        assert!(matches!(error, TuneError::Kernel { .. }), "{error}");
        assert_eq!(all(), before);
        assert_eq!(Journal::read(dir.path()).unwrap(), []);
    });
}

#[test]
fn external_changes_are_skipped() {
    in_namespace(|pair| {
        let dir = tempfile::tempdir().unwrap();
        let mut ours = executor(dir.path());
        // Since the plan was made.
        let mut stale = change(FLOWS, "512");
        stale.before = Value::Text("256".to_owned());
        let error = ours.apply(vec![stale.clone()]).unwrap_err();
        assert!(matches!(error, TuneError::Drift { .. }), "{error}");
        assert_eq!(text(FLOWS), "0");

        // Since it was made.
        ours.apply(vec![change(FLOWS, "512")]).unwrap();
        pair.write(Side::Server, "queues/rx-1/rps_flow_cnt", "2048").unwrap();
        let entries = ours.entries();
        let other = ObservedValue::Other { now: "2048".to_owned() };
        assert_eq!(Live::new().look(&entries[0].change).unwrap(), other);
        let error = ours.undo(&entries[0]).unwrap_err();
        assert!(error.to_string().contains("it is \"2048\", not \"512\""), "{error}");
        assert_eq!((text(FLOWS), ours.entries().len()), ("2048".to_owned(), 1));
        drop(ours);

        let journal = Journal::open(dir.path(), "boot").unwrap();
        let mut forced = Executor::new(journal, Live::new().forced(true));
        forced.undo(&entries[0]).unwrap();
        assert_eq!(text(FLOWS), "0");
        forced.apply(vec![stale]).unwrap();
        assert_eq!(forced.entries()[0].change.before, Value::Text("0".to_owned()));
    });
}

#[test]
fn removed_objects_need_no_undo() {
    in_namespace(|_| {
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        executor.apply(vec![change(FLOWS, "512")]).unwrap();
        let removed = std::process::Command::new("ip").args(["link", "del", "np1"]).status();
        assert!(removed.unwrap().success());
        let entries = executor.entries();
        let found = Live::new().look(&entries[0].change).unwrap();
        assert!(matches!(found, ObservedValue::Gone { .. }), "{found:?}");
        executor.undo(&entries[0]).unwrap();
        assert!(executor.entries().is_empty());
    });
}

#[test]
fn unsupported_settings_are_recognized() {
    if !require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    pair.run(Side::Server, |_| {
        let dir = tempfile::tempdir().unwrap();
        let mut xps = change(FLOWS.replace("rx-1", "rx-0").as_str(), "00000001");
        let netns = current_netns(&Root::live()).inode;
        let path = format!("{QUEUES}/tx-0/xps_cpus");
        xps.target = Target::parse(&path, netns).unwrap();
        let error = executor(dir.path()).apply(vec![xps]).unwrap_err();
        assert!(matches!(error, TuneError::Unsupported { .. }), "{error}");
        io::Result::Ok(())
    })
    .unwrap();
}

/// Puts files back that a failed test has left changed.
struct Restored(Vec<(&'static str, String)>);

impl Drop for Restored {
    fn drop(&mut self) {
        for (path, before) in &self.0 {
            if text(path) != *before {
                let _ = std::fs::write(path, before);
            }
        }
    }
}

#[test]
fn power_and_isolation_are_set_and_restored_to_the_byte() {
    const FILES: [(&str, &str); 3] = [
        ("/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", "n/a"),
        ("/sys/devices/virtual/workqueue/cpumask", "1"),
        ("/proc/irq/default_smp_affinity", "1"),
    ];
    in_namespace(|_| {
        let read = || FILES.map(|(path, _)| text(path));
        let before = read();
        let _restored = Restored(FILES.map(|(path, _)| (path, text(path))).to_vec());
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        // On a machine with one CPU the masks are there already.
        let wanted = FILES.iter().filter(|(path, after)| !text(path).ends_with(after));
        let made =
            executor.apply(wanted.map(|(path, after)| change(path, after)).collect()).unwrap();
        assert!(!made.is_empty());
        for ((path, after), now) in FILES.iter().zip(read()) {
            assert!(now.ends_with(after), "{path}: {now}");
        }
        let live = Live::new();
        for change in &made {
            assert_eq!(live.look(change).unwrap(), ObservedValue::After, "{}", change.target);
        }
        for entry in executor.entries().iter().rev() {
            executor.undo(entry).unwrap();
        }
        assert_eq!(read(), before);
        // What the kernel does not take is refused, and the rest undone.
        let none = change(FILES[2].0, "0");
        let limit = change(FILES[0].0, "25");
        assert!(executor.apply(vec![limit, none]).is_err());
        assert_eq!(read(), before);
    });
}

#[test]
fn threads_that_poll_are_made_placed_and_gone_again() {
    const THREADED: &str = "/sys/class/net/np1/threaded";
    in_namespace(|_| {
        let threads = || -> Vec<u32> {
            let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
                entry.unwrap().file_name().to_str().and_then(|name| name.parse().ok())
            });
            let polls = |pid: &u32| {
                let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                comm.is_ok_and(|comm| comm.starts_with("napi/np1-"))
            };
            pids.filter(polls).collect()
        };
        let allowed = |pid: u32| text(&format!("/proc/{pid}/status"));
        assert_eq!((threads().len(), text(THREADED)), (0, "0".to_owned()));
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        // Without GRO the driver has no NAPI instance of its own.
        let netns = current_netns(&Root::live()).inode;
        let gro = Change {
            target: Target::parse("ethtool np1 feature rx-gro", netns).unwrap(),
            before: Value::Text("off".to_owned()),
            after: Value::Text("on".to_owned()),
            ..change(THREADED, "1")
        };
        executor.apply(vec![gro, change(THREADED, "1")]).unwrap();
        let made = threads();
        let Some(&pid) = made.first() else { panic!("no thread polls np1") };
        let thread = nearpath_tune::find_thread(&Root::live(), pid, pid).unwrap();
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let place = Change {
            target: Target::from(thread),
            before: Value::Text(online.trim().to_owned()),
            after: Value::Text("0".to_owned()),
            ..change(THREADED, "1")
        };
        let is_one_cpu = online.trim() == "0";
        if !is_one_cpu {
            executor.apply(vec![place]).unwrap();
            assert!(allowed(pid).contains("Cpus_allowed_list:\t0\n"), "{}", allowed(pid));
        }
        for entry in executor.entries().iter().rev() {
            executor.undo(entry).unwrap();
        }
        assert_eq!(text(THREADED), "0");
        assert!(executor.entries().is_empty());
    });
}
