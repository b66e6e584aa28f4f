//! Network interfaces: `/sys/class/net`, their devices, and their interrupts
//! (net/core/net-sysfs.c, drivers/pci/pci-sysfs.c).

use super::Machine;
use super::write::{Writer, cpulist, mask};
use std::collections::BTreeMap;

/// A network interface. `None` omits the file.
#[derive(Debug, Clone)]
pub struct Nic {
    /// Name.
    pub name: String,
    /// Driver; only with a bus address.
    pub driver: String,
    /// Bus address; without it the interface is below `/sys/devices/virtual/net`.
    pub bus: Option<String>,
    /// `ifindex`; counted from 1 in the order of the machine when `None`.
    pub ifindex: Option<u32>,
    /// `device/numa_node`, -1 as the kernel writes it.
    pub numa_node: Option<i64>,
    /// `address`.
    pub address: String,
    /// `mtu`.
    pub mtu: u32,
    /// `speed` in Mbit/s.
    pub speed: Option<i64>,
    /// `operstate`.
    pub state: String,
    /// Queues; each is a receive and a transmit queue with one interrupt.
    pub queues: Vec<Queue>,
}

/// A receive and a transmit queue with the same number.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// Its interrupt: a row of `/proc/interrupts`, a directory of `/proc/irq`, an `msi_irqs` file.
    pub irq: Option<u32>,
    /// `smp_affinity_list`; empty means all online CPUs.
    pub affinity: Vec<u32>,
    /// `effective_affinity_list`; empty means the online CPU chosen by the queue's number.
    pub effective: Vec<u32>,
    /// Interrupts counted by CPU; empty counts 1000 on the effective CPU.
    pub counts: BTreeMap<u32, u64>,
    /// `rps_cpus`.
    pub rps_cpus: Vec<u32>,
    /// `rps_flow_cnt`.
    pub rps_flow_cnt: u32,
    /// `xps_cpus`.
    pub xps_cpus: Vec<u32>,
    /// `xps_rxqs`.
    pub xps_rxqs: Vec<u32>,
}

impl Nic {
    /// An interface of a PCI device, with one queue and no interrupt.
    pub fn pci(name: &str, driver: &str, bus: &str) -> Self {
        Self { bus: Some(bus.to_owned()), driver: driver.to_owned(), ..Self::software(name) }
    }

    /// An interface without a device, with one queue.
    pub fn software(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            driver: String::new(),
            bus: None,
            ifindex: None,
            numa_node: None,
            address: "52:54:00:00:00:01".to_owned(),
            mtu: 1500,
            speed: None,
            state: "up".to_owned(),
            queues: vec![Queue::default()],
        }
    }

    /// Puts its device on a node.
    pub fn on_node(mut self, node: i64) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Sets the number of queues, whose interrupts count up from `first_irq`.
    pub fn queues(mut self, count: u32, first_irq: u32) -> Self {
        let queue = |i| Queue { irq: Some(first_irq + i), ..Queue::default() };
        self.queues = (0..count).map(queue).collect();
        self
    }

    /// Changes a queue.
    ///
    /// # Panics
    /// If it has no such queue.
    pub fn queue(mut self, number: usize, change: impl FnOnce(&mut Queue)) -> Self {
        change(&mut self.queues[number]);
        self
    }

    /// The directory of the interface: `/sys/devices/pci0000:5e/0000:5e:00.0/net/eth0`.
    fn dir(&self) -> String {
        match &self.bus {
            Some(bus) => format!("{}/net/{}", device_dir(bus), self.name),
            None => format!("/sys/devices/virtual/net/{}", self.name),
        }
    }
}

fn device_dir(bus: &str) -> String {
    let host_bridge: Vec<&str> = bus.split(':').take(2).collect();
    format!("/sys/devices/pci{}/{bus}", host_bridge.join(":"))
}

