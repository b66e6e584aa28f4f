//! The commands, options and files of a plan.

use super::memory::{page_size, size_name, socket_mem};
use nearpath_model::{
    CpuSet, DpdkApplication, DpdkCommand, DpdkHugepages, DpdkNic, DpdkOption, DpdkWorker, DpvsRole,
    OVS_UNSET, OvsKey, OvsSetting, Topology, shell,
};

/// Drivers that stay bound: DPDK uses the NIC beside them (mlx4, mlx5, mana), or they are what it needs.
const STAY: [&str; 6] =
    ["mlx4_core", "mlx5_core", "mana", "vfio-pci", "uio_pci_generic", "igb_uio"];

pub(super) fn option(words: &[&str], why: &str) -> DpdkOption {
    DpdkOption { words: words.iter().map(|word| (*word).to_owned()).collect(), why: why.to_owned() }
}

/// Options of EAL.
pub(super) fn eal(lcores: &str, nics: &[DpdkNic], pages: &[DpdkHugepages]) -> Vec<DpdkOption> {
    let mut options = vec![
        option(
            &["--lcores", lcores],
            "dense ids, each with its CPU: EAL has ids up to 127, so that CPUs from 128 on need one, and DPVS ids up \
             to 63",
        ),
        option(&["--main-lcore", "0"], "the id of the master; new DPDK refuses --master-lcore"),
        option(
            &["--socket-mem", &socket_mem(pages)],
            "MiB of hugepages by node, so that no pool is filled from another node; in DPDK 25.11 an alias of \
             --numa-mem, which 24.11 refuses",
        ),
    ];
    for nic in nics {
        options.push(option(&["-a", &nic.address], "only this NIC; ports are numbered by address"));
    }
    options
}

/// Options of testpmd.
pub(super) fn testpmd(workers: &[DpdkWorker], queues: u32) -> Vec<DpdkOption> {
    let cores = workers.iter().filter(|w| w.role == DpvsRole::Forwarding).count();
    vec![
        option(&[&format!("--nb-cores={cores}")], "forwarding lcores, without the master"),
        option(&[&format!("--rxq={queues}")], "a receive queue for each worker of a NIC"),
        option(&[&format!("--txq={queues}")], "a transmit queue for each worker of a NIC"),
        option(
            &["--record-core-cycles"],
            "makes the busy share of each lcore visible in telemetry",
        ),
    ]
}

/// Commands that prepare NICs and memory.
pub(super) fn prepare(nics: &[DpdkNic], pages: &[DpdkHugepages]) -> Vec<DpdkCommand> {
    let mut commands = Vec::new();
    for pages in pages {
        let kib = pages.size_bytes >> 10;
        let file = format!(
            "/sys/devices/system/node/node{}/hugepages/hugepages-{kib}kB/nr_hugepages",
            pages.node
        );
        commands.push(DpdkCommand {
            command: format!("echo {} | tee {file}", pages.count),
            undo: Some(format!("echo 0 | tee {file}")),
            why: pages.why.clone(),
        });
    }
    for nic in nics {
        let driver = nic.driver.as_deref();
        if driver.is_some_and(|driver| STAY.contains(&driver)) {
            continue;
        }
        let undo = match driver {
            Some(driver) => {
                format!("dpdk-devbind.py --bind={} {}", shell::word(driver), nic.address)
            }
            None => format!("dpdk-devbind.py --unbind {}", nic.address),
        };
        commands.push(DpdkCommand {
            command: format!("dpdk-devbind.py --bind=vfio-pci {}", nic.address),
            undo: Some(undo),
            why: "DPDK drives the NIC from user space; the kernel's interface disappears"
                .to_owned(),
        });
    }
    commands
}

/// Settings of Open vSwitch, each with its value and why.
pub(super) fn ovs_settings(
    workers: &[DpdkWorker],
    pages: &[DpdkHugepages],
) -> Vec<(OvsSetting, String, String)> {
    let of = |role: DpvsRole| -> CpuSet {
        workers.iter().filter(|worker| worker.role == role).map(|worker| worker.cpu).collect()
    };
    let (pmds, main) = (of(DpvsRole::Forwarding), of(DpvsRole::Master));
    let mut settings = vec![
        (
            OvsKey::PmdCpuMask,
            mask(&pmds),
            format!("PMD threads on CPUs {pmds}: on the NIC's node, one a core"),
        ),
        (OvsKey::DpdkSocketMem, socket_mem(pages), "MiB of hugepages by node".to_owned()),
    ];
    if main.iter().all(|cpu| cpu.0 < nearpath_model::eal::MAX_LCORES) {
        let why = format!("the main thread on CPU {main}, beside the PMD threads");
        settings.push((OvsKey::DpdkLcoreMask, mask(&main), why));
    }
    let why = "starts DPDK, with the values above".to_owned();
    settings.push((OvsKey::DpdkInit, "true".to_owned(), why));
    settings.into_iter().map(|(key, to, why)| (OvsSetting::of_switch(key), to, why)).collect()
}

/// The affinity of a NIC's queues: each on the CPU of its worker.
pub(super) fn affinity(nic: u32, workers: &[DpdkWorker]) -> String {
    let pairs = workers.iter().flat_map(|worker| {
        let ids = worker.queues.get(&nic).into_iter().flatten();
        ids.map(move |queue| format!("{queue}:{}", worker.cpu))
    });
    pairs.collect::<Vec<_>>().join(",")
}

