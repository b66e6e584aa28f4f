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
#[serde(try_from = "Written", into = "Written")]
pub enum ConfigFile {
    /// A drop-in of this systemd service; see [`ConfigFile::drop_in`].
    DropIn(String),
    /// The fragment of the kernel command line.
    CommandLine,
    /// The arguments of irqbalance, in the file of some distributions.
    IrqbalanceArguments(IrqbalanceFile),
}

/// Where distributions keep the arguments of irqbalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IrqbalanceFile {
    /// Debian and SUSE.
    Default,
    /// Red Hat.
    Sysconfig,
}

impl IrqbalanceFile {
    const ALL: [Self; 2] = [Self::Default, Self::Sysconfig];

    const fn path(self) -> &'static str {
        match self {
            Self::Default => "/etc/default/irqbalance",
            Self::Sysconfig => "/etc/sysconfig/irqbalance",
        }
    }
}

/// A configuration file in a journal.
#[derive(Serialize, Deserialize)]
struct Written {
    /// `/etc/systemd/system/nginx.service.d/50-nearpath.conf`.
    path: String,
    /// The variable, if the file also has others: `IRQBALANCE_ARGS`.
    variable: Option<String>,
}

impl From<ConfigFile> for Written {
    fn from(file: ConfigFile) -> Self {
        Self { path: file.path(), variable: file.variable().map(str::to_owned) }
    }
}

impl TryFrom<Written> for ConfigFile {
    type Error = String;

    fn try_from(Written { path, variable }: Written) -> Result<Self, String> {
        let text = match variable {
            None => path,
            Some(variable) => format!("{path} {variable}"),
        };
        Self::parse(&text).ok_or_else(|| format!("nearpath does not write the file {text:?}"))
    }
}

impl fmt::Display for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())?;
        match self.variable() {
            None => Ok(()),
            Some(variable) => write!(f, " {variable}"),
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
/// The variable in these files.
pub const IRQBALANCE_ARGS: &str = "IRQBALANCE_ARGS";
/// The directory of persistent drop-ins (systemd.unit(5)).
const DROP_INS: &str = "/etc/systemd/system/";
const DROP_IN: &str = ".d/50-nearpath.conf";

impl ConfigFile {
    /// The drop-in of a service; `None` if the name is not that of a service.
    pub fn drop_in(service: &str) -> Option<Self> {
        is_service(service).then(|| Self::DropIn(service.to_owned()))
    }

    /// Parses the text of a plan; `None` if it is not a file that may be written.
    pub fn parse(text: &str) -> Option<Self> {
        if text == COMMAND_LINE {
            return Some(Self::CommandLine);
        }
        match text.split_once(' ') {
            Some((path, IRQBALANCE_ARGS)) => {
                let file = IrqbalanceFile::ALL.into_iter().find(|file| file.path() == path);
                file.map(Self::IrqbalanceArguments)
            }
            Some(_) => None,
            None => Self::drop_in(text.strip_prefix(DROP_INS)?.strip_suffix(DROP_IN)?),
        }
    }

    /// Its path.
    pub fn path(&self) -> String {
        match self {
            Self::DropIn(service) => format!("{DROP_INS}{service}{DROP_IN}"),
            Self::CommandLine => COMMAND_LINE.to_owned(),
            Self::IrqbalanceArguments(file) => file.path().to_owned(),
        }
    }

    /// The variable, if the file also has others.
    pub fn variable(&self) -> Option<&'static str> {
        matches!(self, Self::IrqbalanceArguments(_)).then_some(IRQBALANCE_ARGS)
    }

    /// Which of the files it is.
    pub fn place(&self) -> ConfigPlace {
        match self {
            Self::DropIn(_) => ConfigPlace::DropIn,
            Self::CommandLine => ConfigPlace::CommandLine,
            Self::IrqbalanceArguments(_) => ConfigPlace::Irqbalance,
        }
    }
}

/// Whether systemd accepts it as the name of a service (`unit_name_is_valid` of src/basic/unit-name.c); such a
/// name cannot leave its directory.
pub fn is_service(name: &str) -> bool {
    is_unit(name, ".service")
}

/// Whether systemd accepts it as the name of a slice, as [`is_service`] does of a service.
pub fn is_slice(name: &str) -> bool {
    is_unit(name, ".slice")
}

fn is_unit(name: &str, suffix: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    name.len() < 250
        && name.strip_suffix(suffix).is_some_and(|prefix| !prefix.is_empty())
        && !name.starts_with(['.', '@'])
        && name.bytes().all(known)
}

impl TargetKind for ConfigFile {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        self.place().kind()
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
        *self == Self::CommandLine
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
            assert_eq!((file.place(), file.to_string()), (place, text.to_owned()));
            let json = serde_json::to_value(&file).unwrap();
            let (path, variable) = match text.split_once(' ') {
                Some((path, variable)) => (path, Some(variable)),
                None => (text, None),
            };
            assert_eq!(json, serde_json::json!({"path": path, "variable": variable}));
            assert_eq!(serde_json::from_value::<ConfigFile>(json).unwrap(), file);
        }
        let drop_in = ConfigFile::drop_in("nginx.service");
        assert_eq!(drop_in, Some(ConfigFile::DropIn("nginx.service".to_owned())));
        let other = serde_json::json!({"path": "/etc/passwd", "variable": null});
        assert!(serde_json::from_value::<ConfigFile>(other).is_err());
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
