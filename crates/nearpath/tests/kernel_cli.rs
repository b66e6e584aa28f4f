//! The real binary on this kernel: what it measures between two test namespaces, how it ends, and what it reports
//! where it may not or cannot measure.

use nearpath_instruments::stages::STAGES;
use nearpath_model::Measurement;
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{PATIENCE, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");
/// User and group `nobody` by convention; it only matters that it is not root.
const NOBODY: u32 = 65534;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(NEARPATH);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn nearpath(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// The message at the start of a measurement.
const BEGUN: &str = "nearpath: measuring for 500ms; Ctrl-C stops early\n";

/// Exit status, standard output, standard error.
fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The JSON document that a command printed; asserts that there is nothing else, and exit status 0.
fn document(output: &Output) -> Value {
    let (code, out, err) = parts(output);
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// Asserts that a command printed exactly one line, on standard error, with exit status 1.
fn refused(output: &Output, says: &str) {
    let (code, out, err) = parts(output);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.starts_with("nearpath: ") && err.contains(says), "{err}");
}

/// The namespace of a side as a path that any root process can open.
fn netns_path(pair: &VethPair, side: Side) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), pair.netns(side).as_raw_fd())
}

/// Calls `run` with the server's port while a client sends datagrams and a server answers each.
fn with_traffic<T>(pair: &VethPair, run: impl FnOnce(u16) -> T) -> T {
    let server = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let address = server.local_addr().unwrap();
    let client = pair.run(Side::Client, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    client.connect(address).unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    }
    /// Ends the traffic even if `run` fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while !over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = server.recv_from(&mut buffer) {
                    server.send_to(&buffer[..length], from).unwrap();
                }
            }
        });
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while !over.load(Ordering::Relaxed) {
                client.send(b"ping").unwrap();
                // Do not wait twice for one that was lost at the end.
                let _ = client.recv(&mut buffer);
            }
        });
        let _over = Over(&over);
        run(address.port())
    })
}

/// Ids of the BPF programs that a process holds, from its file descriptors.
fn programs_of(child: &Child) -> BTreeSet<u32> {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fdinfo", child.id())) else {
        return BTreeSet::new();
    };
    let infos = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    let id =
        |info: String| info.lines().find_map(|l| l.strip_prefix("prog_id:")?.trim().parse().ok());
    infos.filter_map(id).collect()
}

/// Waits until a measurement has loaded its programs, and returns their ids.
fn wait_for_programs(child: &mut Child) -> BTreeSet<u32> {
    wait_for("programs", || {
        assert!(child.try_wait().unwrap().is_none(), "it exited early");
        // More than the feature probes of loading, which are freed immediately.
        Some(programs_of(child)).filter(|programs| programs.len() > 10)
    })
}

/// Waits until the kernel has freed these programs, which takes an RCU grace period.
fn wait_until_gone(programs: &BTreeSet<u32>) {
    wait_for("the programs to be freed", || {
        let mut all = libbpf_rs::query::ProgInfoIter::default();
        (!all.any(|program| programs.contains(&program.id))).then_some(())
    });
}

#[test]
fn groups_are_limited_and_add_up() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let common = [
        "measure",
        "stages",
        "--for",
        "500ms",
        "--netns",
        &netns,
        "--proto",
        "udp",
        "--max-overhead",
        "none",
    ];
    let run = |args: &[&str]| with_traffic(&pair, |_| nearpath(&[&common, args].concat()));
    // One flow in each direction.
    let m = document(&run(&["--per", "flow", "--top", "1", "--sort", "p99", "--json"]));
    let groups = m["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2, "{m}");
    assert!(groups.iter().all(|group| group["per"] == "flow"), "{m}");
    assert!(groups[0]["name"].as_str().unwrap().starts_with("UDP 10.99.0."), "{m}");
    assert_eq!(groups[1]["name"], "others");
    let packets: u64 = groups.iter().map(|group| group["packets"].as_u64().unwrap()).sum();
    assert_eq!(packets, m["packets"]["started"]);
    assert!(!groups[0]["spans"].as_array().unwrap().is_empty());

    // Both ends are threads of this process.
    let (code, out, err) = parts(&run(&["--per", "process"]));
    assert_eq!((code, err.as_str()), (Some(0), BEGUN));
    assert!(out.contains("\nby process\nGROUP "), "{out}");
    assert!(out.contains(&format!("/{}, receive path\n", std::process::id())), "{out}");
    assert!(out.contains(&format!("/{}, transmit path\n", std::process::id())), "{out}");
}

