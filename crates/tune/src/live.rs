//! The writer for this host: one for all kinds of changes, so that one executor and one journal are enough.
//!
//! It works in the network namespace of the thread that creates it. To add a kind: a variant of [`Target`], and an
//! arm in [`Live::setting`] if its value is text that is read and written, else in each of the four functions.

use crate::cgroups::CpusetSetting;
use crate::configuration::Etc;
use crate::ethtool;
use crate::files::{Files, is_device};
use crate::hugepages::PoolsSetting;
use crate::irqbalance::{Bans, find_irqbalance};
use crate::migrate::{Moved, PagesSetting};
use crate::ovs::{self, OvsValue};
use crate::qdiscs;
use crate::setting::{self, ObservedValue, Setting};
use crate::steering::Groups;
use crate::threads::{ThreadSetting, process_start};
use crate::units;
use crate::vlan_egress;
use crate::xdp;
use crate::{TuneError, Writer};
use nearpath_host::Root;
use nearpath_model::{Change, FileOf, InterfaceOf, State, Target, Value};
use std::cell::RefCell;
use std::path::Path;

/// The writer.
pub struct Live {
    groups: Groups,
    files: Files,
    etc: Etc,
    root: Root,
    force: bool,
    /// The pages that the last change of memory moved.
    pub(crate) moved: RefCell<Moved>,
}

impl Live {
    /// The writer for this host and the calling thread's network namespace.
    pub fn new() -> Self {
        Self {
            groups: Groups::default(),
            files: Files::live(),
            etc: Etc::live(),
            root: Root::live(),
            force: false,
            moved: RefCell::default(),
        }
    }

    /// Makes it overwrite external changes.
    #[must_use]
    pub fn forced(self, force: bool) -> Self {
        Self { force, ..self }
    }

    /// Makes it read the kernel's BTF from this file.
    #[must_use]
    pub fn with_btf(self, btf: Option<&Path>) -> Self {
        Self { groups: self.groups.with_btf(btf), ..self }
    }

