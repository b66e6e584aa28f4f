//! The verbosity of a diagnosis.

use crate::failure::lines_said;
use crate::output;
use clap::{ArgAction, Args};
use nearpath_model::Diagnosis;
use nearpath_views::text;

/// Lines of a verdict, however many lines stand above it on the screen.
const LEAST_LINES: usize = 12;

/// The verdict on one screen, or more detail.
#[derive(Debug, Args)]
pub struct Verbose {
    /// Show the evidence of each finding; give twice for all tables
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "json")]
    verbose: u8,
}

impl Verbose {
    /// A diagnosis as text; `next` as in [`text::verdict`].
    pub fn diagnosis(&self, diagnosis: &Diagnosis, next: Option<&str>) -> String {
        match self.verbose {
            0 => {
                let lines = text::SCREEN_LINES.saturating_sub(lines_said()).max(LEAST_LINES);
                text::verdict(diagnosis, next, lines)
            }
            1 => text::findings(diagnosis),
            _ => text::diagnosis(diagnosis, output::width()),
        }
    }
}
