//! Answers of Prometheus' HTTP API to instant queries: <https://prometheus.io/docs/prometheus/latest/querying/api/>.
//! Several may follow each other. They are untrusted: size, series and labels are limited.

use serde::Deserialize;
use std::collections::BTreeMap;

/// A selector of all series that are read.
pub const SELECTOR: &str = "{__name__=~\"nearpath_finding_(active|cost_seconds)\
    |nearpath:late_seconds:rate|nearpath:path_latency_seconds:p99\"}";

/// Longest input in bytes: 10,000 hosts with a hundred series each.
pub const BYTES_MAX: usize = 512 << 20;
/// Most series of all answers.
const SERIES_MAX: usize = 5_000_000;
/// Longest label that is kept; hosts and subjects are much shorter.
const LABEL_MAX: usize = 1024;

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Too long.
    #[error("it is longer than {} MiB", BYTES_MAX >> 20)]
    Long,
    /// Too many series.
    #[error("it has more than {SERIES_MAX} series: select fewer")]
    Many,
    /// No JSON of the API.
    #[error("it is not an answer of Prometheus' HTTP API: {0}")]
    Form(String),
    /// Prometheus refused the query.
    #[error("Prometheus answered with an error: {0}")]
    Refused(String),
    /// Another kind of answer.
    #[error("it is a {0}, not a vector: use /api/v1/query with a selector")]
    Kind(String),
    /// Nothing was selected.
    #[error("it has no series of nearpath: query {SELECTOR}")]
    Empty,
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    // Of a scalar it is no list.
    #[serde(default)]
    result: serde_json::Value,
}

#[derive(Deserialize)]
struct Written {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    value: Option<(f64, String)>,
}

/// A series with its last value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    labels: BTreeMap<String, String>,
    /// Its value; a stale or unknown one is not finite.
    pub value: f64,
}

impl Series {
    /// A label; empty as in Prometheus if there is none.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// All series of all answers.
pub(super) fn series(bytes: &[u8]) -> Result<Vec<Series>, AnswerError> {
    if bytes.len() > BYTES_MAX {
        return Err(AnswerError::Long);
    }
    let mut all = Vec::new();
    for answer in serde_json::Deserializer::from_slice(bytes).into_iter::<Answer>() {
        let answer = answer.map_err(|error| AnswerError::Form(error.to_string()))?;
        if answer.status != "success" {
            let why: String = answer.error.unwrap_or_default().chars().take(LABEL_MAX).collect();
            return Err(AnswerError::Refused(why));
        }
        let Some(data) = answer.data else { return Err(AnswerError::Form("no data".to_owned())) };
        if data.kind != "vector" {
            return Err(AnswerError::Kind(data.kind.chars().take(32).collect()));
        }
        let serde_json::Value::Array(results) = data.result else {
            return Err(AnswerError::Form("the result is no list".to_owned()));
        };
        if all.len() + results.len() > SERIES_MAX {
            return Err(AnswerError::Many);
        }
        for result in results {
            let read: Written = serde_json::from_value(result)
                .map_err(|error| AnswerError::Form(error.to_string()))?;
            all.push(read.into());
        }
    }
    Ok(all)
}

impl From<Written> for Series {
    fn from(written: Written) -> Self {
        let short = |(name, value): (String, String)| {
            let value = if value.len() > LABEL_MAX {
                value.chars().take(LABEL_MAX / 4).collect()
            } else {
                value
            };
            (name, value)
        };
        // A native histogram has no value.
        let value = written.value.and_then(|(_, text)| text.parse().ok()).unwrap_or(f64::NAN);
        Self { labels: written.metric.into_iter().map(short).collect(), value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        series(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn several_answers_follow_each_other() {
        let one = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"__name__":"a","instance":"x"},"value":[1.5,"2.5"]},{"metric":{},"histogram":[1,{}]}]}}"#;
        let read = series(format!("{one}\n{one}").as_bytes()).unwrap();
        assert_eq!(read.len(), 4);
        assert_eq!(
            (read[0].label("instance"), read[0].label("job"), read[0].value),
            ("x", "", 2.5)
        );
        assert!(read[1].value.is_nan());
        assert_eq!(series(b""), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_vector_is_refused_with_the_reason() {
        assert!(error("<html>").contains("not an answer of Prometheus"));
        assert!(error(r#"{"status":"error","error":"parse error"}"#).contains("parse error"));
        let kind = |kind: &str, result: &str| {
            error(&format!(
                r#"{{"status":"success","data":{{"resultType":"{kind}","result":{result}}}}}"#
            ))
        };
        assert!(kind("matrix", "[]").contains("it is a matrix, not a vector"));
        assert!(kind("scalar", "[1,\"2\"]").contains("it is a scalar"));
        assert!(kind("vector", "{}").contains("no list"));
        assert!(kind("vector", "[{\"metric\":5}]").contains("not an answer"));
        assert!(error(&format!("{}1", "[".repeat(5_000))).contains("not an answer"));
    }
}
