//! Interfaces that get another name or network namespace: what was changed on them stays in the journal, is shown, and is
//! undone on them, never on another interface that has their name now.

use super::scene::{Scene, in_scene, ip, text, write};
use super::{FLOWS, QUEUES, RPS};
use nearpath_host::{Root, Wanted};
use nearpath_model::Nic;
use nearpath_testing::require_bpf;
use nearpath_testing::veth::Side;
use serde_json::json;
use std::fs;
use std::process::Command;

/// The reason of changes that `tune watch --new-devices` makes.
const NEW_DEVICE: &str = "new device 0000:5e:10.0 (igbvf): a test";
/// Another interface in the namespace of a watch: when its removal is reported, the watch has seen all that was before.
const MARKER: &str = "/sys/class/net/mk0/queues/rx-0/rps_cpus";

/// A watch with `--new-devices` in the calling thread's namespace sees `happen`.
fn watch_while(scene: &Scene, happen: impl FnOnce()) {
    ip("link add mk0 type veth peer name mk1");
    scene.apply(&[(MARKER, "1")]);
    let watch = scene.watch("1day", &["--new-devices"]);
    happen();
    ip("link del mk0");
    watch.next("lost", MARKER);
    for line in watch.end() {
        assert_eq!(line["target"], MARKER, "nothing else is reported: {line}");
    }
}

/// A mask without its leading zeros.
fn mask(path: &str) -> String {
    text(path).trim_start_matches(['0', ',']).to_owned()
}

fn on_wan(path: &str) -> String {
    path.replace("np1", "wan0")
}

fn rename(from: &str, to: &str) {
    // Before Linux 6.2 only while it is down.
    ip(&format!("link set {from} down"));
    ip(&format!("link set {from} name {to}"));
    ip(&format!("link set {to} up"));
}

fn nic(name: &str) -> Nic {
    let host = nearpath_host::read(&Root::live(), &Wanted::default()).unwrap();
    host.nics.into_iter().find(|nic| nic.name == name).unwrap()
}

fn gro(name: &str) -> &'static str {
    if nic(name).offloads.unwrap()["rx-gro"] { "on" } else { "off" }
}

#[test]
fn a_watch_keeps_the_record_of_a_renamed_interface() {
    in_scene(|scene| {
        scene.apply_because(NEW_DEVICE, &[(RPS, text(RPS), "1")]);
        watch_while(scene, || rename("np1", "wan0"));
        let entry = &scene.status()[0];
        assert_eq!((&entry["state"], &entry["target"]), (&json!("applied"), &json!(on_wan(RPS))));
        assert!(entry["reason"].as_str().unwrap().contains("np1"), "{entry}");
        scene.run(&["rollback"]);
        assert_eq!((mask(&on_wan(RPS)).as_str(), scene.states().len()), ("", 0));
    });
}

#[test]
fn a_watch_keeps_the_records_of_another_namespace() {
    in_scene(|scene| {
        scene.apply_because(NEW_DEVICE, &[(RPS, text(RPS), "1")]);
        scene.on(Side::Client, || watch_while(scene, || ()));
        assert_eq!(scene.states()[0], "applied");
        assert_eq!(scene.on(Side::Client, || scene.states())[0], "unknown");
        scene.on(Side::Client, || {
            assert!(!scene.command(&["rollback"]).output().unwrap().status.success());
        });
        scene.run(&["rollback"]);
        assert_eq!(mask(RPS), "");
    });
}

#[test]
fn a_watch_keeps_the_record_of_an_interface_that_was_given_to_a_pod() {
    in_scene(|scene| {
        scene.apply_because(NEW_DEVICE, &[(RPS, text(RPS), "1")]);
        let pod = scene.pair.path(Side::Client);
        watch_while(scene, || ip(&format!("link set np1 netns {pod}")));
        // It is known to be there, and not lost.
        let entry = &scene.status()[0];
        let reason = entry["reason"].as_str().unwrap();
        assert!(entry["state"].is_null() && reason.contains("network namespace"), "{entry}");
        assert!(!scene.command(&["rollback"]).output().unwrap().status.success());
        let home = scene.pair.path(Side::Server);
        scene.on(Side::Client, || {
            assert_eq!((mask(RPS).as_str(), scene.states()[0].as_str()), ("1", "applied"));
            ip(&format!("link set np1 netns {home}"));
        });
        assert_eq!(scene.states()[0], "applied");
        scene.run(&["rollback"]);
        assert_eq!((mask(RPS).as_str(), scene.states().len()), ("", 0));
    });
}

#[test]
fn a_change_is_undone_in_the_namespace_that_its_interface_is_in() {
    in_scene(|scene| {
        scene.apply(&[(RPS, "1")]);
        ip(&format!("link set np1 netns {}", scene.pair.path(Side::Client)));
        // Another one with its name and value.
        ip(&format!("link add np1 {QUEUES} type veth peer name np9 {QUEUES}"));
        write(RPS, "1");
        assert_eq!(scene.states(), ["unknown"]);
        scene.command(&["rollback", "--force"]).output().unwrap();
        scene.run(&["watch", "--once"]);
        assert_eq!((mask(RPS).as_str(), scene.states().len()), ("1", 1));
        scene.on(Side::Client, || {
            scene.run(&["rollback"]);
            assert_eq!((mask(RPS).as_str(), scene.states().len()), ("", 0));
        });
        assert_eq!(mask(RPS), "1");
    });
}