#[test]
fn measure_stages_has_the_documented_fields() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let args = ["measure", "stages", "--for", "1s", "--netns", &netns, "--proto", "udp", "--json"];
    let args = [&args[..], &["--detail", "full"]].concat();
    // Without a packet in the window in which the programs are timed (a fifth), their overhead is unknown.
    let m = with_traffic(&pair, |_| {
        wait_for("a packet while the programs were timed", || {
            let m = document(&nearpath(&args));
            (!m["cost"].is_null()).then_some(m)
        })
    });
    assert_eq!(m["schema"], 1);
    assert!(m["duration_s"].as_f64().is_some_and(|s| (1.0..PATIENCE.as_secs_f64()).contains(&s)));
    assert!(m["filter"].as_str().unwrap().contains("--proto udp"));
    assert!(m["packets"]["started"].as_u64().unwrap() > 0 && m["events_lost"].is_u64(), "{m}");
    for count in ["completed", "abandoned", "collided", "sampled_out"] {
        assert!(m["packets"][count].is_u64(), "{count}");
    }
    let cost = &m["cost"];
    assert!(cost["ns_per_packet"].as_f64().unwrap() > 0.0, "{cost}");
    assert!(cost["cpu_percent"].as_f64().unwrap() > 0.0, "{cost}");
    let spans = m["spans"].as_array().unwrap();
    let text = |span: &Value, field: &str| span[field].as_str().unwrap().to_owned();
    for direction in ["rx", "tx"] {
        let of = spans.iter().filter(|span| span["direction"] == direction);
        assert!(of.clone().count() > 1, "{direction}: {m}");
        let known = |name: &String| STAGES.iter().any(|stage| stage.name == name);
        assert!(of.clone().all(|s| known(&text(s, "from")) && known(&text(s, "to"))));
    }
    for span in spans {
        let (min, max) = (span["min_ns"].as_u64().unwrap(), span["max_ns"].as_u64().unwrap());
        assert!(min <= max && span["count"].as_u64().unwrap() > 0, "{span}");
        for field in ["p50_ns", "p90_ns", "p99_ns", "p999_ns"] {
            let value = span.get(field).expect(field);
            assert!(value.is_null() || value.as_u64().is_some_and(|ns| ns <= max), "{span}");
        }
        for field in ["other_cpu", "other_llc", "other_node"] {
            let value = span.get(field).expect(field);
            assert!(value.is_null() || value.as_f64().is_some_and(|s| (0.0..=1.0).contains(&s)));
        }
        let counts = span["buckets"].as_array().unwrap().iter().map(|b| b[1].as_u64().unwrap());
        assert_eq!(counts.sum::<u64>(), span["count"].as_u64().unwrap(), "{span}");
    }
    // The document round-trips through the type without loss.
    let typed: Measurement = serde_json::from_value(m.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), m);
}

#[test]
fn filters_select_packets() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let netns = netns_path(&pair, Side::Server);
    with_traffic(&pair, |port| {
        let started = |filter: &[&str]| {
            let args = ["measure", "stages", "--for", "300ms", "--netns", &netns, "--json"];
            let m = document(&nearpath(&[&args, filter].concat()));
            assert_eq!(m["spans"].as_array().unwrap().is_empty(), m["packets"]["started"] == 0);
            m["packets"]["started"].as_u64().unwrap()
        };
        let port = port.to_string();
        assert!(started(&["--dev", "np1"]) > 0);
        assert!(started(&["--proto", "udp", "--dport", &port, "--direction", "rx"]) > 0);
        assert!(started(&["--src", "10.99.0.1"]) > 0);
        assert_eq!(started(&["--proto", "tcp"]), 0);
        assert_eq!(started(&["--port", "1"]), 0);
        assert_eq!(started(&["--dev", "lo"]), 0);
        assert_eq!(started(&["--host", "fd99::/64", "--proto", "udp"]), 0);
    });
    let other = ["measure", "stages", "--netns", &netns, "--dev", "np0"];
    refused(&nearpath(&other), "it has: lo, np1");
}

