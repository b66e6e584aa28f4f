//! `steer` and `steer status`: the worker of each CPU's connections, and the attached programs.

use super::table::{Table, left, or_none, right};
use super::{heading, line};
use nearpath_model::steering::{GroupStatus, ProgramOwner, Status};
use nearpath_model::{
    Change, Choice, CpuSet, Nearness, Program, ReuseportGroup, SocketProtocol, SocketWorker,
    Target, Thread, Value,
};

/// Workers that are named for a set of CPUs; the rest is counted.
const WORKERS_NAMED: usize = 4;

/// A change that was made, or would be.
pub fn steered(applied: bool, change: &Change) -> String {
    let mut out = String::new();
    let Some(group) = change.target.group() else { return pinned(applied, change) };
    let verb = if applied { "steered" } else { "would steer" };
    let title = format!("{verb} {} {}", protocol(group.protocol), group.local);
    heading(&mut out, &format!("{title}, until its sockets are closed"));
    line!(out, "why: {}", change.why);
    if let Value::Program(Program::Classic { .. }) = change.before {
        line!(out, "before: a classic program, restored when steering is removed");
    }
    match &change.after {
        Value::Program(Program::Nearest { choices, .. }) => out.push_str(&table(group, choices)),
        Value::Program(Program::Classic { .. }) => out.push_str(&order(group)),
        Value::Default | Value::Text(_) => {}
    }
    out
}

/// A worker that gets a CPU first.
fn pinned(applied: bool, change: &Change) -> String {
    let verb = if applied { "pinned" } else { "would pin" };
    match &change.target {
        Target::Thread(Thread { pid, tid, .. }) => format!(
            "{verb} thread {tid} of process {pid} to CPU {}; previously allowed on {}\n",
            change.after, change.before
        ),
        other => format!("{verb} {other}\n"),
    }
}

fn table(group: &ReuseportGroup, choices: &[Choice]) -> String {
    let mut table =
        Table::new(&[left("RECEIVED-ON"), left("WORKER"), left("RUNS-ON"), left("NEAR")]);
    for choice in choices {
        let sockets = choice.workers.iter().filter_map(|&socket| group.sockets.get(socket));
        let workers: Vec<&SocketWorker> = sockets.flat_map(|socket| &socket.workers).collect();
        let near = choice.nearness.map(|nearness| match nearness {
            Nearness::SameCpu => "same CPU",
            Nearness::SameCore => "same core",
            Nearness::SameLlc => "same LLC",
            Nearness::SameNode => "same node",
            Nearness::OtherNode => "other node",
        });
        table.row([cpus(&choice.cpus), names(&workers), runs_on(&workers), or_none(near)]);
    }
    table.render()
}

/// The sockets in the order that a classic program counts them in.
fn order(group: &ReuseportGroup) -> String {
    let mut table = Table::new(&[left("RECEIVED-ON"), left("WORKER"), left("RUNS-ON")]);
    let size = group.sockets.len();
    for (place, socket) in group.sockets.iter().enumerate() {
        let workers: Vec<&SocketWorker> = socket.workers.iter().collect();
        table.row([format!("cpu % {size} = {place}"), names(&workers), runs_on(&workers)]);
    }
    table.render()
}

fn cpus(cpus: &CpuSet) -> String {
    format!("cpu {cpus}")
}

/// `nginx/4711, nginx/4712, 2 more`.
fn names(workers: &[&SocketWorker]) -> String {
    let name =
        |worker: &&SocketWorker| format!("{}/{}", worker.comm, worker.tid.unwrap_or(worker.pid));
    let mut names: Vec<String> = workers.iter().take(WORKERS_NAMED).map(name).collect();
    if workers.len() > WORKERS_NAMED {
        names.push(format!("{} more", workers.len() - WORKERS_NAMED));
    }
    names.join(", ")
}

fn runs_on(workers: &[&SocketWorker]) -> String {
    let known = workers.iter().filter_map(|worker| worker.cpus.as_ref());
    known.fold(CpuSet::new(), |all, cpus| all.union(cpus)).to_string()
}

/// The groups, their workers, and what chooses among them.
pub fn steering(status: &Status) -> String {
    let mut out = String::new();
    if status.groups.is_empty() {
        line!(out, "no REUSEPORT group of several sockets in this network namespace");
    }
    for group in &status.groups {
        let title = format!("{} {}", protocol(group.protocol), group.local);
        heading(&mut out, &format!("{title}: {}", chosen_by(group)));
        let mut table = Table::new(&[right("SOCKET"), left("WORKER"), left("RUNS-ON")]);
        for socket in &group.sockets {
            let worker = socket.comm.as_ref().zip(socket.tid.or(socket.pid));
            let worker = worker.map(|(comm, id)| format!("{comm}/{id}"));
            table.row([socket.inode.to_string(), or_none(worker), or_none(socket.cpus.as_ref())]);
        }
        out.push_str(&table.render());
    }
    for gone in &status.gone {
        line!(
            out,
            "steering lost: {} {}, since {}: {}",
            protocol(gone.protocol),
            gone.local,
            time_of_day(gone.since_s),
            gone.reason
        );
    }
    out
}

