//! The exported script, run on this kernel in a namespace of the test: it applies the plan, changes nothing when
//! run again, skips values that were changed externally, and restores everything byte for byte.

use nearpath_host::Root;
use nearpath_model::{PlannedChange, Target};
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_netns, require_program};
use nearpath_tune::exporters::{Document, ExportHost, export, exporter};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A valid interface name with special characters for a shell.
const ODD: &str = "n'p$(ls)\";*~`";
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// The script of a plan, in its own directory.
struct Script {
    folder: TempDir,
    path: PathBuf,
}

impl Script {
    fn new(changes: &[PlannedChange]) -> Self {
        let made =
            export(exporter("sh").unwrap(), changes, &ExportHost::default(), vec![]).unwrap();
        assert_eq!(made.left_out, []);
        let [Document { text, .. }] = made.documents.as_slice() else { panic!("one script") };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nearpath-tune.sh");
        std::fs::write(&path, text).unwrap();
        Self { folder, path }
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = in_own_sysfs();
        command.arg("sh").arg(&self.path).args(args);
        command.env("NEARPATH_TUNE_STATE", self.folder.path()).output().unwrap()
    }

    /// Its output; asserts the exit status.
    fn said(&self, args: &[&str], status: i32) -> String {
        let output = self.run(args);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        said
    }
}

fn change(target: &str, after: &str) -> PlannedChange {
    PlannedChange {
        id: target.to_owned(),
        target: Target::parse(target, None).unwrap(),
        before: Root::live().text(target).unwrap().into(),
        after: after.into(),
        why: "a test".to_owned(),
        finding: None,
        persist: vec![],
        reboot: false,
        optional: false,
        predicted: None,
    }
}

/// A program with the interfaces of this thread's namespace in `/sys`, as `ip netns exec` runs it.
fn in_own_sysfs() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t sysfs sysfs /sys && exec \"$@\"", "sh"]);
    command
}

/// Every byte of the settings of the queues, and the sysctl.
fn settings(device: &str) -> BTreeMap<String, Vec<u8>> {
    let files =
        ["rx-0/rps_cpus", "rx-1/rps_cpus", "rx-1/rps_flow_cnt", "tx-0/xps_cpus", "tx-1/xps_cpus"];
    let queues = files.iter().map(|file| format!("/sys/class/net/{device}/queues/{file}"));
    let paths = queues.chain([SOMAXCONN.to_owned()]);
    paths.map(|path| (path.clone(), Root::live().read(&path).unwrap())).collect()
}

fn write(path: &str, value: &str) {
    let mut echo = Command::new("sh");
    echo.args(["-c", "printf '%s\\n' \"$2\" >\"$1\"", "sh", path, value]);
    assert!(echo.status().unwrap().success());
}

/// A plan with every form of value.
fn plan(device: &str) -> Vec<PlannedChange> {
    let queues = format!("/sys/class/net/{device}/queues");
    vec![
        change(&format!("{queues}/rx-0/rps_cpus"), "1"),
        change(&format!("{queues}/rx-1/rps_cpus"), "00000001"),
        change(&format!("{queues}/rx-1/rps_flow_cnt"), "1000"),
        change(&format!("{queues}/tx-1/xps_cpus"), "00000001"),
        change(SOMAXCONN, "321"),
    ]
}

