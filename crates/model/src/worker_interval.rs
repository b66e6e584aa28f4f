//! What workers did between two readings. Input: the readings, and what ran on the workers' CPUs. Output: the rates and
//! shares of ports and workers in the later reading, and which workers were disturbed, by whom.

use crate::{
    CpuId, CpuTask, PollingPort, PollingProcess, PollingWorker, PortRates, WorkerActivity,
    WorkerCounts, WorkerCpu, Workers,
};
use std::collections::BTreeMap;

/// Share of the time from which on a thread polls: it ran, or wanted to. A main lcore that waits for commands does not.
pub const POLLING_PERCENT: f64 = 50.0;
/// Share of a worker's time from which on others disturb it.
pub const DISTURBED_PERCENT: f64 = 0.1;
/// A stretch of another task from which on it disturbs: 1,000 packets arrive meanwhile at two million a second, about
/// what a receive ring holds.
pub const DISTURBED_NS: u64 = 500_000;

impl Workers {
    /// Fills in the interval since an earlier reading. Processes, workers and ports that it lacks, and counters that were
    /// reset meanwhile, stay unknown.
    pub fn measure_since(&mut self, before: &Self, duration_s: f64) {
        self.duration_s = Some(duration_s);
        for process in &mut self.processes {
            let then = before.processes.iter().find(|then| then.pid == process.pid);
            let Some(then) = then.filter(|then| then.name == process.name) else { continue };
            for port in &mut process.ports {
                let same = |then: &&PollingPort| then.port == port.port && then.name == port.name;
                if let Some(then) = then.ports.iter().find(same) {
                    port.interval = Some(port_rates(port, then, duration_s));
                }
            }
            for worker in &mut process.workers {
                let same =
                    |then: &&PollingWorker| then.lcore == worker.lcore && then.tid == worker.tid;
                if let Some(then) = then.workers.iter().find(same) {
                    let counts = (&worker.counts, &then.counts);
                    worker.interval = Some(activity(counts.0, counts.1, duration_s));
                }
            }
        }
    }

    /// Adds what ran on the workers' CPUs, and from it who disturbed whom.
    pub fn add_cpus(&mut self, cpus: Vec<WorkerCpu>, switches_observed: bool) {
        self.cpus = cpus;
        let workers: Vec<u32> = self.all_workers().filter_map(|(_, worker)| worker.tid).collect();
        for task in self.cpus.iter_mut().flat_map(|cpu| &mut cpu.tasks) {
            task.is_worker = workers.contains(&task.tid) && task.tid != 0;
        }
        let duration_s = self.duration_s.unwrap_or(0.0);
        let by_cpu: BTreeMap<CpuId, &WorkerCpu> =
            self.cpus.iter().map(|cpu| (cpu.cpu, cpu)).collect();
        for worker in self.processes.iter_mut().flat_map(|process| &mut process.workers) {
            let cpu = worker.only_cpu().and_then(|cpu| by_cpu.get(&cpu).copied());
            let tid = worker.tid;
            let Some(activity) = &mut worker.interval else { continue };
            if let Some(cpu) = cpu {
                activity.stolen_percent = cpu.stolen_percent;
                if switches_observed && tid.is_some() {
                    let others = || cpu.tasks.iter().filter(|task| Some(task.tid) != tid);
                    let ns = others().map(|task| task.ran_ns).fold(0, u64::saturating_add);
                    activity.others_percent = percent_of(ns as f64, duration_s * 1e9);
                    activity.longest_ns = others().map(|task| task.longest_ns).max().or(Some(0));
                }
            }
            activity.is_disturbed = activity.disturbed();
        }
    }

    /// All workers with their processes.
    pub fn all_workers(&self) -> impl Iterator<Item = (&PollingProcess, &PollingWorker)> {
        self.processes.iter().flat_map(|process| process.workers.iter().map(move |w| (process, w)))
    }

    /// The tasks that ran on a worker's CPUs beside it, longest first.
    pub fn others_of<'a>(&'a self, worker: &'a PollingWorker) -> Vec<(CpuId, &'a CpuTask)> {
        let cpus = worker.cpus.as_ref();
        let on = self.cpus.iter().filter(|cpu| cpus.is_some_and(|cpus| cpus.contains(cpu.cpu)));
        let mut tasks: Vec<(CpuId, &CpuTask)> = on
            .flat_map(|cpu| cpu.tasks.iter().map(|task| (cpu.cpu, task)))
            .filter(|(_, task)| Some(task.tid) != worker.tid)
            .collect();
        tasks.sort_by_key(|(cpu, task)| (std::cmp::Reverse(task.ran_ns), *cpu, task.tid));
        tasks
    }
}

impl PollingWorker {
    /// Its CPU, if it has only one.
    pub fn only_cpu(&self) -> Option<CpuId> {
        self.cpus.as_ref().filter(|cpus| cpus.len() == 1)?.first()
    }
}

