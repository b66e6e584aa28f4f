//! What `measure locality` prints, as text, JSON and a picture, as files in `golden/`.

mod golden_files;

use golden_files::{golden, golden_json};
use nearpath_model::locality::{
    CpuPairCount, Distances, Fates, LOCALITY_SCHEMA, Locality, LocalityGroup, Method,
};
use nearpath_model::{Cost, CpuId, Direction, NodeId, Per, Place};
use nearpath_views::{svg, text};

fn places(direction: Direction, from: u32, to: u32, per_node: u32, count: u64) -> CpuPairCount {
    let node = |cpu: u32| Some(NodeId(cpu / per_node));
    let place = Place {
        from_cpu: CpuId(from),
        to_cpu: CpuId(to),
        from_node: node(from),
        to_node: node(to),
        count,
    };
    CpuPairCount { direction, place }
}

fn group(name: &str, rx: (u64, u64), tx: (u64, u64)) -> LocalityGroup {
    let distances = |(packets, same_cpu)| Distances {
        packets,
        same_cpu,
        other_node: packets - same_cpu,
        ..Distances::default()
    };
    LocalityGroup { per: Per::Process, name: name.into(), rx: distances(rx), tx: distances(tx) }
}

/// Two nodes of two CPUs.
fn locality() -> Locality {
    let place = |direction, from, to, count| places(direction, from, to, 2, count);
    Locality {
        schema: LOCALITY_SCHEMA,
        duration_s: 10.0,
        filter: "--proto tcp --port 8181".into(),
        method: Method::Exact,
        fallback: None,
        rx: Distances {
            packets: 1000,
            same_cpu: 250,
            same_llc: 250,
            other_node: 500,
            ..Distances::default()
        },
        tx: Distances { packets: 400, same_cpu: 400, ..Distances::default() },
        packets: Fates {
            started: 1500,
            completed: 1390,
            dropped: 10,
            abandoned: 60,
            collided: 30,
            not_allocated: 10,
            returned: 700,
            sampled_out: 2,
        },
        events_lost: 1,
        cost: Some(Cost {
            ns_per_packet: 206.1,
            ns_per_event: 47.2,
            dispatch_ns: None,
            cpu_percent: 0.163,
        }),
        places: vec![
            place(Direction::Rx, 0, 0, 250),
            place(Direction::Rx, 0, 1, 250),
            place(Direction::Rx, 0, 3, 500),
            place(Direction::Tx, 3, 3, 400),
        ],
        groups: vec![
            group("nginx/4711", (800, 200), (400, 400)),
            group("others", (200, 50), (0, 0)),
        ],
    }
}

/// 32 CPUs of 4 nodes, where only tracepoints can be attached to.
fn large() -> Locality {
    let place = |cpu: u32| places(Direction::Rx, cpu, (cpu * 3) % 32, 8, u64::from(cpu) * 10);
    let rx = (1..32u32).map(|cpu| u64::from(cpu) * 10).sum();
    Locality {
        method: Method::Tracepoints,
        fallback: Some("the kernel does not permit programs at its functions".into()),
        filter: String::new(),
        rx: Distances { packets: rx, unknown: rx, ..Distances::default() },
        tx: Distances::default(),
        packets: Fates { started: rx, completed: rx, ..Fates::default() },
        cost: None,
        groups: Vec::new(),
        places: (1..32).map(place).collect(),
        ..locality()
    }
}

#[test]
fn locality_is_shown_by_cpu() {
    golden("locality.txt", &text::locality(&locality()));
    golden_json("locality.json", &locality());
    golden("locality.svg", &svg::locality(&locality()));
}

#[test]
fn a_large_host_is_shown_by_node() {
    golden("locality-nodes.txt", &text::locality(&large()));
}

#[test]
fn without_packets_there_is_no_matrix() {
    let none = Locality { method: Method::Exact, ..Locality::default() };
    let printed = text::locality(&none);
    assert!(printed.contains("no packet was seen") && !printed.contains("allocated (down)"));
    assert!(svg::locality(&none).contains("received: 0 packets"));
}

#[test]
fn json_is_read_back() {
    let json = serde_json::to_string(&locality()).unwrap();
    assert_eq!(serde_json::from_str::<Locality>(&json).unwrap(), locality());
}
