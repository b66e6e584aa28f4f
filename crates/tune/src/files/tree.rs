//! The trees that hold setting files, opened so that no path leads out of them.
//!
//! `/proc` and debugfs are the mounted ones. sysfs differs per network namespace: a new instance for the calling
//! thread's namespace is mounted without attaching it to the mount tree, so that it shows the right interfaces
//! whatever is mounted on `/sys`.

use super::offline::{is_stored, possible_of};
use crate::TuneError;
use crate::hotplug::{CpuEvents, cpus_now, online};
use crate::setting::{Possible, Setting};
use nearpath_host::{Root, current_netns, in_initial_netns, serve_same_queue};
use nearpath_model::{FileOf, Form, IrqNumber, NicIrq, OnlineCpus, QueueFile, SettingFile};
use rustix::fs::{
    CWD, FsWord, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstat, fstatfs, openat, openat2,
};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// `SYSFS_MAGIC` of include/uapi/linux/magic.h.
const SYSFS: FsWord = 0x6265_6572;

/// `DEBUGFS_MAGIC` of include/uapi/linux/magic.h.
const DEBUGFS: FsWord = 0x6462_6720;

/// Maximum number of bytes read from a file: a mask of all CPUs is shorter.
const MAX_FILE: u64 = 64 << 10;

/// The trees, as seen from one network namespace.
#[derive(Debug)]
pub(crate) struct Files {
    proc: Result<OwnedFd, Errno>,
    /// That of the calling thread's network namespace.
    sysfs: Result<OwnedFd, Errno>,
    debugfs: Result<OwnedFd, Errno>,
    pub(super) netns: Option<u64>,
    /// Inodes of interfaces that are proved to be in no network namespace.
    pub(super) gone: RefCell<BTreeSet<u64>>,
    /// How long others were searched for.
    pub(super) waited: Cell<Duration>,
}

impl Files {
    /// Those of this host and of the calling thread's network namespace.
    pub fn live() -> Self {
        Self {
            proc: base("/proc", PROC_SUPER_MAGIC),
            sysfs: own_sysfs(),
            debugfs: base("/sys/kernel/debug", DEBUGFS),
            netns: current_netns(&Root::live()).inode,
            gone: RefCell::default(),
            waited: Cell::default(),
        }
    }

    /// A setting in them.
    ///
    /// # Errors
    /// It may not be written, or belongs to another network namespace.
    pub fn setting<'a>(&'a self, file: &'a SettingFile) -> Result<FileSetting<'a>, TuneError> {
        let path = file.path();
        if !file.of.has_valid_name() {
            return Err(TuneError::Refused(format!("{path:?}: no interface has such a name")));
        }
        if file.of.is_of_namespace() {
            self.is_of_here(&path, file.netns)?;
        }
        Ok(FileSetting { files: self, file, path, form: file.form() })
    }

    /// The inode of the object that a file belongs to, as in [`SettingFile::instance`]; `None` for permanent objects,
    /// and if it does not exist.
    pub fn instance(&self, file: &SettingFile) -> Option<u64> {
        match &file.of {
            FileOf::Irq(irq) => self.inode(&interrupt_folder(*irq)),
            FileOf::Queue { .. } | FileOf::Interface { .. } => self.inode(&file.path()),
            // Registered again, they get new files.
            FileOf::Cpu { .. } | FileOf::Frequency { .. } => self.inode(&file.path()),
            _ => None,
        }
    }

    /// The inode of an interface, as in [`nearpath_model::InterfaceId::instance`].
    pub fn interface(&self, nic: &str) -> Option<u64> {
        self.inode(&format!("/sys/class/net/{nic}/ifindex"))
    }

    /// The CPUs now, for a file that sets CPUs.
    pub fn cpus(&self, file: &SettingFile) -> Option<OnlineCpus> {
        let of_cpus = matches!(file.form(), Form::CpuList | Form::CpuMask);
        of_cpus.then(|| self.cpus_now())?
    }

    /// The CPUs now.
    pub fn cpus_now(&self) -> Option<OnlineCpus> {
        cpus_now(&Root::live(), |path| self.inode(path))
    }

