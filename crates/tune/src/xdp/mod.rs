//! The XDP program that moves received packets of some classes to a CPU each, for NICs that cannot steer them to a queue.
//!
//! Input: an interface and the classes with their CPUs, as text. The program is attached in the driver (native) where that is
//! supported, else generically, before the stack. It stays when nearpath ends, and its own tables say what it moves.
//! Programs of others are never replaced.

mod program;

use crate::TuneError;
use crate::files::Files;
use crate::planners::version;
use crate::setting::Setting;
use nearpath_host::{Root, interface_index};
use nearpath_model::{ClassCpus, CpuId, CpuSet, XdpPriorities};
use program::Found;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Kernels before drop packets that a generic program redirects to a CPU (`xdp_do_generic_redirect_map`, net/core/filter.c).
const GENERIC_SINCE: (u32, u32) = (5, 15);

/// `XDP_ATTACHED_*` of include/uapi/linux/if_link.h.
const ATTACHED_NONE: u8 = 0;
const ATTACHED_DRV: u8 = 1;
const ATTACHED_SKB: u8 = 2;
const ATTACHED_HW: u8 = 3;

/// What an interface of the current namespace has now, as [`ClassCpus`], or another program.
///
/// # Errors
/// The kernel refused.
pub(crate) fn current(nic: &str) -> Result<Option<String>, TuneError> {
    let step = format!("reading the XDP program of {nic}");
    let Some(index) = index_of(nic) else { return Ok(None) };
    let attached = attached(index).map_err(|e| TuneError::kernel(step, e))?;
    Ok(Some(match attached {
        Attached::None => ClassCpus::NONE.to_owned(),
        Attached::Several => "several XDP programs".to_owned(),
        Attached::One { id, .. } => match program::find(id)? {
            Some((_, Found::Ours(classes))) => classes.to_string(),
            Some((_, Found::Other(name))) => format!("XDP program {id} ({name})"),
            None => format!("XDP program {id}"),
        },
    }))
}

/// The programs of an interface.
enum Attached {
    None,
    /// By its id, and the flag of the mode that it is attached in.
    One {
        id: u32,
        mode: u32,
    },
    Several,
}

fn index_of(nic: &str) -> Option<i32> {
    i32::try_from(interface_index(nic)?.0).ok()
}

fn attached(index: i32) -> io::Result<Attached> {
    let mut found = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `found` is as large as `sz` says, and borrowed for the call.
    let error = unsafe { libbpf_sys::bpf_xdp_query(index, 0, &raw mut found) };
    if error < 0 {
        return Err(io::Error::from_raw_os_error(-error));
    }
    Ok(match found.attach_mode {
        ATTACHED_NONE => Attached::None,
        ATTACHED_DRV => {
            Attached::One { id: found.drv_prog_id, mode: libbpf_sys::XDP_FLAGS_DRV_MODE }
        }
        ATTACHED_SKB => {
            Attached::One { id: found.skb_prog_id, mode: libbpf_sys::XDP_FLAGS_SKB_MODE }
        }
        ATTACHED_HW => Attached::One { id: found.hw_prog_id, mode: libbpf_sys::XDP_FLAGS_HW_MODE },
        _ => Attached::Several,
    })
}

/// Attaches a program, or detaches one (`new` is `None`), in place of `old`; without `old`, only where there is none.
fn put(index: i32, new: Option<&OwnedFd>, old: Option<&OwnedFd>, mode: u32) -> io::Result<()> {
    let options = libbpf_sys::bpf_xdp_attach_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_attach_opts>() as libbpf_sys::size_t,
        old_prog_fd: old.map_or(0, AsRawFd::as_raw_fd),
        ..Default::default()
    };
    // With `old` libbpf adds XDP_FLAGS_REPLACE: the kernel compares.
    let only_if_none = if old.is_none() { libbpf_sys::XDP_FLAGS_UPDATE_IF_NOEXIST } else { 0 };
    let fd = new.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: `options` is as large as `sz` says, and borrowed for the call, as the descriptors are.
    let error =
        unsafe { libbpf_sys::bpf_xdp_attach(index, fd, mode | only_if_none, &raw const options) };
    if error < 0 { Err(io::Error::from_raw_os_error(-error)) } else { Ok(()) }
}

/// The program of an interface.
pub(crate) struct PrioritiesSetting<'a> {
    pub target: &'a XdpPriorities,
    pub files: &'a Files,
}

