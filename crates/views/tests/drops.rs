//! What `measure drops` prints, as files in `golden/`.

mod golden_files;

use golden_files::{golden, golden_json};
use nearpath_model::drops::DropMeasurement;
use nearpath_views::text;
use serde_json::json;

/// What the reasons mean, as the kernel's tracepoint does not tell.
fn meaning(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "SOCKET_RCVBUFF" => {
            "receive buffer full: the reader is too slow, or the buffer too small (SO_RCVBUF, \
             net.core.rmem_default)"
        }
        "NO_SOCKET" => "no socket: no listener on the port",
        "CPU_BACKLOG" => {
            "CPU backlog full: its CPU receives more than it can process \
             (net.core.netdev_max_backlog), or the RPS flow limit was reached"
        }
        _ => return None,
    })
}

/// Two reasons in two namespaces, and a counter that does not agree.
fn measurement() -> DropMeasurement {
    let drop = |reason: &str, function: &str, stage: &str, device: Option<&str>, packets: u64| {
        json!({
            "reason": reason, "meaning": meaning(reason),
            "function": function, "stage": stage, "device": device, "ifindex": 2,
            "netns": if device == Some("eth0") { 4_026_531_840u32 } else { 4_026_532_315 },
            "protocol": "UDP", "packets": packets, "bytes": packets * 228,
        })
    };
    let document = json!({
        "schema": 1, "duration_s": 10.02, "filter": "--proto udp", "packets": 1240, "bytes": 282_720,
        "main": {"reason": "SOCKET_RCVBUFF", "meaning": "receive buffer full", "share": 0.967_7,
            "protocol": "UDP", "port": 9000, "device": "eth0"},
        "drops": [
            drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", "udp", Some("eth0"), 1200),
            drop("NO_SOCKET", "__udp4_lib_rcv", "udp", Some("eth0"), 30),
            drop("CPU_BACKLOG", "enqueue_to_backlog", "backlog", None, 8),
        ],
        "netns_names": {"4026532315": "blue"},
        "flows": [{"flow": "UDP 10.0.0.1:5000 > 10.0.0.2:9000", "reason": "SOCKET_RCVBUFF",
            "netns": 4_026_531_840u32, "packets": 1200, "bytes": 273_600}],
        "groups": [
            {"per": "stage", "name": "udp", "packets": 1230, "bytes": 280_440},
            {"per": "stage", "name": "others", "packets": 10, "bytes": 2280},
        ],
        "no_room": {"packets": 2, "flow_packets": 0}, "not_packets": 3,
        "counters": [
            {"counter": "Udp.RcvbufErrors", "device": null, "least": 1198, "most": 1203,
                "seen": 1200, "agrees": true},
            {"counter": "Udp.NoPorts", "device": null, "least": 35, "most": 35, "seen": 30,
                "agrees": false},
            {"counter": "TcpExt.ListenDrops", "device": null, "least": 4, "most": 4, "seen": null,
                "agrees": null},
            {"counter": "qdisc fq_codel", "device": "eth0", "least": 7, "most": 7, "seen": 7,
                "agrees": true},
        ],
        "devices": [{"device": "eth0", "rx_dropped": 12, "rx_errors": 0, "tx_dropped": 0, "tx_errors": 1}],
        "events_lost": 1, "cost": {"ns_per_event": 369.4, "cpu_percent": 0.118}, "unknown": [],
    });
    serde_json::from_value(document).unwrap()
}

#[test]
fn drops_are_told_with_their_reasons_and_counters() {
    golden("drops.txt", &text::drops(&measurement(), 10));
    golden_json("drops.json", &measurement());
}

#[test]
fn what_is_beyond_the_top_is_others() {
    let printed = text::drops(&measurement(), 1);
    let others = printed.lines().find(|line| line.contains("others")).unwrap();
    assert!(others.trim_start().starts_with("40 "), "{printed}");
}

#[test]
fn json_is_read_back() {
    let json = serde_json::to_string(&measurement()).unwrap();
    assert_eq!(serde_json::from_str::<DropMeasurement>(&json).unwrap(), measurement());
}
