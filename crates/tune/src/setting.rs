//! Settings that are read and written as text, and what is the same for all of them: that the value
//! is the expected one before it is written, that it is read back, and that what somebody else has
//! written since is left alone.
//!
//! In goes a change of such a setting, out comes the change as it was made, or the refusal.

use crate::TuneError;
use nearpath_model::{Change, Saved, SavedPart, Value};

/// Where a setting lives: a file, a thread, an interface.
pub(crate) trait Setting {
    /// What messages call it.
    fn name(&self) -> String;

    /// Whether it takes such a value at all, as far as its form tells.
    fn check(&self, value: &str) -> Result<(), TuneError>;

    /// What is there, as the kernel writes it; `None` when the thing that it is a setting of is
    /// gone.
    fn read(&self) -> Result<Option<String>, TuneError>;

    /// Writes a value that was checked, or one that was read.
    fn write(&self, value: &str) -> Result<(), TuneError>;

    /// Whether two texts mean the same value: `3` and `00000003` of a mask.
    fn same(&self, a: &str, b: &str) -> bool;

    /// Whether it is one of another thing by now: of a new interface of the same name.
    fn is_another(&self) -> bool {
        false
    }

    /// Whether what is there is what the kernel itself made of a value, as nothing of it was online.
    fn is_left_by_kernel(&self, _now: &str, _was: &str) -> bool {
        false
    }

    /// Whether what is there can be put back later, by its form; `force` takes it over all the same.
    fn may_be_replaced(&self, _now: &str, _force: bool) -> Result<(), TuneError> {
        Ok(())
    }

    /// The part of what is there that a value is about, where a setting has several parts.
    fn part(&self, now: &str, _of: &str) -> String {
        now.to_owned()
    }

    /// What else a write of it loses; `None` where nothing is.
    fn dependents(&self) -> Option<&dyn Dependents> {
        None
    }

    /// Changes in the same way what came into being from it and has its value.
    fn follow(&self, _from: &str, _to: &str) -> Result<(), TuneError> {
        Ok(())
    }

    /// Takes away what was made beside it, once the value from before is there again.
    fn tidy(&self) -> Result<(), TuneError> {
        Ok(())
    }
}

/// What a setting's write loses besides.
pub(crate) trait Dependents {
    /// All that there is now.
    fn take(&self) -> Result<Vec<Saved>, TuneError>;

    /// Calls with the setting that a part is now; `None` where there is none now.
    fn with(
        &self,
        part: &SavedPart,
        run: &mut dyn FnMut(&dyn Setting) -> Result<(), TuneError>,
    ) -> Result<Option<()>, TuneError>;
}

/// Whether a change is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// The host has what the change made.
    After,
    /// The host has what was there before.
    Before,
    /// The host has the value from before, but not all that was lost with it.
    InPart {
        /// What it lacks.
        lacks: String,
    },
    /// The kernel has moved it, as all its CPUs were offline.
    Unplugged {
        /// Where it is.
        now: String,
    },
    /// The host has something else.
    Other {
        /// What it has.
        now: String,
    },
    /// What was changed is not there any more.
    Gone {
        /// Why, as far as it can be told.
        reason: String,
    },
}

/// Checks the value, and that what is there is what the change expects; its `before` becomes the
/// text of the kernel. With `force` whatever is there becomes it.
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
/// exists.
pub(crate) fn write(setting: &dyn Setting, change: &Change) -> Result<(), TuneError> {
    let (before, after) = (text(setting, &change.before)?, text(setting, &change.after)?);
    put(setting, after)?;
    if let Some(dependents) = setting.dependents() {
        for saved in change.snapshot.iter().filter(|saved| saved.part.survives()) {
            restore(dependents, saved)?;
        }
    }
    setting.follow(before, after)
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
    let (before, after) = (text(setting, &change.before)?, text(setting, &change.after)?);
    let Some(now) = setting.read()? else { return setting.follow(after, before) };
    let now = setting.part(&now, after);
    if setting.same(&now, before) {
        restore_all(setting, &change.snapshot)?;
        setting.follow(after, before)?;
        return setting.tidy();
    }
    let ours = setting.same(&now, after) || setting.is_left_by_kernel(&now, after);
    if !force && !ours {
        // What was changed is gone, and what is there is the kernel's or somebody else's.
        return if setting.is_another() { Ok(()) } else { Err(drift(setting, &now, after)) };
    }
    let wanted = match setting.dependents() {
        Some(dependents) if !interrupted => as_now(dependents, &change.snapshot)?,
        _ => change.snapshot.clone(),
    };
    put(setting, before)?;
    restore_all(setting, &wanted)?;
    setting.follow(after, before)?;
    setting.tidy()
}

