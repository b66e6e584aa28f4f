//! The kernel command line that isolates CPUs at boot, for the goal isolation: no load balancing onto them, no tick,
//! RCU callbacks, hard-lockup watchdog or interrupts without an affinity of their own there.
//!
//! Input: the requested CPUs and the current kernel command line. Output: a grub fragment, if the running kernel lacks
//! any of it. It takes effect after update-grub and a reboot. Where an application needs its load balanced over these
//! CPUs, they stay in the scheduling domains (no `isolcpus=domain`), so that other tasks may run there, too.
//!
//! Rules: DPVS's guide to worker tuning (boot options; never the first core), Documentation/admin-guide/
//! kernel-parameters.txt, kernel/sched/isolation.c (`nohz_full=` and `isolcpus=` must name the same
//! CPUs).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::hugepages::Hugepages;
use super::situation::{Situation, cpus};
use super::target_node::needs_balancing;
use crate::configuration::command_line_parameters;
use nearpath_model::{COMMAND_LINE, ConfigFile, CpuSet, Goal, Kernel, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "command_line",
    plans: "the kernel command line that isolates CPUs at boot (--goal isolation)",
    run,
};

/// A parameter that is added on request only: its price is paid by the whole host, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootParameter {
    /// A kernel thread polls for RCU callbacks instead of being woken: a CPU never sleeps.
    RcuNocbPoll,
    /// No watchdogs: a CPU that hangs is not reported.
    Nowatchdog,
}

impl BootParameter {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::RcuNocbPoll, Self::Nowatchdog];

    /// As the kernel names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RcuNocbPoll => "rcu_nocb_poll",
            Self::Nowatchdog => "nowatchdog",
        }
    }
}

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let request = situation.request;
    if request.goal != Goal::Isolation {
        return;
    }
    let Some(asked) = &request.app_cpus else {
        return draft.note("give --app-cpus to also isolate these CPUs at boot (isolcpus=)");
    };
    let isolated = asked.difference(&first_core(situation));
    if isolated != *asked {
        let left = asked.difference(&isolated);
        draft.note(format!(
            "{} of the first core are not isolated at boot, as the kernel uses it for housekeeping",
            cpus(&left)
        ));
    }
    if isolated.is_empty() {
        return;
    }
    let kernel = &situation.host.kernel;
    let Some(running) = kernel.cmdline.as_deref() else {
        return draft.note("the kernel command line is unknown: no CPU is isolated at boot");
    };
    // A kernel that was booted so stays as it is.
    let is_domain = kernel.isolated.as_ref() == Some(&isolated);
    let domain = is_domain || !needs_balancing(situation);
    if !domain {
        draft.note(format!(
            "{} are not isolated with isolcpus=domain: the kernel would not balance the load of a service or \
             cgroup between them, and other tasks may still run there; use --pid or --port to pin threads \
             instead",
            cpus(&isolated)
        ));
    }
    let release = kernel.release.as_deref();
    let (at_boot, later): (Vec<_>, Vec<_>) =
        request.hugepages.iter().partition(|hugepages| hugepages.not_at_boot(release).is_none());
    later.iter().filter_map(|hugepages| hugepages.not_at_boot(release)).for_each(|n| draft.note(n));
    let mut wanted = parameters(&isolated, domain, &at_boot);
    let others = situation.host.topology.online.difference(&isolated);
    if !others.is_empty() {
        wanted.push(format!("irqaffinity={others}"));
    }
    wanted.extend(request.boot_parameters.iter().map(|parameter| parameter.name().to_owned()));
    let missing: Vec<&str> = wanted
        .iter()
        .map(String::as_str)
        .filter(|parameter| !in_force(kernel, running, parameter, &isolated))
        .collect();
    if !missing.is_empty() {
        plan(situation, draft, running, &isolated, &wanted, &missing, domain);
    }
}

/// The CPUs of the boot core.
fn first_core(situation: &Situation<'_>) -> CpuSet {
    let topology = &situation.host.topology;
    let Some(first) = topology.online.first() else { return CpuSet::new() };
    let siblings = topology.cpus.iter().find(|cpu| cpu.cpu == first).map(|cpu| &cpu.siblings);
    [first].into_iter().collect::<CpuSet>().union(siblings.unwrap_or(&CpuSet::new()))
}

