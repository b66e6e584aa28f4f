//! Synthetic host trees: `/sys` and `/proc` of other machines, for tests and
//! benchmarks of everything that reads through a root.
//!
//! Input: a [`Machine`], built from a regular [`Layout`] and then modified for the case that
//! the test is about. Output: a [`Tree`], a temporary directory with files in the kernel's
//! format (drivers/base/{topology,cacheinfo,node}.c, net/core/net-sysfs.c,
//! kernel/irq/proc.c). Numbers and lists are plain values, so that a test compares what was read
//! with its own input.
//!
//! ```
//! use nearpath_testing::trees::{Layout, Machine, Nic};
//!
//! let tree = Machine::regular(Layout { packages: 2, cores: 4, threads: 2, ..Layout::default() })
//!     .offline(&[3, 11])
//!     .cpu(5, |cpu| cpu.core = Some(-1))
//!     .nic(Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(1).queues(4, 100))
//!     .file("/proc/sys/kernel/numa_balancing", "1")
//!     .without("/sys/devices/system/node/node1/distance")
//!     .write();
//! assert!(tree.path().join("sys/class/net/eth0/queues/rx-3/rps_cpus").exists());
//! ```

mod cpus;
mod nics;
mod nodes;
mod proc;
mod write;

pub use nics::{Nic, Queue};
pub use write::{Tree, cpulist, mask};

use std::collections::BTreeMap;

/// The size of each level of a regular machine.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Packages of the machine.
    pub packages: u32,
    /// Nodes in a package.
    pub nodes: u32,
    /// Last-level caches in a node.
    pub llcs: u32,
    /// Cores that share a last-level cache.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl Default for Layout {
    /// One of each.
    fn default() -> Self {
        Self { packages: 1, nodes: 1, llcs: 1, cores: 1, threads: 1 }
    }
}

/// A logical CPU. `None` omits the file; -1 is written as the kernel would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// Whether it is online. An offline CPU has neither `topology` nor `cache`.
    pub online: bool,
    /// CPUs with the same number are SMT siblings; the kernel does not show this number.
    pub smt_group: u32,
    /// `core_id`.
    pub core: Option<i64>,
    /// `physical_package_id`.
    pub package: Option<i64>,
    /// `die_id`.
    pub die: Option<i64>,
    /// `cluster_id`.
    pub cluster: Option<i64>,
    /// Its last-level cache, a key of [`Machine::caches`]; `None` writes no `cache` directory.
    pub cache: Option<u32>,
    /// Its node, a key of [`Machine::nodes`].
    pub node: Option<u32>,
    /// `cpu_capacity`.
    pub capacity: Option<u32>,
    /// The hybrid PMU that lists it: `core` or `atom`.
    pub kind: Option<&'static str>,
    /// Writes only the CPU's empty directory.
    pub bare: bool,
}

/// A last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// `level`.
    pub level: u32,
    /// `id`; `None` as on arm64 without ACPI's PPTT.
    pub id: Option<u32>,
    /// `size` in KiB.
    pub size_kib: u64,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `MemTotal` in KiB.
    pub memory_kib: u64,
    /// `MemFree` in KiB.
    pub free_kib: u64,
    /// Distance to each other node; missing ones are written as 20, and to itself as 10.
    pub distances: BTreeMap<u32, u32>,
    /// By page size in KiB: `nr_hugepages`, `free_hugepages`, `surplus_hugepages`.
    pub hugepages: BTreeMap<u64, [u64; 3]>,
}

/// A machine to write as a tree.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// CPUs by number; all of them are present.
    pub cpus: BTreeMap<u32, Cpu>,
    /// Last-level caches by a key of the test's own.
    pub caches: BTreeMap<u32, Cache>,
    /// Nodes by number; without any there is no `node` directory.
    pub nodes: BTreeMap<u32, Node>,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// CPU numbers that are possible but not present.
    pub possible_only: Vec<u32>,
    /// Writes masks (`thread_siblings`, `cpumap`) and no lists, like old kernels.
    pub masks_only: bool,
    /// Writes the private first-level and second-level caches of each core.
    pub private_caches: bool,
    edits: Vec<(String, Option<Vec<u8>>)>,
}

