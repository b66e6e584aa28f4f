//! What each statement about ports and workers does: DPVS's handlers in src/netif.c, with the value that they put in
//! the place of one that they do not like.

use super::config::{Bond, Config, Device, Type, Worker, WorkerPort};
use super::keywords::{Keyword, Meaning};
use super::problems::{Problems, word};
use super::text::{atoi, is_digits, value};

/// Queues of a port (`NETIF_MAX_QUEUES`).
pub(super) const MAX_QUEUES: usize = 16;
/// Lcore ids (`DPVS_MAX_LCORE`): masks of them have 64 bits.
pub(super) const MAX_LCORE: u32 = 64;
/// Bytes of a name in the structures of the configuration.
const MAX_NAME: usize = 32;
/// Bonding slaves (`NETIF_MAX_BOND_SLAVES`).
const MAX_BOND_SLAVES: usize = 32;
/// `BONDING_MODE_8023AD`.
const MODE_8023AD: i32 = 4;

/// A statement whose values were checked.
#[derive(Clone, Copy)]
pub(super) struct Statement<'a> {
    pub keyword: &'static Keyword,
    pub line: u32,
    pub tokens: &'a [&'a [u8]],
}

impl Statement<'_> {
    fn value(&self) -> Vec<u8> {
        value(self.tokens).unwrap_or_default()
    }

    /// The second token, cut as DPVS stores it.
    fn name(&self) -> String {
        let name = self.tokens.get(1).copied().unwrap_or_default();
        String::from_utf8_lossy(name.get(..MAX_NAME).unwrap_or(name)).into_owned()
    }

    fn values(&self) -> &[&[u8]] {
        self.tokens.get(1..).unwrap_or_default()
    }
}

/// Applies a statement to the configuration.
pub(super) fn apply(
    statement: &Statement<'_>,
    config: &mut Config,
    nodes: Option<u32>,
    problems: &mut Problems,
) {
    let line = statement.line;
    match statement.keyword.meaning {
        Meaning::Other => (),
        Meaning::NetifDefs => {
            if !config.devices.is_empty() || !config.bonds.is_empty() {
                repeated("netif_defs", "devices and bonds", line, problems);
            }
            config.devices.clear();
            config.bonds.clear();
            config.device_names.clear();
            config.netif_line = Some(line);
        }
        Meaning::WorkerDefs => {
            if !config.workers.is_empty() {
                repeated("worker_defs", "workers", line, problems);
            }
            config.workers.clear();
            config.workers_line = Some(line);
        }
        Meaning::PktpoolSize => rounded(statement, (1023, 134_217_727), 65_535, 1, problems),
        Meaning::PktpoolCache => rounded(statement, (32, 8192), 256, 0, problems),
        Meaning::RxDescriptors => rounded(statement, (16, 8192), 256, 0, problems),
        Meaning::TxDescriptors => rounded(statement, (16, 8192), 512, 0, problems),
        Meaning::Mtu => drop(number(statement, (1, 9000), 1500, problems)),
        Meaning::Rss => rss(statement, problems),
        Meaning::Device => {
            let name = statement.name();
            config.device_names.insert(name.clone());
            config.devices.push(Device { name, line, rx_queues: None, tx_queues: None });
        }
        Meaning::RxQueueNumber | Meaning::TxQueueNumber => {
            let queues = Some((number(statement, (0, 16), 16, problems), line));
            if let Some(device) = config.devices.last_mut() {
                let is_rx = statement.keyword.meaning == Meaning::RxQueueNumber;
                *(if is_rx { &mut device.rx_queues } else { &mut device.tx_queues }) = queues;
            }
        }
        Meaning::Bonding
        | Meaning::BondMode
        | Meaning::BondSlave
        | Meaning::BondPrimary
        | Meaning::BondNode
        | Meaning::BondOptions => bond(statement, config, nodes, problems),
        Meaning::Worker => config.workers.push(Worker {
            name: statement.name(),
            line,
            kind: Type::None,
            lcore: None,
            is_kni_lcore: false,
            ports: Vec::new(),
        }),
        Meaning::Type | Meaning::CpuId | Meaning::IcmpRedirectCore | Meaning::Port => {
            worker(statement, config, problems);
        }
        Meaning::RxQueueIds
        | Meaning::TxQueueIds
        | Meaning::IsolatedRxIds
        | Meaning::IsolatedRingSize => {
            let port = config.workers.last_mut().and_then(|worker| worker.ports.last_mut());
            if let Some(port) = port {
                queues(statement, port, problems);
            }
        }
    }
}

