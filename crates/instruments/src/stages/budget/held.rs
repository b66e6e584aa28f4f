//! What had a packet that did not wait for a CPU: the NIC, TCP's order, a locked socket, a queueing discipline, or a queue
//! that is not known.
//!
//! Input: a record, and what its CPU ran. Output: a time of the span with its cause, if there is one.

use super::stretches::{Runs, Stretch};
use super::{Waits, who};
use crate::stages::record::{Queued, Raiser, Record};
use crate::stages::table::receive_stage;
use nearpath_model::{Culprit, ShareKind};

/// Queueing disciplines that hold packets although the device accepts them: they shape, pace or delay
/// (`net/sched`).
const SHAPERS: [&str; 11] =
    ["tbf", "htb", "hfsc", "cbq", "fq", "etf", "taprio", "netem", "cbs", "cake", "plug"];
/// Queueing disciplines whose classes may be of that kind.
const CLASSFUL: [&str; 7] = ["prio", "drr", "ets", "qfq", "multiq", "mqprio", "mq"];

/// A time in which something else than a CPU had the packet, from the beginning of the span or later.
pub(super) struct Held {
    pub since: u64,
    pub until: u64,
    pub kind: ShareKind,
    pub who: Option<Culprit>,
}

/// What had the packet of this span.
pub(super) fn held(record: &Record, waits: Waits, of_cpu: &[Stretch]) -> Option<Held> {
    known(record, waits).or_else(|| parked(record, waits, of_cpu))
}

/// Something that the programs have reported.
fn known(record: &Record, waits: Waits) -> Option<Held> {
    let begin = |until, kind, who| Held { since: 0, until, kind, who };
    if waits == Waits::Nic {
        return Some(begin(record.at_ns, ShareKind::Nic, None));
    }
    if let Some(until) = record.early {
        // If unknown, it was at the latest when the socket signalled data.
        let signalled = record.to.name == "sk_data_ready";
        let until = until.filter(|_| !signalled).or(signalled.then_some(record.at_ns))?;
        return Some(begin(until, ShareKind::TcpGap, None));
    }
    // If NET_RX leaves a segment to the task that has the socket locked, that task processes it.
    if record.to.name == "tcp_rcv_established" && record.ended_in_task {
        let in_stack = matches!(
            record.from.name,
            "netif_receive_skb" | "ip_rcv" | "ipv6_rcv" | "tcp_v4_rcv" | "tcp_v6_rcv"
        );
        let task = Some(who::named(&record.task));
        return in_stack.then(|| begin(record.at_ns, ShareKind::SocketLocked, task));
    }
    let (until, kind, who) = held_in_queue(record, record.queued.as_ref()?)?;
    Some(begin(until, kind, who))
}

/// A received packet that is to be processed in one go, and was not: the run in which the span began ended without it, and
/// another one passed it on. In between it was in a queue that is not known: of a firewall's program (NFQUEUE), for
/// reassembly, decryption or a tunnel, of another CPU. Whatever ran meanwhile has nothing to do with it.
fn parked(record: &Record, waits: Waits, of_cpu: &[Stretch]) -> Option<Held> {
    let is_received = |stage: &str| receive_stage(stage).is_some();
    if waits != Waits::Nothing || !is_received(record.from.name) || !is_received(record.to.name) {
        return None;
    }
    let begin = record.begin_ns();
    let spanned = || of_cpu.iter().filter(|stretch| stretch.end > begin);
    let last = spanned().next_back()?;
    let same = |run: &Runs, one: &Runs| match (run, one) {
        (Runs::Task(run), Runs::Task(one)) => run.pid == one.pid,
        (Runs::Task(_), Runs::Softirq(_)) | (_, Runs::Irq(_)) => true,
        (run, one) => run == one,
    };
    let by_other = |run: &Runs| match run {
        Runs::Task(task) => task.pid == 0 || record.ended_in_task && task.pid != record.task.pid,
        _ => false,
    };
    let mut backwards = spanned().rev().skip_while(|stretch| same(&last.runs, &stretch.runs));
    // Who passed it on did so elsewhere, or in no time.
    let until = match by_other(&last.runs) {
        true => record.at_ns,
        false => backwards.next().filter(|other| other.runs != Runs::Unknown)?.end,
    };
    let first = spanned().next()?;
    let is_here = record.from_cpu == record.to_cpu;
    if is_here && matches!(first.runs, Runs::Task(_)) && same(&first.runs, &last.runs) {
        // A task that was descheduled has it still.
        return None;
    }
    let its_run = spanned().take_while(|stretch| is_here && same(&first.runs, &stretch.runs));
    let since = its_run.last().map_or(begin, |stretch| stretch.end);
    let who = record.ended_in_task.then(|| who::named(&record.task));
    // A segment that comes while a task has its socket is left to that task.
    let is_tcp = record.flow.as_deref().is_some_and(|flow| flow.starts_with("TCP"));
    let kind = match is_tcp && record.ended_in_task {
        true => ShareKind::SocketLocked,
        false => ShareKind::Held,
    };
    (since < until).then_some(Held { since, until, kind, who })
}

