//! Values other than the set point that a change resets, and that must be restored with it.

use crate::{Change, Ethtool, FileOf, QueueFile, QueueId, Target, Value};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A value of another setting that a change resets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The setting.
    #[serde(flatten)]
    pub part: SavedPart,
    /// The value.
    pub value: String,
}

/// What a driver or the kernel resets when the queues of an interface are re-created. Identified by queue or
/// handler, as the numbers of interrupts change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SavedPart {
    /// The affinity of a queue's interrupt: of `rx-0`.
    QueueIrq(String),
    /// The affinity of the interrupt with this handler, which belongs to no queue.
    Irq(String),
    /// A file of a queue: `rx-0/rps_cpus`.
    QueueFile(SavedFile),
    /// The indirection table.
    Rss,
}

/// A file of a queue of the interface that the change is about; in JSON `rx-0/rps_cpus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SavedFile {
    /// The queue, of the direction of the file.
    pub queue: QueueId,
    /// The file.
    pub file: QueueFile,
}

impl SavedFile {
    /// Parses `rx-0/rps_cpus`.
    fn parse(text: &str) -> Option<Self> {
        // As of an interface with any name.
        let path = format!("/sys/class/net/lo/queues/{text}");
        match FileOf::parse(&path)? {
            FileOf::Queue { queue, file, .. } => Some(Self { queue, file }),
            _ => None,
        }
    }
}

impl fmt::Display for SavedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.file.queue(self.queue), self.file)
    }
}

impl From<SavedFile> for String {
    fn from(file: SavedFile) -> Self {
        file.to_string()
    }
}

impl TryFrom<String> for SavedFile {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not a setting of a queue"))
    }
}

impl SavedPart {
    /// Whether it survives re-creating its queues, so that a new value may be an administrator's.
    pub fn survives(&self) -> bool {
        !matches!(self, Self::Rss)
    }

    /// Parses the text used in older journals: `rx-0/irq`, `virtio1-config/irq`, `rx-0/rps_cpus`, `rss`.
    fn parse(text: &str) -> Option<Self> {
        Some(match text.strip_suffix("/irq") {
            Some(queue) if queue.starts_with("rx-") || queue.starts_with("tx-") => {
                Self::QueueIrq(queue.to_owned())
            }
            Some(handler) => Self::Irq(handler.to_owned()),
            None if text == "rss" => Self::Rss,
            None => Self::QueueFile(SavedFile::parse(text)?),
        })
    }
}

impl fmt::Display for SavedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueIrq(name) | Self::Irq(name) => write!(f, "{name}/irq"),
            Self::QueueFile(file) => file.fmt(f),
            Self::Rss => f.write_str("rss"),
        }
    }
}

impl Change {
    /// The same with the snapshot separated: older journals have it after the numbers of channels (`combined 4;
    /// rx-0/irq 2; rss equal 4`).
    #[must_use]
    pub fn with_snapshot_separated(mut self) -> Self {
        let is_channels =
            matches!(&self.target, Target::Nic(setting) if setting.what == Ethtool::Channels);
        if let Value::Text(before) = &self.before
            && is_channels
            && let Some((numbers, kept)) = before.split_once("; ")
        {
            let one = |kept: &str| {
                let (part, value) = kept.split_once(' ')?;
                Some(Saved { part: SavedPart::parse(part)?, value: value.to_owned() })
            };
            self.snapshot.extend(kept.split("; ").filter_map(one));
            self.before = Value::Text(numbers.to_owned());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshot_of_an_older_journal_is_parsed() {
        let json = serde_json::json!({
            "target": {"nic": {"nic": "eth0", "netns": 5, "what": "channels"}},
            "before": {"text": "combined 4; virtio1-config/irq 0; rx-0/irq 2; tx-0/xps_cpus 4; rss equal 4"},
            "after": {"text": "combined 2"},
            "why": "a test",
            "persistence": "until_reboot",
        });
        let change: Change = serde_json::from_value(json).unwrap();
        let change = change.with_snapshot_separated();
        assert_eq!(change.before, "combined 4".into());
        let xps = SavedFile { queue: QueueId(0), file: QueueFile::XpsCpus };
        let saved = |part, value: &str| Saved { part, value: value.to_owned() };
        assert_eq!(
            change.snapshot,
            [
                saved(SavedPart::Irq("virtio1-config".to_owned()), "0"),
                saved(SavedPart::QueueIrq("rx-0".to_owned()), "2"),
                saved(SavedPart::QueueFile(xps), "4"),
                saved(SavedPart::Rss, "equal 4"),
            ]
        );
        assert_eq!(change.clone().with_snapshot_separated(), change);
        let json = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<Change>(&json).unwrap(), change);
    }
}
