//! A change as seen by exporters: the kind of setting, and its values in the kernel's spelling.
//!
//! Input: an untrusted change of a plan. Output: a setting with validated parts, or the reason why it cannot be
//! exported.

use super::quote::is_plain;
use crate::configuration::check;
use crate::ethtool::command;
use nearpath_model::{
    ConfigFile, ConfigPlace, CpuSet, Ethtool, FileOf, Form, HugePages, HugepagePools, NicIrq,
    NicSetting, OvsSetting, PlannedChange, PoolCounts, Sysctl, Target, Value, is_interface_name,
};
use std::collections::BTreeMap;

/// Maximum length of a handler name (`register_handler_proc` of kernel/irq/proc.c).
const LONGEST_HANDLER: usize = 128;

/// A setting that can be exported.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub change: &'a PlannedChange,
    pub kind: Kind<'a>,
    /// How the kernel writes the value; `None` for ethtool settings.
    pub form: Option<Form>,
    /// The original value.
    pub before: String,
    /// The wanted value.
    pub after: String,
    /// For a thread: whether its service has several isolated CPUs, between which the kernel balances no load.
    pub unbalanced: bool,
}

/// What a setting belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// A queue of an interface: `rx-0`, `rps_cpus`.
    Queue { nic: &'a str, queue: String, file: &'static str },
    /// An interface itself: `napi_defer_hard_irqs`.
    Interface { nic: &'a str, file: &'static str },
    /// A sysctl.
    Sysctl(Sysctl),
    /// The affinity of a queue's interrupt.
    Interrupt(&'a NicIrq),
    /// The mode of transparent huge pages.
    HugePages,
    /// The pools of hugepages of a size, with their counts before and after.
    Hugepages { pools: HugepagePools, before: PoolCounts, after: PoolCounts },
    /// Another file of sysfs or debugfs.
    File,
    /// Kernel command line parameters, as the text of a grub fragment.
    CommandLine,
    /// The CPUs of a thread, with its systemd service if it has one.
    Thread(Option<&'a str>),
    /// An ethtool setting of an interface: the options, and the arguments after the interface name that set the
    /// value and that restore the original one.
    Nic(NicCommands),
    /// A setting in Open vSwitch's database.
    Ovs(&'a OvsSetting),
}

/// Invocations of ethtool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NicCommands {
    pub nic: String,
    /// The option that shows it: `-g`.
    pub show: &'static str,
    /// The option that sets it: `-G`.
    pub set: String,
    /// The arguments that set the value: `rx 4096 tx 512`.
    pub after: String,
    /// The arguments that restore the original value.
    pub before: String,
}

impl<'a> Setting<'a> {
    /// # Errors
    /// Why no format can express it.
    pub fn of(change: &'a PlannedChange, units: &'a BTreeMap<u32, String>) -> Result<Self, String> {
        let unknown = || "not a setting of nearpath".to_owned();
        match &change.target {
            Target::Thread(thread) => {
                let unit = units.get(&thread.pid).map(String::as_str);
                Self::with(change, Kind::Thread(unit), Form::CpuList)
            }
            Target::Nic(nic) if matches!(nic.what, Ethtool::Napi(_)) => {
                Err("the kernel has neither a file nor a common tool for a single NAPI instance"
                    .to_owned())
            }
            Target::Nic(nic) => {
                let kind = Kind::Nic(commands(nic, change)?);
                let (before, after) = (text(&change.before)?, text(&change.after)?);
                let (before, after) = (before.to_owned(), after.to_owned());
                Ok(Self { change, kind, form: None, before, after, unbalanced: false })
            }
            Target::ConfigFile(ConfigFile::CommandLine) => Self::command_line(change),
            Target::ConfigFile(_) => Err("it is a file, which persists across reboots".to_owned()),
            Target::Ovs(setting) => Self::ovs(change, setting),
            Target::Xdp(_) => Err(
                "no other tool attaches its program: run 'nearpath tune plan' and 'apply' at boot"
                    .to_owned(),
            ),
            Target::Qdiscs(_) => Err(
                "the files of other tools hold no qdiscs: run 'nearpath tune plan' and 'apply' at boot"
                    .to_owned(),
            ),
            Target::VlanEgress(_) => Err(
                "configure it where the VLAN is created (systemd.netdev: EgressQOSMaps=), or run 'nearpath tune plan' \
                 and 'apply' at boot"
                    .to_owned(),
            ),
            Target::Unit(_) => {
                Err("use systemd to keep it: systemctl disable, or set-property without --runtime"
                    .to_owned())
            }
            Target::File(file) => {
                if !file.of.has_valid_name() {
                    return Err(unknown());
                }
                let kind = match &file.of {
                    FileOf::Interface { nic, file } => Kind::Interface { nic, file: file.name() },
                    FileOf::Queue { nic, queue, file } => {
                        Kind::Queue { nic, queue: file.queue(*queue), file: file.name() }
                    }
                    FileOf::Sysctl(sysctl) => Kind::Sysctl(*sysctl),
                    FileOf::Irq(_) => Kind::Interrupt(interrupt(change)?),
                    FileOf::HugePages(HugePages::Enabled) => Kind::HugePages,
                    FileOf::HugePages(HugePages::Defrag)
                    | FileOf::MigrationCost
                    | FileOf::NumaScan(_)
                    | FileOf::WorkqueueCpumask
                    | FileOf::DefaultAffinity
                    | FileOf::HaltPolling
                    | FileOf::Cpu { .. }
                    | FileOf::Frequency { .. } => Kind::File,
                };
                Self::with(change, kind, file.form())
            }
            Target::Memory(_) => Err("a process's memory ends with the process".to_owned()),
            Target::Hugepages(pools) => Self::hugepages(change, *pools),
            Target::Cpuset(_) | Target::Irqbalance(_) | Target::ReuseportGroup(_) => Err(unknown()),
        }
    }

    fn hugepages(change: &'a PlannedChange, pools: HugepagePools) -> Result<Self, String> {
        let counts = |value: &Value| {
            let counts: Result<PoolCounts, String> = text(value)?.parse();
            counts.map_err(|must| format!("its value {must}"))
        };
        let (before, after) = (counts(&change.before)?, counts(&change.after)?);
        if !before.same_pools(&after) {
            return Err("it has not the same pools before and after".to_owned());
        }
        let texts = (before.to_string(), after.to_string());
        let kind = Kind::Hugepages { pools, before, after };
        Ok(Self { change, kind, form: None, before: texts.0, after: texts.1, unbalanced: false })
    }

    fn ovs(change: &'a PlannedChange, setting: &'a OvsSetting) -> Result<Self, String> {
        let value = |value: &Value| {
            let text = text(value)?;
            let plain = |c: char| c.is_ascii_alphanumeric() || ",:".contains(c);
            let is_plain = text.chars().all(plain);
            is_plain
                .then(|| text.to_owned())
                .ok_or_else(|| "its value is not one of words".to_owned())
        };
        let (before, after) = (value(&change.before)?, value(&change.after)?);
        setting.key.check(&after).map_err(|must| format!("its value {must}"))?;
        let kind = Kind::Ovs(setting);
        Ok(Self { change, kind, form: None, before, after, unbalanced: false })
    }

    fn command_line(change: &'a PlannedChange) -> Result<Self, String> {
        let value = |value: &Value| {
            let text = text(value)?;
            let taken =
                check(ConfigPlace::CommandLine, text).map_err(|must| format!("its text {must}"));
            taken.map(|()| text.to_owned())
        };
        let (before, after) = (value(&change.before)?, value(&change.after)?);
        Ok(Self { change, kind: Kind::CommandLine, form: None, before, after, unbalanced: false })
    }

    fn with(change: &'a PlannedChange, kind: Kind<'a>, form: Form) -> Result<Self, String> {
        let value = |value: &Value| {
            let text = text(value)?;
            form.check(text)
                .map_err(|must| format!("its value {must}"))
                .and_then(|()| form.kept(text).ok_or_else(|| "its value is invalid".to_owned()))
        };
        let (before, after) = (value(&change.before)?, value(&change.after)?);
        Ok(Self { change, kind, form: Some(form), before, after, unbalanced: false })
    }

    /// Its interface.
    pub fn nic(&self) -> Option<&str> {
        match &self.kind {
            Kind::Queue { nic, .. } | Kind::Interface { nic, .. } => Some(nic),
            Kind::Interrupt(irq) => Some(&irq.nic),
            Kind::Nic(commands) => Some(&commands.nic),
            _ => None,
        }
    }

    /// The name of an interrupt's handler.
    pub fn interrupt_name(&self) -> Option<&str> {
        match &self.kind {
            Kind::Interrupt(irq) => Some(&irq.name),
            _ => None,
        }
    }

    /// The CPUs of a cpulist value.
    pub fn cpus(&self) -> CpuSet {
        CpuSet::from_list(&self.after).unwrap_or_default()
    }
}

/// The invocations of ethtool that apply a change and undo it.
fn commands(nic: &NicSetting, change: &PlannedChange) -> Result<NicCommands, String> {
    let words = |value: &Value| {
        let words = command(nic, text(value)?).filter(|words| words.len() > 2);
        let words = words.ok_or_else(|| "ethtool has no syntax for its value".to_owned())?;
        // Separated by blanks, and without special characters for a shell.
        let plain = |word: &String| is_plain(&word.replace('/', "."));
        let (set, rest) =
            (words.first().cloned().unwrap_or_default(), words.get(2..).unwrap_or_default());
        if rest.iter().all(plain) && is_plain(&set) {
            Ok((set, rest.join(" ")))
        } else {
            Err("its value has characters that are invalid in ethtool arguments".to_owned())
        }
    };
    let ((set, after), (_, before)) = (words(&change.after)?, words(&change.before)?);
    let show = match nic.what {
        Ethtool::Channels => "-l",
        Ethtool::Rings => "-g",
        Ethtool::Coalesce => "-c",
        Ethtool::Rss | Ethtool::RssKey => "-x",
        Ethtool::Feature(_) => "-k",
        Ethtool::Rule(_) => "-n",
        // Not exported.
        Ethtool::Napi(_) => "",
    };
    Ok(NicCommands { nic: nic.nic.clone(), show, set, after, before })
}

/// The text of a value.
fn text(value: &Value) -> Result<&str, String> {
    value.text().ok_or_else(|| "its value is not text".to_owned())
}

/// What identifies an interrupt across boots.
fn interrupt(change: &PlannedChange) -> Result<&NicIrq, String> {
    let unknown = "IRQ numbers change at reboot, and its queue is unknown";
    let irq = change.interrupt().ok_or_else(|| unknown.to_owned())?;
    let printable = !irq.name.is_empty() && !irq.name.chars().any(char::is_control);
    if !is_interface_name(&irq.nic) || !printable || irq.name.len() > LONGEST_HANDLER {
        return Err("the name of its interface or handler is invalid".to_owned());
    }
    Ok(irq)
}
