//! Settings that are read and written as text, and their common protocol: the value must be the expected one before it is
//! written, it is read back, and external changes are not overwritten.
//!
//! Input: a change of such a setting. Output: the change as applied, or an error.

use crate::TuneError;
use nearpath_model::{Change, Saved, SavedPart, Value};
use std::thread;
use std::time::{Duration, Instant};

/// How long a reading may have the value before the last write, and how often it is read again.
const LATE: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_millis(1);

/// A setting of a file, a thread or an interface.
pub(crate) trait Setting {
    /// Its name in messages.
    fn name(&self) -> String;

    /// Checks the form of a value.
    fn check(&self, value: &str) -> Result<(), TuneError>;

    /// The current value in the kernel's spelling; `None` if the object of the setting no longer exists.
    fn read(&self) -> Result<Option<String>, TuneError>;

    /// Writes a checked value, or one that was read.
    fn write(&self, value: &str) -> Result<(), TuneError>;

    /// Whether the current value is this one: `3` and `00000003` for a mask. Where the kernel drops offline CPUs from a
    /// value, those do not count.
    fn same(&self, now: &str, value: &str) -> bool;

    /// An old value as the kernel can store it now, when some of its CPUs are offline.
    fn possible(&self, value: &str) -> Possible {
        Possible { text: value.to_owned(), replaced: false }
    }

    /// Whether the object was replaced by another: a new interface with the same name.
    fn is_another(&self) -> bool {
        false
    }

    /// Whether it is known that a CPU went offline or came back since the change.
    fn cpus_changed(&self) -> bool {
        false
    }

    /// Whether the current value is what the kernel or the driver made of another when a CPU went offline.
    fn is_left_by_kernel(&self, _now: &str, _was: &str) -> bool {
        false
    }

    /// Whether the current value may be what the driver made of the written one, to the granularity of its hardware.
    fn is_rounded(&self, _now: &str, _written: &str) -> bool {
        false
    }

    /// Whether the current value is what the kernel made of the change: part of an interrupted write, or pages that it
    /// has moved between pools.
    fn is_in_part(&self, _now: &str, _before: &str, _after: &str, _interrupted: bool) -> bool {
        false
    }

    /// Whether a change cannot be undone: an undo then changes nothing.
    fn is_one_way(&self) -> bool {
        false
    }

    /// Checks whether the current value can be restored later, by its form; `force` accepts it anyway.
    fn may_be_replaced(&self, _now: &str, _force: bool) -> Result<(), TuneError> {
        Ok(())
    }

    /// Checks whether replacing the current value by this one would harm its processes, whatever is requested.
    fn may_be_written(&self, _now: &str, _value: &str) -> Result<(), TuneError> {
        Ok(())
    }

    /// Whether a reading may still have the value before the last write for a moment.
    fn reads_late(&self) -> bool {
        false
    }

    /// The part of the current value that a value refers to, if a setting has several parts.
    fn part(&self, now: &str, _of: &str) -> String {
        now.to_owned()
    }

    /// Other settings that a write resets; `None` if there are none.
    fn dependents(&self) -> Option<&dyn Dependents> {
        None
    }

    /// Changes objects that were created from it and inherited its value in the same way.
    fn follow(&self, _from: &str, _to: &str) -> Result<(), TuneError> {
        Ok(())
    }

    /// Removes what was created next to it, once the original value is restored.
    fn tidy(&self) -> Result<(), TuneError> {
        Ok(())
    }
}

/// A value that the kernel can store now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Possible {
    /// The value.
    pub text: String,
    /// Whether none of the wanted CPUs is online, and this is what the kernel would have made of them.
    pub replaced: bool,
}

/// The other settings that a write resets.
pub(crate) trait Dependents {
    /// A snapshot of all of them.
    fn take(&self) -> Result<Vec<Saved>, TuneError>;

    /// Calls with the current setting of a part; `None` if it does not exist.
    fn with(
        &self,
        part: &SavedPart,
        run: &mut dyn FnMut(&dyn Setting) -> Result<(), TuneError>,
    ) -> Result<Option<()>, TuneError>;
}

/// Whether a change is in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedValue {
    /// The host has the new value.
    After,
    /// The host has the original value.
    Before,
    /// The host has the original value, but not all settings that were reset with it.
    InPart {
        /// The missing settings.
        lacks: String,
    },
    /// The kernel or the driver moved it when a CPU went offline or came back.
    Unplugged {
        /// The current value.
        now: String,
        /// Whether that is the original value.
        is_before: bool,
    },
    /// The host has another value.
    Other {
        /// That value.
        now: String,
    },
    /// The object of the change no longer exists.
    Gone {
        /// Why, as far as known.
        reason: String,
    },
}

