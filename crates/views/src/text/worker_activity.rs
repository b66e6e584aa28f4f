//! `measure workers`: which worker is disturbed most and by whom, then what workers, CPUs, tasks and ports did.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{digits, latency, percentage, printable, short};
use super::unknown::unknown;
use super::workers::queues;
use super::{heading, line};
use nearpath_model::{
    CpuTask, PollingPort, PollingProcess, PollingWorker, WorkerActivity, WorkerCpu, Workers,
};

/// Tasks shown of each CPU.
const TASKS: usize = 8;

/// What was measured of workers.
pub fn worker_activity(workers: &Workers) -> String {
    let mut out = String::new();
    heading(&mut out, &answer(workers));
    for process in &workers.processes {
        line!(out);
        let name = format!("{} {}", printable(&process.name), process.pid);
        heading(&mut out, &name);
        out.push_str(&worker_table(process));
        if process.ports.iter().any(|port| port.interval.is_some()) {
            line!(out);
            out.push_str(&port_table(process));
        }
    }
    if !workers.cpus.is_empty() {
        line!(out);
        heading(&mut out, "CPUs of workers, per second");
        out.push_str(&cpu_table(&workers.cpus));
    }
    let tasks = task_table(workers);
    if !tasks.is_empty() {
        line!(out);
        heading(&mut out, "other tasks that ran there");
        out.push_str(&tasks);
    }
    out.push_str(&notes(workers));
    out
}

fn notes(workers: &Workers) -> String {
    let mut out = String::new();
    if workers.lost_ns > 0 {
        line!(out, "{} of tasks were not counted: too many tasks", latency(workers.lost_ns));
    }
    if workers.processes.is_empty() {
        return out;
    }
    for missing in &workers.not_available {
        line!(out, "not available: {}: {}", printable(&missing.what), printable(&missing.reason));
    }
    if let Some(cost) = workers.cost {
        let (each, share) = (digits(cost.ns_per_event), percentage(cost.cpu_percent));
        line!(
            out,
            "cost: {each}ns per switch, {share} of one CPU; an interrupt on each worker's CPU at both ends"
        );
    }
    if !workers.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&workers.unknown, &[]));
    }
    out
}

/// The first line.
fn answer(workers: &Workers) -> String {
    let all = workers.all_workers().count();
    let disturbed: Vec<(&PollingProcess, &PollingWorker, &WorkerActivity)> = workers
        .all_workers()
        .filter_map(|(process, worker)| Some((process, worker, worker.interval.as_ref()?)))
        .filter(|(.., activity)| activity.is_disturbed == Some(true))
        .collect();
    let lost = |activity: &WorkerActivity| activity.lost_percent().unwrap_or(0.0);
    let worst = disturbed.iter().max_by(|a, b| lost(a.2).total_cmp(&lost(b.2)));
    let Some((process, worker, activity)) = worst else {
        if all == 0 {
            return "no workers of DPDK or Open vSwitch".to_owned();
        }
        let known =
            workers.all_workers().filter_map(|(_, worker)| worker.interval.as_ref()?.is_disturbed);
        return match all - known.count() {
            0 => format!("{}, none disturbed", count(all, "worker")),
            unknown if unknown == all => {
                format!("{}; whether they are disturbed is unknown", count(all, "worker"))
            }
            unknown => format!(
                "{}, none seen to be disturbed; of {unknown} it is unknown",
                count(all, "worker")
            ),
        };
    };
    let who = format!(
        "{} {} lcore {} ({})",
        process.name,
        process.pid,
        worker.lcore,
        worker.cpus.as_ref().map(|cpus| format!("CPU {}", cpus.brief())).unwrap_or_default()
    );
    let more = match disturbed.len() {
        1 => String::new(),
        n => format!("; {} of {} disturbed", n, count(all, "worker")),
    };
    let by = by_whom(workers, worker, activity);
    printable(&format!("{who} lost {} of its time: {by}{more}", percentage(lost(activity))))
}

