//! The evidence of `diagnose` besides facts: what its instruments measured (`together`), or files that they wrote
//! earlier.
//!
//! Input: the measurements, or the files. Output: the measurement of each instrument, or why there is none.

use crate::failure::say;
use anyhow::{Context, anyhow, bail};
use nearpath_diagnose::Evidence;
use nearpath_instruments::stages::zoom;
use nearpath_model::accepts::{ACCEPT_MEASUREMENT_SCHEMA, AcceptMeasurement};
use nearpath_model::answers::{ANSWER_MEASUREMENT_SCHEMA, AnswerMeasurement};
use nearpath_model::drops::{DROP_MEASUREMENT_SCHEMA, DropMeasurement};
use nearpath_model::locality::{LOCALITY_SCHEMA, Locality};
use nearpath_model::memory::{MEMORY_MEASUREMENT_SCHEMA, MemoryMeasurement};
use nearpath_model::tcp::{TCP_MEASUREMENT_SCHEMA, TcpMeasurement};
use nearpath_model::vm::{VM_MEASUREMENT_SCHEMA, VmMeasurement};
use nearpath_model::{
    Diagnosis, MEASUREMENT_SCHEMA, Measurement, PathKind, PathLatency,
    SCHEDULED_TRANSMISSION_SCHEMA, ScheduledTransmission, WORKERS_SCHEMA, Workers,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The measurement of each instrument; `None` for those not requested.
#[derive(Debug, Default)]
pub struct Measured {
    /// Of `stages`, or why not.
    pub stages: Option<Result<Measurement, String>>,
    /// Of `drops`, or why not.
    pub drops: Option<Result<DropMeasurement, String>>,
    /// Of `locality`, or why not.
    pub locality: Option<Result<Locality, String>>,
    /// Of `accepts`, or why not.
    pub accepts: Option<Result<AcceptMeasurement, String>>,
    /// Of `answers`, or why not.
    pub answers: Option<Result<AnswerMeasurement, String>>,
    /// Of `tcp`, or why not.
    pub tcp: Option<Result<TcpMeasurement, String>>,
    /// Of `memory`, or why not.
    pub memory: Option<Result<MemoryMeasurement, String>>,
    /// Of `workers`, or why not.
    pub workers: Option<Result<Workers, String>>,
    /// Of `vm`, or why not.
    pub vm: Option<Result<VmMeasurement, String>>,
    /// Of `bench latency --txtime`.
    pub txtime: Option<Result<ScheduledTransmission, String>>,
    /// Of two measurements of stages, the one that is not used as evidence.
    pub other_look: Option<Measurement>,
}

impl Measured {
    /// Combines a first and a closer measurement. Stages are those of the closer one, unless it saw too few packets
    /// and the first one saw more; the other instruments have run through, so their totals are in the closer one.
    pub fn after(mut self, first: Self) -> Self {
        let Some(Ok(first)) = first.stages else { return self };
        self.other_look = match &mut self.stages {
            Some(Ok(closer)) => {
                let (seen, before) = (closer.packets.started, first.packets.started);
                let few = seen < zoom::ENOUGH_PACKETS && before > seen;
                Some(if few {
                    std::mem::replace(closer, with_watch_of(first, closer))
                } else {
                    first
                })
            }
            refused => {
                if let Some(Err(reason)) = refused {
                    say(&format!("cannot measure more stages: {reason}"));
                }
                *refused = Some(Ok(first));
                None
            }
        };
        self
    }

    /// The measurements that there are.
    pub fn evidence(&self) -> Evidence<'_> {
        fn of<T>(measured: &Option<Result<T, String>>) -> Option<&T> {
            measured.as_ref()?.as_ref().ok()
        }
        Evidence {
            stages: of(&self.stages),
            drops: of(&self.drops),
            locality: of(&self.locality),
            accepts: of(&self.accepts),
            answers: of(&self.answers),
            tcp: of(&self.tcp),
            memory: of(&self.memory),
            workers: of(&self.workers),
            vm: of(&self.vm),
            txtime: of(&self.txtime),
        }
    }

    /// Why measurements are missing, by instrument.
    fn reasons(&self) -> Vec<(&'static str, &str)> {
        fn of<'a, T>(
            name: &'static str,
            measured: &'a Option<Result<T, String>>,
        ) -> Option<(&'static str, &'a str)> {
            Some((name, measured.as_ref()?.as_ref().err()?.as_str()))
        }
        let all = [
            of(STAGES, &self.stages),
            of(DROPS, &self.drops),
            of(LOCALITY, &self.locality),
            of(ACCEPTS, &self.accepts),
            of(ANSWERS, &self.answers),
            of(CONNECTIONS, &self.tcp),
            of(MEMORY, &self.memory),
            of(WORKERS, &self.workers),
            of(VMS, &self.vm),
        ];
        all.into_iter().flatten().collect()
    }

    /// Adds to a diagnosis what could not be measured, and the measurement that was not used.
    pub fn note(self, mut diagnosis: Diagnosis) -> Diagnosis {
        diagnosis.other_look.clone_from(&self.other_look);
        let reasons = self.reasons();
        let Evidence { stages, locality, accepts, tcp, .. } = self.evidence();
        let no_packets = stages.is_none() && locality.is_none() && accepts.is_none();
        match reasons.first() {
            Some((_, reason)) if no_packets && tcp.is_none() => diagnosis.not_measured(reason),
            // Sockets can be read without privilege; packets cannot, for one reason.
            Some((_, reason)) if no_packets => diagnosis.not_measured_by(PACKETS, reason),
            _ => reasons.iter().rev().fold(diagnosis, |diagnosis, (instrument, reason)| {
                diagnosis.not_measured_by(instrument, reason)
            }),
        }
    }
}

