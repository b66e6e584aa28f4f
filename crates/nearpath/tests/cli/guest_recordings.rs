//! `measure vm --measured --guest`: a host's measurement and a guest's recording from files.

use super::{nearpath, parts};
use nearpath_model::Measurement;
use nearpath_model::clock::{ClockReading, Clocks, GuestTsc};
use nearpath_model::vm::{MeasuredVm, VcpuPause, VcpuPauses, VmMeasurement};

/// The lab has a real guest (`lab/tests/test_vm_guest.py`).
#[test]
fn recordings_of_a_host_and_its_guest_are_put_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let reading = |seconds: u64, tsc: u64| ClockReading {
        monotonic_ns: seconds * 1_000_000_000,
        tsc: tsc * 1_000_000_000,
    };
    let pause = VcpuPause {
        vcpu: 0,
        start_ns: 2_000_000_000,
        end_ns: 2_060_000_000,
        throttled: false,
        behind: Some("hog".to_owned()),
    };
    let vm = |pid| MeasuredVm {
        pid: Some(pid),
        pauses: Some(VcpuPauses { shortest_ns: 1, kept: vec![pause.clone()] }),
        tsc: Some(GuestTsc { offset: 0, ratio: 1, fraction_bits: 0 }),
        ..MeasuredVm::default()
    };
    let clocks = Some(Clocks { begin: reading(1, 1), end: reading(9, 9) });
    let of = |vms| VmMeasurement { vms, clocks, ..VmMeasurement::default() };
    let json = |measured: &VmMeasurement| serde_json::to_string(measured).unwrap();
    let one = file("one", &json(&of(vec![vm(7)])));
    let two = file("two", &json(&of(vec![vm(7), vm(8)])));
    let none = file("none", &json(&of(Vec::new())));
    let guest = Measurement { clocks, ..Measurement::default() };
    let guest = file("guest", &serde_json::to_string(&guest).unwrap());
    let ran = |words: &[&str]| parts(&nearpath(&[&["measure", "vm"], words].concat()));

    let (status, out, err) = ran(&["--measured", &one, "--guest", &guest]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(out.lines().next(), Some("no late span in the guest's recording"));
    let (status, out, _) = ran(&["--measured", &two, "--guest", &guest, "--vm", "8", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &document["vms"][0]["pid"]), (0, &serde_json::json!(8)));
    assert_eq!(document["guest"]["outside"], 0);

    let missing = dir.path().join("missing");
    for (words, says) in [
        (["--measured", &two, "--guest", &guest].as_slice(), "of 2"),
        (&["--measured", &none, "--guest", &guest], "no virtual machine"),
        (&["--measured", &guest, "--guest", &guest], "not an output of 'measure vm'"),
        (&["--measured", &one, "--guest", &one], "not an output of 'measure stages'"),
        (&["--slow", "1ms", "--guest", missing.to_str().unwrap()], "No such file"),
    ] {
        let (status, out, err) = ran(words);
        assert_eq!((status, out.as_str()), (1, ""), "{words:?}: {err}");
        assert!(err.contains(says), "{words:?}: {err}");
    }
    let (status, _, err) = ran(&["--slow", "1ms", "--guest", &guest, "--interval", "1s"]);
    assert_eq!(status, 2, "intervals are printed before the guest has ended: {err}");
    let (status, _, err) = ran(&["--guest", &guest]);
    assert_eq!(status, 2, "neither measures waits, nor has them: {err}");
}
