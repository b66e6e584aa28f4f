//! Plans of scheduled transmission on synthetic hosts.

use super::schedule::{Schedule, ScheduleRule};
use super::tests::planned_for;
use super::*;
use nearpath_model::{Clocks, Qdisc, QueueId, TxQueue};

fn own(kind: &str, parent: &str) -> Qdisc {
    Qdisc {
        kind: kind.to_owned(),
        handle: "0:0".to_owned(),
        parent: parent.to_owned(),
        drops: None,
        overlimits: None,
        backlog_packets: None,
        scheduler: None,
    }
}

/// A host whose first NIC has so many transmit queues, with set clocks.
fn host_with(queues: u32) -> (Host, String) {
    let mut host = super::ethtool_tests::host_with(&[&[0], &[1]]);
    let clocks = Clocks { tai_offset_s: 37, synchronised: true, ..Clocks::default() };
    host.clocks = Some(clocks);
    let nic = host.nics.first_mut().unwrap();
    nic.speed_mbps = Some(1_000);
    nic.qdiscs = Some(vec![own("mq", "root"), own("fq_codel", "0:1")]);
    let queue = |number| TxQueue {
        queue: QueueId(number),
        napi_id: None,
        irq: None,
        xps_cpus: None,
        xps_rxqs: None,
        byte_limit: None,
    };
    nic.tx_queues = (0..queues).map(queue).collect();
    let name = nic.name.clone();
    (host, name)
}

fn request(nic: &str, rules: &[(u8, ScheduleRule, bool)]) -> Request {
    let schedule = |&(priority, rule, offload): &_| Schedule { priority, rule, offload };
    Request {
        nics: vec![nic.to_owned()],
        schedules: rules.iter().map(schedule).collect(),
        ..Request::default()
    }
}

const ETF: ScheduleRule = ScheduleRule::Etf { delta_ns: 5_000_000 };
const GATE: ScheduleRule = ScheduleRule::Gate { open_ns: 300_000, cycle_ns: 1_000_000 };
const RATE: ScheduleRule = ScheduleRule::Rate { kbit_s: 98_688 };

fn qdiscs(plan: &Plan) -> Vec<(String, String)> {
    let all = plan.changes.iter().filter(|change| matches!(change.target, Target::Qdiscs(_)));
    all.map(|change| (change.before.to_string(), change.after.to_string())).collect()
}

#[test]
fn each_priority_has_a_queue_and_its_rule() {
    let (host, nic) = host_with(4);
    let before = "default mq fq_codel".to_owned();
    let after = |rules: &[_]| {
        let planned = qdiscs(&planned_for(&host, &request(&nic, rules), &[]).unwrap());
        let [(was, after)] = &planned[..] else { panic!("{planned:?}") };
        assert_eq!(*was, before);
        after.clone()
    };
    let mqprio =
        "root 100: mqprio num_tc 2 map 1 1 1 0 1 1 1 1 1 1 1 1 1 1 1 1 queues 1@0 3@1 hw 0; 100:1";
    assert_eq!(after(&[(3, ETF, false)]), format!("{mqprio} etf clockid CLOCK_TAI delta 5000000"));
    assert_eq!(
        after(&[(3, ETF, true)]),
        format!("{mqprio} etf clockid CLOCK_TAI delta 5000000 offload")
    );
    // The example of tc-cbs(8).
    assert_eq!(
        after(&[(3, RATE, false)]),
        format!(
            "{mqprio} cbs idleslope 98688 sendslope -901312 hicredit 153 locredit -1389 offload 0"
        )
    );
    assert_eq!(
        after(&[(5, GATE, false)]),
        "root 100: taprio num_tc 2 map 1 1 1 1 1 0 1 1 1 1 1 1 1 1 1 1 queues 1@0 3@1 base-time 0 cycle-time 1000000 \
         sched-entry S 01 300000 sched-entry S 02 700000 clockid CLOCK_TAI"
    );
    assert_eq!(
        after(&[(5, ETF, false), (3, RATE, false)]),
        "root 100: mqprio num_tc 3 map 2 2 2 1 2 0 2 2 2 2 2 2 2 2 2 2 queues 1@0 1@1 2@2 hw 0; 100:1 etf clockid \
         CLOCK_TAI delta 5000000; 100:2 cbs idleslope 98688 sendslope -901312 hicredit 153 locredit -1389 offload 0"
    );
    assert!(after(&[(5, GATE, true)]).ends_with("sched-entry S 02 700000 flags 0x2"));
}

