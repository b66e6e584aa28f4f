//! Numbers of channels (`ethtool -L`), with what is lost when they change.
//!
//! A driver that makes its queues anew forgets where their interrupts go, and the kernel forgets the RPS
//! and XPS of queues that go away; the indirection table is made anew, too. So when a change is prepared,
//! all of that, and where the device's other interrupts go, is written down behind the numbers of the value from before, and put back with them:
//!
//! ```text
//! combined 4; rx-0/irq 2; rx-0/rps_cpus 0; tx-0/xps_cpus 4; rss equal 4
//! ```

use super::numbers::NumbersSetting;
use super::rss::TableSetting;
use super::{Ethtool, NicSetting};
use crate::TuneError;
use crate::files::Files;
use crate::setting::Setting;
use nearpath_host::{Root, Wanted};
use nearpath_model::{Host, IrqNumber, NicIrq, SettingFile};

/// The numbers, and what was written down with them.
pub(super) fn parts(value: &str) -> (&str, impl Iterator<Item = (&str, &str)>) {
    let mut parts = value.split("; ");
    let counts = parts.next().unwrap_or_default();
    (counts, parts.filter_map(|kept| kept.split_once(' ')))
}

/// Numbers of channels.
pub(super) struct ChannelsSetting<'a> {
    target: &'a NicSetting,
    counts: NumbersSetting<'a>,
    files: &'a Files,
}

impl<'a> ChannelsSetting<'a> {
    pub fn new(target: &'a NicSetting, files: &'a Files) -> Self {
        Self { target, counts: NumbersSetting::channels(target), files }
    }

    fn of_nic(&self, what: Ethtool) -> NicSetting {
        NicSetting { what, ..self.target.clone() }
    }

    fn queue_file(&self, file: &str) -> SettingFile {
        let path = format!("/sys/class/net/{}/queues/{file}", self.target.nic);
        SettingFile::new(path, self.target.netns)
    }

    fn irq_file(irq: IrqNumber) -> SettingFile {
        SettingFile::new(format!("/proc/irq/{irq}/smp_affinity_list"), None)
    }

    fn host(&self) -> Result<Host, TuneError> {
        Ok(nearpath_host::read(&Root::live(), &Wanted::default())?)
    }

    /// The queues that there are now (`rx-0`), with their interrupts.
    fn queues(&self, host: &Host) -> Vec<(String, Option<IrqNumber>)> {
        let Some(nic) = host.nics.iter().find(|nic| nic.name == self.target.nic) else {
            return Vec::new();
        };
        let rx = nic.rx_queues.iter().map(|queue| (format!("rx-{}", queue.queue), queue.irq));
        let tx = nic.tx_queues.iter().map(|queue| (format!("tx-{}", queue.queue), queue.irq));
        rx.chain(tx).collect()
    }

    /// The interrupt of this name that the interface's device has beside those of its queues.
    fn beside_queues(&self, name: &str) -> Option<IrqNumber> {
        let irq = NicIrq { nic: self.target.nic.clone(), name: name.to_owned() };
        nearpath_host::locate_irq(&Root::live(), &irq).map(|(number, _)| number)
    }

    /// Puts one thing back that was written down.
    fn put_back(
        &self,
        key: &str,
        value: &str,
        queues: &[(String, Option<IrqNumber>)],
    ) -> Result<(), TuneError> {
        let lost = |reason: &str| {
            TuneError::kernel(format!("putting back {key} of {}", self.target.nic), reason)
        };
        if key == "rss" {
            let target = self.of_nic(Ethtool::Rss);
            return put(&TableSetting::new(&target), value);
        }
        let file = match key.strip_suffix("/irq") {
            Some(queue) => {
                let of_queue = queues.iter().find(|(name, _)| name == queue);
                let irq = match of_queue {
                    Some((_, irq)) => *irq,
                    None => self.beside_queues(queue),
                };
                Self::irq_file(irq.ok_or_else(|| lost("its interrupt is unknown now"))?)
            }
            None => self.queue_file(key),
        };
        put(&self.files.setting(&file)?, value)
    }
}

/// Writes a value unless it is there.
fn put(setting: &dyn Setting, value: &str) -> Result<(), TuneError> {
    match setting.read()? {
        Some(now) if setting.same(&now, value) => Ok(()),
        _ => setting.write(value),
    }
}

impl Setting for ChannelsSetting<'_> {
    fn name(&self) -> String {
        self.counts.name()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.counts.check(value)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        self.counts.read()
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let (counts, kept) = parts(value);
        self.counts.write(counts)?;
        let kept: Vec<(&str, &str)> = kept.collect();
        let queues = if kept.is_empty() { Vec::new() } else { self.queues(&self.host()?) };
        // All that can be is put back, whatever cannot.
        let done: Vec<_> =
            kept.into_iter().map(|(key, value)| self.put_back(key, value, &queues)).collect();
        done.into_iter().collect()
    }

    fn same(&self, a: &str, b: &str) -> bool {
        self.counts.same(parts(a).0, parts(b).0)
    }

    fn part(&self, now: &str, of: &str) -> String {
        self.counts.part(now, parts(of).0)
    }

    fn keep(&self, now: String) -> Result<String, TuneError> {
        let mut kept = vec![now];
        // What cannot be read is nothing that could be lost: XPS of a single queue, a foreign IRQ.
        let mut add = |key: &str, setting: &dyn Setting| {
            if let Ok(Some(value)) = setting.read() {
                kept.push(format!("{key} {value}"));
            }
        };
        let host = self.host()?;
        for irq in nearpath_host::irqs_beside_queues(&Root::live(), &host, &self.target.nic) {
            // What parts them from others is no part of a name.
            if !irq.name.contains(';') {
                let key = format!("{}/irq", irq.name);
                add(&key, &self.files.setting(&Self::irq_file(irq.irq))?);
            }
        }
        for (queue, irq) in self.queues(&host) {
            if let Some(irq) = irq {
                add(&format!("{queue}/irq"), &self.files.setting(&Self::irq_file(irq))?);
            }
            let files: &[&str] = if queue.starts_with("rx-") {
                &["rps_cpus", "rps_flow_cnt"]
            } else {
                &["xps_cpus"]
            };
            for file in files {
                let key = format!("{queue}/{file}");
                add(&key, &self.files.setting(&self.queue_file(&key))?);
            }
        }
        let table = self.of_nic(Ethtool::Rss);
        add("rss", &TableSetting::new(&table));
        Ok(kept.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_stand_before_what_is_kept() {
        let (counts, kept) = parts("combined 4; rx-0/irq 0-3; rss weight 1 3");
        assert_eq!(counts, "combined 4");
        assert_eq!(kept.collect::<Vec<_>>(), [("rx-0/irq", "0-3"), ("rss", "weight 1 3")]);
        assert_eq!(parts("rx 1 tx 1").1.count(), 0);
    }
}
