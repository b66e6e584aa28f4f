//! The file format of a snapshot: a tar archive, compressed with zstd, of the files at their paths (`sys/…`,
//! `proc/…`) and of additional files in `nearpath/`.
//!
//! An archive is untrusted. It is unpacked in memory only, within bounds, and rejected as a whole if it is
//! damaged, truncated, or contains a path outside of it.

use super::fault::Fault;
use super::manifest::{self, Manifest};
use super::memory::{MAX_BYTES, Memory, Visit};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use ruzstd::encoding::{CompressionLevel, compress};
use std::io::{self, Read};
use tar::{Archive, Builder, EntryType, Header};

/// Largest archive that is opened, in bytes.
pub(super) const MAX_PACKED: usize = 256 << 20;
/// Largest decompression window accepted; `zstd --ultra` requests 128 MiB.
const MAX_WINDOW: u64 = 128 << 20;
/// Maximum unpacked size, in bytes, and maximum compression ratio beyond that. Files of /proc and /sys in tar's
/// blocks shrink 30 to 300 times.
const MIN_UNPACKED: usize = 64 << 20;
const MAX_RATIO: usize = 1000;
/// tar's block size.
const BLOCK: usize = 512;

/// Packs a tree and its manifest.
pub(super) fn pack(files: &Memory, manifest: &Manifest) -> io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let time = manifest.time_unix_s;
    // Links last, so that nothing can be unpacked through one, by any program.
    let mut links = Vec::new();
    files.visit(|path, entry| {
        let path = path.trim_start_matches('/');
        match entry {
            Visit::Dir => {
                let mut header = header(EntryType::Directory, 0o755, 0, time);
                tar.append_data(&mut header, format!("{path}/"), io::empty())
            }
            Visit::File(bytes) => {
                let mut header = header(EntryType::Regular, 0o644, bytes.len(), time);
                tar.append_data(&mut header, path, bytes)
            }
            Visit::Link(target) => {
                links.push((path.to_owned(), target.to_owned()));
                Ok(())
            }
        }
    })?;
    let json = serde_json::to_vec_pretty(manifest)?;
    let mut about = header(EntryType::Regular, 0o644, json.len(), time);
    tar.append_data(&mut about, manifest::PATH.trim_start_matches('/'), json.as_slice())?;
    for (path, target) in links {
        tar.append_link(&mut header(EntryType::Symlink, 0o777, 0, time), path, target)?;
    }
    let tar = tar.into_inner()?;
    let mut packed = Vec::new();
    compress(tar.as_slice(), &mut packed, CompressionLevel::Fastest);
    Ok(packed)
}

fn header(kind: EntryType, mode: u32, size: usize, time: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(time);
    header
}

/// Unpacks an archive.
pub(super) fn unpack(packed: &[u8]) -> Result<Memory, Fault> {
    let tar = decompress(packed)?;
    let parts = parts(&tar)?;
    let mut tree = Memory::over(tar);
    for Part { path, kind } in parts {
        match kind {
            PartKind::File { start, size } => {
                let end = start.checked_add(size).ok_or_else(cut)?;
                tree.add_part(&path, start..end)?;
            }
            PartKind::Dir => tree.add_dir(&path)?,
            PartKind::Link(target) => tree.add_link(&path, &target)?,
        }
    }
    Ok(tree)
}

/// Decompresses the tar archive.
fn decompress(mut packed: &[u8]) -> Result<Vec<u8>, Fault> {
    // The decoder's own messages are of use only to its developers.
    let damaged = || Fault::new("not a snapshot, or truncated or damaged");
    if packed.is_empty() {
        return Err(Fault::new("empty file"));
    }
    let bound = MAX_BYTES.min(packed.len().saturating_mul(MAX_RATIO).max(MIN_UNPACKED));
    let mut tar = Vec::new();
    // A zstd file may consist of several frames.
    while !packed.is_empty() {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        let mut frame =
            StreamingDecoder::new_with_decoder(&mut packed, decoder).map_err(|_| damaged())?;
        let left = (bound + 1).saturating_sub(tar.len());
        frame.by_ref().take(left as u64).read_to_end(&mut tar).map_err(|_| damaged())?;
        if tar.len() > bound {
            return Err(Fault::new(format!("unpacks to more than {} MiB", bound >> 20)));
        }
        let decoder = frame.into_frame_decoder();
        match decoder.get_checksum_from_data() {
            Some(sum) if decoder.get_calculated_checksum() != Some(sum) => {
                return Err(damaged());
            }
            _ => {}
        }
    }
    Ok(tar)
}

/// An entry of the archive.
struct Part {
    path: String,
    kind: PartKind,
}

enum PartKind {
    File { start: usize, size: usize },
    Dir,
    Link(String),
}

/// The files, directories and links in a tar archive.
fn parts(tar: &[u8]) -> Result<Vec<Part>, Fault> {
    let damaged = |error: io::Error| Fault::new(format!("damaged tar archive: {error}"));
    let mut parts = Vec::new();
    let mut end = 0;
    for entry in Archive::new(tar).entries().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        let path = inner_path(&entry.path_bytes())?;
        let place = |n: u64| usize::try_from(n).map_err(|_| cut());
        let (start, size) = (place(entry.raw_file_position())?, place(entry.size())?);
        end = start.checked_add(size).ok_or_else(cut)?;
        let kind = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => PartKind::File { start, size },
            EntryType::Directory => PartKind::Dir,
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(|| {
                    Fault::new(format!("the link {} has no valid target", path.escape_debug()))
                })?;
                PartKind::Link(String::from_utf8_lossy(&target).into_owned())
            }
            other => {
                return Err(Fault::new(format!(
                    "{} is not a file, directory or symbolic link (tar type {:?})",
                    path.escape_debug(),
                    char::from(other.as_byte())
                )));
            }
        };
        if path != "/" {
            parts.push(Part { path, kind });
        }
    }
    // An archive ends with blocks of zeros; one that was truncated between two entries does not.
    let end = end.checked_next_multiple_of(BLOCK).ok_or_else(cut)?;
    match tar.get(end..end.saturating_add(BLOCK)) {
        Some(zeros) if zeros.iter().all(|&byte| byte == 0) => Ok(parts),
        _ => Err(cut()),
    }
}

/// The path of an entry within the tree: `./sys/x` and `sys/x` are `/sys/x`.
fn inner_path(raw: &[u8]) -> Result<String, Fault> {
    let path = String::from_utf8_lossy(raw);
    let out = || {
        Fault::new(format!(
            "the path {:.80} points outside the snapshot",
            path.escape_debug().to_string()
        ))
    };
    if path.starts_with('/') || path.split('/').any(|component| component == "..") {
        return Err(out());
    }
    let components: Vec<&str> =
        path.split('/').filter(|component| !matches!(*component, "" | ".")).collect();
    Ok(format!("/{}", components.join("/")))
}

fn cut() -> Fault {
    Fault::new("truncated")
}