/// Commands of Open vSwitch.
pub(super) fn ovs(
    nics: &[DpdkNic],
    workers: &[DpdkWorker],
    queues: u32,
    pages: &[DpdkHugepages],
) -> Vec<DpdkCommand> {
    let set = |(setting, value, why): (OvsSetting, String, String)| DpdkCommand {
        command: setting.command(&value),
        undo: Some(setting.command(OVS_UNSET)),
        why,
    };
    let mut commands: Vec<DpdkCommand> =
        ovs_settings(workers, pages).into_iter().map(set).collect();
    for (port, nic) in (0u32..).zip(nics) {
        commands.push(DpdkCommand {
            command: format!(
                "ovs-vsctl --may-exist add-port br0 dpdk{port} -- set Interface dpdk{port} type=dpdk \
                 options:dpdk-devargs={} options:n_rxq={queues} \
                 other_config:pmd-rxq-affinity='\"{}\"'",
                nic.address,
                affinity(port, workers)
            ),
            undo: Some(format!("ovs-vsctl --if-exists del-port br0 dpdk{port}")),
            why: "each queue on a PMD of the NIC's node; all queues are named, as a PMD with an affinity takes no \
                  other"
                .to_owned(),
        });
    }
    commands
}

/// DPVS's flow rules for KNI.
pub(super) fn kni_flows(nics: &[DpdkNic]) -> Vec<DpdkCommand> {
    let one = |port: usize| {
        DpdkCommand {
        command: format!("dpip flow add type kni \"$ADDRESS\" dev dpdk{port}"),
        undo: Some(format!("dpip flow del type kni \"$ADDRESS\" dev dpdk{port}")),
        why: "packets to the address of the KNI interface go to the KNI worker's queue, if the NIC supports it; set \
              ADDRESS to that address"
            .to_owned(),
    }
    };
    (0..nics.len()).map(one).collect()
}

/// Parameters of the kernel command line for the workers' cores.
pub(super) fn kernel_command_line(
    workers: &[DpdkWorker],
    first_core: &CpuSet,
    topology: &Topology,
    pages: &[DpdkHugepages],
) -> Vec<DpdkOption> {
    let of_core =
        |worker: &DpdkWorker| worker.siblings.iter().chain([worker.cpu]).collect::<Vec<_>>();
    let cpus: CpuSet = workers.iter().flat_map(of_core).collect();
    let cpus = cpus.difference(first_core);
    let mut options = Vec::new();
    if !cpus.is_empty() {
        let isolcpus = format!("isolcpus=managed_irq,domain,{cpus}");
        options
            .push(option(&[&isolcpus], "no task and no managed interrupt on the workers' cores"));
        options.push(option(
            &[&format!("nohz_full={cpus}")],
            "no timer tick while only the worker runs",
        ));
        options.push(option(&[&format!("rcu_nocbs={cpus}")], "no RCU callbacks there"));
        options.push(option(&["rcu_nocb_poll"], "no wake-ups of the threads that run them"));
        options.push(option(&["nowatchdog"], "no watchdog threads"));
        options.push(option(&["nmi_watchdog=0"], "no watchdog interrupts"));
    }
    let size = size_name(page_size(topology));
    options
        .push(option(&[&format!("default_hugepagesz={size}")], "the page size of DPDK's memory"));
    options.push(option(&[&format!("hugepagesz={size}")], "the same for the next parameter"));
    let by_node: Vec<String> =
        pages.iter().map(|pages| format!("{}:{}", pages.node, pages.count)).collect();
    options.push(option(
        &[&format!("hugepages={}", by_node.join(","))],
        "by node, before memory is fragmented (Linux 5.15 and newer; older ones take one number for all nodes)",
    ));
    options
}

/// A unit that starts the application.
pub(super) fn unit(
    application: DpdkApplication,
    eal: &[DpdkOption],
    arguments: &[DpdkOption],
    workers: &[DpdkWorker],
) -> Option<String> {
    let words = |options: &[DpdkOption]| {
        let words = options.iter().flat_map(|option| &option.words);
        words.map(|word| shell::word(word)).collect::<Vec<_>>().join(" ")
    };
    let (name, command) = match application {
        DpdkApplication::Ovs => return None,
        DpdkApplication::Testpmd => (
            "DPDK testpmd",
            format!("/usr/bin/dpdk-testpmd {} -- {}", words(eal), words(arguments)),
        ),
        DpdkApplication::Dpvs => ("DPVS", format!("/usr/bin/dpvs -- {}", words(eal))),
    };
    let cpus: CpuSet = workers.iter().map(|worker| worker.cpu).collect();
    Some(format!(
        "[Unit]\nDescription={name}\nAfter=network-pre.target\n\n[Service]\nExecStart={command}\n\
         CPUAffinity={cpus}\nLimitMEMLOCK=infinity\nRestart=on-failure\n\n[Install]\nWantedBy=multi-user.target\n"
    ))
}

/// A mask as Open vSwitch takes it: one hexadecimal number.
fn mask(cpus: &CpuSet) -> String {
    let last = cpus.iter().last().map_or(0, |cpu| cpu.0);
    let digit = |at: u32| {
        let bits = (0..4).filter(|bit| cpus.contains(nearpath_model::CpuId(at * 4 + bit)));
        bits.map(|bit| 1u32 << bit).sum::<u32>()
    };
    let digits: String = (0..=last / 4).rev().map(|at| format!("{:x}", digit(at))).collect();
    format!("0x{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_one_number() {
        for (cpus, expected) in [("0", "0x1"), ("1,5", "0x22"), ("64", "0x10000000000000000")] {
            assert_eq!(mask(&CpuSet::from_list(cpus).unwrap()), expected);
        }
        let large = mask(&CpuSet::from_list("3,1023").unwrap());
        assert_eq!((large.len(), large.ends_with("008")), (2 + 256, true));
    }
}
