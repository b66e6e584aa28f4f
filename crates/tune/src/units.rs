//! Settings of a running systemd unit: whether it is active, and the CPUs and nodes of its cgroup. They are read and
//! set through systemctl(1), as systemd owns the cgroup.
//!
//! With `--runtime`, `systemctl set-property` makes a change that lasts until the next boot. systemd keeps it in a
//! drop-in below `/run`, which it never removes: undo removes it, unless it existed before.

use crate::TuneError;
use crate::cgroups::mount_point;
use crate::pages;
use crate::setting::Setting;
use nearpath_host::Root;
use nearpath_model::{CpuSet, UnitProperty, UnitSetting, is_service, is_slice};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// This directory exists if systemd runs as PID 1 (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
/// Where systemd keeps settings that were made with `--runtime` (systemd.unit(5)).
const CONTROL: &str = "/run/systemd/system.control";

/// The same setting, with its state before the change.
pub(crate) fn prepared(setting: UnitSetting) -> UnitSetting {
    let drop_in_is_new = drop_in(&setting).is_some_and(|(folder, name)| {
        folder.join(name).symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    });
    UnitSetting { drop_in_is_new, ..setting }
}

/// Directory and name of the file in which systemd keeps a value until the next boot (`unit_drop_in_file` and
/// `unit_write_setting` of src/core/unit.c); `None` for the active state.
fn drop_in(setting: &UnitSetting) -> Option<(PathBuf, String)> {
    let is_unit = is_service(&setting.unit) || is_slice(&setting.unit);
    let is_kept = setting.property != UnitProperty::ActiveState && is_unit;
    is_kept.then(|| {
        let folder = Path::new(CONTROL).join(format!("{}.d", setting.unit));
        (folder, format!("50-{}.conf", setting.property.name()))
    })
}

/// All possible CPUs or nodes.
fn every(property: UnitProperty) -> Result<String, TuneError> {
    let file = match property {
        UnitProperty::AllowedMemoryNodes => "/sys/devices/system/node/possible",
        _ => "/sys/devices/system/cpu/possible",
    };
    Ok(Root::live().text(file)?)
}

/// Whether systemd runs as PID 1.
pub(crate) fn booted() -> bool {
    Path::new(BOOTED).is_dir()
}

/// Makes systemd reload all units; does nothing if systemd is not running.
///
/// # Errors
/// It cannot be reached, or refuses.
pub(crate) fn reload() -> Result<(), TuneError> {
    if !booted() {
        return Ok(());
    }
    systemctl(&["daemon-reload"]).map(drop)
}

