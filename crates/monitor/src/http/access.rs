//! Who may see the pages: TLS and users with passwords, from the file that exporters share (`web-config.yml`:
//! prometheus/exporter-toolkit, docs/web-configuration.md). Of it, what a server without HTTP/2 needs; anything else is
//! refused, so that nobody believes in a protection that is not there.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::hint::black_box;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum size of the file, and of a certificate or key.
const FILE_MAX: u64 = 1 << 20;
/// Maximum number of users.
const USERS_MAX: usize = 64;
/// Costs of hashes, of 2^n rounds each: those of bcrypt, as long as a check does not take seconds.
const COSTS: RangeInclusive<u32> = 4..=14;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read.
    #[error("{file}: {error}", file = .0.display(), error = .1)]
    File(PathBuf, std::io::Error),
    /// It is not such a file.
    #[error("{file}: {error}", file = .0.display(), error = .1)]
    Form(PathBuf, String),
    /// TLS refuses certificate or key.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tls_server_config: Option<Tls>,
    #[serde(default)]
    basic_auth_users: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    cert_file: PathBuf,
    key_file: PathBuf,
    min_version: Option<String>,
}

/// A file as it was when it was opened.
#[derive(Debug)]
struct ReadFile {
    path: PathBuf,
    stamp: Stamp,
}

/// What changes with a file's contents, or when another takes its place: device, inode, size, and both times.
pub type Stamp = (u64, u64, u64, [i64; 4]);

fn stamp(data: &Metadata) -> Stamp {
    let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
    (data.dev(), data.ino(), data.size(), times)
}

/// Who may see the pages; without any rule everybody.
#[derive(Default)]
pub struct Access {
    tls: Option<Arc<ServerConfig>>,
    users: BTreeMap<String, String>,
    /// What was read: the configuration, certificate and key.
    files: Vec<ReadFile>,
    /// Headers that were found right, and need not be hashed again.
    known: Mutex<Vec<String>>,
}

impl Access {
    /// Reads a `web-config.yml`; names of files in it are relative to its folder.
    ///
    /// # Errors
    /// A file cannot be read, or holds something that this server cannot do.
    pub fn read(file: &Path) -> Result<Self, AccessError> {
        let form = |text: String| AccessError::Form(file.to_owned(), text);
        let mut files = Vec::new();
        let bytes = read(file, &mut files)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| form(error.to_string()))?;
        let config = parse(text).map_err(form)?;
        let folder = file.parent().unwrap_or(Path::new("."));
        let tls = config.tls_server_config.as_ref();
        let tls = tls.map(|tls| server_config(tls, folder, &mut files));
        let (tls, users) = (tls.transpose()?, config.basic_auth_users);
        Ok(Self { tls, users, files, known: Mutex::default() })
    }

    /// Its files as they are now; `None` for one that is gone.
    pub fn stamps(&self) -> Vec<Option<Stamp>> {
        let now = |file: &ReadFile| std::fs::metadata(&file.path).ok().as_ref().map(stamp);
        self.files.iter().map(now).collect()
    }

    /// Whether any of its files was another one when it was read.
    pub fn has_changed(&self, stamps: &[Option<Stamp>]) -> bool {
        !self.files.iter().map(|file| Some(file.stamp)).eq(stamps.iter().copied())
    }

    /// The configuration of TLS, if connections are encrypted.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.clone()
    }

    /// Whether a password is needed.
    pub fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// Whether a request with this `Authorization` may see the pages; `None` if its password must be checked.
    pub fn known(&self, authorization: Option<&str>) -> Option<bool> {
        if !self.has_users() {
            return Some(true);
        }
        let Some(header) = authorization.filter(|header| credentials(header).is_some()) else {
            return Some(false);
        };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|known| same(known, header)).then_some(true)
    }

    /// Checks the password of an `Authorization`. This takes long, and a refusal takes the same time whether the user
    /// exists or not, and whatever the cost of the user's hash.
    pub fn check(&self, header: &str) -> bool {
        let Some((user, password)) = credentials(header) else { return false };
        let hash = self.users.get(&user);
        let Some(any) = hash.or_else(|| self.users.values().next()) else { return false };
        let is_right = bcrypt::verify(&password, any).unwrap_or(false) && hash.is_some();
        if is_right {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.truncate(USERS_MAX - 1);
            known.insert(0, header.to_owned());
        } else {
            // Each cost is twice the one before: with those from its own on, it is the highest one.
            let most = self.users.values().filter_map(|hash| cost(hash)).max();
            for cost in cost(any).unwrap_or(0)..most.unwrap_or(0) {
                let _ = black_box(bcrypt::hash_with_salt(&password, cost, [0; 16]));
            }
        }
        is_right
    }

    /// As a request is answered.
    #[cfg(test)]
    pub fn allows(&self, authorization: Option<&str>) -> bool {
        self.known(authorization).unwrap_or_else(|| self.check(authorization.unwrap_or_default()))
    }
}

