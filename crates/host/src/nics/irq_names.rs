//! Which interrupt belongs to which queue, by the names that drivers give their interrupts.
//!
//! Input: the interrupts of one device with their names. Output: an interrupt for each queue if the names are
//! unambiguous. Otherwise nothing is assigned: a wrong interrupt is worse than none. Names are those of the
//! drivers' `request_irq` (drivers/net/ethernet):
//! `eth0-TxRx-3` (ixgbe, igb, bnxt), `i40e-eth0-TxRx-3`, `eth0-Tx-Rx-3` (ena), `eth0-rx-3`
//! (igb, e1000e, enic), `eth0-rxtx-3` (vmxnet3), `eth0-fp-3` (bnx2x, qede), `virtio2-input.3`,
//! `mlx5_comp3@pci:0000:5e:00.0`, `mana_q3@pci:…`, `eth0:rx-3` (stmmac), `eth0_rxq3` (hinic), `eth0_qp3` (hinic3). Names
//! that are meaningful only with a certain driver are in [`of_driver`].
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
const ENDINGS: [(&str, &[Serves]); 13] = [
    ("txrx", &[Rx, Tx]),
    ("rxtx", &[Rx, Tx]),
    ("input", &[Rx]),
    ("output", &[Tx]),
    ("mlx5_comp", &[Rx, Tx]),
    ("mana_q", &[Rx, Tx]),
    ("fp", &[Rx, Tx]),
    ("qp", &[Rx, Tx]),
    ("rxq", &[Rx]),
    ("txq", &[Tx]),
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

/// An interface, as far as names of interrupts show it.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) interface: &'a str,
    /// The name of its device, and of that on the bus: `0000:5e:00.0`, `8000000.ethernet`, `vif-0`; of virtio `virtio1` and
    /// that of the parent.
    pub(super) devices: [&'a str; 2],
    pub(super) driver: Option<&'a str>,
}

impl Named<'_> {
    /// Whether an interrupt's name contains that of the interface or of its device.
    pub(super) fn is_in(self, name: &str) -> bool {
        let of_device = |device: &str| {
            carries(name, device)
                || name.split_once("@pci:").is_some_and(|(_, address)| address == device)
        };
        carries(name, self.interface)
            || self.devices.into_iter().any(of_device)
            || self.xen_prefix().is_some_and(|prefix| name.starts_with(&prefix))
    }

    /// xen-netfront's queues are those of `vif0`, whose device is `vif-0` (xen-netfront.c `xennet_init_queue`).
    fn xen_prefix(self) -> Option<String> {
        Some(format!("vif{}-q", digits(self.devices[0].strip_prefix("vif-")?)?))
    }
}

