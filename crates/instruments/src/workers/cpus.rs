//! What the kernel counts of the workers' CPUs between two readings: interrupts, softirqs, stolen time; and their
//! frequency at the end.

use super::load::Tasks;
use crate::irqs::readings::Readings;
use nearpath_host::{Root, cpu_frequency, read_counters, read_cpu_time};
use nearpath_model::{CpuId, CpuSet, CpuTime, WorkerCpu};
use std::collections::BTreeMap;
use std::time::Instant;

/// Maximum number of tasks by CPU in a measurement.
const MAX_TASKS: usize = 100;

/// The counters at the start.
pub struct CpuReadings {
    counters: nearpath_model::Counters,
    time: Vec<CpuTime>,
    at: Instant,
}

impl CpuReadings {
    /// Reads them.
    pub fn new(root: &Root) -> Self {
        let (counters, time) = (read_counters(root, &[]), read_cpu_time(root));
        Self { counters, time, at: Instant::now() }
    }

    /// What was counted on these CPUs since then.
    pub fn since(
        &self,
        root: &Root,
        cpus: &CpuSet,
        tasks: Option<&BTreeMap<CpuId, Tasks>>,
    ) -> Vec<WorkerCpu> {
        let mut readings = Readings::new(&self.counters);
        let (now, time) = (read_counters(root, &[]), read_cpu_time(root));
        let duration_s = self.at.elapsed().as_secs_f64();
        readings.add(&now, duration_s);
        let one = |cpu: CpuId| {
            let rate = |count: u64| count as f64 / duration_s.max(1e-9);
            let arch = |name: &str| {
                readings.arch_irqs.get(name).and_then(|(_, tally)| tally.counted(&cpu)).map(rate)
            };
            let devices = readings.irqs.values().chain(readings.former.iter().map(|(_, of)| of));
            let devices = devices.map(|line| line.counts.counted(&cpu).unwrap_or(0));
            let is_online = readings.online.contains(cpu);
            let mut of = WorkerCpu {
                device_interrupts_per_s: is_online.then(|| rate(devices.sum())),
                timer_ticks_per_s: arch("LOC"),
                tlb_shootdowns_per_s: arch("TLB"),
                calls_per_s: arch("CAL"),
                reschedules_per_s: arch("RES"),
                softirqs_per_s: readings
                    .softirqs
                    .iter()
                    .filter_map(|(vector, tally)| {
                        let count = tally.counted(&cpu).filter(|count| *count > 0)?;
                        Some((vector.clone(), rate(count)))
                    })
                    .collect(),
                stolen_percent: stolen(&self.time, &time, cpu),
                ..WorkerCpu::new(cpu)
            };
            (of.frequency_khz, of.max_frequency_khz) = cpu_frequency(root, cpu);
            if let Some(tasks) = tasks {
                let ran = tasks.get(&cpu).cloned().unwrap_or_default();
                of.idle_ns = Some(ran.idle_ns);
                of.tasks = ran.tasks;
                of.tasks.truncate(MAX_TASKS);
            }
            of
        };
        cpus.iter().map(one).collect()
    }
}

/// Share of a CPU's time that the hypervisor took; `None` if the kernel does not report it, or less than a tenth of a
/// second has passed: it counts in hundredths.
fn stolen(then: &[CpuTime], now: &[CpuTime], cpu: CpuId) -> Option<f64> {
    const FEWEST_TICKS: u64 = 10;
    let of = |times: &[CpuTime]| {
        let time = times.iter().find(|time| time.cpu == cpu)?;
        let steal = time.steal?;
        let all = [time.user, time.nice, time.system, time.idle, time.iowait, time.irq];
        let sum = all.iter().try_fold(steal, |sum, more| sum.checked_add(*more))?;
        Some((steal, sum.checked_add(time.softirq)?))
    };
    let ((stolen_then, all_then), (stolen_now, all_now)) = (of(then)?, of(now)?);
    let all = all_now.checked_sub(all_then).filter(|all| *all >= FEWEST_TICKS)?;
    Some((stolen_now.checked_sub(stolen_then)? as f64 * 100.0 / all as f64).min(100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let time = |idle, steal| CpuTime {
            cpu: CpuId(1),
            user: 0,
            nice: 0,
            system: 0,
            idle,
            iowait: 0,
            irq: 0,
            softirq: 0,
            steal,
        };
        let of = |a, b| stolen(&[a], &[b], CpuId(1));
        assert_eq!(of(time(0, Some(0)), time(90, Some(10))), Some(10.0));
        assert_eq!(of(time(0, Some(0)), time(1, Some(1))), None, "too short");
        assert_eq!(of(time(0, None), time(90, None)), None);
        assert_eq!(of(time(0, Some(50)), time(90, Some(10))), None, "it went back");
    }
}
