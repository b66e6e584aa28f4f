//! A plan and its trials in HTML: a table that a screen reader can walk through, and all of it in words.

use super::page::{escape, plain};
use super::pre;
use crate::text;
use nearpath_model::{Plan, TrialReport, Verdict};

/// Changes of a plan that have a row; the others are in its text.
const ROWS: usize = 200;

/// What would be changed, from which value to which, and why.
pub(super) fn plan(plan: &Plan) -> String {
    let words =
        format!("<details><summary>as text</summary>{}</details>", pre(&plain(&text::plan(plan))));
    if plan.changes.is_empty() {
        return format!("<p>Nothing to change.</p>{words}");
    }
    let cell = |text: &str| format!("<td>{}</td>", escape(&plain(text)));
    let row = |change: &nearpath_model::PlannedChange| {
        format!(
            "<tr><th scope=\"row\">{}</th>{}{}{}</tr>",
            escape(&plain(&change.target.to_string())),
            cell(&change.before.to_string()),
            cell(&change.after.to_string()),
            cell(&change.why)
        )
    };
    let more = plan.changes.len().saturating_sub(ROWS);
    let more = if more > 0 { format!("<p>and {more} more, as text</p>") } else { String::new() };
    format!(
        "<div class=\"picture\" tabindex=\"0\"><table><caption>Changes, in the order in which they are made</caption>\
         <thead><tr><th scope=\"col\">what</th><th scope=\"col\">now</th><th scope=\"col\">planned</th>\
         <th scope=\"col\">why</th></tr></thead><tbody>{}</tbody></table></div>{more}{words}",
        plan.changes.iter().take(ROWS).map(row).collect::<String>()
    )
}

/// The verdict, and the figures that it is from.
pub(super) fn trial(trial: &TrialReport) -> String {
    let class = match trial.verdict {
        Verdict::Worse => "critical",
        _ => "info",
    };
    let words = plain(&text::trial(trial));
    let first = words.lines().next().unwrap_or_default();
    format!("<p class=\"verdict {class}\">{}</p>{}", escape(first), pre(&words))
}
