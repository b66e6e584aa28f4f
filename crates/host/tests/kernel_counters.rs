//! Interrupts, counters, sysctls, daemons, sockets and memory of this machine, compared with what the kernel
//! and other programs report elsewhere.

use nearpath_host::{Root, Wanted};
use nearpath_model::{CpuId, Host, SocketProtocol};
use nearpath_testing::{require_netns, require_program, skip};
use rustix::thread::{CpuSet as Affinity, UnshareFlags};
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;

fn host(wanted: &Wanted) -> Host {
    nearpath_host::read(&Root::live(), wanted).unwrap()
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The numbers after a keyword of `/proc/stat`: `intr` is followed by the sum of all interrupts and then the
/// count of each number, `softirq` by the sum and the count of each vector.
fn stat(word: &str) -> Vec<u64> {
    let text = fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(word)).unwrap();
    line.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn interrupts_add_up_to_the_kernels_sums() {
    let before = stat("intr ");
    let host = host(&Wanted::default());
    let after = stat("intr ");
    if host.irqs.is_empty() {
        return skip("no interrupts in /proc/interrupts");
    }
    for irq in &host.irqs {
        let at = irq.irq.0 as usize + 1;
        let sum: u64 = irq.counts.values().sum();
        // The sums also include what offline CPUs handled.
        if host.topology.online == host.topology.present {
            assert!(before[at] <= sum, "{irq:?} before {}", before[at]);
        }
        assert!(sum <= after[at], "{irq:?} after {}", after[at]);
        let online: BTreeSet<CpuId> = host.topology.online.iter().collect();
        assert!(irq.counts.keys().all(|cpu| online.contains(cpu)), "{irq:?}");
        let (Some(affinity), Some(effective)) = (&irq.affinity, &irq.effective_affinity) else {
            continue;
        };
        assert!(!affinity.is_empty() && effective.is_subset(affinity), "{irq:?}");
    }
    let total: u64 = host.irqs.iter().flat_map(|irq| irq.counts.values()).sum();
    assert!(total > 0, "no interrupt was counted on a running machine");
}

#[test]
fn softirqs_add_up_to_the_kernels_sums() {
    let before = stat("softirq ");
    let host = host(&Wanted::default());
    let after = stat("softirq ");
    for (i, vector) in host.softirqs.iter().enumerate() {
        let sum: u64 = vector.counts.values().sum();
        assert!((before[i + 1]..=after[i + 1]).contains(&sum), "{vector:?}");
    }
    assert!(host.softirqs.iter().any(|vector| vector.vector == "NET_RX"));
}

#[test]
fn cpu_times_add_up() {
    let before = stat("cpu ");
    let host = host(&Wanted::default());
    let after = stat("cpu ");
    let cpus: BTreeSet<CpuId> = host.cpu_time.iter().map(|cpu| cpu.cpu).collect();
    assert_eq!(cpus, host.topology.online.iter().collect());
    // Each line is rounded to ticks separately.
    let slack = cpus.len() as u64;
    let sums: [(usize, u64); 4] = [
        (0, host.cpu_time.iter().map(|cpu| cpu.user).sum()),
        (2, host.cpu_time.iter().map(|cpu| cpu.system).sum()),
        (6, host.cpu_time.iter().map(|cpu| cpu.softirq).sum()),
        (7, host.cpu_time.iter().map(|cpu| cpu.steal.unwrap()).sum()),
    ];
    for (column, sum) in sums {
        let range = before[column].saturating_sub(slack)..=after[column] + slack;
        assert!(range.contains(&sum), "column {column}: {sum} is not in {range:?}");
    }
}

#[test]
fn softnet_counts_packets_that_we_send() {
    const PACKETS: u64 = 500;
    let processed = |host: &Host| host.softnet.iter().map(|cpu| cpu.processed).sum::<u64>();
    let (sender, receiver) = match (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"))
    {
        (Ok(sender), Ok(receiver)) => (sender, receiver),
        _ => return skip("no loopback address"),
    };
    let before = host(&Wanted::default());
    for _ in 0..PACKETS {
        sender.send_to(b"nearpath", receiver.local_addr().unwrap()).unwrap();
        receiver.recv(&mut [0; 8]).unwrap();
    }
    let after = host(&Wanted::default());
    let cpus: BTreeSet<CpuId> = after.softnet.iter().map(|cpu| cpu.cpu).collect();
    assert_eq!(cpus, after.topology.online.iter().collect());
    // The columns are of 32 bits and wrap.
    let (before, after) = (processed(&before) as u32, processed(&after) as u32);
    assert!(u64::from(after.wrapping_sub(before)) >= PACKETS, "{before} then {after}");
}

#[test]
fn sysctls_are_those_of_sysctl() {
    if !require_program("sysctl") {
        return;
    }
    let host = host(&Wanted::default());
    // Those that moved to debugfs keep their name, which sysctl does not know.
    let in_proc = |name: &&String| Path::new("/proc/sys").join(name.replace('.', "/")).exists();
    let names: Vec<&String> = host.sysctls.keys().filter(in_proc).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert_eq!(output("sysctl", &["-n", name]).trim(), host.sysctls[name], "{name}");
    }
    for unknown in host.unknown.iter().filter(|unknown| unknown.subject == "sysctl") {
        assert!(!host.sysctls.contains_key(&unknown.fact), "{unknown:?}");
    }
}

#[test]
fn daemons_are_those_of_pgrep() {
    if !require_program("pgrep") {
        return;
    }
    let daemons = host(&Wanted::default()).daemons;
    for (name, runs) in [("irqbalance", daemons.irqbalance), ("tuned", daemons.tuned)] {
        let seen = !output("pgrep", &["-x", name]).is_empty();
        assert!(runs == Some(seen) || (runs.is_none() && !seen), "{name}: {runs:?}, pgrep {seen}");
    }
}

/// In a separate namespace, so that there are no other sockets.
#[test]
fn sockets_are_those_of_ss() {
    if !require_netns() || !require_program("ss") {
        return;
    }
    let (host, ss) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a network namespace shares no memory or descriptor tables.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            assert!(
                Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success()
            );
            let _tcp: Vec<_> = ["127.0.0.1:8080", "0.0.0.0:8081", "127.0.0.2:8080"]
                .map(|address| TcpListener::bind(address).unwrap())
                .into();
            let _udp = UdpSocket::bind("127.0.0.1:5353").unwrap();
            // A connected socket, which receives from one peer only.
            let connected = UdpSocket::bind("127.0.0.1:5354").unwrap();
            connected.connect("127.0.0.1:5353").unwrap();
            // A kernel without IPv6 has none of these.
            let _v6 = (TcpListener::bind("[::1]:8080"), UdpSocket::bind("[::1]:5353"));
            (host(&Wanted { sockets: true, ..Wanted::default() }), output("ss", &["-Hantup"]))
        });
        thread.join().unwrap()
    });
    let sockets = host.sockets.iter();
    let ours: BTreeSet<_> =
        sockets.map(|s| ((s.protocol, s.address, s.port, s.pids.clone()), s.connected)).collect();
    let theirs = ss.lines().map(|line| (ss_socket(line), line.contains(" ESTAB "))).collect();
    assert_eq!(ours, theirs, "{ss}");
    assert!(ours.len() >= 5);
    assert!(ours.iter().all(|((.., pids), _)| pids == &[std::process::id()]), "{ours:?}");
}

