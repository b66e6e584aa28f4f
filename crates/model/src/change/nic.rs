//! Settings of an interface that ethtool(8) shows and sets, and those of its NAPI instances.

use super::{InterfaceId, InterfaceOf, Persistence, TargetKind, is_interface_name};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A setting of an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NicSetting {
    /// The interface's name.
    pub nic: String,
    /// Inode of the network namespace that it is in.
    pub netns: Option<u64>,
    /// Which of its settings.
    pub what: Ethtool,
    /// Which interface it is, set once it was changed.
    #[serde(flatten)]
    pub id: InterfaceId,
}

/// What ethtool sets, by its option.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ethtool {
    /// `-L`: numbers of channels.
    Channels,
    /// `-G`: sizes of rings.
    Rings,
    /// `-C`: interrupt coalescing.
    Coalesce,
    /// `-X`: the indirection table.
    Rss,
    /// `-X hkey`: the hash key.
    RssKey,
    /// `-K`: a feature, by its name.
    Feature(String),
    /// `-N`: the n-tuple rule at a location of the NIC's table.
    Rule(u32),
    /// Not ethtool's, but of the kernel's netdev family (`napi-set`, Documentation/networking/napi.rst): the parameters of
    /// the NAPI instance at this place among those of the interface, in the order of their ids.
    Napi(u32),
}

impl Ethtool {
    /// Its name in plans.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Channels => "channels",
            Self::Rings => "rings",
            Self::Coalesce => "coalescing",
            Self::Rss => "rss",
            Self::RssKey => "rss_key",
            Self::Feature(_) => "feature",
            Self::Rule(_) => "ntuple_rule",
            Self::Napi(_) => "napi",
        }
    }
}

impl fmt::Display for NicSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Ethtool::Napi(place) = self.what {
            return write!(f, "napi {} {place}", self.nic);
        }
        write!(f, "ethtool {} ", self.nic)?;
        match &self.what {
            Ethtool::Channels => f.write_str("channels"),
            Ethtool::Rings => f.write_str("rings"),
            Ethtool::Coalesce => f.write_str("coalesce"),
            Ethtool::Rss => f.write_str("rss"),
            Ethtool::RssKey => f.write_str("rss-key"),
            Ethtool::Feature(name) => write!(f, "feature {name}"),
            Ethtool::Rule(location) => write!(f, "rule {location}"),
            // Written above.
            Ethtool::Napi(_) => Ok(()),
        }
    }
}

impl NicSetting {
    /// A setting of an interface in the current namespace.
    pub fn new(nic: impl Into<String>, what: Ethtool) -> Self {
        Self { nic: nic.into(), netns: None, what, id: InterfaceId::default() }
    }

    /// Parses a setting's text in a plan: `ethtool eth0 rings`, `napi eth0 3`.
    #[must_use]
    pub fn parse(text: &str, netns: Option<u64>) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (nic, what) = match words[..] {
            ["ethtool", nic, "channels"] => (nic, Ethtool::Channels),
            ["ethtool", nic, "rings"] => (nic, Ethtool::Rings),
            ["ethtool", nic, "coalesce"] => (nic, Ethtool::Coalesce),
            ["ethtool", nic, "rss"] => (nic, Ethtool::Rss),
            ["ethtool", nic, "rss-key"] => (nic, Ethtool::RssKey),
            ["ethtool", nic, "feature", name] if is_feature_name(name) => {
                (nic, Ethtool::Feature(name.to_owned()))
            }
            ["ethtool", nic, "rule", place] => (nic, Ethtool::Rule(place.parse().ok()?)),
            ["napi", nic, place] => (nic, Ethtool::Napi(place.parse().ok()?)),
            _ => return None,
        };
        let setting = Self { nic: nic.to_owned(), netns, what, id: InterfaceId::default() };
        // One text per setting: `rule 03` is rejected.
        (is_interface_name(nic) && setting.to_string() == text).then_some(setting)
    }

    /// Whether another one is the same setting, possibly of another interface of that name.
    #[must_use]
    pub fn same_place(&self, other: &Self) -> bool {
        (&self.nic, self.netns, &self.what) == (&other.nic, other.netns, &other.what)
    }
}

/// A feature name as the kernel writes it: `rx-ntuple-filter`.
fn is_feature_name(text: &str) -> bool {
    // ETH_GSTRING_LEN of include/uapi/linux/ethtool.h.
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    !text.is_empty() && text.len() < 32 && text.bytes().all(plain)
}

impl TargetKind for NicSetting {
    fn of_plan(text: &str, netns: Option<u64>) -> Option<Self> {
        Self::parse(text, netns)
    }

    fn kind(&self) -> &'static str {
        self.what.kind()
    }

    fn persistence(&self) -> Persistence {
        Persistence::UntilReboot
    }

    fn may_be_refused(&self) -> bool {
        matches!(self.what, Ethtool::Rings | Ethtool::Coalesce | Ethtool::Rss | Ethtool::RssKey)
    }

    fn disrupts(&self) -> Option<&'static str> {
        let resets = matches!(self.what, Ethtool::Channels | Ethtool::Rings);
        resets.then_some("the driver stops the interface while it is changed")
    }

    fn owner(&self) -> String {
        self.nic.clone()
    }

    fn interface_of(&mut self) -> Option<InterfaceOf<'_>> {
        let (name, netns) = (&mut self.nic, Some(&mut self.netns));
        Some(InterfaceOf { name, netns, id: &mut self.id })
    }

    fn set_netns(&mut self, netns: Option<u64>) {
        self.netns = netns;
    }

    fn is_same_place(&self, other: &Self) -> bool {
        self.same_place(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_round_trip() {
        for text in [
            "ethtool nic0 channels",
            "ethtool enp94s0f0np0 rings",
            "ethtool eth0.5 coalesce",
            "ethtool nic0 rss",
            "ethtool nic0 rss-key",
            "ethtool nic0 feature rx-ntuple-filter",
            "ethtool nic0 rule 1022",
            "napi nic0 0",
            "napi eth0.5 63",
        ] {
            let setting = NicSetting::parse(text, Some(5)).unwrap();
            assert_eq!((setting.to_string().as_str(), setting.netns), (text, Some(5)));
            let json = serde_json::to_string(&setting).unwrap();
            assert_eq!(serde_json::from_str::<NicSetting>(&json).unwrap(), setting);
        }
        // As in older journals.
        let json = r#"{"nic": "eth0", "netns": 5, "what": "rings", "instance": 77}"#;
        let older: NicSetting = serde_json::from_str(json).unwrap();
        assert_eq!(older.id, InterfaceId { instance: Some(77), device: None });
        for text in [
            "ethtool eth0 rule 03",
            "",
            "ethtool nic0",
            "ethtool  rings",
            "ethtool nic0  rings",
            "ethtool ../x rings",
            "ethtool nic0 rings 1",
            "ethtool nic0 rule -1",
            "ethtool nic0 rule 4294967296",
            "ethtool nic0 feature X;",
            "ethtool nic0 flash",
            "ethtool nic0 napi 0",
            "napi nic0",
            "napi nic0 03",
            "napi nic0 -1",
            "napi ../x 0",
        ] {
            assert_eq!(NicSetting::parse(text, None), None, "{text}");
        }
    }
}
