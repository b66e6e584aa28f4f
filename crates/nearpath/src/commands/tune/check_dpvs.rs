//! `nearpath tune check-dpvs`: whether DPVS starts with a configuration, and whether it runs what is written.

use super::apply::read;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use nearpath_model::DpvsVerdict;
use nearpath_tune::dpvs::{self, DpvsOptions, DpvsVersion, MAX_FILE};
use nearpath_views::text;
use std::path::PathBuf;

/// Exit status of a configuration that DPVS changes.
const CHANGED: u8 = 3;
/// Exit status of one that it refuses.
const REFUSED: u8 = 1;

const AFTER_HELP: &str = "\
Reads the file as DPVS does and builds its table of workers. Included files are not read.

EXIT STATUS
  0  accepted: DPVS starts with what is written
  1  refused: DPVS exits or aborts; also if the file cannot be read
  3  changed: DPVS starts, but not with what is written

EXAMPLES
  nearpath tune check-dpvs /etc/dpvs.conf
  nearpath tune check-dpvs dpvs.conf --lcores 0@1,1@2,2@3 --main-lcore 0
  nearpath tune check-dpvs dpvs.conf --ports 2 --max-queues 8 --nodes 2 --json";

/// Arguments of `tune check-dpvs`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct CheckDpvs {
    /// The configuration, such as /etc/dpvs.conf; '-' is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// EAL's --lcores [default: lcore N on CPU N, as many as the file needs]
    #[arg(long, value_name = "SPEC")]
    lcores: Option<String>,
    /// EAL's --main-lcore [default: the lowest lcore]
    #[arg(long, value_name = "N")]
    main_lcore: Option<u32>,
    /// Ports that DPDK finds [default: the devices of netif_defs]
    #[arg(long, value_name = "N")]
    ports: Option<u32>,
    /// Queues that each NIC has [default: 16, the most that DPVS uses]
    #[arg(long, value_name = "N")]
    max_queues: Option<u32>,
    /// NUMA nodes of the host
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// DPVS's release, whose keywords are known: 1.8.2 to 1.10.2; 1.9 is 1.9.0
    #[arg(long, value_name = "VERSION", default_value_t)]
    dpvs_version: DpvsVersion,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl CheckDpvs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let file = read(&self.file, MAX_FILE)?;
        let options = DpvsOptions {
            lcores: self.lcores.clone(),
            main_lcore: self.main_lcore,
            ports: self.ports,
            max_queues: self.max_queues,
            nodes: self.nodes,
            version: self.dpvs_version,
        };
        let check = dpvs::check(&file, &options);
        if self.json {
            output::json(&check)?;
        } else {
            output::text(&text::dpvs_check(&check, &self.file.display().to_string()))?;
        }
        match check.verdict {
            DpvsVerdict::Accepted => Ok(()),
            DpvsVerdict::Changed => Err(Failure::Found(CHANGED)),
            DpvsVerdict::Refused => Err(Failure::Found(REFUSED)),
        }
    }
}