/// The first measurement, with what the watch has seen by the end of the closer one: it went on.
fn with_watch_of(first: Measurement, closer: &Measurement) -> Measurement {
    if closer.watch.is_none() {
        return first;
    }
    let is_watch = |path: &&PathLatency| path.kind == PathKind::Watch;
    let stages = first.paths.iter().filter(|path| !is_watch(path));
    Measurement {
        paths: closer.paths.iter().filter(is_watch).chain(stages).cloned().collect(),
        watch: closer.watch.clone(),
        slow: closer.slow,
        outliers: closer.outliers.clone(),
        budget_totals: closer.budget_totals.clone(),
        ..first
    }
}

const PACKETS: &str = "packets";
const STAGES: &str = "stages";
const DROPS: &str = "drops";
const LOCALITY: &str = "packets' CPUs";
const ACCEPTS: &str = "accepts";
const ANSWERS: &str = "answers";
const CONNECTIONS: &str = "TCP connections";
const MEMORY: &str = "memory and its moves";
const WORKERS: &str = "workers";
const VMS: &str = "packets into virtual machines";

/// Reads earlier measurements from files that `measure … --json` wrote.
///
/// # Errors
/// A file cannot be read or is not such a file, or two files are of the same instrument.
pub fn read(files: &[PathBuf]) -> anyhow::Result<Measured> {
    let mut measured = Measured::default();
    for file in files {
        measured.add(file).with_context(|| format!("cannot use {}", file.display()))?;
    }
    Ok(measured)
}

/// The document in a file; with one per interval and then the total, the last.
fn document_of(mut file: impl Read) -> anyhow::Result<Value> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let documents = serde_json::Deserializer::from_slice(&text).into_iter::<Value>();
    let last = documents.last().ok_or_else(|| anyhow!("the file is empty"))?;
    last.map_err(|error| anyhow!("not valid JSON: {error}"))
}

/// Reads to its end what `measure stages --json` wrote, in this kernel or in a guest's.
///
/// # Errors
/// The file cannot be read or is not such a file.
pub fn read_stages(file: impl Read) -> anyhow::Result<Measurement> {
    let document = document_of(file)?;
    if document.get("spans").is_none() {
        bail!("not an output of 'measure stages' with --json");
    }
    known(document, MEASUREMENT_SCHEMA)
}

/// Reads what `measure vm --json` wrote.
///
/// # Errors
/// The file cannot be read or is not such a file.
pub fn read_vm(file: &Path) -> anyhow::Result<VmMeasurement> {
    let document = document_of(File::open(file)?)?;
    if document.get("vms").is_none() || document.get("started").is_none() {
        bail!("not an output of 'measure vm' with --json");
    }
    known(document, VM_MEASUREMENT_SCHEMA)
}