#[test]
fn a_set_schedule_is_not_planned_again() {
    let (mut host, nic) = host_with(4);
    let asked = request(&nic, &[(3, ETF, false)]);
    let (_, after) = qdiscs(&planned_for(&host, &asked, &[]).unwrap()).remove(0);
    let (root, leaf) = after.strip_prefix("root 100: ").unwrap().split_once("; 100:1 ").unwrap();
    let set = |kind: &str, handle: &str, parent: &str, text: &str| Qdisc {
        handle: handle.to_owned(),
        scheduler: Some(text.parse().unwrap()),
        ..own(kind, parent)
    };
    let mut all = vec![set("mqprio", "100:0", "root", root), set("etf", "8001:0", "100:1", leaf)];
    host.nics[0].qdiscs = Some(all.clone());
    assert!(qdiscs(&planned_for(&host, &asked, &[]).unwrap()).is_empty());
    // Nor is the qdisc of an administrator replaced.
    all.push(Qdisc { handle: "9:0".to_owned(), ..own("netem", "100:2") });
    host.nics[0].qdiscs = Some(all);
    let plan = planned_for(&host, &request(&nic, &[(3, RATE, false)]), &[]).unwrap();
    assert!(qdiscs(&plan).is_empty());
    assert!(plan.notes.iter().any(|note| note.contains("netem 9:0 at 100:2")), "{:?}", plan.notes);
}

#[test]
fn too_few_queues_are_noted() {
    for (queues, rules) in [(1, 1), (2, 2), (0, 1)] {
        let (host, nic) = host_with(queues);
        let rules: Vec<_> = (0..rules).map(|priority| (priority, ETF, false)).collect();
        let plan = planned_for(&host, &request(&nic, &rules), &[]).unwrap();
        assert!(qdiscs(&plan).is_empty(), "{queues}");
        let says = format!("it has {queues} transmit queues");
        assert!(plan.notes.iter().any(|note| note.contains(&says)), "{:?}", plan.notes);
    }
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let (mut host, nic) = host_with(4);
    let refusal =
        |host: &Host, request: &Request| planned_for(host, request, &[]).unwrap_err().to_string();
    let twice = request(&nic, &[(3, ETF, false), (3, RATE, false)]);
    assert!(refusal(&host, &twice).contains("twice for the same priority"));
    for other in [GATE, ETF, RATE] {
        let gates = request(&nic, &[(3, GATE, false), (4, other, false)]);
        assert!(refusal(&host, &gates).contains("a gate cannot be combined"));
    }
    let nowhere = Request { nics: vec![], ..request(&nic, &[(3, ETF, false)]) };
    assert!(refusal(&host, &nowhere).contains("needs --nic"));
    assert!(refusal(&host, &request(&nic, &[(16, ETF, false)])).contains("0 to 15"));
    // A time needs a clock; a rate does not.
    host.clocks.as_mut().unwrap().tai_offset_s = 0;
    for rule in [ETF, GATE] {
        assert!(
            refusal(&host, &request(&nic, &[(3, rule, false)])).contains("CLOCK_TAI is not set")
        );
    }
    assert_eq!(
        qdiscs(&planned_for(&host, &request(&nic, &[(3, RATE, false)]), &[]).unwrap()).len(),
        1
    );
}

#[test]
fn clocks_that_are_not_kept_are_noted() {
    let (mut host, nic) = host_with(4);
    let notes = |host: &Host, offload| {
        planned_for(host, &request(&nic, &[(3, ETF, offload)]), &[]).unwrap().notes.join("\n")
    };
    assert!(!notes(&host, false).contains("synchronised"));
    assert!(notes(&host, true).contains("phc2sys"));
    host.clocks.as_mut().unwrap().synchronised = false;
    assert!(notes(&host, false).contains("the wall clock is not synchronised"));
    host.clocks = None;
    assert!(notes(&host, false).contains("the clocks are unknown"));
}
