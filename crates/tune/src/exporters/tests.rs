//! What each format exports, what it skips, and that nothing in an untrusted plan escapes the place where it is
//! written.

use super::*;
use nearpath_model::{AtBoot, InterfaceFile, SettingFile};
use nearpath_model::{NicIrq, Plan, Target};
use proptest::prelude::*;

fn change(id: &str, target: &str, before: &str, after: &str) -> PlannedChange {
    let interrupt = target
        .starts_with("/proc/irq/")
        .then(|| NicIrq { nic: "eth0".to_owned(), name: "eth0-TxRx-0".to_owned() });
    let mut target = Target::parse(target, None).unwrap_or_else(|| panic!("{target}"));
    if let Target::File(file) = &mut target {
        file.interrupt = interrupt;
    }
    PlannedChange {
        id: id.to_owned(),
        target,
        before: before.into(),
        after: after.into(),
        why: format!("because of {id}"),
        finding: None,
        persist: vec![],
        reboot: false,
        optional: false,
        predicted: None,
    }
}

/// Sets the interrupt that an affinity change belongs to.
fn set_interrupt(change: &mut PlannedChange, interrupt: Option<NicIrq>) {
    let Target::File(file) = &mut change.target else { panic!("{change:?}") };
    file.interrupt = interrupt;
}

/// A change of each kind.
fn all() -> Vec<PlannedChange> {
    let queues = "/sys/class/net/eth0/queues";
    vec![
        change("irq-40", "/proc/irq/40/smp_affinity_list", "0-3", "2"),
        change("rps", &format!("{queues}/rx-0/rps_cpus"), "00000000", "F,0000000C"),
        change("flows", &format!("{queues}/rx-0/rps_flow_cnt"), "0", "1000"),
        change("xps", &format!("{queues}/tx-0/xps_cpus"), "00000000", "00000001"),
        change("somaxconn", "/proc/sys/net/core/somaxconn", "128", "4096"),
        change("rmem", "/proc/sys/net/ipv4/tcp_rmem", "4096\t1\t2", "4096 131072 6291456"),
        change(
            "thp",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never",
            "madvise",
        ),
        change("rings", "ethtool eth0 rings", "rx 256 tx 256", "rx 4096 tx 512"),
        change("thread", "affinity pid 7 tid 8 start 99", "0-3", "2-3"),
    ]
}

fn exported(form: &str, changes: &[PlannedChange]) -> Export {
    export(exporter(form).unwrap(), changes, &host(""), vec![]).unwrap()
}

/// A host with the service of process 7, and these isolated CPUs.
fn host(isolated: &str) -> ExportHost {
    let units = BTreeMap::from([(7, "nginx.service".to_owned())]);
    let isolated = CpuSet::from_list(isolated).unwrap();
    ExportHost { units, isolated, ..ExportHost::default() }
}

#[test]
fn no_service_gets_several_isolated_cpus() {
    let thread = |tid: u32, cpus: &str| {
        change(&format!("t{tid}"), &format!("affinity pid 7 tid {tid} start 99"), "0-3", cpus)
    };
    let systemd = exporter("systemd").unwrap();
    let changes = [thread(8, "2"), thread(9, "3")];
    // They are not isolated, or it is one CPU only.
    export(systemd, &changes, &host("1"), vec![]).unwrap();
    export(systemd, &changes[..1], &host("1-3"), vec![]).unwrap();
    let refused = export(systemd, &changes, &host("1-3"), vec![]).unwrap_err().to_string();
    assert!(refused.contains("does not balance load"), "{refused}");
    // The plan itself isolates them at the next boot.
    let mut fragment = change("boot", "/proc/sys/net/core/somaxconn", "1", "2");
    fragment.after = "# x\nGRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT \
                      isolcpus=managed_irq,domain,2-3 nohz_full=2-3\"\n"
        .into();
    fragment.target = Target::ConfigFile(nearpath_model::ConfigFile::CommandLine);
    let all = [thread(8, "2"), thread(9, "3"), fragment];
    let refused = export(systemd, &all, &host(""), vec![]).unwrap_err().to_string();
    assert!(refused.contains("does not balance load"), "{refused}");
}

