//! Checks a configuration of DPVS, the load balancer on DPDK: whether DPVS starts with it, and whether it
//! then runs what is written. DPVS itself starts with configurations that lose workers without an error.
//!
//! Input: the bytes of dpvs.conf and the options of EAL. Output: a [`DpvsCheck`]. Pure: nothing is read from the
//! machine. It follows DPVS 1.9 (iqiyi/dpvs: src/parser.c, src/netif.c, src/cfgfile.c) step by step, with its limits
//! (include/netif.h: 16 queues a port, 64 lcores, 2 nodes), and knows the keywords of each release ([`DpvsVersion`]).

mod config;
mod keywords;
mod ports;
mod problems;
mod statements;
mod table;
mod text;
mod version;

pub use version::DpvsVersion;

use config::{Config, Type};
use nearpath_model::eal::{EalError, Lcores, main_lcore, parse_lcores};
use nearpath_model::{CpuId, DPVS_SCHEMA, DpvsCheck, DpvsRole};
use ports::Ports;
use problems::Problems;
use statements::{MAX_LCORE, MAX_QUEUES};
use table::Table;

/// NUMA nodes (`DPVS_MAX_SOCKET`).
pub const MAX_NODES: u32 = 2;
/// Maximum size in bytes of a configuration. Those of DPVS have 10 KiB.
pub const MAX_FILE: u64 = 4 << 20;

/// What else decides about a configuration.
#[derive(Debug, Clone, Default)]
pub struct DpvsOptions {
    /// EAL's `--lcores`; by default lcore N runs on CPU N, as many as the file needs.
    pub lcores: Option<String>,
    /// EAL's `--main-lcore`; by default the lowest lcore.
    pub main_lcore: Option<u32>,
    /// Ports that DPDK finds; by default the devices of `netif_defs`.
    pub ports: Option<u32>,
    /// Queues in each direction that each NIC has; by default as many as DPVS uses at most.
    pub max_queues: Option<u32>,
    /// The host's NUMA nodes: the highest number plus 1.
    pub nodes: Option<u32>,
    /// The release whose keywords are known.
    pub version: DpvsVersion,
}

/// Checks a configuration.
pub fn check(file: &[u8], options: &DpvsOptions) -> DpvsCheck {
    let mut problems = Problems::default();
    if let Some(nodes) = options.nodes.filter(|nodes| *nodes > MAX_NODES) {
        problems.refused(
            None,
            "too_many_nodes",
            format!("the host has {nodes} nodes: DPVS has memory pools for {MAX_NODES}, and exits"),
            "build DPVS with a larger DPVS_MAX_SOCKET",
        );
    }
    let config = config::read(file, options, &mut problems);
    let lcores = lcores(&config, options);
    let mut workers = Vec::new();
    match lcores.and_then(|lcores| Ok((main_lcore(&lcores, options.main_lcore)?, lcores))) {
        Ok((main, lcores)) if !config.is_aborted => {
            let table = Table::new(&config, &mut problems);
            let ports = ports::create(&config, options.ports, options.nodes, &mut problems);
            check_table(&config, options, &table, &ports, &mut problems);
            table.check_lcores(&lcores, main, &mut problems);
            check_main(&config, &lcores, main, &mut problems);
            workers = table.workers(&ports, &lcores, main);
        }
        Ok(_) => (),
        Err(error) => {
            let remedy = match error {
                EalError::Syntax(_) => {
                    "write id@cpu pairs with commas between them, such as 0@1,1@2"
                }
                EalError::LcoreId(_) => "use ids from 0, with the CPU after @",
                EalError::MainLcore(..) => "add it to --lcores, or name another one",
            };
            problems.refused(None, "eal_option", format!("EAL refuses: {error}"), remedy);
        }
    }
    let verdict = problems.verdict();
    let Problems { mut found, mut notes, .. } = problems;
    for list in [&mut found, &mut notes] {
        list.sort_by_key(|problem| problem.line.unwrap_or(u32::MAX));
    }
    let assumed = assumed(&config, options);
    let version = options.version.to_string();
    DpvsCheck { schema: DPVS_SCHEMA, version, assumed, verdict, problems: found, notes, workers }
}

/// What was not given, and what was taken for it.
fn assumed(config: &Config, options: &DpvsOptions) -> Vec<String> {
    let mut assumed = Vec::new();
    if options.lcores.is_none() {
        assumed.push("lcore N runs on CPU N (--lcores)".to_owned());
    }
    if options.ports.is_none() {
        let ports = config.devices.len();
        assumed.push(format!("DPDK finds {ports} ports, those of netif_defs (--ports)"));
    }
    if options.max_queues.is_none() {
        assumed.push(format!("each NIC has {MAX_QUEUES} queues (--max-queues)"));
    }
    assumed
}

