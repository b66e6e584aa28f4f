//! Tables of several architectures and kernels, and generated ones that must round-trip.

use super::*;
use nearpath_model::{CpuId, MAX_CPUS};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

fn parse(text: &str) -> Interrupts {
    parse_interrupts(text.as_bytes()).unwrap()
}

/// Number, chip and name of each interrupt.
fn columns(found: &Interrupts) -> Vec<(u32, &str, &str)> {
    let irqs = found.irqs.iter();
    irqs.map(|irq| (irq.irq.0, irq.chip.as_deref().unwrap_or(""), irq.name.as_str())).collect()
}

fn counts(of: &[(u32, u64)]) -> BTreeMap<CpuId, u64> {
    of.iter().map(|&(cpu, count)| (CpuId(cpu), count)).collect()
}

#[test]
fn x86_6_18_with_an_offline_cpu() {
    let found = parse(include_str!("../fixtures/x86-6.18.txt"));
    assert_eq!(
        columns(&found),
        [
            (24, "IO-APIC 5-edge", "ACPI:Ged"),
            (28, "PCI-MSIX-0000:00:01.0 0-edge", "virtio0-config"),
            (38, "PCI-MSIX-0000:00:03.0 1-edge", "virtio2-input.0"),
            (39, "PCI-MSIX-0000:00:03.0 2-edge", "virtio2-output.0"),
        ]
    );
    assert_eq!(found.irqs[1].counts, counts(&[]));
    assert_eq!(found.irqs[2].counts, counts(&[(2, 2198)]));
    assert_eq!(found.irqs[3].counts, counts(&[(0, 1899), (2, 12)]));
    let names: Vec<_> = found.arch.iter().map(|arch| arch.name.as_str()).collect();
    assert_eq!(names, ["NMI", "LOC", "RES", "CAL", "ERR", "MIS"]);
    let cal = &found.arch[3];
    assert_eq!(cal.description.as_deref(), Some("Function call interrupts"));
    assert_eq!((&cal.counts, cal.total), (&counts(&[(0, 29030), (2, 24073)]), None));
    let mis = &found.arch[5];
    assert_eq!((&mis.description, mis.counts.len(), mis.total), (&None, 0, Some(3)));
    assert_eq!((found.uneven.len(), found.cut), (0, false));
}

#[test]
fn x86_4_19_with_shared_and_unused_interrupts() {
    let found = parse(include_str!("../fixtures/x86-4.19.txt"));
    assert_eq!(
        columns(&found)[2..],
        [
            (16, "IR-IO-APIC 16-fasteoi", "uhci_hcd:usb1, i801_smbus"),
            (25, "DMAR-MSI 0-edge", "dmar0"),
            (27, "IR-PCI-MSI 458752-edge", "PCIe PME, aerdrv"),
            (59, "IR-PCI-MSI 524288-edge", "eth0-TxRx-0"),
            (60, "IR-PCI-MSI 524289-edge", "mlx5_comp0@pci:0000:5e:00.0"),
            (61, "IR-PCI-MSI 524290-edge", ""),
        ]
    );
    assert_eq!(found.irqs[5].counts, counts(&[(0, 84_120_331), (2, 77)]));
}

#[test]
fn arm64_shows_the_trigger() {
    let found = parse(include_str!("../fixtures/arm64-6.1.txt"));
    assert_eq!(
        columns(&found),
        [
            (11, "GICv3 27 Level", "arch_timer"),
            (14, "GICv3 79 Edge", "eth0-tx-rx"),
            (48, "ITS-MSI 524289 Edge", "enP2p1s0-TxRx-1"),
            (52, "1f02000.pinctrl 12 Level -fasteoi", "gpio-keys"),
        ]
    );
    let found: Vec<_> = found.arch.iter().map(|a| (a.name.as_str(), a.total)).collect();
    assert_eq!(found, [("IPI0", None), ("IPI1", None), ("Err", Some(0))]);
}

#[test]
fn one_cpu_and_odd_chips() {
    let found = parse(include_str!("../fixtures/others.txt"));
    assert_eq!(
        columns(&found),
        [
            (5, "RISC-V INTC 5 Edge", "riscv-timer"),
            (10, "SiFive PLIC 10 Edge", "ttyS0"),
            (16, "PCI-MSI-edge", "eth0"),
            (57, "xen-dyn -event", "eth0-q0-tx"),
            (58, "None", ""),
            (59, "- 7", ""),
        ]
    );
    assert_eq!(found.arch[0].total, Some(2));
    assert!(found.uneven.is_empty());
}

