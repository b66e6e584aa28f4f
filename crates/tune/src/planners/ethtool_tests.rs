//! Plans of ethtool settings, for synthetic hosts whose NIC reports what real ones report.

use super::tests::{TWO_NODES, eth0, host, irq_cpus, of_kind, planned, planned_for, set};
use super::*;
use nearpath_model::{
    Channels, CpuId, CpuSet, Ethtool, Finding, Goal, IfIndex, Nic, NicKind, NicSetting, NtupleRule,
    PlannedChange, ProposedChange, QueueFile, QueueId, Rings, Rss, SettingFile, Severity,
    TrafficClass,
};
use nearpath_testing::trees::Machine;
use std::collections::{BTreeMap, BTreeSet};

/// eth0 on node 1 with its interrupts on these CPUs, reporting everything that a good NIC does.
pub(super) fn host_with(affinities: &[&[u32]]) -> Host {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(affinities)));
    let queues = u32::try_from(affinities.len()).unwrap();
    let nic = &mut host.nics[0];
    assert_eq!(nic.name, "eth0");
    nic.channels =
        Some(Channels { combined: Some(queues), combined_max: Some(16), ..Channels::default() });
    nic.rings =
        Some(Rings { rx: Some(256), tx: Some(256), rx_max: Some(4096), tx_max: Some(4096) });
    nic.coalesce = Some(coalesce(0, 3));
    nic.rss = Some(Rss {
        indirection: (0..128).map(|i| QueueId(i % queues)).collect(),
        key: Some("6d:5a:56:da".to_owned()),
        function: Some("toeplitz".to_owned()),
    });
    nic.ntuple = Some(vec![]);
    nic.offloads = Some([("rx-ntuple-filter".to_owned(), false)].into());
    nic.fixed_offloads = Some(BTreeSet::new());
    host
}

fn coalesce(adaptive: u64, usecs: u64) -> BTreeMap<String, u64> {
    [("use-adaptive-rx".to_owned(), adaptive), ("rx-usecs".to_owned(), usecs)].into()
}

fn goal(goal: Goal) -> Request {
    Request { goal, ..Request::default() }
}

fn only<'a>(plan: &'a Plan, kind: &str) -> Option<&'a PlannedChange> {
    let mut changes = plan.changes.iter().filter(|change| change.kind() == kind);
    let first = changes.next();
    assert!(changes.next().is_none(), "{:?}", plan.changes);
    first
}

fn values(plan: &Plan, kind: &str) -> Option<(String, String)> {
    only(plan, kind).map(|change| (change.before.to_string(), change.after.to_string()))
}

fn pair(before: &str, after: &str) -> Option<(String, String)> {
    Some((before.to_owned(), after.to_owned()))
}

fn noted(plan: &Plan, words: &str) -> bool {
    plan.notes.iter().any(|note| note.contains(words))
}

#[test]
fn for_throughput_each_near_core_gets_a_channel_and_nothing_else_is_planned() {
    let host = host_with(&[&[0], &[0]]);
    let plan = planned_for(&host, &goal(Goal::Throughput), &[]).unwrap();
    assert_eq!(values(&plan, "channels"), pair("combined 2", "combined 4"));
    assert_eq!(
        (plan.changes.len(), &*plan.changes[0].target.to_string()),
        (1, "ethtool eth0 channels")
    );
    assert!(noted(&plan, "plan again"), "{:?}", plan.notes);
    assert_eq!(plan.predicted.other_node, None);
    // For latency two queues do, and are placed.
    let plan = planned(&host);
    assert_eq!(values(&plan, "channels"), None);
    assert_eq!(irq_cpus(&plan), [4, 5]);
    // Its current CPUs are taken anyway.
    let again =
        planned_for(&host_with(&[&[4], &[5], &[6], &[7]]), &goal(Goal::Throughput), &[]).unwrap();
    assert_eq!(values(&again, "channels"), None);
}

