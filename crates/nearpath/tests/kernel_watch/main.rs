//! `nearpath tune watch` on this kernel: an interface that is removed and re-created gets its settings back as its queues
//! appear; external changes are skipped; SIGTERM stops it. Names and namespaces are those of [`moved`].

mod moved;
mod scene;

use nearpath_testing::wait_for;
use scene::{in_scene, ip, text, write};
use serde_json::json;

const RPS: &str = "/sys/class/net/np1/queues/rx-1/rps_cpus";
const FLOWS: &str = "/sys/class/net/np1/queues/rx-1/rps_flow_cnt";
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";
const QUEUES: &str = "numrxqueues 2 numtxqueues 2";

#[test]
fn a_re_created_device_gets_its_settings_back() {
    in_scene(|scene| {
        write(FLOWS, "32");
        scene.apply(&[(RPS, "1"), (FLOWS, "64"), (SOMAXCONN, "321")]);
        let watch = scene.watch("1day", &[]);
        ip("link del np1");
        watch.next("lost", RPS);
        assert_eq!(scene.states(), ["lost", "lost", "applied"]);
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        let restored = watch.next("restored", FLOWS);
        // The value before is that of the new queue, not of the old one.
        assert_eq!((&restored["before"], &restored["after"]), (&json!("0"), &json!("64")));
        assert_eq!(restored["lost"], 2);
        wait_for("the journal", || (scene.states() == ["applied"; 3]).then_some(()));
        assert_eq!((text(RPS).trim_start_matches('0'), text(FLOWS).as_str()), ("1", "64"));
        // Once more, without time to notice that it was gone.
        ip("link del np1");
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        watch.next("restored", FLOWS);
        assert!(watch.end().iter().all(|line| line["target"] != SOMAXCONN));
        scene.run(&["verify"]);
        scene.run(&["rollback"]);
        assert_eq!((text(RPS).trim_start_matches(['0', ',']), text(FLOWS).as_str()), ("", "0"));
        assert_ne!(text(SOMAXCONN), "321");
    });
}

#[test]
fn external_changes_are_reported_and_skipped() {
    in_scene(|scene| {
        scene.apply(&[(RPS, "1"), (FLOWS, "64")]);
        let watch = scene.watch("100ms", &[]);
        write(FLOWS, "128");
        let line = watch.next("drifted", FLOWS);
        assert!(line["reason"].as_str().unwrap().contains("128"), "{line}");
        // The queue was re-created with the kernel's value: the change is lost, which is not drift.
        ip("link del np1");
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        watch.next("restored", FLOWS);
        assert_eq!(text(FLOWS), "64");
        write(FLOWS, "256");
        watch.next("drifted", FLOWS);
        let more = watch.end();
        assert!(more.len() <= 1, "each is reported once: {more:?}");
        assert_eq!(text(FLOWS), "256");
        assert_eq!(scene.states(), ["applied", "drifted"]);
        scene.run(&["rollback", "--force"]);
    });
}

#[test]
fn once_re_applies_and_exits() {
    in_scene(|scene| {
        assert!(scene.run(&["watch", "--once"]).stdout.is_empty(), "nothing is changed yet");
        scene.apply(&[(RPS, "1")]);
        assert!(scene.run(&["watch", "--once"]).stdout.is_empty(), "nothing is lost");
        // A restored old value is intentional.
        write(RPS, "0");
        let said = String::from_utf8(scene.run(&["watch", "--once"]).stdout).unwrap();
        assert!(said.contains("skipped: changed back externally"), "{said}");
        assert!(!text(RPS).ends_with('1'));
        // On a re-created queue the change is lost.
        ip("link del np1");
        ip(&format!("link add np1 {QUEUES} type veth peer name np0 {QUEUES}"));
        let said = String::from_utf8(scene.run(&["watch", "--once"]).stdout).unwrap();
        assert!(said.contains("re-applied") && said.lines().count() == 1, "{said}");
        assert!(text(RPS).ends_with('1'));
        let bad = scene.command(&["watch", "--interval", "1ms"]).output().unwrap();
        assert_eq!(bad.status.code(), Some(2));
        scene.run(&["rollback"]);
    });
}