fn by_whom(workers: &Workers, worker: &PollingWorker, activity: &WorkerActivity) -> String {
    let stolen = activity.stolen_percent.unwrap_or(0.0);
    let others = workers.others_of(worker);
    match others.first() {
        _ if stolen > activity.others_percent.or(activity.delayed_percent).unwrap_or(0.0) => {
            format!("the hypervisor took {}", percentage(stolen))
        }
        Some((cpu, task)) => {
            let share = share_of(workers, task.ran_ns);
            let mut text = format!(
                "{} ran {share} there, {}, at most {} at a stretch",
                name(task),
                times(task.runs),
                latency(task.longest_ns)
            );
            if worker.cpus.as_ref().is_some_and(|cpus| cpus.len() > 1) {
                text = format!("{text}, on CPU {cpu}");
            }
            text
        }
        None => "by whom is unknown".to_owned(),
    }
}

fn times(runs: u64) -> String {
    match runs {
        // It was not switched out.
        0 | 1 => "once".to_owned(),
        runs => format!("{} times", short(runs)),
    }
}

fn name(task: &CpuTask) -> String {
    match task.tid {
        0 => format!("{} (of another PID namespace)", task.comm),
        tid => format!("{}[{tid}]", task.comm),
    }
}

fn share_of(workers: &Workers, ns: u64) -> String {
    let all = workers.duration_s.unwrap_or(0.0) * 1e9;
    if all > 0.0 { percentage((ns as f64 * 100.0 / all).min(100.0)) } else { String::new() }
}

fn percent(value: Option<f64>) -> String {
    value.map(percentage).unwrap_or_default()
}

fn per_second(value: Option<f64>) -> String {
    value
        .map(|rate| if rate >= 1000.0 { short(rate as u64) } else { digits(rate) })
        .unwrap_or_default()
}

fn worker_table(process: &PollingProcess) -> String {
    let mut table = Table::new(&[
        right("LCORE"),
        left("CPU"),
        left("ROLE"),
        left("PORT:QUEUES").optional(),
        right("BUSY").optional(),
        right("EMPTY-POLLS").optional(),
        right("FULL-BURSTS").optional(),
        right("PKTS/BURST").optional(),
        right("PKTS/s").optional(),
        right("RAN"),
        right("DELAYED"),
        right("PREEMPTED/s"),
        right("OTHERS"),
        right("LONGEST"),
        right("STOLEN").optional(),
        left("DISTURBED"),
    ]);
    for worker in &process.workers {
        let of = worker.interval.clone().unwrap_or_default();
        table.row([
            worker.lcore.to_string(),
            worker.cpus.as_ref().map(|cpus| cpus.brief()).unwrap_or_default(),
            worker.role.name().to_owned(),
            queues(worker),
            percent(of.busy_percent),
            percent(of.empty_poll_percent),
            percent(of.full_burst_percent),
            of.packets_per_burst.map(digits).unwrap_or_default(),
            per_second(of.packets_per_s),
            percent(of.ran_percent),
            percent(of.delayed_percent),
            per_second(of.involuntary_switches_per_s),
            percent(of.others_percent),
            of.longest_ns.map(latency).unwrap_or_default(),
            percent(of.stolen_percent.filter(|stolen| *stolen > 0.0)),
            match of.is_disturbed {
                Some(true) => "yes",
                Some(false) if of.polls() == Some(false) => "sleeps",
                Some(false) => "no",
                None => "",
            }
            .to_owned(),
        ]);
    }
    table.render()
}

fn port_table(process: &PollingProcess) -> String {
    let mut table = Table::new(&[
        left("PORT"),
        right("NODE"),
        right("RX/s"),
        right("IMISSED/s"),
        right("NO-BUFFER/s"),
        left("BY-QUEUE").optional(),
    ]);
    for port in &process.ports {
        let of = port.interval.clone().unwrap_or_default();
        table.row([
            port.name.clone(),
            or_none(port.node),
            per_second(of.rx_packets_per_s),
            per_second(of.imissed_per_s),
            per_second(of.rx_nombuf_per_s),
            by_queue(port),
        ]);
    }
    table.render()
}

fn by_queue(port: &PollingPort) -> String {
    let shares = port.interval.as_ref().map(|of| of.queue_percent.as_slice()).unwrap_or_default();
    if shares.len() < 2 {
        return String::new();
    }
    shares.iter().map(|share| percentage(*share)).collect::<Vec<_>>().join(" ")
}

