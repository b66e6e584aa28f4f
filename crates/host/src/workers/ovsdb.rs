//! Open vSwitch's configuration, from its database (`/run/openvswitch/db.sock`; RFC 7047 and ovs-vswitchd.conf.db(5)).
//!
//! Output: [`OvsDatabase`]: what decides which thread polls which queue. Also the transactions with which the executor
//! changes it.

use super::rpc;
use crate::{ReadError, Root, is_pci_address, network_function};
use nearpath_model::NodeId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The database's socket.
pub const SOCKET: &str = "/run/openvswitch/db.sock";
/// The name of the database.
const DATABASE: &str = "Open_vSwitch";
/// Time limit of reading it.
const TIME: Duration = Duration::from_secs(2);
/// Maximum number of interfaces that are read.
const MAX: usize = 65_536;

/// The configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OvsDatabase {
    /// UUID of the switch's row.
    pub row: String,
    /// `other_config` of the switch.
    pub other_config: BTreeMap<String, String>,
    /// Whether DPDK has been started.
    pub dpdk_initialized: bool,
    /// Interfaces by name.
    pub interfaces: BTreeMap<String, OvsInterface>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OvsInterface {
    /// UUID of its row.
    pub row: String,
    /// `dpdk`, `dpdkvhostuserclient`, `afxdp`, …; empty for the kernel's.
    pub kind: String,
    /// Its options.
    pub options: BTreeMap<String, String>,
    /// Its `other_config`.
    pub other_config: BTreeMap<String, String>,
    /// What Open vSwitch says of it.
    pub status: BTreeMap<String, String>,
    /// Why it does not work.
    pub error: Option<String>,
    /// Its counters: `rx_packets`, `rx_q0_packets`, `rx_missed_errors`.
    #[serde(default)]
    pub statistics: BTreeMap<String, u64>,
}

impl OvsInterface {
    /// Its node: of a PCI function as the kernel has it; else as Open vSwitch has it, which has 0 for an unknown one.
    pub fn node(&self, root: &Root) -> Option<NodeId> {
        let device = self.options.get("dpdk-devargs").map(|args| args.split(',').next());
        if let Some(address) = device.flatten().filter(|address| is_pci_address(address)) {
            return network_function(root, address).ok()?.numa_node;
        }
        let node = self.status.get("numa_id").or_else(|| self.options.get("numa_id"))?;
        node.parse().ok().map(NodeId)
    }
}

/// Reads it.
///
/// # Errors
/// It does not answer as Open vSwitch's does, in time and size.
pub fn ask(path: &str) -> Result<OvsDatabase, ReadError> {
    let select = |table: &str, columns: &[&str]| json!({"op": "select", "table": table, "where": [], "columns": columns});
    let operations = vec![
        select("Open_vSwitch", &["_uuid", "other_config", "dpdk_initialized"]),
        select(
            "Interface",
            &["_uuid", "name", "type", "options", "other_config", "status", "error", "statistics"],
        ),
    ];
    let results = transact(path, operations, TIME)?;
    parse(&results).ok_or_else(|| ReadError::new(path, "not the reply of Open vSwitch's database"))
}

/// Runs operations as one transaction; returns their results.
///
/// # Errors
/// The database cannot be reached, or refuses one of them: then none has an effect.
pub fn transact(
    path: &str,
    operations: Vec<Value>,
    time: Duration,
) -> Result<Vec<Value>, ReadError> {
    let error = |reason: &str| ReadError::new(path, reason);
    let until = Instant::now() + time;
    let mut stream = UnixStream::connect(path).map_err(|e| error(&e.to_string()))?;
    let mut params = vec![json!(DATABASE)];
    params.extend(operations);
    let result = rpc::call(&mut stream, "transact", &Value::Array(params), until);
    let Value::Array(results) = result.map_err(|e| error(&e))? else {
        return Err(error("the reply has no results"));
    };
    // The result of a failed operation is an object with an error; of those behind it null (RFC 7047, 4.1.3).
    for result in &results {
        if let Some(failed) = result.get("error").and_then(Value::as_str) {
            let details = result.get("details").and_then(Value::as_str).unwrap_or_default();
            return Err(error(
                &format!("{failed} {details}").trim().chars().take(200).collect::<String>(),
            ));
        }
    }
    Ok(results)
}

/// Parses the results of [`ask`]'s operations.
pub fn parse(results: &[Value]) -> Option<OvsDatabase> {
    let rows = |at: usize| results.get(at)?.get("rows")?.as_array();
    let switch = rows(0)?.first()?;
    let interface = |row: &Value| {
        let text = |key: &str| row.get(key).and_then(Value::as_str);
        let interface = OvsInterface {
            row: uuid(row)?,
            kind: text("type")?.to_owned(),
            options: map(row.get("options")?),
            other_config: map(row.get("other_config")?),
            status: map(row.get("status")?),
            error: text("error").map(str::to_owned),
            statistics: row.get("statistics").map(counters).unwrap_or_default(),
        };
        Some((text("name")?.to_owned(), interface))
    };
    Some(OvsDatabase {
        row: uuid(switch)?,
        other_config: map(switch.get("other_config")?),
        dpdk_initialized: switch.get("dpdk_initialized").and_then(Value::as_bool) == Some(true),
        interfaces: rows(1)?.iter().take(MAX).filter_map(interface).collect(),
    })
}

/// The UUID of a row: `["uuid", "…"]`.
pub fn uuid(row: &Value) -> Option<String> {
    row.get("_uuid")?.get(1)?.as_str().map(str::to_owned)
}

/// A map of strings: `["map", [["key", "value"], …]]`.
pub fn map(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.get(1).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let pair =
        |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
    pairs.iter().filter_map(pair).collect()
}

/// Maximum number of counters of an interface.
const MAX_COUNTERS: usize = 4096;

/// A map of counters: `["map", [["rx_packets", 7], …]]`.
fn counters(value: &Value) -> BTreeMap<String, u64> {
    let pairs = value.get(1).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_u64()?));
    pairs.iter().take(MAX_COUNTERS).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_parsed() {
        let results = json!([
            {"rows": [{"_uuid": ["uuid", "a"], "dpdk_initialized": true, "other_config": ["map", [["pmd-cpu-mask", "2"]]]}]},
            {"rows": [
                {"_uuid": ["uuid", "b"], "name": "p1", "type": "dummy-pmd", "options": ["map", [["numa_id", "1"]]],
                 "other_config": ["map", []], "status": ["map", []], "error": ["set", []]},
                {"_uuid": ["uuid", "c"], "name": "p2", "type": "dpdk", "options": ["map", []],
                 "other_config": ["map", []], "status": ["map", [["numa_id", "0"]]], "error": "no such device"},
                {"name": "without a type"}
            ]}
        ]);
        let database = parse(results.as_array().unwrap()).unwrap();
        assert_eq!((database.row.as_str(), database.dpdk_initialized), ("a", true));
        assert_eq!(database.other_config.get("pmd-cpu-mask").map(String::as_str), Some("2"));
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys")).unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let nodes: Vec<_> = database.interfaces.values().map(|its| its.node(&root)).collect();
        assert_eq!(nodes, [Some(NodeId(1)), Some(NodeId(0))]);
        assert_eq!(database.interfaces["p2"].error.as_deref(), Some("no such device"));
        assert_eq!(database.interfaces["p1"].error, None);
        for other in [json!([]), json!([{"rows": []}, {"rows": []}]), json!([1, "x"])] {
            assert_eq!(parse(other.as_array().unwrap()), None);
        }
    }
}
