//! Which interrupt belongs to which queue, by the names that drivers give their interrupts.
//!
//! Input: the interrupts of one device with their names. Output: an interrupt for each queue if the names are
//! unambiguous. Otherwise nothing is assigned: a wrong interrupt is worse than none. Names are those of the
//! drivers' `request_irq` (drivers/net/ethernet):
//! `eth0-TxRx-3` (ixgbe, igb, bnxt), `i40e-eth0-TxRx-3`, `eth0-Tx-Rx-3` (ena), `eth0-rx-3`
//! (igb, e1000e, enic), `eth0-rxtx-3` (vmxnet3), `eth0-fp-3` (bnx2x, qede), `virtio2-input.3`,
//! `mlx5_comp3@pci:0000:5e:00.0`, `mana_q3@pci:…`, `eth0:rx-3` (stmmac). Names that are
//! meaningful only with a certain driver are in [`of_driver`].
//!
//! mlx4 numbers its event queues (`mlx4-3@0000:05:00.0`, mellanox/mlx4/eq.c `mlx4_assign_eq`), and
//! assigns the least used one to a ring: these names do not identify a queue.

use nearpath_model::{IrqNumber, QueueId};
use std::collections::BTreeMap;

/// The kind of queue that an interrupt serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Serves {
    /// The receive queue.
    Rx,
    /// The transmit queue.
    Tx,
}

use Serves::{Rx, Tx};

/// Endings of a name before its number, without separators and in lower case, and the kind of queue. Longer
/// endings come before those that they end with.
const ENDINGS: [(&str, &[Serves]); 10] = [
    ("txrx", &[Rx, Tx]),
    ("rxtx", &[Rx, Tx]),
    ("input", &[Rx]),
    ("output", &[Tx]),
    ("mlx5_comp", &[Rx, Tx]),
    ("mana_q", &[Rx, Tx]),
    ("fp", &[Rx, Tx]),
    ("rx", &[Rx]),
    ("tx", &[Tx]),
    ("queue", &[Rx, Tx]),
];

/// The kind and number of the queue for an interrupt name.
pub(super) fn parse(name: &str) -> Option<(&'static [Serves], QueueId)> {
    let name = name.split('@').next()?;
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name.get(stem.len()..)?.parse().ok()?;
    let stem = stem.trim_end_matches(['-', '.', '_', ' ']).to_ascii_lowercase();
    let stem = stem.replace("tx-rx", "txrx").replace("rx-tx", "rxtx");
    let (ending, serves) = ENDINGS.iter().find(|(ending, _)| stem.ends_with(ending))?;
    // A separate word: `eth0-fp`, not an interface called `myfp`.
    let before = stem.get(..stem.len() - ending.len())?;
    (before.is_empty() || before.ends_with(['-', '.', '_', ' ', ':'])).then_some((*serves, number))
}

/// The queues of interrupts whose names are meaningful only together with the driver's:
///
/// | driver | name | queues | from |
/// |---|---|---|---|
/// | gve | `gve-ntfy-blk5@pci:…`, `eth0-ntfy-block.5` before 6.4 | of N blocks the first half transmit, the others receive | google/gve/gve.h `gve_rx_idx_to_ntfy` |
/// | sfc | `eth0-3` | both, unless the name has `-rx`, `-tx` or `-xdp` | sfc/efx_channels.c `efx_get_channel_name` |
/// | mlx4 before 4.2 | `eth0-3` | both | mellanox/mlx4/en_cq.c `mlx4_en_activate_cq` |
/// | be2net | `eth0-q3` | both | emulex/benet/be_main.c `be_msix_register` |
fn of_driver(
    driver: &str,
    interface: &str,
    irqs: &[(IrqNumber, &str)],
) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let separator = match driver {
        "gve" => return of_gve(irqs),
        "sfc" | "sfc-falcon" | "sfc-siena" | "mlx4_core" => "-",
        "be2net" => "-q",
        _ => return BTreeMap::new(),
    };
    let numbered = irqs.iter().filter_map(|(irq, name)| {
        let number = name.strip_prefix(interface)?.strip_prefix(separator)?;
        Some((digits(number)?, *irq))
    });
    let numbered: Vec<(u32, IrqNumber)> = numbered.collect();
    counted_up(&numbered)
        .into_iter()
        .flat_map(|(queue, irq)| [Rx, Tx].map(|serves| ((serves, QueueId(queue)), irq)))
        .collect()
}

