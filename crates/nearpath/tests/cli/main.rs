//! The real binary: usage errors, and what it prints where.

mod guest_recordings;

use nearpath_testing::trees::{Layout, Machine, Nic, Tree};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn nearpath(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args(args)
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// Exit status, standard output, standard error.
fn parts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Asserts that the command prints exactly one line, on standard error, and exits with this status.
fn refused(args: &[&str], status: i32, says: &str) {
    let (code, out, err) = parts(&nearpath(args));
    assert_eq!((code, out.as_str()), (status, ""), "{args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    assert!(err.starts_with("nearpath: ") && err.contains(says), "{args:?}: {err}");
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    refused(&["show", "--jsn"], 2, "--json");
    refused(&["show", "cpu"], 2, "cpus");
    refused(&["shwo"], 2, "show");
    refused(&["show", "--root"], 2, "--root <DIR>");
    refused(&["show", "--root", "a", "--netns", "b"], 2, "cannot be used with");
    refused(&["show", "--root", "a", "--snapshot", "b"], 2, "cannot be used with");
    refused(&["measure", "stages", "--src", "10.0.0.0/33"], 2, "10.0.0.0/33");
    refused(&["diagnose", "--host", "nowhere"], 2, "10.0.0.0/8");
    refused(&["measure", "stages", "--for", "0s"], 2, "see 'nearpath measure stages --help'");
    refused(&["show", "--json", "--svg"], 2, "see 'nearpath show --help'");
    refused(&["--jsn"], 2, "see 'nearpath --help'");
    refused(&["measure", "stages", "--for", "soon"], 2, "soon");
    refused(&["measure", "stages", "--port", "70000"], 2, "70000");
    refused(&["diagnose", "--root", "a", "--port", "80"], 2, "no packets");
    refused(
        &["measure", "stages", "--per", "thread"],
        2,
        "cpu, node, queue, flow, process, cgroup",
    );
    refused(&["measure", "stages", "--per", "cpu", "--top", "0"], 2, "1..=512");
    refused(&["measure", "stages", "--per", "cpu", "--sort", "name"], 2, "packets, p99");
    refused(&["measure", "stages", "--top", "3"], 2, "--per <WHAT>");
    refused(&["snapshot"], 2, "--output <FILE>");
    refused(&["tune", "export"], 2, "--as <FORM>");
    refused(&["tune", "plan", "--dpdk", "testpmd"], 2, "--nic");
    refused(&["tune", "plan", "--dpdk", "vpp", "--nic", "0000:00:00.0"], 2, "testpmd, ovs, dpvs");
    refused(&["tune", "plan", "--workers", "2"], 2, "--dpdk <APPLICATION>");
    refused(&["tune", "check-dpvs"], 2, "<FILE>");
    refused(&["show", "workers", "--svg", "x"], 2, "draws no workers");
    refused(&["tune", "export", "--as", "upstart"], 2, "sh, boot, systemd");
    refused(&["tune", "export", "--as", "systemd"], 2, "give a directory");
    refused(&["tune", "export", "--as", "sh", "--applied", "--nic", "x"], 2, "cannot be used with");
    refused(&["tune", "watch", "--interval", "1ms"], 2, "less than 100ms");
    refused(&["monitor", "--interval", "1ms"], 2, "less than 100ms");
    refused(&["monitor", "--source", "pcap"], 2, "stages");
    refused(&["monitor", "--once", "--insecure"], 2, "cannot be used with");
    refused(&["monitor", "export"], 2, "<WHAT>");
    refused(&["monitor", "export", "nagios"], 2, "prometheus-rules");
}

#[test]
fn a_monitor_serves_nobody_that_was_not_intended() {
    refused(&["monitor", "--listen", "0.0.0.0:0"], 1, "--insecure");
    refused(&["monitor", "--listen", "[::]:0"], 1, "--insecure");
    refused(&["monitor", "--web-config", "/nowhere/web.yml"], 1, "/nowhere/web.yml");
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    refused(&["monitor", "--listen", &address], 1, &address);
}

#[test]
fn a_cause_is_said_once() {
    for args in [&["monitor", "--web-config", "/nowhere/web.yml"][..], &["record", "-o", "/proc/x"]]
    {
        let output = nearpath(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("(os error 2)").count(), 1, "{said}");
    }
}

#[test]
fn an_unreadable_host_is_one_line_and_status_1() {
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    refused(&["show", "--root", empty], 1, empty);
    refused(&["show", "--json", "--root", empty], 1, empty);
    fs::create_dir(Path::new(empty).join("proc")).unwrap();
    refused(&["show", "--root", empty], 1, "no sys");
    refused(&["diagnose", "--root", empty], 1, "no sys");
    fs::create_dir(Path::new(empty).join("sys")).unwrap();
    for command in [&["show"] as &[&str], &["show", "--json"], &["diagnose"], &["tune", "plan"]] {
        refused(&[command, &["--root", empty]].concat(), 1, "neither CPUs");
    }
    let no_proc = tempfile::tempdir().unwrap();
    fs::create_dir_all(no_proc.path().join("sys/devices/system/cpu/cpu0")).unwrap();
    fs::write(no_proc.path().join("sys/devices/system/cpu/online"), "0\n").unwrap();
    let no_proc = no_proc.path().to_str().unwrap();
    // What is in sys is shown, and what is not, is not shown as none.
    let (code, out, _) = parts(&nearpath(&["show", "cpus", "--root", no_proc]));
    assert_eq!((code, out.starts_with("1 CPU online")), (0, true), "{out}");
    let (code, out, _) = parts(&nearpath(&["show", "irqs", "--root", no_proc]));
    assert_eq!((code, out.contains("/proc/interrupts: not found")), (0, true), "{out}");
    let file = tempfile::NamedTempFile::new().unwrap();
    refused(&["show", "--root", file.path().to_str().unwrap()], 1, "--snapshot");
    refused(&["show", "--root", "/no/such/folder"], 1, "/no/such/folder");
    refused(&["show", "--netns", "no-such-namespace"], 1, "no-such-namespace");
    refused(&["show", "--snapshot", "/no/such/file"], 1, "/no/such/file");
    refused(&["measure", "stages", "--dev", "no-such-dev"], 1, "no-such-dev");
    refused(&["diagnose", "--dev", "no-such-dev"], 1, "no-such-dev");
}

#[test]
fn help_has_examples_and_the_exit_status() {
    for args in [["--help"].as_slice(), &["show", "--help"]] {
        let (code, out, err) = parts(&nearpath(args));
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains("EXAMPLES"), "{out}");
    }
    let (code, out, err) = parts(&nearpath(&[]));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("Usage: nearpath"), "{err}");
}