impl Machine {
    /// A machine like a current x86 server: CPU numbers enumerate all first threads of the cores,
    /// then all second ones; `core_id` counts within the package; caches have ids.
    ///
    /// # Panics
    /// If the layout contains a zero.
    pub fn regular(layout: Layout) -> Self {
        let Layout { packages, nodes, llcs, cores, threads } = layout;
        assert!(packages * nodes * llcs * cores * threads > 0, "{layout:?} has no CPU");
        let mut machine = Self { private_caches: true, ..Self::default() };
        let cores_in_node = llcs * cores;
        let cores_in_package = nodes * cores_in_node;
        let all_cores = packages * cores_in_package;
        for number in 0..all_cores * threads {
            let core = number % all_cores;
            let cpu = Cpu {
                online: true,
                smt_group: core,
                core: Some((core % cores_in_package).into()),
                package: Some((core / cores_in_package).into()),
                die: Some(0),
                cluster: None,
                cache: Some(core / cores),
                node: Some(core / cores_in_node),
                capacity: None,
                kind: None,
                bare: false,
            };
            machine.cpus.insert(number, cpu);
        }
        for cache in 0..all_cores / cores {
            let size_kib = 8192;
            machine.caches.insert(cache, Cache { level: 3, id: Some(cache), size_kib });
        }
        for node in 0..packages * nodes {
            let node_of_memory = Node {
                memory_kib: 16 << 20,
                free_kib: 4 << 20,
                distances: BTreeMap::new(),
                hugepages: BTreeMap::from([(2048, [0, 0, 0])]),
            };
            machine.nodes.insert(node, node_of_memory);
        }
        machine
    }

    /// Changes a CPU.
    ///
    /// # Panics
    /// If the machine has no such CPU.
    pub fn cpu(mut self, number: u32, change: impl FnOnce(&mut Cpu)) -> Self {
        change(self.cpus.get_mut(&number).expect("the machine has this CPU"));
        self
    }

    /// Changes every CPU, each with its number.
    pub fn each_cpu(mut self, mut change: impl FnMut(u32, &mut Cpu)) -> Self {
        self.cpus.iter_mut().for_each(|(&number, cpu)| change(number, cpu));
        self
    }

    /// Takes CPUs offline.
    pub fn offline(self, cpus: &[u32]) -> Self {
        self.each_cpu(|number, cpu| cpu.online &= !cpus.contains(&number))
    }

    /// Renumbers the CPUs.
    pub fn renumber_cpus(mut self, number: impl Fn(u32) -> u32) -> Self {
        self.cpus = self.cpus.into_iter().map(|(old, cpu)| (number(old), cpu)).collect();
        self
    }

    /// Renumbers the nodes.
    pub fn renumber_nodes(mut self, number: impl Fn(u32) -> u32) -> Self {
        self.nodes = self.nodes.into_iter().map(|(old, node)| (number(old), node)).collect();
        self.each_cpu(|_, cpu| cpu.node = cpu.node.map(&number))
    }

    /// Changes a node.
    ///
    /// # Panics
    /// If the machine has no such node.
    pub fn node(mut self, number: u32, change: impl FnOnce(&mut Node)) -> Self {
        change(self.nodes.get_mut(&number).expect("the machine has this node"));
        self
    }

    /// Adds a network interface; indexes count from 1 unless it has one.
    pub fn nic(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }

    /// Writes a file, replacing the machine's own.
    pub fn file(mut self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.edits.push((path.to_owned(), Some(content.as_ref().to_vec())));
        self
    }

    /// Omits a file, or a directory with its contents.
    pub fn without(mut self, path: &str) -> Self {
        self.edits.push((path.to_owned(), None));
        self
    }

    /// Numbers of the online CPUs, ascending.
    pub fn online(&self) -> Vec<u32> {
        self.online_where(|_| true)
    }

    fn online_where(&self, which: impl Fn(&Cpu) -> bool) -> Vec<u32> {
        let cpus = self.cpus.iter().filter(|(_, cpu)| cpu.online && which(cpu));
        cpus.map(|(&number, _)| number).collect()
    }
}