fn cpu_table(cpus: &[WorkerCpu]) -> String {
    let mut table = Table::new(&[
        right("CPU"),
        right("IRQS"),
        right("TIMER"),
        right("TLB"),
        right("CALLS"),
        right("RESCHED"),
        right("SOFTIRQS"),
        left("MOST").optional(),
        right("STOLEN").optional(),
        right("MHZ").optional(),
    ]);
    for cpu in cpus {
        let most = cpu.softirqs_per_s.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let mhz = |khz: u64| (khz / 1000).to_string();
        let frequency = cpu.frequency_khz.map(|now| match cpu.max_frequency_khz {
            Some(max) => format!("{} of {}", mhz(now), mhz(max)),
            None => mhz(now),
        });
        table.row([
            cpu.cpu.to_string(),
            per_second(cpu.device_interrupts_per_s),
            per_second(cpu.timer_ticks_per_s),
            per_second(cpu.tlb_shootdowns_per_s),
            per_second(cpu.calls_per_s),
            per_second(cpu.reschedules_per_s),
            per_second(Some(cpu.softirqs_per_s.values().sum())),
            most.map(|(vector, _)| vector.clone()).unwrap_or_default(),
            percent(cpu.stolen_percent),
            frequency.unwrap_or_default(),
        ]);
    }
    table.render()
}

fn task_table(workers: &Workers) -> String {
    let columns = [
        right("CPU"),
        left("TASK"),
        right("PID"),
        right("RAN"),
        right("TIME"),
        right("RUNS"),
        right("LONGEST"),
    ];
    let mut table = Table::new(&columns);
    let mut shown = 0;
    for cpu in &workers.cpus {
        for task in cpu.tasks.iter().filter(|task| !task.is_worker).take(TASKS) {
            shown += 1;
            table.row([
                cpu.cpu.to_string(),
                name(task),
                or_none(Some(task.pid).filter(|pid| *pid != 0)),
                share_of(workers, task.ran_ns),
                latency(task.ran_ns),
                task.runs.to_string(),
                latency(task.longest_ns),
            ]);
        }
    }
    if shown == 0 { String::new() } else { table.render() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{CpuId, CpuSet};

    fn worker(lcore: u32, ran: f64, others: f64) -> PollingWorker {
        let activity = WorkerActivity {
            ran_percent: Some(ran),
            delayed_percent: Some(others),
            others_percent: Some(others),
            longest_ns: Some(4_000_000),
            is_disturbed: Some(others > 0.1),
            ..WorkerActivity::default()
        };
        PollingWorker {
            lcore,
            tid: Some(70 + lcore),
            cpus: CpuSet::from_list(&lcore.to_string()).ok(),
            interval: Some(activity),
            ..PollingWorker::default()
        }
    }

    fn first(workers: Vec<PollingWorker>, comm: &str) -> String {
        let task = CpuTask {
            tid: 900,
            comm: comm.to_owned(),
            ran_ns: 480_000_000,
            runs: 120,
            longest_ns: 4_000_000,
            ..CpuTask::default()
        };
        let cpu = WorkerCpu { tasks: vec![task], ..WorkerCpu::new(CpuId(1)) };
        let process = PollingProcess {
            pid: 70,
            name: "dpdk-testpmd".to_owned(),
            workers,
            ..PollingProcess::default()
        };
        let workers = Workers {
            duration_s: Some(1.0),
            processes: vec![process],
            cpus: vec![cpu],
            ..Workers::default()
        };
        let text = anstream::adapter::strip_str(&worker_activity(&workers)).to_string();
        text.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn the_first_line_names_the_worker_and_who_disturbs_it() {
        assert_eq!(
            first(vec![worker(1, 52.0, 48.0), worker(2, 99.0, 0.2)], "stress"),
            "dpdk-testpmd 70 lcore 1 (CPU 1) lost 48.0% of its time: stress[900] ran 48.0% there, 120 times, \
             at most 4.00ms at a stretch; 2 of 2 workers disturbed"
        );
        assert_eq!(first(vec![worker(2, 99.9, 0.0)], "x"), "1 worker, none disturbed");
        let mut unknown = worker(3, 99.9, 0.0);
        unknown.interval = None;
        let text = first(vec![worker(2, 99.9, 0.0), unknown.clone()], "x");
        assert_eq!(text, "2 workers, none seen to be disturbed; of 1 it is unknown");
        assert!(first(vec![unknown], "x").ends_with("is unknown"));
        assert!(first(vec![], "x").starts_with("no workers"));
        assert!(!first(vec![worker(1, 52.0, 48.0)], "a\u{1b}[2J").contains('\u{1b}'));
    }
}