#[test]
fn channels_as_requested() {
    let far: &[u32] = &[0];
    let host = host_with(&[far; 6]);
    let asked = |channels| {
        let request = Request { channels: Some(channels), ..Request::default() };
        planned_for(&host, &request, &[]).unwrap()
    };
    assert_eq!(values(&asked(ChannelCount::Near), "channels"), pair("combined 6", "combined 4"));
    assert_eq!(
        values(&asked(ChannelCount::Number(1)), "channels"),
        pair("combined 6", "combined 1")
    );
    let too_many = asked(ChannelCount::Number(17));
    assert_eq!(values(&too_many, "channels"), None);
    assert!(noted(&too_many, "at most 16 channels, not 17"), "{:?}", too_many.notes);
    // The rest is planned where the number is right already.
    assert!(!irq_cpus(&asked(ChannelCount::Number(6))).is_empty());
}

/// The plan for a finding that proposes this change, whatever its name.
fn plan_for(host: &Host, severity: Severity, change: ProposedChange) -> Plan {
    let finding = Finding::new(severity, "one CPU is busy").change(change);
    let findings = [Finding { check: "some_check".to_owned(), ..finding }];
    plan(host, &findings, &Request::default(), &[], Some("boot".to_owned()), None).unwrap()
}

#[test]
fn more_channels_where_a_finding_proposes_them() {
    let host = host_with(&[&[4], &[5]]);
    let of = |severity, nic: &str| {
        let target = NicSetting::new(nic, Ethtool::Channels);
        let change = ProposedChange::new(target, Some("combined 2".to_owned()), "combined 16", "");
        plan_for(&host, severity, change)
    };
    let found = of(Severity::Warning, "eth0");
    assert_eq!(values(&found, "channels"), pair("combined 2", "combined 4"), "one per core");
    assert_eq!(only(&found, "channels").unwrap().finding.as_deref(), Some("some_check"));
    assert_eq!(values(&of(Severity::Info, "eth0"), "channels"), None);
    assert_eq!(values(&of(Severity::Warning, "eth1"), "channels"), None);
}

#[test]
fn rps_where_a_finding_turns_it_on() {
    let host = host_with(&[&[4], &[5]]);
    let of = |nic: &str, before: &str, after: &str| {
        let target = SettingFile::queue(nic, QueueId(0), QueueFile::RpsCpus);
        let change = ProposedChange::new(target, Some(before.to_owned()), after, "");
        of_kind(&plan_for(&host, Severity::Warning, change), "rps_cpus").len()
    };
    assert_eq!(of("eth0", "00000000", "000000c0"), 2, "on both queues");
    // Another interface; elsewhere than now; off.
    assert_eq!(of("eth1", "00000000", "000000c0"), 0);
    assert_eq!(of("eth0", "00000001", "000000c0"), 0);
    assert_eq!(of("eth0", "00000001", "00000000"), 0);
}

#[test]
fn rings_grow_where_packets_were_lost() {
    let mut host = host_with(&[&[4], &[5]]);
    assert_eq!(values(&planned(&host), "rings"), None);
    host.nics[0].statistics.insert("rx_missed_errors".to_owned(), 5);
    host.nics[0].statistics.insert("rx_packets".to_owned(), 5_000);
    let throughput = Request { channels: Some(ChannelCount::Number(2)), ..goal(Goal::Throughput) };
    let plan = planned_for(&host, &throughput, &[]).unwrap();
    assert_eq!(values(&plan, "rings"), pair("rx 256", "rx 512"));
    let change = only(&plan, "rings").unwrap();
    assert_eq!(change.finding.as_deref(), Some("nic_drops"));
    assert!(change.why.starts_with("eth0 lost 5 packets"), "{}", change.why);
    assert!(change.optional);
    // Since boot, and for latency: a hint.
    let plan = planned(&host);
    assert_eq!(values(&plan, "rings"), None);
    assert!(noted(&plan, "a larger receive ring of eth0 (rx 512)"), "{:?}", plan.notes);
}

