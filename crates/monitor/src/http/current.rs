//! The rules of a file as they are now: certificates are renewed and passwords changed while the daemon serves.
//!
//! As exporters do (prometheus/exporter-toolkit, docs/web-configuration.md), the file, and certificate and key, are looked
//! at for each connection. What has changed is read; what cannot be used is reported once, and the rules of before stay,
//! so a certificate that is replaced before its key refuses nobody. Connections that are open keep theirs.

use super::access::{Access, AccessError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The rules, and where they come from.
pub struct CurrentAccess {
    /// Without a file the rules never change.
    file: Option<PathBuf>,
    /// Rules without TLS are refused: it listens where they would be open to everybody.
    needs_tls: bool,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    access: Arc<Access>,
    /// What the files looked like when they were last read, also if they could not be used.
    seen: Vec<Option<Stamp>>,
}

/// What changes with a file's contents, or when another takes its place.
type Stamp = (u64, u64, u64, [i64; 4]);

/// What became of the rules when they were looked at.
#[derive(Debug)]
pub enum Change {
    /// They were read again.
    Read,
    /// The files have changed, and cannot be used.
    Refused(AccessError),
}

impl CurrentAccess {
    /// Rules that never change.
    pub fn fixed(access: Access) -> Self {
        let loaded = Loaded { access: Arc::new(access), seen: Vec::new() };
        Self { file: None, needs_tls: false, loaded: Mutex::new(loaded) }
    }

    /// The rules of a `web-config.yml`.
    ///
    /// # Errors
    /// As [`Access::read`].
    pub fn of(file: &Path) -> Result<Self, AccessError> {
        // Before it is read: what changes meanwhile is seen to have changed.
        let before = stamp(file);
        let access = Access::read(file)?;
        let mut seen = stamps(file, &access);
        if let Some(first) = seen.first_mut() {
            *first = before;
        }
        let loaded = Mutex::new(Loaded { access: Arc::new(access), seen });
        Ok(Self { file: Some(file.to_owned()), needs_tls: false, loaded })
    }

    /// Refuses rules without TLS from now on.
    pub fn needs_tls(&mut self) {
        self.needs_tls = true;
    }

    /// The rules for a connection, and what has become of them since the last one.
    pub fn now(&self) -> (Arc<Access>, Option<Change>) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &self.file else { return (Arc::clone(&loaded.access), None) };
        let seen = stamps(file, &loaded.access);
        if seen == loaded.seen {
            return (Arc::clone(&loaded.access), None);
        }
        let change = match Access::read(file) {
            Ok(access) if access.tls().is_none() && self.needs_tls => {
                loaded.seen = seen;
                let reason = "it has no TLS any more, and this address is open to others";
                Change::Refused(AccessError::Form(file.clone(), reason.to_owned()))
            }
            Ok(access) => {
                // Of the files that it names; what changed since is read the next time, at the latest.
                loaded.seen = stamps(file, &access);
                loaded.access = Arc::new(access);
                Change::Read
            }
            Err(error) => {
                loaded.seen = seen;
                Change::Refused(error)
            }
        };
        (Arc::clone(&loaded.access), Some(change))
    }
}

/// Of the file, and of those that these rules name.
fn stamps(file: &Path, access: &Access) -> Vec<Option<Stamp>> {
    std::iter::once(file).chain(access.files().iter().map(PathBuf::as_path)).map(stamp).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let data = std::fs::metadata(file).ok()?;
    let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
    Some((data.dev(), data.ino(), data.size(), times))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(name: &str) -> String {
        format!("basic_auth_users: {{{name}: {}}}\n", bcrypt::hash("secret", 4).unwrap())
    }

    /// `Authorization` of alice and bob, whose password is `secret`.
    const ALICE: Option<&str> = Some("Basic YWxpY2U6c2VjcmV0");
    const BOB: Option<&str> = Some("Basic Ym9iOnNlY3JldA==");

    #[test]
    fn what_changes_is_read_and_what_cannot_be_used_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        std::fs::write(&file, users("alice")).unwrap();
        let mut current = CurrentAccess::of(&file).unwrap();
        let (access, change) = current.now();
        assert!(access.allows(ALICE) && !access.allows(BOB) && change.is_none());
        // Another user, in a file that takes the place of the first.
        std::fs::write(folder.path().join("new"), users("bob")).unwrap();
        std::fs::rename(folder.path().join("new"), &file).unwrap();
        let (access, change) = current.now();
        assert!(access.allows(BOB) && !access.allows(ALICE));
        assert!(matches!(change, Some(Change::Read)), "{change:?}");
        assert!(current.now().1.is_none());
        // What is no such file, and no file at all.
        std::fs::write(&file, "basic_auth_users: {alice: secret}").unwrap();
        let (access, change) = current.now();
        assert!(access.allows(BOB));
        assert!(matches!(change, Some(Change::Refused(_))), "{change:?}");
        assert!(current.now().1.is_none());
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(current.now().1, Some(Change::Refused(_))));
        assert!(current.now().0.allows(BOB) && current.now().1.is_none());
        std::fs::write(&file, users("alice")).unwrap();
        assert!(current.now().0.allows(ALICE));
        // Where others would see what is not encrypted.
        current.needs_tls();
        std::fs::write(&file, "{}").unwrap();
        let (access, change) = current.now();
        assert!(!access.allows(None), "{change:?}");
        assert!(matches!(change, Some(Change::Refused(_))), "{change:?}");
    }
}
