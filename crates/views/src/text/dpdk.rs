//! `tune plan --dpdk`: workers, options, commands and files, each with its reason.

use super::dpvs::role;
use super::table::{Table, left, or_none, right};
use super::units::printable;
use super::{heading, line};
use nearpath_model::{DpdkApplication, DpdkNic, DpdkOption, DpdkPlan, DpdkWorker, DpvsRole, shell};

/// A plan; the configuration is left out if it went to a file.
pub fn dpdk_plan(plan: &DpdkPlan, is_configuration_written: bool) -> String {
    let mut out = String::new();
    let name = match plan.application {
        DpdkApplication::Testpmd => "testpmd",
        DpdkApplication::Ovs => "Open vSwitch",
        DpdkApplication::Dpvs => "DPVS",
    };
    let forwarding = plan.workers.iter().filter(|w| w.role == DpvsRole::Forwarding).count();
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let (nics, queues) = (plan.nics.len(), plan.queues);
    heading(
        &mut out,
        &format!(
            "{name}: {forwarding} forwarding worker{} on {nics} NIC{} of {queues} queue{}",
            plural(forwarding),
            plural(nics),
            plural(queues as usize)
        ),
    );
    for note in &plan.notes {
        line!(out, "note: {}", printable(note));
    }
    line!(out);
    out.push_str(&workers(plan));
    options(&mut out, "options of EAL:", &plan.eal);
    options(&mut out, "options of the application, after --:", &plan.arguments);
    if let (Some(configuration), false) = (&plan.configuration, is_configuration_written) {
        line!(out);
        heading(&mut out, "dpvs.conf:");
        out.push_str(&indented(configuration));
    }
    if !plan.commands.is_empty() {
        line!(out);
        heading(&mut out, "commands:");
    }
    for command in &plan.commands {
        line!(out, "  {}", printable(&command.command));
        line!(out, "    why   {}", printable(&command.why));
        if let Some(undo) = &command.undo {
            line!(out, "    undo  {}", printable(undo));
        }
    }
    if let Some(changes) = plan.changes.as_ref().filter(|plan| !plan.changes.is_empty()) {
        line!(out);
        heading(&mut out, "changes of the running Open vSwitch (--json, 'nearpath tune apply'):");
        for change in &changes.changes {
            let words =
                [change.target.to_string(), change.before.to_string(), change.after.to_string()];
            let [target, before, after] = words.map(|word| printable(&word));
            line!(out, "  {target}: {before} -> {after}");
            line!(out, "    why   {}", printable(&change.why));
        }
    }
    options(&mut out, "kernel command line, from the next boot:", &plan.kernel_command_line);
    if let Some(unit) = &plan.unit {
        line!(out);
        heading(&mut out, "systemd unit:");
        out.push_str(&indented(unit));
    }
    out
}

fn workers(plan: &DpdkPlan) -> String {
    let mut table = Table::new(&[
        right("LCORE"),
        right("CPU"),
        right("SIBLINGS").optional(),
        right("NODE"),
        left("ROLE"),
        left("NIC:QUEUES"),
        left("WHY"),
    ]);
    for worker in &plan.workers {
        table.row([
            worker.lcore.to_string(),
            worker.cpu.to_string(),
            worker.siblings.to_string(),
            or_none(worker.node),
            role(worker.role).to_owned(),
            queues(worker, &plan.nics),
            worker.why.clone(),
        ]);
    }
    table.render()
}

fn queues(worker: &DpdkWorker, nics: &[DpdkNic]) -> String {
    let one = |(nic, ids): (&u32, &Vec<u32>)| {
        let name = nics.get(*nic as usize).map(|nic| nic.address.as_str()).unwrap_or_default();
        let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
        format!("{name}:{ids}")
    };
    worker.queues.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn options(out: &mut String, title: &str, options: &[DpdkOption]) {
    if options.is_empty() {
        return;
    }
    let words = options.iter().flat_map(|option| &option.words).map(|word| shell::word(word));
    let whole = words.collect::<Vec<_>>().join(" ");
    let mut text = String::new();
    line!(text);
    heading(&mut text, title);
    line!(text, "  {}", printable(&whole));
    for option in options {
        line!(text, "    {}: {}", printable(&option.words.join(" ")), printable(&option.why));
    }
    out.push_str(&text);
}

fn indented(text: &str) -> String {
    let mut out = String::new();
    for row in text.lines() {
        line!(out, "  {}", printable(row));
    }
    out
}