#[test]
fn hugepages_are_reserved_at_boot() {
    let changes = [change("hugepages-2M", "hugepages 2048kB", "0:0,1:4", "0:512,1:4")];
    let grub = exported("grub", &changes);
    let fragment = text(&grub, "50-nearpath.cfg");
    assert!(fragment.contains("hugepagesz=2M hugepages=0:512,1:4\"\n"), "{fragment}");
    let parsed = fragment.lines().filter_map(command_line_parameters).count();
    assert_eq!(parsed, 1, "nearpath accepts its own line: {fragment}");
    // Early, and for kernels without the parameter.
    let unit = text(&exported("systemd", &changes), "nearpath-hugepages.service");
    let file = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    assert!(unit.contains(&format!("echo 512 >{file};")), "{unit}");
    assert!(unit.contains("DefaultDependencies=no") && unit.contains("Before=sysinit.target"));
    // Only the pool that changes.
    let script = text(&exported("sh", &changes), "nearpath-tune.sh");
    assert!(script.contains(&format!("numbers '{file}' '0' '512'")), "{script}");
    assert!(!script.contains("node1/"), "{script}");
    for after in ["0:512", "512", "0:1,1:x", "0:1,1:2; reboot"] {
        let bad = [change("bad", "hugepages 2048kB", "0:0,1:4", after)];
        let sh = exporter("sh").unwrap();
        assert!(export(sh, &bad, &host(""), vec![]).is_err(), "{after}");
    }
}

#[test]
fn udev_rules_match_the_device_at_its_address() {
    let udev = exporter("udev").unwrap();
    let rules = |changes: &[PlannedChange], bus: &str, driver: &str| {
        let device = ("eth0".to_owned(), (bus.to_owned(), driver.to_owned()));
        let host = ExportHost { devices: [device].into(), ..ExportHost::default() };
        text(&export(udev, changes, &host, vec![]).unwrap(), "99-nearpath.rules")
    };
    let rps = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
    let changes = [
        change("rps", rps, "0", "c"),
        change("rings", "ethtool eth0 rings", "rx 256 tx 256", "rx 4096 tx 512"),
    ];
    let text = rules(&changes, "0000:5e:10.2", "igbvf");
    let device = "KERNELS==\"0000:5e:10.2\", DRIVERS==\"igbvf\"";
    let rules_of_device = text.lines().filter(|line| line.contains(device)).count();
    assert_eq!(rules_of_device, 3, "{text}");
    // Not by its name, which another device may have at the next boot.
    assert!(!text.contains("KERNEL==\"eth0\"") && !text.contains("/net/eth0/"), "{text}");
    assert!(text.contains("ethtool -G $name rx 4096 tx 512"), "{text}");
    assert!(text.contains("SUBSYSTEM==\"queues\", KERNEL==\"rx-0\", KERNELS"), "{text}");
    // What udev would interpret is not written.
    let text = rules(&changes, "0000:5e:10.2", "x\", RUN+=\"y");
    assert!(text.contains("KERNEL==\"eth0\"") && !text.contains("DRIVERS"), "{text}");
}

fn ids(export: &Export) -> Vec<&str> {
    export.left_out.iter().map(|left| left.id.as_str()).collect()
}

fn text(export: &Export, name: &str) -> String {
    let found = export.documents.iter().find(|document| document.name == name);
    found.unwrap_or_else(|| panic!("{name} of {export:?}")).text.clone()
}

