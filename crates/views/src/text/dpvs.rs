//! `tune check-dpvs`: the verdict, the problems by line, and the workers that would run.

use super::table::{Table, left, right};
use super::units::printable;
use super::{heading, line};
use nearpath_model::{DpvsCheck, DpvsProblem, DpvsQueues, DpvsRole, DpvsVerdict, DpvsWorker};

/// The result for a file.
pub fn dpvs_check(check: &DpvsCheck, file: &str) -> String {
    let mut out = String::new();
    let verdict = match check.verdict {
        DpvsVerdict::Accepted => "accepted: DPVS starts with what is written",
        DpvsVerdict::Changed => "changed: DPVS starts, but not with what is written",
        DpvsVerdict::Refused => "refused: DPVS does not start",
    };
    heading(&mut out, verdict);
    // Refusals first: the rest matters once DPVS starts.
    let mut problems: Vec<&DpvsProblem> = check.problems.iter().collect();
    problems.sort_by_key(|problem| problem.effect != DpvsVerdict::Refused);
    for problem in problems {
        out.push_str(&problem_lines(problem, file, effect(problem)));
    }
    for note in &check.notes {
        out.push_str(&problem_lines(note, file, "note"));
    }
    if !check.workers.is_empty() {
        line!(out);
        out.push_str(&workers(&check.workers));
    }
    let release = format!("DPVS {}", check.version);
    let assumed = check.assumed.iter().map(String::as_str);
    let all: Vec<&str> = std::iter::once(release.as_str()).chain(assumed).collect();
    line!(out);
    line!(out, "checked for: {}", all.join("; "));
    out
}

fn effect(problem: &DpvsProblem) -> &'static str {
    match problem.effect {
        DpvsVerdict::Refused => "refused",
        DpvsVerdict::Changed => "changed",
        DpvsVerdict::Accepted => "note",
    }
}

fn problem_lines(problem: &DpvsProblem, file: &str, word: &str) -> String {
    let mut out = String::new();
    let place = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
    let message = printable(&problem.message);
    line!(out, "{}{place}: {word}: {message}  [{}]", printable(file), problem.code);
    line!(out, "  fix: {}", printable(&problem.remedy));
    out
}

fn workers(workers: &[DpvsWorker]) -> String {
    let columns = [
        right("LCORE"),
        right("CPU"),
        left("ROLE"),
        left("PORT"),
        left("RX"),
        left("TX"),
        left("RECEIVED BY").optional(),
    ];
    let mut table = Table::new(&columns);
    for worker in workers {
        let cpu = worker.cpu.map(|cpu| cpu.to_string()).or_else(|| worker.cpus.clone());
        let cells = |port: &str, queues: &DpvsQueues| {
            vec![
                worker.lcore.to_string(),
                cpu.clone().unwrap_or_else(|| "-".to_owned()),
                role(worker.role).to_owned(),
                port.to_owned(),
                ids(queues.rx.iter().map(u32::to_string)),
                ids(queues.tx.iter().map(u32::to_string)),
                ids(queues.isolated_rx.iter().map(|id| match id {
                    Some(id) => format!("lcore {id}"),
                    None => "itself".to_owned(),
                })),
            ]
        };
        if worker.ports.is_empty() {
            table.row(cells("-", &DpvsQueues::default()));
        }
        for (port, queues) in &worker.ports {
            table.row(cells(port, queues));
        }
    }
    table.render()
}

/// The name of a role.
pub(super) fn role(role: DpvsRole) -> &'static str {
    match role {
        DpvsRole::Master => "master",
        DpvsRole::Forwarding => "forwarding",
        DpvsRole::IsolatedRx => "isolated rx",
        DpvsRole::Kni => "kni",
        DpvsRole::Idle => "idle",
    }
}

fn ids(ids: impl Iterator<Item = String>) -> String {
    let text = ids.collect::<Vec<_>>().join(" ");
    if text.is_empty() { "-".to_owned() } else { text }
}
