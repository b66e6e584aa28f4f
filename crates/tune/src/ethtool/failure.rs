//! What a refusal of ethtool's requests means.

use super::NicSetting;
use crate::TuneError;
use nearpath_host::ethtool::Device;
use std::io;

/// Opens a conversation about the interface of a setting.
pub(super) fn open(target: &NicSetting, step: &str) -> Result<Device, TuneError> {
    Device::open(&target.nic).map_err(|error| {
        let step = format!("{step} {target}");
        match error.raw_os_error() {
            Some(libc::ENOENT) => TuneError::ByNature {
                step,
                reason: "this kernel has no ethtool by netlink".to_owned(),
            },
            _ => TuneError::kernel(step, error),
        }
    })
}

/// What was read; `None` when there is no such interface any more.
pub(super) fn answer<T>(
    target: &NicSetting,
    answer: io::Result<T>,
) -> Result<Option<T>, TuneError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        // Also said of a device that is asleep, and there still.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) && !is_there(target) => Ok(None),
        Err(error) => Err(refusal(format!("reading {target}"), &error, None)),
    }
}

/// Whether the thread's network namespace has an interface of that name.
fn is_there(target: &NicSetting) -> bool {
    let Ok(name) = std::ffi::CString::new(target.nic.as_str()) else { return false };
    // SAFETY: the name ends with a zero.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// As [`refusal`], of a value that is well formed: which ones a driver takes, only trying tells.
pub(super) fn of_value(step: String, error: &io::Error, words: Option<&str>) -> TuneError {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ERANGE | libc::EDOM) => TuneError::ValueNotTaken {
            step,
            reason: match words {
                Some(words) => format!("the driver does not take this value: {words} ({error})"),
                None => format!("the driver does not take this value: {error}"),
            },
        },
        _ => refusal(step, error, words),
    }
}

/// A refusal with what it means; `words` are the kernel's own.
pub(super) fn refusal(step: String, error: &io::Error, words: Option<&str>) -> TuneError {
    let said = match words {
        Some(words) => format!("{words} ({error})"),
        None => error.to_string(),
    };
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            TuneError::ByNature { step, reason: format!("the driver does not support it: {said}") }
        }
        Some(libc::EPERM | libc::EACCES) => {
            TuneError::kernel(step, format!("{said}; it takes root (CAP_NET_ADMIN)"))
        }
        Some(libc::ENODEV) => TuneError::kernel(step, "the interface is gone, or asleep"),
        _ => TuneError::kernel(step, said),
    }
}
