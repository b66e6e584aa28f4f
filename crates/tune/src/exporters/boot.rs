//! A service by which nearpath itself makes the plan at boot, for hosts that have nearpath: what it makes is
//! in the journal, so that `nearpath tune status` and `rollback` know of it.
//!
//! In go settings, out come the plan and the service that gives it to `nearpath tune apply --boot`.

use super::setting::Setting;
use super::{Context, Document, Exporter, sh, systemd};
use nearpath_model::{Crossings, Goal, PLAN_SCHEMA, Plan};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "boot",
    writes: "a service by which nearpath applies the plan at boot, and the plan",
    several: true,
    carries,
    render,
};

const SERVICE: &str = "nearpath-boot.service";
const PLAN: &str = "nearpath-plan.json";
/// Where the plan is to be installed.
const INSTALLED: &str = "/etc/nearpath/plan.json";

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.change.target.lost_for_good() {
        Some(reason) => Err(reason),
        None => sh::carries(setting),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let plan = Plan {
        schema: PLAN_SCHEMA,
        goal: Goal::default(),
        boot: None,
        made_ticks: None,
        netns: None,
        changes: settings.iter().map(|setting| setting.change.clone()).collect(),
        now: Crossings::default(),
        predicted: Crossings::default(),
        notes: context.left_out.clone(),
    };
    // Plain data with keys of text.
    let text = serde_json::to_string_pretty(&plan).unwrap_or_default();
    let title = [
        format!("Applies a plan of nearpath at boot. Install {PLAN} as {INSTALLED}, and this in"),
        format!("/etc/systemd/system; then 'systemctl enable --now {SERVICE}'. Its changes are in"),
        "nearpath's journal: 'nearpath tune status' shows it, 'nearpath tune rollback' undoes it."
            .to_owned(),
    ];
    let all: Vec<&Setting<'_>> = settings.iter().collect();
    let command = format!("nearpath tune apply --boot {INSTALLED}");
    let unit = systemd::unit(&all, context, &title, &command);
    vec![
        Document { name: SERVICE.to_owned(), text: unit, program: false },
        Document { name: PLAN.to_owned(), text: format!("{text}\n"), program: false },
    ]
}
