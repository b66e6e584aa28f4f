//! `nearpath fleet plan`: a plan for each host, equal ones together.

use super::super::tune::PlanOptions;
use crate::failure::Failure;
use crate::output;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::Root;
use nearpath_model::Plan;
use nearpath_views::text::{self, PlannedHosts};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// Arguments of `fleet plan`.
#[derive(Debug, Args)]
pub(super) struct Plans {
    /// Snapshots of hosts ('nearpath snapshot')
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<PathBuf>,
    #[command(flatten)]
    options: PlanOptions,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Plans {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut groups: Vec<PlannedHosts> = Vec::new();
        let mut failed: Vec<(String, String)> = Vec::new();
        for file in &self.snapshots {
            match self.plan(file) {
                Ok((host, plan)) => match groups.iter_mut().find(|group| equal(&group.plan, &plan))
                {
                    Some(group) => group.hosts.push(host),
                    None => groups.push(PlannedHosts { hosts: vec![host], plan }),
                },
                Err(error) => failed.push((file.display().to_string(), format!("{error:#}"))),
            }
        }
        // Those with most hosts first, and those without changes last.
        groups.sort_by_key(|group| {
            (group.plan.changes.is_empty(), std::cmp::Reverse(group.hosts.len()))
        });
        if self.json {
            let group = |group: &PlannedHosts| json!({ "hosts": group.hosts, "plan": group.plan });
            let reason =
                |(file, why): &(String, String)| json!({ "snapshot": file, "reason": why });
            output::json(&json!({
                "schema": SCHEMA,
                "groups": groups.iter().map(group).collect::<Vec<_>>(),
                "failed": failed.iter().map(reason).collect::<Vec<_>>(),
            }))?;
        } else {
            output::text(&text::fleet_plan(&groups, &failed))?;
        }
        match failed.len() {
            0 => Ok(()),
            number => Err(Failure::Error(anyhow!(
                "{number} of {} snapshots have no plan",
                self.snapshots.len()
            ))),
        }
    }

    /// The name of a snapshot's host, and its plan.
    fn plan(&self, file: &Path) -> anyhow::Result<(String, Plan)> {
        let root = Root::snapshot(file).context("cannot use the snapshot")?;
        crate::source::not_empty(&root).context("cannot use the snapshot")?;
        let plan = self.options.plan(&root, false)?;
        let name = root.text("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
        let name = name.filter(|name| !name.is_empty());
        Ok((name.unwrap_or_else(|| file.display().to_string()), plan))
    }
}

/// Whether two plans set the same things to the same values, and explain it with the same notes.
fn equal(a: &Plan, b: &Plan) -> bool {
    let alike = a.changes.len() == b.changes.len()
        && a.changes.iter().zip(&b.changes).all(|(a, b)| {
            (a.target.to_string(), a.after.to_string(), a.reboot, a.optional)
                == (b.target.to_string(), b.after.to_string(), b.reboot, b.optional)
        });
    alike && a.goal == b.goal
}
