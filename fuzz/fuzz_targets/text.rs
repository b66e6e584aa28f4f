//! Fuzzes the parsers of kernel files. The first byte selects the parser.
//!
//! To add a parser, append it to `PARSERS`: the seeds select parsers by index.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_model::{CpuSet, SocketProtocol};
use nearpath_host::{NetnsRef, parse, vms, workers};

const PARSERS: &[fn(&[u8])] = &[
    cpulist,
    cpumask,
    |bytes| drop(parse::parse_interrupts(bytes)),
    |bytes| drop(parse::parse_softirqs(bytes)),
    |bytes| drop(parse::parse_softnet(bytes, &CpuSet::from_list("0-3,9").unwrap_or_default())),
    |bytes| drop(parse::parse_cpu_time(bytes)),
    |bytes| drop(parse::each_mapping(bytes, |mapping| mapping.bytes().map(drop))),
    |bytes| drop(parse::parse_status(bytes)),
    |bytes| drop(parse::parse_cgroup(bytes)),
    |bytes| drop(parse::parse_sockets(bytes, SocketProtocol::Udp, parse::ByteOrder::Big)),
    |bytes| parse::fuzzing::irq_names(&String::from_utf8_lossy(bytes)),
    |bytes| drop(String::from_utf8_lossy(bytes).parse::<NetnsRef>()),
    |bytes| drop(parse::parse_net_dev(bytes)),
    |bytes| drop(parse::parse_protocols(bytes)),
    |bytes| drop(parse::parse_snmp6(bytes)),
    |bytes| drop(parse::parse_vmstat(bytes)),
    memory_maps,
    |bytes| drop(parse::parse_thread_stat(bytes)),
    |bytes| drop(parse::parse_memory_status(bytes)),
    |bytes| drop(parse::msix_vectors(bytes)),
    |bytes| drop(workers::ovs::parse_queues(&String::from_utf8_lossy(bytes))),
    |bytes| drop(workers::ovs::parse_busy(&String::from_utf8_lossy(bytes))),
    |bytes| drop(vms::parse_vm_name(bytes)),
    |bytes| drop(vms::tap_of_fdinfo(&String::from_utf8_lossy(bytes))),
    |bytes| drop(vms::descriptor_of_run(&String::from_utf8_lossy(bytes))),
];

/// A parsed cpulist must survive printing and parsing.
fn cpulist(bytes: &[u8]) {
    if let Ok(set) = CpuSet::from_list(&String::from_utf8_lossy(bytes)) {
        assert_eq!(CpuSet::from_list(&set.to_string()).as_ref(), Ok(&set));
    }
}

/// A parsed mask must survive writing and parsing.
fn cpumask(bytes: &[u8]) {
    if let Ok(set) = CpuSet::from_mask(&String::from_utf8_lossy(bytes)) {
        assert_eq!(CpuSet::from_mask(&set.to_mask()).as_ref(), Ok(&set));
    }
}

/// Every page has one kind, so that the kinds and the page sizes add up to at most the pages.
fn memory_maps(bytes: &[u8]) {
    let Ok(maps) = parse::parse_memory_maps(bytes) else { return };
    let hugetlb: u64 = maps.hugetlb.values().flat_map(|nodes| nodes.values()).sum();
    assert_eq!(hugetlb, maps.nodes.values().map(|node| node.hugetlb_bytes).sum::<u64>());
}

fuzz_target!(|bytes: &[u8]| {
    if let Some((&which, text)) = bytes.split_first()
        && let Some(parser) = PARSERS.get(usize::from(which))
    {
        parser(text);
    }
});