    /// Checks whether a change can be made, as far as possible without making it: the form of its value, and that
    /// the host has the expected value. Returns it as it would be made. Nothing is written or loaded into the
    /// kernel.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn check(&self, change: Change) -> Result<Change, TuneError> {
        let target = change.target.clone();
        let Some(its) = self.setting(&target)? else {
            self.groups.check(&change)?;
            return Ok(change);
        };
        let mut change = setting::prepare(&*its, change, self.force)?;
        if let Target::File(file) = &mut change.target {
            file.instance = self.files.instance(file);
            file.cpus = self.files.cpus(file);
        }
        if let Target::Thread(thread) = &mut change.target {
            thread.cpus = self.files.cpus_now();
            thread.process_start_ticks = process_start(&self.root, thread.pid);
        }
        if let Some(InterfaceOf { name, netns, id }) = change.target.interface_of() {
            let now = self.files.identity(name);
            // The interface of an interrupt may be in another network namespace.
            if netns.is_some() || id.device.is_none() || id.device == now.device {
                *id = now;
            }
        }
        change.target = match change.target {
            Target::Unit(unit) => Target::Unit(units::prepared(unit)),
            Target::Ovs(setting) => Target::Ovs(ovs::prepared(setting)),
            other => other,
        };
        Ok(change)
    }

    /// Whether the host has the new value of a change, the old one, or neither.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(&self, change: &Change) -> Result<ObservedValue, TuneError> {
        let Some(target) = self.follow(&change.target)? else {
            return Ok(ObservedValue::Gone { reason: interface_gone(&change.target) });
        };
        match self.setting(&target)? {
            Some(its) => setting::look(&*its, change),
            None => self.groups.look(change),
        }
    }

    /// A target of a change that was made, with the current name and network namespace of its interface; `None` if the
    /// interface no longer exists.
    ///
    /// # Errors
    /// The interface is in another network namespace, or it is unknown where.
    pub fn follow(&self, target: &Target) -> Result<Option<Target>, TuneError> {
        self.files.follow(target)
    }

    /// The change that re-applies a lost one: to the interrupt or queue of the same device, the software interface with
    /// the same name, or the irqbalance that is there now. `None` if there is none, and for values that are not text.
    ///
    /// # Errors
    /// It cannot be read, or belongs to another network namespace.
    pub fn retargeted(&self, root: &Root, change: &Change) -> Result<Option<Change>, TuneError> {
        let mut change = change.clone();
        match self.follow(&change.target)? {
            Some(target) => change.target = target,
            None => return Ok(None),
        }
        if let Target::File(file) = &mut change.target {
            (file.instance, file.cpus) = (None, None);
            if let Some(irq) = &file.interrupt {
                let device = file.interface.device.as_deref().filter(|device| is_device(device));
                let Some((number, name)) = nearpath_host::locate_irq(root, irq, device) else {
                    return Ok(None);
                };
                file.of = FileOf::Irq(number);
                file.interrupt = Some(name);
            }
        }
        if let Target::Thread(thread) = &mut change.target {
            thread.cpus = None;
        }
        if let Target::Ovs(setting) = &mut change.target {
            setting.row = None;
        }
        if let Target::Irqbalance(irqbalance) = &mut change.target {
            let Some(running) = find_irqbalance(root) else { return Ok(None) };
            *irqbalance = running;
        }
        let target = change.target.clone();
        let Some(its) = self.setting(&target)? else { return Ok(None) };
        let Some(now) = its.read()? else { return Ok(None) };
        let now = match &change.after {
            Value::Text(after) => its.part(&now, after),
            _ => now,
        };
        Ok(Some(Change { before: Value::Text(now), ..change }))
    }

    /// The setting of a target; `None` if its value is not text that is read and written.
    fn setting<'a>(
        &'a self,
        target: &'a Target,
    ) -> Result<Option<Box<dyn Setting + 'a>>, TuneError> {
        Ok(match target {
            Target::ReuseportGroup(_) => None,
            Target::File(file) => Some(Box::new(self.files.setting(file)?)),
            Target::Thread(thread) => {
                // Nothing is known of the time before it was changed.
                let events =
                    thread.cpus.as_ref().and_then(|cpus| self.files.cpu_events(Some(cpus), ""));
                Some(Box::new(ThreadSetting::new(&self.root, thread).with_events(events)))
            }
            Target::Nic(setting) => Some(ethtool::setting(setting, &self.files)?),
            Target::Cpuset(cpuset) => Some(Box::new(CpusetSetting { root: &self.root, cpuset })),
            Target::Irqbalance(irqbalance) => Some(Box::new(Bans { root: &self.root, irqbalance })),
            Target::ConfigFile(file) => Some(Box::new(self.etc.setting(file)?)),
            Target::Unit(unit) => Some(Box::new(unit.clone())),
            Target::Ovs(setting) => Some(Box::new(OvsValue { setting })),
            Target::Xdp(setting) => Some(Box::new(xdp::setting(setting, &self.files)?)),
            Target::Qdiscs(setting) => Some(Box::new(qdiscs::setting(setting, &self.files)?)),
            Target::VlanEgress(setting) => {
                Some(Box::new(vlan_egress::setting(setting, &self.files)?))
            }
            Target::Memory(pages) => {
                let (root, moved) = (&self.root, &self.moved);
                Some(Box::new(PagesSetting { root, pages: *pages, moved }))
            }
            Target::Hugepages(pools) => {
                Some(Box::new(PoolsSetting { root: &self.root, files: &self.files, pools: *pools }))
            }
        })
    }
}

pub(crate) fn interface_gone(target: &Target) -> String {
    format!("{target}: the interface no longer exists")
}

impl Default for Live {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer for Live {
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError> {
        match &change.target {
            Target::ReuseportGroup(_) => self.groups.prepare(change),
            _ => self.check(change),
        }
    }

    fn write(&mut self, change: &Change) -> Result<(), TuneError> {
        if let Some(its) = self.setting(&change.target)? {
            return setting::write(&*its, change);
        }
        self.groups.write(change)
    }

    fn undo(&mut self, change: &Change, state: State) -> Result<(), TuneError> {
        let Some(target) = self.follow(&change.target)? else { return Ok(()) };
        if let Some(its) = self.setting(&target)? {
            let interrupted = state == State::Begun;
            return setting::undo(&*its, change, self.force, interrupted);
        }
        self.groups.undo(change, state)
    }
}