impl PrioritiesSetting<'_> {
    fn refusal(&self, doing: &str, error: &io::Error) -> TuneError {
        let step = format!("{doing} {}", self.target);
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                TuneError::kernel(step, format!("{error}; requires root (CAP_BPF, CAP_NET_ADMIN)"))
            }
            Some(libc::EBUSY | libc::EEXIST) => {
                TuneError::kernel(step, format!("{error}: another XDP program was attached"))
            }
            _ => TuneError::kernel(step, error),
        }
    }

    /// The program attached, with the flag of its mode, if it is one of these.
    fn ours(&self, index: i32) -> Result<Option<(OwnedFd, u32)>, TuneError> {
        let attached = attached(index).map_err(|e| self.refusal("reading", &e))?;
        let Attached::One { id, mode } = attached else { return Ok(None) };
        Ok(match program::find(id)? {
            Some((program, Found::Ours(_))) => Some((program, mode)),
            _ => None,
        })
    }

    /// Attaches a program where there is none: in the driver, else generically.
    fn attach(&self, index: i32, program: &OwnedFd) -> Result<(), TuneError> {
        let native = put(index, Some(program), None, libbpf_sys::XDP_FLAGS_DRV_MODE);
        let Err(native) = native else { return Ok(()) };
        let code = native.raw_os_error();
        if matches!(code, Some(libc::EPERM | libc::EACCES | libc::EBUSY | libc::EEXIST)) {
            return Err(self.refusal("attaching", &native));
        }
        let release = Root::live().text("/proc/sys/kernel/osrelease").unwrap_or_default();
        if version(&release).is_some_and(|version| version < GENERIC_SINCE) {
            return Err(TuneError::Unsupported {
                step: format!("attaching {}", self.target),
                reason: format!(
                    "the driver does not accept an XDP program ({native}), and generic ones move packets to other \
                     CPUs from Linux 5.15 on"
                ),
            });
        }
        put(index, Some(program), None, libbpf_sys::XDP_FLAGS_SKB_MODE).map_err(|generic| {
            TuneError::Unsupported {
                step: format!("attaching {}", self.target),
                reason: format!(
                    "neither the driver accepts it ({native}) nor the stack ({generic})"
                ),
            }
        })
    }
}

impl Setting for PrioritiesSetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let refused = |must: &str| TuneError::Refused(format!("{}: {value:?} {must}", self.target));
        let classes: ClassCpus = value.parse().map_err(|()| {
            refused("is not 'none' or classes with their CPUs, as in 'pcp 3 cpu 2, dscp 46 cpu 1'")
        })?;
        let online = Root::live().text("/sys/devices/system/cpu/online").ok();
        let online = online.and_then(|list| CpuSet::from_list(list.trim()).ok());
        // A set holds no CPU beyond the kernel's maximum.
        let is_missing = |cpu: &CpuId| online.as_ref().is_some_and(|online| !online.contains(*cpu));
        match classes.0.values().find(|cpu| is_missing(cpu)) {
            Some(missing) => Err(refused(&format!("needs CPU {missing}, which is not online"))),
            None => Ok(()),
        }
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        current(&self.target.nic)
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let gone = || TuneError::kernel(self.name(), "the interface no longer exists");
        let index = index_of(&self.target.nic).ok_or_else(gone)?;
        let classes: ClassCpus = value.parse().map_err(|()| {
            TuneError::Refused(format!("{}: {value:?} cannot be attached again", self.target))
        })?;
        let ours = self.ours(index)?;
        if classes.0.is_empty() {
            let Some((old, mode)) = ours else { return Ok(()) };
            return put(index, None, Some(&old), mode).map_err(|e| self.refusal("detaching", &e));
        }
        let new = program::load(&classes)?;
        match ours {
            Some((old, mode)) => {
                put(index, Some(&new), Some(&old), mode).map_err(|e| self.refusal("replacing", &e))
            }
            None => self.attach(index, &new),
        }
    }

    fn same(&self, now: &str, value: &str) -> bool {
        let parsed = |text: &str| text.parse::<ClassCpus>().ok();
        now == value || (parsed(now).is_some() && parsed(now) == parsed(value))
    }

    fn is_another(&self) -> bool {
        self.files.is_another_interface(&self.target.nic, &self.target.id)
    }

    fn may_be_replaced(&self, now: &str, _force: bool) -> Result<(), TuneError> {
        if now.parse::<ClassCpus>().is_ok() {
            return Ok(());
        }
        Err(TuneError::Refused(format!(
            "{}: it has {now}, which nearpath could not restore; detach it first",
            self.target
        )))
    }
}

/// The setting of a target.
///
/// # Errors
/// It belongs to another network namespace, or is invalid.
pub(crate) fn setting<'a>(
    target: &'a XdpPriorities,
    files: &'a Files,
) -> Result<PrioritiesSetting<'a>, TuneError> {
    files.is_of_here(target, target.netns)?;
    // The journal is untrusted input.
    if !nearpath_model::is_interface_name(&target.nic) {
        return Err(TuneError::Refused(format!("{target:?} is not an interface")));
    }
    Ok(PrioritiesSetting { target, files })
}
