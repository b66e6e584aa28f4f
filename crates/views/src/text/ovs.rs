//! `tune check-ovs`: the verdict, the problems, and the PMD threads with their queues.

use super::table::{Table, left, or_none, right};
use super::units::printable;
use super::{heading, line};
use nearpath_model::{OvsCheck, OvsPmdThread, OvsVerdict};

/// The result.
pub fn ovs_check(check: &OvsCheck) -> String {
    let mut out = String::new();
    let count = match check.cross_node_queues {
        0 => String::new(),
        1 => "; 1 queue is polled from another node".to_owned(),
        count => format!("; {count} queues are polled from another node"),
    };
    let verdict = match check.verdict {
        OvsVerdict::Accepted => "accepted: Open vSwitch polls each port as written, from its node",
        OvsVerdict::Changed => {
            "changed: Open vSwitch does not poll as written, or from another node"
        }
        OvsVerdict::Refused => "refused: not all ports are polled",
    };
    heading(&mut out, &format!("{verdict}{count}"));
    for problem in &check.problems {
        let word = match problem.effect {
            OvsVerdict::Refused => "refused",
            OvsVerdict::Changed => "changed",
            OvsVerdict::Accepted => "note",
        };
        let (subject, message) = (printable(&problem.subject), printable(&problem.message));
        line!(out, "{subject}: {word}: {message}  [{}]", problem.code);
        line!(out, "  fix: {}", printable(&problem.remedy));
    }
    for note in &check.notes {
        line!(out, "note: {}", printable(note));
    }
    if !check.pmds.is_empty() {
        line!(out);
        out.push_str(&threads(&check.pmds));
    }
    out
}

fn threads(pmds: &[OvsPmdThread]) -> String {
    let mut table = Table::new(&[right("CPU"), right("NODE"), left("ISOLATED"), left("QUEUES")]);
    for pmd in pmds {
        let of_port = |(port, ids): (&String, &Vec<u32>)| {
            let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
            format!("{port}:{ids}")
        };
        let queues = pmd.queues.iter().map(of_port).collect::<Vec<_>>().join(" ");
        table.row([
            pmd.cpu.to_string(),
            or_none(pmd.node),
            if pmd.isolated { "yes" } else { "no" }.to_owned(),
            if queues.is_empty() { "-".to_owned() } else { queues },
        ]);
    }
    table.render()
}