#[test]
fn an_interrupted_re_apply_that_is_not_visible_stays_in_the_journal() {
    in_scene(|scene| {
        write(FLOWS, "32");
        scene.apply(&[(FLOWS, "64")]);
        ip("link del np1");
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        scene.run(&["watch", "--once"]);
        // As if it had been killed after the write: the last record is that of its end.
        let file = scene.journal.path().join("journal.jsonl");
        let journal = fs::read_to_string(&file).unwrap();
        let (begun, end) = journal.trim_end().rsplit_once('\n').unwrap();
        assert!(end.contains(r#""event":"done""#), "{end}");
        fs::write(&file, format!("{begun}\n")).unwrap();
        scene.on(Side::Client, || scene.run(&["watch", "--once"]));
        assert_eq!(scene.states(), ["applied"; 2]);
        // The next one in its namespace ends it.
        scene.run(&["watch", "--once"]);
        assert_eq!((text(FLOWS).as_str(), scene.states().len()), ("64", 1));
        // To what the queue was re-created with.
        scene.run(&["rollback"]);
        assert_eq!((text(FLOWS).as_str(), scene.states().len()), ("0", 0));
    });
}

#[test]
fn a_rollback_follows_a_renamed_interface_and_skips_its_namesake() {
    const XPS: &str = "/sys/class/net/np1/queues/tx-0/xps_cpus";
    const RPS_0: &str = "/sys/class/net/np1/queues/rx-0/rps_cpus";
    const LENGTH: &str = "/sys/class/net/np1/tx_queue_len";
    const FILES: [(&str, &str); 3] = [(XPS, "1"), (RPS_0, "1"), (LENGTH, "777")];
    in_scene(|scene| {
        let files = |name: &str| FILES.map(|(file, _)| text(&file.replace("np1", name)));
        let before = (files("np1"), gro("np1"));
        let other = if gro("np1") == "on" { "off" } else { "on" };
        scene.apply(&FILES);
        scene.apply_because(
            "a test",
            &[
                ("ethtool np1 feature rx-gro", gro("np1").to_owned(), other),
                ("ethtool np1 channels", "rx 2 tx 2".to_owned(), "rx 1 tx 1"),
            ],
        );
        rename("np1", "wan0");
        // Another interface gets the name, with the same values.
        ip(&format!("link add np1 {QUEUES} type veth peer name np9 {QUEUES}"));
        let namesake = Scene { journal: tempfile::tempdir().unwrap(), pair: scene.pair.clone() };
        namesake.apply(&FILES);
        namesake.apply_because(
            "a test",
            &[("ethtool np1 channels", "rx 2 tx 2".to_owned(), "rx 1 tx 1")],
        );
        let others = (files("np1"), gro("np1"), nic("np1").rx_queues.len());
        for entry in scene.status() {
            let target = entry["target"].as_str().unwrap();
            assert!(entry["state"] == "applied" && target.contains("wan0"), "{entry}");
        }
        scene.run(&["verify"]);
        let script = scene.run(&["export", "--applied", "--as", "sh"]).stdout;
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("/wan0/") && !script.contains("np1"), "{script}");
        assert!(scene.run(&["watch", "--once"]).stdout.is_empty());
        scene.run(&["rollback"]);
        assert_eq!((files("wan0"), gro("wan0")), before);
        assert_eq!(nic("wan0").rx_queues.len(), 2);
        assert_eq!((files("np1"), gro("np1"), nic("np1").rx_queues.len()), others);
        assert_eq!(scene.states().len(), 0);
        namesake.run(&["rollback"]);
    });
}

#[test]
fn an_xdp_program_is_detached_from_the_renamed_interface() {
    if !require_bpf() {
        return;
    }
    in_scene(|scene| {
        let attached = |name: &str| {
            let said = Command::new("ip").args(["link", "show", name]).output().unwrap().stdout;
            String::from_utf8(said).unwrap().contains("prog/xdp")
        };
        let attach = [("xdp np1 priorities", "none".to_owned(), "pcp 3 cpu 0")];
        scene.apply_because("a test", &attach);
        rename("np1", "wan0");
        ip(&format!("link add np1 {QUEUES} type veth peer name np9 {QUEUES}"));
        let namesake = Scene { journal: tempfile::tempdir().unwrap(), pair: scene.pair.clone() };
        namesake.apply_because("a test", &attach);
        assert!(attached("wan0") && attached("np1"));
        scene.run(&["rollback"]);
        assert!(!attached("wan0") && attached("np1"));
        assert_eq!(scene.states().len(), 0);
        namesake.run(&["rollback"]);
    });
}
