//! What a check is: a name, what it looks at, and a function from a [`Context`] to findings and
//! to what could not be checked.

use crate::Context;
use nearpath_model::{Finding, Whose};

/// A check, one for each file of `checks/`.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name, as in [`Finding::check`].
    pub name: &'static str,
    /// What it looks at, in one line.
    pub looks_at: &'static str,
    /// Checks whose findings may be the cause of this one's: a finding about the same thing is then a symptom of
    /// theirs.
    pub explained_by: &'static [&'static str],
    /// Who can do something about its findings, unless they say otherwise.
    pub whose: Whose,
    /// The check itself; [`Check::check`] runs it.
    pub(crate) run: fn(&Context<'_>) -> CheckOutcome,
}

impl Check {
    /// A check whose findings stand for themselves.
    pub(crate) const fn new(
        name: &'static str,
        looks_at: &'static str,
        run: fn(&Context<'_>) -> CheckOutcome,
    ) -> Self {
        Self { name, looks_at, explained_by: &[], whose: Whose::Host, run }
    }

    /// Names the checks whose findings may be the cause of this one's.
    pub(crate) const fn explained_by(self, causes: &'static [&'static str]) -> Self {
        Self { explained_by: causes, ..self }
    }

    /// Says who can do something about its findings.
    pub(crate) const fn of(self, whose: Whose) -> Self {
        Self { whose, ..self }
    }

    /// Runs the check. Findings get its name, and changes that would change nothing go.
    pub fn check(&self, context: &Context<'_>) -> CheckOutcome {
        let mut outcome = (self.run)(context);
        for finding in &mut outcome.findings {
            self.name.clone_into(&mut finding.check);
            if finding.whose == Whose::Host {
                finding.whose = self.whose;
            }
            finding.changes.retain(|change| change.before.as_ref() != Some(&change.after));
        }
        outcome
    }
}

/// What a check returns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckOutcome {
    /// The problems found.
    pub findings: Vec<Finding>,
    /// Why the check could not be made, or only in part; one reason each.
    pub not_checked: Vec<String>,
}

impl CheckOutcome {
    /// Notes that something could not be checked. The same reason counts once.
    pub(crate) fn not_checked(&mut self, reason: impl Into<String>) {
        let reason = reason.into();
        if !self.not_checked.contains(&reason) {
            self.not_checked.push(reason);
        }
    }
}