fn repeated(section: &str, lost: &str, line: u32, problems: &mut Problems) {
    problems.changed(
        Some(line),
        "section_repeated",
        format!("a second {section}: DPVS drops the {lost} of the first"),
        "write one section",
    );
}

/// A number, or DPVS's default if it is out of range.
fn number(
    statement: &Statement<'_>,
    (least, most): (i32, i32),
    default: i32,
    problems: &mut Problems,
) -> i32 {
    let text = statement.value();
    let (line, name) = (Some(statement.line), statement.keyword.name);
    let number = atoi(&text);
    if number < least || number > most {
        problems.changed(
            line,
            "value_out_of_range",
            format!("{name} {} is not in {least}-{most}: DPVS takes {default}", word(&text)),
            "write a value in that range",
        );
        return default;
    }
    if !is_digits(&text) {
        problems.changed(
            line,
            "not_a_number",
            format!("{name} {} is not a number: DPVS reads it as {number}", word(&text)),
            "write digits only",
        );
    }
    number
}

/// A number of which DPVS takes the power of two below it (`is_power2` in src/common.c).
fn rounded(
    statement: &Statement<'_>,
    range: (i32, i32),
    default: i32,
    offset: i32,
    problems: &mut Problems,
) {
    let number = number(statement, range, default, problems);
    let taken = power_of_two_below(number.saturating_add(offset)) - offset;
    if taken != number {
        let what = if offset > 0 { " less 1" } else { "" };
        problems.changed(
            Some(statement.line),
            "rounded_down",
            format!(
                "{} {number} is not a power of two{what}: DPVS takes {taken}",
                statement.keyword.name
            ),
            "write the power of two that you want",
        );
    }
}

/// The greatest power of two that is not above a number; numbers below 2 themselves.
pub(super) fn power_of_two_below(number: i32) -> i32 {
    if number < 2 { number } else { 1 << number.ilog2() }
}

fn rss(statement: &Statement<'_>, problems: &mut Problems) {
    let text = statement.value();
    let known: [&[u8]; 8] = [b"all", b"ip", b"tcp", b"udp", b"sctp", b"ether", b"port", b"tunnel"];
    let is_list = text.contains(&b'|') && !text.starts_with(b"|");
    if !is_list && !known.contains(&text.as_slice()) {
        problems.changed(
            Some(statement.line),
            "unknown_rss",
            format!("rss {} is not known: DPVS takes tcp", word(&text)),
            "write all, ip, tcp, udp, sctp, ether, port or tunnel, or several with | between",
        );
        return;
    }
    let unknown = text.split(|byte| *byte == b'|').find(|part| {
        let part: Vec<u8> = part.iter().copied().filter(|byte| *byte != b' ').collect();
        !part.is_empty() && !known.contains(&part.as_slice())
    });
    if let Some(part) = unknown {
        problems.changed(
            Some(statement.line),
            "unknown_rss",
            format!("rss {} is not known: DPVS leaves it out", word(part)),
            "write all, ip, tcp, udp, sctp, ether, port or tunnel, or several with | between",
        );
    }
}