    /// What happened to CPUs since that moment; if it is unknown, since the directory `made` exists.
    pub fn cpu_events(&self, cpus: Option<&OnlineCpus>, made: &str) -> Option<CpuEvents> {
        CpuEvents::since(&Root::live(), |path| self.inode(path), cpus, made)
    }

    /// The number of links of a directory.
    pub(super) fn links(&self, path: &str) -> Option<u64> {
        Some(fstat(self.open(path, OFlags::PATH).ok()?).ok()?.st_nlink as u64)
    }

    fn inode(&self, path: &str) -> Option<u64> {
        let opened = self.open(path, OFlags::PATH).ok()?;
        Some(fstat(&opened).ok()?.st_ino)
    }

    /// Whether an interrupt has a handler with this name; true if that is unknown. If it is still the `same` interrupt,
    /// the interface may be down or renamed since: then it has none, or one that is named after the new name.
    fn has_handler(&self, irq: IrqNumber, name: &str, same: bool) -> bool {
        let folder = interrupt_folder(irq);
        let opened = self.open(&format!("{folder}/actions"), OFlags::RDONLY);
        let Ok(file) = opened.map(File::from) else { return true };
        let mut text = Vec::new();
        let read = file.take(MAX_FILE).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        read.is_err() || text.trim_end().split(',').any(|handler| is_handler(handler, name, same))
    }

    /// Checks that a setting belongs to this network namespace.
    ///
    /// # Errors
    /// It does not.
    pub fn is_of_here(&self, what: &dyn Display, netns: Option<u64>) -> Result<(), TuneError> {
        if netns == self.netns {
            return Ok(());
        }
        let number = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
        Err(TuneError::Refused(format!(
            "{what} belongs to network namespace {}, this is {}: use --netns",
            number(netns),
            number(self.netns)
        )))
    }

    /// Opens a file below `/proc` or `/sys`. Links inside a tree are followed, as `/sys/class/net` consists of them,
    /// but not the last component, and none that leads out of the tree.
    pub fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (base, rest) = if let Some(rest) = path.strip_prefix("/proc/") {
            (&self.proc, rest)
        } else if let Some(rest) = path.strip_prefix("/sys/kernel/debug/") {
            (&self.debugfs, rest)
        } else {
            (&self.sysfs, path.strip_prefix("/sys/").ok_or(Errno::NOENT)?)
        };
        open_below(base.as_ref().map_err(|errno| *errno)?, rest, flags)
    }
}

/// Opens a file below the root of a tree.
fn open_below(base: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(base, path, flags, Mode::empty(), within) {
            // A rename elsewhere in the tree made the kernel unsure (openat2(2)).
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Whether a handler of an interrupt, or none of an interface that is down, is that with a name, as in
/// [`Files::has_handler`].
fn is_handler(handler: &str, name: &str, same: bool) -> bool {
    handler == name || (same && (handler.is_empty() || serve_same_queue(handler, name)))
}

/// The directory of an interrupt in sysfs.
fn interrupt_folder(irq: IrqNumber) -> String {
    format!("/sys/kernel/irq/{irq}")
}

/// A mounted tree, if it has the expected file system.
fn base(path: &str, magic: FsWord) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::empty())?;
    let found = fstatfs(&opened)?;
    if found.f_type == magic { Ok(opened) } else { Err(Errno::NOTSUP) }
}

fn own_sysfs() -> Result<OwnedFd, Errno> {
    let mounted = || -> Result<OwnedFd, Errno> {
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    let tree = mounted()?;
    if fstatfs(&tree)?.f_type == SYSFS { Ok(tree) } else { Err(Errno::NOTSUP) }
}

/// A setting in a file.
#[derive(Debug)]
pub(crate) struct FileSetting<'a> {
    files: &'a Files,
    file: &'a SettingFile,
    path: String,
    form: Form,
}

