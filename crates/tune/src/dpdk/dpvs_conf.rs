//! Writes `netif_defs` and `worker_defs` of dpvs.conf for a plan.
//!
//! Transmit ids equal receive ids, as DPVS fills its RSS table from the former; `type` comes before `cpu_id`; each
//! statement is on a line of its own.

use super::memory::DPVS_BUFFERS;
use nearpath_model::{DpdkNic, DpdkWorker, DpvsRole};
use std::fmt::Write;

/// Descriptors of a queue.
const DESCRIPTORS: u32 = 1024;
/// Entries of the ring between an isolated receiver and its worker: 65,536 packets, 512 KiB.
const RING: u32 = 65_536;

pub(super) fn write(nics: &[DpdkNic], queues: u32, workers: &[DpdkWorker]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_to(&mut out, nics, queues, workers);
    out
}

fn write_to(
    out: &mut String,
    nics: &[DpdkNic],
    queues: u32,
    workers: &[DpdkWorker],
) -> std::fmt::Result {
    writeln!(out, "netif_defs {{")?;
    writeln!(out, "    <init> pktpool_size {DPVS_BUFFERS}")?;
    writeln!(out, "    <init> pktpool_cache 256")?;
    for (port, nic) in nics.iter().enumerate() {
        writeln!(out, "    # {}", nic.address)?;
        writeln!(out, "    <init> device dpdk{port} {{")?;
        for (direction, more) in [("rx", "            rss all\n"), ("tx", "")] {
            writeln!(out, "        {direction} {{")?;
            writeln!(out, "            queue_number {queues}")?;
            writeln!(out, "            descriptor_number {DESCRIPTORS}")?;
            writeln!(out, "{more}        }}")?;
        }
        writeln!(out, "        kni_name dpdk{port}.kni")?;
        writeln!(out, "    }}")?;
    }
    writeln!(out, "}}")?;
    writeln!(out, "worker_defs {{")?;
    for worker in workers.iter().filter(|worker| worker.role != DpvsRole::IsolatedRx) {
        let (lcore, cpu) = (worker.lcore, worker.cpu.0);
        let kind = match worker.role {
            DpvsRole::Master => "master",
            DpvsRole::Kni => "kni",
            _ => "slave",
        };
        writeln!(out, "    # on CPU {cpu}")?;
        writeln!(out, "    <init> worker cpu{lcore} {{")?;
        writeln!(out, "        type {kind}")?;
        writeln!(out, "        cpu_id {lcore}")?;
        for (nic, ids) in &worker.queues {
            let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            writeln!(out, "        port dpdk{nic} {{")?;
            writeln!(out, "            rx_queue_ids {ids}")?;
            writeln!(out, "            tx_queue_ids {ids}")?;
            if let Some(receiver) = worker.partner {
                writeln!(out, "            isol_rx_cpu_ids {receiver}")?;
                writeln!(out, "            isol_rxq_ring_sz {RING}")?;
            }
            writeln!(out, "        }}")?;
        }
        writeln!(out, "    }}")?;
    }
    writeln!(out, "}}")
}