fn bond(
    statement: &Statement<'_>,
    config: &mut Config,
    nodes: Option<u32>,
    problems: &mut Problems,
) {
    let line = statement.line;
    if statement.keyword.meaning == Meaning::Bonding {
        let (name, slaves) = (statement.name(), Vec::new());
        config.bonds.push(Bond { name, line, mode: 0, slaves, primary: None, has_node: false });
        return;
    }
    let Some(bond) = config.bonds.last_mut() else { return };
    match statement.keyword.meaning {
        Meaning::BondMode => bond.mode = number(statement, (0, 6), 0, problems),
        Meaning::BondSlave | Meaning::BondPrimary => {
            let name = String::from_utf8_lossy(&statement.value()).into_owned();
            let is_slave = statement.keyword.meaning == Meaning::BondSlave;
            if !config.device_names.contains(&name) {
                problems.changed(
                    Some(line),
                    "unknown_bond_device",
                    format!(
                        "{} is no device of the lines above: DPVS skips it",
                        word(name.as_bytes())
                    ),
                    "name a device that netif_defs defines before the bond",
                );
            } else if !is_slave {
                bond.primary = Some((name, line));
            } else if bond.slaves.len() < MAX_BOND_SLAVES {
                bond.slaves.push((name, line));
            } else {
                problems.changed(
                    Some(line),
                    "too_many_slaves",
                    format!("a bond has at most {MAX_BOND_SLAVES} slaves: DPVS ignores this one"),
                    "use two bonds",
                );
            }
        }
        Meaning::BondNode => {
            let node = number(statement, (i32::MIN, i32::MAX), 0, problems);
            bond.has_node = true;
            if nodes.is_some_and(|nodes| i64::from(node) >= i64::from(nodes)) {
                // The handler writes the default node to the wrong field, the mode.
                bond.mode = 0;
                problems.changed(
                    Some(line),
                    "bond_node_invalid",
                    format!("node {node} does not exist: DPVS takes node 0, and sets the mode to 0 as well"),
                    "write the node of the slaves (numa_node of their PCI devices)",
                );
            }
        }
        Meaning::BondOptions => bond_options(statement, bond.mode, problems),
        _ => (),
    }
}

fn bond_options(statement: &Statement<'_>, mode: i32, problems: &mut Problems) {
    let text = statement.value();
    for option in text.split(|byte| *byte == b';').filter(|option| !option.is_empty()) {
        let mut parts = option.split(|byte| *byte == b'=').filter(|part| !part.is_empty());
        let name = parts.next().unwrap_or_default();
        let setting = parts.next().unwrap_or_default().to_ascii_lowercase();
        let known: [&[u8]; 4] = [b"on", b"off", b"enable", b"disable"];
        let is_known = name == b"dedicated_queues" && known.contains(&setting.as_slice());
        if !is_known || mode != MODE_8023AD {
            problems.changed(
                Some(statement.line),
                "bond_option_ignored",
                format!("DPVS ignores the option {}", word(option)),
                "dedicated_queues=on|off is the only option, for mode 4, after the mode's line",
            );
        }
    }
}

fn worker(statement: &Statement<'_>, config: &mut Config, problems: &mut Problems) {
    let line = statement.line;
    let Some(worker) = config.workers.last_mut() else { return };
    match statement.keyword.meaning {
        Meaning::Type => {
            let text = statement.value();
            worker.kind = match text.as_slice() {
                b"master" => Type::Master,
                b"slave" => Type::Slave,
                b"kni" => Type::Kni,
                _ => {
                    problems.changed(
                        Some(line),
                        "unknown_type",
                        format!("type {} is not known: DPVS takes slave", word(&text)),
                        "write master, slave or kni",
                    );
                    Type::Slave
                }
            };
        }
        Meaning::CpuId => {
            let text = statement.value();
            if is_digits(&text) {
                let lcore = atoi(&text);
                worker.lcore = Some((lcore, line));
                worker.is_kni_lcore |= worker.kind == Type::Kni;
                if worker.kind == Type::Kni {
                    config.kni_lcore = lcore;
                }
            } else {
                worker.lcore = Some((0, line));
                problems.changed(
                    Some(line),
                    "not_a_number",
                    format!("cpu_id {} is not a number: DPVS takes 0", word(&text)),
                    "write digits only",
                );
            }
        }
        Meaning::IcmpRedirectCore => problems.note(
            Some(line),
            "depends_on_build",
            "DPVS knows icmp_redirect_core only if built with CONFIG_ICMP_REDIRECT_CORE; otherwise it warns"
                .to_owned(),
            "remove it unless DPVS was built so",
        ),
        Meaning::Port => worker.ports.push(WorkerPort::new(statement.name(), line)),
        _ => (),
    }
}

