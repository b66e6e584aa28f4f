//! PMD threads of a real Open vSwitch with imaginary nodes (`--dummy-numa`): a port polled from another node is found,
//! planned, applied and undone, also where a plan was killed at any step.
//!
//! The judge is Open vSwitch: `ovs-appctl dpif-netdev/pmd-rxq-show` and `ovs-vsctl get`.

use nearpath_host::Root;
use nearpath_host::workers::read_switch;
use nearpath_model::{
    Change, Cpu, CpuSet, OVS_UNSET, OvsCheck, OvsKey, OvsSetting, OvsVerdict, PlannedChange, State,
    Target, Topology,
};
use nearpath_testing::wait_for;
use nearpath_tune::dpdk::{check_ovs, plan_ovs};
use nearpath_tune::{Executor, Journal, Live, TuneError, Writer};
use std::path::Path;
use std::process::{Command, Stdio};

/// In the process to be killed: the journal's directory.
const FOLDER: &str = "NEARPATH_TEST_OVS_KILLED_IN";
/// In the process to be killed: the step at which it ends.
const STEP: &str = "NEARPATH_TEST_OVS_KILLED_AT";
/// Where Open vSwitch's programs put their sockets.
const RUN: &str = "/run/openvswitch";

/// An Open vSwitch in a mount namespace of its own, with its files in a directory. It ends with it.
struct Switch {
    _folder: tempfile::TempDir,
}