impl Queue {
    /// The allowed CPUs of its interrupt.
    pub(super) fn affinity_on(&self, online: &[u32]) -> Vec<u32> {
        if self.affinity.is_empty() { online.to_vec() } else { self.affinity.clone() }
    }

    /// The target of its interrupt; `number` is the queue's.
    pub(super) fn effective_on(&self, online: &[u32], number: usize) -> Vec<u32> {
        let cpus = if self.affinity.is_empty() { online } else { &self.affinity };
        match cpus.get(number % cpus.len().max(1)) {
            Some(cpu) if self.effective.is_empty() => vec![*cpu],
            _ => self.effective.clone(),
        }
    }
}

impl Machine {
    pub(super) fn write_nics(&self, w: &mut Writer) {
        for (index, nic) in (1..).zip(&self.nics) {
            let dir = nic.dir();
            w.link(&format!("/sys/class/net/{}", nic.name), &dir.replacen("/sys/", "../../", 1));
            w.line(&format!("{dir}/ifindex"), nic.ifindex.unwrap_or(index));
            w.line(&format!("{dir}/iflink"), nic.ifindex.unwrap_or(index));
            w.line(&format!("{dir}/type"), if nic.name == "lo" { 772 } else { 1 });
            w.line(&format!("{dir}/address"), &nic.address);
            w.line(&format!("{dir}/mtu"), nic.mtu);
            w.line(&format!("{dir}/operstate"), &nic.state);
            if let Some(speed) = nic.speed {
                w.line(&format!("{dir}/speed"), speed);
            }
            for counter in ["rx_packets", "tx_packets", "rx_dropped", "tx_dropped"] {
                w.line(&format!("{dir}/statistics/{counter}"), 0);
            }
            self.write_device(w, nic, &dir);
            self.write_queues(w, nic, &dir);
        }
    }

    fn write_device(&self, w: &mut Writer, nic: &Nic, dir: &str) {
        let Some(bus) = &nic.bus else { return };
        let device = device_dir(bus);
        w.link(&format!("{dir}/device"), &format!("../../../{bus}"));
        w.dir(&format!("/sys/bus/pci/drivers/{}", nic.driver));
        w.link(&format!("{device}/driver"), &format!("../../../bus/pci/drivers/{}", nic.driver));
        w.link(&format!("{device}/subsystem"), "../../../bus/pci");
        w.file(
            &format!("{device}/uevent"),
            format!("DRIVER={}\nPCI_SLOT_NAME={bus}\n", nic.driver),
        );
        if let Some(node) = nic.numa_node {
            w.line(&format!("{device}/numa_node"), node);
        }
        // A device without a node is local to all (drivers/pci/pci-sysfs.c).
        let local = match nic.numa_node.and_then(|node| u32::try_from(node).ok()) {
            Some(node) => self.online_where(|cpu| cpu.node == Some(node)),
            None => self.online(),
        };
        w.line(&format!("{device}/local_cpulist"), cpulist(&local));
        w.line(&format!("{device}/local_cpus"), mask(&local, self.bits()));
        for irq in nic.queues.iter().filter_map(|queue| queue.irq) {
            w.line(&format!("{device}/msi_irqs/{irq}"), "msix");
        }
    }

    fn write_queues(&self, w: &mut Writer, nic: &Nic, dir: &str) {
        let bits = self.bits();
        let queues = u32::try_from(nic.queues.len()).expect("few queues");
        for (i, queue) in nic.queues.iter().enumerate() {
            let (rx, tx) = (format!("{dir}/queues/rx-{i}"), format!("{dir}/queues/tx-{i}"));
            w.line(&format!("{rx}/rps_cpus"), mask(&queue.rps_cpus, bits));
            w.line(&format!("{rx}/rps_flow_cnt"), queue.rps_flow_cnt);
            w.line(&format!("{tx}/xps_cpus"), mask(&queue.xps_cpus, bits));
            w.line(&format!("{tx}/xps_rxqs"), mask(&queue.xps_rxqs, queues));
        }
    }
}