/// `tcp LISTEN 0 128 127.0.0.1:8080 0.0.0.0:* users:(("name",pid=7,fd=3))`.
fn ss_socket(line: &str) -> (SocketProtocol, IpAddr, u16, Vec<u32>) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let protocol = match words[0] {
        "tcp" => SocketProtocol::Tcp,
        _ => SocketProtocol::Udp,
    };
    let (address, port) = words[4].rsplit_once(':').unwrap();
    let address = address.trim_matches(['[', ']']).parse().unwrap();
    let pids = words.get(6).into_iter().flat_map(|users| users.split("pid=").skip(1));
    let pids = pids.map(|pid| pid.split(',').next().unwrap().parse().unwrap());
    (protocol, address, port.parse().unwrap(), pids.collect())
}

#[test]
fn the_owner_has_the_affinity_of_each_thread() {
    let Ok(listener) = TcpListener::bind("127.0.0.1:0") else {
        return skip("no loopback address");
    };
    let port = listener.local_addr().unwrap().port();
    let (tid, cpu, host) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..Affinity::MAX_CPU).rfind(|&cpu| allowed.is_set(cpu)).unwrap();
            let mut one = Affinity::new();
            one.set(cpu);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            let wanted = Wanted { sockets: true, ..Wanted::default() };
            (rustix::thread::gettid().as_raw_nonzero().get(), cpu, host(&wanted))
        });
        thread.join().unwrap()
    });
    let ours = std::process::id();
    let socket = host.sockets.iter().find(|socket| socket.port == port).unwrap();
    // Another test may be starting a program: its child has our descriptors until exec.
    assert!(socket.pids.contains(&ours), "{:?}", socket.pids);
    let owner = host.owners.iter().find(|owner| owner.pid == ours).unwrap();
    assert_eq!(owner.threads[&tid.unsigned_abs()].to_string(), cpu.to_string());
    assert_eq!(owner.threads.get(&ours), owner.affinity.as_ref());
    assert_eq!(format!("{}\n", owner.comm), fs::read_to_string("/proc/self/comm").unwrap());
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let cgroup = owner.cgroup.as_deref().unwrap();
    assert!(cgroups.lines().any(|line| line.ends_with(&format!(":{cgroup}"))), "{cgroup}");
}

