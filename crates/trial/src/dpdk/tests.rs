use super::reading::{VhostReading, WorkerReading};
use super::*;
use nearpath_model::{CpuId, CpuTask};
use std::time::{Duration, Instant};

fn cpus(list: &str) -> CpuSet {
    CpuSet::from_list(list).unwrap()
}

fn reading(at: Instant, [interrupts, involuntary, waited]: [u64; 3], imissed: u64) -> DpdkReading {
    let worker = WorkerReading {
        lcore: 1,
        cpus: cpus("3"),
        interrupts: Some(interrupts),
        involuntary: Some(involuntary),
        waited_ns: Some(waited),
    };
    let (workers, vhost) = (vec![worker], Vec::new());
    DpdkReading { at, workers, vhost, imissed: Some(imissed), rx_nombuf: None }
}

fn block(is_planned: bool, more: u64) -> DpdkBlock {
    let start = Instant::now();
    let end = start + Duration::from_secs(2);
    let histogram = vec![(1000, 10 - more)];
    DpdkBlock {
        is_planned,
        is_overloaded: false,
        measured: Measured { sent: 10, lost: more, histogram, ..Measured::default() },
        bits_per_s: None,
        before: reading(start, [100, 5, 1_000], 7),
        after: reading(end, [100 + 200 * more, 5 + more, 1_000 + 20_000_000 * more], 7 + more),
        observed: None,
    }
}

#[test]
fn rates_are_of_all_blocks_of_a_scenario() {
    let blocks = [block(false, 2), block(true, 0), block(true, 0), block(false, 4)];
    let [without, with] = &dpdk_results(&blocks)[..] else { panic!() };
    assert_eq!((without.lost, without.imissed, without.rx_nombuf), (6, Some(6), None));
    assert!(!without.is_overloaded && without.vhost.is_none() && without.bits_per_s.is_none());
    let worker = &without.workers[0];
    assert_eq!(
        (worker.interrupts_per_s, worker.involuntary_switches_per_s),
        (Some(300.0), Some(1.5))
    );
    assert_eq!((worker.waited_percent, worker.vhost_percent), (Some(3.0), None));
    assert_eq!((with.lost, with.imissed, with.workers[0].waited_percent), (0, Some(0), Some(0.0)));
}

#[test]
fn overloaded_blocks_are_rows_of_their_own() {
    let overloaded = |is_planned, more, bits_per_s| DpdkBlock {
        is_overloaded: true,
        bits_per_s,
        ..block(is_planned, more)
    };
    let blocks = [
        block(false, 1),
        overloaded(false, 5, Some(1e6)),
        overloaded(true, 3, None),
        block(true, 0),
        overloaded(false, 6, Some(3e6)),
    ];
    let rows = dpdk_results(&blocks);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (row.scenario, row.is_overloaded, row.lost, row.bits_per_s))
        .collect();
    assert_eq!(
        shown,
        [
            (DpdkScenario::WithoutPlan, false, 1, None),
            (DpdkScenario::WithPlan, false, 0, None),
            (DpdkScenario::WithoutPlan, true, 11, Some(2e6)),
            (DpdkScenario::WithPlan, true, 3, None),
        ]
    );
    assert_eq!(rows[2].bits_per_s_of_blocks, [1e6, 3e6]);
}

/// Each block has a process of its own, whose vhost thread has another name and id.
#[test]
fn vhost_threads_and_others_are_shares_of_the_time() {
    let with_vhost = |pid: u32, ms: u64, others: &[(&str, u64)]| {
        let mut block = block(false, 0);
        let vhost = |ran_ns| VhostReading {
            tid: pid + 1,
            cpus: Some(cpus("1,3")),
            ran_ns: Some(ran_ns),
            waited_ns: Some(ran_ns / 2),
        };
        block.before.vhost = vec![vhost(1_000)];
        block.after.vhost = vec![vhost(1_000 + ms * 2_000_000)];
        let task = |(comm, ms, is_worker): (String, u64, bool)| CpuTask {
            comm,
            ran_ns: ms * 1_000_000,
            is_worker,
            ..CpuTask::default()
        };
        let others = others.iter().map(|(name, ms)| ((*name).to_owned(), *ms, false));
        let all =
            others.chain([(format!("vhost-{pid}"), ms, false), ("rte".to_owned(), 900, true)]);
        let here = WorkerCpu { tasks: all.map(task).collect(), ..WorkerCpu::new(CpuId(3)) };
        let elsewhere = WorkerCpu {
            tasks: vec![task(("stress".to_owned(), 2_000, false))],
            ..WorkerCpu::new(CpuId(2))
        };
        block.observed = Some(Observed { seconds: 2.0, cpus: vec![here, elsewhere] });
        block
    };
    let many = [("a", 8), ("b", 4), ("c", 4), ("d", 1)];
    let rows = dpdk_results(&[with_vhost(10, 40, &many), with_vhost(20, 80, &[("a", 4)])]);
    let worker = &rows[0].workers[0];
    assert_eq!(worker.vhost_percent, Some(3.0));
    let others: Vec<_> =
        worker.others.iter().map(|other| (other.name.as_str(), other.percent)).collect();
    assert_eq!(others, [("vhost", 3.0), ("a", 0.3), ("b", 0.1)]);
    let vhost = rows[0].vhost.as_ref().unwrap();
    assert_eq!((vhost.threads, vhost.cpus.to_string()), (1, "1,3".to_owned()));
    assert_eq!((vhost.ran_percent, vhost.waited_percent), (Some(6.0), Some(3.0)));
}