/// Runs on the server's side of a pair with two queues, with its device renamed.
fn in_namespace(device: &str, run: impl FnOnce() + Send) {
    if !require_netns() || !require_program("unshare") {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    pair.run(Side::Server, |_| {
        if device != "np1" {
            let ip =
                |args: &[&str]| assert!(Command::new("ip").args(args).status().unwrap().success());
            ip(&["link", "set", "np1", "down"]);
            ip(&["link", "set", "np1", "name", device]);
        }
        run();
        io::Result::Ok(())
    })
    .unwrap();
}

#[test]
fn a_script_applies_a_plan_and_restores_every_byte() {
    for device in ["np1", ODD] {
        in_namespace(device, || {
            let before = settings(device);
            let script = Script::new(&plan(device));
            assert!(script.said(&["status"], 1).contains("not applied"));
            assert!(script.said(&["apply"], 0).ends_with("changed 5 of 5 settings\n"));
            let made = settings(device);
            let of = |path: &str| String::from_utf8_lossy(&made[path]).trim().to_owned();
            assert_eq!(of(SOMAXCONN), "321");
            assert_eq!(of(&format!("/sys/class/net/{device}/queues/rx-1/rps_flow_cnt")), "1024");
            assert!(of(&format!("/sys/class/net/{device}/queues/rx-0/rps_cpus")).ends_with('1'));
            assert!(!script.said(&["status"], 0).contains("not"));

            assert_eq!(script.said(&["apply"], 0), "changed 0 of 5 settings\n");
            assert_eq!(settings(device), made);
            // As tuned calls it.
            assert!(!script.said(&["verify"], 0).contains("not"));
            assert!(
                script.said(&["stop", "full_rollback"], 0).ends_with("changed 5 of 5 settings\n")
            );
            assert_eq!(settings(device), before);
            assert_eq!(script.said(&["undo"], 0), "changed 0 of 5 settings\n");
        });
    }
}

#[test]
fn this_hosts_values_are_restored_not_those_of_the_plan() {
    in_namespace("np1", || {
        let script = Script::new(&plan("np1"));
        write(SOMAXCONN, "77");
        script.said(&["apply"], 0);
        script.said(&["undo"], 0);
        assert_eq!(Root::live().text(SOMAXCONN).unwrap(), "77");
    });
}

#[test]
fn external_changes_are_skipped() {
    in_namespace("np1", || {
        let before = settings("np1");
        let script = Script::new(&plan("np1"));
        script.said(&["apply"], 0);
        write(SOMAXCONN, "99");
        assert!(script.said(&["status"], 1).contains("it is '99', not '321'"));
        let said = script.said(&["undo"], 1);
        assert!(said.contains("changed externally to '99'"), "{said}");
        assert_eq!(Root::live().text(SOMAXCONN).unwrap(), "99");
        script.said(&["undo", "--force"], 0);
        assert_eq!(settings("np1"), before);
    });
}

#[test]
fn a_failing_change_does_not_stop_the_rest() {
    in_namespace("np1", || {
        let before = settings("np1");
        let mut changes = plan("np1");
        // CPU 60000, which does not exist.
        changes[0].after = format!("1{}", "0".repeat(15_000)).into();
        changes[1].target =
            Target::parse(&changes[1].target.to_string().replace("np1", "gone"), None).unwrap();
        let script = Script::new(&changes);
        let said = script.said(&["apply"], 1);
        assert!(said.contains("not present") && said.contains("changed 3 of 5"), "{said}");
        assert!(script.said(&["status"], 1).contains("not present  /sys/class/net/gone"));
        script.said(&["undo"], 0);
        assert_eq!(settings("np1"), before);
        assert_eq!(script.run(&["something"]).status.code(), Some(2));
    });
}

#[test]
fn ethtool_settings_are_applied_and_restored() {
    in_namespace(ODD, || {
        if !require_program("ethtool") {
            return;
        }
        let shown = || {
            let show =
                |option| Command::new("ethtool").args([option, ODD]).output().unwrap().stdout;
            [show("-k"), show("-l")].map(|text| String::from_utf8(text).unwrap())
        };
        let of_nic = |what: &str, before: &str, after: &str| PlannedChange {
            target: Target::parse(&format!("ethtool {ODD} {what}"), None).unwrap(),
            before: before.into(),
            ..change(SOMAXCONN, after)
        };
        let before = shown();
        let script = Script::new(&[
            of_nic("feature rx-gro", "off", "on"),
            of_nic("channels", "rx 2 tx 2", "rx 1 tx 1"),
        ]);
        script.said(&["status"], 1);
        assert!(script.said(&["apply"], 0).ends_with("changed 2 of 2 settings\n"));
        let made = shown();
        assert!(
            made[0].contains("generic-receive-offload: on") && made[1] != before[1],
            "{made:?}"
        );
        assert_eq!(script.said(&["apply"], 0), "changed 0 of 2 settings\n");
        assert!(!script.said(&["status"], 0).contains("not"));
        assert!(script.said(&["undo"], 0).ends_with("changed 2 of 2 settings\n"));
        assert_eq!(shown(), before);
        // Changed externally since.
        script.said(&["apply"], 0);
        assert!(
            Command::new("ethtool").args(["-K", ODD, "gro", "off"]).status().unwrap().success()
        );
        assert!(script.said(&["undo"], 1).contains("changed externally"));
        script.said(&["undo", "--force"], 0);
        assert_eq!(shown(), before);
    });
}

#[test]
fn this_boots_channels_are_restored_with_what_the_driver_resets() {
    if !require_netns() || !require_program("unshare") || !require_program("ethtool") {
        return;
    }
    let pair = VethPair::new(4).unwrap();
    pair.run(Side::Server, |_| {
        let ethtool = |args: &[&str]| {
            let output = Command::new("ethtool").args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let all = || {
            let mut all = ethtool(&["-l", "np1"]) + &ethtool(&["-k", "np1"]);
            for queue in ["rx-0/rps_cpus", "rx-2/rps_cpus", "rx-2/rps_flow_cnt", "tx-1/xps_cpus"] {
                let path = format!("/sys/class/net/np1/queues/{queue}");
                all += &format!("{queue} {:?}\n", Root::live().text(&path).ok());
            }
            all
        };
        let write_queue = |file: &str, value: &str| {
            let mut echo = in_own_sysfs();
            let script = "echo $2 >/sys/class/net/np1/queues/$1";
            echo.args(["sh", "-c", script, "sh", file, value]);
            assert!(echo.status().unwrap().success(), "{file}");
        };
        let of_nic = |what: &str, before: &str, after: &str| PlannedChange {
            target: Target::parse(&format!("ethtool np1 {what}"), None).unwrap(),
            before: before.into(),
            ..change(SOMAXCONN, after)
        };
        // When the plan was made, there were four channels, and no GRO.
        let script = Script::new(&[
            of_nic("channels", "rx 4 tx 4", "rx 1 tx 2"),
            of_nic("feature rx-gro", "off", "off"),
        ]);
        ethtool(&["-L", "np1", "rx", "3", "tx", "3"]);
        ethtool(&["-K", "np1", "gro", "on"]);
        write_queue("rx-0/rps_cpus", "1");
        write_queue("rx-2/rps_cpus", "2");
        write_queue("rx-2/rps_flow_cnt", "256");
        write_queue("tx-1/xps_cpus", "1");
        let before = all();
        script.said(&["apply"], 0);
        let made = all();
        assert!(
            made.contains("rx-2/rps_cpus None") && made.contains("tx-1/xps_cpus Some"),
            "{made}"
        );
        assert!(made.contains("generic-receive-offload: off"), "{made}");
        // A second time is not the first.
        assert_eq!(script.said(&["apply"], 0), "changed 0 of 2 settings\n");
        // What exists all the time may be changed meanwhile.
        script.said(&["undo"], 0);
        assert_eq!(all(), before);
        io::Result::Ok(())
    })
    .unwrap();
}
