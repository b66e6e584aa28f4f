//! What is lost when a driver re-creates the queues of an interface.
//!
//! Another number of channels (`ethtool -L`) means other queues: the affinities of their interrupts, the RPS
//! and XPS of removed queues, and the indirection table are lost. Other ring sizes (`-G`) make most drivers
//! free and request their interrupts, which resets the affinities. Each part is named by its queue or
//! handler, as the numbers of interrupts change.

use super::NumbersSetting;
use super::rss::TableSetting;
use crate::TuneError;
use crate::files::Files;
use crate::setting::{Dependents, Setting};
use nearpath_host::{Root, Wanted};
use nearpath_model::{
    Direction, Ethtool, Host, IrqNumber, NicIrq, NicSetting, QueueFile, QueueId, Saved, SavedFile,
    SavedPart, SettingFile,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Numbers of channels or sizes of rings, with what is lost when they change.
pub(super) struct QueueNumbers<'a> {
    target: &'a NicSetting,
    numbers: NumbersSetting<'a>,
    files: &'a Files,
    lost: &'static [Lost],
    /// The facts since the last write: finding the interrupts of queues takes all of them.
    host: RefCell<Option<Rc<Host>>>,
}

/// What may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Interrupts,
    QueueFiles,
    Rss,
}

impl<'a> QueueNumbers<'a> {
    /// `ethtool -L`.
    pub fn channels(target: &'a NicSetting, files: &'a Files) -> Self {
        let lost = &[Lost::Interrupts, Lost::QueueFiles, Lost::Rss];
        Self::new(target, NumbersSetting::channels(target), files, lost)
    }

    /// `ethtool -G`.
    pub fn rings(target: &'a NicSetting, files: &'a Files) -> Self {
        Self::new(target, NumbersSetting::rings(target), files, &[Lost::Interrupts])
    }

    fn new(
        target: &'a NicSetting,
        numbers: NumbersSetting<'a>,
        files: &'a Files,
        lost: &'static [Lost],
    ) -> Self {
        Self { target, numbers, files, lost, host: RefCell::default() }
    }

    fn host(&self) -> Result<Rc<Host>, TuneError> {
        if let Some(host) = &*self.host.borrow() {
            return Ok(Rc::clone(host));
        }
        let host = Rc::new(nearpath_host::read(&Root::live(), &Wanted::default())?);
        *self.host.borrow_mut() = Some(Rc::clone(&host));
        Ok(host)
    }

    /// The queues that there are now, with their interrupts.
    fn queues(&self, host: &Host) -> Vec<(Direction, QueueId, Option<IrqNumber>)> {
        let Some(nic) = host.nics.iter().find(|nic| nic.name == self.target.nic) else {
            return Vec::new();
        };
        let rx = nic.rx_queues.iter().map(|queue| (Direction::Rx, queue.queue, queue.irq));
        let tx = nic.tx_queues.iter().map(|queue| (Direction::Tx, queue.queue, queue.irq));
        rx.chain(tx).collect()
    }

    /// The parts that there are.
    fn parts(&self, host: &Host) -> Vec<SavedPart> {
        let mut parts = Vec::new();
        if self.lost.contains(&Lost::Interrupts) {
            let beside = nearpath_host::irqs_beside_queues(&Root::live(), host, &self.target.nic);
            parts.extend(beside.into_iter().map(|irq| SavedPart::Irq(irq.name.clone())));
        }
        for (direction, queue, irq) in self.queues(host) {
            if irq.is_some() && self.lost.contains(&Lost::Interrupts) {
                parts.push(SavedPart::QueueIrq(direction.queue(queue)));
            }
            if self.lost.contains(&Lost::QueueFiles) {
                let files = QueueFile::ALL.iter().filter(|file| file.direction() == direction);
                let part = |&file: &QueueFile| SavedPart::QueueFile(SavedFile { queue, file });
                parts.extend(files.map(part));
            }
        }
        if self.lost.contains(&Lost::Rss) {
            parts.push(SavedPart::Rss);
        }
        parts
    }

    /// The interrupt that a part is of now.
    fn interrupt(&self, part: &SavedPart) -> Result<Option<IrqNumber>, TuneError> {
        Ok(match part {
            SavedPart::QueueIrq(name) => {
                let mut queues = self.queues(&*self.host()?).into_iter();
                queues
                    .find(|(direction, queue, _)| direction.queue(*queue) == *name)
                    .and_then(|q| q.2)
            }
            SavedPart::Irq(name) => {
                let irq = NicIrq { nic: self.target.nic.clone(), name: name.clone() };
                nearpath_host::locate_irq(&Root::live(), &irq, None).map(|(number, _)| number)
            }
            SavedPart::QueueFile(_) | SavedPart::Rss => None,
        })
    }
}

impl Dependents for QueueNumbers<'_> {
    fn take(&self) -> Result<Vec<Saved>, TuneError> {
        let mut all = Vec::new();
        for part in self.parts(&*self.host()?) {
            let mut value = None;
            // Unreadable settings cannot be lost: XPS of a single queue, a foreign IRQ.
            let _ = self.with(&part, &mut |its| {
                value = its.read()?;
                Ok(())
            });
            all.extend(value.map(|value| Saved { part, value }));
        }
        Ok(all)
    }

    fn with(
        &self,
        part: &SavedPart,
        run: &mut dyn FnMut(&dyn Setting) -> Result<(), TuneError>,
    ) -> Result<Option<()>, TuneError> {
        let file = match part {
            SavedPart::Rss => {
                let table = NicSetting { what: Ethtool::Rss, ..self.target.clone() };
                return run(&TableSetting::new(&table)).map(Some);
            }
            SavedPart::QueueFile(file) => {
                let SavedFile { queue, file } = *file;
                SettingFile::queue(&self.target.nic, queue, file).in_netns(self.target.netns)
            }
            SavedPart::QueueIrq(_) | SavedPart::Irq(_) => match self.interrupt(part)? {
                Some(irq) => SettingFile::irq_affinity(irq),
                None => return Ok(None),
            },
        };
        let its = self.files.setting(&file)?;
        match its.read()? {
            Some(_) => run(&its).map(Some),
            None => Ok(None),
        }
    }
}

impl Setting for QueueNumbers<'_> {
    fn name(&self) -> String {
        self.numbers.name()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.numbers.check(value)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        self.numbers.read()
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        *self.host.borrow_mut() = None;
        self.numbers.write(value)
    }

    fn same(&self, a: &str, b: &str) -> bool {
        self.numbers.same(a, b)
    }

    fn is_rounded(&self, now: &str, written: &str) -> bool {
        self.numbers.is_rounded(now, written)
    }

    fn part(&self, now: &str, of: &str) -> String {
        self.numbers.part(now, of)
    }

    fn dependents(&self) -> Option<&dyn Dependents> {
        Some(self)
    }
}