/// Checks the value, and that the current value is the one that the change expects; `before` becomes the kernel's
/// text. With `force` any current value is accepted.
pub(crate) fn prepare(
    setting: &dyn Setting,
    mut change: Change,
    force: bool,
) -> Result<Change, TuneError> {
    let after = text(setting, &change.after)?;
    setting.check(after)?;
    let expected = text(setting, &change.before)?;
    let now = setting.part(&setting.read()?.ok_or_else(|| gone(setting))?, after);
    if setting.same(&now, after) {
        return Err(TuneError::InPlace(setting.name()));
    }
    if !force && !setting.same(&now, expected) {
        return Err(drift(setting, &now, expected));
    }
    setting.may_be_replaced(&now, force)?;
    setting.may_be_written(&now, after)?;
    change.before = Value::Text(now);
    if let Some(dependents) = setting.dependents() {
        change.snapshot = dependents.take()?;
        for Saved { part, value } in &change.snapshot {
            dependents.with(part, &mut |its| its.check(value))?;
        }
    }
    Ok(change)
}

/// Writes the new value and reads it back, and restores what the driver reset with it, where that still
/// exists. If the kernel took another value, the old one is restored at once: later it would look like an external
/// change.
pub(crate) fn write(setting: &dyn Setting, change: &Change) -> Result<(), TuneError> {
    let (before, after) = (text(setting, &change.before)?, text(setting, &change.after)?);
    if let Err(reason) = put(setting, after) {
        // What is missing then is found by undo.
        let _ = take_back(setting, change, before, after);
        return Err(reason);
    }
    if let Some(dependents) = setting.dependents() {
        for saved in change.snapshot.iter().filter(|saved| saved.part.survives()) {
            restore(dependents, saved)?;
        }
    }
    setting.follow(before, after)
}

/// Whether an old value is there, as far as its CPUs are online.
fn is_there(setting: &dyn Setting, now: &str, old: &str) -> bool {
    let Possible { text, replaced } = setting.possible(old);
    setting.same(now, old)
        || setting.same(now, &text)
        || (replaced && setting.is_left_by_kernel(now, old))
}

/// Restores the old value if a failed write left a third one.
fn take_back(
    setting: &dyn Setting,
    change: &Change,
    before: &str,
    after: &str,
) -> Result<(), TuneError> {
    match setting.read()?.map(|now| setting.part(&now, after)) {
        // Memory that was moved in part stays.
        Some(_) if setting.is_one_way() => Ok(()),
        Some(now) if !setting.same(&now, before) && !setting.same(&now, after) => {
            put(setting, &setting.possible(before).text)?;
            restore_all(setting, &change.snapshot)
        }
        _ => Ok(()),
    }
}

/// Writes the old value back, unless it is there already or nothing has it any more, and all that was lost
/// with it. Where the change was not `interrupted`, what was changed externally since then stays, as far as
/// it survives such a change.
pub(crate) fn undo(
    setting: &dyn Setting,
    change: &Change,
    force: bool,
    interrupted: bool,
) -> Result<(), TuneError> {
    if setting.is_one_way() {
        return Ok(());
    }
    let (before, after) = (text(setting, &change.before)?, text(setting, &change.after)?);
    let possible = setting.possible(before);
    let Some(now) = setting.read()? else { return setting.follow(after, &possible.text) };
    let now = setting.part(&now, after);
    let left = setting.is_left_by_kernel(&now, after);
    // Without the change the kernel would have moved it, too.
    if is_there(setting, &now, before) || (possible.replaced && left) {
        if setting.reads_late() && setting.same(&now, &possible.text) {
            // The change may be about to replace what was read. What is there already can hardly be refused.
            let _ = setting.write(&possible.text);
        }
        restore_all(setting, &change.snapshot)?;
        setting.follow(after, &possible.text)?;
        return setting.tidy();
    }
    let ours = setting.same(&now, after)
        || left
        // Of an undo that was interrupted.
        || (setting.cpus_changed() && setting.is_left_by_kernel(&now, before))
        || setting.is_in_part(&now, before, after, interrupted)
        // nearpath may have ended between the write and its check.
        || (interrupted && setting.is_rounded(&now, after));
    if !force && !ours {
        // The changed object is gone; the current one is not ours.
        return if setting.is_another() { Ok(()) } else { Err(drift(setting, &now, after)) };
    }
    setting.may_be_written(&now, &possible.text)?;
    let wanted = match setting.dependents() {
        Some(dependents) if !interrupted => as_now(dependents, &change.snapshot)?,
        _ => change.snapshot.clone(),
    };
    put(setting, &possible.text)?;
    restore_all(setting, &wanted)?;
    setting.follow(after, &possible.text)?;
    setting.tidy()
}

