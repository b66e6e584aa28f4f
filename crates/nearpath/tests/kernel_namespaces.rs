//! Processes that exit before they are looked up, and nearpath in its own PID namespace: cgroups and process ids
//! are reported as they were, in terms of that namespace.

use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_netns, require_program, require_root, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");
/// Name of the tasks that occupy the reader's CPU.
const HOG: &str = "np-hog";
/// Lifetime of each.
const LIFE: Duration = Duration::from_millis(100);
const HOGS: usize = 8;

fn can_run() -> bool {
    let cpus = thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    require_root()
        && require_bpf()
        && require_netns()
        && cpus
        && ["chrt", "taskset", "unshare"].iter().all(|name| require_program(name))
}

/// Mount point of the unified hierarchy.
fn unified() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    mount.split(' ').nth(4).map(PathBuf::from)
}

/// A copy of the shell named [`HOG`].
fn hog(folder: &TempDir) -> PathBuf {
    let path = folder.path().join(HOG);
    symlink(fs::canonicalize("/bin/sh").unwrap(), &path).unwrap();
    path
}

/// Runs shell commands in the server's namespace.
fn shell(pair: &VethPair, commands: &str, variables: &[(&str, &Path)]) -> Child {
    let start = |_| {
        Command::new("sh")
            .args(["-c", commands])
            .envs(variables.iter().copied())
            .env("NEARPATH", NEARPATH)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    pair.run(Side::Server, start).unwrap()
}

/// Reads standard error until nearpath is measuring.
fn until_measuring(mut said: BufReader<ChildStderr>) -> BufReader<ChildStderr> {
    let mut all = String::new();
    while !all.contains("Ctrl-C stops early") {
        assert!(said.read_line(&mut all).unwrap() > 0, "{all}");
    }
    said
}

fn document(mut child: Child) -> Value {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Signals the end, even if a test fails: otherwise its threads would run forever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a datagram every half millisecond while `meanwhile` runs.
fn while_sending<T>(pair: &VethPair, to: SocketAddr, meanwhile: impl FnOnce() -> T) -> T {
    let socket = pair.run(Side::Client, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // There may be no listener any more.
                let _ = socket.send_to(&[0; 64], to);
                thread::sleep(Duration::from_micros(500));
            }
        });
        let _over = Over(&done);
        meanwhile()
    })
}

/// The tasks that the document names for a millisecond or more of a slow packet.
fn blamed(document: &Value) -> Vec<&Value> {
    let outliers = document["outliers"].as_array().unwrap().iter();
    let shares = outliers.flat_map(|outlier| outlier["budget"].as_array().unwrap());
    let long = shares.filter(|share| share["ns"].as_u64().unwrap() >= 1_000_000);
    long.map(|share| &share["who"]).filter(|who| who["comm"].is_string()).collect()
}

/// Runs while RPS of the server's device takes packets away from the CPU of their reader.
fn while_steered_away<T>(pair: &VethPair, meanwhile: impl FnOnce() -> T) -> T {
    pair.write(Side::Server, "queues/rx-0/rps_cpus", "1").unwrap();
    let reader = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    reader.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let sender = pair.run(Side::Client, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let (to, done) = (reader.local_addr().unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            pin();
            while !done.load(Ordering::Relaxed) {
                let _ = reader.recv(&mut [0; 64]);
            }
        });
        scope.spawn(|| {
            pin();
            while !done.load(Ordering::Relaxed) {
                let _ = sender.send_to(&[0; 64], to);
                thread::sleep(Duration::from_micros(500));
            }
        });
        let _over = Over(&done);
        meanwhile()
    })
}

const DIAGNOSE: [&str; 7] =
    ["diagnose", "--measure", "stages", "--max-overhead", "none", "--for", "2s"];

