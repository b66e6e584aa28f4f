//! Configuration files below `/etc`: nearpath's systemd drop-ins, its fragment of the kernel command line, and
//! one variable in irqbalance's file. Plans and journals may have been edited, so any other path is rejected
//! before it is opened.

use super::{Persistence, TargetKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One of nearpath's own files below `/etc`, or a variable in another program's file.
///
/// Text form: the path; for a variable, followed by a space and its name. The value is the whole text of the
/// file, or the whole line of the variable; empty if absent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConfigFile {
    /// The path: `/etc/systemd/system/nginx.service.d/50-nearpath.conf`.
    pub path: String,
    /// The variable, if the file also has others: `IRQBALANCE_ARGS`.
    pub variable: Option<String>,
}

impl fmt::Display for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            None => f.write_str(&self.path),
            Some(variable) => write!(f, "{} {variable}", self.path),
        }
    }
}

/// Files below `/etc` that may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigPlace {
    /// A drop-in of a systemd service.
    DropIn,
    /// A fragment read by grub-mkconfig.
    CommandLine,
    /// The arguments of irqbalance. New plans do not contain them; older journals do.
    Irqbalance,
}

impl ConfigPlace {
    /// Its name in plans.
    pub fn kind(self) -> &'static str {
        match self {
            Self::DropIn => "unit_drop_in",
            Self::CommandLine => "kernel_command_line",
            Self::Irqbalance => "irqbalance_arguments",
        }
    }
}

/// nearpath's fragment of the kernel command line (grub-mkconfig as in Debian).
pub const COMMAND_LINE: &str = "/etc/default/grub.d/50-nearpath.cfg";
/// Where distributions keep the arguments of irqbalance: Debian and SUSE, Red Hat.
pub const IRQBALANCE: [&str; 2] = ["/etc/default/irqbalance", "/etc/sysconfig/irqbalance"];
/// The variable in these files.
pub const IRQBALANCE_ARGS: &str = "IRQBALANCE_ARGS";
/// The directory of persistent drop-ins (systemd.unit(5)).
const DROP_INS: &str = "/etc/systemd/system/";
const DROP_IN: &str = ".d/50-nearpath.conf";

impl ConfigFile {
    /// The drop-in of a service; `None` if the name is not that of a service.
    pub fn drop_in(service: &str) -> Option<Self> {
        let path = format!("{DROP_INS}{service}{DROP_IN}");
        is_service(service).then_some(Self { path, variable: None })
    }

    /// The fragment of the kernel command line.
    pub fn command_line() -> Self {
        Self { path: COMMAND_LINE.to_owned(), variable: None }
    }

    /// Parses the text of a plan; `None` if it is not a file that may be written.
    pub fn parse(text: &str) -> Option<Self> {
        let (path, variable) = match text.split_once(' ') {
            Some((path, variable)) => (path, Some(variable.to_owned())),
            None => (text, None),
        };
        let file = Self { path: path.to_owned(), variable };
        file.place().map(|_| file)
    }

    /// Which of the files it is.
    pub fn place(&self) -> Option<ConfigPlace> {
        let path = self.path.as_str();
        match self.variable.as_deref() {
            None if path == COMMAND_LINE => Some(ConfigPlace::CommandLine),
            None => self.service().map(|_| ConfigPlace::DropIn),
            Some(IRQBALANCE_ARGS) if IRQBALANCE.contains(&path) => Some(ConfigPlace::Irqbalance),
            Some(_) => None,
        }
    }

    /// The service of the drop-in.
    pub fn service(&self) -> Option<&str> {
        let service = self.path.strip_prefix(DROP_INS)?.strip_suffix(DROP_IN)?;
        is_service(service).then_some(service)
    }
}

/// Whether systemd accepts it as the name of a service (`unit_name_is_valid` of src/basic/unit-name.c); such a
/// name cannot leave its directory.
pub fn is_service(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    name.len() < 250
        && name.strip_suffix(".service").is_some_and(|prefix| !prefix.is_empty())
        && !name.starts_with(['.', '@'])
        && name.bytes().all(known)
}

impl TargetKind for ConfigFile {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        self.place().map_or("unknown", ConfigPlace::kind)
    }

    fn persistence(&self) -> Persistence {
        Persistence::Kept
    }

    fn lost_for_good(&self) -> Option<&'static str> {
        Some("it is a file, which persists across reboots")
    }

    fn takes_effect_immediately(&self) -> bool {
        false
    }

    fn takes_reboot(&self) -> bool {
        self.place() == Some(ConfigPlace::CommandLine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_parsed_from_their_text() {
        for (text, place) in [
            ("/etc/systemd/system/nginx.service.d/50-nearpath.conf", ConfigPlace::DropIn),
            ("/etc/systemd/system/a@b\\x2dc.service.d/50-nearpath.conf", ConfigPlace::DropIn),
            ("/etc/default/grub.d/50-nearpath.cfg", ConfigPlace::CommandLine),
            ("/etc/default/irqbalance IRQBALANCE_ARGS", ConfigPlace::Irqbalance),
            ("/etc/sysconfig/irqbalance IRQBALANCE_ARGS", ConfigPlace::Irqbalance),
        ] {
            let file = ConfigFile::parse(text).unwrap();
            assert_eq!((file.place(), file.to_string()), (Some(place), text.to_owned()));
        }
        let drop_in = ConfigFile::drop_in("nginx.service").unwrap();
        assert_eq!(drop_in.service(), Some("nginx.service"));
    }

    #[test]
    fn other_paths_are_rejected() {
        for text in [
            "",
            "/etc/passwd",
            "/etc/default/grub",
            "/etc/default/irqbalance",
            "/etc/default/irqbalance LD_PRELOAD",
            "/etc/default/irqbalance IRQBALANCE_ARGS ",
            "/etc/default/grub.d/50-nearpath.cfg IRQBALANCE_ARGS",
            "/etc/systemd/system/nginx.service.d/override.conf",
            "/etc/systemd/system/.service.d/50-nearpath.conf",
            "/etc/systemd/system/..service.d/50-nearpath.conf",
            "/etc/systemd/system/system.slice.d/50-nearpath.conf",
            "/etc/systemd/system/a/../b.service.d/50-nearpath.conf",
            "/etc/systemd/system/a\nb.service.d/50-nearpath.conf",
            "etc/default/grub.d/50-nearpath.cfg",
        ] {
            assert_eq!(ConfigFile::parse(text), None, "{text}");
        }
        for name in ["nginx", "", ".service", "@.service", "a b.service", "a/b.service"] {
            assert_eq!(ConfigFile::drop_in(name), None, "{name}");
        }
    }
}
