//! Which interrupt belongs to which queue, by the names that drivers give their interrupts.
//!
//! In go the interrupts of one device with their names; out comes an interrupt for each queue
//! where the names leave no doubt. Where they do, nothing is assigned: a wrong interrupt is
//! worse than none. Names are those of the drivers' `request_irq` (drivers/net/ethernet):
//! `eth0-TxRx-3` (ixgbe, igb, bnxt), `i40e-eth0-TxRx-3`, `eth0-Tx-Rx-3` (ena), `eth0-rx-3`
//! (igb, e1000e, enic), `eth0-rxtx-3` (vmxnet3), `eth0-fp-3` (bnx2x, qede), `virtio2-input.3`,
//! `mlx5_comp3@pci:0000:5e:00.0`, `mana_q3@pci:…`.

use nearpath_model::{IrqNumber, QueueId};
use std::collections::BTreeMap;

/// Which queue of a number an interrupt serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Serves {
    /// The receive queue.
    Rx,
    /// The transmit queue.
    Tx,
}

use Serves::{Rx, Tx};

/// Endings of a name before its number, without separators and case, and what it serves. The
/// longer stand before those that they end with.
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

/// What an interrupt of this name serves, and the number of the queue.
pub(super) fn parse(name: &str) -> Option<(&'static [Serves], QueueId)> {
    let name = name.split('@').next()?;
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name.get(stem.len()..)?.parse().ok()?;
    let stem = stem.trim_end_matches(['-', '.', '_', ' ']).to_ascii_lowercase();
    let stem = stem.replace("tx-rx", "txrx").replace("rx-tx", "rxtx");
    let (ending, serves) = ENDINGS.iter().find(|(ending, _)| stem.ends_with(ending))?;
    // A word of its own: `eth0-fp`, and not an interface that is called `myfp`.
    let before = stem.get(..stem.len() - ending.len())?;
    (before.is_empty() || before.ends_with(['-', '.', '_', ' '])).then_some((*serves, number))
}

/// Where in a name the ending begins that [`parse`] knows: 5 in `eth0-TxRx-3`.
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
/// Numbers must count up from 0 without a gap or a repetition: tg3 numbers its vectors, not its
/// queues, and the ports of one device share its interrupts. A single interrupt of a device
/// with a single queue is that queue's, whatever its name.
pub(super) fn assign(
    interface: &str,
    irqs: &[(IrqNumber, &str)],
    rx_queues: usize,
    tx_queues: usize,
) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let mut found = BTreeMap::new();
    for serves in [Rx, Tx] {
        let named: Vec<_> = irqs
            .iter()
            .filter_map(|(irq, name)| Some((*irq, *name, parse(name)?)))
            .filter(|(_, _, (serve, _))| serve.contains(&serves))
            .map(|(irq, name, (_, queue))| (queue, irq, name))
            .collect();
        // Where several interfaces are on one device, the names that tell this one.
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

/// Whether the name has the interface's as a word of it.
fn carries(name: &str, interface: &str) -> bool {
    !interface.is_empty()
        && name.match_indices(interface).any(|(at, _)| {
            let before = name.get(..at).is_none_or(|b| b.is_empty() || b.ends_with('-'));
            let after = name.get(at + interface.len()..).unwrap_or_default();
            before && (after.is_empty() || after.starts_with('-'))
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
        let found = assign(interface, &irqs, rx, tx);
        found.into_iter().map(|((serves, queue), irq)| (serves, queue.0, irq.0)).collect()
    }

    #[test]
    fn virtio_has_one_interrupt_for_each_direction() {
        let names = ["virtio2-config", "virtio2-input.0", "virtio2-output.0"];
        assert_eq!(of("eth0", &names, 1, 1), [(Rx, 0, 101), (Tx, 0, 102)]);
    }

    #[test]
    fn two_ports_of_one_device_are_told_by_name() {
        let names = ["eth0-rx-0", "eth1-rx-0", "eth10-rx-0"];
        assert_eq!(of("eth1", &names, 1, 0), [(Rx, 0, 101)]);
        let unnamed = ["mlx5_comp0@pci:a", "mlx5_comp0@pci:b"];
        assert_eq!(of("eth0", &unnamed, 1, 1), []);
    }

    #[test]
    fn what_leaves_a_doubt_is_not_assigned() {
        // tg3: the first vector is for the link, queue 0 is served by vector 1.
        assert_eq!(of("eth0", &["eth0-tx-0", "eth0-rx-1", "eth0-rx-2"], 2, 1), [(Tx, 0, 100)]);
        // One interrupt of unknown use, several queues.
        assert_eq!(of("eth0", &["eth0"], 4, 4), []);
        assert_eq!(of("eth0", &["eth0"], 1, 1), [(Rx, 0, 100), (Tx, 0, 100)]);
        // More vectors than queues are in use.
        let names = ["mlx5_comp0@p", "mlx5_comp1@p", "mlx5_comp2@p"];
        assert_eq!(of("eth0", &names, 2, 0), [(Rx, 0, 100), (Rx, 1, 101)]);
    }
}
