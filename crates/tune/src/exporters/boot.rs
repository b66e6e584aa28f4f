//! A service that runs nearpath at boot to apply a plan, for hosts with nearpath installed: the changes are in the
//! journal, and so known to `nearpath tune status` and `rollback`.
//!
//! Input: settings. Output: the plan, and the service that runs `nearpath tune apply --boot` on it.

use super::setting::Setting;
use super::{Context, Document, Exporter, sh, systemd};
use nearpath_model::{Crossings, Goal, PLAN_SCHEMA, Plan};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "boot",
    writes: "a service that applies the plan at boot by nearpath, and the plan",
    several: true,
    carries,
    render,
};

const SERVICE: &str = "nearpath-boot.service";
const PLAN: &str = "nearpath-plan.json";
/// Where to install the plan.
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
    // Plain data with string keys.
    let text = serde_json::to_string_pretty(&plan).unwrap_or_default();
    let title = [
        format!(
            "Applies a plan of nearpath at boot. Install {PLAN} as {INSTALLED} and this file in"
        ),
        format!("/etc/systemd/system, then run 'systemctl enable --now {SERVICE}'. Changes are in"),
        "nearpath's journal: see 'nearpath tune status' and 'nearpath tune rollback'.".to_owned(),
    ];
    let all: Vec<&Setting<'_>> = settings.iter().collect();
    let command = format!("nearpath tune apply --boot {INSTALLED}");
    let unit = systemd::unit(&all, context, &title, &command);
    vec![
        Document { name: SERVICE.to_owned(), text: unit, program: false },
        Document { name: PLAN.to_owned(), text: format!("{text}\n"), program: false },
    ]
}
