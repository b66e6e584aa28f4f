//! All figures of the connections (`-v`): those of sending, and queues, buffers and windows.

use super::super::table::{Table, left, right};
use super::super::units::{bytes, percent};
use super::{end, time};
use nearpath_model::CpuId;
use nearpath_model::tcp::{TcpConnection, TcpMeasurement};
use nearpath_model::units::bit_rate;

/// The figures of sending.
pub(super) fn figures(m: &TcpMeasurement) -> String {
    let mut table = Table::new(&[
        left("LOCAL"),
        left("REMOTE"),
        right("MIN-RTT"),
        right("RTO"),
        right("CWND"),
        right("SSTHRESH"),
        right("IRQ CPU").optional(),
        right("CPU").optional(),
        right("ACCEPTED AFTER").optional(),
        right("IN-FLIGHT"),
        right("LOST"),
        right("REORDERING"),
        right("MSS"),
        right("PMTU"),
        right("DELIVERY"),
        right("PACING"),
        right("BUSY"),
        right("RWND-LIM"),
        right("SNDBUF-LIM"),
        right("TIMEOUTS").optional(),
        right("SPURIOUS").optional(),
        right("ECN-MARKED").optional(),
    ]);
    let number = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
    let rate = |value: Option<u64>| value.map(bit_rate).unwrap_or_default();
    let share = |value: Option<f64>| value.map(percent).unwrap_or_default();
    let some = |count: u64| if count > 0 { count.to_string() } else { String::new() };
    let cpu = |cpu: Option<CpuId>| cpu.map(|cpu| cpu.0.to_string()).unwrap_or_default();
    for c in &m.connections {
        table.row([
            end(c.src, c.sport),
            end(c.dst, c.dport),
            time(c.min_rtt_ns),
            time(c.rto_ns),
            number(c.cwnd),
            number(c.ssthresh),
            cpu(c.arrived_on_cpu),
            cpu(c.processed_on_cpu),
            time(c.accept_wait_ns),
            number(c.in_flight),
            number(c.lost),
            number(c.reordering),
            number(c.mss),
            number(c.pmtu),
            rate(c.delivery_rate_bps),
            rate(c.pacing_rate_bps),
            share(c.busy_share),
            share(c.rwnd_limited_share),
            share(c.sndbuf_limited_share),
            some(c.interval.timeouts.unwrap_or(0)),
            some(c.interval.spurious_retransmits),
            some(c.interval.ecn_marked),
        ]);
    }
    table.render()
}

/// The figures of queues, buffers and windows.
pub(super) fn buffers(m: &TcpMeasurement) -> String {
    let mut table = Table::new(&[
        left("LOCAL"),
        left("REMOTE"),
        right("SEND-Q"),
        right("UNSENT"),
        right("SNDBUF"),
        right("SEND-WINDOW"),
        right("RECV-Q"),
        right("RCVBUF"),
        right("RECV-WINDOW"),
        right("OUT-OF-ORDER").optional(),
        left("CC"),
        left("OPTIONS"),
        left("ULP").optional(),
        left("CGROUP").optional(),
    ]);
    let size = |value: Option<u32>| value.map(|value| bytes(value.into())).unwrap_or_default();
    for c in &m.connections {
        let out_of_order = c.interval.out_of_order;
        table.row([
            end(c.src, c.sport),
            end(c.dst, c.dport),
            size(Some(c.send_queue_bytes)),
            size(c.unsent_bytes),
            size(c.send_buffer_bytes),
            size(c.send_window_bytes),
            size(Some(c.receive_queue_bytes)),
            size(c.receive_buffer_bytes),
            size(c.receive_window_bytes),
            if out_of_order > 0 { out_of_order.to_string() } else { String::new() },
            c.congestion_control.clone().unwrap_or_default(),
            options(c),
            c.ulp.clone().unwrap_or_default(),
            c.cgroup.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}

/// As in ss(8): `ts sack wscale:7,7 ecn`.
fn options(connection: &TcpConnection) -> String {
    let Some(options) = connection.options else { return String::new() };
    let words = [
        options.timestamps.then(|| "ts".to_owned()),
        options.sack.then(|| "sack".to_owned()),
        options.window_scale.map(|(send, receive)| format!("wscale:{send},{receive}")),
        options.ecn.then(|| "ecn".to_owned()),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
