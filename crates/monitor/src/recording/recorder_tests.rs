use super::super::batch::Cell;
use super::super::reader::Recording;
use super::*;

fn settings(folder: &Path) -> Settings {
    Settings {
        folder: folder.join("recording"),
        segment: Duration::from_secs(3600),
        keep_bytes: u64::MAX,
        keep_age: Duration::from_secs(3600),
    }
}

fn batch(time_us: i64) -> Batch {
    let mut batch = Batch { time_us, interval_s: 1.0, ..Batch::default() };
    batch.push(Table::Packets, [Cell::from("started"), Cell::Count(time_us)]);
    batch.push(Table::TcpLimits, [Cell::from("reader"), Cell::from(0.5)]);
    batch
}

fn times(folder: &Path, table: Table) -> Vec<i64> {
    let rows = Recording::open(folder).unwrap().rows(table, i64::MIN, i64::MAX);
    assert!(rows.notes.is_empty(), "{:?}", rows.notes);
    rows.rows.iter().map(|row| row.time_us).collect()
}

/// Both on one thread; what is open at its end is sealed.
struct Both(Recorder, Sealer);

impl Both {
    fn append(&mut self, batch: &Batch) -> Result<(), RecordError> {
        let log = self.0.append(batch)?;
        log.map_or(Ok(()), |log| self.1.sync(&log))
    }

    fn seal(&mut self) -> Result<(), RecordError> {
        self.1.seal(self.0.close())
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        let _ = self.seal();
    }
}

fn recorder(settings: &Settings) -> Both {
    let (recorder, sealer) = Recorder::new(settings.clone(), "h", "1a2b3c4d").unwrap();
    Both(recorder, sealer)
}

#[test]
fn rows_can_be_read_before_and_after_sealing() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let mut recorder = recorder(&settings);
    for n in 1..4 {
        recorder.append(&batch(n)).unwrap();
        assert_eq!(times(&settings.folder, Table::Packets).len(), usize::try_from(n).unwrap());
    }
    recorder.seal().unwrap();
    assert_eq!(times(&settings.folder, Table::Packets), [1, 2, 3]);
    assert!(folder::logs(&settings.folder).unwrap().is_empty());
    // In the same second.
    recorder.append(&batch(4)).unwrap();
    drop(recorder);
    assert_eq!(times(&settings.folder, Table::TcpLimits), [1, 2, 3, 4]);
    let segments = folder::segments(&settings.folder).unwrap();
    assert_eq!(segments.len(), 2, "{segments:?}");
}

#[test]
fn one_recorder_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let _first = recorder(&settings);
    let second = Recorder::new(settings, "h", "b").unwrap_err().to_string();
    assert!(second.ends_with("another process records there"), "{second}");
}

/// Whatever a kill leaves: a log cut anywhere, files of the segment sealed or not, a temporary file.
#[test]
fn what_is_left_is_sealed_once() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let mut first = recorder(&settings);
    for n in 1..4 {
        first.append(&batch(n)).unwrap();
    }
    let name = first.0.open.as_ref().unwrap().name.clone();
    let path = folder::log(&settings.folder, &name);
    let log = fs::read(&path).unwrap();
    drop(first);
    let sealed = |table| folder::sealed(&settings.folder, table, &name);
    let packets = fs::read(sealed(Table::Packets)).unwrap();
    for cut in [0, 5, log.len() / 2, log.len() - 1, log.len()] {
        for was_sealed in [false, true] {
            fs::write(&path, &log[..cut]).unwrap();
            let _ = fs::remove_file(sealed(Table::TcpLimits));
            let _ = fs::remove_file(sealed(Table::Packets));
            if was_sealed && cut == log.len() {
                fs::write(sealed(Table::Packets), &packets).unwrap();
            }
            fs::write(sealed(Table::Packets).with_extension(TEMPORARY), "half").unwrap();
            drop(recorder(&settings));
            let whole = log[..cut].iter().filter(|&&byte| byte == b'\n').count().saturating_sub(1);
            let read = Recording::open(&settings.folder);
            let have = read.map_or(0, |r| r.rows(Table::TcpLimits, 0, i64::MAX).rows.len());
            assert_eq!(have, whole, "{cut}");
            if whole > 0 {
                assert_eq!(times(&settings.folder, Table::Packets).len(), whole, "{cut}");
            }
            assert!(!path.exists());
            assert!(!sealed(Table::Packets).with_extension(TEMPORARY).exists());
        }
    }
}

