//! Each exported format, checked with the tool that reads it, if installed.

use nearpath_model::{NicIrq, PlannedChange, Target};
use nearpath_testing::{require_program, skip};
use nearpath_tune::exporters::{ExportHost, export, exporter};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

fn change(id: &str, target: &str, after: &str) -> PlannedChange {
    let nic_irq = NicIrq { nic: "eth0".to_owned(), name: "eth0-TxRx-0".to_owned() };
    let mut target = Target::parse(target, None).unwrap();
    if let Target::File(file) = &mut target {
        file.interrupt = file.irq().map(|_| nic_irq);
    }
    PlannedChange {
        id: id.to_owned(),
        target,
        before: after.into(),
        after: after.into(),
        why: "because it's \"so\": $(reboot) {{ x }} %n # \u{1b}".to_owned(),
        finding: None,
        persist: vec![],
        reboot: false,
        optional: false,
        predicted: None,
    }
}

/// A change of each kind, of an interface with a plain name and one with an odd one.
fn changes() -> Vec<PlannedChange> {
    let mut changes = vec![
        change("irq", "/proc/irq/40/smp_affinity_list", "2"),
        change("somaxconn", "/proc/sys/net/core/somaxconn", "4096"),
        change("rmem", "/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456"),
        change("thp", "/sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
        change("thread", "affinity pid 7 tid 8 start 99", "0"),
        change("rings", "ethtool eth0 rings", "rx 4096 tx 512"),
    ];
    for nic in ["eth0", "br-lan.5", "a'{{b}}$c"] {
        let queues = format!("/sys/class/net/{nic}/queues");
        for (file, after) in
            [("rx-0/rps_cpus", "0000000c"), ("rx-0/rps_flow_cnt", "64"), ("tx-0/xps_cpus", "3")]
        {
            changes.push(change(&format!("{nic}/{file}"), &format!("{queues}/{file}"), after));
        }
    }
    changes
}

/// The files of a form in a folder, with what installing would put elsewhere named there instead.
fn written(form: &str) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let units = BTreeMap::from([(7, "test-server.service".to_owned())]);
    let host = ExportHost { units, ..ExportHost::default() };
    let made = export(exporter(form).unwrap(), &changes(), &host, vec![]).unwrap();
    let mut paths = Vec::new();
    for document in made.documents {
        let path = folder.path().join(&document.name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let here = format!("{}/nearpath", folder.path().display());
        std::fs::write(
            &path,
            document
                .text
                .replace("=/usr/local/sbin/nearpath", &format!("={here}"))
                .replace("ExecStart=nearpath ", "ExecStart=/bin/true "),
        )
        .unwrap();
        let mode = if document.program { 0o755 } else { 0o644 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        paths.push(path);
    }
    (folder, paths)
}

/// Asserts that the command succeeds; returns its output.
fn passes(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn shellcheck_has_no_complaint() {
    let (_folder, paths) = written("sh");
    passes(Command::new("sh").arg("-n").args(&paths));
    if require_program("shellcheck") {
        passes(Command::new("shellcheck").args(&paths));
    }
}

#[test]
fn systemd_takes_the_service_and_the_drop_in() {
    if !require_program("systemd-analyze") {
        return;
    }
    systemd_takes("systemd", "nearpath-tune.service");
    systemd_takes("boot", "nearpath-boot.service");
}

fn systemd_takes(form: &str, service: &str) {
    let (folder, _paths) = written(form);
    let server = "[Service]\nExecStart=/bin/sleep 9\n";
    std::fs::write(folder.path().join("test-server.service"), server).unwrap();
    let mut verify = Command::new("systemd-analyze");
    // The test's directory before those of the system.
    verify.env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()));
    verify.args(["verify", "--man=no", service, "test-server.service"]);
    let said = passes(&mut verify);
    let of_ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("nearpath") || line.contains("test-server"))
        .collect();
    assert!(of_ours.is_empty(), "{said}");
}

#[test]
fn sysctl_reads_the_fragment() {
    if !require_program("sysctl") {
        return;
    }
    let (_folder, paths) = written("sysctl");
    let said = passes(Command::new("sysctl").args(["--dry-run", "-p"]).args(&paths));
    assert_eq!(said, "net.core.somaxconn = 4096\nnet.ipv4.tcp_rmem = 4096 131072 6291456\n");
}

#[test]
fn udevadm_verifies_the_rules() {
    if !require_program("udevadm") {
        return;
    }
    let version = passes(Command::new("udevadm").arg("--version"));
    if version.trim().parse::<u32>().is_ok_and(|version| version < 254) {
        return skip("udevadm verify requires version 254");
    }
    let (_folder, paths) = written("udev");
    passes(Command::new("udevadm").args(["verify", "--no-style"]).args(&paths));
}

