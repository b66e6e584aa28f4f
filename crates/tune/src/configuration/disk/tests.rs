//! Configuration files in a directory of the test: what is created, kept and removed, byte for byte.

use super::*;
use crate::setting::{self, ObservedValue};
use nearpath_model::{Change, ConfigFile, Persistence, Target, Value};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tempfile::TempDir;

const DROP_IN: &str = "/etc/systemd/system/nginx.service.d/50-nearpath.conf";
const ARGS: &str = "/etc/default/irqbalance IRQBALANCE_ARGS";
const TEXT: &str = "# Ours.\n[Service]\nCPUAffinity=2-3\n";

fn etc() -> (TempDir, Etc) {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["systemd/system", "default"] {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let etc = Etc::of(dir.path());
    (dir, etc)
}

fn change(target: &str, before: &str, after: &str) -> Change {
    Change {
        target: Target::ConfigFile(ConfigFile::parse(target).unwrap()),
        before: Value::Text(before.to_owned()),
        after: Value::Text(after.to_owned()),
        why: "a test".to_owned(),
        persistence: Persistence::Kept,
        snapshot: Vec::new(),
    }
}

/// Every file with its text, mode and owner, and every folder.
fn tree(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let text = if meta.is_file() { fs::read(&path).unwrap() } else { vec![] };
            all.push(format!("{} {:o} {} {text:?}", path.display(), meta.mode(), meta.gid()));
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    all.sort();
    all
}

#[test]
fn a_drop_in_is_created_and_removed_with_its_directory() {
    let (dir, etc) = etc();
    let empty = tree(dir.path());
    let change = change(DROP_IN, "", TEXT);
    let Target::ConfigFile(file) = &change.target else { panic!() };
    let its = etc.setting(file).unwrap();
    let change = setting::prepare(&its, change.clone(), false).unwrap();
    setting::write(&its, &change).unwrap();
    let path = dir.path().join("systemd/system/nginx.service.d/50-nearpath.conf");
    assert_eq!(fs::read_to_string(&path).unwrap(), TEXT);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(setting::look(&its, &change).unwrap(), ObservedValue::After);
    setting::undo(&its, &change, false, false).unwrap();
    assert_eq!(tree(dir.path()), empty);
    // Undone again.
    setting::undo(&its, &change, false, false).unwrap();
    assert_eq!(setting::look(&its, &change).unwrap(), ObservedValue::Before);
}

#[test]
fn files_of_others_stay() {
    let (dir, etc) = etc();
    let folder = dir.path().join("systemd/system/nginx.service.d");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("override.conf"), "[Service]\nNice=1\n").unwrap();
    // The leftover of a killed write.
    fs::write(folder.join("50-nearpath.conf.nearpath-new"), "half").unwrap();
    let change = change(DROP_IN, "", TEXT);
    let Target::ConfigFile(file) = &change.target else { panic!() };
    let its = etc.setting(file).unwrap();
    setting::write(&its, &change).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    setting::undo(&its, &change, false, false).unwrap();
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["override.conf"]);
    // Our file was edited externally meanwhile.
    setting::write(&its, &change).unwrap();
    fs::write(folder.join("50-nearpath.conf"), "[Service]\nCPUAffinity=1\n").unwrap();
    assert!(matches!(setting::undo(&its, &change, false, false), Err(TuneError::Drift { .. })));
    setting::undo(&its, &change, true, false).unwrap();
    assert!(!folder.join("50-nearpath.conf").exists());
}

