//! Errors of ethtool requests and their meaning.

use super::NicSetting;
use crate::TuneError;
use nearpath_host::ethtool::Device;
use std::io;

/// Opens a socket for the interface of a setting.
pub(super) fn open(target: &NicSetting, step: &str) -> Result<Device, TuneError> {
    Device::open(&target.nic).map_err(|error| {
        let step = format!("{step} {target}");
        match error.raw_os_error() {
            Some(libc::ENOENT) => TuneError::Unsupported {
                step,
                reason: "this kernel does not support ethtool over netlink".to_owned(),
            },
            _ => TuneError::kernel(step, error),
        }
    })
}

/// The result of a read; `None` if the interface no longer exists.
pub(super) fn answer<T>(
    target: &NicSetting,
    answer: io::Result<T>,
) -> Result<Option<T>, TuneError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        // Also returned for a suspended device, which still exists.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) && !is_there(target) => Ok(None),
        Err(error) => Err(refusal(format!("reading {target}"), &error, None)),
    }
}

/// Whether the thread's network namespace has an interface with this name.
fn is_there(target: &NicSetting) -> bool {
    nearpath_host::interface_index(&target.nic).is_some()
}

/// Like [`refusal`], for a well-formed value: only the driver knows which values it accepts.
pub(super) fn of_value(step: String, error: &io::Error, words: Option<&str>) -> TuneError {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ERANGE | libc::EDOM) => TuneError::ValueNotTaken {
            step,
            reason: match words {
                Some(words) => format!("the driver does not accept this value: {words} ({error})"),
                None => format!("the driver does not accept this value: {error}"),
            },
        },
        _ => refusal(step, error, words),
    }
}

/// An error with its meaning; `words` is the kernel's message.
pub(super) fn refusal(step: String, error: &io::Error, words: Option<&str>) -> TuneError {
    let said = match words {
        Some(words) => format!("{words} ({error})"),
        None => error.to_string(),
    };
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => TuneError::Unsupported {
            step,
            reason: format!("the driver does not support it: {said}"),
        },
        Some(libc::EPERM | libc::EACCES) => {
            TuneError::kernel(step, format!("{said}; requires root (CAP_NET_ADMIN)"))
        }
        Some(libc::ENODEV) => TuneError::kernel(step, "the interface is gone, or suspended"),
        _ => TuneError::kernel(step, said),
    }
}