fn parameters(isolated: &CpuSet, domain: bool, hugepages: &[&Hugepages]) -> Vec<String> {
    let flags = if domain { "managed_irq,domain" } else { "managed_irq" };
    let mut all = vec![
        format!("isolcpus={flags},{isolated}"),
        format!("nohz_full={isolated}"),
        format!("rcu_nocbs={isolated}"),
        "nmi_watchdog=0".to_owned(),
        // The ticks of housekeeping CPUs do not contend for the same locks at the same moment.
        "skew_tick=1".to_owned(),
    ];
    for (index, hugepages) in hugepages.iter().enumerate() {
        all.extend(hugepages.parameters(index == 0));
    }
    all
}

/// Whether the running kernel has a parameter: CPU sets by their effective value, others by their text.
fn in_force(kernel: &Kernel, running: &str, parameter: &str, isolated: &CpuSet) -> bool {
    let set = match parameter.split_once('=').map_or(parameter, |(name, _)| name) {
        // The kernel lists those of scheduling domains only.
        "isolcpus" if parameter.contains("domain") => &kernel.isolated,
        "nohz_full" => &kernel.nohz_full,
        "rcu_nocbs" => &kernel.rcu_nocbs,
        _ => return running.split_ascii_whitespace().any(|word| word == parameter),
    };
    set.as_ref() == Some(isolated)
}

fn plan(
    situation: &Situation<'_>,
    draft: &mut Draft,
    running: &str,
    isolated: &CpuSet,
    wanted: &[String],
    missing: &[&str],
    domain: bool,
) {
    let system = &situation.request.system;
    let wanted = wanted.join(" ");
    if let Some(reason) = system.no_fragments() {
        return draft.note(format!("{reason}: to isolate {}, boot with {wanted}", cpus(isolated)));
    }
    let before = match system.text(COMMAND_LINE) {
        Ok(text) => text.to_owned(),
        Err(reason) => {
            return draft.note(format!("{reason}: to isolate CPUs, boot with {wanted}"));
        }
    };
    let after = format!(
        "# Written by nearpath; 'nearpath tune rollback' removes it. Effective after update-grub \
         and a reboot.\nGRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT {wanted}\"\n"
    );
    if before == after {
        return draft.note(format!(
            "{COMMAND_LINE} exists but is not in effect yet: run update-grub, and reboot"
        ));
    }
    for word in others(running, &before, missing) {
        draft.note(format!(
            "the kernel was booted with {word} from elsewhere: remove it from /etc/default/grub, or \
             both apply"
        ));
    }
    draft.add(DraftChange {
        id: "kernel-command-line".to_owned(),
        target: Target::ConfigFile(ConfigFile::CommandLine),
        before: before.into(),
        after: after.into(),
        why: format!(
            "the running kernel lacks {}; with them {} {}no ticks, RCU callbacks or watchdogs; then run \
             update-grub, and reboot",
            missing.join(" "),
            match isolated.len() {
                1 => format!("{} has", cpus(isolated)),
                _ => format!("{} have", cpus(isolated)),
            },
            if domain { "only tasks that are pinned there, and " } else { "" }
        ),
        finding: None,
    });
}

/// Parameters of the running command line that set a missing parameter to another value, and are not from our own
/// fragment.
fn others<'a>(running: &'a str, fragment: &str, missing: &[&str]) -> Vec<&'a str> {
    let ours: Vec<&str> = fragment.lines().filter_map(command_line_parameters).flatten().collect();
    let name = |word: &str| word.split('=').next().unwrap_or_default().replace('-', "_");
    let same = |word: &&str| missing.iter().any(|parameter| name(parameter) == name(word));
    running.split_ascii_whitespace().filter(|word| same(word) && !ours.contains(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_parameters_are_recognized() {
        let running = "quiet isolcpus=1 nohz-full=2-3 nmi_watchdog=0";
        let ours = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT isolcpus=1\"\n";
        let missing = ["isolcpus=4", "nohz_full=4"];
        assert_eq!(others(running, ours, &missing), ["nohz-full=2-3"]);
        assert_eq!(others(running, "", &missing), ["isolcpus=1", "nohz-full=2-3"]);
    }
}