#[test]
fn the_version_lists_commit_target_and_libbpf() {
    let (code, out, err) = parts(&nearpath(&["--version"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let (first, rest) = out.split_once('\n').unwrap();
    assert_eq!(first, concat!("nearpath ", env!("CARGO_PKG_VERSION")));
    let names: Vec<&str> =
        rest.lines().map(|line| line.split_once(": ").map_or(line, |(name, _)| name)).collect();
    assert_eq!(names, ["commit", "date", "target", "profile", "libbpf"]);
    let libbpf = rest.lines().last().unwrap().rsplit_once(' ').unwrap().1;
    assert!(libbpf.starts_with("v1."), "{out}");
    let (_, short, _) = parts(&nearpath(&["-V"]));
    assert_eq!(short, format!("{first}\n"));
}

#[test]
fn completions_have_commands_and_options() {
    for (shell, begins) in
        [("bash", "_nearpath()"), ("zsh", "#compdef nearpath"), ("fish", "# Print an optspec")]
    {
        let (code, out, err) = parts(&nearpath(&["completions", shell]));
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.starts_with(begins), "{shell}: {out}");
        assert!(out.contains("diagnose") && out.contains("max-overhead"), "{shell}");
    }
    refused(&["completions", "csh"], 2, "bash");
}

#[test]
fn man_pages_are_written_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = parts(&nearpath(&["man-pages", folder.path().to_str().unwrap()]));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let page = fs::read_to_string(folder.path().join("nearpath-tune-plan.1")).unwrap();
    assert!(page.contains(".TH nearpath-tune-plan 1"), "{page}");
    refused(&["man-pages", "/no/such/folder"], 1, "/no/such/folder/");
}

/// Two packages with one node each, eight CPUs, and a NIC with two queues on node 1.
fn two_nodes() -> Tree {
    Machine::regular(Layout { packages: 2, cores: 2, threads: 2, ..Layout::default() })
        .nic(Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(1).queues(2, 100))
        .write()
}

fn of_tree<'a>(tree: &'a Tree, args: &[&'a str]) -> Vec<&'a str> {
    let mut all = args.to_vec();
    all.extend(["--root", tree.path().to_str().unwrap()]);
    all
}

#[test]
fn a_tree_is_shown_as_text() {
    let tree = two_nodes();
    let (code, out, err) = parts(&nearpath(&of_tree(&tree, &["show", "cpus"])));
    assert_eq!((code, err.as_str()), (0, ""));
    let head: Vec<&str> = out.lines().take(6).collect();
    assert_eq!(
        head,
        [
            "8 CPUs online (0-7), 4 cores, 2 packages, 2 LLCs, 2 nodes",
            "",
            "CPU  CORE  PACKAGE  DIE  LLC  CACHE     NODE  SMT  ONLINE",
            "  0     0        0    0    0  L3 8 MiB     0  0,4  yes",
            "  1     1        0    0    0  L3 8 MiB     0  1,5  yes",
            "  2     0        1    0    1  L3 8 MiB     1  2,6  yes",
        ]
    );
}

#[test]
fn show_cpus_has_the_documented_fields() {
    let tree = two_nodes();
    for args in [["show", "cpus", "--json"].as_slice(), &["show", "--json"]] {
        let (code, out, err) = parts(&nearpath(&of_tree(&tree, args)));
        assert_eq!((code, err.as_str()), (0, ""));
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["schema"], 1);
        let cpu = &document["cpus"][6];
        assert_eq!((&cpu["cpu"], &cpu["online"]), (&6.into(), &true.into()));
        assert_eq!((&cpu["core"], &cpu["package"]), (&0.into(), &1.into()));
        assert_eq!((&cpu["node"], &cpu["llc"]), (&1.into(), &document["cpus"][2]["llc"]));
        assert!(cpu.get("die").is_some() && cpu.get("cluster").is_some());
        let node = &document["nodes"][1];
        assert_eq!((&node["node"], &node["cpus"]), (&1.into(), &"2-3,6-7".into()));
        assert!(node["memory_bytes"].is_u64() && node["distances"]["1"] == 10);
    }
}

#[test]
fn every_subject_is_one_json_document() {
    let tree = two_nodes();
    for subject in ["cpus", "nodes", "nics", "queues", "irqs", "softnet", "all"] {
        let (code, out, err) = parts(&nearpath(&of_tree(&tree, &["show", subject, "--json"])));
        assert_eq!((code, err.as_str()), (0, ""), "{subject}");
        assert!(serde_json::from_str::<serde_json::Value>(&out).unwrap().is_object(), "{subject}");
    }
    let (code, out, _) = parts(&nearpath(&of_tree(&tree, &["diagnose", "--json"])));
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(code == 0 && document["findings"].is_array() && document["measurement"].is_null());
    assert_eq!(document["not_checked"][0]["check"], "measurement");
}

#[test]
fn a_diagnosis_is_a_verdict_with_detail_on_request() {
    let tree = two_nodes();
    let run = |words: &[&str]| parts(&nearpath(&of_tree(&tree, &[&["diagnose"], words].concat())));
    let document: serde_json::Value = serde_json::from_str(&run(&["--json"]).1).unwrap();
    let severities: Vec<&str> = document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["severity"].as_str().unwrap())
        .collect();
    let expected = match severities.as_slice() {
        all if all.contains(&"critical") => 2,
        all if all.contains(&"warning") => 1,
        _ => 0,
    };
    let (code, verdict, _) = run(&["--exit-code"]);
    assert_eq!(code, expected, "{severities:?}");
    assert!(verdict.lines().count() <= 24, "{verdict}");
    let ((_, more, _), (_, most, _)) = (run(&["-v"]), run(&["-vv"]));
    assert!(more.contains("not checked") && most.contains("no packets were measured"), "{more}");
    assert_eq!(run(&["-v", "--json"]).0, 2);
}

