//! Plans for what limits TCP connections: sysctls with a measured connection as evidence, and nothing without.

use super::tests::{TWO_NODES, eth0, host, of_kind};
use super::*;
use crate::planners::Request;
use nearpath_diagnose::{Evidence, diagnose};
use nearpath_model::Sysctl;
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpListener, TcpMeasurement};
use nearpath_testing::trees::Machine;
use std::net::IpAddr;

const MS: u64 = 1_000_000;

/// A host with the kernel's defaults.
fn of_defaults() -> Host {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4]])));
    for (name, value) in [
        ("net.ipv4.tcp_rmem", "4096\t131072\t6291456"),
        ("net.ipv4.tcp_wmem", "4096\t16384\t4194304"),
        ("net.ipv4.tcp_mem", "766242\t1021657\t1532484"),
        ("net.core.rmem_max", "212992"),
        ("net.core.wmem_max", "212992"),
        ("net.core.somaxconn", "4096"),
        ("net.ipv4.tcp_congestion_control", "cubic"),
        ("net.ipv4.tcp_available_congestion_control", "reno cubic bbr"),
        ("net.ipv4.tcp_notsent_lowat", "4294967295"),
    ] {
        host.sysctls.insert(name.to_owned(), value.to_owned());
    }
    host
}

/// A connection over 100 ms that is limited by this.
fn limited(limit: TcpLimit) -> TcpConnection {
    let end = |last, port| (IpAddr::from([10, 0, 0, last]), port);
    let mut connection = TcpConnection::between(end(1, 80), end(2, 40_000));
    connection.observed_s = 10.0;
    connection.limits.insert(limit, 9.0);
    connection.min_rtt_ns = Some(100 * MS);
    connection.rtt_ns = Some(101 * MS);
    connection
}

fn receives() -> TcpConnection {
    let mut connection = limited(TcpLimit::ReceiveWindow);
    connection.interval.bytes_received = 300_000_000;
    connection.receive_buffer_bytes = Some(6_291_456);
    connection
}

fn loses() -> TcpConnection {
    let mut connection = limited(TcpLimit::CongestionWindow);
    connection.interval.bytes_sent = 30_000_000;
    connection.interval.segments_sent = 20_000;
    connection.interval.retransmits = 200;
    connection.ssthresh = Some(10);
    connection.congestion_control = Some("cubic".to_owned());
    connection
}

fn measured(connections: Vec<TcpConnection>) -> TcpMeasurement {
    TcpMeasurement { duration_s: 10.0, connections, ..TcpMeasurement::default() }
}

fn plan_of(host: &Host, measured: &TcpMeasurement) -> Plan {
    let evidence = Evidence { tcp: Some(measured), ..Evidence::default() };
    let findings = diagnose(host, None, evidence).findings;
    plan(host, &findings, &Request::default(), &[], Some("boot".to_owned()), None).unwrap()
}

/// The sysctls of a plan: name, before, after.
fn sysctls(plan: &Plan) -> Vec<(&str, &str, &str)> {
    let of = plan.changes.iter().filter(|change| change.kind() == "sysctl");
    of.map(|c| (c.id.as_str(), c.before.text().unwrap(), c.after.text().unwrap())).collect()
}

#[test]
fn a_larger_receive_buffer_is_planned_for_the_worst_connection() {
    let mut host = of_defaults();
    let plan = plan_of(&host, &measured(vec![receives(), limited(TcpLimit::Application)]));
    let (before, after) = ("4096 131072 6291456", "4096 131072 16777216");
    assert_eq!(sysctls(&plan), [("net.ipv4.tcp_rmem", before, after)]);
    let [change] = plan.changes.iter().filter(|c| c.kind() == "sysctl").collect::<Vec<_>>()[..]
    else {
        panic!("{plan:?}")
    };
    assert_eq!(change.finding.as_deref(), Some("tcp_receive_buffer"));
    assert!(change.persist.iter().any(|form| form == "sysctl"), "{:?}", change.persist);
    // The kernel prints tabs; the executor compares the numbers.
    let form = Sysctl::TcpRmem.form();
    assert!(form.same(before, &host.sysctls["net.ipv4.tcp_rmem"]) && form.check(after).is_ok());
    // Once it is applied, there is nothing more to plan.
    host.sysctls.insert("net.ipv4.tcp_rmem".to_owned(), after.replace(' ', "\t"));
    let plan = plan_of(&host, &measured(vec![receives()]));
    assert_eq!(sysctls(&plan), []);
}