impl Measured {
    fn add(&mut self, file: &Path) -> anyhow::Result<()> {
        let document = document_of(File::open(file)?)?;
        let has = |field: &str| document.get(field).is_some();
        if has("asked_rate_per_s") {
            let Some(scheduled) = document.get("scheduled").cloned() else {
                bail!("'bench latency' measured without --txtime: no finding follows from it");
            };
            return put(&mut self.txtime, scheduled, SCHEDULED_TRANSMISSION_SCHEMA);
        }
        if has("spans") {
            put(&mut self.stages, document, MEASUREMENT_SCHEMA)
        } else if has("drops") && has("not_packets") {
            put(&mut self.drops, document, DROP_MEASUREMENT_SCHEMA)
        } else if has("listeners") && has("connections") {
            put(&mut self.tcp, document, TCP_MEASUREMENT_SCHEMA)
        } else if has("servers") && has("observed_s") {
            put(&mut self.answers, document, ANSWER_MEASUREMENT_SCHEMA)
        } else if has("listeners") {
            put(&mut self.accepts, document, ACCEPT_MEASUREMENT_SCHEMA)
        } else if has("method") && has("places") {
            put(&mut self.locality, document, LOCALITY_SCHEMA)
        } else if has("processes") && has("moves") {
            put(&mut self.memory, document, MEMORY_MEASUREMENT_SCHEMA)
        } else if has("processes") && has("isolated_by_cgroups") {
            put(&mut self.workers, document, WORKERS_SCHEMA)
        } else if has("vms") && has("started") {
            put(&mut self.vm, document, VM_MEASUREMENT_SCHEMA)
        } else {
            bail!(
                "not an output of 'measure stages', 'drops', 'locality', 'accepts', 'answers', 'tcp', 'memory', 'workers' or 'vm' with --json, nor of 'bench latency --txtime'"
            )
        }
    }
}

fn put<T: DeserializeOwned>(
    to: &mut Option<Result<T, String>>,
    document: Value,
    known: u32,
) -> anyhow::Result<()> {
    let measured = self::known(document, known)?;
    if to.is_some() {
        bail!("another file is of the same instrument");
    }
    *to = Some(Ok(measured));
    Ok(())
}