/// The queues of interrupts whose names are meaningful only together with the driver's:
///
/// | driver | name | queues | from |
/// |---|---|---|---|
/// | gve | `gve-ntfy-blk5@pci:…`, `eth0-ntfy-block.5` before 6.4 | of N blocks the first half transmit, the others receive | google/gve/gve.h `gve_rx_idx_to_ntfy` |
/// | sfc | `eth0-3` | both, unless the name has `-rx`, `-tx` or `-xdp` | sfc/efx_channels.c `efx_get_channel_name` |
/// | mlx4 before 4.2 | `eth0-3` | both | mellanox/mlx4/en_cq.c `mlx4_en_activate_cq` |
/// | bnx2 | `eth0-3` | both | broadcom/bnx2.c `bnx2_enable_msix` |
/// | be2net | `eth0-q3` | both | emulex/benet/be_main.c `be_msix_register` |
/// | netxen, qlcnic | `eth0[3]` | both | qlogic/netxen/netxen_nic_main.c `netxen_nic_request_irq` |
/// | tg3 | `eth0-rx-4`, `eth0-txrx-4` | counted from 1; `eth0-tx-0` is queue 0 | broadcom/tg3.c `tg3_mem_rx_acquire`, `tg3_mem_tx_acquire` |
/// | ionic | `ionic-eth0-L0-rx3` | both, if there is no `-tx` | pensando/ionic/ionic_lif.c `ionic_link_qcq_interrupts` |
/// | atlantic, macb | `eth0` for all | both, by the order of vectors | aquantia/atlantic/aq_pci_func.c `aq_pci_func_alloc_irq`; cadence/macb_main.c `macb_init` |
/// | xen-netfront | `vif0-q3-rx`, `vif0-q3-tx`, or `vif0-q3` | as named, or both | xen-netfront.c `setup_netfront_split` |
/// | am65-cpsw-nuss | `8000000.ethernet-tx3`, `8000000.ethernet` | as named; receives into queue 0 | ti/am65-cpsw-nuss.c `am65_cpsw_nuss_ndev_add_tx_napi` |
/// | virtio_net | `virtio2-virtqueues`, `virtio2` | all | drivers/virtio/virtio_pci_common.c `vp_request_msix_vectors`, virtio_mmio.c `vm_find_vqs` |
fn of_driver(
    of: Named<'_>,
    irqs: &[(IrqNumber, &str)],
    queues: [usize; 2],
) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let numbered = |number: &dyn Fn(&str) -> Option<u32>| -> Vec<(u32, IrqNumber)> {
        irqs.iter().filter_map(|(irq, name)| Some((number(name)?, *irq))).collect()
    };
    let between = |before: &str, after: &str| {
        let own = format!("{}{before}", of.interface);
        numbered(&|name: &str| digits(name.strip_prefix(&own)?.strip_suffix(after)?))
    };
    let found = match of.driver.unwrap_or_default() {
        "gve" => return of_gve(irqs),
        "tg3" => return of_tg3(irqs),
        "vif" => return of_xen(of, irqs),
        "ionic" => {
            let rx = |name: &str| match parse(name)? {
                ([Rx], queue) => Some(queue.0),
                _ => None,
            };
            let has_tx = irqs.iter().any(|(_, name)| matches!(parse(name), Some(([Tx], _))));
            if has_tx { Vec::new() } else { numbered(&rx) }
        }
        "am65-cpsw-nuss" => {
            let rx = irqs.iter().filter(|(_, name)| *name == of.devices[0]);
            return rx.map(|(irq, _)| ((Rx, QueueId(0)), *irq)).collect();
        }
        "virtio_net" => {
            let [rx, tx] = queues;
            let mut known = irqs.iter();
            let shared =
                known.find(|(_, name)| name.ends_with("-virtqueues") || *name == of.devices[0]);
            return shared.map(|(irq, _)| serving_all(*irq, rx, tx)).unwrap_or_default();
        }
        "atlantic" | "macb" => {
            let equal = irqs.iter().filter(|(_, name)| *name == of.interface);
            (0..).zip(equal.map(|(irq, _)| *irq)).collect()
        }
        "sfc" | "sfc-falcon" | "sfc-siena" | "sfc_ef100" | "mlx4_core" | "bnx2" => between("-", ""),
        "be2net" => between("-q", ""),
        "netxen_nic" | "qlcnic" => between("[", "]"),
        _ => Vec::new(),
    };
    let both = |(queue, irq)| [Rx, Tx].map(|serves| ((serves, QueueId(queue)), irq));
    counted_up(&found).into_iter().flat_map(both).collect()
}

/// One interrupt that serves all queues.
fn serving_all(irq: IrqNumber, rx: usize, tx: usize) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let all = |serves, queues: usize| {
        (0..u32::try_from(queues).unwrap_or(0)).map(move |queue| ((serves, QueueId(queue)), irq))
    };
    all(Rx, rx).chain(all(Tx, tx)).collect()
}

