//! `nearpath measure workers`, `show workers` and the checks of workers on this kernel, with DPDK's testpmd and with
//! Open vSwitch's simulated PMD threads. The judge of how long a task ran is its own `/proc/PID/schedstat`.
//!
//! Each scene has its own /run and its own process numbers, so that it meets nobody else's sockets, and ends with its
//! first process.

use serde_json::Value;
use std::process::Command;

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");

/// Runs a script in a scene of its own; its output.
fn scene(script: &str) -> String {
    let prelude = "mount -t tmpfs tmpfs /run && cd /run || exit 9\n";
    let output = Command::new("timeout")
        .args(["90", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", &format!("{prelude}{script}")])
        .env("NEARPATH", NEARPATH)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{text}\n{errors}", output.status);
    text
}

/// Waits until a command succeeds, for half a minute at most.
const UNTIL: &str = r#"
until_ok() { n=0; until "$@" >/dev/null 2>&1; do n=$((n+1)); [ $n -lt 300 ] || exit 8; sleep 0.1; done; }
"#;

/// testpmd with two null ports: the main lcore on CPU 0, a worker on CPU 1.
const TESTPMD: &str = r#"
mkfifo commands
stdbuf -oL dpdk-testpmd --lcores 0@0,1@1 --no-huge -m 256 --no-pci --vdev=net_null0 --vdev=net_null1 $EAL -- \
    --total-num-mbufs=4096 --auto-start -i < commands > testpmd.txt 2>&1 &
exec 3> commands
PMD=$!
until_ok grep -q 'io packet forwarding' testpmd.txt
"#;

/// A task that is pinned to the worker's CPU, before all others.
const DISTURBER: &str = r#"
cp /usr/bin/yes np-disturber
nice -n -15 taskset -c 1 ./np-disturber > /dev/null &
D=$!
until_ok test -r /proc/$D/schedstat
"#;

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|count| count.get() >= 2)
}

fn skips(program: &str) -> bool {
    !(nearpath_testing::require_root()
        && nearpath_testing::require_program(program)
        && nearpath_testing::require_program("unshare")
        && has_two_cpus())
}

fn document<'a>(text: &'a str, mark: &str) -> &'a str {
    let start = text.find(mark).unwrap_or_else(|| panic!("no {mark} in {text}")) + mark.len();
    let rest = &text[start..];
    rest.split("\n== ").next().unwrap().trim()
}

