//! Healthy hosts: on none of them may a check report a warning or worse.
//!
//! Each is as noisy as real ones are: a few lost packets, a squeezed softirq, tails many times the median, interrupts
//! that irqbalance has spread over the nodes, idle readers pinned elsewhere, wake-ups from deep idle states,
//! connections to clients on wireless links, to peers that are gone, and over loopback (`hosts`, `connections`). The
//! same hosts with one fault each must not be quiet, so that silence means something.

use crate::connections::{busy_and_healthy, limited};
use crate::hosts::{INTERVAL_S, host, measurement, shapes};
use nearpath_diagnose::{Evidence, diagnose};
use nearpath_model::tcp::{TcpLimit, TcpMeasurement};
use nearpath_model::*;

/// What is reported as a warning or worse.
pub fn alarms(now: &Host, then: Option<&Host>, measured: Option<&Measurement>) -> Vec<String> {
    alarms_of(now, then, Evidence { stages: measured, ..Evidence::default() })
}

/// The same with connections.
fn alarms_tcp(now: &Host, then: Option<&Host>, tcp: &TcpMeasurement) -> Vec<String> {
    alarms_of(now, then, Evidence { tcp: Some(tcp), ..Evidence::default() })
}

fn alarms_of(now: &Host, then: Option<&Host>, evidence: Evidence<'_>) -> Vec<String> {
    let diagnosis = diagnose(now, then, evidence);
    let serious = diagnosis.findings.iter().filter(|finding| finding.severity > Severity::Info);
    serious
        .map(|f| format!("{:?} [{}] {}: {:?}", f.severity, f.check, f.title, f.evidence))
        .collect()
}

#[test]
fn healthy_hosts_are_quiet() {
    let mut said = Vec::new();
    for shape in shapes() {
        let (then, now) = (host(shape, 86_400), host(shape, 86_400 + INTERVAL_S));
        let measured = measurement(shape);
        let connections = if shape.packets_per_s > 500_000 { 100_000 } else { 60 };
        let tcp = busy_and_healthy(connections);
        for (what, alarms) in [
            ("with connections", alarms_tcp(&now, Some(&then), &tcp)),
            ("connections alone", alarms_tcp(&now, None, &tcp)),
            ("measured", alarms(&now, Some(&then), Some(&measured))),
            ("counted", alarms(&now, Some(&then), None)),
            ("since boot", alarms(&now, None, None)),
        ] {
            said.extend(alarms.into_iter().map(|alarm| format!("{}, {what}: {alarm}", shape.name)));
        }
    }
    assert!(said.is_empty(), "{}", said.join("\n"));
}

#[test]
fn the_same_hosts_with_a_fault_are_not() {
    let busy = shapes()[1];
    let healthy = || (host(busy, 86_400), host(busy, 86_400 + INTERVAL_S), measurement(busy));
    let mut silent = Vec::new();
    let mut expect = |fault: &str, check: &str, said: Vec<String>| {
        if !said.iter().any(|alarm| alarm.contains(&format!("[{check}]"))) {
            silent.push(format!("{fault}: {said:?}"));
        }
    };
    let (then, mut now, measured) = healthy();
    *now.nics[0].statistics.get_mut("rx_missed_errors").unwrap() += 40_000;
    expect("1% lost by the NIC", "nic_drops", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    *now.counters.get_mut("Udp.RcvbufErrors").unwrap() += 5_000;
    expect("full sockets", "socket_buffers", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    for irq in &mut now.irqs {
        irq.effective_affinity = Some([CpuId(busy.cpus - 1)].into_iter().collect());
    }
    expect(
        "interrupts on another node",
        "nic_irq_node",
        alarms(&now, Some(&then), Some(&measured)),
    );
    let (then, mut now, measured) = healthy();
    now.cgroups[0].throttled_periods = Some(then.cgroups[0].throttled_periods.unwrap() + 8);
    expect("a throttled group", "cgroup_throttling", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    *now.counters.get_mut("TcpExt.ListenDrops").unwrap() += 5_000;
    expect("a full accept queue", "listen_overflows", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    *now.counters.get_mut("Tcp.RetransSegs").unwrap() += now.counters["Tcp.OutSegs"] / 50;
    expect("a lossy path", "tcp_retransmissions", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, _) = healthy();
    now.owners[0].cpu_ticks = Some(now.owners[0].cpu_ticks.unwrap() + 400);
    expect("a busy reader on the far node", "reader_placement", alarms(&now, Some(&then), None));
    let (then, now, mut measured) = healthy();
    let span = &mut measured.spans[0];
    span.buckets = vec![(900, span.count * 9 / 10), (3_000_000, span.count / 10)];
    span.p99_ns = Some(3_000_000);
    span.p999_ns = Some(3_000_000);
    expect("a tail of a tenth", "latency_tail", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    for time in &mut now.cpu_time {
        time.steal = Some(200);
        time.idle -= 200;
    }
    now.kernel.virtualisation = Some("kvm".to_owned());
    expect("stolen time", "cpu_steal", alarms(&now, Some(&then), Some(&measured)));
    for (limit, check) in [
        (TcpLimit::ReceiveWindow, "tcp_receive_buffer"),
        (TcpLimit::SendBuffer, "tcp_send_buffer"),
        (TcpLimit::CongestionWindow, "tcp_congestion_control"),
    ] {
        let (then, now, _) = healthy();
        let mut tcp = busy_and_healthy(60);
        tcp.connections.extend([limited(limit), limited(limit), limited(limit)]);
        expect("limited connections", check, alarms_tcp(&now, Some(&then), &tcp));
    }
    let (then, mut now, _) = healthy();
    *now.counters.get_mut("TcpExt.TCPTimeouts").unwrap() += now.counters["Tcp.OutSegs"] / 500;
    let tcp = busy_and_healthy(60);
    expect("bursts of timeouts", "tcp_timeouts", alarms_tcp(&now, Some(&then), &tcp));
    let (then, mut now, _) = healthy();
    now.sysctls.insert("net.ipv4.tcp_sack".to_owned(), "0".to_owned());
    let mut tcp = busy_and_healthy(60);
    let mut without = limited(TcpLimit::CongestionWindow);
    without.options.as_mut().unwrap().sack = false;
    tcp.connections.push(without);
    expect(
        "selective acknowledgements off",
        "tcp_options_off",
        alarms_tcp(&now, Some(&then), &tcp),
    );
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}