/// What a document holds, of this schema or an older one.
fn known<T: DeserializeOwned>(document: Value, known: u32) -> anyhow::Result<T> {
    let schema = document.get("schema").and_then(Value::as_u64).unwrap_or(0);
    if schema > u64::from(known) {
        bail!("written by a newer nearpath (schema {schema})");
    }
    // As text again: what reads every measurement from a `Value` would be 0.4 MB more of the program.
    serde_json::from_slice(&serde_json::to_vec(&document)?).map_err(|error| {
        // Where in that text is of no use.
        let error = error.to_string();
        anyhow!("{}", error.split(" at line ").next().unwrap_or(&error).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Packets;

    fn json(value: &impl serde::Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }

    fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn files_are_recognized_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let stages = file(&dir, "a", &json(&Measurement::default()));
        let accepts = file(&dir, "b", &json(&AcceptMeasurement::default()));
        // One line for an interval, then the total.
        let whole = Locality { duration_s: 7.0, ..Locality::default() };
        let lines = format!("{{\"from_s\":0}}\n{}\n", json(&whole));
        let locality = file(&dir, "c", &lines);
        let tcp = TcpMeasurement { total: 3, ..TcpMeasurement::default() };
        let connections = file(&dir, "t", &json(&tcp));
        let placed = MemoryMeasurement { small_processes: 3, ..MemoryMeasurement::default() };
        let memory = file(&dir, "m", &json(&placed));
        let polling = Workers { lost_ns: 3, ..Workers::default() };
        let workers = file(&dir, "w", &json(&polling));
        let probes = ScheduledTransmission { sent: 3, ..ScheduledTransmission::default() };
        let report = serde_json::json!({"asked_rate_per_s": 5, "scheduled": probes});
        let txtime = file(&dir, "x", &json(&report));
        let files = [stages.clone(), accepts, locality, connections, memory, workers, txtime];
        let measured = read(&files).unwrap();
        let evidence = measured.evidence();
        assert_eq!(evidence.txtime, Some(&probes));
        assert_eq!(evidence.workers, Some(&polling));
        assert_eq!(evidence.memory, Some(&placed));
        assert_eq!(evidence.tcp, Some(&tcp));
        assert_eq!(evidence.locality, Some(&whole));
        assert!(evidence.stages.is_some() && evidence.accepts.is_some());

        let newer = json(&Locality { schema: LOCALITY_SCHEMA + 1, ..Locality::default() });
        for (text, says) in [
            ("", "is empty"),
            ("{", "not valid JSON"),
            ("{}", "not an output"),
            ("[1]", "not an output"),
            (newer.as_str(), "newer nearpath"),
            ("{\"listeners\": 7}", "invalid type"),
            ("{\"asked_rate_per_s\": 5}", "without --txtime"),
        ] {
            let error = read(&[file(&dir, "d", text)]).unwrap_err();
            assert!(format!("{error:#}").contains(says), "{text}: {error:#}");
        }
        let twice = read(&[stages.clone(), stages]).unwrap_err();
        assert!(format!("{twice:#}").contains("is of the same instrument"), "{twice:#}");
    }

    #[test]
    fn the_closer_measurement_is_evidence_unless_the_first_saw_the_packets() {
        let looked = |started| {
            let packets = Packets { started, ..Packets::default() };
            let stages = Some(Ok(Measurement { packets, ..Measurement::default() }));
            Measured { stages, ..Measured::default() }
        };
        let started = |m: Option<&Measurement>| m.map(|m| m.packets.started);
        for (first, closer, evidence, other) in [
            (5_000, 100, 100, Some(5_000)),
            (5_000, 99, 5_000, Some(99)),
            (5_000, 0, 5_000, Some(0)),
            (7, 8, 8, Some(7)),
            (0, 0, 0, Some(0)),
        ] {
            let measured = looked(closer).after(looked(first));
            assert_eq!(started(measured.evidence().stages), Some(evidence), "{first} {closer}");
            assert_eq!(started(measured.other_look.as_ref()), other, "{first} {closer}");
            let noted = measured.note(nearpath_diagnose::diagnose(&Default::default(), None, None));
            assert_eq!(started(noted.other_look.as_ref()), other);
        }
        // Either may be refused.
        let refused = || Measured { stages: Some(Err("no".to_owned())), ..Measured::default() };
        let first = refused().after(looked(5));
        assert_eq!((started(first.evidence().stages), first.other_look), (Some(5), None));
        let closer = looked(5).after(refused());
        assert_eq!((started(closer.evidence().stages), closer.other_look), (Some(5), None));
    }

    #[test]
    fn missing_measurements_are_reported_once_or_by_instrument() {
        let diagnosis = || nearpath_diagnose::diagnose(&Default::default(), None, None);
        let notes = |measured: Measured| {
            let noted = measured.note(diagnosis());
            let notes = noted.not_checked.into_iter().filter(|n| n.check == "measurement");
            notes.map(|note| note.reason).collect::<Vec<_>>()
        };
        let refused = || "no BTF".to_owned();
        let nothing = Measured {
            stages: Some(Err(refused())),
            locality: Some(Err(refused())),
            accepts: Some(Err("other".to_owned())),
            ..Measured::default()
        };
        assert_eq!(notes(nothing), ["nothing was measured: no BTF"]);
        let some = Measured {
            stages: Some(Ok(Measurement::default())),
            locality: Some(Err(refused())),
            ..Measured::default()
        };
        assert_eq!(notes(some), ["packets' CPUs were not measured: no BTF"]);
        let connections = Measured {
            stages: Some(Err(refused())),
            locality: Some(Err(refused())),
            tcp: Some(Ok(TcpMeasurement::default())),
            ..Measured::default()
        };
        assert_eq!(notes(connections), ["packets were not measured: no BTF"]);
        assert!(notes(Measured::default()).is_empty());
    }
}
