//! `bench packets`: packets received, where others were dropped, and the cost per packet on each CPU.
//!
//! Input: a report. Output: lines.

use super::line;
use super::table::{Table, left, right};
use super::units::{percent, percentage, printable, seconds};
use nearpath_trial::packets::{CpuSide, Drops, Offered, PacketsReport, PacketsTrial};

/// The trial that counts, or that there is none.
pub fn packets(report: &PacketsReport) -> String {
    let mut out = String::new();
    line!(out, "{}", answer(report));
    line!(out, "{}", title(report));
    if let Some(trial) = &report.result {
        out.push_str(&result(report, trial));
    }
    for unknown in &report.unknown {
        let (subject, fact) = (printable(&unknown.subject), printable(&unknown.fact));
        line!(out, "unknown: {subject}: {fact}: {}", printable(&unknown.reason));
    }
    out
}

/// `140794/s arrived, 0 lost (0.000%); 1188ns of CPU time per packet sent, 833ns per packet received`.
fn answer(report: &PacketsReport) -> String {
    match &report.result {
        Some(trial) => format!(
            "{:.0}/s arrived, {} lost ({}); {}",
            trial.received_per_s,
            trial.lost,
            percentage(trial.loss_percent),
            thread_times(trial)
        ),
        None if report.ended_early => "stopped before there was a result".to_owned(),
        None => format!("loss was above the limit at every rate; {} trials", report.trials.len()),
    }
}

fn thread_times(trial: &PacketsTrial) -> String {
    let each = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:.0}ns"));
    format!(
        "{} of CPU time per packet sent, {} per packet received",
        each(trial.sender_threads_ns),
        each(trial.receiver_threads_ns)
    )
}

/// A line of a trial of a search.
pub fn packets_progress(trial: &PacketsTrial) -> String {
    let asked =
        trial.asked_per_s.map_or("unlimited rate".to_owned(), |asked| format!("{asked:.0}/s"));
    format!(
        "{asked} for {}: {:.0}/s sent, {:.0}/s arrived, {} lost ({})",
        seconds(trial.duration_s),
        trial.sent_per_s,
        trial.received_per_s,
        trial.lost,
        percentage(trial.loss_percent)
    )
}

fn title(report: &PacketsReport) -> String {
    let offered = match report.offered {
        Offered::Fastest => "unlimited rate".to_owned(),
        Offered::Rate(rate) => format!("{rate}/s"),
        Offered::Search { max_loss_percent } if max_loss_percent > 0.0 => {
            format!("the highest rate with at most {max_loss_percent}% loss")
        }
        Offered::Search { .. } => "the highest rate without loss".to_owned(),
    };
    let flows = match report.flows {
        1 => String::new(),
        several => format!(" in {several} flows"),
    };
    let (target, bytes) = (printable(&report.target), report.size_bytes);
    format!("packets to {target} by UDP, {bytes} bytes{flows}: {offered}")
}

fn result(report: &PacketsReport, trial: &PacketsTrial) -> String {
    let mut out = String::new();
    line!(
        out,
        "sent:     {} in {}, {:.0}/s",
        trial.sent,
        seconds(trial.duration_s),
        trial.sent_per_s
    );
    if let (false, Some(asked)) = (trial.reached, trial.asked_per_s) {
        line!(out, "          less than the requested {asked:.0}/s: limited by the sender");
    }
    line!(out, "received: {}, {:.0}/s", trial.received, trial.received_per_s);
    line!(
        out,
        "lost:     {} ({}), {} reordered, {} duplicated",
        trial.lost,
        percentage(trial.loss_percent),
        trial.reordered,
        trial.duplicated
    );
    let drops = drops(&trial.drops);
    if !drops.is_empty() {
        line!(out, "drops:    {}", drops.join("; "));
    }
    line!(out, "threads:  {}", thread_times(trial));
    line!(out);
    if trial.cpus.is_empty() {
        // With tick-based accounting, work between ticks is not counted.
        line!(out, "no CPU time in /proc/stat, which may count only what runs at a tick");
        return out;
    }
    out.push_str(&cpus(trial));
    if report.same_host {
        line!(out, "\nboth sides are on this host: CPU times include sending and receiving");
    }
    out
}

