//! Interfaces as created by this kernel, in a network namespace of the test's thread: the facts read must equal
//! the output of `ip`, `ethtool` and `tc`. The namespace is released with the thread. The machine's own
//! interfaces are only read.

use nearpath_host::{Root, Wanted};
use nearpath_model::{Nic, NicKind, QueueId};
use nearpath_testing::{require_netns, require_program, require_root, skip};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Runs a test on a thread in a new network namespace; commands inherit it.
fn in_new_netns(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: only this thread's network namespace changes; no descriptor is shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace");
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// The output of a command, which must succeed.
fn run(line: &str) -> String {
    try_run(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn try_run(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program).args(words).output().expect(program);
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn json(line: &str) -> Vec<Value> {
    serde_json::from_str(&run(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn read() -> BTreeMap<String, Nic> {
    let host = nearpath_host::read(&Root::live(), &Wanted::default()).expect("a host");
    host.nics.into_iter().map(|nic| (nic.name.clone(), nic)).collect()
}

/// Compares `ip -d link` with the facts read, where both have a field.
fn agrees_with_ip(nics: &BTreeMap<String, Nic>) {
    let links = json("ip -j -d link");
    assert_eq!(links.len(), nics.len());
    for link in links {
        let nic = &nics[link["ifname"].as_str().expect("a name")];
        let text = |field: &str| link[field].as_str().map(str::to_owned);
        assert_eq!(link["ifindex"], nic.ifindex.0, "{}", nic.name);
        assert_eq!(link["mtu"], nic.mtu_bytes.expect("an MTU"), "{}", nic.name);
        assert_eq!(text("operstate").map(|s| s.to_lowercase()), nic.state, "{}", nic.name);
        assert_eq!(text("address"), nic.address, "{}", nic.name);
        assert_eq!(text("master"), nic.master, "{}", nic.name);
        assert_eq!(text("link"), nic.link, "{}", nic.name);
        // A tap has room for 256 queues, and as many queues as its user has opened.
        if !matches!(nic.kind, NicKind::Tap | NicKind::Macvtap) {
            assert_eq!(link["num_rx_queues"], nic.rx_queues.len(), "{}", nic.name);
            assert_eq!(link["num_tx_queues"], nic.tx_queues.len(), "{}", nic.name);
        }
    }
}

/// Compares `ethtool -l`, `-g`, `-k`, `-c` with the facts read.
fn agrees_with_ethtool(nic: &Nic) {
    let name = &nic.name;
    let channels = table(try_run(&format!("ethtool -l {name}")));
    let own = nic.channels.unwrap_or_default();
    let own = [own.rx_max, own.tx_max, own.other_max, own.combined_max].into_iter().chain([
        own.rx,
        own.tx,
        own.other,
        own.combined,
    ]);
    let rows = ["RX", "TX", "Other", "Combined"];
    assert_eq!(numbers(&channels, &rows), own.collect::<Vec<_>>(), "{name}: {channels:?}");

    let rings = table(try_run(&format!("ethtool -g {name}")));
    let own = nic.rings.unwrap_or_default();
    assert_eq!(numbers(&rings, &["RX", "TX"]), [own.rx_max, own.tx_max, own.rx, own.tx], "{name}");

    let features = json(&format!("ethtool --json -k {name}"));
    let offloads = nic.offloads.as_ref().expect("features");
    let mut compared = 0;
    for (word, feature) in features[0].as_object().expect("features") {
        if let (Some(own), Some(active)) = (offloads.get(word), feature["active"].as_bool()) {
            assert_eq!(*own, active, "{name}: {word}");
            compared += 1;
        }
    }
    assert!(compared > 40, "{name}: only {compared} features have the same name");

    let coalesce = table(try_run(&format!("ethtool -c {name}")));
    for (word, value) in nic.coalesce.iter().flatten() {
        // ethtool's names for these differ from the kernel's.
        let word = word.replace("-max-frames", "-frames");
        if let Some([shown, ..]) = coalesce.get(&word).map(Vec::as_slice) {
            assert_eq!(*shown, Some(*value as u32), "{name}: {word}");
        }
    }
    if nic.rss.is_none() {
        let shown = try_run(&format!("ethtool -x {name}")).unwrap_or_default();
        assert!(!shown.contains("\n    0:"), "{name} has an indirection table: {shown}");
    }
}

/// The rows `RX: 4` of ethtool's text: the values of each keyword from top to bottom.
fn table(text: Result<String, String>) -> BTreeMap<String, Vec<Option<u32>>> {
    let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for line in text.unwrap_or_default().lines() {
        if let Some((word, value)) = line.split_once(':') {
            rows.entry(word.trim().to_owned()).or_default().push(value.trim().parse().ok());
        }
    }
    rows
}

/// The maxima of these rows, then the current values.
fn numbers(table: &BTreeMap<String, Vec<Option<u32>>>, rows: &[&str]) -> Vec<Option<u32>> {
    let value =
        |row: &str, i: usize| table.get(row).and_then(|values| values.get(i).copied().flatten());
    (0..2).flat_map(|i| rows.iter().map(move |row| value(row, i))).collect()
}

fn ready() -> bool {
    require_netns() && require_program("ethtool") && require_program("tc")
}

#[test]
fn software_interfaces_match_ip_and_ethtool() {
    if !ready() {
        return;
    }
    in_new_netns(|| {
        for line in [
            "ip link set lo up",
            "ip link add v0 mtu 1400 numrxqueues 4 numtxqueues 4 type veth \
             peer name v1 numrxqueues 2 numtxqueues 3",
            "ip link add b0 type bridge",
            "ip link set v1 master b0",
            "ip link set v0 up",
            "ip link set v1 up",
            "ip link add mv0 link v0 type macvlan",
            "ip link add mt0 link v0 numrxqueues 2 numtxqueues 2 type macvtap",
            "ip tuntap add t0 mode tap multi_queue",
            "ip tuntap add u0 mode tun",
        ] {
            run(line);
        }
        let nics = read();
        agrees_with_ip(&nics);
        for (name, kind) in [
            ("lo", NicKind::Loopback),
            ("v0", NicKind::Veth),
            ("v1", NicKind::Veth),
            ("b0", NicKind::Bridge),
            ("mv0", NicKind::Macvlan),
            ("mt0", NicKind::Macvtap),
            ("t0", NicKind::Tap),
            ("u0", NicKind::Tap),
        ] {
            assert_eq!(nics[name].kind, kind, "{name}");
        }
        for nic in nics.values().filter(|nic| nic.kind != NicKind::Loopback) {
            agrees_with_ethtool(nic);
            let shown = run(&format!("ethtool -i {}", nic.name));
            assert_eq!(
                shown.lines().next(),
                nic.driver.as_ref().map(|d| format!("driver: {d}")).as_deref()
            );
        }
        assert_eq!(nics["v0"].channels.and_then(|channels| channels.tx), Some(4));
        let inode = nics["v0"].netns.inode.map(|inode| format!("net:[{inode}]"));
        assert_eq!(inode, Some(run("readlink /proc/self/ns/net").trim().to_owned()));
    });
}

#[test]
fn a_peer_in_another_namespace_is_not_a_link() {
    if !ready() {
        return;
    }
    in_new_netns(|| {
        run("ip link add v0 type veth peer name v1");
        // The namespace lives as long as the process, which exits with its standard input.
        let mut other = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("unshare");
        let own = run("readlink /proc/self/ns/net");
        let path = format!("/proc/{}/ns/net", other.id());
        while run(&format!("readlink {path}")) == own {
            std::thread::yield_now();
        }
        run(&format!("ip link set v1 netns {}", other.id()));
        let nics = read();
        drop(other.stdin.take());
        other.wait().expect("cat ends");
        assert_eq!(nics["v0"].kind, NicKind::Veth);
        assert_eq!(nics["v0"].link, None);
    });
}

#[test]
fn steering_of_veth_queues() {
    if !ready() {
        return;
    }
    in_new_netns(|| {
        run("ip link add v0 numrxqueues 4 numtxqueues 4 type veth peer name v1");
        run("ip link set v1 up");
        run("ip link set v0 up");
        // The namespace's own sysfs, in a mount namespace that ends with the command.
        let write = "mount -t sysfs sysfs /sys && cd /sys/class/net/v0/queues && \
                     echo 1 > rx-2/rps_cpus && echo 256 > rx-2/rps_flow_cnt && \
                     echo 1 > tx-1/xps_cpus && echo 6 > tx-3/xps_rxqs";
        let written = Command::new("unshare").args(["--mount", "sh", "-c", write]).status();
        assert!(written.expect("unshare").success());
        let v0 = &read()["v0"];
        let rps: Vec<_> =
            v0.rx_queues.iter().map(|q| q.rps_cpus.clone().unwrap().to_string()).collect();
        assert_eq!(rps, ["", "", "0", ""]);
        let flows: Vec<_> = v0.rx_queues.iter().map(|queue| queue.rps_flow_cnt).collect();
        assert_eq!(flows, [Some(0), Some(0), Some(256), Some(0)]);
        assert_eq!(v0.tx_queues[1].xps_cpus.clone().unwrap().to_string(), "0");
        assert_eq!(v0.tx_queues[3].xps_rxqs, Some(vec![QueueId(1), QueueId(2)]));
        assert_eq!(v0.tx_queues[0].xps_rxqs, Some(vec![]));
        assert!(v0.rx_queues.iter().all(|queue| queue.irq.is_none()), "veth has no interrupt");
    });
}

#[test]
fn qdiscs_are_those_of_tc() {
    if !ready() {
        return;
    }
    in_new_netns(|| {
        run("ip link add v0 numtxqueues 2 type veth peer name v1");
        run("ip link set v0 up");
        if try_run("tc qdisc add dev v0 root handle 5: htb").is_err() {
            return skip("this kernel has no htb");
        }
        for line in [
            "tc class add dev v0 parent 5: classid 5:1a htb rate 1mbit",
            "tc qdisc add dev v0 parent 5:1a handle 6: tbf rate 1mbit burst 10k latency 10ms",
            "tc qdisc add dev v0 clsact",
        ] {
            run(line);
        }
        let own: Vec<_> = read()["v0"]
            .qdiscs
            .iter()
            .flatten()
            .map(|q| {
                (q.kind.clone(), q.handle.clone(), q.parent.clone(), q.drops, q.backlog_packets)
            })
            .collect();
        let shown = json("tc -j -s qdisc show dev v0");
        let class =
            |text: &str| if text.ends_with(':') { format!("{text}0") } else { text.to_owned() };
        let shown = shown.iter().map(|q| {
            let parent = match q["parent"].as_str() {
                None => "root".to_owned(),
                Some("ffff:fff1") => "ingress".to_owned(),
                Some(parent) => class(parent),
            };
            let text = |field: &str| q[field].as_str().unwrap_or_default().to_owned();
            let backlog = q["qlen"].as_u64().map(|packets| packets as u32);
            (text("kind"), class(&text("handle")), parent, q["drops"].as_u64(), backlog)
        });
        assert_eq!(own, shown.collect::<Vec<_>>());
        assert_eq!(own.len(), 3);
    });
}

#[test]
fn interfaces_that_come_and_go_are_tolerated() {
    if !ready() {
        return;
    }
    in_new_netns(|| {
        run("ip link add stays type veth peer name other");
        let churn = "for i in $(seq 40); do ip link add c$i numrxqueues 8 numtxqueues 8 type veth \
                     peer name d$i; ip link del c$i; done";
        let mut churn = Command::new("sh").args(["-c", churn]).spawn().expect("sh");
        let mut reads = 0;
        while churn.try_wait().expect("sh").is_none() {
            let nics = read();
            assert_eq!(nics["stays"].link.as_deref(), Some("other"));
            reads += 1;
        }
        assert!(reads > 1);
    });
}

#[test]
fn a_snapshot_shows_the_same_interfaces() {
    if !ready() {
        return;
    }
    in_new_netns(|| {
        run("ip link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
        run("ip link add mt0 link v0 type macvtap");
        let live = Root::live().recording();
        let host = nearpath_host::read(&live, &Wanted::default()).expect("a host");
        let file = tempfile::NamedTempFile::new().expect("a file");
        live.save(file.path()).expect("a snapshot");
        let snapshot = Root::snapshot(file.path()).expect("the snapshot");
        let replayed = nearpath_host::read(&snapshot, &Wanted::default()).expect("the same host");
        assert_eq!(replayed.nics, host.nics);
        assert_eq!(replayed.unknown, host.unknown);
        assert_eq!(host.nics.len(), 4);
    });
}

#[test]
fn reading_interfaces_needs_no_privilege() {
    if !require_root() {
        return;
    }
    let settled = || {
        let mut nics = read();
        for nic in nics.values_mut() {
            nic.statistics.clear();
            nic.qdiscs = None;
        }
        nics
    };
    let as_root = settled();
    let as_nobody = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the call affects this thread only, which ends after the reading.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
            assert_eq!(changed, 0);
            settled()
        });
        thread.join().expect("a reading")
    });
    assert_eq!(as_nobody, as_root);
}

#[test]
fn the_machines_own_interfaces() {
    if !require_root() || !require_program("ethtool") {
        return;
    }
    let nics = read();
    agrees_with_ip(&nics);
    let on_bus: Vec<_> = nics.values().filter(|nic| nic.bus.is_some()).collect();
    if on_bus.is_empty() {
        return skip("no interface of this machine has a device");
    }
    for nic in on_bus {
        agrees_with_ethtool(nic);
        let shown = run(&format!("ethtool -i {}", nic.name));
        let field = |word: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(word));
            line.map(|value| value.trim_start_matches(':').trim().to_owned())
        };
        assert_eq!(field("driver"), nic.driver);
        assert_eq!(field("bus-info"), nic.bus);
        let interrupts = run("cat /proc/interrupts");
        for queue in &nic.rx_queues {
            let Some(irq) = queue.irq else { continue };
            let prefix = format!("{irq}:");
            let line = interrupts.lines().find(|line| line.trim_start().starts_with(&prefix));
            let name = line.and_then(|line| line.split_whitespace().last()).expect("its line");
            // A name with a number has the queue's number.
            let digits = name.split('@').next().unwrap_or(name);
            let stem = digits.trim_end_matches(|c: char| c.is_ascii_digit());
            let number = &digits[stem.len()..];
            assert!(number.is_empty() || number == queue.queue.to_string(), "{name}: {queue:?}");
            assert!(nic.kind != NicKind::Virtio || name.contains("-input."), "{name}");
        }
    }
}
