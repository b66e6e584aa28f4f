//! `nearpath tune check-ovs`: whether an existing Open vSwitch polls what is written, from the node of each port.

use crate::failure::Failure;
use crate::output;
use crate::source::Source;
use anyhow::Context;
use clap::Args;
use nearpath_host::workers::read_switch;
use nearpath_host::{Root, Wanted};
use nearpath_model::{OvsCheck, OvsVerdict};
use nearpath_tune::dpdk::check_ovs;
use nearpath_views::text;

/// Exit status of a switch that runs something else than what is written, or from another node.
const CHANGED: u8 = 3;
/// Exit status of one in which something is not polled.
const REFUSED: u8 = 1;

const AFTER_HELP: &str = "\
Compares pmd-cpu-mask, pmd-rxq-affinity and dpdk-socket-mem in Open vSwitch's database with the PMD
threads that run and the nodes of the ports. 'nearpath tune plan --dpdk ovs' plans what it finds.

EXIT STATUS
  0  accepted: each port is polled from its node, as written
  1  refused: a port is not polled, or has an error; also if Open vSwitch cannot be read
  3  changed: what is written is not what runs, or a queue is polled from another node

EXAMPLES
  nearpath tune check-ovs
  nearpath tune check-ovs --snapshot host.tar.zst --json";

/// Arguments of `tune check-ovs`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct CheckOvs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

impl CheckOvs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let check = self.source.read(checked)?;
        if self.json {
            output::json(&check)?;
        } else {
            output::text(&text::ovs_check(&check))?;
        }
        match check.verdict {
            OvsVerdict::Accepted => Ok(()),
            OvsVerdict::Changed => Err(Failure::Found(CHANGED)),
            OvsVerdict::Refused => Err(Failure::Found(REFUSED)),
        }
    }
}

fn checked(root: &Root) -> anyhow::Result<OvsCheck> {
    let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
    let switch = read_switch(root).context("cannot read Open vSwitch; is it running?")?;
    Ok(check_ovs(&switch, &host.topology))
}