/// A snapshot with the current values of the parts that survive a change and exist.
fn as_now(dependents: &dyn Dependents, snapshot: &[Saved]) -> Result<Vec<Saved>, TuneError> {
    let mut wanted = snapshot.to_vec();
    for Saved { part, value } in wanted.iter_mut().filter(|saved| saved.part.survives()) {
        dependents.with(part, &mut |its| {
            // A value set by the kernel while a CPU was offline is not a choice.
            match its.read()? {
                Some(now) if !its.is_left_by_kernel(&now, value) => *value = now,
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(wanted)
}

/// How often a snapshot is restored, if a CPU going offline or a driver changes it meanwhile.
const ROUNDS: usize = 3;

/// Restores as much of a snapshot as possible; the error names what could not be restored. All of it is verified at
/// the end: parts restored first may have been changed while the others were.
fn restore_all(setting: &dyn Setting, snapshot: &[Saved]) -> Result<(), TuneError> {
    let Some(dependents) = setting.dependents() else { return Ok(()) };
    let one = |saved: &Saved| match restore(dependents, saved)? {
        Some(()) => Ok(()),
        None => Err(TuneError::kernel(
            format!("restoring {} of {}", saved.part, setting.name()),
            "it no longer exists",
        )),
    };
    let mut lacks = Vec::new();
    for _ in 0..ROUNDS {
        let ends: Vec<_> = snapshot.iter().map(one).collect();
        ends.into_iter().collect::<Result<(), _>>()?;
        lacks = lacking(setting, snapshot)?;
        if lacks.is_empty() {
            return Ok(());
        }
    }
    Err(TuneError::kernel(
        format!("restoring {} of {}", lacks.join(", "), setting.name()),
        "it was changed again immediately",
    ))
}

/// Restores a value, unless it is there already; `None` if its object does not exist.
fn restore(dependents: &dyn Dependents, saved: &Saved) -> Result<Option<()>, TuneError> {
    let Saved { part, value } = saved;
    dependents.with(part, &mut |its| match its.read()? {
        Some(now) if is_there(its, &now, value) => Ok(()),
        _ => put(its, &its.possible(value).text),
    })
}

/// The parts of a snapshot that the host does not have.
fn lacking(setting: &dyn Setting, snapshot: &[Saved]) -> Result<Vec<String>, TuneError> {
    let Some(dependents) = setting.dependents() else { return Ok(Vec::new()) };
    let mut lacks = Vec::new();
    for Saved { part, value } in snapshot {
        let mut found = false;
        dependents.with(part, &mut |its| {
            found = its.read()?.is_some_and(|now| is_there(its, &now, value));
            Ok(())
        })?;
        if !found {
            lacks.push(part.to_string());
        }
    }
    Ok(lacks)
}

/// Whether the host has it.
pub(crate) fn look(setting: &dyn Setting, change: &Change) -> Result<ObservedValue, TuneError> {
    let (before, after) = (text(setting, &change.before)?, text(setting, &change.after)?);
    let Some(now) = setting.read()? else {
        return Ok(ObservedValue::Gone { reason: format!("{} no longer exists", setting.name()) });
    };
    let now = setting.part(&now, after);
    let is_before = is_there(setting, &now, before);
    // Without a CPU that is known to have gone, an old value was set back deliberately.
    let may_be_left = !is_before || setting.cpus_changed();
    Ok(if setting.same(&now, after) {
        ObservedValue::After
    } else if setting.is_another() {
        let with = if is_before { String::new() } else { format!(", with {now:?}") };
        ObservedValue::Gone { reason: format!("{} was re-created{with}", setting.name()) }
    } else if may_be_left && setting.is_left_by_kernel(&now, after) {
        ObservedValue::Unplugged { now, is_before }
    } else if is_before {
        match lacking(setting, &change.snapshot)? {
            lacks if lacks.is_empty() => ObservedValue::Before,
            lacks => ObservedValue::InPart { lacks: lacks.join(", ") },
        }
    } else {
        ObservedValue::Other { now }
    })
}

fn put(setting: &dyn Setting, value: &str) -> Result<(), TuneError> {
    setting.write(value)?;
    let written = Instant::now();
    loop {
        match setting.read()?.map(|now| setting.part(&now, value)) {
            Some(now) if setting.same(&now, value) => return Ok(()),
            // The kernel does not announce it.
            Some(_) if setting.reads_late() && written.elapsed() < LATE => thread::sleep(AGAIN),
            Some(now) => {
                return Err(TuneError::kernel(
                    format!("writing {value:?} to {}", setting.name()),
                    format!("the kernel accepted it, but has {now:?}"),
                ));
            }
            None => return Err(gone(setting)),
        }
    }
}

fn text<'a>(setting: &dyn Setting, value: &'a Value) -> Result<&'a str, TuneError> {
    match value {
        Value::Text(text) => Ok(text),
        _ => Err(TuneError::Refused(format!("{}: the change has no text value", setting.name()))),
    }
}

fn gone(setting: &dyn Setting) -> TuneError {
    TuneError::kernel(setting.name(), "it no longer exists")
}

fn drift(setting: &dyn Setting, now: &str, expected: &str) -> TuneError {
    let quoted = |text: &str| format!("{text:?}");
    TuneError::Drift { target: setting.name(), now: quoted(now), expected: quoted(expected) }
}

#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod mask_tests;
#[cfg(test)]
mod tests;