/// The lcores: as requested, or those up to the highest id in the file.
fn lcores(config: &Config, options: &DpvsOptions) -> Result<Lcores, EalError> {
    if let Some(text) = &options.lcores {
        return parse_lcores(text);
    }
    let of_workers = config.workers.iter().filter_map(|worker| Some(worker.lcore?.0));
    let ports = config.workers.iter().flat_map(|worker| &worker.ports);
    let of_receivers = ports.flat_map(|port| port.isolated.iter().copied().flatten());
    let ids = of_workers.filter_map(|id| u32::try_from(id).ok()).chain(of_receivers);
    let highest = ids.chain(options.main_lcore).filter(|id| *id < MAX_LCORE).max().unwrap_or(0);
    Ok((0..=highest).map(|id| (id, [CpuId(id)].into_iter().collect())).collect())
}

fn check_table(
    config: &Config,
    options: &DpvsOptions,
    table: &Table<'_>,
    ports: &Ports,
    problems: &mut Problems,
) {
    table.check_end(problems);
    let limit = u32::try_from(MAX_QUEUES).unwrap_or(u32::MAX);
    let max_queues = options.max_queues.unwrap_or(limit).min(limit);
    table.check_queues(config, ports, max_queues, problems);
    let forwarding =
        table.known().iter().filter(|entry| entry.role == DpvsRole::Forwarding).count();
    if forwarding == 0 {
        problems.refused(
            config.workers_line,
            "no_forwarding_worker",
            "no worker of type slave with a port is left: DPVS exits".to_owned(),
            "add a worker of type slave with queues of each port",
        );
    } else if !forwarding.is_power_of_two() {
        problems.changed(
            config.workers_line,
            "workers_not_power_of_two",
            format!(
                "{forwarding} forwarding workers are no power of two: DPVS divides the ports of FullNAT local \
                 addresses by {}, and does not use those of the other {}",
                forwarding.next_power_of_two(),
                forwarding.next_power_of_two() - forwarding
            ),
            "use 1, 2, 4, 8 or 16 forwarding workers",
        );
    }
    check_kni(config, table, problems);
}

/// The job for KNI runs on the role of a KNI worker if `g_kni_lcore_id` is set, else on the master.
fn check_kni(config: &Config, table: &Table<'_>, problems: &mut Problems) {
    let workers: Vec<_> =
        table.known().iter().filter(|entry| entry.role == DpvsRole::Kni).collect();
    for entry in workers.iter().filter(|entry| !entry.worker.is_kni_lcore) {
        problems.changed(
            Some(entry.line),
            "kni_type_after_cpu_id",
            "cpu_id comes before type kni: DPVS does not take the worker for KNI".to_owned(),
            "write type kni before cpu_id",
        );
    }
    if config.kni_lcore == 0 && workers.iter().any(|entry| entry.worker.is_kni_lcore) {
        problems.changed(
            workers.first().map(|entry| entry.line),
            "kni_id_zero",
            "a KNI worker with id 0 is ignored: DPVS serves KNI on the master, and no worker serves its queues"
                .to_owned(),
            "give the KNI worker another id",
        );
    }
    if config.kni_lcore != 0 && workers.is_empty() {
        let worker = config.workers.iter().find(|worker| worker.is_kni_lcore);
        problems.changed(
            worker.map(|worker| worker.line),
            "kni_not_served",
            "the KNI worker does not run: nothing serves KNI".to_owned(),
            "give the KNI worker a port, and each worker with a lower id",
        );
    }
    if let Some(second) = workers.get(1) {
        problems.changed(
            Some(second.line),
            "second_kni_worker",
            "there are two KNI workers: both take from rings that are made for one".to_owned(),
            "use one KNI worker",
        );
    }
}

/// The master is EAL's main lcore, whatever the file says.
fn check_main(config: &Config, lcores: &Lcores, main: u32, problems: &mut Problems) {
    if let Some(lcore) = lcores.keys().next_back().filter(|lcore| **lcore >= MAX_LCORE) {
        problems.refused(
            None,
            "lcore_id_too_high",
            format!("lcore {lcore} is above 63: DPVS reads beyond its table of roles"),
            "use ids up to 63; the CPU after @ may be any",
        );
    }
    for worker in config.workers.iter().filter(|worker| worker.kind == Type::Master) {
        if let Some((lcore, line)) =
            worker.lcore.filter(|(lcore, _)| i64::from(*lcore) != i64::from(main))
        {
            problems.changed(
                Some(line),
                "master_id_ignored",
                format!(
                    "DPVS ignores the cpu_id {lcore} of the master: it is the main lcore, {main}"
                ),
                "write the id of the main lcore, or set --main-lcore",
            );
        }
        if let Some(port) = worker.ports.first() {
            problems.changed(
                Some(port.line),
                "master_port_ignored",
                "DPVS ignores the ports of the master".to_owned(),
                "give its queues to forwarding workers",
            );
        }
    }
    let masters = config.workers.iter().filter(|worker| worker.kind == Type::Master);
    if let Some(second) = masters.skip(1).last() {
        problems.changed(
            Some(second.line),
            "second_master",
            "there are several workers of type master: DPVS has one, the main lcore".to_owned(),
            "write type slave for the others",
        );
    }
}
