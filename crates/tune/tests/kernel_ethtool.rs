//! ethtool settings on this kernel's veth: channels and features are set and restored with everything they reset, and
//! settings that veth lacks are unsupported.

mod common;

use common::in_namespace;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_model::{Change, Nic, NicSetting, Persistence, Step, Target, Value};
use nearpath_testing::veth::Side;
use nearpath_tune::{Executor, Journal, Live, ObservedValue, TuneError};
use std::path::Path;

fn change(target: &str, before: &str, after: &str) -> Change {
    let netns = current_netns(&Root::live()).inode;
    Change {
        target: Target::Nic(NicSetting::parse(target, netns).unwrap()),
        before: Value::Text(before.to_owned()),
        after: Value::Text(after.to_owned()),
        why: "a test".to_owned(),
        persistence: Persistence::UntilReboot,
        snapshot: Vec::new(),
    }
}

fn channels() -> Change {
    change("ethtool np1 channels", "rx 2 tx 2", "rx 1 tx 1")
}

fn executor(folder: &Path) -> Executor<Live> {
    Executor::new(Journal::open(folder, "boot").unwrap(), Live::new())
}

fn nic() -> Nic {
    let host = nearpath_host::read(&Root::live(), &Wanted::default()).unwrap();
    let mut nic = host.nics.into_iter().find(|nic| nic.name == "np1").unwrap();
    // Counters keep running.
    nic.statistics.clear();
    // The kernel reports a link that came up with a delay (net/core/link_watch.c).
    nic.state = None;
    nic
}

fn ip(arguments: &str) {
    let run = std::process::Command::new("ip").args(arguments.split(' ')).status();
    assert!(run.unwrap().success(), "ip {arguments}");
}

fn offloads(nic: &Nic, name: &str) -> bool {
    nic.offloads.as_ref().unwrap()[name]
}

#[test]
fn channels_are_restored_with_the_settings_of_their_queues() {
    in_namespace(|pair| {
        pair.write(Side::Server, "queues/rx-1/rps_cpus", "1").unwrap();
        pair.write(Side::Server, "queues/rx-1/rps_flow_cnt", "512").unwrap();
        pair.write(Side::Server, "queues/tx-1/xps_cpus", "2").unwrap();
        let before = nic();
        assert_eq!(before.channels.and_then(|channels| channels.rx), Some(2));
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        let made = executor.apply(vec![channels()]).unwrap();
        assert_eq!((nic().rx_queues.len(), nic().tx_queues.len()), (1, 1));
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::After);
        // The kernel forgets them with their queue.
        executor.undo(&executor.entries()[0]).unwrap();
        assert_eq!(nic(), before);
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::Before);
        assert!(executor.entries().is_empty());
    });
}

#[test]
fn a_feature_is_toggled_and_restored() {
    in_namespace(|_| {
        let before = nic();
        let now = if offloads(&before, "rx-gro") { "on" } else { "off" };
        let other = if now == "on" { "off" } else { "on" };
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        let made = executor.apply(vec![change("ethtool np1 feature rx-gro", now, other)]).unwrap();
        assert_eq!(offloads(&nic(), "rx-gro"), other == "on");
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::After);
        executor.undo(&executor.entries()[0]).unwrap();
        assert_eq!(nic(), before);
    });
}

#[test]
fn settings_that_veth_lacks_are_unsupported() {
    in_namespace(|_| {
        for (target, after) in [
            ("rings", "rx 512"),
            ("coalesce", "rx-usecs 8"),
            ("rss", "equal 2"),
            ("rss-key", "6d:5a"),
            ("rule 0", "ether vlan 40960/0xe000 queue 1"),
            ("feature rx-ntuple-filter", "on"),
            ("feature no-such-thing", "on"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let wanted = change(&format!("ethtool np1 {target}"), "off", after);
            let error = executor(dir.path()).apply(vec![wanted]).unwrap_err();
            assert!(matches!(error, TuneError::Unsupported { .. }), "{target}: {error}");
            assert_eq!(Journal::read(dir.path()).unwrap(), []);
        }
    });
}

#[test]
fn refusals_have_the_kernels_message() {
    in_namespace(|_| {
        let dir = tempfile::tempdir().unwrap();
        let too_many = change("ethtool np1 channels", "rx 2", "rx 99");
        let error = executor(dir.path()).apply(vec![too_many]).unwrap_err();
        assert!(error.to_string().contains("requested channel count exceeds maximum"), "{error}");
        assert_eq!(nic().rx_queues.len(), 2);
        let drifted = change("ethtool np1 channels", "rx 1", "rx 2 tx 1");
        let error = executor(dir.path()).apply(vec![drifted]).unwrap_err();
        assert!(matches!(error, TuneError::Drift { .. }), "{error}");
    });
}

#[test]
fn optional_values_that_a_driver_refuses_are_skipped() {
    in_namespace(|_| {
        let before = nic();
        let step = |target: &str, before: &str, after: &str, optional: bool| Step {
            change: change(target, before, after),
            optional,
        };
        let now = if offloads(&before, "rx-gro") { "on" } else { "off" };
        let other = if now == "on" { "off" } else { "on" };
        let plan = |optional| {
            // veth says EINVAL, as igb does of an rx-usecs of 8.
            vec![
                step("ethtool np1 channels", "rx 2", "rx 99", optional),
                step("ethtool np1 feature rx-gro", now, other, false),
            ]
        };
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        let error = executor.apply_steps(plan(false)).unwrap_err();
        assert!(matches!(error, TuneError::ValueNotTaken { .. }), "{error}");
        assert_eq!(nic(), before);
        let outcome = executor.apply_steps(plan(true)).unwrap();
        let said = outcome.skipped[0].reason.to_string();
        assert!(said.contains("exceeds maximum"), "{said}");
        assert_eq!((outcome.made.len(), outcome.skipped.len()), (1, 1));
        assert_eq!(offloads(&nic(), "rx-gro"), other == "on");
        executor.undo(&executor.entries()[0]).unwrap();
        assert!(nic() == before && executor.entries().is_empty());
    });
}

#[test]
fn removed_and_foreign_interfaces_are_not_changed() {
    in_namespace(|_| {
        let dir = tempfile::tempdir().unwrap();
        let mut elsewhere = channels();
        let Target::Nic(setting) = &mut elsewhere.target else { panic!() };
        setting.netns = Some(1);
        let error = executor(dir.path()).apply(vec![elsewhere]).unwrap_err();
        assert!(error.to_string().contains("network namespace 1"), "{error}");

        let mut executor = executor(dir.path());
        executor.apply(vec![channels()]).unwrap();
        ip("link set np1 down");
        ip("link set np1 name other1");
        let entry = executor.entries().remove(0);
        let gone = |found| matches!(found, ObservedValue::Gone { .. });
        assert_eq!(Live::new().look(&entry.change).unwrap(), ObservedValue::After);
        ip("link del other1");
        assert!(gone(Live::new().look(&entry.change).unwrap()));
        executor.undo(&entry).unwrap();
        assert!(executor.entries().is_empty());
    });
}