#[test]
fn the_detail_selects_what_is_observed() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let common = ["measure", "stages", "--for", "500ms", "--netns", &netns, "--json"];
    let observed = |args: &[&str]| {
        let m = document(&with_traffic(&pair, |_| nearpath(&[&common, args].concat())));
        let names = m["stages"].as_array().unwrap().iter();
        (m["detail"].clone(), names.map(|n| n.as_str().unwrap().to_owned()).collect::<Vec<_>>())
    };
    let (detail, coarse) = observed(&[]);
    assert_eq!(detail, "coarse");
    assert!(coarse.iter().any(|name| name == "netif_receive_skb"), "{coarse:?}");
    let (detail, full) = observed(&["--detail", "full"]);
    assert_eq!(detail, "full");
    assert!(full.len() > coarse.len() && coarse.iter().all(|name| full.contains(name)), "{full:?}");
    // Slow packets are explained with any detail, if requested.
    let (_, explained) = observed(&["--slow", "1ms"]);
    assert!(explained.iter().any(|name| name == "net_rx_entry"), "{explained:?}");
    let (detail, chosen) = observed(&["--stages", "net_dev_queue,net_dev_start_xmit"]);
    assert_eq!(
        (detail, chosen),
        (Value::Null, ["net_dev_queue", "net_dev_start_xmit"].map(String::from).to_vec())
    );
    let (code, out, err) =
        parts(&nearpath(&["measure", "stages", "--detail", "path", "--stages", "netif_rx"]));
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
}

#[test]
fn the_overhead_is_limited_by_default() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let common = ["measure", "stages", "--for", "2s", "--netns", &netns, "--proto", "udp"];
    let run = |args: &[&str]| with_traffic(&pair, |_| nearpath(&[&common, args].concat()));
    let m = document(&run(&["--max-overhead", "0.5%", "--detail", "full", "--json"]));
    assert_eq!(m["limit_percent"], 0.5);
    let observed = m["observed_s"].as_f64().unwrap();
    assert!(observed > 0.0 && observed < m["duration_s"].as_f64().unwrap(), "{observed}");
    let (_, out, _) = parts(&run(&["--max-overhead", "0.5%", "--detail", "full"]));
    assert!(out.contains("limited to 0.50% of a CPU"), "{out}");
    let all = document(&run(&["--max-overhead", "none", "--json"]));
    assert!(all["observed_s"].is_null() && all["limit_percent"].is_null(), "{all}");
    for bad in ["0%", "2", "two", "101%"] {
        let (code, out, err) = parts(&nearpath(&["measure", "stages", "--max-overhead", bad]));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    }
}

#[test]
fn an_excluded_stage_is_reported() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let args = ["measure", "stages", "--for", "500ms", "--netns", &netns];
    let args = [&args[..], &["--detail", "full", "--without", "sock_send,qdisc_enqueue"]].concat();
    // On some virtual machines a CPU's tracepoints are silent now and then (docs/measuring.md).
    let out = with_traffic(&pair, |_| {
        wait_for("a packet", || {
            let (code, out, err) = parts(&nearpath(&args));
            assert_eq!((code, err.as_str()), (Some(0), BEGUN));
            (!out.contains(" 0 started")).then_some(out)
        })
    });
    assert!(out.contains("\nnetif_rx ") && out.contains("  Latency distribution:"), "{out}");
    let (measured, not_observable) = out.split_once("not observable:").unwrap();
    assert!(!measured.contains("sock_send") && !measured.contains("qdisc_enqueue"), "{out}");
    assert!(not_observable.contains("TX sock_send, TX qdisc_enqueue: left out with --without"));
    let unknown = nearpath(&["diagnose", "--without", "sock_sent"]);
    let (code, out, err) = parts(&unknown);
    assert_eq!((code, out.as_str(), err.lines().count()), (Some(2), "", 1), "{err}");
    assert!(err.contains("sock_sent") && err.contains("netif_receive_skb, netif_rx"), "{err}");
}

#[test]
fn with_a_duty_cycle_the_observed_time_is_reported() {
    if !nearpath_testing::require_lengthy()
        || !nearpath_testing::require_bpf()
        || !nearpath_testing::require_netns()
    {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let args = ["measure", "stages", "--for", "1s", "--interval", "250ms", "--json"];
    let args = [args.as_slice(), &["--netns", &netns, "--duty", "1/4"]].concat();
    let output = with_traffic(&pair, |_| nearpath(&args));
    let (_, out, _) = parts(&output);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (whole, intervals) = lines.split_last().unwrap();
    let [observed, all] = ["observed_s", "duration_s"].map(|time| whole[time].as_f64().unwrap());
    assert!(observed > 0.0 && observed < 0.9 * all, "{observed} of {all}");
    let started: Vec<_> =
        intervals.iter().filter_map(|i| i["packets"]["started"].as_u64()).collect();
    assert_eq!(started.iter().sum::<u64>(), whole["packets"]["started"]);
    // It continued after the first pause.
    assert!(started.iter().filter(|&&packets| packets > 0).count() > 1, "{started:?}");
    for bad in ["1/0", "2/3", "much"] {
        let (code, out, err) = parts(&nearpath(&["measure", "stages", "--duty", bad]));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains("--duty") && err.contains("1/16"), "{err}");
    }
}

