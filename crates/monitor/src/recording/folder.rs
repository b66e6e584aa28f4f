//! A recording's folder: `TABLE/SEGMENT.parquet` for what is sealed, `SEGMENT.log` for what is open. Names of segments
//! begin with the time of their start in UTC, so that they sort by time, and end with a part of the boot id.

use super::log::EXTENSION as LOG;
use super::table::{TABLES, Table};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The extension of sealed files.
pub const SEALED: &str = "parquet";
/// What a file is called until it is complete; the last part of its name.
pub const TEMPORARY: &str = "tmp";
/// Most segments of a folder that are listed.
const SEGMENTS_MAX: usize = 1_000_000;
/// Characters of the time in a name: `20261125T091300Z`.
const TIME: usize = 16;

/// A name for a segment that begins now.
pub fn name(boot: &str, now: SystemTime) -> String {
    // 2026-11-25T09:13:00Z.
    let time: String = humantime::format_rfc3339_seconds(now)
        .to_string()
        .chars()
        .filter(|c| !matches!(c, '-' | ':'))
        .collect();
    let boot: String = boot.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    format!("{time}-{}", if boot.is_empty() { "0" } else { &boot })
}

/// When a segment began, in microseconds since 1970; `None` if it is no segment's name.
pub fn start(name: &str) -> Option<i64> {
    let (time, rest) = (name.get(..TIME)?, name.get(TIME..)?);
    let is_ours = rest.len() > 1
        && rest.len() < 64
        && rest.starts_with('-')
        && rest.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let digits = |from: usize, to: usize| time.get(from..to);
    let parts = (digits(0, 4)?, digits(4, 6)?, digits(6, 8)?);
    let clock = (digits(9, 11)?, digits(11, 13)?, digits(13, 15)?);
    let text = format!("{}-{}-{}T{}:{}:{}Z", parts.0, parts.1, parts.2, clock.0, clock.1, clock.2);
    let at = humantime::parse_rfc3339(&text).ok().filter(|_| is_ours)?;
    i64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
}

/// What a segment's name has of the boot id; `None` if the boot had none.
pub fn boot(name: &str) -> Option<&str> {
    let boot = name.get(TIME..)?.strip_prefix('-')?.split('-').next()?;
    (boot != "0").then_some(boot)
}

/// A sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of its files, as they take them on the disk.
    pub bytes: u64,
    /// When the last of them was written.
    pub written: SystemTime,
}

/// Path of a table's file in a segment.
pub fn sealed(folder: &Path, table: Table, segment: &str) -> PathBuf {
    folder.join(table.spec().name).join(format!("{segment}.{SEALED}"))
}

/// Path of the log of a segment.
pub fn log(folder: &Path, segment: &str) -> PathBuf {
    folder.join(format!("{segment}.{LOG}"))
}

/// All sealed segments, by name.
///
/// # Errors
/// The folder cannot be read.
pub fn segments(folder: &Path) -> io::Result<BTreeMap<String, Segment>> {
    let mut segments: BTreeMap<String, Segment> = BTreeMap::new();
    for spec in TABLES {
        for (segment, file) in files(&folder.join(spec.name), SEALED)? {
            if segments.len() >= SEGMENTS_MAX {
                break;
            }
            let Ok(metadata) = fs::symlink_metadata(&file) else { continue };
            let entry =
                segments.entry(segment).or_insert(Segment { bytes: 0, written: UNIX_EPOCH });
            entry.bytes += metadata.blocks() * 512;
            entry.written = entry.written.max(metadata.modified().unwrap_or(UNIX_EPOCH));
        }
    }
    Ok(segments)
}

/// The room that the log of a segment takes; a link's own.
///
/// # Errors
/// There is none.
pub fn log_of(path: &Path) -> io::Result<Segment> {
    let metadata = fs::symlink_metadata(path)?;
    let written = metadata.modified().unwrap_or(UNIX_EPOCH);
    Ok(Segment { bytes: metadata.blocks() * 512, written })
}