fn printed(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// On the host a device of this name would be another one.
#[test]
fn a_fix_in_another_namespace_can_be_pasted_on_the_host() {
    let programs = ["bash", "nsenter", "unshare", "mount", "tee"];
    if !can_run() || !programs.iter().all(|name| require_program(name)) {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let netns = pair.path(Side::Server);
    let text = while_steered_away(&pair, || {
        printed(Command::new(NEARPATH).args(DIAGNOSE).args(["-v", "--netns", &netns]))
    });
    let mut fixes = text.lines().filter_map(|line| line.trim().strip_prefix("fix:"));
    let fix = fixes.find(|fix| fix.contains("rps_cpus")).expect(&text);
    let command = fix.split("    (was").next().unwrap().trim();
    assert!(command.contains("nsenter --net="), "{text}");
    let pasted = Command::new("bash").args(["-c", command]).output().unwrap();
    assert!(pasted.status.success(), "{command}: {pasted:?}");
    assert_eq!(pair.read(Side::Server, "queues/rx-0/rps_cpus").unwrap().trim(), "0", "{command}");
}

/// A name in `/run/netns`, removed when dropped.
struct Named(String);

impl Named {
    fn new(netns: &str) -> Self {
        let named = Self(format!("np-{}", std::process::id()));
        // `ip netns` makes the mounts there its own.
        let run = |program: &str, words: &[&str]| {
            assert!(Command::new(program).args(words).status().unwrap().success());
        };
        run("ip", &["netns", "add", &named.0]);
        let path = format!("/run/netns/{}", named.0);
        run("umount", &[&path]);
        run("mount", &["--bind", netns, &path]);
        named
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// The shell of who runs `ip netns exec` is in another one; a shell inside needs no more.
#[test]
fn the_namespace_that_ip_has_entered_is_in_the_fix() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    let programs = ["bash", "ip", "mount", "timeout", "umount"];
    if !can_run() || !programs.iter().all(|name| require_program(name)) {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let named = Named::new(&pair.path(Side::Server));
    let said = |words: &[&str]| {
        while_steered_away(&pair, || {
            printed(Command::new("ip").args(["netns", "exec", &named.0]).args(words))
        })
    };
    let file = "/sys/class/net/np1/queues/rx-0/rps_cpus";
    let text = said(&[&[NEARPATH], &DIAGNOSE[..]].concat());
    assert!(text.contains(&format!("echo 0 | ip netns exec {} tee {file}", named.0)), "{text}");
    assert!(text.ends_with(&format!("next: nearpath fix --netns {}\n", named.0)), "{text}");
    // As sudo does, which may be missing here: the parent is in the namespace, who has run it is not.
    let text = said(&[&["timeout", "60", NEARPATH], &DIAGNOSE[..]].concat());
    assert!(text.ends_with(&format!("next: nearpath fix --netns {}\n", named.0)), "{text}");
    // Bash replaces itself by its last command.
    let inside = format!("{NEARPATH} {}; true", DIAGNOSE.join(" "));
    let text = said(&["bash", "-c", &inside]);
    assert!(text.contains(&format!("echo 0 > {file}")), "{text}");
    assert!(text.ends_with("next: nearpath fix\n"), "{text}");
}

/// To CPU 1.
fn pin() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(1);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

#[test]
fn an_exited_task_is_reported_with_its_cgroup() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let Some(unified) = unified() else { return };
    let pair = VethPair::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let hog = hog(&folder);
    let measuring = "exec \"$NEARPATH\" measure stages --json --direction rx --dev np1 --slow 1ms --outliers 500 \
                     --max-overhead none --for 4s";
    let mut child = shell(&pair, measuring, &[]);
    let reader = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    reader.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let to = reader.local_addr().unwrap();
    let done = AtomicBool::new(false);
    let cgroups: BTreeMap<u64, String> = thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = nearpath_model::CpuSet::from_list("1").unwrap();
            nearpath_trial::affinity::pin(&cpu).unwrap();
            let mut buffer = [0; 100];
            while !done.load(Ordering::Relaxed) {
                let _ = reader.recv(&mut buffer);
            }
        });
        let _over = Over(&done);
        while_sending(&pair, to, || {
            let _said = until_measuring(BufReader::new(child.stderr.take().unwrap()));
            (0..HOGS).map(|number| short_life(&unified, &hog, number)).collect()
        })
    });
    let document = document(child);
    // By id: the name is that of the task when it was switched to.
    let mut found = blamed(&document);
    found.retain(|who| who["pid"].as_u64().is_some_and(|pid| cgroups.contains_key(&pid)));
    let pids: std::collections::BTreeSet<u64> =
        found.iter().map(|who| who["pid"].as_u64().unwrap()).collect();
    assert!(pids.len() >= HOGS / 2, "{} of {HOGS} delayed packets: {document}", pids.len());
    for who in found {
        let expected = &cgroups[&who["pid"].as_u64().unwrap()];
        assert_eq!(who["cgroup"].as_str(), Some(expected.as_str()), "{who}");
    }
}

/// Runs a hog with real-time priority in its own cgroup; both are gone when this returns. Returns its id and
/// cgroup.
fn short_life(unified: &Path, hog: &Path, number: usize) -> (u64, String) {
    let name = format!("nearpath-test-{}-{number}", std::process::id());
    let cgroup = unified.join(&name);
    fs::create_dir(&cgroup).unwrap();
    let enter = "echo $$ >\"$CGROUP/cgroup.procs\" && exec chrt -f 1 taskset -c 1 \"$HOG\" -c 'while :; do :; done'";
    let mut child = Command::new("sh")
        .args(["-c", enter])
        .envs([("CGROUP", cgroup.as_path()), ("HOG", hog)])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    thread::sleep(LIFE);
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel takes a moment to free an exited task.
    wait_for("the cgroup to be empty", || fs::remove_dir(&cgroup).ok());
    (child.id().into(), format!("/{name}"))
}