impl Setting for FileSetting<'_> {
    fn name(&self) -> String {
        self.path.clone()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.form
            .check(value)
            .map_err(|must| TuneError::Refused(format!("{}: {value:?} {must}", self.path)))
    }

    fn is_another(&self) -> bool {
        let now = self.files.instance(self.file);
        self.file.instance.is_some_and(|its| now.is_some_and(|now| now != its))
    }

    fn cpus_changed(&self) -> bool {
        self.events().is_some_and(|events| events.happened())
    }

    fn is_left_by_kernel(&self, now: &str, was: &str) -> bool {
        let Some(events) = self.events() else { return false };
        match &self.file.of {
            FileOf::Irq(irq) => events.left_interrupt(&Root::live(), *irq, now, was),
            FileOf::Queue { nic, queue, file } => {
                let queue = (file.direction(), *queue);
                events.left_mask(&Root::live(), nic, queue, now, was)
            }
            _ => false,
        }
    }

    /// An interrupt moves when it fires next. Just then a reading has neither the pending affinity nor the new one
    /// (`irq_move_masked_irq` of kernel/irq/migration.c; `show_irq_affinity` of kernel/irq/proc.c takes no lock).
    fn reads_late(&self) -> bool {
        matches!(self.file.of, FileOf::Irq(_))
    }

    fn possible(&self, value: &str) -> Possible {
        let as_it_is = || Possible { text: value.to_owned(), replaced: false };
        match online(&Root::live()) {
            Some(online) => possible_of(self.form, &online, value).unwrap_or_else(as_it_is),
            None => as_it_is(),
        }
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let path = &self.path;
        let step = || format!("reading {path}");
        // An interrupt with this number but another handler is a different one.
        let same = self.file.instance.is_some() && !self.is_another();
        if let (Some(NicIrq { name, .. }), Some(irq)) = (&self.file.interrupt, self.file.irq())
            && !self.files.has_handler(irq, name, same)
        {
            return Ok(None);
        }
        let opened = match self.open(OFlags::RDONLY) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NODEV) => return Ok(None),
            Err(errno) => return Err(refusal(step(), &self.file.of, errno)),
        };
        let mut text = String::new();
        match File::from(opened).take(MAX_FILE).read_to_string(&mut text) {
            Ok(_) => Ok(Some(text.trim_end().to_owned())),
            // The interface was removed while its file was open.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(refusal(step(), &self.file.of, errno_of(&error))),
        }
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let path = &self.path;
        let step = || format!("writing {value:?} to {path}");
        let opened = self.open(OFlags::WRONLY | OFlags::TRUNC);
        let mut file = File::from(opened.map_err(|errno| refusal(step(), &self.file.of, errno))?);
        let value_written = self.form.written(value);
        // In one write: the kernel takes each write as the whole value.
        match file.write(value_written.as_bytes()) {
            Ok(length) if length == value_written.len() => Ok(()),
            Ok(_) => Err(TuneError::kernel(step(), "the kernel accepted only part of it")),
            Err(error) => Err(refusal(step(), &self.file.of, errno_of(&error))),
        }
    }

    fn same(&self, now: &str, value: &str) -> bool {
        self.form.same(now, value)
            || (self.form == Form::CpuMask
                && online(&Root::live()).is_some_and(|online| is_stored(&online, now, value)))
    }
}

