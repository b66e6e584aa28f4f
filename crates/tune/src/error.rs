//! Errors of changes.

use nearpath_host::ReadError;
use nearpath_instruments::InstrumentError;
use std::fmt;

/// Why a change was not made, or not undone.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// It would have no effect, or cannot be undone; nothing was tried.
    #[error("{0}")]
    Refused(String),
    /// A fact that it depends on cannot be read.
    #[error(transparent)]
    Unread(#[from] ReadError),
    /// Information that requires BPF programs is not available.
    #[error(transparent)]
    Unobservable(#[from] InstrumentError),
    /// The kernel refused a step.
    #[error("{step}: {reason}")]
    Kernel {
        /// The step that failed.
        step: String,
        /// The kernel's answer.
        reason: String,
    },
    /// The kernel does not support it here: a managed interrupt, a queue without this setting.
    #[error("{step}: {reason}")]
    Unsupported {
        /// The step that failed.
        step: String,
        /// The kernel's answer, and what it means.
        reason: String,
    },
    /// The setting exists, but the driver does not accept this value.
    #[error("{step}: {reason}")]
    ValueNotTaken {
        /// The step that failed.
        step: String,
        /// The kernel's answer, and what it means.
        reason: String,
    },
    /// The host already has this value.
    #[error("{0}: already set")]
    InPlace(String),
    /// It was changed externally since.
    #[error(
        "{target}: changed externally (drift): it is {now}, not {expected}; skipped \
         (use --force to overwrite)"
    )]
    Drift {
        /// The target.
        target: String,
        /// The current value.
        now: String,
        /// The expected value.
        expected: String,
    },
    /// A change failed, and not all of the earlier ones could be undone.
    #[error("{error}; {kept}")]
    NotUndone {
        /// Why it failed.
        error: Box<TuneError>,
        /// The changes that are still in effect.
        kept: NotUndone,
    },
    /// The journal cannot be read or written; nothing is changed without it. If undoing ends so, the host has the previous
    /// value, and the journal still has the change.
    #[error("journal {file}: {reason}")]
    Journal {
        /// Its path.
        file: String,
        /// The reason.
        reason: String,
    },
}

impl TuneError {
    /// A step refused by the kernel.
    pub(crate) fn kernel(step: impl Into<String>, reason: impl ToString) -> Self {
        Self::Kernel { step: step.into(), reason: reason.to_string() }
    }
}

/// Changes that could not be undone when a plan failed.
#[derive(Debug)]
pub struct NotUndone(pub(crate) Vec<Kept>);

/// One of these changes.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Its number in the journal, if there is a journal.
    pub id: Option<u64>,
    pub target: String,
    pub reason: TuneError,
}

/// How many are listed individually.
const LISTED: usize = 3;

impl fmt::Display for NotUndone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (closed, kept): (Vec<&Kept>, Vec<&Kept>) =
            self.0.iter().partition(|kept| matches!(kept.reason, TuneError::Journal { .. }));
        let count = |n: usize| if n == 1 { "1 change".to_owned() } else { format!("{n} changes") };
        if !kept.is_empty() {
            write!(f, "{} could not be undone: ", count(kept.len()))?;
            for (place, Kept { target, reason, .. }) in kept.iter().take(LISTED).enumerate() {
                let separator = if place > 0 { "; " } else { "" };
                let reason = reason.to_string();
                match reason.contains(target.as_str()) {
                    true => write!(f, "{separator}{reason}")?,
                    false => write!(f, "{separator}{target}: {reason}")?,
                }
            }
            if let Some(more) = kept.len().checked_sub(LISTED).filter(|more| *more > 0) {
                write!(f, "; and {more} more")?;
            }
        }
        if let Some(Kept { reason, .. }) = closed.first() {
            let separator = if kept.is_empty() { "" } else { "; " };
            write!(
                f,
                "{separator}{} undone, but the journal still has {}: {reason}",
                count(closed.len()),
                if closed.len() == 1 { "it" } else { "them" }
            )?;
        }
        if self.0.iter().any(|kept| kept.id.is_some()) {
            f.write_str("; they stay in the journal: 'nearpath tune rollback' retries")?;
        }
        Ok(())
    }
}