#[test]
fn interrupt_delay_follows_the_goal() {
    let mut host = host_with(&[&[4], &[5]]);
    let mut of = |adaptive, usecs, request: Request| {
        host.nics[0].coalesce = Some(coalesce(adaptive, usecs));
        let request = Request { channels: Some(ChannelCount::Number(2)), ..request };
        values(&planned_for(&host, &request, &[]).unwrap(), "coalescing")
    };
    let latency = || goal(Goal::Latency);
    assert_eq!(
        of(1, 64, latency()),
        pair("adaptive-rx on rx-usecs 64", "adaptive-rx off rx-usecs 8")
    );
    assert_eq!(
        of(1, 2, latency()),
        pair("adaptive-rx on rx-usecs 2", "adaptive-rx off rx-usecs 2")
    );
    assert_eq!(of(0, 50, latency()), pair("rx-usecs 50", "rx-usecs 8"));
    assert_eq!(of(0, 8, latency()), None);
    assert_eq!(of(0, 8, goal(Goal::Throughput)), pair("adaptive-rx off", "adaptive-rx on"));
    assert_eq!(of(1, 8, goal(Goal::Throughput)), None);
    assert_eq!(of(0, 50, goal(Goal::Isolation)), None);
    // A momentary 0 of adaptive mode is not made permanent, but a fixed 0 stays.
    assert_eq!(
        of(1, 0, latency()),
        pair("adaptive-rx on rx-usecs 0", "adaptive-rx off rx-usecs 8")
    );
    assert_eq!(of(0, 0, latency()), None);
    host.nics[0].coalesce = None;
    assert_eq!(values(&planned(&host), "coalescing"), None);
}

#[test]
fn a_delay_is_one_that_the_driver_accepts() {
    // These accept 0, 1, 3 (e1000: also 4) and 10 or more.
    for driver in ["igb", "igc", "e1000e", "igbvf", "e1000"] {
        let mut host = host_with(&[&[4], &[5]]);
        host.nics[0].driver = Some(driver.to_owned());
        let mut of = |usecs: u64| {
            host.nics[0].coalesce = Some([("rx-usecs".to_owned(), usecs)].into());
            values(&planned(&host), "coalescing")
        };
        assert_eq!(of(3), pair("rx-usecs 3", "rx-usecs 10"), "{driver}");
        assert_eq!(of(1), pair("rx-usecs 1", "rx-usecs 10"), "{driver}");
        assert_eq!(of(50), pair("rx-usecs 50", "rx-usecs 10"), "{driver}");
        assert_eq!((of(10), of(0)), (None, None), "{driver}");
    }
}

#[test]
fn queues_on_one_cpu_split_its_share_of_the_table() {
    let host = host_with(&[&[4], &[5], &[4]]);
    let request =
        Request { irq_cpus: Some(set("4-5")), app_cpus: Some(set("4-5")), ..Request::default() };
    let plan = planned_for(&host, &request, &[]).unwrap();
    assert_eq!(values(&plan, "rss"), pair("equal 3", "weight 1 2 1"));
    let why = &only(&plan, "rss").unwrap().why;
    assert!(why.contains("CPU 4 gets 66.") && why.contains("an equal share is 50.0%"), "{why}");
    // With a CPU for each it is good as it is.
    assert_eq!(values(&planned(&host), "rss"), None);
}

#[test]
fn an_uneven_table_is_evened_and_one_that_excludes_queues_stays() {
    let mut host = host_with(&[&[4], &[5], &[6], &[7]]);
    let table = |pattern: &[u32]| (0..128).map(|i| QueueId(pattern[i % pattern.len()])).collect();
    host.nics[0].rss.as_mut().unwrap().indirection = table(&[0, 0, 0, 0, 0, 1, 2, 3]);
    let plan = planned(&host);
    assert_eq!(only(&plan, "rss").unwrap().after, "equal 4".into());
    assert_eq!(only(&plan, "rss").unwrap().finding.as_deref(), Some("rss_uneven"));
    host.nics[0].rss.as_mut().unwrap().indirection = table(&[0, 1]);
    let plan = planned(&host);
    assert_eq!(values(&plan, "rss"), None);
    assert!(noted(&plan, "queues 2, 3 of eth0 are excluded"), "{:?}", plan.notes);
}