impl Switch {
    /// Starts it with eight CPUs on two nodes. The calling thread enters the mount namespace.
    fn start() -> Option<Self> {
        let programs = ["ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovsdb-tool", "ovs-appctl"];
        if !nearpath_testing::require_root()
            || !programs.iter().all(|program| nearpath_testing::require_program(program))
        {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: the calling thread alone gets another mount namespace, a copy of its own.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
        assert!(ran("mount", &["--make-rprivate", "/"]));
        assert!(ran("mount", &["-t", "tmpfs", "tmpfs", "/run"]), "a directory for its sockets");
        std::fs::create_dir(RUN).unwrap();
        let database = folder.path().join("conf.db");
        let database = database.to_str().unwrap();
        assert!(ran(
            "ovsdb-tool",
            &["create", database, "/usr/share/openvswitch/vswitch.ovsschema"]
        ));
        let remote = format!("--remote=punix:{RUN}/db.sock");
        assert!(ran(
            "ovsdb-server",
            &[database, &remote, "--pidfile", "--detach", "--log-file=/dev/null"]
        ));
        let its = Self { _folder: folder };
        its.vsctl("--no-wait init");
        its.start_vswitchd();
        Some(its)
    }

    fn start_vswitchd(&self) {
        let nodes = "0,0,0,0,1,1,1,1";
        let words = ["--enable-dummy=override", "--disable-system", "--dummy-numa", nodes];
        let daemon = ["--pidfile", "--detach", "--log-file=/dev/null"];
        assert!(ran("ovs-vswitchd", &[&words[..], &daemon[..]].concat()));
    }

    fn vsctl(&self, words: &str) -> String {
        let words: Vec<&str> = words.split(' ').collect();
        let output = Command::new("ovs-vsctl").args(&words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// `other_config` of a record, in the database's text.
    fn config(&self, record: &str) -> String {
        self.vsctl(&format!("get {record} other_config"))
    }

    /// A port on node 1 with four queues, and one PMD thread, on node 0.
    fn with_a_remote_port(&self) {
        self.vsctl(
            "set Open_vSwitch . other_config:pmd-cpu-mask=0x02 other_config:other=kept -- add-br br0 -- set bridge br0 \
             datapath_type=dummy -- add-port br0 p1 -- set Interface p1 type=dummy-pmd options:numa_id=1 options:n_rxq=4",
        );
    }

    /// The CPU and node of each queue of a port, as Open vSwitch shows them.
    fn queues(&self, port: &str) -> Vec<(u32, u32, u32)> {
        let output = Command::new("ovs-appctl").arg("dpif-netdev/pmd-rxq-show").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (mut at, mut queues) = ((0, 0), Vec::new());
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["pmd", "thread", "numa_id", node, "core_id", core] => {
                    at = (core.trim_end_matches(':').parse().unwrap(), node.parse().unwrap());
                }
                ["port:", name, "queue-id:", queue, ..] if name == port => {
                    queues.push((queue.parse().unwrap(), at.0, at.1));
                }
                _ => (),
            }
        }
        queues.sort_unstable();
        queues
    }

    fn remote_queues(&self) -> usize {
        self.queues("p1").iter().filter(|(_, _, node)| *node != 1).count()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for name in ["ovs-vswitchd", "ovsdb-server"] {
            stop(name);
        }
        assert!(ran("umount", &["--lazy", "/run"]));
    }
}

/// Ends a daemon, and waits until it has ended.
fn stop(name: &str) {
    ran("ovs-appctl", &["-t", name, "exit"]);
    let file = format!("{RUN}/{name}.pid");
    wait_for("the end of a daemon", || (!Path::new(&file).exists()).then_some(()));
}

#[allow(clippy::print_stderr)]
fn ran(program: &str, words: &[&str]) -> bool {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        eprintln!("{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// The host that Open vSwitch imagines.
fn topology() -> Topology {
    let cpu = |cpu: u32| -> Cpu {
        serde_json::from_value(serde_json::json!({
            "cpu": cpu, "online": true, "core": cpu, "node": cpu / 4, "siblings": "",
        }))
        .unwrap()
    };
    let all = CpuSet::from_list("0-7").unwrap();
    let online = all.clone();
    Topology {
        possible: all.clone(),
        present: all,
        online,
        cpus: (0..8).map(cpu).collect(),
        ..Topology::default()
    }
}

fn check() -> OvsCheck {
    check_ovs(&read_switch(&Root::live()).unwrap(), &topology())
}

fn codes() -> Vec<String> {
    check().problems.into_iter().map(|problem| problem.code).collect()
}

fn planned() -> Vec<PlannedChange> {
    plan_ovs(&read_switch(&Root::live()).unwrap(), &topology(), None).unwrap().0
}

fn changes() -> Vec<Change> {
    let change = |planned: PlannedChange| Change {
        persistence: planned.target.persistence(),
        target: planned.target,
        before: planned.before,
        after: planned.after,
        why: planned.why,
        snapshot: Vec::new(),
    };
    planned().into_iter().map(change).collect()
}

fn change(setting: OvsSetting, before: &str, after: &str) -> Change {
    let target = Target::Ovs(setting);
    let persistence = target.persistence();
    let (before, after) = (before.into(), after.into());
    Change { target, before, after, why: "a test".to_owned(), persistence, snapshot: Vec::new() }
}

fn undo_all(folder: &Path) {
    for (entry, undone) in executor(folder).rollback(None, "boot") {
        undone.unwrap_or_else(|error| panic!("{}: {error}", entry.change.target));
    }
    assert_eq!(Journal::read(folder).unwrap(), []);
}

fn executor(folder: &Path) -> Executor<Live> {
    Executor::new(Journal::open(folder, "boot").unwrap(), Live::new())
}

#[test]
fn a_pmd_on_the_wrong_node_is_found_planned_applied_and_undone() {
    let Some(switch) = Switch::start() else { return };
    switch.with_a_remote_port();
    assert_eq!(switch.remote_queues(), 4);
    let found = check();
    assert_eq!((found.verdict, found.cross_node_queues), (OvsVerdict::Changed, 4));
    let before = (switch.config("Open_vSwitch ."), switch.config("Interface p1"));

    let folder = tempfile::tempdir().unwrap();
    executor(folder.path()).apply(changes()).unwrap();
    // CPU 4 is the lowest of node 1, and the number of threads is the same.
    assert_eq!(switch.queues("p1"), [(0, 4, 1), (1, 4, 1), (2, 4, 1), (3, 4, 1)]);
    assert_eq!((check().verdict, check().cross_node_queues), (OvsVerdict::Accepted, 0));
    assert_eq!(planned(), []);
    // Its neighbours in the map are untouched.
    assert!(switch.config("Open_vSwitch .").contains("other=kept"));

    undo_all(folder.path());
    assert_eq!((switch.config("Open_vSwitch ."), switch.config("Interface p1")), before);
    assert_eq!(switch.remote_queues(), 4);
}

#[test]
fn an_affinity_that_isolates_names_all_queues_after_a_plan_and_one_of_another_node_moves() {
    let Some(switch) = Switch::start() else { return };
    switch.with_a_remote_port();
    // Queue 0 alone takes CPU 4; the others go to node 0, where the only other thread is.
    switch.vsctl("set Open_vSwitch . other_config:pmd-cpu-mask=12");
    switch.vsctl("set Interface p1 other_config:pmd-rxq-affinity=\"0:4\"");
    assert_eq!(switch.queues("p1"), [(0, 4, 1), (1, 1, 0), (2, 1, 0), (3, 1, 0)]);
    assert_eq!(codes(), ["remote_queue", "remote_queue", "remote_queue", "affinity_isolates"]);
    let before = (switch.config("Open_vSwitch ."), switch.config("Interface p1"));

    let folder = tempfile::tempdir().unwrap();
    executor(folder.path()).apply(changes()).unwrap();
    assert_eq!(switch.remote_queues(), 0);
    assert_eq!(codes(), [""; 0]);
    undo_all(folder.path());
    assert_eq!((switch.config("Open_vSwitch ."), switch.config("Interface p1")), before);

    // A pin of another node, and one of a CPU without a thread.
    switch.vsctl("set Interface p1 other_config:pmd-rxq-affinity=\"0:1,1:7,9:4\"");
    assert_eq!(switch.queues("p1")[0], (0, 1, 0));
    let found = codes();
    for code in ["remote_queue", "affinity_no_pmd", "affinity_no_queue"] {
        assert!(found.iter().any(|found| found == code), "{code}: {found:?}");
    }
    executor(folder.path()).apply(changes()).unwrap();
    assert_eq!((switch.remote_queues(), codes()), (0, vec![]));
    assert_eq!(planned(), []);
    undo_all(folder.path());
}

#[test]
fn masks_of_absent_cpus_are_found() {
    let Some(switch) = Switch::start() else { return };
    switch.with_a_remote_port();
    switch.vsctl("set Open_vSwitch . other_config:pmd-cpu-mask=200010");
    assert_eq!(
        (check().verdict, codes()),
        (OvsVerdict::Changed, vec!["mask_cpu_absent".to_owned()])
    );
    let folder = tempfile::tempdir().unwrap();
    executor(folder.path()).apply(changes()).unwrap();
    assert_eq!(switch.vsctl("get Open_vSwitch . other_config:pmd-cpu-mask"), "\"10\"");
    undo_all(folder.path());
    // None is there: nothing polls the port.
    switch.vsctl("set Open_vSwitch . other_config:pmd-cpu-mask=200000");
    assert_eq!(switch.queues("p1"), []);
    assert_eq!(check().verdict, OvsVerdict::Refused);
    assert_eq!(codes(), ["mask_cpu_absent", "not_polled"]);
}

#[test]
fn values_that_were_not_set_are_removed_and_external_changes_stay() {
    let Some(switch) = Switch::start() else { return };
    switch.with_a_remote_port();
    let (dir, before) = (tempfile::tempdir().unwrap(), switch.config("Interface p1"));
    let affinity = || OvsSetting::affinity("p1");
    executor(dir.path()).apply(vec![change(affinity(), OVS_UNSET, "0:1")]).unwrap();
    assert_eq!(switch.config("Interface p1"), "{pmd-rxq-affinity=\"0:1\"}");
    undo_all(dir.path());
    assert_eq!((switch.config("Interface p1").as_str(), before.as_str()), ("{}", "{}"));

    // Changed since: it is not overwritten, neither by an undo nor by a plan that expected another value.
    executor(dir.path()).apply(vec![change(affinity(), OVS_UNSET, "0:1")]).unwrap();
    switch.vsctl("set Interface p1 other_config:pmd-rxq-affinity=\"1:1\"");
    let (_, undone) = executor(dir.path()).rollback(None, "boot").pop().unwrap();
    assert!(matches!(undone, Err(TuneError::Drift { .. })), "{undone:?}");
    assert_eq!(switch.config("Interface p1"), "{pmd-rxq-affinity=\"1:1\"}");
    let other = tempfile::tempdir().unwrap();
    let drift = executor(other.path()).apply(vec![change(affinity(), OVS_UNSET, "0:1")]);
    assert!(matches!(drift, Err(TuneError::Drift { .. })), "{drift:?}");

    // The interface is gone, and with it the change.
    switch.vsctl("del-port p1");
    undo_all(dir.path());
    let gone = executor(other.path()).apply(vec![change(affinity(), OVS_UNSET, "0:1")]);
    assert!(gone.unwrap_err().to_string().contains("no longer exists"));
}

#[test]
fn without_a_database_nothing_is_changed_or_forgotten() {
    let Some(switch) = Switch::start() else { return };
    switch.with_a_remote_port();
    let dir = tempfile::tempdir().unwrap();
    let mask = || OvsSetting::of_switch(OvsKey::PmdCpuMask);
    executor(dir.path()).apply(vec![change(mask(), "2", "30")]).unwrap();
    // ovs-vswitchd alone is gone: the database has the value, and nobody is waited for.
    stop("ovs-vswitchd");
    undo_all(dir.path());
    assert_eq!(switch.vsctl("--no-wait get Open_vSwitch . other_config:pmd-cpu-mask"), "\"0x02\"");
    executor(dir.path()).apply(vec![change(mask(), "2", "30")]).unwrap();
    assert!(check().notes[0].contains("does not report its PMD threads"));
    switch.start_vswitchd();
    wait_for("the new threads", || {
        (switch.remote_queues() == 0 && switch.queues("p1").len() == 4).then_some(())
    });
    // The database is gone.
    std::fs::rename(format!("{RUN}/db.sock"), format!("{RUN}/away")).unwrap();
    let (_, undone) = executor(dir.path()).rollback(None, "boot").pop().unwrap();
    let said = undone.unwrap_err().to_string();
    assert!(said.contains("is Open vSwitch running?"), "{said}");
    assert_eq!(Journal::read(dir.path()).unwrap().len(), 1);
    std::fs::rename(format!("{RUN}/away"), format!("{RUN}/db.sock")).unwrap();
    undo_all(dir.path());
    assert_eq!(switch.remote_queues(), 4);
}

/// The live writer, which kills its process at a step: before and after each write and each undo.
struct Killed {
    live: Live,
    steps: u32,
}

impl Killed {
    fn step(&mut self) {
        if self.steps == 0 {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
        self.steps -= 1;
    }
}

impl Writer for Killed {
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError> {
        self.live.prepare(change)
    }

    fn write(&mut self, change: &Change) -> Result<(), TuneError> {
        self.step();
        self.live.write(change)?;
        self.step();
        Ok(())
    }

    fn undo(&mut self, change: &Change, state: State) -> Result<(), TuneError> {
        self.step();
        self.live.undo(change, state)?;
        self.step();
        Ok(())
    }
}

fn two_changes() -> Vec<Change> {
    let mask = OvsSetting::of_switch(OvsKey::PmdCpuMask);
    vec![change(mask, "2", "30"), change(OvsSetting::affinity("p1"), OVS_UNSET, "0:4,1:5,2:4,3:5")]
}

#[test]
fn all_is_restored_after_a_kill_at_each_step() {
    if let (Some(folder), Ok(step)) = (std::env::var_os(FOLDER), std::env::var(STEP)) {
        // In the mount namespace of the thread that started this process.
        let writer = Killed { live: Live::new(), steps: step.parse().unwrap() };
        let mut executor = Executor::new(Journal::open(folder.as_ref(), "boot").unwrap(), writer);
        executor.apply(two_changes()).unwrap();
        for (_, undone) in executor.rollback(None, "boot") {
            undone.unwrap();
        }
        return;
    }
    let Some(switch) = Switch::start() else { return };
    switch.with_a_remote_port();
    let state = || (switch.config("Open_vSwitch ."), switch.config("Interface p1"));
    let before = state();
    let name = std::thread::current().name().unwrap().to_owned();
    let mut in_between = 0;
    // Two steps of each of two writes and two undos, and one without a kill.
    for step in 0..=8 {
        let dir = tempfile::tempdir().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact"])
            .env(FOLDER, dir.path())
            .env(STEP, step.to_string())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.success(), step == 8, "{step}: {status}");
        in_between += u32::from(state() != before);
        undo_all(dir.path());
        assert_eq!(state(), before, "step {step}");
    }
    assert!(in_between >= 4, "{in_between} kills left a change");
    assert_eq!(switch.remote_queues(), 4);
}
