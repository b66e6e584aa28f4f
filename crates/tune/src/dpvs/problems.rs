//! Collects the problems of a configuration, at most a bounded number.

use nearpath_model::{DpvsProblem, DpvsVerdict};

/// Maximum number of problems, and of notes, that are reported.
const MAX: usize = 1000;
/// Maximum number of characters of a file's word in a message.
const MAX_WORD: usize = 40;

#[derive(Debug, Default)]
pub(super) struct Problems {
    pub found: Vec<DpvsProblem>,
    pub notes: Vec<DpvsProblem>,
    verdict: Option<DpvsVerdict>,
}

impl Problems {
    pub(super) fn refused(&mut self, line: Option<u32>, code: &str, message: String, remedy: &str) {
        self.add(DpvsVerdict::Refused, line, code, message, remedy);
    }

    pub(super) fn changed(&mut self, line: Option<u32>, code: &str, message: String, remedy: &str) {
        self.add(DpvsVerdict::Changed, line, code, message, remedy);
    }

    pub(super) fn note(&mut self, line: Option<u32>, code: &str, message: String, remedy: &str) {
        self.add(DpvsVerdict::Accepted, line, code, message, remedy);
    }

    /// The worst effect so far.
    pub(super) fn verdict(&self) -> DpvsVerdict {
        self.verdict.unwrap_or(DpvsVerdict::Accepted)
    }

    fn add(
        &mut self,
        effect: DpvsVerdict,
        line: Option<u32>,
        code: &str,
        message: String,
        remedy: &str,
    ) {
        // Counts even if the list is full.
        self.verdict = Some(self.verdict().max(effect));
        let list = match effect {
            DpvsVerdict::Accepted => &mut self.notes,
            DpvsVerdict::Changed | DpvsVerdict::Refused => &mut self.found,
        };
        if list.len() < MAX {
            let (code, remedy) = (code.to_owned(), remedy.to_owned());
            list.push(DpvsProblem { line, effect, code, message, remedy });
        }
    }
}

/// A word of the file for a message: printable and not long.
pub(super) fn word(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown: String =
        text.chars().take(MAX_WORD).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_WORD).is_some() {
        shown.push('…');
    }
    shown
}
