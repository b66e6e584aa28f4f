//! `nearpath measure`: measurements of the running kernel. Each file here is one instrument.

mod accepts;
mod answers;
mod drops;
mod irqs;
mod locality;
mod memory;
mod stages;
mod tcp;
mod vm;
mod workers;

use crate::failure::Failure;
use accepts::AcceptsArguments;
use answers::AnswersArguments;
use clap::{Args, Subcommand};
use drops::DropsArguments;
use irqs::IrqsArguments;
use locality::LocalityArguments;
use memory::MemoryArguments;
use stages::StagesArguments;
use tcp::TcpArguments;
use vm::VmArguments;
use workers::WorkersArguments;

/// Arguments of `measure`.
#[derive(Debug, Args)]
pub struct Measure {
    #[command(subcommand)]
    instrument: Instruments,
}

#[derive(Debug, Subcommand)]
enum Instruments {
    /// Measure latency between adjacent stages of each packet's path, and the CPUs at both ends
    Stages(StagesArguments),
    /// Measure which CPU allocates a packet and which CPU frees it
    Locality(LocalityArguments),
    /// Measure which CPU receives a connection and which CPU accepts it
    Accepts(AcceptsArguments),
    /// Measure how long servers take from a request to its answer
    Answers(AnswersArguments),
    /// Measure interrupts by queue and CPU, softirqs, NAPI polls, and the time spent in them
    Irqs(IrqsArguments),
    /// Measure where and why packets are dropped, compared with the kernel's own counters
    Drops(DropsArguments),
    /// Measure TCP connections, and what limits each
    Tcp(TcpArguments),
    /// Measure where the memory of processes is, where they run, and which pages are moved
    Memory(MemoryArguments),
    /// Measure what workers of DPDK and Open vSwitch do, and who disturbs them
    Workers(WorkersArguments),
    /// Measure latency of packets into virtual machines: NIC, tap, vhost, KVM, guest
    Vm(VmArguments),
}

impl Measure {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.instrument {
            Instruments::Stages(stages) => stages.run(),
            Instruments::Locality(locality) => locality.run(),
            Instruments::Accepts(accepts) => accepts.run(),
            Instruments::Answers(answers) => answers.run(),
            Instruments::Irqs(irqs) => irqs.run(),
            Instruments::Drops(drops) => drops.run(),
            Instruments::Tcp(tcp) => tcp.run(),
            Instruments::Memory(memory) => memory.run(),
            Instruments::Workers(workers) => workers.run(),
            Instruments::Vm(vm) => vm.run(),
        }
    }
}
