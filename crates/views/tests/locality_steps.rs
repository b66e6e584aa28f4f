//! What `demo locality` prints, as text and JSON, as files in `golden/`.

mod golden_files;

use golden_files::{golden, golden_json};
use nearpath_model::locality::{CpuPairCount, Distances, Method};
use nearpath_model::{CpuId, CpuSet, Direction, Place, ProposedChange, accepts};
use nearpath_views::json::{LOCALITY_STEPS_SCHEMA, LocalityStep, LocalitySteps, NotMade};
use nearpath_views::text;

fn distances(packets: u64, same_cpu: u64) -> Distances {
    Distances { packets, same_cpu, same_llc: packets - same_cpu, ..Distances::default() }
}

fn change(target: &str, before: &str, after: &str, why: &str) -> ProposedChange {
    ProposedChange {
        target: target.to_owned().try_into().unwrap(),
        before: Some(before.into()),
        after: after.into(),
        why: why.into(),
        alternative: false,
        netns: None,
    }
}

fn places(direction: Direction, from: u32, to: u32, count: u64) -> CpuPairCount {
    let (from_cpu, to_cpu) = (CpuId(from), CpuId(to));
    CpuPairCount {
        direction,
        place: Place { from_cpu, to_cpu, from_node: None, to_node: None, count },
    }
}

/// A step with shares of packets received, sent and of connections that are local.
fn step(name: &str, rx: u64, tx: u64, accepted: u64, busiest: f64) -> LocalityStep {
    LocalityStep {
        name: name.into(),
        duration_s: 2.0,
        rx: distances(10_000, rx),
        tx: distances(9_000, tx),
        accepts: accepts::DistanceCounts {
            accepts: 400,
            same_cpu: accepted,
            same_llc: 400 - accepted,
            ..accepts::DistanceCounts::default()
        },
        busiest_cpu: Some(busiest),
        ..LocalityStep::default()
    }
}

fn steps() -> LocalitySteps {
    let rps = |queue| {
        let file = format!("/sys/class/net/demo-server/queues/rx-{queue}/rps_cpus");
        change(&file, "1", "0", "packets are processed on the receiving CPU")
    };
    LocalitySteps {
        schema: LOCALITY_STEPS_SCHEMA,
        method: Method::Tracepoints,
        fallback: Some("the kernel does not permit programs at its functions".into()),
        cpus: CpuSet::from_list("0-1").unwrap(),
        steps: vec![
            step("as found", 4_987, 4_510, 203, 0.5075),
            LocalityStep {
                changes: vec![change(
                    "affinity pid 4711",
                    "0-1",
                    "0",
                    "each worker stays on its own CPU",
                )],
                ..step("workers pinned", 5_011, 4_498, 197, 0.5125)
            },
            LocalityStep {
                changes: (0..6).map(rps).collect(),
                not_followed: 3,
                events_lost: 2,
                places: vec![
                    places(Direction::Rx, 0, 0, 5_000),
                    places(Direction::Rx, 0, 1, 3),
                    places(Direction::Rx, 1, 0, 5),
                    places(Direction::Rx, 1, 1, 4_992),
                    places(Direction::Tx, 1, 0, 1),
                    places(Direction::Tx, 1, 1, 8_999),
                ],
                ..step("RPS off", 9_992, 8_999, 400, 0.505)
            },
        ],
        not_made: vec![NotMade {
            name: "XPS".into(),
            reason: "an interface with one transmit queue has no XPS".into(),
        }],
    }
}

#[test]
fn steps_are_told_in_a_table() {
    golden("locality-steps.txt", &text::locality_steps(&steps()));
    golden_json("locality-steps.json", &steps());
}

#[test]
fn without_packets_nothing_is_claimed() {
    let one = LocalityStep { name: "as found".into(), ..LocalityStep::default() };
    let printed = text::locality_steps(&LocalitySteps { steps: vec![one], ..Default::default() });
    let row = printed.lines().find(|line| line.starts_with("0 as found")).unwrap();
    assert_eq!(row.split_whitespace().filter(|cell| *cell == "-").count(), 7, "{printed}");
    assert!(printed.contains("0 of 0 packets received, 0 of 0 sent"), "{printed}");
    assert!(!text::locality_steps(&LocalitySteps::default()).contains("not local"));
}

#[test]
fn json_is_read_back() {
    let json = serde_json::to_string(&steps()).unwrap();
    assert_eq!(serde_json::from_str::<LocalitySteps>(&json).unwrap(), steps());
}