fn of_gve(irqs: &[(IrqNumber, &str)]) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let block = |name: &str| {
        let name = name.split('@').next()?;
        let number = name.strip_prefix("gve-ntfy-blk");
        digits(number.or_else(|| Some(name.rsplit_once("-ntfy-block.")?.1))?)
    };
    let numbered: Vec<(u32, IrqNumber)> =
        irqs.iter().filter_map(|(irq, name)| Some((block(name)?, *irq))).collect();
    let blocks = counted_up(&numbered);
    let half = match u32::try_from(blocks.len()) {
        Ok(count) if count % 2 == 0 => count / 2,
        // The driver uses an even number of blocks.
        _ => return BTreeMap::new(),
    };
    let queue = |block: u32| match block.checked_sub(half) {
        Some(queue) => (Rx, QueueId(queue)),
        None => (Tx, QueueId(block)),
    };
    blocks.into_iter().map(|(block, irq)| (queue(block), irq)).collect()
}

/// Interrupts by number, if the numbers count up from 0 without a gap or a repetition.
fn counted_up(numbered: &[(u32, IrqNumber)]) -> BTreeMap<u32, IrqNumber> {
    let by_number: BTreeMap<u32, IrqNumber> = numbered.iter().copied().collect();
    let complete = by_number.len() == numbered.len()
        && by_number.keys().enumerate().all(|(i, number)| u32::try_from(i) == Ok(*number));
    if complete { by_number } else { BTreeMap::new() }
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Offset in a name of the ending that [`parse`] recognizes: 5 in `eth0-TxRx-3`.
pub(super) fn ending(name: &str) -> Option<usize> {
    parse(name)?;
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem = stem.trim_end_matches(['-', '.', '_', ' ']).to_ascii_lowercase();
    let spelled = ENDINGS.iter().map(|(ending, _)| *ending).chain(["tx-rx", "rx-tx"]);
    // The longest: `tx-rx` ends with `rx`, too.
    let ending = spelled.filter(|ending| stem.ends_with(ending)).max_by_key(|e| e.len())?;
    Some(stem.len() - ending.len())
}

/// The interrupts of an interface's queues, from those of its device.
///
/// Numbers must count up from 0 without a gap or a repetition: tg3 numbers its vectors, not its queues, and the
/// ports of one device share its interrupts. If a device has a single interrupt and a single queue, they belong
/// together, whatever the name.
pub(super) fn assign(
    interface: &str,
    driver: Option<&str>,
    irqs: &[(IrqNumber, &str)],
    rx_queues: usize,
    tx_queues: usize,
) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let mut found = driver.map(|d| of_driver(d, interface, irqs)).unwrap_or_default();
    for serves in [Rx, Tx] {
        let named: Vec<_> = irqs
            .iter()
            .filter_map(|(irq, name)| Some((*irq, *name, parse(name)?)))
            .filter(|(_, _, (serve, _))| serve.contains(&serves))
            .map(|(irq, name, (_, queue))| (queue, irq, name))
            .collect();
        // If several interfaces share a device, only the names with this interface's name.
        let own: Vec<_> =
            named.iter().copied().filter(|(_, _, name)| carries(name, interface)).collect();
        let candidates = if own.is_empty() { named } else { own };
        let by_queue: BTreeMap<_, _> =
            candidates.iter().map(|(queue, irq, _)| (*queue, *irq)).collect();
        let no_repetition = by_queue.len() == candidates.len();
        let no_gap = by_queue.keys().enumerate().all(|(i, queue)| u32::try_from(i) == Ok(queue.0));
        if no_repetition && no_gap {
            found.extend(by_queue.into_iter().map(|(queue, irq)| ((serves, queue), irq)));
        }
    }
    if let [(irq, name)] = irqs
        && found.is_empty()
        && rx_queues <= 1
        && tx_queues <= 1
        && parse(name).is_none()
    {
        found.extend([(Rx, QueueId(0)), (Tx, QueueId(0))].map(|queue| (queue, *irq)));
    }
    found.retain(|(serves, queue), _| {
        let queues = if *serves == Rx { rx_queues } else { tx_queues };
        usize::try_from(queue.0).is_ok_and(|queue| queue < queues)
    });
    found
}