#[test]
fn a_bad_log_is_skipped_and_the_others_are_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::write(&outside, "not of the recording").unwrap();
    let settings = settings(folder.path());
    let mut first = recorder(&settings);
    let path = settings.folder.clone();
    let open_log = || folder::logs(&path).unwrap().into_values().next_back().unwrap();
    // Removed while it was written.
    first.append(&batch(1)).unwrap();
    fs::remove_file(open_log()).unwrap();
    let removed = first.seal().unwrap_err().to_string();
    assert!(removed.contains(".log: segment skipped: No such file"), "{removed}");
    // Replaced by a link.
    first.append(&batch(2)).unwrap();
    let link = open_log();
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let replaced = first.seal().unwrap_err().to_string();
    assert!(replaced.contains("segment skipped"), "{replaced}");
    first.append(&batch(3)).unwrap();
    first.seal().unwrap();
    drop(first);
    // A new recorder is not stopped by it, and reports it once.
    let mut second = recorder(&settings);
    second.append(&batch(4)).unwrap();
    assert!(second.seal().is_err());
    second.append(&batch(5)).unwrap();
    second.seal().unwrap();
    let rows = Recording::open(&path).unwrap().rows(Table::Packets, i64::MIN, i64::MAX).rows;
    assert_eq!(rows.iter().map(|row| row.time_us).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "not of the recording");
}

#[test]
fn old_segments_and_nothing_else_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    let mut first = recorder(&settings);
    fs::create_dir_all(settings.folder.join("packets")).unwrap();
    fs::write(settings.folder.join("packets/notes.parquet"), "mine").unwrap();
    for n in 1..5 {
        first.append(&batch(n)).unwrap();
        first.seal().unwrap();
    }
    drop(first);
    let bytes: u64 =
        folder::segments(&settings.folder).unwrap().values().map(|segment| segment.bytes).sum();
    settings.keep_bytes = bytes / 2;
    drop(recorder(&settings));
    assert_eq!(times(&settings.folder, Table::Packets), [3, 4]);
    assert!(settings.folder.join("packets/notes.parquet").exists());
}

#[test]
fn a_disk_that_is_full_loses_what_did_not_fit_and_nothing_else() {
    // A file size limit is what this process would see of a full disk, but it would hit all tests: a small tmpfs instead.
    if !nearpath_testing::require_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        let status = std::process::Command::new(arguments[0]).args(&arguments[1..]).status();
        assert!(status.unwrap().success());
    };
    let path = folder.path().to_str().unwrap();
    mount(&["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", path]);
    let settings = settings(folder.path());
    let mut recorder = recorder(&settings);
    recorder.append(&batch(1)).unwrap();
    let filler = folder.path().join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let mut lost = 0;
    for n in 2..200 {
        lost += u32::from(recorder.append(&batch(n)).is_err());
    }
    let sealed = recorder.seal();
    let have = times(&settings.folder, Table::Packets);
    drop(file);
    fs::remove_file(&filler).unwrap();
    recorder.append(&batch(1000)).unwrap();
    recorder.seal().unwrap();
    let after = times(&settings.folder, Table::Packets);
    drop(recorder);
    mount(&["umount", path]);
    assert!(lost > 0 && sealed.is_err(), "{lost} {sealed:?}");
    assert_eq!(have.len() + usize::try_from(lost).unwrap(), 199);
    assert_eq!(after, [&have[..], &[1000]].concat());
}
