//! Settings in Open vSwitch's database: read and changed by its own protocol, one transaction each, so that a change is
//! there as a whole or not at all.
//!
//! After a change ovs-vswitchd reports that it has taken it (`cur_cfg` reaches `next_cfg`), as `ovs-vsctl` waits for it. One that
//! is not running takes it when it starts.

use crate::TuneError;
use crate::setting::Setting;
use nearpath_host::Root;
use nearpath_host::workers::ovsdb::{SOCKET, map, transact, uuid};
use nearpath_model::{OVS_UNSET, OvsSetting};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Time limit of a transaction.
const TIME: Duration = Duration::from_secs(5);
/// How long ovs-vswitchd may take to start or stop threads.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same setting, with the row that it is in now.
pub(crate) fn prepared(setting: OvsSetting) -> OvsSetting {
    let row = OvsValue { setting: &setting }.row().ok().flatten().map(|(row, _)| row);
    OvsSetting { row, ..setting }
}

/// A setting of this host's Open vSwitch.
#[derive(Debug)]
pub(crate) struct OvsValue<'a> {
    pub setting: &'a OvsSetting,
}

impl OvsValue<'_> {
    fn table(&self) -> &'static str {
        if self.setting.interface.is_some() { "Interface" } else { "Open_vSwitch" }
    }

    /// The condition that selects its row.
    fn condition(&self) -> Value {
        match &self.setting.interface {
            Some(name) => json!([["name", "==", name]]),
            None => json!([]),
        }
    }

    /// The UUID of its row, and its value; `None` if there is no such interface.
    fn row(&self) -> Result<Option<(String, String)>, TuneError> {
        let select = json!({"op": "select", "table": self.table(), "where": self.condition(),
            "columns": ["_uuid", "other_config"]});
        let results =
            transact(SOCKET, vec![select], TIME).map_err(|e| self.refusal("reading", &e))?;
        let rows = results.first().and_then(|result| result.get("rows")?.as_array());
        let rows = rows.ok_or_else(|| self.refusal("reading", &"the reply has no rows"))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (Some(id), Some(values)) = (uuid(row), row.get("other_config")) else {
            return Err(self.refusal("reading", &"the reply has no other_config"));
        };
        let value = map(values).remove(self.setting.key.name());
        Ok(Some((id, value.unwrap_or_else(|| OVS_UNSET.to_owned()))))
    }

    /// Waits until a running ovs-vswitchd has taken a configuration.
    fn wait(&self, configuration: u64) -> Result<(), TuneError> {
        if !is_running() {
            return Ok(());
        }
        let wait = json!({"op": "wait", "table": "Open_vSwitch", "columns": ["_uuid"], "until": "!=", "rows": [],
            "where": [["cur_cfg", ">=", configuration]], "timeout": PATIENCE.as_millis()});
        let done = transact(SOCKET, vec![wait], PATIENCE + TIME);
        done.map(drop).map_err(|error| {
            self.refusal(
                "changing",
                &format!("{error}: ovs-vswitchd has not taken it; see its log"),
            )
        })
    }

    fn refusal(&self, doing: &str, error: &dyn ToString) -> TuneError {
        let more =
            if fs::exists(SOCKET).unwrap_or(true) { "" } else { "; is Open vSwitch running?" };
        TuneError::kernel(
            format!("{doing} {}", self.setting),
            format!("{}{more}", error.to_string()),
        )
    }
}

/// Whether an ovs-vswitchd accepts connections on its control socket. One that was killed leaves the file.
fn is_running() -> bool {
    let entries = Root::live().list("/run/openvswitch").unwrap_or_default();
    let mut sockets = entries
        .iter()
        .map(|entry| &entry.name)
        .filter(|name| name.starts_with("ovs-vswitchd.") && name.ends_with(".ctl"));
    sockets.any(|name| UnixStream::connect(format!("/run/openvswitch/{name}")).is_ok())
}

impl Setting for OvsValue<'_> {
    fn name(&self) -> String {
        self.setting.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let refused = |must| TuneError::Refused(format!("{}: {value:?} {must}", self.setting));
        self.setting.key.check(value).map_err(refused)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        Ok(self.row()?.map(|(_, value)| value))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let key = self.setting.key.name();
        // Inserting does not replace.
        let mut mutations = vec![json!(["other_config", "delete", ["set", [key]]])];
        if value != OVS_UNSET {
            mutations.push(json!(["other_config", "insert", ["map", [[key, value]]]]));
        }
        let mutate = |table: &str, condition: Value, mutations: &[Value]| json!({"op": "mutate", "table": table, "where": condition, "mutations": mutations});
        let operations = vec![
            mutate(self.table(), self.condition(), &mutations),
            mutate("Open_vSwitch", json!([]), &[json!(["next_cfg", "+=", 1])]),
            json!({"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"]}),
        ];
        let results =
            transact(SOCKET, operations, TIME).map_err(|e| self.refusal("writing", &e))?;
        if results.first().and_then(|result| result.get("count")?.as_u64()) != Some(1) {
            return Err(self.refusal("writing", &"it no longer exists"));
        }
        let next =
            results.get(2).and_then(|result| result.get("rows")?.get(0)?.get("next_cfg")?.as_u64());
        let next = next.ok_or_else(|| self.refusal("writing", &"the reply has no next_cfg"))?;
        self.wait(next)
    }

    fn same(&self, a: &str, b: &str) -> bool {
        a == b || (self.setting.key.is_mask() && bits(a).is_some() && bits(a) == bits(b))
    }

    fn is_another(&self) -> bool {
        let Some(row) = &self.setting.row else { return false };
        matches!(self.row(), Ok(Some((now, _))) if now != *row)
    }

    fn may_be_replaced(&self, now: &str, force: bool) -> Result<(), TuneError> {
        let is_plain = now.len() <= 4096 && !now.chars().any(char::is_control);
        if is_plain || force {
            return Ok(());
        }
        Err(TuneError::Refused(format!("{}: its value is not one of Open vSwitch's", self.setting)))
    }
}

/// The digits of a mask that count; `None` if it is none.
fn bits(mask: &str) -> Option<String> {
    let digits = mask.strip_prefix("0x").or_else(|| mask.strip_prefix("0X")).unwrap_or(mask);
    let is_mask = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_mask.then(|| digits.trim_start_matches('0').to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::OvsKey;

    #[test]
    fn masks_are_compared_as_numbers_and_other_values_as_text() {
        let mask = OvsSetting::of_switch(OvsKey::PmdCpuMask);
        let its = OvsValue { setting: &mask };
        assert!(its.same("0x0F", "f") && its.same("30", "30") && !its.same("30", "3"));
        assert!(!its.same("unset", "0") && !its.same("", "0") && its.same("unset", "unset"));
        let memory = OvsSetting::of_switch(OvsKey::DpdkSocketMem);
        assert!(!OvsValue { setting: &memory }.same("0512", "512"));
    }
}