#[test]
fn skipped_changes_are_listed() {
    for (form, left_out) in [
        ("sh", &["thread"][..]),
        ("systemd", &[]),
        ("udev", &["irq-40", "somaxconn", "rmem", "thp", "thread"]),
        ("sysctl", &["irq-40", "rps", "flows", "xps", "thp", "rings", "thread"]),
        ("tuned", &["thread"]),
        ("ansible", &["thread"]),
    ] {
        let made = exported(form, &all());
        assert_eq!(ids(&made), left_out, "{form}");
        assert_eq!(made.carried + made.left_out.len(), all().len());
        for left in &made.left_out {
            let listed = made.documents.iter().any(|d| d.text.contains(&left.id));
            assert!(listed, "{form} does not list {}", left.id);
        }
    }
    let error =
        export(exporter("grub").unwrap(), &all(), &ExportHost::default(), vec![]).unwrap_err();
    assert!(error.to_string().contains("nothing to export as grub"), "{error}");
}

#[test]
fn the_kernel_command_line_is_a_fragment_for_grub_alone() {
    let line = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT nohz_full=2-3\"\n";
    let boot = change("boot", "/etc/default/grub.d/50-nearpath.cfg", "", line);
    assert_eq!(means(&boot), ["grub"]);
    let made = exported("grub", std::slice::from_ref(&boot));
    assert!(text(&made, "50-nearpath.cfg").ends_with(line), "{made:?}");
    let evil = PlannedChange { after: line.replace("nohz_full=2-3", "x=$(y)").into(), ..boot };
    assert_eq!(means(&evil), Vec::<String>::new());
}

#[test]
fn persist_lists_the_formats_that_export_a_change() {
    let means: Vec<Vec<String>> = all().iter().map(means).collect();
    assert_eq!(means[0], ["sh", "boot", "systemd", "tuned", "ansible"]);
    assert_eq!(means[1], ["sh", "boot", "systemd", "udev", "tuned", "ansible"]);
    assert_eq!(means[4], ["sh", "boot", "systemd", "sysctl", "tuned", "ansible"]);
    assert_eq!(means[7], ["sh", "boot", "systemd", "udev", "tuned", "ansible"]);
    assert_eq!(means[8], [""; 0]);
}

/// A word, and a number that needs 32 bits, as TCP has them.
#[test]
fn sysctls_of_tcp_are_exported() {
    let folder = "/proc/sys/net/ipv4";
    let changes = [
        change("cc", &format!("{folder}/tcp_congestion_control"), "cubic", "bbr"),
        change("lowat", &format!("{folder}/tcp_notsent_lowat"), "4294967295", "131072"),
        change("wmem", &format!("{folder}/tcp_wmem"), "4096\t16384\t4194304", "4096 16384 8388608"),
    ];
    let sysctl = text(&exported("sysctl", &changes), "60-nearpath.conf");
    for line in [
        "\nnet.ipv4.tcp_congestion_control = bbr\n",
        "\nnet.ipv4.tcp_notsent_lowat = 131072\n",
        "\nnet.ipv4.tcp_wmem = 4096 16384 8388608\n",
    ] {
        assert!(sysctl.contains(line), "{sysctl}");
    }
    let script = text(&exported("sh", &changes), "nearpath-tune.sh");
    for call in [
        "tcp_congestion_control' choice '/proc/sys/net/ipv4/tcp_congestion_control' 'cubic' 'bbr'",
        "'/proc/sys/net/ipv4/tcp_wmem' '4096 16384 4194304' '4096 16384 8388608'",
    ] {
        assert!(script.contains(call), "{call}: {script}");
    }
    // A word is one word: nothing follows it.
    let evil = change("cc", &format!("{folder}/tcp_congestion_control"), "cubic", "bbr\nx = 1");
    assert_eq!(means(&evil), Vec::<String>::new());
}