fn chosen_by(group: &GroupStatus) -> String {
    let detail = group.detail.as_deref().map(super::printable).unwrap_or_default();
    match (group.program, group.since_s) {
        (None, _) => "the kernel selects by hash".to_owned(),
        (Some(ProgramOwner::Nearpath), Some(since)) => {
            format!("steered by nearpath since {} ({detail})", time_of_day(since))
        }
        (Some(ProgramOwner::Nearpath), None) => format!("steered by nearpath ({detail})"),
        (Some(ProgramOwner::Other), _) => format!("another program selects ({detail})"),
    }
}

fn protocol(protocol: SocketProtocol) -> &'static str {
    match protocol {
        SocketProtocol::Tcp => "TCP",
        SocketProtocol::Udp => "UDP",
    }
}

/// A time in seconds since 1970 as `2026-01-31 12:00:00 UTC` (days to a date: the algorithm
/// `civil_from_days` of <https://howardhinnant.github.io/date_algorithms.html>).
pub fn time_of_day(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::steering::{Gone, SocketStatus};
    use nearpath_model::{GroupSocket, Persistence};

    #[test]
    fn seconds_become_a_date() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(time_of_day(seconds), text);
        }
    }

    #[test]
    fn a_plan_names_the_worker_of_each_cpu() {
        let worker = |pid, cpu| SocketWorker {
            pid,
            tid: Some(pid),
            comm: "nginx".into(),
            cpus: Some(CpuSet::from_list(cpu).unwrap()),
        };
        let socket =
            |pid, cpu| GroupSocket { inode: 1, held: None, workers: vec![worker(pid, cpu)] };
        let group = ReuseportGroup {
            protocol: SocketProtocol::Tcp,
            local: "0.0.0.0:8181".parse().unwrap(),
            netns: None,
            sockets: vec![socket(12, "1"), socket(11, "0")],
        };
        let choice = |cpus, workers: &[usize], nearness| Choice {
            cpus: CpuSet::from_list(cpus).unwrap(),
            workers: workers.to_vec(),
            nearness,
        };
        let choices = vec![
            choice("0", &[1], Some(Nearness::SameCpu)),
            choice("1", &[0], Some(Nearness::SameCpu)),
            choice("2-3", &[0, 1], None),
        ];
        let mut change = Change {
            target: Target::ReuseportGroup(group),
            before: Value::Default,
            after: Value::Program(Program::Nearest { id: 1, tag: String::new(), choices }),
            why: "because".into(),
            persistence: Persistence::WhileOpen,
            snapshot: Vec::new(),
        };
        let plain = |text: String| anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            plain(steered(false, &change)),
            "would steer TCP 0.0.0.0:8181, until its sockets are closed\nwhy: because\n\
             RECEIVED-ON  WORKER              RUNS-ON  NEAR\n\
             cpu 0        nginx/11            0        same CPU\n\
             cpu 1        nginx/12            1        same CPU\n\
             cpu 2-3      nginx/12, nginx/11  0-1      -\n"
        );
        let pin = Change {
            target: Target::Thread(Thread::new(12, 13, 1)),
            before: Value::Text("0-1".into()),
            after: Value::Text("1".into()),
            ..change.clone()
        };
        assert_eq!(
            steered(true, &pin),
            "pinned thread 13 of process 12 to CPU 1; previously allowed on 0-1\n"
        );
        change.after = Value::Program(Program::cpu_modulo(2));
        let text = plain(steered(true, &change));
        assert!(text.contains("cpu % 2 = 0  nginx/12  1\n"), "{text}");
    }

    #[test]
    fn status_shows_the_owner_of_the_program() {
        let socket = SocketStatus { inode: 7, pid: None, tid: None, comm: None, cpus: None };
        let group = |program, detail: Option<&str>, since_s| GroupStatus {
            local: "[::]:53".into(),
            protocol: SocketProtocol::Udp,
            sockets: vec![socket.clone()],
            program,
            detail: detail.map(str::to_owned),
            since_s,
        };
        let gone = Gone {
            local: "0.0.0.0:80".into(),
            protocol: SocketProtocol::Tcp,
            since_s: 0,
            reason: "its sockets were closed".into(),
        };
        let status = Status {
            schema: 1,
            groups: vec![
                group(None, None, None),
                group(Some(ProgramOwner::Nearpath), Some("eBPF"), Some(0)),
                group(Some(ProgramOwner::Other), Some("x\u{1b}"), None),
            ],
            gone: vec![gone],
        };
        let text = anstream::adapter::strip_str(&steering(&status)).to_string();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(": ")).collect();
        assert_eq!(
            lines,
            [
                "UDP [::]:53: the kernel selects by hash",
                "UDP [::]:53: steered by nearpath since 1970-01-01 00:00:00 UTC (eBPF)",
                "UDP [::]:53: another program selects (x\\u{1b})",
                "steering lost: TCP 0.0.0.0:80, since 1970-01-01 00:00:00 UTC: its sockets \
                 were closed",
            ]
        );
    }
}