fn queues(statement: &Statement<'_>, port: &mut WorkerPort, problems: &mut Problems) {
    let line = statement.line;
    match statement.keyword.meaning {
        Meaning::RxQueueIds => {
            port.rx = queue_ids(statement, problems);
            port.rx_line = Some(line);
        }
        Meaning::TxQueueIds => {
            port.tx = queue_ids(statement, problems);
            port.tx_line = Some(line);
        }
        Meaning::IsolatedRxIds => {
            // An id that the handler does not write stays from an earlier line.
            for (at, text) in limited(statement, problems).iter().enumerate() {
                let id = isolated_id(text, line, problems);
                if port.isolated.len() <= at {
                    port.isolated.resize(at + 1, None);
                }
                if let Some(slot) = port.isolated.get_mut(at) {
                    *slot = id;
                }
            }
            port.isolated_line = Some(line);
        }
        Meaning::IsolatedRingSize => {
            let text = statement.value();
            if is_digits(&text) {
                port.ring = Some((atoi(&text), line));
            } else {
                port.ring = None;
                problems.changed(
                    Some(line),
                    "not_a_number",
                    format!("isol_rxq_ring_sz {} is not a number: DPVS takes 1048576", word(&text)),
                    "write digits only",
                );
            }
        }
        _ => (),
    }
}

/// The values of a list, as many as DPVS's array holds.
fn limited<'a>(statement: &'a Statement<'_>, problems: &mut Problems) -> &'a [&'a [u8]] {
    let values = statement.values();
    let Some(held) = values.get(..MAX_QUEUES).filter(|_| values.len() > MAX_QUEUES) else {
        return values;
    };
    problems.refused(
        Some(statement.line),
        "too_many_queues",
        format!(
            "{} names {} queues: DPVS has {MAX_QUEUES} a port, and writes beyond its array",
            statement.keyword.name,
            values.len()
        ),
        "use at most 16 queues a port",
    );
    held
}

fn queue_ids(statement: &Statement<'_>, problems: &mut Problems) -> Vec<u32> {
    let values = limited(statement, problems);
    let one = |text: &&[u8]| {
        let number = atoi(text);
        let id = u32::try_from(number).ok().filter(|id| (*id as usize) < MAX_QUEUES);
        let name = statement.keyword.name;
        match id {
            None => problems.changed(
                Some(statement.line),
                "queue_id_out_of_range",
                format!("{name} {} is not in 0-15: DPVS takes 0", word(text)),
                "use at most 16 queues a port, with ids from 0",
            ),
            Some(id) if !is_digits(text) => problems.changed(
                Some(statement.line),
                "not_a_number",
                format!("{name} {} is not a number: DPVS reads it as {id}", word(text)),
                "write the ids with blanks between them; DPVS knows neither commas nor ranges",
            ),
            Some(_) => (),
        }
        id.unwrap_or(0)
    };
    values.iter().map(one).collect()
}

fn isolated_id(text: &[u8], line: u32, problems: &mut Problems) -> Option<u32> {
    let id = u32::try_from(atoi(text)).ok().filter(|id| (1..MAX_LCORE).contains(id));
    if id.is_none() {
        problems.changed(
            Some(line),
            "isolated_id_ignored",
            format!(
                "isol_rx_cpu_ids {} is not in 1-63: DPVS ignores it, and the worker receives itself",
                word(text)
            ),
            "use an lcore id from 1 to 63 that no worker has",
        );
    } else if !is_digits(text) {
        problems.changed(
            Some(line),
            "not_a_number",
            format!(
                "isol_rx_cpu_ids {} is not a number: DPVS reads it as {}",
                word(text),
                atoi(text)
            ),
            "write the ids with blanks between them",
        );
    }
    id
}
