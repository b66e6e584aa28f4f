//! Which VLAN priority a VLAN gives to what it sends (`egress-qos-map`).
//!
//! Input: a VLAN, and an [`EgressMap`] as text. It is read from the kernel (rtnetlink) and set by ip(8), without a shell, with
//! words that are made of typed values. ip(8) adds to the map: an entry is removed by mapping its priority to 0.

use crate::TuneError;
use crate::files::Files;
use crate::setting::Setting;
use nearpath_host::interface_vlan_egress;
use nearpath_model::{EgressMap, VlanEgress};
use std::process::{Command, Stdio};

/// Most bytes of ip's message in an error.
const SAID: usize = 300;

/// The setting of a target.
///
/// # Errors
/// It belongs to another network namespace, or is invalid.
pub(crate) fn setting<'a>(
    target: &'a VlanEgress,
    files: &'a Files,
) -> Result<EgressSetting<'a>, TuneError> {
    files.is_of_here(target, target.netns)?;
    // The journal is untrusted input.
    if !nearpath_model::is_interface_name(&target.vlan) {
        return Err(TuneError::Refused(format!("{target:?} is not an interface")));
    }
    Ok(EgressSetting { target, files })
}

/// The map of a VLAN.
pub(crate) struct EgressSetting<'a> {
    target: &'a VlanEgress,
    files: &'a Files,
}

impl EgressSetting<'_> {
    fn parsed(&self, value: &str) -> Result<EgressMap, TuneError> {
        value.parse().map_err(|()| {
            TuneError::Refused(format!(
                "{}: {value:?} is not a map as 3:3,5:5, or none",
                self.target
            ))
        })
    }

    fn now(&self) -> Result<Option<EgressMap>, TuneError> {
        let now = interface_vlan_egress(&self.target.vlan)
            .map_err(|error| TuneError::kernel(format!("reading {}", self.target), error))?;
        Ok(now.map(EgressMap))
    }
}

impl Setting for EgressSetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.parsed(value).map(drop)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        Ok(self.now()?.map(|map| map.to_string()))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let entries = self.now()?.unwrap_or_default().entries_to(&self.parsed(value)?);
        if entries.is_empty() {
            return Ok(());
        }
        let vlan = &self.target.vlan;
        let words = ["link", "set", "dev", vlan, "type", "vlan", "egress-qos-map"];
        let words = words.into_iter().chain(entries.iter().map(String::as_str));
        let output = Command::new("ip").args(words).stdin(Stdio::null()).output();
        let step = || format!("ip link set {vlan} type vlan egress-qos-map {}", entries.join(" "));
        let output = output.map_err(|error| {
            TuneError::kernel(step(), format!("{error} (is iproute2 installed?)"))
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        Err(TuneError::kernel(step(), said.chars().take(SAID).collect::<String>()))
    }

    fn same(&self, now: &str, value: &str) -> bool {
        now == value
    }

    fn is_another(&self) -> bool {
        self.files.is_another_interface(&self.target.vlan, &self.target.id)
    }
}