#[test]
fn a_key_that_does_not_hash_is_replaced() {
    let mut host = host_with(&[&[4], &[5]]);
    assert_eq!(values(&planned(&host), "rss_key"), None);
    let zero = ["00"; 52].join(":");
    host.nics[0].rss.as_mut().unwrap().key = Some(zero.clone());
    let (before, after) = values(&planned(&host), "rss_key").unwrap();
    assert_eq!((before, after.len()), (zero, 52 * 3 - 1));
    assert!(
        after.starts_with("6d:5a:56:da:25:5b:0e:c2:")
            && after.ends_with(":fa:6d:5a:56:da:25:5b:0e:c2:41:67:25:3d"),
        "{after}"
    );
}

fn priorities(asked: &[(u8, u32)]) -> Request {
    let class = |&(pcp, cpu): &(u8, u32)| (TrafficClass::Pcp(pcp), CpuId(cpu));
    Request { priorities: asked.iter().map(class).collect(), ..Request::default() }
}

#[test]
fn a_priority_has_its_own_queue_and_cpu() {
    let far: &[u32] = &[0];
    let host = host_with(&[far; 4]);
    let plan = planned_for(&host, &priorities(&[(5, 6), (6, 1)]), &[]).unwrap();
    assert_eq!(values(&plan, "feature"), pair("off", "on"));
    assert_eq!(
        of_kind(&plan, "ntuple_rule"),
        BTreeMap::from([
            ("ethtool eth0 rule 0", "ether vlan 40960/0xe000 queue 3"),
            ("ethtool eth0 rule 1", "ether vlan 49152/0xe000 queue 2"),
        ])
    );
    // Other packets use neither its queue nor its CPU.
    assert_eq!(irq_cpus(&plan), [4, 5, 1, 6]);
    assert_eq!(values(&plan, "rss"), pair("equal 4", "equal 2"));
    let kinds: Vec<&str> = plan.changes.iter().map(|change| change.kind()).collect();
    assert_eq!(kinds[..2], ["feature", "irq_affinity"], "{kinds:?}");
    let first = kinds.iter().position(|kind| *kind == "ntuple_rule").unwrap();
    assert!(!plan.changes[first].optional, "{:?}", plan.changes[first]);
}

#[test]
fn the_way_back_of_a_priority_has_its_tag_and_its_queue() {
    let mut host = host_with(&[&[4], &[6], &[4], &[6]]);
    let vlan = |name: &str, link: &str, map: &[(u32, u8)]| Nic {
        name: name.to_owned(),
        ifindex: IfIndex(50),
        kind: NicKind::Vlan,
        link: Some(link.to_owned()),
        vlan_egress: Some(map.iter().copied().collect()),
        ..host.nics[0].clone()
    };
    let vlans = [
        vlan("eth0.5", "eth0", &[(1, 2)]),
        vlan("eth0.6", "eth0", &[(3, 4)]),
        vlan("eth0.7", "eth0", &[(3, 3)]),
        vlan("eth9.5", "eth9", &[]),
    ];
    host.nics.extend(vlans);
    let plan = planned_for(&host, &priorities(&[(3, 6), (0, 7)]), &[]).unwrap();
    let maps = of_kind(&plan, "vlan_egress");
    assert_eq!(maps, BTreeMap::from([("egress-qos-map eth0.5", "1:2,3:3")]));
    assert!(noted(&plan, "eth0.6 sends packets of priority 3 with the VLAN priority 4"));
    // What is answered on the CPU of the priority leaves by the queue whose interrupt is there.
    let rules = of_kind(&plan, "ntuple_rule");
    let queue = rules["ethtool eth0 rule 0"].rsplit(' ').next().unwrap();
    let xps = format!("/sys/class/net/eth0/queues/tx-{queue}/xps_cpus");
    let mask = of_kind(&plan, "xps_cpus").get(xps.as_str()).map(|mask| (*mask).to_owned());
    let mask = mask.unwrap_or_else(|| panic!("{:?}", plan.changes));
    assert!(CpuSet::from_mask(&mask).unwrap().contains(CpuId(6)), "{mask}");
    // A class that is not of VLANs has no tag.
    let request =
        Request { priorities: vec![(TrafficClass::Dscp(46), CpuId(6))], ..Request::default() };
    let plan = planned_for(&host, &request, &[]).unwrap();
    assert!(of_kind(&plan, "vlan_egress").is_empty(), "{:?}", plan.changes);
}

