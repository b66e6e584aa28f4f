//! Answers of the kernel to requests that are no files, saved as JSON beside the files: one file
//! `nearpath/answers/<key>.json` for each, with the answer or the reason of its refusal.

use super::ReadError;
use super::fault::Fault;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt::Write as _;

/// Longest name of an answer's file that every file system takes, without `.json`.
const MAX_NAME: usize = 240;

/// What is saved of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Saved<T> {
    /// The kernel's answer.
    Answer(T),
    /// The kernel refused.
    Refused {
        /// The request, in words.
        what: String,
        /// What the kernel said.
        reason: String,
        /// Whether what was asked for is simply not there.
        absent: bool,
    },
}

impl<T> Saved<T> {
    /// What is to be saved of a request.
    #[cfg(test)]
    pub fn new(result: Result<T, ReadError>) -> Self {
        match result {
            Ok(answer) => Self::Answer(answer),
            Err(ReadError { what, reason, absent }) => Self::Refused { what, reason, absent },
        }
    }

    /// What the request returned when it was made.
    pub fn result(self) -> Result<T, ReadError> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Refused { what, reason, absent } => Err(ReadError { what, reason, absent }),
        }
    }
}

/// The answer that was saved under a key, through `read`, which reads a file of the tree.
pub(super) fn saved<T: DeserializeOwned>(
    key: &str,
    read: impl FnOnce(&str) -> Result<Vec<u8>, Fault>,
) -> Result<T, ReadError> {
    let path = path(key).map_err(|fault| fault.about(key))?;
    let json = read(&path).map_err(|fault| match fault.absent {
        true => Fault { reason: "no answer to this request was saved".into(), absent: true },
        false => fault,
    });
    let json = json.map_err(|fault| fault.about(key))?;
    serde_json::from_slice::<Saved<T>>(&json)
        .map_err(|error| Fault::new(format!("the saved answer is damaged: {error}")).about(key))?
        .result()
}

/// Where the answer to a key is saved. All that might be unsafe in a file's name is written as in
/// a URL: interfaces may be called anything.
pub(super) fn path(key: &str) -> Result<String, Fault> {
    let mut name = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "%{byte:02X}");
        }
    }
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(Fault::new("no such key can be saved: too long or empty"));
    }
    Ok(format!("/nearpath/answers/{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_safe_names() {
        assert_eq!(
            path("ethtool/eth0.5/x").unwrap(),
            "/nearpath/answers/ethtool%2Feth0%2E5%2Fx.json"
        );
        assert_eq!(path("../é").unwrap(), "/nearpath/answers/%2E%2E%2F%C3%A9.json");
        assert!(path("").is_err() && path(&"x".repeat(300)).is_err());
    }

    #[test]
    fn answers_and_refusals_come_back() {
        let refusal = ReadError { what: "rings".into(), reason: "no".into(), absent: false };
        for result in [Ok(vec![1u64, u64::MAX]), Err(refusal)] {
            let json = serde_json::to_vec(&Saved::new(result.clone())).unwrap();
            assert_eq!(saved::<Vec<u64>>("k", |_| Ok(json)), result);
        }
        let damaged = saved::<u32>("k", |_| Ok(b"{\"answer\":".to_vec())).unwrap_err();
        assert!(damaged.reason.contains("damaged"));
    }
}