/// Starts a reflector in its own PID namespace, and then the commands, with its id in that namespace in `$READER`
/// and its id in /proc in `$SHOWN`.
/// Returns when nearpath is measuring: the shell, the reflector's address, and its id in the namespace.
fn in_pid_namespace(
    pair: &VethPair,
    hog: &Path,
    mounts_proc: bool,
    commands: &str,
) -> (Child, SocketAddr, u64) {
    // The shell itself opens its file in /proc, under the id that it has there.
    let script = format!(
        "sh -c 'read -r SHOWN REST </proc/self/stat; echo $SHOWN >\"$HOG.reader\"
            exec taskset -c 1 \"$NEARPATH\" bench reflect --bind {} --port 6327' >/dev/null 2>&1 & READER=$!
        while ! [ -s \"$HOG.reader\" ]; do sleep 0.05; done; SHOWN=$(cat \"$HOG.reader\")
        echo reader $READER >&2
        {commands}
        kill $READER",
        Side::Server.ipv4()
    );
    let variables = [("SCRIPT", Path::new(&script)), ("HOG", hog)];
    let proc = if mounts_proc { "--mount-proc" } else { "" };
    let start = format!("exec unshare -pf {proc} sh -c \"$SCRIPT\"");
    let mut child = shell(pair, &start, &variables);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let reader = line.trim().strip_prefix("reader ").unwrap_or_else(|| panic!("{line}"));
    let reader = reader.parse().unwrap();
    let mut said = until_measuring(said);
    // Its output is read to the end, so that it never blocks.
    thread::spawn(move || said.read_to_string(&mut String::new()));
    (child, SocketAddr::new(Side::Server.ipv4(), 6327), reader)
}

/// Runs `measure accepts` in its own PID namespace during twenty connections to the reflector; `pid` is the
/// variable with the id to filter for. Returns the document and the id in the namespace.
fn accepts(mounts_proc: bool, pid: &str) -> (Value, u64) {
    let pair = VethPair::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let commands = format!("\"$NEARPATH\" measure accepts --json --for 2s --pid {pid}");
    let (child, to, reader) = in_pid_namespace(&pair, &hog(&folder), mounts_proc, &commands);
    let accepted = pair
        .run(Side::Client, |_| {
            wait_for("the reflector to listen", || TcpStream::connect(to).ok());
            Ok((0..20).filter(|_| TcpStream::connect(to).is_ok()).count())
        })
        .unwrap();
    assert_eq!(accepted, 20);
    (document(child), reader)
}

fn workers(document: &Value) -> Vec<&Value> {
    let listeners = document["listeners"].as_array().unwrap().iter();
    listeners.flat_map(|listener| listener["workers"].as_array().unwrap()).collect()
}

#[test]
fn pids_are_those_of_nearpaths_own_namespace() {
    if !can_run() {
        return;
    }
    let (document, reader) = accepts(true, "$READER");
    let workers = workers(&document);
    assert!(!workers.is_empty(), "{document}");
    assert!(workers.iter().all(|worker| worker["pid"] == reader), "{document}");
    // The affinity of a thread is read under its ids.
    assert!(workers.iter().all(|worker| worker["cpus"] == "1"), "{document}");
}

#[test]
fn pids_are_those_in_proc() {
    if !can_run() {
        return;
    }
    // /proc is still that of the parent namespace, and so are the ids that ps(1) and other tools show.
    let (document, reader) = accepts(false, "$SHOWN");
    let workers = workers(&document);
    assert!(!workers.is_empty(), "{document}");
    assert!(workers.iter().all(|worker| worker["pid"] != reader), "{document}");
    assert!(workers.iter().all(|worker| worker["cpus"] == "1"), "{document}");
}

#[test]
fn groups_and_causes_have_pids_of_that_namespace() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let hog = hog(&folder);
    let commands = "chrt -f 1 taskset -c 1 \"$HOG\" -c \
        'while :; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 0.05; done' & echo $! >\"$HOG.pid\"\n\
        \"$NEARPATH\" measure stages --json --direction rx --dev np1 --per process --slow 1ms --outliers 500 \
        --max-overhead none --for 3s\nkill $(cat \"$HOG.pid\")";
    let (child, to, reader) = in_pid_namespace(&pair, &hog, true, commands);
    let document = while_sending(&pair, to, || document(child));
    let hog_pid = fs::read_to_string(hog.with_extension("pid")).unwrap();
    let hog_pid: u64 = hog_pid.trim().parse().unwrap();
    assert!(hog_pid < 50, "the namespace is new");
    let mut found = blamed(&document);
    found.retain(|who| who["comm"] == HOG);
    // It forks, and its children briefly have its name.
    assert!(found.iter().filter(|who| who["pid"] == hog_pid).count() > 5, "{found:?}");
    assert!(found.iter().all(|who| who["cgroup"].is_string()), "{found:?}");
    let names: Vec<&str> = document["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|group| group["name"].as_str())
        .collect();
    assert!(names.contains(&format!("nearpath/{reader}").as_str()), "{names:?}");
}