#[test]
fn an_existing_priority_rule_stays() {
    let mut host = host_with(&[&[4], &[6]]);
    let nic = &mut host.nics[0];
    nic.offloads = Some([("rx-ntuple-filter".to_owned(), true)].into());
    nic.rss.as_mut().unwrap().indirection = vec![QueueId(0); 128];
    nic.ntuple = Some(vec![NtupleRule {
        location: 0,
        flow_type: "ether".to_owned(),
        matches: [("vlan".to_owned(), "40960/0xe000".to_owned())].into(),
        queue: Some(QueueId(1)),
    }]);
    let plan = planned_for(&host, &priorities(&[(5, 6)]), &[]).unwrap();
    let kinds: Vec<&str> = plan.changes.iter().map(|change| change.kind()).collect();
    assert!(kinds.iter().all(|kind| *kind == "xps_cpus"), "{:?}", plan.changes);
    // Another one gets the next location of the table, if there is a queue for it.
    let plan = planned_for(&host, &priorities(&[(6, 6)]), &[]).unwrap();
    assert_eq!(
        of_kind(&plan, "ntuple_rule"),
        BTreeMap::from([("ethtool eth0 rule 1", "ether vlan 49152/0xe000 queue 1")])
    );
}

#[test]
fn a_nic_without_rules_is_reported() {
    let asked = priorities(&[(5, 6)]);
    let said = |change: fn(&mut nearpath_model::Nic), words: &str| {
        let mut host = host_with(&[&[4], &[5]]);
        change(&mut host.nics[0]);
        let plan = planned_for(&host, &asked, &[]).unwrap();
        assert!(of_kind(&plan, "ntuple_rule").is_empty(), "{:?}", plan.changes);
        assert_eq!(values(&plan, "xdp"), pair("none", "pcp 5 cpu 6"));
        let xdp = plan.changes.iter().find(|change| change.kind() == "xdp").unwrap();
        assert!(xdp.why.contains(words), "{}", xdp.why);
    };
    said(|nic| nic.ntuple = None, "no n-tuple rules");
    said(
        |nic| nic.fixed_offloads = Some(["rx-ntuple-filter".to_owned()].into()),
        "its driver cannot turn rx-ntuple-filter on",
    );
    said(|nic| drop(nic.rx_queues.pop()), "one must remain for other packets");
    for cpu in [99, 99_999] {
        let host = host_with(&[&[4], &[5]]);
        let error = planned_for(&host, &priorities(&[(5, 4), (6, cpu)]), &[]).unwrap_err();
        assert!(error.to_string().contains(&format!("not online: {cpu}")), "{error}");
    }
}

