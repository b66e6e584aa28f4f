//! A setting in a file of `/sys` or `/proc`.

use super::{
    CarriesOver, FileOf, Form, InterfaceFile, InterfaceId, InterfaceOf, Persistence, QueueFile,
    Sysctl, TargetKind,
};
use crate::{CpuSet, IrqNumber, NicIrq, QueueId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A file of `/sys` or `/proc` that holds a setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SettingFile {
    /// What it configures; in JSON its path: `/sys/class/net/eth0/queues/rx-0/rps_cpus`.
    #[serde(rename = "path")]
    pub of: FileOf,
    /// Inode of the network namespace that the setting belongs to; `None` for a setting of the whole machine.
    pub netns: Option<u64>,
    /// For the affinity of a queue's interrupt: identifies the interrupt, because its number may be reassigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<NicIrq>,
    /// For a file of sysfs, set once it was changed: its inode (for an interrupt, that of its directory there).
    /// The kernel assigns a new one to an interface, queue or interrupt that is re-created under the same name
    /// (`kernfs_ino` of fs/kernfs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
    /// Which interface it belongs to, set once it was changed.
    #[serde(default, skip_serializing_if = "InterfaceId::is_empty")]
    pub interface: InterfaceId,
    /// For CPUs, set once they were changed: which CPUs were online. When others are, the kernel or the driver may
    /// have set the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<OnlineCpus>,
}

/// The CPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OnlineCpus {
    /// Those that are online.
    pub online: CpuSet,
    /// The highest inode of their `topology` directories in sysfs, which the kernel makes when a CPU comes online.
    pub newest: u64,
}

impl From<FileOf> for SettingFile {
    fn from(of: FileOf) -> Self {
        let interface = InterfaceId::default();
        Self { of, netns: None, interrupt: None, instance: None, interface, cpus: None }
    }
}

impl SettingFile {
    /// The file with that path in a network namespace, which is that of the reader of a plan or journal; `None` if it
    /// may not be written.
    pub fn parse(path: &str, netns: Option<u64>) -> Option<Self> {
        Some(Self::from(FileOf::parse(path)?).in_netns(netns))
    }

    /// The same in a network namespace, if it belongs to one.
    #[must_use]
    pub fn in_netns(mut self, netns: Option<u64>) -> Self {
        self.set_netns(netns);
        self
    }

    /// The affinity of an interrupt.
    pub fn irq_affinity(irq: IrqNumber) -> Self {
        FileOf::Irq(irq).into()
    }

    /// A file of a queue.
    pub fn queue(nic: &str, queue: QueueId, file: QueueFile) -> Self {
        FileOf::Queue { nic: nic.to_owned(), queue, file }.into()
    }

    /// A file of an interface itself.
    pub fn interface(nic: &str, file: InterfaceFile) -> Self {
        FileOf::Interface { nic: nic.to_owned(), file }.into()
    }

    /// The interrupt, if it is an affinity.
    pub fn irq(&self) -> Option<IrqNumber> {
        match self.of {
            FileOf::Irq(irq) => Some(irq),
            _ => None,
        }
    }

    /// The sysctl, if it is one.
    pub fn sysctl(&self) -> Option<Sysctl> {
        match self.of {
            FileOf::Sysctl(sysctl) => Some(sysctl),
            _ => None,
        }
    }

    /// Its path.
    pub fn path(&self) -> String {
        self.of.to_string()
    }

    /// The format of its value.
    pub fn form(&self) -> Form {
        self.of.form()
    }
}

impl From<Sysctl> for SettingFile {
    fn from(sysctl: Sysctl) -> Self {
        FileOf::Sysctl(sysctl).into()
    }
}

impl fmt::Display for SettingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.fmt(f)
    }
}

impl TargetKind for SettingFile {
    fn of_plan(text: &str, netns: Option<u64>) -> Option<Self> {
        Self::parse(text, netns)
    }

    fn kind(&self) -> &'static str {
        self.of.kind()
    }

    fn persistence(&self) -> Persistence {
        Persistence::UntilReboot
    }

    fn lost_for_good(&self) -> Option<&'static str> {
        (self.irq().is_some() && self.interrupt.is_none())
            .then_some("IRQ numbers change at reboot, and its queue is unknown")
    }

    fn set_of(&self, value: &str) -> Option<CpuSet> {
        match self.form() {
            Form::Mask | Form::CpuMask => CpuSet::from_mask(value).ok(),
            Form::CpuList => CpuSet::from_list(value).ok(),
            Form::Numbers(_) | Form::PowerOfTwo | Form::Choice => None,
        }
    }

    fn owner(&self) -> String {
        match &self.of {
            FileOf::Queue { nic, .. } | FileOf::Interface { nic, .. } => nic.clone(),
            _ => self.interrupt.as_ref().map(|interrupt| interrupt.nic.clone()).unwrap_or_default(),
        }
    }

    fn may_be_refused(&self) -> bool {
        self.irq().is_some()
    }

    fn carries_over(&self) -> Option<CarriesOver> {
        match self.of {
            FileOf::Sysctl(sysctl) => sysctl.carries_over(),
            _ => None,
        }
    }

    fn interface_of(&mut self) -> Option<InterfaceOf<'_>> {
        let (name, netns) = match &mut self.of {
            FileOf::Queue { nic, .. } | FileOf::Interface { nic, .. } => {
                (nic, Some(&mut self.netns))
            }
            _ => (&mut self.interrupt.as_mut()?.nic, None),
        };
        Some(InterfaceOf { name, netns, id: &mut self.interface })
    }

    fn set_netns(&mut self, netns: Option<u64>) {
        self.netns = netns.filter(|_| self.of.is_of_namespace());
    }

    fn cpus_then(&self) -> Option<&OnlineCpus> {
        self.cpus.as_ref()
    }

    fn is_same_place(&self, other: &Self) -> bool {
        (&self.of, self.netns) == (&other.of, other.netns)
    }
}