#[test]
fn sysctls_and_rules() {
    let sysctl = text(&exported("sysctl", &all()), "60-nearpath.conf");
    assert!(sysctl.contains("\n# because of somaxconn\nnet.core.somaxconn = 4096\n"), "{sysctl}");
    assert!(sysctl.contains("\nnet.ipv4.tcp_rmem = 4096 131072 6291456\n"), "{sysctl}");
    let udev = text(&exported("udev", &all()), "99-nearpath.rules");
    for rule in [
        "\nACTION==\"add|move\", SUBSYSTEM==\"net\", KERNEL==\"eth0\", \
         ATTR{queues/rx-0/rps_cpus}=\"f,0000000c\"\n",
        "\nACTION==\"add\", SUBSYSTEM==\"queues\", DEVPATH==\"*/net/eth0/queues/tx-0\", \
         ATTR{xps_cpus}=\"00000001\"\n",
        "ATTR{rps_flow_cnt}=\"1024\"\n",
        "KERNEL==\"eth0\", RUN+=\"/usr/sbin/ethtool -G eth0 rx 4096 tx 512\"\n",
    ] {
        assert!(udev.contains(rule), "{udev}");
    }
}

#[test]
fn a_service_waits_for_interfaces_and_restarts_with_them() {
    let made = exported("systemd", &all());
    let service = text(&made, "nearpath-tune.service");
    let device = "sys-subsystem-net-devices-eth0.device";
    for line in [
        format!("\nWants=network-online.target {device}\n"),
        format!("\nAfter=network-online.target {device} systemd-sysctl.service"),
        format!("\nWantedBy=multi-user.target {device}\n"),
        "\nExecStart=/usr/local/sbin/nearpath-tune.sh apply\n".to_owned(),
    ] {
        assert!(service.contains(&line), "{service}");
    }
    let drop_in = text(&made, "nginx.service.d/50-nearpath.conf");
    assert!(drop_in.ends_with("\n[Service]\nCPUAffinity=\nCPUAffinity=2-3\n"), "{drop_in}");
    assert!(made.documents.iter().any(|d| d.name == "nearpath-tune.sh" && d.program));
}

#[test]
fn a_profile_uses_tuneds_own_plugins() {
    let made = exported("tuned", &all());
    let profile = text(&made, "nearpath/tuned.conf");
    for lines in [
        "\n[sysctl]\nnet.core.somaxconn=4096\n",
        "\n[vm]\ntransparent_hugepages=madvise\n",
        "\n[sysfs]\n/sys/class/net/eth0/queues/rx-0/rps_cpus=f,0000000c\n",
        "\n[script]\nscript=${i:PROFILE_DIR}/nearpath-tune.sh\n",
    ] {
        assert!(profile.contains(lines), "{profile}");
    }
    let script = text(&made, "nearpath/nearpath-tune.sh");
    assert!(script.contains("count=2\n") && script.contains("'eth0-TxRx-0' '*-TxRx-0' '0-3' '2'"));
}

#[test]
fn invalid_settings_and_values_are_skipped() {
    let mut nameless = change("irq", "/proc/irq/40/smp_affinity_list", "0", "1");
    set_interrupt(&mut nameless, None);
    let mut elsewhere = change("irq2", "/proc/irq/40/smp_affinity_list", "0", "1");
    let other = NicIrq { nic: "../..".to_owned(), name: "x".to_owned() };
    set_interrupt(&mut elsewhere, Some(other));
    let mut outside = change("path", "/sys/class/net/e/gro_flush_timeout", "1", "2");
    outside.target = SettingFile::interface("../..", InterfaceFile::GroFlushTimeout).into();
    let somaxconn = "/proc/sys/net/core/somaxconn";
    let changes = [
        change("good", somaxconn, "1", "2"),
        outside,
        change("value", somaxconn, "1", "2\nkernel.core_pattern = |/bin/sh"),
        change("before", somaxconn, "$(reboot)", "2"),
        nameless,
        elsewhere,
        change("words", "ethtool eth0 rings", "rx 256", "rx $(reboot)"),
        change("table", "ethtool eth0 rss", "table 0 0 1", "equal 2"),
    ];
    for form in ["sh", "boot", "systemd", "sysctl", "tuned", "ansible"] {
        let made = exported(form, &changes);
        assert_eq!(
            ids(&made),
            ["path", "value", "before", "irq", "irq2", "words", "table"],
            "{form}"
        );
        assert!(made.documents.iter().all(|d| !d.text.contains("core_pattern")), "{form}");
    }
}