#[test]
fn accelerated_rfs_is_for_readers_elsewhere_and_nics_that_steer() {
    let found = |check: &str, severity| {
        let mut finding = Finding::new(severity, "read elsewhere".to_owned());
        finding.check = check.to_owned();
        vec![finding]
    };
    let of = |driver: &str, request: &Request, findings: &[Finding]| {
        let mut host = host_with(&[&[4], &[5], &[6], &[7]]);
        host.nics[0].driver = Some(driver.to_owned());
        host.sysctls.insert("net.core.rps_sock_flow_entries".to_owned(), "0".to_owned());
        host.nics[0].rx_queues.iter_mut().for_each(|queue| queue.rps_flow_cnt = Some(0));
        super::plan(&host, findings, request, &[], None, None).unwrap()
    };
    let elsewhere = found("reader_placement", Severity::Warning);
    let latency = goal(Goal::Latency);
    let plan = of("ice", &latency, &elsewhere);
    assert_eq!(values(&plan, "feature"), pair("off", "on"));
    assert_eq!(only(&plan, "feature").unwrap().finding.as_deref(), Some("reader_placement"));
    assert_eq!(values(&plan, "sysctl"), pair("0", "32768"));
    let flows = of_kind(&plan, "rps_flow_cnt");
    assert!(flows.len() == 4 && flows.values().all(|count| *count == "8192"), "{flows:?}");
    // The hardware does it: no packet is handed on.
    assert!(of_kind(&plan, "rps_cpus").is_empty(), "{:?}", plan.changes);
    for (driver, request, findings) in [
        // igb takes rules, but steers no flow; virtio_net neither.
        ("igb", &latency, elsewhere.clone()),
        ("ice", &latency, found("reader_placement", Severity::Info)),
        ("ice", &latency, found("softnet", Severity::Critical)),
        ("ice", &latency, vec![]),
    ] {
        let plan = of(driver, request, &findings);
        assert!(of_kind(&plan, "feature").is_empty(), "{driver} {findings:?}");
        assert!(of_kind(&plan, "rps_flow_cnt").is_empty(), "{driver} {findings:?}");
    }
    // With priorities the feature is for their rules.
    let plan = of("ice", &priorities(&[(5, 6)]), &elsewhere);
    assert!(of_kind(&plan, "rps_flow_cnt").is_empty(), "{:?}", plan.changes);
}

#[test]
fn a_driver_holds_no_more_than_its_link_sends_soon() {
    let mut host = host_with(&[&[4], &[5]]);
    let limit = |limit| Some(nearpath_model::ByteLimit { limit, limit_max: 1_879_048_192 });
    host.nics[0].tx_queues[0].byte_limit = limit(60_000);
    host.nics[0].tx_queues[1].byte_limit = limit(9_000);
    let proposal = |severity| {
        let mut finding = Finding::new(severity, "holds 4.8 ms".to_owned());
        finding.check = "byte_queue_limit".to_owned();
        finding.changes = vec![ProposedChange::new(
            SettingFile::queue("eth0", QueueId(0), QueueFile::ByteLimitMax),
            Some("1879048192".to_owned()),
            "12500".to_owned(),
            "What the link sends in 1 ms.".to_owned(),
        )];
        vec![finding]
    };
    let plan =
        super::plan(&host, &proposal(Severity::Warning), &goal(Goal::Latency), &[], None, None)
            .unwrap();
    assert_eq!(values(&plan, "byte_queue_limit"), pair("1879048192", "12500"));
    let change = only(&plan, "byte_queue_limit").unwrap();
    assert_eq!(change.id, "eth0/tx-0/byte_queue_limits/limit_max");
    for (goal, severity) in [(Goal::Throughput, Severity::Warning), (Goal::Latency, Severity::Info)]
    {
        let plan = super::plan(
            &host,
            &proposal(severity),
            &Request { goal, ..Request::default() },
            &[],
            None,
            None,
        );
        assert!(of_kind(&plan.unwrap(), "byte_queue_limit").is_empty());
    }
}

/// eth0 without n-tuple rules, whose interrupts are on CPUs 4 and 6.
fn without_rules() -> Host {
    let mut host = host_with(&[&[4], &[6]]);
    host.nics[0].ntuple = None;
    host
}

