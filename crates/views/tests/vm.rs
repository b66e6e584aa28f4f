//! What `show vms` and `measure vm` print, as files in `golden/`.

mod golden_files;

use golden_files::{golden, golden_json};
use nearpath_model::histogram::bucket;
use nearpath_model::memory::{NotAvailable, UsedDevice};
use nearpath_model::vm::{
    GuestLate, GuestSpan, GuestWait, MeasuredVm, VmBackendInterrupt, VmCpus, VmDevice,
    VmDeviceInterrupt, VmKicks, VmLate, VmLatePart, VmMeasurement, VmPart, VmQueue, VmSpan,
    VmSpanKind, VmTransmit, VmTransmitCpus, VmTransmitSpanKind, VmWriter,
};
use nearpath_model::{
    CpuId, CpuSet, Direction, NodeId, TapKind, Unknown, Vcpu, Vm, VmBackend, VmTap, VmThread, Vms,
};
use nearpath_views::text;
use std::collections::BTreeMap;

fn thread(tid: u32, pid: u32, comm: &str, cpus: &str, nodes: &[u32]) -> VmThread {
    VmThread {
        tid,
        pid,
        comm: comm.to_owned(),
        start_ticks: Some(9),
        cpus: Some(CpuSet::from_list(cpus).unwrap()),
        nodes: nodes.iter().map(|&node| NodeId(node)).collect(),
        last_cpu: Some(CpuId(2)),
        run_ns: Some(12_300_000_000),
        wait_ns: Some(120_000_000),
    }
}

fn one_vm() -> Vm {
    Vm {
        pid: 4711,
        comm: "qemu-system-x86".to_owned(),
        name: Some("web1".to_owned()),
        machines: 1,
        vcpus: vec![
            Vcpu { number: 0, thread: Some(thread(4720, 4711, "CPU 0/KVM", "4", &[1])) },
            Vcpu { number: 1, thread: None },
        ],
        vhost_workers: vec![thread(4722, 4711, "vhost-4711", "0-7", &[0, 1])],
        emulator: (0..10).map(|n| thread(4730 + n, 4711, "worker\x1b", "0-7", &[0, 1])).collect(),
        taps: vec![
            VmTap { name: "vnet0".to_owned(), kind: TapKind::Tap, queues: 1 },
            VmTap { name: "macvtap3".to_owned(), kind: TapKind::Macvtap, queues: 2 },
        ],
        vhost_net: 3,
        vhost_others: BTreeMap::from([("vsock".to_owned(), 1)]),
        eventfds: 12,
        backends: vec![VmBackend {
            pid: 902,
            comm: "ovs-vswitchd".to_owned(),
            eventfds: vec![57, 58, 61, 62],
        }],
        devices: vec![UsedDevice {
            device: "/dev/vfio/12".to_owned(),
            name: Some("0000:81:10.0".to_owned()),
            node: Some(NodeId(1)),
        }],
        memory: Some(BTreeMap::from([(NodeId(0), 13_000_000), (NodeId(1), 2 << 30)])),
        huge_memory: Some(BTreeMap::from([(NodeId(1), 2 << 30)])),
        tsc: None,
    }
}

#[test]
fn virtual_machines() {
    let unnamed = Vm { pid: 90, comm: "vmm".to_owned(), machines: 2, ..Vm::default() };
    let unknown = Unknown {
        subject: "vm 4711".to_owned(),
        fact: "thread of vCPU 1".to_owned(),
        reason: "neither its name nor its system call shows which thread runs it".to_owned(),
    };
    let vms = Vms { schema: 1, vms: vec![one_vm(), unnamed], unknown: vec![unknown] };
    golden("vms.txt", &text::vms(&vms));
    golden_json("vms.json", &vms);
    golden("vms-none.txt", &text::vms(&Vms::default()));
}

fn span<K>(kind: K, times: &[u64]) -> VmSpan<K> {
    let mut filled: BTreeMap<usize, u64> = BTreeMap::new();
    times.iter().for_each(|ns| *filled.entry(bucket(*ns)).or_default() += 1);
    let filled: Vec<_> = filled.into_iter().collect();
    VmSpan::new(kind, &filled, times.iter().copied().max().unwrap()).unwrap()
}