/// Runs systemctl to completion and returns its output.
fn systemctl(arguments: &[&str]) -> Result<String, TuneError> {
    let step = || format!("systemctl {}", arguments.join(" "));
    let output = Command::new("systemctl")
        .args(["--no-ask-password", "--no-pager"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| TuneError::kernel(step(), error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(TuneError::kernel(step(), format!("{}: {}", output.status, said.join("; "))))
}

/// Sets a property until the next boot, and for the unit's processes at once.
fn set(setting: &UnitSetting, value: &str) -> Result<String, TuneError> {
    let assignment = format!("{}={value}", setting.property.name());
    systemctl(&["set-property", "--runtime", "--", &setting.unit, &assignment])
}

/// Removes a drop-in, and its directory with the last one; returns whether it existed.
fn remove_drop_in(folder: &Path, name: &str) -> io::Result<bool> {
    match fs::remove_file(folder.join(name)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    match fs::remove_dir(folder) {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound
            ) =>
        {
            Err(error)
        }
        _ => Ok(true),
    }
}

impl Setting for UnitSetting {
    fn name(&self) -> String {
        self.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let taken = match self.property {
            UnitProperty::ActiveState => matches!(value, "active" | "inactive"),
            _ => {
                let plain = value.bytes().all(|b| b.is_ascii_digit() || b",-".contains(&b));
                plain
                    && (value.is_empty()
                        || CpuSet::from_list(value).is_ok_and(|set| !set.is_empty()))
            }
        };
        if taken {
            return Ok(());
        }
        Err(TuneError::Refused(format!("{self}: invalid value {value:?}")))
    }

    fn may_be_written(&self, now: &str, value: &str) -> Result<(), TuneError> {
        if self.property != UnitProperty::AllowedMemoryNodes || !pages::moves(now, value) {
            return Ok(());
        }
        let shown = systemctl(&["show", "--property=ControlGroup", "--", &self.unit])?;
        let cgroup = shown.trim().strip_prefix("ControlGroup=").unwrap_or_default();
        let root = Root::live();
        match (cgroup, mount_point(&root)) {
            // It does not run.
            ("", _) => Ok(()),
            (cgroup, Some(point)) => {
                pages::check_move(&root, &format!("{point}{cgroup}"), &self.to_string())
            }
            (_, None) => Err(TuneError::Refused(format!(
                "{self}: not changed: its processes are unknown, as cgroup v2 is not mounted"
            ))),
        }
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        if !booted() {
            return Err(TuneError::Refused(format!("{self}: systemd is not running")));
        }
        let wanted = format!("--property=LoadState,{}", self.property.name());
        let shown = systemctl(&["show", &wanted, "--", &self.unit])?;
        let value =
            |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        if value("LoadState") != Some("loaded") {
            return Ok(None);
        }
        let Some(value) = value(self.property.name()) else {
            let reason = "not supported by this version of systemd";
            return Err(TuneError::kernel(self.to_string(), reason));
        };
        Ok(Some(match self.property {
            UnitProperty::ActiveState => value.to_owned(),
            // systemd writes `0-3 6` (cpu_set_to_range_string of src/shared/cpu-set-util.c).
            _ => value.split_ascii_whitespace().collect::<Vec<_>>().join(","),
        }))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        match (self.property, value) {
            (UnitProperty::ActiveState, "active") => systemctl(&["start", "--", &self.unit]),
            (UnitProperty::ActiveState, _) => systemctl(&["stop", "--", &self.unit]),
            (_, "") => {
                // The kernel refuses an empty cpuset for a cgroup with processes (validate_change of
                // kernel/cgroup/cpuset.c): systemd would drop the limit, and the cgroup keep it.
                set(self, &every(self.property)?)?;
                set(self, "")
            }
            (_, value) => set(self, value),
        }
        .map(drop)
    }

    fn tidy(&self) -> Result<(), TuneError> {
        let Some((folder, name)) = drop_in(self).filter(|_| self.drop_in_is_new) else {
            return Ok(());
        };
        if remove_drop_in(&folder, &name)
            .map_err(|error| TuneError::kernel(format!("removing {}", folder.display()), error))?
        {
            reload()?;
        }
        Ok(())
    }

    fn same(&self, a: &str, b: &str) -> bool {
        match (self.property, CpuSet::from_list(a), CpuSet::from_list(b)) {
            (UnitProperty::AllowedCpus | UnitProperty::AllowedMemoryNodes, Ok(a), Ok(b)) => a == b,
            _ => a == b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_round_trip() {
        for text in [
            "unit nginx.service AllowedCPUs",
            "unit a@b.service AllowedMemoryNodes",
            "unit flash.slice AllowedMemoryNodes",
            "unit irqbalance.service ActiveState",
        ] {
            assert_eq!(UnitSetting::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_units_and_properties_are_refused() {
        for text in [
            "",
            "unit",
            "unit sshd.service ActiveState",
            "unit nginx.service ExecStart",
            "unit system.slice AllowedCPUs",
            "unit --help AllowedCPUs",
            "unit nginx.service AllowedCPUs ",
            "unit ../x.service AllowedCPUs",
        ] {
            assert_eq!(UnitSetting::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_last_drop_in_is_removed_with_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("nginx.service.d");
        fs::create_dir(&folder).unwrap();
        for name in ["50-AllowedCPUs.conf", "50-AllowedMemoryNodes.conf"] {
            fs::write(folder.join(name), "[Service]\n").unwrap();
        }
        assert!(remove_drop_in(&folder, "50-AllowedCPUs.conf").unwrap());
        assert!(folder.join("50-AllowedMemoryNodes.conf").exists());
        assert!(!remove_drop_in(&folder, "50-AllowedCPUs.conf").unwrap());
        assert!(remove_drop_in(&folder, "50-AllowedMemoryNodes.conf").unwrap());
        assert!(!folder.exists());
        let (folder, name) =
            drop_in(&UnitSetting::parse("unit a.service AllowedCPUs").unwrap()).unwrap();
        assert_eq!(
            folder.join(name),
            Path::new("/run/systemd/system.control/a.service.d/50-AllowedCPUs.conf")
        );
        let slice = UnitSetting::parse("unit flash.slice AllowedMemoryNodes").unwrap();
        let (folder, _) = drop_in(&slice).unwrap();
        assert_eq!(folder, Path::new("/run/systemd/system.control/flash.slice.d"));
        assert_eq!(drop_in(&UnitSetting::irqbalance()), None);
    }

    #[test]
    fn only_lists_and_states_are_valid() {
        let its = |text: &str| UnitSetting::parse(text).unwrap();
        let cpus = its("unit nginx.service AllowedCPUs");
        assert!(cpus.check("").is_ok() && cpus.check("0-3,8").is_ok() && cpus.same("0,1", "0-1"));
        for value in ["x", "0 ExecStart=/bin/sh", "0\n", "-1"] {
            assert!(cpus.check(value).is_err(), "{value:?}");
        }
        let state = UnitSetting::irqbalance();
        assert!(state.check("active").is_ok() && state.check("inactive").is_ok());
        assert!(state.check("failed").is_err() && state.check("").is_err());
    }
}
