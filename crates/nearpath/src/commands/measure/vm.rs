//! `nearpath measure vm`: the latency of packets into virtual machines.

use crate::evidence;
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Time, latency};
use crate::source::Namespace;
use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use nearpath_host::{Root, Wanted};
use nearpath_instruments::vm::VmPackets;
use nearpath_model::vm::{GuestLate, VmMeasurement};
use nearpath_views::text;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure vm                                all virtual machines, for 10s
  nearpath measure vm --vm web1 --for 60s            one, by its name or its process id
  nearpath measure vm --per vm                       all queues of a virtual machine as one
  nearpath measure vm --slow 1ms                     why did packets take longer than this?
  nearpath measure vm --transmit                     also from the guest to the NIC
  nearpath measure vm --slow 1ms --guest <(ssh web1 nearpath measure stages --slow 1ms --json)
                                                     which of the guest's slow packets were the host's?
  nearpath measure vm --json | jq '.vms[].queues[].spans[] | [.span, .count, .p50_ns, .p99_ns]'

The spans: (a) interrupt to handler, (b) handler to vhost, (c) vhost to KVM, (d) KVM to guest.
Packets are followed on taps and macvtaps with vhost-net; of devices passed through (VFIO, Linux
5.15 and newer) the interrupts. Needs root, KVM, and Linux 5.11 or newer. docs/vm.md describes the method, docs/json.md the JSON fields. 'nearpath show vms' shows
where the threads may run.";

/// Arguments of `measure vm`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct VmArguments {
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    /// Only this virtual machine: its name, or its process id
    #[arg(long, value_name = "NAME|PID")]
    vm: Option<String>,
    /// One table for each queue, or for all queues of a virtual machine
    #[arg(long, value_enum, value_name = "WHAT", default_value = "queue")]
    per: Per,
    /// Also measure the transmit direction: the guest's kick, vhost, the tap, the NIC
    #[arg(long)]
    transmit: bool,
    /// Explain packets that take at least this long into the guest: where their time went, and what had the CPU
    #[arg(long, value_name = "TIME", value_parser = latency, group = "late")]
    slow: Option<Duration>,
    /// Explain the slow packets of a guest: FILE is what 'nearpath measure stages --slow TIME --json' wrote in it
    /// meanwhile; with --vm, if there are several virtual machines
    #[arg(long, value_name = "FILE", requires = "late", conflicts_with = "interval")]
    guest: Option<PathBuf>,
    /// Use what 'nearpath measure vm --slow TIME --json' wrote, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["slow", "transmit", "duration", "interval"], group = "late")]
    measured: Option<PathBuf>,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    time: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Per {
    Vm,
    Queue,
}

impl VmArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        // First, so that a file that is missing is noticed before the measurement.
        let open = |file: &PathBuf| {
            File::open(file).with_context(|| format!("cannot use {}", file.display()))
        };
        let guest = self.guest.as_ref().map(open).transpose()?;
        let interrupt = Interrupt::listen()?;
        let mut measurement = match &self.measured {
            Some(file) => self.wanted(
                evidence::read_vm(file)
                    .with_context(|| format!("cannot use {}", file.display()))?,
            ),
            None => self.namespace.read(|root| Ok(self.measure(root, &interrupt)))??,
        };
        if let Some(guest) = guest {
            measurement.guest = Some(self.explain(&measurement, guest)?);
        }
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        match (self.json, self.time.interval) {
            (true, Some(_)) => Ok(()),
            (true, None) => output::json(&measurement),
            _ => output::text(&text::vm(&measurement)),
        }
    }

    fn measure(&self, root: &Root, interrupt: &Interrupt) -> Result<VmMeasurement, Failure> {
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        if let Some(wanted) = &self.vm {
            let vms = nearpath_host::vms::read(root).vms;
            if !vms.iter().any(|vm| vm.is(wanted)) {
                return Err(anyhow!("no virtual machine {wanted} (see nearpath show vms)").into());
            }
        }
        let mut packets = VmPackets::new(root, &host, self.time.btf.clone()).from_nics();
        packets = packets.with_transmit(self.transmit).explaining(self.slow);
        if self.json && self.time.interval.is_some() {
            return self.time.print_lines(&mut packets, interrupt, |_, now| {
                output::json_line(&self.wanted(now.clone()))
            });
        }
        let each = |now: &VmMeasurement| {
            let devices = now.vms.iter().flat_map(|vm| &vm.device_interrupts);
            let interrupts = devices.fold(0u64, |sum, one| sum.saturating_add(one.interrupts));
            let written = now.vms.iter().flat_map(|vm| &vm.backend_interrupts);
            let written = written.fold(0u64, |sum, one| sum.saturating_add(one.interrupts));
            let mut seen = format!("{} packets to taps", now.started);
            for (count, what) in [(interrupts, "of devices"), (written, "written")] {
                if count > 0 {
                    seen.push_str(&format!(", {count} interrupts {what}"));
                }
            }
            seen
        };
        Ok(self.wanted(self.time.measure(&mut packets, interrupt, each)?))
    }

    /// The slow packets of a guest.
    fn explain(&self, measurement: &VmMeasurement, file: File) -> anyhow::Result<GuestLate> {
        let vm = match measurement.vms.as_slice() {
            [vm] => vm,
            [] => bail!("--guest: no virtual machine had packets, or waited for a CPU"),
            several => bail!("--guest: its virtual machine is needed (--vm), of {}", several.len()),
        };
        // With a pipe (`--guest <(ssh web1 nearpath …)`) until the guest has ended.
        let guest = evidence::read_stages(file);
        let guest = guest.context("cannot use the guest's recording")?;
        nearpath_diagnose::explain_guest(measurement, vm, &guest).context("--guest")
    }

    /// What the options select.
    fn wanted(&self, mut measurement: VmMeasurement) -> VmMeasurement {
        if let Some(wanted) = &self.vm {
            measurement.keep(wanted);
        }
        if self.per == Per::Vm {
            measurement.merge_queues();
        }
        measurement
    }
}
