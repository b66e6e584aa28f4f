//! The rules of a file as they are now: certificates are renewed and passwords changed while the daemon serves.
//!
//! As exporters do (prometheus/exporter-toolkit, docs/web-configuration.md), the file, certificate and key are looked at for
//! each connection. What has changed is read; what cannot be used is reported, and the rules of before stay, so a
//! certificate that is replaced before its key refuses nobody. Open connections keep the rules that they began with.

use super::access::{Access, AccessError, Stamp};
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
    /// Why the files cannot be used, and what they were then. They are read again for each connection, since it may be
    /// another file that must change, or who may read them.
    refused: Option<(String, Vec<Option<Stamp>>)>,
}

/// What became of the rules when they were looked at.
#[derive(Debug)]
pub enum Change {
    /// They were read again.
    Read,
    /// The files have changed and cannot be used. Reported once for each change and reason.
    Refused(AccessError),
}

impl CurrentAccess {
    /// Rules that never change.
    pub fn fixed(access: Access) -> Self {
        Self { file: None, needs_tls: false, loaded: Mutex::new(Loaded::new(access)) }
    }

    /// The rules of a `web-config.yml`.
    ///
    /// # Errors
    /// As [`Access::read`].
    pub fn of(file: &Path) -> Result<Self, AccessError> {
        let loaded = Mutex::new(Loaded::new(Access::read(file)?));
        Ok(Self { file: Some(file.to_owned()), needs_tls: false, loaded })
    }

    /// Refuses rules without TLS from now on.
    pub fn needs_tls(&mut self) {
        self.needs_tls = true;
    }

    /// The rules for a connection, and what has become of them since the last one.
    pub fn now(&self) -> (Arc<Access>, Option<Change>) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let change = self.file.as_ref().and_then(|file| self.look(file, &mut loaded));
        (Arc::clone(&loaded.access), change)
    }

    /// Whether the file was in use as it was when it was last looked at; `None` without a file.
    pub fn is_current(&self) -> Option<bool> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.as_ref().map(|_| loaded.refused.is_none())
    }

    fn look(&self, file: &Path, loaded: &mut Loaded) -> Option<Change> {
        let stamps = loaded.access.stamps();
        if loaded.refused.is_none() && !loaded.access.has_changed(&stamps) {
            return None;
        }
        match self.read(file) {
            Ok(access) => {
                *loaded = Loaded::new(access);
                Some(Change::Read)
            }
            Err(error) => {
                let refused = Some((error.to_string(), stamps));
                let is_new = loaded.refused != refused;
                loaded.refused = refused;
                is_new.then_some(Change::Refused(error))
            }
        }
    }

    fn read(&self, file: &Path) -> Result<Access, AccessError> {
        let access = Access::read(file)?;
        if self.needs_tls && access.tls().is_none() {
            let reason = "it has no TLS any more, and this address is open to others";
            return Err(AccessError::Form(file.to_owned(), reason.to_owned()));
        }
        Ok(access)
    }
}

impl Loaded {
    fn new(access: Access) -> Self {
        Self { access: Arc::new(access), refused: None }
    }
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
    fn a_file_that_comes_after_the_one_that_names_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        std::fs::write(&file, users("alice")).unwrap();
        let current = CurrentAccess::of(&file).unwrap();
        let tls = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n";
        std::fs::write(&file, tls).unwrap();
        let refused = |current: &CurrentAccess| match current.now().1 {
            Some(Change::Refused(error)) => Some(error.to_string()),
            _ => None,
        };
        assert!(refused(&current).unwrap().contains("cert.pem"));
        assert_eq!(refused(&current), None, "reported once");
        // The configuration has not changed since; another reason is reported.
        std::fs::write(folder.path().join("cert.pem"), "").unwrap();
        assert!(refused(&current).unwrap().contains("key.pem"));
        assert!(current.now().0.allows(ALICE));
    }

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
