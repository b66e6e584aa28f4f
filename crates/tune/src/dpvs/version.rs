//! Releases of DPVS.

use std::fmt;
use std::str::FromStr;

/// A release: 1.9.10. The keywords of releases 1.8.2 to 1.10.2 are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DpvsVersion(pub u8, pub u8, pub u8);

impl Default for DpvsVersion {
    /// The newest that is known.
    fn default() -> Self {
        Self(1, 10, 2)
    }
}

impl fmt::Display for DpvsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl FromStr for DpvsVersion {
    type Err = String;

    /// `1.9.8`, `v1.9.8`, `1.9-8` as DPVS prints it, or `1.9` for its first release.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || "not a release of DPVS, such as 1.9.8".to_owned();
        let mut parts = text.trim_start_matches('v').split(['.', '-']);
        let mut part = |default: Option<u8>| match parts.next() {
            Some(part) => part.parse().map_err(|_| invalid()),
            None => default.ok_or_else(invalid),
        };
        let version = Self(part(None)?, part(None)?, part(Some(0))?);
        if parts.next().is_some() { Err(invalid()) } else { Ok(version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_by_their_numbers() {
        let of = |text: &str| text.parse::<DpvsVersion>();
        assert_eq!(of("1.9-8"), Ok(DpvsVersion(1, 9, 8)));
        assert_eq!(of("v1.10.1"), Ok(DpvsVersion(1, 10, 1)));
        assert!(of("1.9").unwrap() < of("1.9.2").unwrap());
        assert!(of("1.9.10").unwrap() > of("1.9.8").unwrap());
        assert!(of("1.10").unwrap() > of("1.9.10").unwrap());
        for invalid in ["", "1", "1.9.8.7", "1.x", "1.9.256", "latest"] {
            assert!(of(invalid).is_err(), "{invalid}");
        }
    }
}
