//! What a check is: a name, what it looks at, and a function from a [`Context`] to findings and
//! to what could not be checked.

use crate::{Context, Finding, FindingCost, ProposedChange, Severity};

/// A check, one for each file of `checks/`.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name, as in [`Finding::check`].
    pub name: &'static str,
    /// What it looks at, in one line.
    pub looks_at: &'static str,
    /// The check itself; [`Check::check`] runs it.
    pub(crate) run: fn(&Context<'_>) -> CheckOutcome,
}

impl Check {
    /// Runs the check. Findings get its name, and changes that would change nothing go.
    pub fn check(&self, context: &Context<'_>) -> CheckOutcome {
        let mut outcome = (self.run)(context);
        for finding in &mut outcome.findings {
            self.name.clone_into(&mut finding.check);
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

impl Finding {
    /// A finding without evidence, cost and changes, to which the check adds them.
    pub(crate) fn new(severity: Severity, title: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            severity,
            title: title.into(),
            evidence: Vec::new(),
            cost: FindingCost::default(),
            changes: Vec::new(),
        }
    }

    /// Adds a sentence of evidence.
    pub(crate) fn evidence(mut self, sentence: impl Into<String>) -> Self {
        self.evidence.push(sentence.into());
        self
    }

    /// Sets the share that is affected, from a fraction of 0 to 1; what is no number stays unknown.
    pub(crate) fn share(mut self, share: Option<f64>) -> Self {
        self.cost.share_percent =
            share.filter(|s| s.is_finite()).map(|s| s.clamp(0.0, 1.0) * 100.0);
        self
    }

    /// Adds a change.
    pub(crate) fn change(mut self, change: ProposedChange) -> Self {
        self.changes.push(change);
        self
    }
}

impl ProposedChange {
    /// A change that is made in its turn.
    pub(crate) fn new(
        target: impl Into<String>,
        before: Option<String>,
        after: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            target: target.into(),
            before,
            after: after.into(),
            why: why.into(),
            alternative: false,
        }
    }

    /// The same change, to be made instead of those before it.
    pub(crate) fn instead(self) -> Self {
        Self { alternative: true, ..self }
    }
}
