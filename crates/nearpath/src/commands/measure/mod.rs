//! `nearpath measure`: evidence from the running kernel, an instrument in each file here.

mod accepts;
mod drops;
mod irqs;
mod locality;
mod stages;

use crate::failure::Failure;
use accepts::AcceptsArguments;
use clap::{Args, Subcommand};
use drops::DropsArguments;
use irqs::IrqsArguments;
use locality::LocalityArguments;
use stages::StagesArguments;

/// Arguments of `measure`.
#[derive(Debug, Args)]
pub struct Measure {
    #[command(subcommand)]
    instrument: Instruments,
}

#[derive(Debug, Subcommand)]
enum Instruments {
    /// Latency between adjacent stages of each packet's path, and the CPUs at both ends
    Stages(StagesArguments),
    /// On which CPU packets are allocated and on which they are let go of
    Locality(LocalityArguments),
    /// On which CPU connections are received and on which they are accepted
    Accepts(AcceptsArguments),
    /// Interrupts by queue and CPU, softirqs, NAPI polls, and the time in them
    Irqs(IrqsArguments),
    /// Where and why packets are dropped, compared with the kernel's own counters
    Drops(DropsArguments),
}

impl Measure {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.instrument {
            Instruments::Stages(stages) => stages.run(),
            Instruments::Locality(locality) => locality.run(),
            Instruments::Accepts(accepts) => accepts.run(),
            Instruments::Irqs(irqs) => irqs.run(),
            Instruments::Drops(drops) => drops.run(),
        }
    }
}