#[test]
fn a_failed_diagnosis_is_no_finding() {
    let (with, without) = (["diagnose", "--exit-code"], ["diagnose"]);
    let missing = ["--root", "/nonexistent"];
    refused(&[&with as &[&str], &missing].concat(), 3, "/nonexistent");
    refused(&[&without as &[&str], &missing].concat(), 1, "/nonexistent");
    refused(&[&with as &[&str], &["--no-such"]].concat(), 4, "--no-such");
    refused(&[&without as &[&str], &["--no-such"]].concat(), 2, "--no-such");
    // Found out only after the options were parsed.
    let tree = two_nodes();
    let filtered = of_tree(&tree, &["diagnose", "--exit-code", "--dev", "eth0"]);
    let (code, out, err) = parts(&nearpath(&filtered));
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    let (code, help, _) = parts(&nearpath(&["diagnose", "--exit-code", "--help"]));
    assert!(code == 0 && help.contains("--exit-code"), "{help}");
}

#[test]
fn a_pipe_carries_no_colours() {
    let tree = two_nodes();
    let (_, out, _) = parts(&nearpath(&of_tree(&tree, &["show"])));
    assert!(!out.contains('\u{1b}'), "{out}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    // More than a pipe holds (64 KiB), so that writing continues after the reader has closed it.
    let layout = Layout { packages: 2, cores: 64, threads: 2, ..Layout::default() };
    let tree = Machine::regular(layout).write();
    let mut child = Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args(of_tree(&tree, &["show", "--json"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    let (code, _, err) = parts(&child.wait_with_output().unwrap());
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn a_picture_is_written_and_a_link_is_not_followed() {
    let (tree, dir) = (two_nodes(), tempfile::tempdir().unwrap());
    let (picture, link) = (dir.path().join("host.svg"), dir.path().join("link.svg"));
    let (code, out, err) =
        parts(&nearpath(&of_tree(&tree, &["show", "--svg", picture.to_str().unwrap()])));
    assert_eq!((code, out.as_str(), err.lines().count()), (0, "", 1), "{err}");
    let drawn = fs::read_to_string(&picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("eth0 mlx5_core"));
    std::os::unix::fs::symlink(&picture, &link).unwrap();
    refused(&of_tree(&tree, &["show", "--svg", link.to_str().unwrap()]), 1, "symbolic link");
}

fn snapshot(file: &Path) -> (i32, String, String) {
    parts(&nearpath(&["snapshot", "-o", file.to_str().unwrap()]))
}

#[test]
fn a_snapshot_shows_what_the_host_shows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.tar.zst");
    let (code, out, err) = snapshot(&file);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains(" files, ") && out.contains(" answers"), "{out}");
    let name = file.to_str().unwrap();
    let (_, live, _) = parts(&nearpath(&["show", "cpus", "--json"]));
    let (code, saved, err) = parts(&nearpath(&["show", "cpus", "--json", "--snapshot", name]));
    assert_eq!((code, err.as_str()), (0, ""));
    let cpus =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["cpus"].clone();
    assert_eq!(cpus(&live), cpus(&saved));
    refused(&["snapshot", "-o", name], 1, "--force");
    let (code, _, err) = parts(&nearpath(&["snapshot", "-o", name, "--force", "--json"]));
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn an_unpacked_snapshot_shows_what_the_file_shows() {
    if !nearpath_testing::require_program("tar") || !nearpath_testing::require_program("zstd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, tree) = (dir.path().join("host.tar.zst"), dir.path().join("tree"));
    assert_eq!(snapshot(&file).0, 0);
    fs::create_dir(&tree).unwrap();
    let tar = ["--zstd", "-xf", file.to_str().unwrap(), "-C", tree.to_str().unwrap()];
    assert!(Command::new("tar").args(tar).status().unwrap().success());
    for command in [["show", "all"].as_slice(), &["diagnose"]] {
        let of = |source: [&str; 2]| {
            let (code, out, err) = parts(&nearpath(&[command, &["--json"], &source].concat()));
            assert_eq!((code, err.as_str()), (0, ""));
            out
        };
        let saved = of(["--snapshot", file.to_str().unwrap()]);
        assert_eq!(of(["--root", tree.to_str().unwrap()]), saved);
    }
}

#[test]
fn a_snapshot_replaces_only_regular_files() {
    let dir = tempfile::tempdir().unwrap();
    let (device, link) = (dir.path().join("socket"), dir.path().join("link"));
    let _listening = std::os::unix::net::UnixListener::bind(&device).unwrap();
    std::os::unix::fs::symlink("/no/such/file", &link).unwrap();
    for file in [&device, &link, &dir.path().to_owned()] {
        let before = file.symlink_metadata().unwrap().file_type();
        let name = file.to_str().unwrap();
        refused(&["snapshot", "--force", "-o", name], 1, "not a regular file");
        assert_eq!(file.symlink_metadata().unwrap().file_type(), before);
    }
}

#[test]
fn a_full_disk_is_an_error_of_every_command() {
    let tree = two_nodes();
    for args in [["show"].as_slice(), &["show", "--json"], &["diagnose"], &["diagnose", "--json"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_nearpath"))
            .args(of_tree(&tree, args))
            .stdout(full)
            .output()
            .unwrap();
        let (code, _, err) = parts(&output);
        assert_eq!((code, err.lines().count()), (1, 1), "{args:?}: {err}");
        assert!(err.contains("No space left"), "{err}");
    }
}

#[test]
fn a_damaged_snapshot_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.tar.zst");
    assert_eq!(snapshot(&file).0, 0);
    let whole = fs::read(&file).unwrap();
    let name = file.to_str().unwrap();
    for length in [0, 3, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        refused(&["show", "--snapshot", name], 1, name);
        refused(&["diagnose", "--snapshot", name], 1, name);
    }
}

/// A packed archive with one file of this name, which ordinary archivers refuse to create.
fn archive_with(name: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    let field = &mut header.as_old_mut().name;
    field[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(4);
    header.set_mode(0o644);
    header.set_cksum();
    let mut archive = tar::Builder::new(Vec::new());
    archive.append(&header, b"evil".as_slice()).unwrap();
    let tar = archive.into_inner().unwrap();
    ruzstd::encoding::compress_to_vec(tar.as_slice(), ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn a_snapshot_cannot_refer_outside_itself() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("inner/host.tar.zst");
    fs::create_dir(dir.path().join("inner")).unwrap();
    for name in ["../escaped", "sys/../../escaped", "/tmp/../escaped"] {
        fs::write(&file, archive_with(name)).unwrap();
        refused(&["show", "--snapshot", file.to_str().unwrap()], 1, "host.tar.zst");
    }
    assert!(!dir.path().join("escaped").exists());
}

#[test]
fn a_plan_of_another_host_is_exported() {
    let tree = two_nodes();
    let dir = tempfile::tempdir().unwrap();
    let root = tree.path().to_str().unwrap();
    let export = |form: &str, more: &[&str]| {
        parts(&nearpath(&[&["tune", "export", "--root", root, "--as", form], more].concat()))
    };

    let script = dir.path().join("tune.sh");
    let (status, out, err) = export("sh", &["-o", script.to_str().unwrap()]);
    assert_eq!((status, out.as_str()), (0, ""), "{err}");
    let text = fs::read_to_string(&script).unwrap();
    assert!(text.contains("'eth0' 'eth0-TxRx-1' '*-TxRx-1'"), "{text}");
    assert!(!text.contains("/proc/irq/101/"), "interrupt numbers change across boots: {text}");
    let run = Command::new(&script).arg("nonsense").output().unwrap();
    assert_eq!(run.status.code(), Some(2), "it can be run");

    let units = dir.path().join("units");
    let (status, _, err) = export("systemd", &["-o", units.to_str().unwrap()]);
    assert_eq!(status, 0, "{err}");
    assert!(
        units.join("nearpath-tune.service").is_file() && units.join("nearpath-tune.sh").is_file()
    );
    // Changes that a format cannot express are reported: here a single interrupt, with udev rules for queues.
    let (status, out, err) = export("udev", &["--only", "irq-100"]);
    assert_eq!((status, out.as_str(), err.lines().count()), (1, "", 1), "{err}");
    assert!(err.contains("irq-100: udev has no event for an interrupt"), "{err}");
    let (status, _, err) = export("sh", &["--only", "irq-7"]);
    assert!(status == 1 && err.contains("no change has the id"), "{err}");
}

#[test]
fn cpus_that_the_kubelet_has_given_away_are_not_planned_for() {
    let machine = || {
        Machine::regular(Layout { packages: 2, cores: 4, threads: 1, ..Layout::default() })
            .nic(Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(1).queues(2, 100))
    };
    let plan = |tree: &Tree| -> serde_json::Value {
        let (status, out, err) = parts(&nearpath(&of_tree(tree, &["tune", "plan", "--json"])));
        assert_eq!(status, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let irqs = |plan: &serde_json::Value| -> Vec<String> {
        let changes = plan["changes"].as_array().unwrap().iter();
        let irqs = changes.filter(|change| change["kind"] == "irq_affinity");
        irqs.map(|change| change["after"].as_str().unwrap().to_owned()).collect()
    };
    let free = machine().write();
    assert_eq!(irqs(&plan(&free)), ["4", "5"]);
    const STATE: &str = r#"{"policyName":"static","defaultCpuSet":"0-3,6-7","entries":{"2f1a":{"dpdk":"4-5"}},"checksum":1}"#;
    let taken = machine().file("/var/lib/kubelet/cpu_manager_state", STATE).write();
    let planned = plan(&taken);
    assert_eq!(irqs(&planned), ["6", "7"]);
    assert!(planned["notes"].to_string().contains("reservedSystemCPUs"), "{planned}");
    refused(
        &of_tree(&taken, &["tune", "plan", "--irq-cpus", "5-6"]),
        1,
        "the kubelet has given CPU 5 to container dpdk of pod 2f1a alone",
    );
    let (_, shown, _) = parts(&nearpath(&of_tree(&taken, &["show", "all", "--json"])));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["kubelet"]["exclusive"][0]["cpus"], "4-5", "{}", shown["kubelet"]);
    // What cannot be read is said, and is no empty list.
    let damaged = machine().file("/var/lib/kubelet/cpu_manager_state", &STATE[..50]).write();
    let (_, shown, _) = parts(&nearpath(&of_tree(&damaged, &["show", "all", "--json"])));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["kubelet"].is_null());
    assert!(shown["unknown"].to_string().contains("cpu_manager_state: "), "{}", shown["unknown"]);
}

#[test]
fn a_configuration_of_dpvs_is_planned_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dpvs.conf");
    let path = file.to_str().unwrap();
    let device = "/sys/bus/pci/devices/0000:5e:00.0";
    let tree = Machine::regular(Layout { packages: 2, cores: 8, threads: 2, ..Layout::default() })
        .file(&format!("{device}/class"), "0x020000")
        .file(&format!("{device}/numa_node"), "1")
        .file(&format!("{device}/msi_irqs/90"), "msix")
        .file(&format!("{device}/msi_irqs/91"), "msix")
        .file(&format!("{device}/msi_irqs/92"), "msix")
        .write();
    let root = tree.path().to_str().unwrap();
    let plan = |more: &[&str]| {
        let args = ["tune", "plan", "--root", root, "--dpdk", "dpvs", "--nic", "5e:00.0"];
        parts(&nearpath(&[&args, more].concat()))
    };
    let (status, out, err) = plan(&["--isolated-rx", "-o", path]);
    assert_eq!(status, 0, "{err}");
    assert!(out.starts_with("DPVS: 2 forwarding workers on 1 NIC of 2 queues"), "{out}");
    // Node 1 has CPUs 8-15 and their siblings 24-31; the first core is on the other node.
    assert!(out.contains("--lcores 0@8,1@9,2@10,3@25,4@26 --main-lcore 0"), "{out}");
    let (status, json, _) = plan(&["--json"]);
    let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, &plan["nics"][0]["node"]), (0, &1.into()));
    refused(
        &["tune", "plan", "--root", root, "--dpdk", "ovs", "--nic", "0000:01:00.0"],
        1,
        "not found",
    );

    let check = |more: &[&str]| parts(&nearpath(&[&["tune", "check-dpvs", path], more].concat()));
    let lcores = ["--lcores", "0@8,1@9,2@10,3@25,4@26", "--nodes", "2", "--max-queues", "2"];
    let (status, out, err) = check(&lcores);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("accepted: "), "{out}");
    let (status, out, _) = check(&[&lcores as &[&str], &["--main-lcore", "1", "--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &found["verdict"]), (1, &"refused".into()));
    let lines = fs::read_to_string(&file).unwrap();
    let line = found["problems"][0]["line"].as_u64().unwrap();
    assert!(
        lines.lines().nth(usize::try_from(line).unwrap() - 1).unwrap().contains("cpu_id 0"),
        "{out}"
    );

    fs::write(&file, lines.replace("cpu_id 0", "cpu_id 7")).unwrap();
    let (status, out, _) = check(&lcores);
    assert_eq!(status, 3, "{out}");
    assert!(out.starts_with("changed: ") && out.contains("[master_id_ignored]"), "{out}");
    refused(&["tune", "check-dpvs", root], 1, "cannot read");
}
