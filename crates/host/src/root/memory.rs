//! A file tree in memory: the storage of a recording, and of an opened snapshot.
//!
//! Everything in it may come from an untrusted archive, so its size, depth and number of entries are bounded,
//! and links are followed only within it.

use super::fault::Fault;
use super::files::{Look, MAX_FILE};
use super::walk::{MAX_PATH, walk};
use super::{Entry, EntryKind, order};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum size of all files together, in bytes.
pub(super) const MAX_BYTES: usize = 512 << 20;
/// Maximum number of files, directories and links.
const MAX_ENTRIES: usize = 500_000;
/// Maximum nesting of directories.
const MAX_DEPTH: usize = 64;
/// Maximum length of a name (`NAME_MAX` in include/uapi/linux/limits.h).
const MAX_NAME: usize = 255;

/// Index of the root directory.
const TOP: usize = 0;

/// A file tree in memory.
#[derive(Debug)]
pub(super) struct Memory {
    nodes: Vec<Node>,
    /// The bytes of all files; a file is a range of it.
    data: Vec<u8>,
}

/// An entry.
#[derive(Debug)]
enum Node {
    File(Range<usize>),
    Dir(BTreeMap<Box<str>, usize>),
    Link(Box<str>),
}

/// An entry as passed to a visitor of the tree.
pub(super) enum Visit<'a> {
    /// A file and its bytes.
    File(&'a [u8]),
    /// A directory.
    Dir,
    /// A link and its target.
    Link(&'a str),
}

impl Memory {
    /// An empty tree over bytes that contain its files.
    pub fn over(data: Vec<u8>) -> Self {
        Self { nodes: vec![Node::Dir(BTreeMap::new())], data }
    }

    /// Adds a file, and its parent directories.
    pub fn add_file(&mut self, path: &str, bytes: &[u8]) -> Result<(), Fault> {
        if self.data.len().saturating_add(bytes.len()) > MAX_BYTES {
            return Err(Fault::new("more than 512 MiB"));
        }
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        self.add(path, Node::File(start..self.data.len()))
    }

    /// Adds a file whose content is a range of the bytes of the tree.
    pub fn add_part(&mut self, path: &str, part: Range<usize>) -> Result<(), Fault> {
        if self.data.get(part.clone()).is_none() {
            return Err(Fault::new("truncated"));
        }
        if part.len() > MAX_FILE {
            return Err(Fault::new("contains a file larger than 64 MiB"));
        }
        self.add(path, Node::File(part))
    }

    /// Adds a link, and its parent directories.
    pub fn add_link(&mut self, path: &str, target: &str) -> Result<(), Fault> {
        if target.len() > MAX_PATH {
            return Err(Fault::new("contains a link that is too long"));
        }
        self.add(path, Node::Link(target.into()))
    }

    /// Adds a directory, and its parents; it may exist already.
    pub fn add_dir(&mut self, path: &str) -> Result<(), Fault> {
        self.folder(path).map(drop)
    }

    fn add(&mut self, path: &str, node: Node) -> Result<(), Fault> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.folder(parent)?;
        checked(name, path)?;
        let index = self.nodes.len();
        if index >= MAX_ENTRIES {
            return Err(Fault::new("more than 500,000 files"));
        }
        match self.nodes.get_mut(folder) {
            Some(Node::Dir(names)) if !names.contains_key(name) => {
                names.insert(name.into(), index);
            }
            _ => {
                let twice = format!("{:.80} occurs twice", path.escape_debug().to_string());
                return Err(Fault::of(Errno::EXIST, twice));
            }
        }
        self.nodes.push(node);
        Ok(())
    }

    /// The directory at a path, created if missing.
    fn folder(&mut self, path: &str) -> Result<usize, Fault> {
        if path.len() > MAX_PATH {
            return Err(Fault::new("contains a path that is too long"));
        }
        let mut at = TOP;
        for (depth, name) in path.split('/').filter(|name| !name.is_empty()).enumerate() {
            checked(name, path)?;
            let next = self.nodes.len();
            let found = match self.nodes.get_mut(at) {
                Some(Node::Dir(names)) => match names.get(name) {
                    Some(&found) => found,
                    None if depth >= MAX_DEPTH || next >= MAX_ENTRIES => {
                        return Err(Fault::new("too many or too deeply nested directories"));
                    }
                    None => {
                        names.insert(name.into(), next);
                        self.nodes.push(Node::Dir(BTreeMap::new()));
                        next
                    }
                },
                _ => return Err(not_under_a_folder(path)),
            };
            at = found;
        }
        match self.nodes.get(at) {
            Some(Node::Dir(_)) => Ok(at),
            _ => Err(not_under_a_folder(path)),
        }
    }

    /// The entry at a path without links.
    fn node(&self, path: &str) -> Result<&Node, Errno> {
        let mut node = self.nodes.first().ok_or(Errno::NOENT)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let Node::Dir(names) = node else { return Err(Errno::NOTDIR) };
            let index = names.get(name).ok_or(Errno::NOENT)?;
            node = self.nodes.get(*index).ok_or(Errno::NOENT)?;
        }
        Ok(node)
    }

    /// The entry at a path, following links.
    fn follow(&self, path: &str) -> Result<&Node, Fault> {
        // Most paths have no links and are found immediately.
        if let Ok(node @ (Node::File(_) | Node::Dir(_))) = self.node(path) {
            return Ok(node);
        }
        let resolved = walk(path, true, |at| self.look(at))?;
        Ok(self.node(&resolved)?)
    }

    /// The kind of entry at a path without links.
    pub fn look(&self, path: &str) -> Result<Look, Fault> {
        Ok(match self.node(path)? {
            Node::File(_) => Look::File,
            Node::Dir(_) => Look::Dir,
            Node::Link(target) => Look::Link(target.to_string()),
        })
    }

    /// A file's bytes.
    pub fn read(&self, path: &str) -> Result<&[u8], Fault> {
        match self.follow(path)? {
            Node::File(part) => Ok(self.data.get(part.clone()).unwrap_or_default()),
            _ => Err(Errno::ISDIR.into()),
        }
    }

    /// The names in a directory, in natural order.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        let Node::Dir(names) = self.follow(path)? else {
            return Err(Errno::NOTDIR.into());
        };
        let mut entries: Vec<Entry> = names
            .iter()
            .filter_map(|(name, &index)| {
                let kind = match self.nodes.get(index)? {
                    Node::File(_) => EntryKind::File,
                    Node::Dir(_) => EntryKind::Dir,
                    Node::Link(_) => EntryKind::Link,
                };
                Some(Entry { name: name.to_string(), kind })
            })
            .collect();
        entries.sort_by(|a, b| order::natural(&a.name, &b.name));
        Ok(entries)
    }

    /// Visits every entry with its path, a directory before its content.
    pub fn visit<E>(&self, mut see: impl FnMut(&str, Visit<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut waiting = vec![(String::new(), TOP)];
        while let Some((path, index)) = waiting.pop() {
            match self.nodes.get(index) {
                Some(Node::Dir(names)) => {
                    if index != TOP {
                        see(&path, Visit::Dir)?;
                    }
                    let below = names.iter().rev().map(|(name, &i)| (format!("{path}/{name}"), i));
                    waiting.extend(below);
                }
                Some(Node::File(part)) => {
                    see(&path, Visit::File(self.data.get(part.clone()).unwrap_or_default()))?;
                }
                Some(Node::Link(target)) => see(&path, Visit::Link(target))?,
                None => {}
            }
        }
        Ok(())
    }
}

