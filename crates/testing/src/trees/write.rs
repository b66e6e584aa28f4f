//! Writes a machine into a directory.
//!
//! Input: a [`Machine`]. Output: a [`Tree`] that is removed when it is dropped.

use super::Machine;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A written machine: a temporary directory with `sys` and `proc`.
#[derive(Debug)]
pub struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// The directory, for `Root::tree` or `--root`.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Machine {
    /// Writes the machine into a new temporary directory: in memory if there is room, since large
    /// trees have tens of thousands of files.
    ///
    /// # Panics
    /// If the directory cannot be written.
    pub fn write(&self) -> Tree {
        let memory = Path::new("/dev/shm");
        if has_room(memory) { self.write_in(memory) } else { self.write_in(&std::env::temp_dir()) }
    }

    /// Like [`Machine::write`], with the new directory in `parent`.
    ///
    /// # Panics
    /// If the directory cannot be written.
    pub fn write_in(&self, parent: &Path) -> Tree {
        let dir = tempfile::Builder::new().prefix("nearpath-tree-").tempdir_in(parent);
        let tree = Tree { dir: dir.expect("a temporary directory") };
        let mut writer = Writer { base: tree.path().to_owned(), made: HashSet::new() };
        self.write_cpus(&mut writer);
        self.write_nodes(&mut writer);
        self.write_nics(&mut writer);
        self.write_proc(&mut writer);
        for (path, content) in &self.edits {
            match content {
                Some(content) => writer.file(path, content),
                None => writer.remove(path),
            }
        }
        tree
    }
}

/// Whether the largest trees fit, several at a time: each file takes a page.
fn has_room(dir: &Path) -> bool {
    let room = rustix::fs::statvfs(dir).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    room.is_ok_and(|bytes| bytes >= 1 << 30) && tempfile::tempfile_in(dir).is_ok()
}

/// Writes below the base; paths are the machine's own.
pub(super) struct Writer {
    base: PathBuf,
    made: HashSet<PathBuf>,
}

impl Writer {
    fn at(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    fn make_dir(&mut self, dir: &Path) {
        if !self.made.contains(dir) {
            fs::create_dir_all(dir).expect("a directory of the tree");
            self.made.insert(dir.to_owned());
        }
    }

    pub(super) fn dir(&mut self, path: &str) {
        let dir = self.at(path);
        self.make_dir(&dir);
    }

    pub(super) fn file(&mut self, path: &str, content: impl AsRef<[u8]>) {
        let file = self.at(path);
        self.make_dir(file.parent().expect("a path below the base"));
        fs::write(file, content).expect("a file of the tree");
    }

    /// A file with one line, like most of sysfs.
    pub(super) fn line(&mut self, path: &str, content: impl std::fmt::Display) {
        self.file(path, format!("{content}\n"));
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        let link = self.at(path);
        self.make_dir(link.parent().expect("a path below the base"));
        symlink(target, link).expect("a link of the tree");
    }

    fn remove(&mut self, path: &str) {
        let path = self.at(path);
        let is_dir = fs::symlink_metadata(&path).expect("the tree has it").is_dir();
        if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.expect("removed");
        self.made.retain(|dir| !dir.starts_with(&path));
    }
}

/// Formats CPUs as a cpulist: `0-3,8`. The numbers must be ascending.
pub fn cpulist(cpus: &[u32]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b);
    let runs = runs.map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Formats CPUs as a mask of `bits` bits in groups of 32, in the kernel's format.
pub fn mask(cpus: &[u32], bits: u32) -> String {
    let mut groups = vec![0u32; bits.div_ceil(32).max(1) as usize];
    for cpu in cpus {
        groups[*cpu as usize / 32] |= 1 << (cpu % 32);
    }
    groups.iter().rev().map(|group| format!("{group:08x}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_have_the_kernels_format() {
        assert_eq!(cpulist(&[]), "");
        assert_eq!(cpulist(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(mask(&[], 8), "00000000");
        assert_eq!(mask(&[0, 35], 64), "00000008,00000001");
    }
}
