//! The qdiscs by which an interface sends: the kernel's own, or a tree of those that schedule transmission.
//!
//! Input: an interface, and a [`QdiscTree`] as text. They are read from the kernel (rtnetlink) and set by tc(8), without a
//! shell, with words that are made of typed values. Another qdisc is never replaced, as it could not be restored.
//!
//! Traffic classes reset which CPUs send by which queue (`netdev_set_num_tc` resets XPS): that is restored with them.

use crate::TuneError;
use crate::files::Files;
use crate::setting::{Dependents, Setting};
use nearpath_host::{Root, interface_qdiscs};
use nearpath_model::{
    Direction, QdiscTree, Qdiscs, QueueFile, QueueId, Saved, SavedFile, SavedPart, SettingFile,
};
use std::process::{Command, Stdio};

/// Most bytes of tc's message in an error.
const SAID: usize = 300;

/// The setting of a target.
///
/// # Errors
/// It belongs to another network namespace, or is invalid.
pub(crate) fn setting<'a>(
    target: &'a Qdiscs,
    files: &'a Files,
) -> Result<QdiscsSetting<'a>, TuneError> {
    files.is_of_here(target, target.netns)?;
    // The journal is untrusted input.
    if !nearpath_model::is_interface_name(&target.nic) {
        return Err(TuneError::Refused(format!("{target:?} is not an interface")));
    }
    Ok(QdiscsSetting { target, files })
}

/// The qdiscs of an interface.
pub(crate) struct QdiscsSetting<'a> {
    target: &'a Qdiscs,
    files: &'a Files,
}

impl QdiscsSetting<'_> {
    /// Runs tc to completion.
    fn tc(&self, words: &[String]) -> Result<(), TuneError> {
        let step = || format!("tc {}", words.join(" "));
        let output =
            Command::new("tc").args(words).stdin(Stdio::null()).output().map_err(|error| {
                TuneError::kernel(step(), format!("{error} (is iproute2 installed?)"))
            })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let said: String = said.join("; ").chars().take(SAID).collect();
        Err(TuneError::kernel(step(), said))
    }

    fn parsed(&self, value: &str) -> Result<QdiscTree, TuneError> {
        value.parse().map_err(|()| {
            TuneError::Refused(format!(
                "{}: {value:?} is not a tree that nearpath sets",
                self.target
            ))
        })
    }

    fn file(&self, file: SavedFile) -> SettingFile {
        let SavedFile { queue, file } = file;
        SettingFile::queue(&self.target.nic, queue, file).in_netns(self.target.netns)
    }
}

impl Setting for QdiscsSetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.parsed(value).map(drop)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let qdiscs = interface_qdiscs(&self.target.nic)
            .map_err(|error| TuneError::kernel(format!("reading {}", self.target), error))?;
        Ok(qdiscs
            .map(|all| QdiscTree::of(&all).map_or_else(|other| other, |tree| tree.to_string())))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let tree = self.parsed(value)?;
        let now = self.read()?.and_then(|now| now.parse::<QdiscTree>().ok());
        let is_set = matches!(now, Some(QdiscTree::Scheduled { .. }));
        tree.commands(&self.target.nic, is_set).iter().try_for_each(|words| self.tc(words))
    }

    fn same(&self, now: &str, value: &str) -> bool {
        now == value
    }

    fn is_another(&self) -> bool {
        self.files.is_another_interface(&self.target.nic, &self.target.id)
    }

    fn is_in_part(&self, now: &str, before: &str, after: &str, interrupted: bool) -> bool {
        let trees =
            (now.parse::<QdiscTree>(), before.parse::<QdiscTree>(), after.parse::<QdiscTree>());
        let (Ok(now), Ok(before), Ok(after)) = trees else { return false };
        // The old tree was removed, and the new one is not complete; or so while it was undone.
        interrupted
            && (matches!(now, QdiscTree::Default { .. })
                || now.is_part_of(&after)
                || now.is_part_of(&before))
    }

    fn may_be_replaced(&self, now: &str, _force: bool) -> Result<(), TuneError> {
        if now.parse::<QdiscTree>().is_ok() {
            return Ok(());
        }
        Err(TuneError::Refused(format!(
            "{}: it has {now}, which nearpath could not restore; remove it first",
            self.target
        )))
    }

    fn dependents(&self) -> Option<&dyn Dependents> {
        Some(self)
    }
}

impl Dependents for QdiscsSetting<'_> {
    fn take(&self) -> Result<Vec<Saved>, TuneError> {
        let queues = Root::live().list(&format!("/sys/class/net/{}/queues", self.target.nic))?;
        let number = |name: &str| name.strip_prefix("tx-")?.parse().ok().map(QueueId);
        let mut all = Vec::new();
        for queue in queues.iter().filter_map(|entry| number(&entry.name)) {
            for &file in QueueFile::ALL.iter().filter(|file| file.direction() == Direction::Tx) {
                let part = SavedPart::QueueFile(SavedFile { queue, file });
                // Those of a single queue cannot be read, and so not be lost.
                let value = self.files.setting(&self.file(SavedFile { queue, file }))?.read();
                all.extend(value.ok().flatten().map(|value| Saved { part, value }));
            }
        }
        Ok(all)
    }

    fn with(
        &self,
        part: &SavedPart,
        run: &mut dyn FnMut(&dyn Setting) -> Result<(), TuneError>,
    ) -> Result<Option<()>, TuneError> {
        let SavedPart::QueueFile(file) = part else { return Ok(None) };
        let file = self.file(*file);
        let its = self.files.setting(&file)?;
        // A queue of no traffic class has none.
        match its.read() {
            Ok(Some(_)) => run(&its).map(Some),
            Ok(None) | Err(_) => Ok(None),
        }
    }
}
