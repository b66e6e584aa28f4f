//! CPU power management: frequency governors, idle states, and thermal throttling
//! (`/sys/devices/system/cpu/cpuN/{cpufreq,cpuidle,thermal_throttle}`,
//! Documentation/admin-guide/pm/cpufreq.rst and cpuidle.rst, arch/x86/kernel/cpu/mce/therm_throt.c).
//!
//! Input: a root and its online CPUs. Guests usually have none of these, which is not reported as unknown.

use crate::Root;
use nearpath_model::{CpuId, CpuPower, CpuSet, IdleState};

const CPUS: &str = "/sys/devices/system/cpu";
/// The maximum of the kernel (`CPUIDLE_STATE_MAX` of include/linux/cpuidle.h).
const MAX_STATES: u32 = 10;

/// Reads the facts.
pub(crate) fn read(root: &Root, online: &CpuSet) -> CpuPower {
    let mut power = CpuPower::default();
    for cpu in online.iter() {
        let text = |file: &str| root.text(&format!("{CPUS}/cpu{cpu}/{file}")).ok();
        let governor = text("cpufreq/scaling_governor").filter(|text| !text.is_empty());
        if let Some(governor) = governor {
            power.governors.entry(governor).or_default().insert(cpu);
        }
        let count = text("thermal_throttle/core_throttle_count").and_then(|n| n.parse().ok());
        power.throttle_counts.extend(count.map(|count: u64| (cpu, count)));
        // If the first CPU has none, no CPU has: saves two files for each of a thousand CPUs.
        if power.governors.is_empty() && power.throttle_counts.is_empty() {
            break;
        }
    }
    power.idle_states = online.first().and_then(|cpu| idle_states(root, cpu));
    power
}

/// The current and the highest frequency of a CPU in kHz (Documentation/admin-guide/pm/cpufreq.rst); `None` without
/// cpufreq, as in most virtual machines.
pub fn cpu_frequency(root: &Root, cpu: CpuId) -> (Option<u64>, Option<u64>) {
    let read = |file: &str| {
        let path = format!("{CPUS}/cpu{cpu}/cpufreq/{file}");
        root.text(&path).ok()?.trim().parse().ok().filter(|khz| *khz > 0)
    };
    (read("scaling_cur_freq"), read("cpuinfo_max_freq"))
}

fn idle_states(root: &Root, cpu: CpuId) -> Option<Vec<IdleState>> {
    let state = |number: u32| {
        let dir = format!("{CPUS}/cpu{cpu}/cpuidle/state{number}");
        Some(IdleState {
            name: root.text(&format!("{dir}/name")).ok()?,
            latency_us: root.text(&format!("{dir}/latency")).ok()?.parse().ok()?,
            disabled: root.text(&format!("{dir}/disable")).is_ok_and(|text| text != "0"),
        })
    };
    let states: Vec<IdleState> = (0..MAX_STATES).map_while(state).collect();
    (!states.is_empty()).then_some(states)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn governors_idle_states_and_heat() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = dir.path().join("sys/devices/system/cpu").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (cpu, governor) in [(0, "performance"), (1, "powersave"), (2, "powersave")] {
            file(&format!("cpu{cpu}/cpufreq/scaling_governor"), &format!("{governor}\n"));
            file(&format!("cpu{cpu}/thermal_throttle/core_throttle_count"), "4\n");
        }
        for (state, name, latency) in [(0, "POLL", 0), (1, "C6", 133)] {
            file(&format!("cpu0/cpuidle/state{state}/name"), name);
            file(&format!("cpu0/cpuidle/state{state}/latency"), &latency.to_string());
        }
        file("cpu0/cpuidle/state1/disable", "1\n");
        let root = Root::tree(dir.path()).unwrap();
        let power = read(&root, &CpuSet::from_list("0-3").unwrap());
        let governors: Vec<_> =
            power.governors.iter().map(|(name, cpus)| format!("{name} {cpus}")).collect();
        assert_eq!(governors, ["performance 0", "powersave 1-2"]);
        assert_eq!(power.throttle_counts.get(&CpuId(2)), Some(&4));
        let states: Vec<_> = power.idle_states.unwrap().into_iter().collect();
        assert_eq!(
            (states[1].latency_us, states[1].disabled, states[0].disabled),
            (133, true, false)
        );
        let none = read(&root, &CpuSet::from_list("8-9").unwrap());
        assert_eq!(none, CpuPower::default());
    }
}
