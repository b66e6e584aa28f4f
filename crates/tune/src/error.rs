//! What can go wrong with a change.

use nearpath_host::ReadError;
use nearpath_instruments::InstrumentError;
use std::fmt;

/// Why a change was not made, or not undone.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// It would do no good, or cannot be undone: nothing was tried.
    #[error("{0}")]
    Refused(String),
    /// A fact that it rests on cannot be read.
    #[error(transparent)]
    Unread(#[from] ReadError),
    /// What only programs in the kernel can tell cannot be learnt.
    #[error(transparent)]
    Unobservable(#[from] InstrumentError),
    /// The kernel refused a step.
    #[error("{step}: {reason}")]
    Kernel {
        /// What was tried.
        step: String,
        /// What it said.
        reason: String,
    },
    /// The kernel can never do it here: a managed interrupt, a queue that has no such setting.
    #[error("{step}: {reason}")]
    ByNature {
        /// What was tried.
        step: String,
        /// What it said, and what that means.
        reason: String,
    },
    /// The kernel can set it here, but not to this value: out of what the driver takes, or in between.
    #[error("{step}: {reason}")]
    ValueNotTaken {
        /// What was tried.
        step: String,
        /// What it said, and what that means.
        reason: String,
    },
    /// The host has the wanted value already.
    #[error("{0}: that is its value already")]
    InPlace(String),
    /// Somebody else has changed it since.
    #[error(
        "{target}: somebody else has changed it since: {now} is there now, not {expected}; it is \
         left alone (--force overwrites it)"
    )]
    Drift {
        /// What was to be written to.
        target: String,
        /// What is there.
        now: String,
        /// What should have been there.
        expected: String,
    },
    /// A change was not made, and of those before it not all could be undone.
    #[error("{error}; {kept}")]
    NotUndone {
        /// Why it was not made.
        error: Box<TuneError>,
        /// What is still there.
        kept: NotUndone,
    },
    /// The journal cannot be read or written; without it nothing is changed.
    #[error("the journal {file}: {reason}")]
    Journal {
        /// Its path.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

impl TuneError {
    /// A step that the kernel refused.
    pub(crate) fn kernel(step: impl Into<String>, reason: impl ToString) -> Self {
        Self::Kernel { step: step.into(), reason: reason.to_string() }
    }
}

/// Changes that could not be undone when a plan failed.
#[derive(Debug)]
pub struct NotUndone(pub(crate) Vec<Kept>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Its number in the journal, where one remembers it.
    pub id: Option<u64>,
    pub target: String,
    pub reason: TuneError,
}

/// So many are listed individually.
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
            f.write_str("; the journal keeps what is left: 'nearpath tune rollback' tries again")?;
        }
        Ok(())
    }
}