/// Segments were dropped because receive buffers were full, and connections need larger ones: one change, with the
/// larger value and both reasons, whichever finding is ranked first.
#[test]
fn two_findings_about_a_sysctl_are_one_change() {
    let name = "net.ipv4.tcp_rmem";
    for (bytes_received, dropped, most) in
        [(300_000_000, 100_000, "16777216"), (150_000_000, 4_000_000, "12582912")]
    {
        let mut host = of_defaults();
        for (counter, count) in [("TcpExt.RcvPruned", dropped), ("Tcp.InSegs", 9_000_000)] {
            host.counters.insert(counter.to_owned(), count);
        }
        let mut connection = receives();
        connection.interval.bytes_received = bytes_received;
        let plan = plan_of(&host, &measured(vec![connection]));
        let after = format!("4096 131072 {most}");
        assert_eq!(sysctls(&plan), [(name, "4096 131072 6291456", after.as_str())]);
        let change = plan.changes.iter().find(|change| change.id == name).unwrap();
        for reason in ["receive buffer full", "The receive window of this host limits"] {
            assert!(change.why.contains(reason), "{}", change.why);
        }
        let also = match change.finding.as_deref() {
            Some("tcp_receive_buffer") => "; also socket_buffers: ",
            Some("socket_buffers") => "; also tcp_receive_buffer: ",
            other => panic!("{other:?}"),
        };
        assert!(change.why.contains(also), "{}", change.why);
    }
}

#[test]
fn other_sysctls_of_tcp_are_planned_with_evidence() {
    let host = of_defaults();
    assert_eq!(
        sysctls(&plan_of(&host, &measured(vec![loses()]))),
        [("net.ipv4.tcp_congestion_control", "cubic", "bbr")]
    );
    let mut sends = limited(TcpLimit::SendBuffer);
    sends.interval.bytes_acked = 400_000_000;
    sends.interval.bytes_sent = 400_000_000;
    sends.send_buffer_bytes = Some(4_194_304);
    let wmem = ("net.ipv4.tcp_wmem", "4096 16384 4194304", "4096 16384 16777216");
    assert_eq!(sysctls(&plan_of(&host, &measured(vec![sends]))), [wmem]);
    let mut queued = limited(TcpLimit::Path);
    (queued.unsent_bytes, queued.delivery_rate_bps) = (Some(4_000_000), Some(8_000_000));
    queued.interval.segments_received = 40;
    assert_eq!(
        sysctls(&plan_of(&host, &measured(vec![queued; 12]))),
        [("net.ipv4.tcp_notsent_lowat", "4294967295", "131072")]
    );
}

#[test]
fn a_longer_accept_queue_is_planned_only_where_somaxconn_limits_it() {
    let mut host = of_defaults();
    for (name, count) in
        [("TcpExt.ListenOverflows", 400), ("TcpExt.ListenDrops", 400), ("Tcp.PassiveOpens", 9000)]
    {
        host.counters.insert(name.to_owned(), count);
    }
    let with_limit = |limit| {
        let listener = TcpListener {
            src: IpAddr::from([0, 0, 0, 0]),
            sport: 80,
            pid: None,
            comm: None,
            backlog: limit,
            backlog_max_seen: limit + 1,
            backlog_limit: limit,
            full_share: 0.5,
            drops: Some(400),
            verdict: None,
        };
        TcpMeasurement { listeners: vec![listener], ..measured(Vec::new()) }
    };
    assert_eq!(
        sysctls(&plan_of(&host, &with_limit(4096))),
        [("net.core.somaxconn", "4096", "8192")]
    );
    assert_eq!(sysctls(&plan_of(&host, &with_limit(128))), []);
    assert_eq!(sysctls(&plan_of(&host, &measured(Vec::new()))), []);
}

#[test]
fn without_harm_there_are_notes_and_without_evidence_nothing() {
    let mut host = of_defaults();
    assert_eq!(sysctls(&plan_of(&host, &measured(vec![limited(TcpLimit::Application); 3]))), []);
    host.sysctls.insert("net.ipv4.tcp_sack".to_owned(), "0".to_owned());
    let plan = plan_of(&host, &measured(Vec::new()));
    assert!(of_kind(&plan, "sysctl").is_empty());
    let said = |note: &String| note.contains("net.ipv4.tcp_sack = 1 may help");
    assert!(plan.notes.iter().any(said), "{:?}", plan.notes);
}