/// Whether the name contains the interface's name as a word.
fn carries(name: &str, interface: &str) -> bool {
    !interface.is_empty()
        && name.match_indices(interface).any(|(at, _)| {
            let before = name.get(..at).is_none_or(|b| b.is_empty() || b.ends_with('-'));
            let after = name.get(at + interface.len()..).unwrap_or_default();
            before && (after.is_empty() || after.starts_with(['-', ':']))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers() {
        let both: &[Serves] = &[Rx, Tx];
        for (name, expected) in [
            ("eth0-TxRx-3", Some((both, 3))),
            ("i40e-eth0-TxRx-12", Some((both, 12))),
            ("ens5-Tx-Rx-7", Some((both, 7))),
            ("eth0-rxtx-1", Some((both, 1))),
            ("enp94s0f0-fp-2", Some((both, 2))),
            ("mlx5_comp3@pci:0000:5e:00.0", Some((both, 3))),
            ("hns3-0000:7d:00.0-TxRx-3", Some((both, 3))),
            // bnxt/bnxt.c bnxt_setup_msix, amazon/ena/ena_netdev.c ena_setup_io_intr.
            ("ens1np0-TxRx-15", Some((both, 15))),
            ("ens1np0-rx-2", Some((&[Rx], 2))),
            // stmicro/stmmac/stmmac_main.c stmmac_request_irq_multi_msi.
            ("eth0:rx-3", Some((&[Rx], 3))),
            ("eth0:tx-0", Some((&[Tx], 0))),
            ("eth0:mac", None),
            ("eth0:safety-ce", None),
            // Only with the driver.
            ("eth0-3", None),
            ("eth0-q3", None),
            ("gve-ntfy-blk3@pci:0000:00:04.0", None),
            ("eth0-rx-0", Some((&[Rx], 0))),
            ("eth0-tx-0", Some((&[Tx], 0))),
            ("virtio2-input.10", Some((&[Rx], 10))),
            ("virtio2-output.10", Some((&[Tx], 10))),
            ("virtio2-config", None),
            ("mlx5_async0@pci:0000:5e:00.0", None),
            ("mlx4-3@0000:05:00.0", None),
            ("ena-mgmnt@pci:0000:00:05.0", None),
            ("eth0", None),
            ("myfp3", None),
            ("eth0-TxRx-99999999999", None),
            ("", None),
        ] {
            let expected = expected.map(|(serves, queue)| (serves, QueueId(queue)));
            assert_eq!(parse(name), expected, "{name}");
        }
    }

    fn of(interface: &str, names: &[&str], rx: usize, tx: usize) -> Vec<(Serves, u32, u32)> {
        let irqs: Vec<_> = (100..).map(IrqNumber).zip(names.iter().copied()).collect();
        with_driver(None, interface, &irqs, rx, tx)
    }

    fn with_driver(
        driver: Option<&str>,
        interface: &str,
        irqs: &[(IrqNumber, &str)],
        rx: usize,
        tx: usize,
    ) -> Vec<(Serves, u32, u32)> {
        let found = assign(interface, driver, irqs, rx, tx);
        found.into_iter().map(|((serves, queue), irq)| (serves, queue.0, irq.0)).collect()
    }

    #[test]
    fn virtio_has_one_interrupt_per_direction() {
        let names = ["virtio2-config", "virtio2-input.0", "virtio2-output.0"];
        assert_eq!(of("eth0", &names, 1, 1), [(Rx, 0, 101), (Tx, 0, 102)]);
    }

    fn of_a(driver: &str, names: &[&str], rx: usize, tx: usize) -> Vec<(Serves, u32, u32)> {
        let irqs: Vec<_> = (100..).map(IrqNumber).zip(names.iter().copied()).collect();
        with_driver(Some(driver), "eth0", &irqs, rx, tx)
    }

    #[test]
    fn names_that_only_the_driver_explains() {
        // google/gve/gve_main.c: the notify blocks of transmit queues, of receive queues, the rest.
        let gve: Vec<String> =
            (0..4).map(|n| format!("gve-ntfy-blk{n}@pci:0000:00:04.0")).collect();
        let mut gve: Vec<&str> = gve.iter().map(String::as_str).collect();
        gve.push("gve-mgmnt@pci:0000:00:04.0");
        let expected = [(Rx, 0, 102), (Rx, 1, 103), (Tx, 0, 100), (Tx, 1, 101)];
        assert_eq!(of_a("gve", &gve, 2, 2), expected);
        assert_eq!(of_a("gve", &gve, 1, 1), [(Rx, 0, 102), (Tx, 0, 100)], "fewer queues in use");
        assert_eq!(of_a("gve", &gve[..3], 2, 2), [], "an odd number of blocks");
        let old = ["eth0-ntfy-block.0", "eth0-ntfy-block.1", "eth0-mgmnt"];
        assert_eq!(of_a("gve", &old, 1, 1), [(Rx, 0, 101), (Tx, 0, 100)]);
        // sfc/efx_channels.c: combined channels, and those of XDP.
        let sfc = ["eth0-0", "eth0-1", "eth0-xdp-0", "eth0-ptp"];
        let both = [(Rx, 0, 100), (Rx, 1, 101), (Tx, 0, 100), (Tx, 1, 101)];
        assert_eq!(of_a("sfc", &sfc, 2, 2), both);
        let separate = ["eth0-rx-0", "eth0-rx-1", "eth0-tx-0"];
        assert_eq!(of_a("sfc", &separate, 2, 1), [(Rx, 0, 100), (Rx, 1, 101), (Tx, 0, 102)]);
        assert_eq!(of_a("be2net", &["eth0-q0", "eth0-q1"], 2, 2), both);
        assert_eq!(
            of_a("mlx4_core", &["mlx4-async@pci:a", "eth0-0", "eth1-0"], 1, 0),
            [(Rx, 0, 101)]
        );
        assert_eq!(
            of_a("mlx4_core", &["mlx4-0@a", "mlx4-1@a"], 2, 2),
            [],
            "not identified by name"
        );
        // tg3 has such a name for its link.
        assert_eq!(of_a("tg3", &["eth0-0", "eth0-txrx-1"], 1, 1), []);
    }

    #[test]
    fn two_ports_of_one_device_are_distinguished_by_name() {
        let names = ["eth0-rx-0", "eth1-rx-0", "eth10-rx-0"];
        assert_eq!(of("eth1", &names, 1, 0), [(Rx, 0, 101)]);
        let unnamed = ["mlx5_comp0@pci:a", "mlx5_comp0@pci:b"];
        assert_eq!(of("eth0", &unnamed, 1, 1), []);
    }

    #[test]
    fn ambiguous_names_are_not_assigned() {
        // tg3: the first vector is for the link, queue 0 is served by vector 1.
        assert_eq!(of("eth0", &["eth0-tx-0", "eth0-rx-1", "eth0-rx-2"], 2, 1), [(Tx, 0, 100)]);
        // One interrupt of unknown purpose, several queues.
        assert_eq!(of("eth0", &["eth0"], 4, 4), []);
        assert_eq!(of("eth0", &["eth0"], 1, 1), [(Rx, 0, 100), (Tx, 0, 100)]);
        // More vectors than queues are in use.
        let names = ["mlx5_comp0@p", "mlx5_comp1@p", "mlx5_comp2@p"];
        assert_eq!(of("eth0", &names, 2, 0), [(Rx, 0, 100), (Rx, 1, 101)]);
    }
}