/// Where packets were dropped, as far as counted.
fn drops(drops: &Drops) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |count: u64, what: String| {
        if count > 0 {
            all.push(format!("{count} {what}"));
        }
    };
    add(drops.socket.unwrap_or(0), "at the receiving sockets: receive buffer full".to_owned());
    for (side, devices) in
        [("the sender's", &drops.sender_devices), ("the receiver's", &drops.receiver_devices)]
    {
        for device in devices {
            let name = printable(&device.name);
            add(device.rx, format!("received by {side} {name}, all traffic"));
            add(device.tx, format!("to be sent by {side} {name}, all traffic"));
        }
    }
    for (side, backlog) in
        [("the sender's", drops.sender_backlog), ("the receiver's", drops.receiver_backlog)]
    {
        add(backlog.unwrap_or(0), format!("at the backlogs of {side} CPUs, all traffic"));
    }
    add(drops.refused_calls, "send calls refused by the kernel".to_owned());
    all
}

fn cpus(trial: &PacketsTrial) -> String {
    let columns = [
        left("CPU"),
        left("OF"),
        right("BUSY"),
        right("USER"),
        right("SYSTEM"),
        right("IRQ"),
        right("SOFTIRQ"),
        right("NS/PACKET"),
    ];
    let mut table = Table::new(&columns);
    for cpu in &trial.cpus {
        let side = match cpu.side {
            CpuSide::Sender => "sender",
            CpuSide::Receiver => "receiver",
            CpuSide::Both => "both",
        };
        let parts = [cpu.user_ns, cpu.system_ns, cpu.irq_ns, cpu.softirq_ns];
        let mut cells = vec![format!("cpu {}", cpu.cpu.0), side.to_owned(), percent(cpu.busy)];
        cells.extend(parts.iter().chain([&parts.iter().sum()]).map(|ns| format!("{ns:.0}")));
        table.row(cells);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> PacketsReport {
        let trial = json!({"asked_per_s": 500_000.0, "duration_s": 2.0, "sent": 800_000,
            "sent_per_s": 400_000.0, "reached": false, "received": 799_000, "received_per_s": 399_500.0,
            "lost": 1_000, "loss_percent": 0.125, "reordered": 3, "duplicated": 0,
            "drops": {"refused_calls": 0, "sender_devices": [], "sender_backlog": 0,
                "receiver_devices": [{"name": "eth0", "rx": 5, "tx": 0}], "receiver_backlog": null,
                "socket": 990},
            "sender_threads_ns": 1210.4, "receiver_threads_ns": null,
            "cpus": [{"side": "sender", "cpu": 1, "busy": 0.5, "user_ns": 100.0, "system_ns": 900.0,
                "irq_ns": 0.0, "softirq_ns": 250.0}]});
        serde_json::from_value(json!({"schema": 1, "target": "10.0.0.2:6328",
            "offered": {"rate": 500_000}, "size_bytes": 18, "flows": 2, "same_host": false,
            "result": trial, "trials": [], "ended_early": false, "unknown": []}))
        .unwrap()
    }

    #[test]
    fn counts_drops_and_costs_are_shown() {
        let expected = "\
399500/s arrived, 1000 lost (0.12%); 1210ns of CPU time per packet sent, - per packet received
packets to 10.0.0.2:6328 by UDP, 18 bytes in 2 flows: 500000/s
sent:     800000 in 2.00s, 400000/s
          less than the requested 500000/s: limited by the sender
received: 799000, 399500/s
lost:     1000 (0.12%), 3 reordered, 0 duplicated
drops:    990 at the receiving sockets: receive buffer full; 5 received by the receiver's eth0, all traffic
threads:  1210ns of CPU time per packet sent, - per packet received

CPU    OF       BUSY  USER  SYSTEM  IRQ  SOFTIRQ  NS/PACKET
cpu 1  sender  50.0%   100     900    0      250       1250
";
        assert_eq!(packets(&report()), expected);
        let mut unseen = report();
        unseen.result.as_mut().unwrap().cpus.clear();
        let text = packets(&unseen);
        assert!(
            text.contains("received\n\nno CPU time in /proc/stat") && !text.contains("BUSY"),
            "{text}"
        );
    }

    #[test]
    fn a_search_without_a_result_is_reported() {
        let mut none = report();
        none.offered = Offered::Search { max_loss_percent: 0.0 };
        none.trials = vec![none.result.take().unwrap()];
        let text = packets(&none);
        assert!(
            text.starts_with("loss was above the limit at every rate; 1 trials\npackets to ")
                && text.ends_with("the highest rate without loss\n"),
            "{text}"
        );
        let line = packets_progress(&none.trials[0]);
        assert_eq!(line, "500000/s for 2.00s: 400000/s sent, 399500/s arrived, 1000 lost (0.12%)");
    }
}