fn queue(number: u32) -> VmQueue {
    let times: Vec<u64> = (1..=200).map(|n| n * 100).collect();
    VmQueue {
        tap: "vnet0".to_owned(),
        queue: Some(number),
        workers: vec![4722],
        vcpus: vec![number],
        vcpu_threads: vec![4720 + number],
        taken: 210,
        interrupts: 70,
        interrupted: 200,
        without_interrupt: 10,
        spans: VmSpanKind::ALL.into_iter().map(|kind| span(kind, &times)).collect(),
        cpus: VmCpus {
            handler: BTreeMap::from([(0, 200)]),
            vhost: BTreeMap::from([(1, 150), (2, 50)]),
            vcpu: (3..9).map(|cpu| (cpu, u64::from(40 - cpu))).collect(),
        },
        ..VmQueue::default()
    }
}

#[test]
fn packets_into_virtual_machines() {
    let vm = MeasuredVm {
        pid: Some(4711),
        name: Some("web1".to_owned()),
        comm: Some("qemu-system-x86".to_owned()),
        queues: vec![queue(0), queue(1)],
        ..MeasuredVm::default()
    };
    let lost = VmQueue {
        taken: 3,
        posted: 3,
        queue: Some(0),
        workers: vec![9],
        tap: "if9".to_owned(),
        ..VmQueue::default()
    };
    let unknown = MeasuredVm { queues: vec![lost], ..MeasuredVm::default() };
    let missing = NotAvailable {
        what: "how long woken vhost workers wait for a CPU".to_owned(),
        reason: "vhost_net has no function handle_rx".to_owned(),
    };
    let mut measured = VmMeasurement {
        duration_s: 10.0,
        vms: vec![unknown, vm],
        started: 430,
        unseen: 1,
        not_available: vec![missing],
        ..VmMeasurement::default()
    };
    golden("vm.txt", &text::vm(&measured));
    measured.keep("web1");
    measured.merge_queues();
    golden("vm-per-vm.txt", &text::vm(&measured));
}