/// The cost of a bcrypt hash.
fn cost(hash: &str) -> Option<u32> {
    hash.parse::<bcrypt::HashParts>().ok().map(|hash| hash.get_cost())
}

/// Compares in a time that does not depend on where they differ.
fn same(a: &str, b: &str) -> bool {
    let differs = a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    a.len() == b.len() && differs == 0
}

/// Reads a file, and notes what it was when it was opened: what is written meanwhile is a change.
fn read(file: &Path, files: &mut Vec<ReadFile>) -> Result<Vec<u8>, AccessError> {
    use std::io::Read;
    let of = |error| AccessError::File(file.to_owned(), error);
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(of)?;
    let stamp = stamp(&opened.metadata().map_err(of)?);
    files.push(ReadFile { path: file.to_owned(), stamp });
    opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(of)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(AccessError::Form(file.to_owned(), "larger than 1 MiB".to_owned()));
    }
    Ok(bytes)
}

/// Parses the file; the text says what is wrong with it.
fn parse(text: &str) -> Result<File, String> {
    let file: Option<File> = serde_norway::from_str(text).map_err(|error| error.to_string())?;
    let file = file.unwrap_or(File { tls_server_config: None, basic_auth_users: BTreeMap::new() });
    if file.basic_auth_users.len() > USERS_MAX {
        return Err(format!("more than {USERS_MAX} users"));
    }
    for (user, hash) in &file.basic_auth_users {
        match cost(hash) {
            Some(cost) if COSTS.contains(&cost) => {}
            Some(cost) => {
                let (least, most) = COSTS.into_inner();
                return Err(format!("the hash of {user} has cost {cost}, not {least} to {most}"));
            }
            None => return Err(format!("the password of {user} is no bcrypt hash")),
        }
    }
    let version = file.tls_server_config.as_ref().and_then(|tls| tls.min_version.as_deref());
    match version {
        None | Some("TLS12" | "TLS13") => Ok(file),
        Some(other) => Err(format!("min_version {other}: expected TLS12 or TLS13")),
    }
}

fn server_config(
    tls: &Tls,
    folder: &Path,
    files: &mut Vec<ReadFile>,
) -> Result<Arc<ServerConfig>, AccessError> {
    let of = |file: &Path, error: &dyn std::fmt::Display| {
        AccessError::Form(file.to_owned(), error.to_string())
    };
    let (cert_file, key_file) = (folder.join(&tls.cert_file), folder.join(&tls.key_file));
    let bytes = read(&cert_file, files)?;
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| of(&cert_file, &error))?;
    let key = read(&key_file, files)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| of(&key_file, &error))?;
    let versions: &[_] = match tls.min_version.as_deref() {
        Some("TLS13") => &[&rustls::version::TLS13],
        _ => &[&rustls::version::TLS13, &rustls::version::TLS12],
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    Ok(Arc::new(config))
}

