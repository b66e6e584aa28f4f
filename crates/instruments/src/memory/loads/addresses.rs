//! Where addresses are: the node of a physical one, the region of a virtual one, the function of an instruction.
//!
//! Input: the host: its memory blocks by node (Documentation/admin-guide/mm/memory-hotplug.rst), `/proc/PID/maps` of the
//! processes that have samples, `/proc/kallsyms`, and the symbols of the files that instructions are in. What has exited
//! is `unknown`.

use super::elf;
use crate::kernel::Symbols;
use crate::memory::blocks::Blocks;
use nearpath_host::Root;
use nearpath_model::NodeId;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// Maximum number of processes whose mappings are kept.
const PROCESSES: usize = 4096;
/// Maximum number of mappings of a process.
const MAPPINGS: usize = 1 << 16;
/// Time limit for reading the symbols of a file.
const TIME: Duration = Duration::from_millis(500);
/// Addresses from here on are the kernel's.
const KERNEL: u64 = 1 << 63;

/// Looks addresses up, and keeps what it has read.
#[derive(Debug)]
pub struct Addresses<'a> {
    root: &'a Root,
    blocks: Blocks,
    processes: HashMap<u32, Vec<Region>>,
    threads: HashMap<u32, u32>,
    kernel: Option<Symbols>,
    files: HashMap<String, Rc<elf::Functions>>,
}

/// A mapping.
#[derive(Debug)]
struct Region {
    start: u64,
    end: u64,
    offset: u64,
    name: String,
}

impl<'a> Addresses<'a> {
    /// Those of the host behind a root.
    pub fn new(root: &'a Root) -> Self {
        let (processes, files) = (HashMap::new(), HashMap::new());
        let threads = HashMap::new();
        Self { root, blocks: Blocks::read(root), processes, threads, kernel: None, files }
    }

    /// The node of a physical address; `None` if it is unknown, as 0 is.
    pub fn node(&self, physical: u64) -> Option<NodeId> {
        self.blocks.node(physical).filter(|_| physical != 0)
    }

    /// The name of a process.
    pub fn comm(&self, pid: u32) -> Option<String> {
        self.root.text(&format!("/proc/{pid}/comm")).ok()
    }

    /// The process of a thread; 0 if it has exited, or is not known.
    pub fn process_of(&mut self, thread: u32) -> u32 {
        if let Some(&known) = self.threads.get(&thread) {
            return known;
        }
        let status = self.root.text(&format!("/proc/{thread}/status")).unwrap_or_default();
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        let process = group.unwrap_or(0);
        // Numbers are reused; those that are looked up again are few.
        if self.threads.len() >= PROCESSES {
            self.threads.clear();
        }
        self.threads.insert(thread, process);
        process
    }

    /// The region that an address is in.
    pub fn region(&mut self, pid: u32, address: u64) -> String {
        match address {
            0 => "unknown".to_owned(),
            KERNEL.. => "kernel".to_owned(),
            _ => self.mapping(pid, address).map_or("unknown".to_owned(), |its| its.name.clone()),
        }
    }

    /// The function that an instruction is in, or its place in its file.
    pub fn function(&mut self, pid: u32, ip: u64) -> String {
        if ip >= KERNEL {
            let root = self.root;
            let symbols = self.kernel.get_or_insert_with(|| Symbols::read(root));
            return symbols.name(ip).map_or("kernel".to_owned(), str::to_owned);
        }
        let Some(region) = self.mapping(pid, ip) else { return "unknown".to_owned() };
        let (file, at) = (region.name.clone(), ip - region.start + region.offset);
        let functions = self.functions(pid, &file);
        let short = file.rsplit('/').next().unwrap_or_default();
        match functions.name(at) {
            Some(name) => name,
            None => format!("{short}+{at:#x}"),
        }
    }

    fn functions(&mut self, pid: u32, file: &str) -> Rc<elf::Functions> {
        if let Some(known) = self.files.get(file) {
            return known.clone();
        }
        // In the process's own mount namespace.
        let path = format!("/proc/{pid}/root{file}");
        let bytes = self.root.read_within(&path, TIME).unwrap_or_default();
        let functions = Rc::new(elf::functions(&bytes));
        self.files.insert(file.to_owned(), functions.clone());
        functions
    }

    fn mapping(&mut self, pid: u32, address: u64) -> Option<&Region> {
        if !self.processes.contains_key(&pid) {
            if self.processes.len() >= PROCESSES {
                return None;
            }
            let maps = self.root.read(&format!("/proc/{pid}/maps")).unwrap_or_default();
            let text = String::from_utf8_lossy(&maps);
            let regions = text.lines().filter_map(region).take(MAPPINGS).collect();
            self.processes.insert(pid, regions);
        }
        let regions = self.processes.get(&pid)?;
        let after = regions.partition_point(|its| its.start <= address);
        regions.get(after.checked_sub(1)?).filter(|its| address < its.end)
    }
}

/// `7f00-7f10 rw-s 00000000 00:01 1024 /dev/shm/x`.
fn region(line: &str) -> Option<Region> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = hex(words.nth(1)?)?;
    // After the device and the inode; a name may have spaces.
    let name = line.splitn(6, ' ').nth(5).unwrap_or_default().trim();
    let name = match name {
        "" => "anonymous".to_owned(),
        _ => name.chars().filter(|c| !c.is_control()).take(256).collect(),
    };
    Some(Region { start: hex(start)?, end: hex(end)?, offset, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_spaces_and_lines_may_be_anything() {
        let name = |line: &str| region(line).map(|its| (its.start, its.end, its.name));
        assert_eq!(
            name("7f00-7f10 rw-s 00000000 00:01 1024                    /tmp/a b"),
            Some((0x7f00, 0x7f10, "/tmp/a b".to_owned()))
        );
        assert_eq!(name("7f00-7f10 rw-p 00000000 00:00 0 ").unwrap().2, "anonymous");
        for bad in ["", "7f00", "7f00-7f10", "x-y rw-p 0 0:0 0", "7f00-7f10 rw-p x 0:0 0"] {
            assert!(region(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn functions_of_a_library_have_names() {
        let root = Root::live();
        let mut addresses = Addresses::new(&root);
        let here = libc::getpid as *const () as u64;
        let name = addresses.function(std::process::id(), here);
        assert!(name.contains("getpid"), "{name}");
        assert_eq!(addresses.region(std::process::id(), 0), "unknown");
        assert_eq!(addresses.function(u32::MAX, here), "unknown");
        // SAFETY: it has no arguments and cannot fail.
        let thread = u32::try_from(unsafe { libc::gettid() }).unwrap();
        assert_eq!(addresses.process_of(thread), std::process::id());
        assert_eq!(addresses.process_of(u32::MAX), 0);
    }
}
