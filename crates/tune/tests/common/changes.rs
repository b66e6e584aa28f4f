//! What the tests of single kinds of changes share.

use nearpath_model::{Change, Persistence, Target};
use nearpath_tune::{Executor, Journal, Live};
use std::path::Path;

/// A change of this machine, until it is restarted.
pub fn change(target: Target, before: &str, after: &str) -> Change {
    Change {
        target,
        before: before.into(),
        after: after.into(),
        why: "a test".to_owned(),
        persistence: Persistence::UntilReboot,
        snapshot: Vec::new(),
    }
}

/// An executor with a journal in a folder.
pub fn executor(folder: &Path) -> Executor<Live> {
    Executor::new(Journal::open(folder, "boot").unwrap(), Live::new())
}