impl FileSetting<'_> {
    /// Opens the file. A sysctl of the whole kernel is opened from the initial network namespace: `/proc/sys/net` shows the
    /// namespace of the task that opens it.
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let opened = self.files.open(&self.path, flags);
        let is_global =
            matches!(self.file.of, FileOf::Sysctl(sysctl) if sysctl.is_of_initial_namespace());
        let (Err(errno @ (Errno::NOENT | Errno::ACCESS | Errno::PERM)), true) =
            (&opened, is_global)
        else {
            return opened;
        };
        let proc = self.files.proc.as_ref().map_err(|errno| *errno)?;
        let path = self.path.trim_start_matches("/proc/");
        let there = in_initial_netns(|_| open_below(proc, path, flags));
        there.unwrap_or(Err(*errno))
    }

    /// What happened to CPUs since the file was changed; `None` if it does not set CPUs.
    fn events(&self) -> Option<CpuEvents> {
        if !matches!(self.form, Form::CpuList | Form::CpuMask) {
            return None;
        }
        let made = self.file.irq().map_or_else(|| self.path.clone(), interrupt_folder);
        self.files.cpu_events(self.file.cpus.as_ref(), &made)
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Explains an error of the kernel.
fn refusal(step: String, of: &FileOf, errno: Errno) -> TuneError {
    let said = std::io::Error::from(errno);
    match errno {
        // irq_affinity_proc_write of kernel/irq/proc.c: one for each CPU, or a managed one.
        Errno::IO if matches!(of, FileOf::Irq(_)) => TuneError::Unsupported {
            step,
            reason: format!("the kernel places this interrupt itself ({said})"),
        },
        // bitmap_store of net/core/net-sysfs.c: XPS of an interface with a single queue.
        Errno::NOENT if is_xps(of) => TuneError::Unsupported {
            step,
            reason: format!("an interface with one transmit queue has no XPS ({said})"),
        },
        Errno::OPNOTSUPP => TuneError::Unsupported {
            step,
            reason: format!("not supported by this kernel or driver ({said})"),
        },
        Errno::ACCESS | Errno::PERM => {
            TuneError::kernel(step, format!("{said}; requires root and a writable tree"))
        }
        Errno::XDEV | Errno::LOOP => {
            TuneError::kernel(step, format!("{said}; something else is mounted or linked there"))
        }
        Errno::NOSYS => TuneError::kernel(step, format!("{said}; requires Linux 5.6 (openat2)")),
        _ => TuneError::kernel(step, said),
    }
}

/// Whether it is a setting of XPS.
fn is_xps(of: &FileOf) -> bool {
    matches!(of, FileOf::Queue { file: QueueFile::XpsCpus | QueueFile::XpsRxqs, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::InterfaceFile;

    fn file(path: &str) -> SettingFile {
        SettingFile::parse(path, None).unwrap()
    }

    #[test]
    fn only_known_settings_of_this_namespace_are_opened() {
        let files = Files::live();
        let said = |file: &SettingFile| files.setting(file).unwrap_err().to_string();
        let up = SettingFile::interface("..", InterfaceFile::GroFlushTimeout);
        assert!(said(&up).contains("no interface has such a name"));
        let other = said(&file("/sys/class/net/lo/queues/rx-0/rps_cpus"));
        assert!(other.contains("to network namespace unknown"), "{other}");
        assert!(files.setting(&file("/proc/irq/1/smp_affinity_list")).is_ok());
    }

    #[test]
    fn an_interrupt_keeps_its_handler_when_its_interface_is_renamed() {
        let is = |handler, same| is_handler(handler, "eth0-TxRx-1", same);
        assert!(is("eth0-TxRx-1", true) && is("eth0-TxRx-1", false));
        assert!(is("wan0-TxRx-1", true) && is("", true), "renamed, and down meanwhile");
        assert!(!is("eth0-TxRx-2", true) && !is("ahci", true));
        // An interrupt of another object with its number.
        assert!(!is("wan0-TxRx-1", false) && !is("", false));
    }

    #[test]
    fn no_path_leads_out_of_its_tree() {
        let files = Files::live();
        for path in [
            "/proc/../etc/passwd",
            "/proc/self/exe",
            "/proc/self/cwd/x",
            "/proc/self/root/etc/passwd",
            "/sys/../etc/passwd",
            "/etc/passwd",
        ] {
            assert!(files.open(path, OFlags::RDONLY).is_err(), "{path}");
        }
        assert!(files.open("/proc/sys/kernel/osrelease", OFlags::RDONLY).is_ok());
    }

    #[test]
    fn unsupported_settings_are_recognized() {
        let by_nature = |path: &str, errno| {
            matches!(refusal(String::new(), &file(path).of, errno), TuneError::Unsupported { .. })
        };
        assert!(by_nature("/proc/irq/4/smp_affinity_list", Errno::IO));
        assert!(!by_nature("/proc/irq/4/smp_affinity_list", Errno::INVAL));
        assert!(by_nature("/sys/class/net/e/queues/tx-0/xps_cpus", Errno::NOENT));
        assert!(!by_nature("/sys/class/net/e/queues/rx-0/rps_cpus", Errno::NOENT));
        assert!(!by_nature("/sys/class/net/e/queues/rx-0/rps_cpus", Errno::PERM));
    }
}