#[test]
fn an_xdp_program_sees_tags_and_has_its_cpus_alone() {
    let mut host = without_rules();
    let strip = |host: &mut Host, on: bool| {
        host.nics[0].offloads = Some([("rx-vlan-hw-parse".to_owned(), on)].into());
    };
    strip(&mut host, true);
    let plan = planned_for(&host, &priorities(&[(3, 6), (5, 7)]), &[]).unwrap();
    assert_eq!(values(&plan, "feature"), pair("on", "off"));
    assert_eq!(values(&plan, "xdp"), pair("none", "pcp 3 cpu 6, pcp 5 cpu 7"));
    let kinds: Vec<&str> = plan.changes.iter().map(|change| change.kind()).collect();
    let at = |kind| kinds.iter().position(|other| *other == kind).unwrap();
    assert!(at("feature") < at("xdp") && at("xdp") < at("irq_affinity"), "{kinds:?}");
    // The second queue's interrupt leaves CPU 6.
    assert_eq!(irq_cpus(&plan), [5]);
    // Without stripping there is nothing to turn off; nor for classes of IP.
    strip(&mut host, false);
    assert_eq!(values(&planned_for(&host, &priorities(&[(3, 6)]), &[]).unwrap(), "feature"), None);
    strip(&mut host, true);
    let dscp = [(TrafficClass::Dscp(46), CpuId(6))].to_vec();
    let request = Request { priorities: dscp, ..Request::default() };
    let plan = planned_for(&host, &request, &[]).unwrap();
    assert_eq!(values(&plan, "feature"), None);
    assert_eq!(values(&plan, "xdp"), pair("none", "dscp 46 cpu 6"));
    // A driver that always removes tags.
    host.nics[0].fixed_offloads = Some(["rx-vlan-hw-parse".to_owned()].into());
    let plan = planned_for(&host, &priorities(&[(3, 6)]), &[]).unwrap();
    assert_eq!((values(&plan, "xdp"), values(&plan, "feature")), (None, None));
    assert!(noted(&plan, "hides VLAN tags"), "{:?}", plan.notes);
}

#[test]
fn a_present_xdp_program_is_extended_if_it_is_nearpaths() {
    let plan = |now: Result<&str, &str>| {
        let mut request = priorities(&[(3, 6)]);
        request.system.set_xdp("eth0", now);
        planned_for(&without_rules(), &request, &[]).unwrap()
    };
    assert_eq!(
        values(&plan(Ok("pcp 3 cpu 7, dscp 46 cpu 5")), "xdp"),
        pair("pcp 3 cpu 7, dscp 46 cpu 5", "pcp 3 cpu 6, dscp 46 cpu 5")
    );
    assert_eq!(values(&plan(Ok("pcp 3 cpu 6")), "xdp"), None, "it is there already");
    for (now, words) in
        [(Ok("XDP program 9 (filter)"), "it has XDP program 9"), (Err("EPERM"), "EPERM")]
    {
        let plan = plan(now);
        assert_eq!(values(&plan, "xdp"), None);
        assert!(noted(&plan, words), "{:?}", plan.notes);
    }
}

#[test]
fn interrupts_stay_on_the_cpu_of_a_priority_if_there_is_no_other() {
    let near = [4, 5, 6, 7, 12, 13, 14, 15];
    let all: Vec<(u8, u32)> = (0..8).zip(near).collect();
    let plan = planned_for(&without_rules(), &priorities(&all), &[]).unwrap();
    assert!(irq_cpus(&plan).iter().all(|cpu| near.contains(cpu)), "{:?}", plan.changes);
    // With one left, all go there.
    let plan = planned_for(&without_rules(), &priorities(&all[1..]), &[]).unwrap();
    assert_eq!(irq_cpus(&plan), [4]);
}

#[test]
fn halted_guests_poll_unless_throughput_is_the_goal() {
    let host = host_with(&[&[4], &[5]]);
    let plan = |goal, severity, now: &str| {
        let mut finding = Finding::new(severity, "halt_poll_ns is 0".to_owned());
        finding.check = "vm_halt_polling".to_owned();
        let file = SettingFile::from(nearpath_model::FileOf::HaltPolling);
        let (now, after) = (Some(now.to_owned()), "200000".to_owned());
        finding.changes = vec![ProposedChange::new(file, now, after, "The default.")];
        let request = Request { goal, ..Request::default() };
        super::plan(&host, &[finding], &request, &[], None, None).unwrap()
    };
    let latency = plan(Goal::Latency, Severity::Warning, "0");
    assert_eq!(values(&latency, "halt_poll_ns"), pair("0", "200000"));
    for plan in [
        plan(Goal::Throughput, Severity::Warning, "0"),
        // Of a host that polls long, and saves power by it.
        plan(Goal::Latency, Severity::Info, "5000000"),
    ] {
        assert!(of_kind(&plan, "halt_poll_ns").is_empty());
    }
}