/// The logs of segments that were not sealed, by name.
///
/// # Errors
/// The folder cannot be read.
pub fn logs(folder: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    files(folder, LOG)
}

/// Segments' files with an extension; none if the folder does not exist.
fn files(folder: &Path, extension: &str) -> io::Result<BTreeMap<String, PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut files = BTreeMap::new();
    for entry in entries.take(SEGMENTS_MAX) {
        let path = entry?.path();
        let is_wanted = path.extension().is_some_and(|have| have == extension);
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if let Some(segment) = stem.filter(|stem| is_wanted && start(stem).is_some()) {
            files.insert(segment.to_owned(), path.clone());
        }
    }
    Ok(files)
}

/// Removes a segment's files.
///
/// # Errors
/// One cannot be removed; those after it are still there.
pub fn remove(folder: &Path, segment: &str) -> io::Result<()> {
    for spec in TABLES {
        match fs::remove_file(sealed(folder, spec.table, segment)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes files that were not complete when a recorder was killed.
pub fn remove_temporary(folder: &Path) {
    for spec in TABLES {
        let entries = fs::read_dir(folder.join(spec.name)).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.extension().is_some_and(|have| have == TEMPORARY) {
                // Those that remain cost room only.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// The oldest segments that are too old, or too many for the room.
pub fn expired(
    segments: &BTreeMap<String, Segment>,
    keep_bytes: u64,
    keep_age: Duration,
    now: SystemTime,
) -> Vec<String> {
    let mut bytes: u64 = segments.values().map(|segment| segment.bytes).sum();
    let mut expired = Vec::new();
    for (name, segment) in segments {
        // A clock that was set back makes nothing old.
        let age = now.duration_since(segment.written).unwrap_or_default();
        if bytes <= keep_bytes && age <= keep_age {
            continue;
        }
        bytes = bytes.saturating_sub(segment.bytes);
        expired.push(name.clone());
    }
    expired
}

/// Makes names in a folder durable.
///
/// # Errors
/// The folder cannot be opened, or the disk refuses.
pub fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_time_and_other_files_are_not_touched() {
        let at = UNIX_EPOCH + Duration::from_secs(1_795_598_000);
        let name = name("1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809", at);
        assert_eq!(name, "20261125T091320Z-1a2b3c4d");
        assert_eq!(start(&name), Some(1_795_598_000_000_000));
        assert_eq!(start("20261125T091320Z-1a2b3c4d-2"), start(&name));
        assert_eq!(boot("20261125T091320Z-1a2b3c4d-2"), Some("1a2b3c4d"));
        assert_eq!(boot(&super::name("", at)), None);
        for other in ["", "notes", "20261125T091320Z", "20261325T091320Z-1a", "../../etc/passwd-0a"]
        {
            assert_eq!(start(other), None, "{other}");
        }
        assert_eq!(start("20261125T091320Z-../x"), None);
        assert_eq!(start("ä0261125T091320Z-1a"), None);
    }

    #[test]
    fn the_oldest_go_first() {
        let now = UNIX_EPOCH + Duration::from_secs(10_000);
        let of = |age: u64| Segment { bytes: 100, written: now - Duration::from_secs(age) };
        let names = ["a", "b", "c"];
        let segments: BTreeMap<String, Segment> =
            names.iter().zip([300, 200, 100]).map(|(n, age)| ((*n).to_owned(), of(age))).collect();
        let kept = |bytes, age| expired(&segments, bytes, Duration::from_secs(age), now);
        assert!(kept(300, 300).is_empty());
        assert_eq!(kept(299, 300), ["a"]);
        assert_eq!(kept(0, 300), ["a", "b", "c"]);
        assert_eq!(kept(300, 150), ["a", "b"]);
        // The clock went back.
        assert!(expired(&segments, 300, Duration::ZERO, UNIX_EPOCH).is_empty());
    }
}