#[test]
fn memory_by_node_adds_up_to_the_resident_set() {
    if !Path::new("/proc/self/numa_maps").exists() {
        return skip("the kernel has no NUMA");
    }
    const BYTES: usize = 64 << 20;
    // Counted from the page tables, like numa_maps; VmRSS is only approximate.
    let resident = || {
        let sums = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = sums.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
    };
    let block = std::hint::black_box(vec![1u8; BYTES]);
    let host = host(&Wanted { memory_of: vec![std::process::id()], ..Wanted::default() });
    let memory = &host.process_memory[0];
    let (bytes, resident) = (memory.bytes.values().sum::<u64>(), resident());
    drop(block);
    assert!(bytes >= BYTES as u64, "{memory:?}");
    // Other tests of this process allocate memory in the meantime.
    assert!(bytes.abs_diff(resident) < 32 << 20, "{bytes} by node, {resident} resident");
    assert!(memory.file_bytes.values().sum::<u64>() < bytes);
    let nodes: BTreeSet<_> = host.topology.nodes.iter().map(|node| node.node).collect();
    assert!(memory.bytes.keys().all(|node| nodes.contains(node)), "{memory:?}");
}

#[test]
fn a_missing_process_is_noted() {
    let host = host(&Wanted { memory_of: vec![u32::MAX], ..Wanted::default() });
    assert!(host.process_memory.is_empty());
    let note = host.unknown.iter().find(|unknown| unknown.fact == "memory").unwrap();
    assert_eq!(note.reason, "/proc/4294967295/numa_maps: not found");
}

#[test]
fn a_snapshot_has_the_same_facts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.tar.zst");
    let _listener = TcpListener::bind("127.0.0.1:0");
    let wanted = Wanted { sockets: true, memory_of: vec![std::process::id()] };
    let root = Root::live().recording();
    let live = nearpath_host::read(&root, &wanted).unwrap();
    root.save(&file).unwrap();
    let saved = nearpath_host::read(&Root::snapshot(&file).unwrap(), &wanted).unwrap();
    assert_eq!(saved.irqs, live.irqs);
    assert_eq!(saved.arch_irqs, live.arch_irqs);
    assert_eq!(saved.softirqs, live.softirqs);
    assert_eq!(saved.softnet, live.softnet);
    assert_eq!(saved.cpu_time, live.cpu_time);
    assert_eq!(saved.sysctls, live.sysctls);
    assert_eq!(saved.daemons, live.daemons);
    assert_eq!(saved.sockets, live.sockets);
    assert_eq!(saved.owners, live.owners);
    assert_eq!(saved.process_memory, live.process_memory);
    assert_eq!(saved.unknown, live.unknown);
}