#[test]
fn an_interrupt_stops_early_and_keeps_the_results() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let args = ["measure", "stages", "--for", "1h", "--netns", &netns, "--json"];
    let begin = Instant::now();
    let output = with_traffic(&pair, |_| {
        let mut child = command(&args).spawn().unwrap();
        let programs = wait_for_programs(&mut child);
        let pid = libc::pid_t::try_from(child.id()).unwrap();
        // SAFETY: a child of this process that has not been reaped.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
        let output = child.wait_with_output().unwrap();
        wait_until_gone(&programs);
        output
    });
    let m = document(&output);
    assert!(m["duration_s"].as_f64().unwrap() <= begin.elapsed().as_secs_f64());
    assert!(m["spans"].is_array(), "{m}");
    let (_, _, err) = parts(&output);
    let begun = "nearpath: measuring for 1h; Ctrl-C stops early\n";
    assert_eq!(err, format!("{begun}nearpath: stopped early by a signal\n"));
}

#[test]
fn nothing_is_left_after_kill_9() {
    if !nearpath_testing::require_lengthy() || !nearpath_testing::require_bpf() {
        return;
    }
    let mut child = command(&["measure", "stages", "--for", "1h"]).spawn().unwrap();
    let programs = wait_for_programs(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(&programs);
}

#[test]
fn without_privilege_only_facts_are_diagnosed() {
    if !nearpath_testing::require_root() {
        return;
    }
    // Other users may not have access to the build directory.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("nearpath");
    fs::copy(NEARPATH, &binary).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(args).current_dir("/").stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
        command.output().unwrap()
    };
    refused(&as_nobody(&["measure", "stages", "--for", "100ms"]), "needs root");
    let output = as_nobody(&["diagnose", "--for", "100ms", "--json"]);
    let diagnosis = document(&output);
    assert!(diagnosis["findings"].is_array() && diagnosis["host"]["online_cpus"].is_u64());
    assert!(diagnosis["measurement"].is_null());
    let unchecked = diagnosis["not_checked"].as_array().unwrap();
    let measurement = unchecked.iter().find(|item| item["check"] == "measurement").unwrap();
    let reason = measurement["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("packets were not measured: measuring packets needs root"),
        "{reason}"
    );
    let err = parts(&output).2;
    let said: Vec<_> = err.lines().collect();
    assert!(matches!(said[..], [why, _] if why.ends_with("kernel counters only")), "{err}");
    assert!(diagnosis["tcp"]["connections"].is_array(), "sockets need no privilege");
}

#[test]
fn a_kernel_without_btf_is_one_line() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (missing, garbage) = (dir.path().join("missing"), dir.path().join("garbage"));
    fs::write(&garbage, b"no BTF at all").unwrap();
    for file in [&missing, &garbage] {
        let file = file.to_str().unwrap();
        for args in [&["--for", "100ms"][..], &["--list-stages"], &["--list-stages", "--json"]] {
            let args = [&["measure", "stages", "--btf", file], args].concat();
            refused(&nearpath(&args), file);
        }
    }
}

#[test]
fn every_stage_is_listed_with_its_hook_or_the_reason_for_none() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    let listing = document(&nearpath(&["measure", "stages", "--list-stages", "--json"]));
    assert_eq!(listing["schema"], 1);
    let stages = listing["stages"].as_array().unwrap();
    let names: Vec<&str> = stages.iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(names, STAGES.iter().map(|stage| stage.name).collect::<Vec<_>>());
    let guests = listing["into_guests"].as_array().unwrap();
    assert!(guests.iter().any(|step| step["stage"] == "apic_accept_irq"), "{listing}");
    for stage in stages.iter().chain(guests) {
        assert!(stage["attach"].is_string() != stage["reason"].is_string(), "{stage}");
    }
    let (_, out, _) = parts(&nearpath(&["measure", "stages", "--list-stages"]));
    let (stages, guests_out) = out.split_once("\n\n").unwrap();
    assert_eq!(stages.lines().count(), names.len() + 1, "{out}");
    assert_eq!(guests_out.lines().count(), guests.len() + 2, "{out}");
}