#[test]
fn a_file_edited_by_hand_is_kept_until_restored() {
    let (dir, etc) = etc();
    let folder = dir.path().join("systemd/system/nginx.service.d");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("50-nearpath.conf");
    let theirs = "[Service]\nNice=1\n";
    fs::write(&path, theirs).unwrap();
    let before = tree(dir.path());
    let wanted = change(DROP_IN, theirs, TEXT);
    let Target::ConfigFile(file) = &wanted.target.clone() else { panic!() };
    let its = etc.setting(file).unwrap();
    let refused = setting::prepare(&its, wanted.clone(), false);
    assert!(matches!(refused, Err(TuneError::Drift { .. })), "{refused:?}");
    let made = setting::prepare(&its, wanted.clone(), true).unwrap();
    setting::write(&its, &made).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), TEXT);
    // Edited again: the file kept first is not overwritten.
    fs::write(&path, "[Service]\nNice=2\n").unwrap();
    let again = setting::prepare(&its, wanted, true).unwrap();
    let said = setting::write(&its, &again).unwrap_err().to_string();
    assert!(said.contains("undo that first"), "{said}");
    setting::undo(&its, &made, true, false).unwrap();
    assert_eq!(tree(dir.path()), before);
    // An edited journal cannot inject text.
    let forged = Change { before: Value::Text("[Service]\nExecStart=/x\n".to_owned()), ..made };
    assert!(setting::undo(&its, &forged, true, false).is_err());
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn a_variable_is_replaced_in_its_file() {
    let (dir, etc) = etc();
    let path = dir.path().join("default/irqbalance");
    let text = "#IRQBALANCE_ONESHOT=\nIRQBALANCE_ARGS=\"--policyscript=/x\"\nA=1";
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let before = tree(dir.path());
    let new = "IRQBALANCE_ARGS=\"--policyscript=/x --banirq=7\"";
    let change = change(ARGS, "IRQBALANCE_ARGS=\"--policyscript=/x\"", new);
    let Target::ConfigFile(file) = &change.target.clone() else { panic!() };
    let its = etc.setting(file).unwrap();
    let change = setting::prepare(&its, change, false).unwrap();
    setting::write(&its, &change).unwrap();
    let now = fs::read_to_string(&path).unwrap();
    assert_eq!(now, format!("#IRQBALANCE_ONESHOT=\n{new}\nA=1"));
    setting::undo(&its, &change, false, false).unwrap();
    assert_eq!(tree(dir.path()), before);
    assert!(its.check("IRQBALANCE_ARGS=\"--policyscript=/y\"").is_err());
    assert!(its.write("IRQBALANCE_ARGS=\"--policyscript=/y\"").is_err());
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn a_file_created_for_a_variable_is_removed_with_it() {
    let (dir, etc) = etc();
    let before = tree(dir.path());
    let change = change(ARGS, "", "IRQBALANCE_ARGS=\"--banirq=7\"");
    let Target::ConfigFile(file) = &change.target else { panic!() };
    let its = etc.setting(file).unwrap();
    setting::write(&its, &change).unwrap();
    assert_eq!(
        fs::read_to_string(dir.path().join("default/irqbalance")).unwrap(),
        "IRQBALANCE_ARGS=\"--banirq=7\"\n"
    );
    setting::undo(&its, &change, false, false).unwrap();
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn links_are_not_followed_and_only_regular_files_written() {
    let (dir, etc) = etc();
    let file = ConfigFile::parse(DROP_IN).unwrap();
    let its = etc.setting(&file).unwrap();
    let (folder, elsewhere) =
        (dir.path().join("systemd/system/nginx.service.d"), dir.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &folder).unwrap();
    assert!(its.read().is_err());
    let said = its.write(TEXT).unwrap_err().to_string();
    assert!(said.contains("is a symbolic link"), "{said}");
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    let target = elsewhere.join("file");
    fs::write(&target, "old").unwrap();
    symlink(&target, folder.join("50-nearpath.conf")).unwrap();
    assert!(its.read().is_err() && its.write(TEXT).is_err());
    assert_eq!(fs::read_to_string(&target).unwrap(), "old");
    fs::remove_file(folder.join("50-nearpath.conf")).unwrap();
    fs::create_dir(folder.join("50-nearpath.conf")).unwrap();
    let said = its.read().unwrap_err().to_string();
    assert!(said.contains("not a regular file"), "{said}");
    fs::remove_dir(folder.join("50-nearpath.conf")).unwrap();
    fs::write(folder.join("50-nearpath.conf"), "").unwrap();
    assert!(its.read().unwrap_err().to_string().contains("the file is empty"));
}

#[test]
fn without_its_directory_nothing_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let etc = Etc::of(dir.path());
    for target in [DROP_IN, ARGS, "/etc/default/grub.d/50-nearpath.cfg"] {
        let file = ConfigFile::parse(target).unwrap();
        assert_eq!(etc.setting(&file).unwrap().read().unwrap(), None, "{target}");
    }
}
