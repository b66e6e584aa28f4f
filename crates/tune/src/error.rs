//! What can go wrong with a change.

use nearpath_host::ReadError;
use nearpath_instruments::InstrumentError;

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