impl WorkerActivity {
    /// Whether it polls; `None` if that is unknown.
    pub fn polls(&self) -> Option<bool> {
        let wanted = self.ran_percent? + self.delayed_percent.unwrap_or(0.0);
        Some(wanted >= POLLING_PERCENT)
    }

    /// Share of the time that it lost: to tasks, by what ran there or by how long it waited, and to the hypervisor.
    pub fn lost_percent(&self) -> Option<f64> {
        let tasks = self.others_percent.or(self.delayed_percent);
        match (tasks, self.stolen_percent) {
            (None, None) => None,
            (tasks, stolen) => Some(tasks.unwrap_or(0.0) + stolen.unwrap_or(0.0)),
        }
    }

    fn disturbed(&self) -> Option<bool> {
        let polls = self.polls()?;
        let lost = self.lost_percent()?;
        let long = self.longest_ns.is_some_and(|ns| ns >= DISTURBED_NS);
        Some(polls && (lost >= DISTURBED_PERCENT || long))
    }
}

fn rate(now: Option<u64>, then: Option<u64>, duration_s: f64) -> Option<f64> {
    let more = now?.checked_sub(then?)?;
    (duration_s > 0.0).then(|| more as f64 / duration_s)
}

/// A share in percent, at most 100; `None` of nothing.
fn percent_of(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| (part * 100.0 / whole).clamp(0.0, 100.0))
}

fn port_rates(now: &PollingPort, then: &PollingPort, duration_s: f64) -> PortRates {
    let more: Option<Vec<u64>> = (now.queue_packets.len() == then.queue_packets.len())
        .then(|| now.queue_packets.iter().zip(&then.queue_packets))
        .and_then(|pairs| pairs.map(|(now, then)| now.checked_sub(*then)).collect());
    let more = more.unwrap_or_default();
    let sum = more.iter().fold(0u64, |sum, more| sum.saturating_add(*more));
    let share = |more: &u64| percent_of(*more as f64, sum as f64);
    PortRates {
        rx_packets_per_s: rate(now.rx_packets, then.rx_packets, duration_s),
        queue_percent: more.iter().filter_map(share).collect(),
        imissed_per_s: rate(now.imissed, then.imissed, duration_s),
        rx_nombuf_per_s: rate(now.rx_nombuf, then.rx_nombuf, duration_s),
    }
}