#[test]
fn ansible_takes_the_playbook() {
    if !require_program("ansible-playbook") {
        return;
    }
    let (_folder, paths) = written("ansible");
    passes(
        Command::new("ansible-playbook")
            .arg("--syntax-check")
            .args(["-i", "localhost,"])
            .args(&paths),
    );
}

#[test]
fn tuned_loads_the_profile() {
    if !require_program("tuned-adm") {
        return;
    }
    let (folder, _paths) = written("tuned");
    let load = include_str!("load_tuned_profile.py");
    let said = passes(Command::new("/usr/bin/python3").args(["-c", load]).arg(folder.path()));
    let said: Vec<&str> = said.lines().collect();
    for line in [
        "sysctl net.core.somaxconn=4096",
        "vm transparent_hugepages=madvise",
        "sysfs /sys/class/net/br-lan.5/queues/rx-0/rps_cpus=0000000c",
    ] {
        assert!(said.contains(&line), "{said:?}");
    }
    assert!(
        said.iter().any(|line| line.starts_with("script ") && line.ends_with("/nearpath-tune.sh")),
        "{said:?}"
    );
}

/// What ethtool prints on igb, shortened.
const RINGS: &str = "Ring parameters for eth0:
Pre-set maximums:
RX:		4096
TX:		4096
Current hardware settings:
RX:		256
RX Mini:	n/a
TX:		512
";
const COALESCE: &str = "Coalesce parameters for eth0:
Adaptive RX: off  TX: n/a
stats-block-usecs:	n/a
rx-usecs:	3
rx-frames:	n/a
";
const BLOCKS: &str = "RX flow hash indirection table for eth0 with 4 RX ring(s):
    0:      0     0     1     1     1     1     3     3
RSS hash key:
6d:5a:56
RSS hash function:
    toeplitz: on
";
const EQUAL: &str = "RX flow hash indirection table for eth0 with 2 RX ring(s):
    0:      0     1     0     1
    4:      0     1     0     1
";
const MIXED: &str = "RX flow hash indirection table for eth0 with 2 RX ring(s):
    0:      1     1     0     0
";
const FEATURES: &str = "Features for eth0:
rx-checksumming: on
generic-receive-offload: on
rx-gro-list: off [fixed]
";

#[test]
fn what_ethtool_shows_is_restored_by_its_arguments() {
    let script = include_str!("../src/exporters/nearpath-tune.sh");
    let start = script.find("words_of() {").unwrap();
    let function = &script[start..start + script[start..].find("\n}\n").unwrap() + 3];
    for awk in ["awk", "busybox awk"] {
        if !require_program(awk.split(' ').next().unwrap()) {
            continue;
        }
        let function = function.replace("| awk ", &format!("| {awk} "));
        let words = |option: &str, shown: &str, wanted: &str| {
            let mut sh = Command::new("sh");
            sh.args(["-c", &format!("{function}words_of \"$@\""), "sh", option, shown, wanted]);
            let output = sh.output().unwrap();
            assert!(output.stderr.is_empty(), "{awk}: {output:?}");
            let said = String::from_utf8(output.stdout).unwrap();
            output.status.success().then(|| said.trim().to_owned())
        };
        for (option, shown, wanted, expected) in [
            ("-g", RINGS, "rx 4096", Some("rx 256")),
            ("-g", RINGS, "rx 4096 tx 128", Some("rx 256 tx 512")),
            ("-c", COALESCE, "adaptive-rx on rx-usecs 8", Some("adaptive-rx off rx-usecs 3")),
            ("-c", COALESCE, "rx-frames 8", None),
            ("-c", COALESCE, "adaptive-tx on", None),
            ("-x", BLOCKS, "equal 2", Some("weight 2 4 0 2")),
            ("-x", BLOCKS, "hkey 1:2:3", Some("hkey 6d:5a:56")),
            ("-x", EQUAL, "weight 1 3", Some("equal 2")),
            ("-x", EQUAL, "hkey 1:2:3", None),
            ("-x", MIXED, "equal 2", None),
            ("-k", FEATURES, "rx-gro off", Some("rx-gro on")),
            ("-k", FEATURES, "rx-gro-list on", Some("rx-gro-list off")),
            ("-k", FEATURES, "other on", None),
            ("-n", "0 RX rings available\n", "delete 3", None),
        ] {
            assert_eq!(
                words(option, shown, wanted).as_deref(),
                expected,
                "{awk} {option} {wanted}"
            );
        }
    }
}