fn json(text: &str, mark: &str) -> Value {
    serde_json::from_str(document(text, mark)).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn worker(workers: &Value, lcore: u64) -> &Value {
    let all = workers["processes"][0]["workers"].as_array().unwrap();
    all.iter().find(|worker| worker["lcore"] == lcore).unwrap()
}

#[test]
fn the_task_on_a_workers_cpu_is_named() {
    if skips("dpdk-testpmd") || !nearpath_testing::require_bpf() {
        return;
    }
    // Names of threads alone, without a socket, are enough to be found and measured.
    for eal in ["--file-prefix np", "--no-telemetry"] {
        let script = format!(
            "{UNTIL}EAL='{eal}'\n{TESTPMD}{DISTURBER}
            echo '== begin'; date +%s%N; echo '== before'; cat /proc/$D/schedstat
            echo '== json'; $NEARPATH measure workers --for 2s --json || exit 1
            echo '== after'; cat /proc/$D/schedstat; echo '== end'; date +%s%N; echo == pid; echo $D
            echo '== text'; $NEARPATH measure workers --for 1s || exit 1
            echo '== show'; $NEARPATH show workers --interval 500ms || exit 1
            kill $D; wait $D 2>/dev/null
            echo quit >&3; wait $PMD"
        );
        let text = scene(&script);
        let measured = json(&text, "== json\n");
        let cpu = measured["cpus"].as_array().unwrap().iter().find(|cpu| cpu["cpu"] == 1).unwrap();
        let tasks = cpu["tasks"].as_array().unwrap();
        let pid: u64 = document(&text, "== pid\n").parse().unwrap();
        let task = tasks.iter().find(|task| task["tid"] == pid).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((&task["comm"], &task["pid"]), (&"np-disturber".into(), &pid.into()));
        let ran = |mark: &str| {
            let first = document(&text, mark).split(' ').next().unwrap();
            first.parse::<f64>().unwrap()
        };
        // Its own count begins before the measurement and ends after it, and loading takes long if others run as well:
        // what was not seen is no more than the time outside.
        let own = ran("== after\n") - ran("== before\n");
        let seen = task["ran_ns"].as_f64().unwrap();
        let duration = measured["duration_s"].as_f64().unwrap();
        assert!(seen <= own * 1.02, "seen {seen}, own {own}");
        let outside = ran("== end\n") - ran("== begin\n") - duration * 1e9;
        assert!(own - seen <= outside + 2e7, "seen {seen}, own {own}, outside {outside}");
        assert!(seen >= duration * 1e7, "seen {seen}, own {own}");
        let activity = &worker(&measured, 1)["interval"];
        assert_eq!(activity["is_disturbed"], true, "{activity}");
        let others = activity["others_percent"].as_f64().unwrap();
        assert!(others >= seen / duration / 1e7 - 0.1, "{activity}");
        assert!(activity["involuntary_switches_per_s"].as_f64().unwrap() > 1.0, "{activity}");
        assert!(cpu["timer_ticks_per_s"].as_f64().unwrap() > 1.0, "{cpu}");
        // Others load this machine as well, so that another one may come first.
        let said = document(&text, "== text\n");
        let first = said.lines().next().unwrap();
        assert!(first.contains("lcore 1 (CPU 1) lost") && first.contains(" ran "), "{first}");
        assert!(said.contains("np-disturber["), "{said}");
        let shown = document(&text, "== show\n");
        assert!(shown.contains("WHO-ELSE-RAN"), "{shown}");
        if eal.contains("np") {
            let port = &measured["processes"][0]["ports"][0]["interval"];
            assert!(port["rx_packets_per_s"].as_f64().unwrap() > 1000.0, "{port}");
            assert_eq!(port["imissed_per_s"], 0.0);
        }
    }
}

#[test]
fn diagnose_names_the_disturber_and_what_is_not_isolated() {
    if skips("dpdk-testpmd") || !nearpath_testing::require_bpf() {
        return;
    }
    let script = format!(
        "{UNTIL}EAL='--file-prefix np'\n{TESTPMD}{DISTURBER}
        echo '== json'; $NEARPATH diagnose --measure workers --for 2s --json || exit 1
        kill $D; wait $D 2>/dev/null
        echo quit >&3; wait $PMD"
    );
    let diagnosis = json(&scene(&script), "== json\n");
    let findings = diagnosis["findings"].as_array().unwrap();
    let of = |check: &str| findings.iter().filter(|f| f["check"] == check).collect::<Vec<_>>();
    let [disturbed] = of("worker_disturbed")[..] else { panic!("{findings:?}") };
    let title = disturbed["title"].as_str().unwrap();
    assert!(title.contains("lcore 1 lost"), "{title}");
    assert!(disturbed["evidence"].to_string().contains("np-disturber["), "{disturbed}");
    // That its CPU is not isolated is why.
    let symptoms = disturbed["symptoms"].as_array().unwrap();
    assert!(symptoms.iter().any(|f| f["check"] == "worker_isolation"), "{findings:?}");
    assert!(of("worker_missed").is_empty() && of("worker_floating").is_empty(), "{findings:?}");
}

/// Its telemetry socket and its directory remain.
#[test]
fn a_killed_process_is_gone() {
    if skips("dpdk-testpmd") {
        return;
    }
    let script = format!(
        "{UNTIL}EAL='--file-prefix np'\n{TESTPMD}
        echo '== before'; $NEARPATH show workers --json || exit 1
        kill -9 $PMD; wait $PMD 2>/dev/null
        test -S dpdk/np/dpdk_telemetry.v2 || exit 7
        echo '== after'; $NEARPATH show workers --json || exit 1
        echo '== text'; $NEARPATH show workers || exit 1"
    );
    let text = scene(&script);
    let [before, after] = ["== before\n", "== after\n"].map(|mark| json(&text, mark));
    assert_eq!(before["processes"].as_array().unwrap().len(), 1, "{before}");
    assert_eq!(after["processes"], serde_json::json!([]), "{after}");
    assert!(!after["unknown"].to_string().contains("dpdk"), "{after}");
    assert!(document(&text, "== text\n").starts_with("0 workers in 0 processes"), "{text}");
}

/// Open vSwitch's database, for `$V COMMAND`.
const OVS_DATABASE: &str = "
    mkdir openvswitch
    export OVS_RUNDIR=/run/openvswitch OVS_LOGDIR=/run OVS_DBDIR=/run
    ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema || exit 1
    ovsdb-server conf.db --remote=punix:/run/openvswitch/db.sock > db.txt 2>&1 &
    V='timeout 10 ovs-vsctl --no-wait --db=unix:/run/openvswitch/db.sock'
    until_ok $V init";

/// A switch whose packets all pass the kernel has no threads that poll, which is no unknown fact.
#[test]
fn open_vswitch_without_a_datapath_in_user_space_has_no_workers() {
    if skips("ovs-vswitchd") {
        return;
    }
    let script = format!(
        "{UNTIL}{OVS_DATABASE}
        ovs-vswitchd unix:/run/openvswitch/db.sock --disable-system --pidfile > v.txt 2>&1 &
        until_ok ovs-appctl -t ovs-vswitchd version
        echo '== json'; $NEARPATH show workers --json || exit 1
        echo '== check'; $NEARPATH tune check-ovs --json || exit 1"
    );
    let text = scene(&script);
    let workers = json(&text, "== json\n");
    assert_eq!(workers["processes"], serde_json::json!([]), "{workers}");
    assert!(!workers["unknown"].to_string().contains("ovs"), "{workers}");
    let checked = json(&text, "== check\n");
    assert_eq!(
        (&checked["verdict"], &checked["problems"]),
        (&"accepted".into(), &serde_json::json!([]))
    );
}

#[test]
fn open_vswitch_on_the_wrong_node_is_found() {
    if skips("ovs-vswitchd") {
        return;
    }
    let script = format!(
        "{UNTIL}{OVS_DATABASE}
        ovs-vswitchd unix:/run/openvswitch/db.sock --enable-dummy=override --disable-system \\
            --dummy-numa 0,0,0,0,1,1,1,1 --pidfile > v.txt 2>&1 &
        $V add-br br0 -- set bridge br0 datapath_type=dummy
        $V set Open_vSwitch . other_config:pmd-cpu-mask=0x203
        $V add-port br0 p0 -- set interface p0 type=dummy-pmd options:numa_id=1 options:n_rxq=4 \\
            other_config:pmd-rxq-affinity=0:1
        until_ok sh -c 'ovs-appctl -t ovs-vswitchd dpif-netdev/pmd-rxq-show | grep -q \"queue-id:  3\"'
        until_ok sh -c 'ovs-appctl -t ovs-vswitchd dpif-netdev/pmd-rxq-show | grep -q \"isolated : true\"'
        echo '== json'; $NEARPATH measure workers --for 1s --json || exit 1
        echo '== diagnosis'; $NEARPATH diagnose --measure workers --for 500ms --json || exit 1"
    );
    let text = scene(&script);
    let workers = json(&text, "== json\n");
    let process = &workers["processes"][0];
    assert_eq!(process["other_config"]["pmd-cpu-mask"], "0x203", "{process}");
    let port = &process["ports"][0];
    assert_eq!((&port["name"], &port["node"]), (&"p0".into(), &1.into()), "{port}");
    assert_eq!((&port["rx_queues"], &port["rxq_affinity"]), (&4.into(), &"0:1".into()));
    let [free, isolated] = [0, 1].map(|core| worker(&workers, core));
    assert_eq!((&free["is_isolated"], &isolated["is_isolated"]), (&false.into(), &true.into()));
    assert_eq!(isolated["queues"]["p0"], serde_json::json!([0]));
    for pmd in [free, isolated] {
        assert_eq!((&pmd["role"], &pmd["reported_node"]), (&"pmd".into(), &0.into()));
        assert!(pmd["tid"].is_u64() && pmd["counts"]["polls"].as_u64().unwrap() > 0, "{pmd}");
        let empty = pmd["interval"]["empty_poll_percent"].as_f64().unwrap();
        assert!(empty > 99.0, "nothing sends: {pmd}");
    }
    let diagnosis = json(&text, "== diagnosis\n");
    let findings = diagnosis["findings"].as_array().unwrap();
    let count = |check: &str| findings.iter().filter(|f| f["check"] == check).count();
    assert_eq!(count("worker_node"), 1, "both threads: {findings:?}");
    assert_eq!(count("ovs_rxq_affinity"), 1, "{findings:?}");
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(count("ovs_masks"), usize::from(cpus < 10), "{findings:?}");
}
