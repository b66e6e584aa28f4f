//! Answers of the kernel to requests other than files, saved as JSON beside the files: one file
//! `nearpath/answers/<key>.json` per request, with the answer or the error.

use super::ReadError;
use super::fault::Fault;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt::Write as _;

/// Maximum length of an answer's file name that every file system supports, without `.json`.
const MAX_NAME: usize = 240;

/// The saved result of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer<T> {
    /// The kernel's answer.
    Given(T),
    /// The kernel returned an error.
    Refused {
        /// The request.
        what: String,
        /// The error.
        reason: String,
        /// Whether the object of the request does not exist.
        absent: bool,
    },
}

impl<'a, T> Answer<&'a T> {
    /// The form in which a result is saved.
    pub fn new(result: &'a Result<T, ReadError>) -> Self {
        match result {
            Ok(answer) => Self::Given(answer),
            Err(ReadError { what, reason, absent }) => {
                Self::Refused { what: what.clone(), reason: reason.clone(), absent: *absent }
            }
        }
    }
}

/// The result of a request, from its saved form.
pub(super) fn decoded<T: DeserializeOwned>(
    key: &str,
    json: Result<Vec<u8>, Fault>,
) -> Result<T, ReadError> {
    let json = json.map_err(|fault| match fault.absent {
        true => Fault { reason: "no answer to this request was saved".into(), ..fault },
        false => fault,
    });
    match serde_json::from_slice(&json.map_err(|fault| fault.about(key))?) {
        Ok(Answer::Given(answer)) => Ok(answer),
        Ok(Answer::Refused { what, reason, absent }) => Err(ReadError { what, reason, absent }),
        Err(error) => Err(Fault::new(format!("the saved answer is damaged: {error}")).about(key)),
    }
}

/// Path of the saved answer to a key. Characters that are unsafe in file names are percent-encoded: interfaces
/// may have any name.
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
        return Err(Fault::new("cannot be saved: key too long or empty"));
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
    fn answers_and_errors_round_trip() {
        let refusal = ReadError { what: "rings".into(), reason: "no".into(), absent: false };
        for result in [Ok(vec![1u64, u64::MAX]), Err(refusal)] {
            let json = serde_json::to_vec(&Answer::new(&result)).unwrap();
            assert_eq!(decoded::<Vec<u64>>("k", Ok(json)), result);
        }
        let damaged = decoded::<u32>("k", Ok(b"{\"given\":".to_vec())).unwrap_err();
        assert!(damaged.reason.contains("damaged"));
    }
}