/// Held by the queueing discipline, or by the device.
fn held_in_queue(record: &Record, queued: &Queued) -> Option<(u64, ShareKind, Option<Culprit>)> {
    let is_one_of = |kinds: &[&str]| kinds.contains(&queued.qdisc.as_str());
    let raised_by = queued.raised.map(|(_, raiser)| raiser);
    let kind = if queued.stopped {
        ShareKind::DeviceQueue
    } else if is_one_of(&SHAPERS) || is_one_of(&CLASSFUL) && raised_by == Some(Raiser::Timer) {
        ShareKind::Qdisc
    } else if raised_by == Some(Raiser::Device) {
        ShareKind::DeviceQueue
    } else {
        return None;
    };
    // From then on it waited for NET_TX, on this CPU.
    let until = queued.raised.map_or(record.at_ns, |(ns, _)| ns.max(record.begin_ns()));
    let who = Culprit {
        qdisc: Some(queued.qdisc.clone()),
        device: Some(queued.device.clone()),
        ..Culprit::default()
    };
    Some((until, kind, Some(who)))
}

#[cfg(test)]
mod tests {
    use super::super::NET_RX;
    use super::super::tests::{at, record, shares, task};
    use super::*;
    use crate::stages::record::What;

    #[test]
    fn a_packet_that_left_its_run_is_held_and_not_kept_by_who_ran_meanwhile() {
        let span = |from_cpu, end_in_task, tasks, softirqs| {
            let mut r = record("netif_receive_skb", "sk_data_ready", tasks, softirqs);
            (r.from_cpu, r.to_cpu, r.ended_in_task) = (from_cpu, 1, end_in_task);
            r.task = task(if end_in_task { 7 } else { 9 }, "inspector");
            r
        };
        let innocent = || at(500, What::Task(task(9, "innocent")));
        let run = |begin, end| [at(begin, What::Softirq(NET_RX, 5)), at(end, What::SoftirqEnd(5))];
        // A program decided about it.
        let inspector = at(1900, What::Task(task(7, "inspector")));
        let by_task = span(1, true, vec![innocent(), inspector.clone()], run(900, 1100).to_vec());
        let held = (ShareKind::Held, "inspector".to_owned(), 800);
        assert_eq!(shares(&by_task), [held, (ShareKind::Own, String::new(), 200)]);
        // From another CPU, where it began.
        let elsewhere = span(0, true, vec![innocent(), inspector], vec![]);
        let held = (ShareKind::Held, "inspector".to_owned(), 900);
        assert_eq!(shares(&elsewhere), [held, (ShareKind::Own, String::new(), 100)]);
        // Another run passed it on: the last fragment came.
        let runs = [run(900, 1100), run(1800, 2100)].concat();
        let by_run = span(1, false, vec![innocent()], runs);
        let held = (ShareKind::Held, String::new(), 700);
        assert_eq!(shares(&by_run), [held, (ShareKind::Own, String::new(), 300)]);
        // It stayed in its run, which an interrupt broke.
        let interrupted = vec![innocent(), at(1300, What::Irq(33)), at(1400, What::IrqEnd)];
        let kept = span(1, false, interrupted, run(900, 2100).to_vec());
        assert!(
            shares(&kept).iter().all(|(kind, ..)| *kind != ShareKind::Held),
            "{:?}",
            shares(&kept)
        );
        // A segment of TCP is left to the task that has its socket.
        let inspector = at(1900, What::Task(task(7, "inspector")));
        let mut tcp = span(1, true, vec![innocent(), inspector], run(900, 1100).to_vec());
        tcp.flow = Some("TCP 10.0.0.1:1 > 10.0.0.2:2".to_owned());
        assert_eq!(shares(&tcp)[0], (ShareKind::SocketLocked, "inspector".to_owned(), 800));
    }

    #[test]
    fn who_takes_packets_from_a_device_is_their_reader_and_others_are_not() {
        let vpn = at(400, What::Task(task(7, "vpn")));
        let hog = [at(1300, What::Task(task(9, "hog"))), at(1500, What::Task(task(0, "swapper")))];
        let again = at(1700, What::Task(task(7, "vpn")));
        let tasks: Vec<_> = [vpn].into_iter().chain(hog).chain([again]).collect();
        let sent = |from, in_task| {
            let mut r = record(from, "consume_skb", tasks.clone(), vec![]);
            (r.ended_in_task, r.task) = (in_task, task(7, "vpn"));
            r
        };
        let of = |kind, name: &str, ns| (kind, name.to_owned(), ns);
        let waits_for_hog = of(ShareKind::Task, "hog", 200);
        assert_eq!(
            shares(&sent("net_dev_xmit", true)),
            [of(ShareKind::Held, "vpn", 800), waits_for_hog.clone()]
        );
        // The interrupt of a NIC frees what it has sent.
        assert!(
            shares(&sent("net_dev_xmit", false)).iter().all(|(kind, ..)| *kind != ShareKind::Held)
        );
    }
}