/// Rejects names that are invalid or would leave the tree.
fn checked(name: &str, path: &str) -> Result<(), Fault> {
    let shown = path.escape_debug().to_string();
    match name {
        ".." | "." | "" => {
            Err(Fault::new(format!("the path {shown:.80} points outside the snapshot")))
        }
        name if name.len() > MAX_NAME || name.contains('\0') => {
            Err(Fault::new(format!("the path {shown:.80} contains an invalid file name")))
        }
        _ => Ok(()),
    }
}

fn not_under_a_folder(path: &str) -> Fault {
    let shown = path.escape_debug().to_string();
    Fault::of(Errno::NOTDIR, format!("{shown:.80} is both a directory and another kind of entry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Memory {
        let mut tree = Memory::over(Vec::new());
        tree.add_file("/sys/devices/eth0/mtu", b"1500\n").unwrap();
        tree.add_link("/sys/class/net/eth0", "../../devices/eth0").unwrap();
        tree.add_link("/sys/out", "/../../etc/passwd").unwrap();
        tree.add_link("/sys/loop", "/sys/loop").unwrap();
        tree
    }

    #[test]
    fn links_are_followed_within_the_tree() {
        let tree = tree();
        assert_eq!(tree.read("/sys/class/net/eth0/mtu").unwrap(), b"1500\n");
        assert!(tree.read("/sys/out").unwrap_err().absent);
        assert_eq!(tree.read("/sys/loop").unwrap_err().errno, Some(Errno::LOOP));
        assert_eq!(tree.read("/sys/class").unwrap_err().errno, Some(Errno::ISDIR));
        assert_eq!(tree.list("/sys/class/net/eth0").unwrap()[0].name, "mtu");
    }

    #[test]
    fn harmful_entries_are_rejected() {
        let mut tree = tree();
        for path in ["/sys/../etc/x", "/..", "/sys/./x", "/sys/a\0b", &"/d".repeat(70)] {
            assert!(tree.add_file(path, b"").is_err(), "{path:?}");
        }
        assert!(tree.add_file("/sys/devices/eth0/mtu", b"").is_err(), "twice");
        assert!(tree.add_file("/sys/devices/eth0/mtu/x", b"").is_err(), "below a file");
        assert!(tree.add_file("/sys/class/net/eth0/x", b"").is_err(), "through a link");
        assert!(tree.add_dir("/sys/devices/eth0").is_ok());
        assert!(tree.add_part("/sys/part", 0..1 << 40).is_err());
    }
}