fn of_tg3(irqs: &[(IrqNumber, &str)]) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let mut found = BTreeMap::new();
    for serves in [Rx, Tx] {
        let named = irqs.iter().filter_map(|(irq, name)| {
            let (serve, vector) = parse(name).filter(|(serve, _)| serve.contains(&serves))?;
            // Vector 0 has the only transmit queue, or is for the link alone.
            let queue =
                if *serve == [Tx] && vector.0 == 0 { 0 } else { vector.0.checked_sub(1)? };
            Some((queue, *irq))
        });
        let counted = counted_up(&named.collect::<Vec<_>>());
        found.extend(counted.into_iter().map(|(queue, irq)| ((serves, QueueId(queue)), irq)));
    }
    found
}

fn of_xen(of: Named<'_>, irqs: &[(IrqNumber, &str)]) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let Some(prefix) = of.xen_prefix() else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for (serves, suffix) in [(Rx, "-rx"), (Tx, "-tx")] {
        let named = irqs.iter().filter_map(|(irq, name)| {
            let rest = name.strip_prefix(&prefix)?;
            Some((digits(rest.strip_suffix(suffix).unwrap_or(rest))?, *irq))
        });
        let counted = counted_up(&named.collect::<Vec<_>>());
        found.extend(counted.into_iter().map(|(queue, irq)| ((serves, QueueId(queue)), irq)));
    }
    found
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
/// Numbers must count up from 0 without a gap or a repetition: drivers number vectors of other purposes, too, and the
/// ports of one device share its interrupts. The `lone` interrupt of a device serves queues whatever its name.
pub(super) fn assign(
    of: Named<'_>,
    irqs: &[(IrqNumber, &str)],
    [rx_queues, tx_queues]: [usize; 2],
    lone: Lone,
) -> BTreeMap<(Serves, QueueId), IrqNumber> {
    let mut found = of_driver(of, irqs, [rx_queues, tx_queues]);
    for serves in [Rx, Tx] {
        // tg3 counts otherwise.
        if found.keys().any(|(its, _)| *its == serves) {
            continue;
        }
        let named: Vec<_> = irqs
            .iter()
            .filter_map(|(irq, name)| Some((*irq, *name, parse(name)?)))
            .filter(|(_, _, (serve, _))| serve.contains(&serves))
            .map(|(irq, name, (_, queue))| (queue, irq, name))
            .collect();
        // If several interfaces share a device, only the names with this interface's name.
        let own: Vec<_> =
            named.iter().copied().filter(|(_, _, name)| carries(name, of.interface)).collect();
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
        && parse(name).is_none()
        && (lone == Lone::All || lone == Lone::One && rx_queues <= 1 && tx_queues <= 1)
    {
        found = serving_all(*irq, rx_queues, tx_queues);
    }
    found.retain(|(serves, queue), _| {
        let queues = if *serves == Rx { rx_queues } else { tx_queues };
        usize::try_from(queue.0).is_ok_and(|queue| queue < queues)
    });
    found
}

/// What an interrupt serves that is the only one of its device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Lone {
    /// The device has others.
    #[default]
    Nothing,
    /// It is the only one that has a handler: a single queue in each direction.
    One,
    /// The device has no other: all queues.
    All,
}

/// Whether the name contains the interface's name as a word.
pub(super) fn carries(name: &str, interface: &str) -> bool {
    !interface.is_empty()
        && name.match_indices(interface).any(|(at, _)| {
            let before = name.get(..at).is_none_or(|b| b.is_empty() || b.ends_with('-'));
            let after = name.get(at + interface.len()..).unwrap_or_default();
            before && (after.is_empty() || after.starts_with(['-', ':', '_', '[']))
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
        let of = Named { interface, devices: ["0000:5e:00.0"; 2], driver };
        let lone = if irqs.len() == 1 { Lone::One } else { Lone::Nothing };
        let found = assign(of, irqs, [rx, tx], lone);
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
        let first = [(Rx, 0, 101), (Tx, 0, 101)];
        assert_eq!(of_a("tg3", &["eth0-0", "eth0-txrx-1"], 1, 1), first);
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