#[test]
fn only_interfaces_of_the_namespace_are_shown() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let there = pair.run(Side::Server, |_| Command::new("ip").args(["-j", "link"]).output());
    let there: Value = serde_json::from_slice(&there.unwrap().stdout).unwrap();
    let names = |list: &Value, key: &str| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|l| l[key].as_str().unwrap().to_owned()).collect()
    };
    let netns = netns_path(&pair, Side::Server);
    let shown = document(&nearpath(&["show", "all", "--json", "--netns", &netns]));
    assert_eq!(names(&shown["nics"], "name"), names(&there, "ifname"));
    assert!(names(&shown["nics"], "name").contains("np1"));
    let (_, out, _) = parts(&nearpath(&["show", "nics", "--netns", &netns]));
    assert!(out.contains("\nnp1 ") && !out.contains("np0"), "{out}");
}

/// A burst that is over when the closer measurement starts must not be lost to the checks.
#[test]
fn packets_of_the_first_measurement_alone_are_diagnosed() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    const SENT: u64 = 300;
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    pair.write(Side::Server, "queues/rx-0/rps_cpus", "1").unwrap();
    let server = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let client = pair.run(Side::Client, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let netns = netns_path(&pair, Side::Server);
    let filter = ["--netns", &netns, "--proto", "udp", "--dport", &port, "--direction", "rx"];
    let how = ["--measure", "stages", "--max-overhead", "none", "--json"];
    // The first measurement takes one second of it.
    let args = [&["diagnose", "--for", "4s"][..], &filter, &how].concat();
    let mut child = command(&args).spawn().unwrap();
    let mut said = [0; 16];
    child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    let mut buffer = [0; 64];
    for _ in 0..SENT {
        client.send(b"ping").unwrap();
        server.recv(&mut buffer).unwrap();
    }
    let diagnosis = document(&child.wait_with_output().unwrap());
    let measured = &diagnosis["measurement"];
    assert_eq!(measured["packets"]["started"], SENT, "{measured}");
    assert_eq!(diagnosis["other_look"]["packets"]["started"], 0, "{}", diagnosis["other_look"]);
    // RPS is set, so the stages before it chooses a CPU are observed from the start.
    let observed = |name: &str| measured["stages"].as_array().unwrap().iter().any(|s| s == name);
    assert!(observed("netif_rx") && !observed("udp_rcv"), "{}", measured["stages"]);
    let unchecked = diagnosis["not_checked"].as_array().unwrap();
    assert!(unchecked.iter().all(|note| note["check"] != "rps_placement"), "{unchecked:?}");
}

#[test]
fn a_namespace_is_diagnosed_with_its_packets() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let netns = netns_path(&pair, Side::Server);
    let args = ["diagnose", "--for", "1s", "--netns", &netns, "--json"];
    // If a busy machine lets hardly any packet through in the first measurement, all stages follow.
    let diagnosis = with_traffic(&pair, |_| {
        wait_for("a first measurement with enough packets", || {
            let diagnosis = document(&nearpath(&args));
            diagnosis["measurement"]["detail"].is_null().then_some(diagnosis)
        })
    });
    let measured = &diagnosis["measurement"];
    assert!(measured["packets"]["started"].as_u64().unwrap() > 0);
    // After the coarse measurement it observed the stages where time is lost, and where packets are steered.
    let observed = |name: &str| measured["stages"].as_array().unwrap().iter().any(|s| s == name);
    assert!(observed("netif_rx") && observed("netif_receive_skb"), "{}", measured["stages"]);
    assert!(measured["detail"].is_null() && !observed("sock_send"), "{measured}");
    let nics = diagnosis["host"]["nics"].as_array().unwrap();
    assert!(nics.iter().any(|nic| nic.as_str().unwrap().starts_with("np1 ")), "{nics:?}");
    for finding in diagnosis["findings"].as_array().unwrap() {
        for field in ["check", "severity", "title", "evidence", "cost", "changes"] {
            assert!(finding.get(field).is_some(), "{field}: {finding}");
        }
    }
}
