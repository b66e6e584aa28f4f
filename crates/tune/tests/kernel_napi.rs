//! Parameters of single NAPI instances on this kernel's veth: set, read back, restored to the byte. What the kernel has is
//! asked by a program that shares no code with nearpath.

#[path = "common/changes.rs"]
mod changes;
mod common;

use changes::{change, executor};
use common::in_namespace;
use nearpath_host::{Root, current_netns};
use nearpath_model::{Change, NicSetting, Target};
use nearpath_testing::require_program;
use nearpath_tune::{Live, ObservedValue, TuneError};
use std::path::Path;
use std::process::Command;

/// What the kernel says of each instance, or nothing if it does not have the family.
fn kernel_says() -> Vec<String> {
    kernel_says_after(&[])
}

/// The same, once a parameter of an instance was set: id, name, value.
fn kernel_says_after(wanted: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/tests/napi_parameters.py");
    let said = Command::new("python3").arg(script).arg("np1").args(wanted).output().unwrap();
    String::from_utf8(said.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn value(line: &str, name: &str) -> String {
    let (_, rest) = line.split_once(&format!("\"{name}\": ")).unwrap();
    rest.chars().take_while(char::is_ascii_digit).collect()
}

/// Runs with two NAPI instances, which veth has while GRO is on.
fn with_instances(run: impl FnOnce() + Send) {
    if !require_program("python3") || !require_program("ethtool") {
        return;
    }
    in_namespace(|_| {
        assert!(
            Command::new("ethtool").args(["-K", "np1", "gro", "on"]).status().unwrap().success()
        );
        let said = kernel_says();
        if said.first().is_none_or(|line| !line.contains("irq-suspend-timeout")) {
            nearpath_testing::skip("no parameters of single NAPI instances (Linux 6.13)");
            return;
        }
        assert_eq!(said.len(), 2, "{said:?}");
        run();
    });
}

fn of_instance(place: u32, before: &str, after: &str) -> Change {
    let netns = current_netns(&Root::live()).inode;
    let setting = NicSetting::parse(&format!("napi np1 {place}"), netns).unwrap();
    change(Target::Nic(setting), before, after)
}

#[test]
fn one_instance_is_set_and_restored() {
    with_instances(|| {
        let before = kernel_says();
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        let wanted = of_instance(
            1,
            "gro-flush-timeout 0 irq-suspend-timeout 0",
            // More than 32 bits.
            "gro-flush-timeout 20000 irq-suspend-timeout 5000000000",
        );
        let made = executor.apply(vec![wanted]).unwrap();
        let now = kernel_says();
        assert_eq!(now[0], before[0], "the other instance keeps its own");
        assert_eq!(value(&now[1], "irq-suspend-timeout"), "5000000000");
        assert_eq!(value(&now[1], "gro-flush-timeout"), "20000");
        assert_eq!(value(&now[1], "defer-hard-irqs"), value(&before[1], "defer-hard-irqs"));
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::After);

        // Another program's value is drift, and not overwritten.
        let id = value(&now[1], "id");
        let set = |timeout| kernel_says_after(&[&id, "gro-flush-timeout", timeout]);
        assert_eq!(value(&set("7")[1], "gro-flush-timeout"), "7");
        assert!(matches!(Live::new().look(&made[0]).unwrap(), ObservedValue::Other { .. }));
        let error = executor.undo(&executor.entries()[0]).unwrap_err();
        assert!(matches!(error, TuneError::Drift { .. }), "{error}");
        assert_eq!(set("20000"), now);
        executor.undo(&executor.entries()[0]).unwrap();
        assert_eq!(kernel_says(), before);
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::Before);
        assert!(executor.entries().is_empty());
    });
}

#[test]
fn instances_that_are_gone_or_values_that_are_not_known_are_refused() {
    with_instances(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        let before = kernel_says();
        let (off, on) = ("irq-suspend-timeout 0", "irq-suspend-timeout 20000000");
        for (place, after, said) in [
            (2, on, "no longer exists"),
            (0, "irq-suspend-timeout", "is not"),
            (0, "id 5", "is not"),
        ] {
            let error = executor.apply(vec![of_instance(place, off, after)]).unwrap_err();
            assert!(error.to_string().contains(said), "{place} {after}: {error}");
        }
        let error = executor.apply(vec![of_instance(0, "irq-suspend-timeout 9", on)]).unwrap_err();
        assert!(matches!(error, TuneError::Drift { .. }), "{error}");
        assert_eq!(kernel_says(), before);

        // Without GRO, veth has no instances: what was set is gone with them, and an undo has nothing to do.
        let made = executor.apply(vec![of_instance(0, off, on)]).unwrap();
        assert!(
            Command::new("ethtool").args(["-K", "np1", "gro", "off"]).status().unwrap().success()
        );
        assert!(matches!(Live::new().look(&made[0]).unwrap(), ObservedValue::Gone { .. }));
        executor.undo(&executor.entries()[0]).unwrap();
        assert!(executor.entries().is_empty());
    });
}