/// A snapshot with the values of now, of those parts that survive a change and are there.
fn as_now(dependents: &dyn Dependents, snapshot: &[Saved]) -> Result<Vec<Saved>, TuneError> {
    let mut wanted = snapshot.to_vec();
    for Saved { part, value } in wanted.iter_mut().filter(|saved| saved.part.survives()) {
        dependents.with(part, &mut |its| {
            // What the kernel made of it while a CPU was offline was not chosen.
            match its.read()? {
                Some(now) if !its.is_left_by_kernel(&now, value) => *value = now,
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(wanted)
}

/// Puts back all of a snapshot that can be, whatever cannot; says what could not.
fn restore_all(setting: &dyn Setting, snapshot: &[Saved]) -> Result<(), TuneError> {
    let Some(dependents) = setting.dependents() else { return Ok(()) };
    let one = |saved: &Saved| match restore(dependents, saved)? {
        Some(()) => Ok(()),
        None => Err(TuneError::kernel(
            format!("putting back {} of {}", saved.part, setting.name()),
            "what it is a value of is not there now",
        )),
    };
    let ends: Vec<_> = snapshot.iter().map(one).collect();
    ends.into_iter().collect()
}

/// Puts back a value, unless it is there; `None` where what has it is not there.
fn restore(dependents: &dyn Dependents, saved: &Saved) -> Result<Option<()>, TuneError> {
    let Saved { part, value } = saved;
    dependents.with(part, &mut |its| match its.read()? {
        Some(now) if its.same(&now, value) => Ok(()),
        _ => put(its, value),
    })
}

/// What of a snapshot the host does not have.
fn lacking(setting: &dyn Setting, snapshot: &[Saved]) -> Result<Vec<String>, TuneError> {
    let Some(dependents) = setting.dependents() else { return Ok(Vec::new()) };
    let mut lacks = Vec::new();
    for Saved { part, value } in snapshot {
        let mut is_there = false;
        dependents.with(part, &mut |its| {
            is_there = its.read()?.is_some_and(|now| its.same(&now, value));
            Ok(())
        })?;
        if !is_there {
            lacks.push(part.to_string());
        }
    }
    Ok(lacks)
}

/// Whether the host has it.
pub(crate) fn look(setting: &dyn Setting, change: &Change) -> Result<Presence, TuneError> {
    let (before, after) = (text(setting, &change.before)?, text(setting, &change.after)?);
    let Some(now) = setting.read()? else {
        return Ok(Presence::Gone { reason: format!("{} is not there any more", setting.name()) });
    };
    let now = setting.part(&now, after);
    Ok(if setting.same(&now, after) {
        Presence::After
    } else if setting.same(&now, before) && setting.is_another() {
        Presence::Gone { reason: format!("{} was re-created", setting.name()) }
    } else if setting.same(&now, before) {
        match lacking(setting, &change.snapshot)? {
            lacks if lacks.is_empty() => Presence::Before,
            lacks => Presence::InPart { lacks: lacks.join(", ") },
        }
    } else if setting.is_another() {
        Presence::Gone { reason: format!("{} was re-created, with {now:?}", setting.name()) }
    } else if setting.is_left_by_kernel(&now, after) {
        Presence::Unplugged { now }
    } else {
        Presence::Other { now }
    })
}

fn put(setting: &dyn Setting, value: &str) -> Result<(), TuneError> {
    setting.write(value)?;
    match setting.read()?.map(|now| setting.part(&now, value)) {
        Some(now) if setting.same(&now, value) => Ok(()),
        Some(now) => Err(TuneError::kernel(
            format!("writing {value:?} to {}", setting.name()),
            format!("the kernel took it, but has {now:?}"),
        )),
        None => Err(gone(setting)),
    }
}

fn text<'a>(setting: &dyn Setting, value: &'a Value) -> Result<&'a str, TuneError> {
    match value {
        Value::Text(text) => Ok(text),
        _ => {
            Err(TuneError::Refused(format!("{}: the change has no text to write", setting.name())))
        }
    }
}

fn gone(setting: &dyn Setting) -> TuneError {
    TuneError::kernel(setting.name(), "it is not there any more")
}

fn drift(setting: &dyn Setting, now: &str, expected: &str) -> TuneError {
    let quoted = |text: &str| format!("{text:?}");
    TuneError::Drift { target: setting.name(), now: quoted(now), expected: quoted(expected) }
}

#[cfg(test)]
mod tests;