fn activity(now: &WorkerCounts, then: &WorkerCounts, duration_s: f64) -> WorkerActivity {
    let more = |now: Option<u64>, then: Option<u64>| now?.checked_sub(then?);
    let share = |part: Option<u64>, whole: Option<u64>| percent_of(part? as f64, whole? as f64);
    let polls = more(now.polls, then.polls);
    let empty = more(now.empty_polls, then.empty_polls);
    let packets = more(now.packets, then.packets);
    let bursts = polls.zip(empty).and_then(|(polls, empty)| polls.checked_sub(empty));
    let of_time = |ns: Option<u64>| percent_of(ns? as f64, duration_s * 1e9);
    let busy_cycles = more(now.busy_cycles, then.busy_cycles);
    WorkerActivity {
        busy_percent: share(busy_cycles, more(now.total_cycles, then.total_cycles)),
        empty_poll_percent: share(empty, polls),
        full_burst_percent: share(more(now.full_bursts, then.full_bursts), polls),
        packets_per_burst: packets
            .zip(bursts.filter(|bursts| *bursts > 0))
            .map(|(packets, bursts)| packets as f64 / bursts as f64),
        packets_per_s: rate(now.packets, then.packets, duration_s),
        ran_percent: of_time(more(now.run_ns, then.run_ns)),
        delayed_percent: of_time(more(now.delay_ns, then.delay_ns)),
        involuntary_switches_per_s: rate(
            now.involuntary_switches,
            then.involuntary_switches,
            duration_s,
        ),
        ..WorkerActivity::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuSet;
    use proptest::prelude::*;

    fn workers(counts: WorkerCounts, imissed: u64, queue_packets: Vec<u64>) -> Workers {
        let worker = PollingWorker {
            lcore: 1,
            tid: Some(71),
            cpus: CpuSet::from_list("3").ok(),
            counts,
            ..PollingWorker::default()
        };
        let port = PollingPort {
            name: "net_null0".to_owned(),
            imissed: Some(imissed),
            queue_packets,
            ..PollingPort::default()
        };
        let process = PollingProcess {
            pid: 70,
            workers: vec![worker],
            ports: vec![port],
            ..PollingProcess::default()
        };
        Workers { processes: vec![process], ..Workers::default() }
    }

    fn counts(polls: u64, empty: u64, packets: u64, run_ns: u64, delay_ns: u64) -> WorkerCounts {
        WorkerCounts {
            polls: Some(polls),
            empty_polls: Some(empty),
            packets: Some(packets),
            run_ns: Some(run_ns),
            delay_ns: Some(delay_ns),
            ..WorkerCounts::default()
        }
    }

    fn cpu(tasks: &[(u32, u64, u64)]) -> WorkerCpu {
        let task = |&(tid, ran_ns, longest_ns): &(u32, u64, u64)| CpuTask {
            tid,
            ran_ns,
            longest_ns,
            ..CpuTask::default()
        };
        WorkerCpu { tasks: tasks.iter().map(task).collect(), ..WorkerCpu::new(CpuId(3)) }
    }

    fn measured(tasks: &[(u32, u64, u64)], run_ns: u64, delay_ns: u64) -> Workers {
        let before = workers(counts(10, 10, 0, 5, 5), 7, vec![10, 10]);
        let after = counts(1010, 810, 3200, run_ns + 5, delay_ns + 5);
        let mut now = workers(after, 27, vec![40, 20]);
        now.measure_since(&before, 2.0);
        now.add_cpus(vec![cpu(tasks)], true);
        now
    }

    #[test]
    fn rates_and_shares_of_the_interval() {
        let now = measured(&[(71, 1_900_000_000, 9), (9, 100_000_000, 4)], 1_900_000_000, 0);
        let activity = now.processes[0].workers[0].interval.clone().unwrap();
        assert_eq!(activity.empty_poll_percent, Some(80.0));
        assert_eq!(activity.packets_per_burst, Some(16.0));
        assert_eq!((activity.ran_percent, activity.others_percent), (Some(95.0), Some(5.0)));
        assert_eq!(activity.is_disturbed, Some(true));
        let port = now.processes[0].ports[0].interval.clone().unwrap();
        assert_eq!((port.imissed_per_s, port.queue_percent), (Some(10.0), vec![75.0, 25.0]));
        assert!(now.cpus[0].tasks[0].is_worker && !now.cpus[0].tasks[1].is_worker);
        assert_eq!(now.others_of(&now.processes[0].workers[0])[0].1.tid, 9);
    }

    #[test]
    fn only_polling_workers_are_disturbed_and_only_by_enough() {
        let disturbed = |tasks: &[(u32, u64, u64)], run_ns, delay_ns| {
            measured(tasks, run_ns, delay_ns).processes[0].workers[0]
                .interval
                .as_ref()
                .and_then(|activity| activity.is_disturbed)
        };
        let run = 1_999_000_000;
        assert_eq!(disturbed(&[(9, 900_000, 30_000)], run, 0), Some(false), "0.045%");
        assert_eq!(disturbed(&[(9, 900_000, 600_000)], run, 0), Some(true), "at a stretch");
        assert_eq!(disturbed(&[(9, 1_000_000_000, 4_000_000)], 1_000, 0), Some(false), "it sleeps");
        assert_eq!(disturbed(&[(9, 1_900_000_000, 4_000_000)], 9, 1_900_000_000), Some(true));
    }

    #[test]
    fn a_counter_that_was_reset_is_unknown() {
        let before = workers(counts(1000, 1000, 50, 50, 50), 7, vec![10]);
        let mut now = workers(counts(10, 10, 0, 5, 5), 3, vec![4]);
        now.measure_since(&before, 1.0);
        let activity = now.processes[0].workers[0].interval.clone().unwrap();
        assert_eq!(activity, WorkerActivity::default());
        let port = now.processes[0].ports[0].interval.clone().unwrap();
        assert_eq!((port.imissed_per_s, port.queue_percent), (None, vec![]));
        // Another process with the same number, and one that has just started.
        let mut other = workers(counts(9999, 0, 0, 0, 0), 9, vec![]);
        other.processes[0].name = "other".to_owned();
        other.measure_since(&before, 1.0);
        assert_eq!(other.processes[0].workers[0].interval, None);
    }

    proptest! {
        /// Whatever a hostile process reports, shares are shares and nothing overflows.
        #[test]
        fn shares_are_at_most_all(
            a in proptest::collection::vec(any::<u64>(), 5),
            b in proptest::collection::vec(any::<u64>(), 5),
            queues in proptest::collection::vec(any::<u64>(), 0..4),
            duration in 0.0f64..100.0,
        ) {
            let before = workers(counts(a[0], a[1], a[2], a[3], a[4]), a[0], vec![0; queues.len()]);
            let mut now = workers(counts(b[0], b[1], b[2], b[3], b[4]), b[0], queues);
            now.measure_since(&before, duration);
            now.add_cpus(vec![cpu(&[(1, a[0], a[1]), (2, b[0], b[1])])], true);
            let activity = now.processes[0].workers[0].interval.clone().unwrap();
            for share in [activity.empty_poll_percent, activity.ran_percent, activity.others_percent] {
                prop_assert!(share.is_none_or(|share| (0.0..=100.0).contains(&share)));
            }
        }
    }
}