/// User and password of a `Basic` header (RFC 7617).
fn credentials(header: &str) -> Option<(String, String)> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(base64(encoded.trim())?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Decodes base64 (RFC 4648, 4); padding may be missing.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes().map(|byte| {
        Some(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    });
    let (mut bits, mut held, mut decoded) = (0u32, 0, Vec::new());
    for digit in digits {
        bits = bits << 6 | u32::from(digit?);
        held += 6;
        if held >= 8 {
            held -= 8;
            decoded.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    // A rest of six bits is part of nothing.
    (held < 6).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    #[test]
    fn headers_are_decoded() {
        let of = |header| credentials(header).map(|(user, password)| format!("{user}|{password}"));
        assert_eq!(of("Basic YWxpY2U6c2U6Y3JldA=="), Some("alice|se:cret".to_owned()));
        assert_eq!(of("basic YWxpY2U6c2U6Y3JldA"), Some("alice|se:cret".to_owned()));
        for wrong in ["", "Basic", "Basic !", "Bearer YTpi", "Basic YQ==", "Basic Y", "Basic /w=="]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_this_server_cannot_do_is_refused() {
        let hash = "$2y$10$abcdefghijklmnopqrstuuYcSzVbbFPTJ0zoBZ3nW1JkcyBhBQIPC";
        assert!(parse("").is_ok());
        assert!(parse(&format!("basic_auth_users:\n  alice: {hash}\n")).is_ok());
        for (text, says) in [
            ("basic_auth_users: {alice: secret}", "no bcrypt hash"),
            (&format!("basic_auth_users: {{alice: {}}}", hash.replace("$10", "$31")), "cost 31"),
            (&format!("basic_auth_users: {{alice: {}}}", hash.replace("$10", "$03")), "cost 3"),
            (&format!("basic_auth_users: {{alice: {}}}", hash.replace("$2y", "$2z")), "no bcrypt"),
            (&format!("basic_auth_users: {{alice: {}}}", hash.replace('u', "!")), "no bcrypt hash"),
            ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "TLS10"),
            ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "client_ca_file"),
            ("tls_server_config: {cert_file: a}", "key_file"),
            ("rate_limit: 3", "rate_limit"),
            ("[1, 2", ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn passwords_are_checked() {
        let hash = bcrypt::hash("secret", 4).unwrap();
        let users = BTreeMap::from([("alice".to_owned(), hash)]);
        let access = Access { users, ..Access::default() };
        // alice:secret, alice:wrong, bob:secret.
        for _ in 0..2 {
            assert!(access.allows(Some("Basic YWxpY2U6c2VjcmV0")));
            assert!(!access.allows(Some("Basic YWxpY2U6d3Jvbmc=")));
            assert!(!access.allows(Some("Basic Ym9iOnNlY3JldA==")));
            assert!(!access.allows(None));
        }
        assert!(Access::default().allows(None));
    }

    /// A client that guesses must not learn which users exist.
    #[test]
    fn a_refusal_costs_the_same_whoever_it_is() {
        let users = [("alice", 4), ("carol", 9)];
        let users = users.map(|(user, cost)| (user.to_owned(), bcrypt::hash("x", cost).unwrap()));
        let access = Access { users: users.into(), ..Access::default() };
        let cost_ns = |header| {
            let time = || {
                let time = clock_gettime(ClockId::ThreadCPUTime);
                time.tv_sec * 1_000_000_000 + time.tv_nsec
            };
            let began = time();
            assert!(!access.allows(Some(header)));
            time() - began
        };
        // alice:secret, carol:secret, bob:secret. The costs of the hashes differ by a factor of 2^5.
        let headers =
            ["Basic YWxpY2U6c2VjcmV0", "Basic Y2Fyb2w6c2VjcmV0", "Basic Ym9iOnNlY3JldA=="];
        let costs = headers.map(cost_ns);
        let (least, most) = (costs.iter().min().unwrap(), costs.iter().max().unwrap());
        assert!(*most < 4 * least, "{costs:?}");
    }
}