#[test]
fn ambiguous_counts_are_omitted() {
    let found = parse(
        "CPU0 CPU1\n 5: 1 2 3 chip 1-edge a\n 6: 7 chip 2-edge b\n 7: 1 1 chip 3-edge c\nLOC: 4 text\n",
    );
    assert_eq!(found.uneven, ["5", "6", "LOC"]);
    let with_counts: Vec<_> = found.irqs.iter().map(|irq| irq.counts.len()).collect();
    assert_eq!(with_counts, [0, 0, 2]);
    assert!(found.arch[0].counts.is_empty());
    assert_eq!(found.irqs[0].name, "a");
}

#[test]
fn untrusted_text_is_bounded_and_printed_safely() {
    let found =
        parse("CPU0\n 5: 1 chip 1-edge \x1b[2Jname\n 5: 2 chip 1-edge again\n 99999999999: 1 x\n");
    assert_eq!(columns(&found), [(5, "chip 1-edge", "\u{fffd}[2Jname")]);
    assert_eq!(found.arch[0].name, "99999999999");
    let many = "1:0\n".repeat(MAX_LINES + 1);
    assert!(parse(&format!("CPU0\n{many}")).cut);
    let wide = format!("CPU0\n7: {}", "1 ".repeat(MAX_CPUS as usize));
    assert_eq!(parse(&wide).uneven, ["7"]);
    assert!(parse_interrupts(b"").is_err());
}

/// Counts as in practice: mostly zero.
fn count() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(0u32), 1 => any::<u32>()]
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse_interrupts(&bytes);
        let _ = parse_interrupts(&[b"CPU0 CPU1\n", &bytes[..]].concat());
    }

    #[test]
    fn no_text_of_the_expected_characters_panics(text in "[CPU0-9: \n\t-]{0,200}[a-z ,-]{0,20}") {
        let _ = parse_interrupts(text.as_bytes());
        let _ = parse_interrupts(format!("CPU0 CPU3\n{text}").as_bytes());
    }

    #[test]
    fn generated_tables_round_trip(
        cpus in proptest::collection::btree_set(0u32..2000, 1..12),
        rows in proptest::collection::btree_map(0u32..10_000, proptest::collection::vec(count(), 12), 0..12),
    ) {
        let text = table(&cpus, &rows);
        let found = parse_interrupts(text.as_bytes()).unwrap();
        prop_assert!(found.uneven.is_empty());
        prop_assert_eq!(found.irqs.len(), rows.len());
        for (irq, (number, row)) in found.irqs.iter().zip(&rows) {
            prop_assert_eq!(irq.irq.0, *number);
            prop_assert_eq!(&irq.name, &format!("eth{number}-rx"));
            let row = cpus.iter().zip(row).filter(|(_, count)| **count != 0);
            let row: Vec<_> = row.map(|(cpu, count)| (*cpu, u64::from(*count))).collect();
            prop_assert_eq!(&irq.counts, &counts(&row));
        }
    }
}

/// A table as `show_interrupts` prints it.
fn table(cpus: &BTreeSet<u32>, rows: &BTreeMap<u32, Vec<u32>>) -> String {
    let mut text = format!("{:11}", "");
    for cpu in cpus {
        write!(text, "CPU{cpu:<8}").unwrap();
    }
    for (irq, row) in rows {
        write!(text, "\n{irq:3}: ").unwrap();
        for (_, count) in cpus.iter().zip(row) {
            write!(text, "{count:10} ").unwrap();
        }
        write!(text, " {:>8} {irq:3}-{:8}  eth{irq}-rx", "PCI-MSI", "edge").unwrap();
    }
    text + "\n"
}

#[test]
fn lines_with_the_same_name_are_one() {
    let power = "           CPU0       CPU1\n\
                 LOC:         10         20   Local timer interrupts for timer event device\n\
                 BCT:          0          0   Broadcast timer interrupts for timer event device\n\
                 LOC:          3          0   Local timer interrupts for others\n";
    let found = parse(power);
    let names: Vec<_> = found.arch.iter().map(|arch| arch.name.as_str()).collect();
    assert_eq!(names, ["LOC", "BCT"]);
    assert_eq!(found.arch[0].counts, counts(&[(0, 13), (1, 20)]));
}