#[test]
fn special_names_are_exported_only_where_they_can_be_quoted() {
    let odd = |nic: &str| {
        let path = format!("/sys/class/net/{nic}/queues/rx-0/rps_cpus");
        vec![change("odd", &path, "0", "1"), change("eth0", &path.replace(nic, "eth0"), "0", "1")]
    };
    for nic in ["a*b", "a\"b", "$(reboot)", "%k", "a|b", "[x]", "a\\b", "#a", "a'b", "é"] {
        for form in ["udev", "tuned"] {
            assert_eq!(ids(&exported(form, &odd(nic))), ["odd"], "{form} {nic}");
        }
        assert_eq!(ids(&exported("sh", &odd(nic))), [""; 0], "{nic}");
    }
    let script = text(&exported("sh", &odd("a'b")), "nearpath-tune.sh");
    assert!(script.contains(r"'/sys/class/net/a'\''b/queues/rx-0/rps_cpus'"), "{script}");
}

/// What no form carries.
const CGROUP: &str = "cpuset.cpus inode 9 cgroup /a";

proptest! {
    #[test]
    fn no_text_can_start_a_new_line(
        why in "\\PC{0,30}\n?[a-z]{0,9}",
        id in "\\PC{0,10}\n?[a-z]{0,9}",
        name in "\\PC{1,20}",
        value in "\\PC{0,10}",
    ) {
        let mut irq = change(&id, "/proc/irq/40/smp_affinity_list", "0-3", "2");
        irq.why = why;
        set_interrupt(&mut irq, Some(NicIrq { nic: "eth0".to_owned(), name }));
        let changes =
            [irq, change("v", "/proc/sys/net/core/somaxconn", "1", &value), change("n", CGROUP, "", "")];
        let one = [change("n", "/proc/irq/40/smp_affinity_list", "0-3", "2"), change("/", CGROUP, "", "")];
        for form in EXPORTERS {
            let host = ExportHost::default();
            let (Ok(made), Ok(plain)) = (export(form, &changes, &host, vec![]), export(form, &one, &host, vec![])) else {
                continue;
            };
            for (made, plain) in made.documents.iter().zip(&plain.documents) {
                // JSON quotes: the text must round-trip.
                if made.name.ends_with(".json") {
                    let plan: Plan = serde_json::from_str(&made.text).unwrap();
                    prop_assert!(plan.changes.iter().all(|change| changes.contains(change)));
                    continue;
                }
                // A comment and a line per setting, and a comment per reason.
                let (most, least) = (made.text.lines().count(), plain.text.lines().count());
                prop_assert!(most <= least + 4, "{} {}", form.name, made.text);
            }
        }
    }
}

#[test]
fn the_boot_service_applies_the_same_changes() {
    let made = exported("boot", &all());
    let plan: Plan = serde_json::from_str(&text(&made, "nearpath-plan.json")).unwrap();
    let AtBoot { steps, left_out } = plan.at_boot(&[], Some(5)).unwrap();
    assert_eq!((steps.len(), left_out.len()), (plan.changes.len(), 0));
    let carried: Vec<PlannedChange> =
        all().into_iter().filter(|c| plan.changes.iter().any(|p| p.id == c.id)).collect();
    assert_eq!(plan.changes, carried);
    assert!(ids(&made).iter().all(|id| !plan.changes.iter().any(|change| change.id == *id)));
    let unit = text(&made, "nearpath-boot.service");
    assert!(unit.contains("ExecStart=nearpath tune apply --boot /etc/nearpath/plan.json\n"));
    assert!(unit.contains("sys-subsystem-net-devices-eth0.device"), "{unit}");
}
