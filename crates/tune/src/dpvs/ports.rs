//! The ports that DPVS creates from `netif_defs`, and their names (src/netif.c: `netif_vdevs_add`, `netif_port_init`,
//! `relate_bonding_device`).
//!
//! DPDK's ports get the names of the devices in the order of the file, bonds follow.

use super::config::Config;
use super::problems::{Problems, word};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a port's name (`IFNAMSIZ` less the NUL).
const MAX_NAME: usize = 15;
/// Ports (`NETIF_MAX_RTE_PORTS`).
const MAX_PORTS: usize = 64;

/// The ports of a running DPVS.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Port id by name; of several ports with one name the first, as in DPVS.
    pub ids: BTreeMap<String, usize>,
    /// Name and line by port id; a line is `None` for a port without a device in the file.
    pub names: Vec<(String, Option<u32>)>,
    /// Ports that are slaves of a bond.
    pub slaves: BTreeSet<usize>,
}

/// Creates the ports; `dpdk` is the number of ports that EAL found.
pub(super) fn create(
    config: &Config,
    dpdk: Option<u32>,
    nodes: Option<u32>,
    problems: &mut Problems,
) -> Ports {
    let devices = config.devices.len();
    let count = dpdk.map_or(devices, |ports| ports as usize);
    if count == 0 {
        problems.refused(
            config.netif_line,
            "no_ports",
            "there is no port: DPVS exits".to_owned(),
            "define a device in netif_defs for each port, and bind the NIC to a driver for DPDK",
        );
    }
    if devices < count {
        problems.refused(
            config.netif_line,
            "too_few_devices",
            format!("DPDK has {count} ports, netif_defs has {devices} devices: DPVS exits"),
            "define a device for each port, in the order of the PCI addresses",
        );
    }
    if count.saturating_add(config.bonds.len()) > MAX_PORTS {
        problems.refused(
            config.netif_line,
            "too_many_ports",
            format!("there are more than {MAX_PORTS} ports: DPVS writes beyond its tables"),
            "use fewer ports (EAL's option -a names those to use)",
        );
    }
    let mut ports = Ports::default();
    for device in config.devices.iter().take(count.min(MAX_PORTS)) {
        ports.add(&device.name, device.line, problems);
    }
    for bond in config.bonds.iter().take(MAX_PORTS) {
        let line = Some(bond.line);
        if !is_bond_name(&bond.name) {
            problems.refused(
                line,
                "bond_name",
                format!("bond name {} is not letters and a number: DPVS exits", quoted(&bond.name)),
                "name it bond0, bond1, ...",
            );
        }
        if bond.slaves.is_empty() {
            problems.refused(
                line,
                "bond_without_slave",
                format!("bond {} has no slave: DPVS exits", quoted(&bond.name)),
                "add a slave that is a device above the bond",
            );
        }
        if !bond.has_node && nodes.is_some_and(|nodes| nodes > 1) {
            problems.changed(
                line,
                "bond_node_default",
                format!(
                    "bond {} has no numa_node: DPVS takes node 0 for it and its slaves",
                    quoted(&bond.name)
                ),
                "write numa_node as the slaves' PCI devices have it",
            );
        }
        slaves(bond, &mut ports, problems);
        ports.add(&bond.name, bond.line, problems);
    }
    ports
}

fn slaves(bond: &super::config::Bond, ports: &mut Ports, problems: &mut Problems) {
    let mut own = BTreeSet::new();
    for (name, line) in &bond.slaves {
        let Some(&id) = ports.ids.get(cut(name)) else {
            problems.refused(
                Some(*line),
                "bond_slave_missing",
                format!("slave {} is no port: DPVS exits", quoted(name)),
                "name a device for which there is a port",
            );
            continue;
        };
        if !ports.slaves.insert(id) {
            problems.refused(
                Some(*line),
                "bond_slave_repeated",
                format!("{} is already the slave of a bond: DPVS exits", quoted(name)),
                "use each device in one bond only",
            );
        }
        own.insert(id);
    }
    if let Some((name, line)) = &bond.primary
        && !own.is_empty()
        && !bond.slaves.iter().any(|(slave, _)| slave == name)
    {
        problems.refused(
            Some(*line),
            "bond_primary",
            format!("primary {} is no slave of the bond: DPVS aborts", quoted(name)),
            "name one of the slaves, or none",
        );
    }
}

impl Ports {
    /// The id of a worker's port.
    pub(super) fn id(&self, name: &str) -> Option<usize> {
        self.ids.get(name).copied()
    }

    fn add(&mut self, name: &str, line: u32, problems: &mut Problems) {
        let id = self.names.len();
        let stored = cut(name).to_owned();
        if stored.len() < name.len() {
            problems.changed(
                Some(line),
                "name_too_long",
                format!("{} has more than {MAX_NAME} characters: DPVS cuts it", quoted(name)),
                "use a shorter name",
            );
        }
        if self.ids.contains_key(&stored) {
            problems.changed(
                Some(line),
                "name_repeated",
                format!("two ports are named {}: DPVS finds the first only", quoted(&stored)),
                "give each port its own name",
            );
        } else {
            self.ids.insert(stored.clone(), id);
        }
        self.names.push((stored, Some(line)));
    }
}

/// A name as DPVS stores it.
fn cut(name: &str) -> &str {
    let end = (0..=MAX_NAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name.get(..end).unwrap_or(name)
}

/// `sscanf("%[_a-zA-Z]%u")`.
fn is_bond_name(name: &str) -> bool {
    let rest = name.trim_start_matches(|c: char| c == '_' || c.is_ascii_alphabetic());
    rest.len() < name.len() && rest.starts_with(|c: char| c.is_ascii_digit())
}

/// A name for a message.
pub(super) fn quoted(name: &str) -> String {
    word(name.as_bytes())
}