/// All of a document, with two buckets of each histogram, so that it can be read.
#[test]
fn interrupts_of_devices_passed_through() {
    let interrupt = |irq: u32, count: u64| VmDeviceInterrupt {
        source: VmDevice {
            device: Some("0000:81:10.0".to_owned()),
            name: Some(format!("vfio-msix[{}](0000:81:10.0)", irq - 77)),
            irq,
        },
        vcpus: vec![irq - 77],
        vcpu_threads: vec![4720],
        interrupts: count,
        set: count,
        spans: vec![
            span(VmSpanKind::InterruptToKvm, &[1_900; 90]),
            span(VmSpanKind::KvmToGuest, &[9_000; 90]),
            span(VmSpanKind::Halted, &[9_000; 90]),
            span(VmSpanKind::Whole, &[11_000; 90]),
        ],
        handled_on: BTreeMap::from([(3, 90)]),
        entered_on: BTreeMap::from([(4, 88), (5, 2)]),
        ..VmDeviceInterrupt::default()
    };
    let vm = MeasuredVm {
        pid: Some(4711),
        name: Some("web1".to_owned()),
        device_interrupts: vec![
            interrupt(77, 90),
            VmDeviceInterrupt { posted: 30, deferred: 1, lost: 2, ..interrupt(78, 120) },
        ],
        ..MeasuredVm::default()
    };
    let mut measured =
        VmMeasurement { duration_s: 10.0, vms: vec![vm], ..VmMeasurement::default() };
    let waited = (VmPart::VcpuWaited, 14, [("spin\x1b", 10), ("stress-ng", 4)].as_slice());
    measured.vms[0].device_interrupts[0].late = late(&[waited, (VmPart::Vhost, 1, &[])]);
    golden("vm-devices.txt", &text::vm(&measured));
    golden_json("vm-devices.json", &with_few_buckets(&measured));
    measured.merge_queues();
    let [all] = measured.vms[0].device_interrupts.as_slice() else { panic!("one device") };
    assert_eq!((all.interrupts, all.set, all.posted, all.entered()), (210, 210, 30, 180));
    // With packets, too.
    measured.vms[0].queues = vec![queue(0)];
    let said = text::vm(&measured);
    let expected = "1 queue, 210 interrupts of 1 device passed through in 10.0 s";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn interrupts_that_processes_write() {
    let interrupt = |eventfd: u32, tid: u32, count: u64| VmBackendInterrupt {
        source: VmWriter { eventfd, pid: 902, tid, comm: "pmd-c03/id:8".to_owned() },
        vcpus: vec![eventfd - 57],
        vcpu_threads: vec![4720],
        interrupts: count,
        set: count,
        spans: vec![
            span(VmSpanKind::WriteToKvm, &[1_900; 90]),
            span(VmSpanKind::KvmToGuest, &[9_000; 90]),
            span(VmSpanKind::Halted, &[9_000; 90]),
            span(VmSpanKind::Whole, &[11_000; 90]),
        ],
        handled_on: BTreeMap::from([(3, 90)]),
        entered_on: BTreeMap::from([(4, 88), (5, 2)]),
        ..VmBackendInterrupt::default()
    };
    let kicks = |pid: u32, comm: &str, eventfds: &[(u32, u64)]| VmKicks {
        pid,
        comm: comm.to_owned(),
        eventfds: eventfds.iter().copied().collect(),
    };
    let vm = MeasuredVm {
        pid: Some(4711),
        name: Some("web1".to_owned()),
        backend_interrupts: vec![
            interrupt(57, 917, 90),
            VmBackendInterrupt { posted: 30, deferred: 1, lost: 2, ..interrupt(58, 902, 120) },
            interrupt(59, 0, 7),
        ],
        backend_kicks: Some(vec![
            kicks(902, "ovs-vswitchd", &[]),
            kicks(950, "virtiofsd\x1b", &[(61, 12), (62, 3)]),
        ]),
        ..MeasuredVm::default()
    };
    let mut measured =
        VmMeasurement { duration_s: 10.0, vms: vec![vm], ..VmMeasurement::default() };
    let waited = (VmPart::VcpuWaited, 14, [("stress-ng", 14)].as_slice());
    measured.vms[0].backend_interrupts[0].late = late(&[waited, (VmPart::Vhost, 1, &[])]);
    golden("vm-backends.txt", &text::vm(&measured));
    golden_json("vm-backends.json", &with_few_buckets(&measured));
    measured.merge_queues();
    let [all] = measured.vms[0].backend_interrupts.as_slice() else { panic!("one process") };
    assert_eq!((all.interrupts, all.set, all.posted, all.entered()), (217, 217, 30, 270));
}

fn with_few_buckets(measured: &VmMeasurement) -> VmMeasurement {
    let mut few = measured.clone();
    for queue in few.vms.iter_mut().flat_map(|vm| &mut vm.queues) {
        queue.spans.iter_mut().for_each(|span| span.buckets.truncate(2));
        let transmit = queue.transmit.iter_mut().flat_map(|transmit| &mut transmit.spans);
        transmit.for_each(|span| span.buckets.truncate(2));
    }
    few
}

fn transmit() -> VmTransmit {
    let times: Vec<u64> = (1..=150).map(|n| n * 200).collect();
    VmTransmit {
        workers: vec![4722],
        kicks: 140,
        sent: 160,
        batches: 145,
        kicked: 150,
        reached_nic: 150,
        collided: 2,
        spans: VmTransmitSpanKind::ALL.into_iter().map(|kind| span(kind, &times)).collect(),
        cpus: VmTransmitCpus {
            kick: BTreeMap::from([(3, 140)]),
            vhost: BTreeMap::from([(1, 150), (2, 10)]),
            nic: BTreeMap::from([(1, 140), (2, 10)]),
        },
    }
}

#[test]
fn packets_from_virtual_machines() {
    let both = VmQueue { transmit: Some(transmit()), ..queue(0) };
    // Nothing was received.
    let only = VmQueue {
        tap: "vnet0".to_owned(),
        queue: Some(1),
        transmit: Some(transmit()),
        ..VmQueue::default()
    };
    let name = Some("web1".to_owned());
    let vm =
        MeasuredVm { pid: Some(4711), name, queues: vec![both, only], ..MeasuredVm::default() };
    let mut measured =
        VmMeasurement { duration_s: 10.0, vms: vec![vm], ..VmMeasurement::default() };
    golden("vm-transmit.txt", &text::vm(&measured));
    golden_json("vm-transmit.json", &with_few_buckets(&measured));
    measured.merge_queues();
    let [queue] = measured.vms[0].queues.as_slice() else { panic!("{measured:?}") };
    let sum = queue.transmit.as_ref().unwrap();
    assert_eq!((sum.sent, sum.kicks, sum.reached_nic, sum.workers.len()), (320, 280, 300, 1));
    assert_eq!(sum.span(VmTransmitSpanKind::Whole).unwrap().count, 300);
    assert_eq!(sum.cpus.kick, BTreeMap::from([(3, 280)]));
}

/// A part of the time, the packets, and the tasks that had the CPU meanwhile.
type Part<'a> = (VmPart, u64, &'a [(&'a str, u64)]);

fn late(parts: &[Part<'_>]) -> Option<VmLate> {
    let part = |&(part, packets, behind): &(VmPart, u64, &[(&str, u64)])| VmLatePart {
        part,
        packets,
        time_ns: packets * 30_000_000,
        behind: behind.iter().map(|(comm, n)| ((*comm).to_owned(), *n)).collect(),
    };
    Some(VmLate { slow_ns: 20_000_000, parts: parts.iter().map(part).collect() })
}

#[test]
fn late_packets() {
    let all: Vec<Part<'_>> = VmPart::ALL.into_iter().map(|part| (part, 2, [].as_slice())).collect();
    let waited = (VmPart::VhostWaited, 14, [("spin\x1b", 10), ("stress-ng", 4)].as_slice());
    let queues = vec![
        VmQueue { late: late(&[waited, (VmPart::Vcpu, 1, &[])]), ..queue(0) },
        VmQueue { late: late(&all), ..queue(1) },
        VmQueue { late: late(&[]), ..queue(2) },
    ];
    let vm = MeasuredVm { pid: Some(4711), queues, ..MeasuredVm::default() };
    let mut measured =
        VmMeasurement { duration_s: 10.0, vms: vec![vm], ..VmMeasurement::default() };
    golden("vm-late.txt", &text::vm(&measured));
    golden_json("vm-late.json", &with_few_buckets(&measured));
    measured.merge_queues();
    let sum = measured.vms[0].queues[0].late.as_ref().unwrap();
    assert_eq!(
        (sum.packets(), sum.parts[0].part, sum.parts[0].packets),
        (33, VmPart::VhostWaited, 16)
    );
    assert_eq!(sum.parts[0].behind.len(), 2);
}

#[test]
fn late_spans_of_a_guest() {
    let wait = |vcpu, ms: u64, throttled, behind: Option<&str>| GuestWait {
        vcpu,
        ns: ms * 1_000_000,
        throttled,
        behind: behind.map(str::to_owned),
    };
    let span = |to: &str, ms: u64, stolen_ms: u64, waited: Vec<GuestWait>| GuestSpan {
        direction: Direction::Rx,
        from: "netif_rx".to_owned(),
        to: to.to_owned(),
        flow: (ms > 40).then(|| "UDP 10.9.0.7:4000 > 10.9.0.50:9000".to_owned()),
        packet: ms,
        span_ns: ms * 1_000_000,
        host_at_ns: 10_000_000_000 + ms,
        vcpu: 1,
        stolen_ns: stolen_ms * 1_000_000,
        waited,
    };
    let spans = vec![
        span("sock_recv", 31, 29, vec![wait(1, 29, false, Some("hog\x1b"))]),
        span(
            "sock_recv",
            52,
            50,
            vec![wait(1, 40, false, Some("hog\x1b")), wait(0, 10, true, None)],
        ),
        span("udp_queue_rcv", 44, 0, vec![wait(1, 2, false, None)]),
    ];
    let waited =
        vec![wait(1, 69, false, Some("hog\x1b")), wait(0, 10, true, None), wait(1, 2, false, None)];
    let late = GuestLate { spans, outside: 1, waited };
    let vm = MeasuredVm {
        pid: Some(4711),
        name: Some("web1".to_owned()),
        queues: vec![queue(0)],
        ..MeasuredVm::default()
    };
    let mut measured = VmMeasurement {
        duration_s: 10.0,
        vms: vec![vm],
        guest: Some(late),
        ..VmMeasurement::default()
    };
    golden("vm-guest.txt", &text::vm(&measured));
    golden_json("vm-guest.json", &with_few_buckets(&measured));
    let first = |m: &VmMeasurement| {
        anstream::adapter::strip_str(&text::vm(m)).to_string().lines().next().unwrap().to_owned()
    };
    let guest = |m: &mut VmMeasurement, spans: Vec<GuestSpan>| {
        m.guest = Some(GuestLate { spans, ..GuestLate::default() });
    };
    guest(&mut measured, vec![span("sock_recv", 44, 0, Vec::new())]);
    assert_eq!(first(&measured), "the late span in the guest was not the host's: its vCPU ran");
    guest(&mut measured, Vec::new());
    assert_eq!(first(&measured), "no late span in the guest's recording");
}
