//! The server against clients that are slow, many, or wrong.

use nearpath_monitor::http::{Access, CONNECTIONS_MAX, CurrentAccess, Page, Pages, Server, serve};
use nearpath_monitor::runner::{self, Config, Outside, Stop};
use nearpath_testing::wait_for;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

struct Fixed;

impl Pages for Fixed {
    fn page(&self, path: &str, accept: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(Page::text(200, &format!("metrics for {accept}"))),
            // More than the sockets' buffers hold.
            "/large" => Some(Page::text(200, &"x".repeat(32 << 20))),
            _ => None,
        }
    }
}

/// Runs `test` against a server, which ends with it.
fn with_server(test: impl FnOnce(SocketAddr)) {
    with_access(CurrentAccess::fixed(Access::default()), test);
}

fn with_access(access: CurrentAccess, test: impl FnOnce(SocketAddr)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (server, stop) = (Server::new(Arc::new(Fixed), access, &|_| ()), Stop::new().unwrap());
    std::thread::scope(|scope| {
        let accepts = scope.spawn(|| serve(scope, &server, &listener, stop.as_fd()));
        let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(address)));
        stop.set();
        accepts.join().unwrap().unwrap();
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    });
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends a request, and reads until the server closes.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Until a connection is free again.
fn works(address: SocketAddr) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        if answer.starts_with("HTTP/1.1 200 ") {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn get_and_head_alone_are_served() {
    with_server(|address| {
        let get = ask(address, "GET /metrics HTTP/1.1\r\nAccept: text/plain\r\n\r\n");
        let (head, body) = get.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Connection: close"));
        assert_eq!(body, "metrics for text/plain\n");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));

        let same = ask(address, "HEAD /metrics HTTP/1.1\r\nAccept: text/plain\r\n\r\n");
        assert_eq!(same.split_once("\r\n\r\n").unwrap(), (head, ""));

        let post = ask(address, "POST /metrics HTTP/1.1\r\n\r\n");
        assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("Allow: GET, HEAD\r\n"));
        assert!(ask(address, "GET /../etc HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, "hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(100_000));
        let long = ask(address, &long);
        assert!(long.is_empty() || long.starts_with("HTTP/1.1 431 "), "{long}");
    });
}

#[test]
fn a_thousand_connections_do_no_harm() {
    with_server(|address| {
        // They stay open without a word.
        let many: Vec<TcpStream> = (0..1_000).map(|_| connect(address)).collect();
        let mut refused = 0;
        for mut stream in &many {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let mut answer = [0; 512];
            if let Ok(n) = stream.read(&mut answer)
                && answer[..n].starts_with(b"HTTP/1.1 503 ")
            {
                refused += 1;
            }
        }
        assert!(refused >= 900, "{refused} were refused");
        drop(many);
        assert!(works(address));
    });
}

#[test]
fn slow_clients_are_ended_and_the_others_are_served_again() {
    with_server(|address| {
        let began = Instant::now();
        let mut slow: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect(address)).collect();
        for stream in &mut slow {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
        }
        // One more byte now and then does not prolong it.
        let ended = loop {
            std::thread::sleep(Duration::from_millis(200));
            if slow.iter_mut().any(|stream| stream.write_all(b"y").is_err()) {
                break began.elapsed();
            }
            assert!(began.elapsed() < Duration::from_secs(30), "a slow request never ends");
        };
        assert!(ended > Duration::from_secs(4), "{ended:?}");
        assert!(works(address));
    });
}

#[test]
fn whoever_does_not_take_the_answer_is_ended() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    with_server(|address| {
        let many: Vec<TcpStream> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut stream = connect(address);
                stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
                stream
            })
            .collect();
        assert!(works(address));
        drop(many);
    });
}

/// A web configuration with a certificate of its own.
fn web_config(folder: &Path, users: &str) -> Option<CurrentAccess> {
    if !nearpath_testing::require_program("openssl") {
        return None;
    }
    certificate(folder);
    let text = format!("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n{users}");
    std::fs::write(folder.join("web.yml"), text).unwrap();
    Some(CurrentAccess::of(&folder.join("web.yml")).unwrap())
}

/// Makes `cert.pem` and `key.pem` in a folder.
fn certificate(folder: &Path) {
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", "key.pem"])
        .args(["-addext", "subjectAltName=DNS:localhost", "-out", "cert.pem"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(made.status.success());
}

/// What curl gets: the status and the content.
fn curl(address: SocketAddr, folder: &Path, more: &[&str]) -> (Option<i32>, String) {
    let resolve = format!("localhost:{}:127.0.0.1", address.port());
    let said = std::process::Command::new("curl")
        .args(["-s", "--max-time", "20", "--cacert", "cert.pem", "--resolve", &resolve])
        .args(more)
        .arg(format!("https://localhost:{}/metrics", address.port()))
        .current_dir(folder)
        .output()
        .unwrap();
    (said.status.code(), String::from_utf8_lossy(&said.stdout).into_owned())
}

#[test]
fn tls_and_passwords_are_required() {
    let folder = tempfile::tempdir().unwrap();
    // htpasswd -nbBC 4 alice secret
    let users = "basic_auth_users:\n  alice: $2y$04$HASH\n";
    let hash = bcrypt::hash_with_result("secret", 4).unwrap();
    let users = users.replace("$2y$04$HASH", &hash.format_for_version(bcrypt::Version::TwoY));
    let Some(access) = web_config(folder.path(), &users) else { return };
    if !nearpath_testing::require_program("curl") {
        return;
    }
    let folder = folder.path();
    with_access(access, |address| {
        let (_, body) = curl(address, folder, &["-u", "alice:secret"]);
        assert!(body.starts_with("metrics for"), "{body}");
        for wrong in [&["-u", "alice:wrong"][..], &["-u", "bob:secret"], &[]] {
            let (_, said) = curl(
                address,
                folder,
                &[wrong, &["-w", "%{http_code}", "-o", "/dev/null"]].concat(),
            );
            assert_eq!(said, "401", "{wrong:?}");
        }
        // Without TLS, with a version that is too old, and with garbage.
        let plain = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(!plain.contains("metrics for"), "{plain}");
        let (old, _) = curl(address, folder, &["-u", "alice:secret", "--tls-max", "1.1"]);
        assert_ne!(old, Some(0));
        let mut garbage = connect(address);
        garbage.write_all(&[0x16, 3, 1, 0xff, 0xff]).unwrap();
        garbage.write_all(&[7; 70_000]).unwrap_or(());
        drop(garbage);
        // Handshakes that stall keep nobody out.
        let stalled: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect(address)).collect();
        assert_eq!(curl(address, folder, &["-u", "alice:secret"]).0, Some(0));
        drop(stalled);
    });
}

/// They say nothing, or half of a request, or one without a password, and stay.
#[test]
fn slow_clients_without_a_password_do_not_keep_out_those_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    let hash = bcrypt::hash("secret", 4).unwrap();
    std::fs::write(&file, format!("basic_auth_users: {{alice: {hash}}}")).unwrap();
    with_access(CurrentAccess::of(&file).unwrap(), |address| {
        let mut slow = Vec::new();
        for _ in 0..10 {
            for said in ["", "GET /metrics HTTP/1.1\r\nX: ", "GET /large HTTP/1.1\r\n\r\n"] {
                for _ in 0..CONNECTIONS_MAX {
                    slow.push(connect(address));
                    // Some have been ended by those that came later.
                    let _ = slow.last_mut().unwrap().write_all(said.as_bytes());
                }
                let scrape =
                    "GET /metrics HTTP/1.1\r\nAuthorization: Basic YWxpY2U6c2VjcmV0\r\n\r\n";
                let answer = ask(address, scrape);
                assert!(answer.starts_with("HTTP/1.1 200 "), "{said:?}: {answer}");
            }
        }
    });
}

/// Each check of a wrong password takes long; whoever was let in before does not wait for it.
#[test]
fn passwords_that_are_checked_delay_nobody_who_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    let hash = |cost| bcrypt::hash("secret", cost).unwrap();
    let users = format!("basic_auth_users: {{alice: {}, bob: {}}}", hash(4), hash(13));
    std::fs::write(&file, users).unwrap();
    with_access(CurrentAccess::of(&file).unwrap(), |address| {
        let request = |credentials| {
            format!("GET /metrics HTTP/1.1\r\nAuthorization: Basic {credentials}\r\n\r\n")
        };
        // alice:secret
        let scrape = || ask(address, &request("YWxpY2U6c2VjcmV0"));
        assert!(scrape().starts_with("HTTP/1.1 200 "));
        // bob:wrong
        let mut wrong = [connect(address), connect(address)];
        for stream in &mut wrong {
            stream.write_all(request("Ym9iOndyb25n").as_bytes()).unwrap();
        }
        assert!(scrape().starts_with("HTTP/1.1 200 "));
        for stream in &wrong {
            stream.set_nonblocking(true).unwrap();
            let error = stream.peek(&mut [0]).expect_err("the scrape came after it");
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            stream.set_nonblocking(false).unwrap();
        }
        let mut answer = [0; 13];
        wrong[0].read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 401 ");
    });
}

/// As a renewal does: the certificate first, then the key. A scraper goes on all the time, and trusts both certificates.
#[test]
fn a_renewed_certificate_is_used_without_a_refused_scrape() {
    let (folder, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(access) = web_config(folder.path(), "") else { return };
    if !nearpath_testing::require_program("curl") {
        return;
    }
    let folder = folder.path();
    certificate(new.path());
    let read = |folder: &Path, name| std::fs::read_to_string(folder.join(name)).unwrap();
    let both = format!("{}{}", read(folder, "cert.pem"), read(new.path(), "cert.pem"));
    with_access(access, |address| {
        // Both are trusted, so that only a refusal fails; `new` alone says whose certificate it is.
        std::fs::write(new.path().join("both.pem"), both).unwrap();
        let trusts = |file: &str| {
            let file = new.path().join(file);
            curl(address, folder, &["--cacert", file.to_str().unwrap()]).0 == Some(0)
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let scraper = scope.spawn(|| {
                let mut scrapes = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert!(trusts("both.pem"), "after {scrapes}");
                    scrapes += 1;
                }
                scrapes
            });
            assert!(!trusts("cert.pem"));
            for name in ["cert.pem", "key.pem"] {
                std::fs::copy(new.path().join(name), folder.join("renewed")).unwrap();
                std::fs::rename(folder.join("renewed"), folder.join(name)).unwrap();
                let is_new = trusts("cert.pem");
                assert_eq!(is_new, name == "key.pem", "the key of {name}");
            }
            stop.store(true, Ordering::Relaxed);
            assert!(scraper.join().unwrap() > 0);
        });
    });
}

/// Runs the daemon with a web configuration and no sources; `test` gets what it reports.
fn with_daemon(web_config: &Path, test: impl FnOnce(SocketAddr, &Receiver<String>)) {
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        insecure: false,
        web_config: Some(web_config.to_owned()),
        interval: Duration::from_millis(50),
        findings: Duration::from_secs(1),
        limit: None,
        sources: BTreeSet::new(),
        record: None,
        report: None,
        btf_file: None,
        version: "1".to_owned(),
    };
    let (stop, (says, said)) = (Stop::new().unwrap(), channel());
    let say = |line: &str| says.send(line.to_owned()).unwrap();
    std::thread::scope(|scope| {
        let run = || {
            runner::run(&config, Outside { wait: &|time| stop.wait(time), say: &say }).unwrap();
        };
        let daemon = scope.spawn(run);
        let serving = said.recv_timeout(nearpath_testing::PATIENCE).unwrap();
        let address = serving.strip_prefix("serving https://").unwrap().split('/').next().unwrap();
        let address = address.parse().unwrap();
        let tested =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(address, &said)));
        stop.set();
        daemon.join().unwrap();
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A renewal may run as another user than the one before, and leave files that only this user may read.
#[test]
fn a_certificate_and_key_of_another_owner_are_used() {
    let (folder, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (folder, new) = (folder.path(), new.path());
    if !nearpath_testing::require_root() || !nearpath_testing::require_program("curl") {
        return;
    }
    let Some(_) = web_config(folder, "") else { return };
    certificate(new);
    with_daemon(&folder.join("web.yml"), |address, said| {
        let is_current = |folder: &Path, value: &str| {
            let line = format!("nearpath_web_config_last_reload_successful {value}.0\n");
            wait_for(&line, || curl(address, folder, &[]).1.contains(&line).then_some(()));
        };
        let next = || said.recv_timeout(nearpath_testing::PATIENCE).unwrap();
        is_current(folder, "1");
        // What cannot be used is reported each time that it changes, and the certificate of before is served.
        for content in ["no key", "none either"] {
            std::fs::write(folder.join("key.pem"), content).unwrap();
            is_current(folder, "0");
            assert!(next().contains("key.pem"));
            assert!(said.try_recv().is_err(), "reported once");
        }
        for name in ["cert.pem", "key.pem"] {
            use std::os::unix::fs::{PermissionsExt, chown};
            std::fs::set_permissions(new.join(name), PermissionsExt::from_mode(0o600)).unwrap();
            chown(new.join(name), Some(12345), Some(12345)).unwrap();
            std::fs::rename(new.join(name), folder.join(name)).unwrap();
        }
        assert_eq!(curl(address, folder, &[]).0, Some(0), "{:?}", next());
        assert!(next().contains("has been read again"));
        is_current(folder, "1");
    });
}

#[test]
fn a_client_that_trusts_another_certificate_is_refused_and_promtool_accepts_the_file() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(access) = web_config(folder.path(), "") else { return };
    web_config(other.path(), "");
    if !nearpath_testing::require_program("curl") {
        return;
    }
    with_access(access, |address| {
        assert_ne!(curl(address, other.path(), &[]).0, Some(0));
        assert_eq!(curl(address, folder.path(), &[]).0, Some(0));
    });
    let Some(promtool) = std::env::var("NEARPATH_PROMTOOL").ok().filter(|p| !p.is_empty()) else {
        nearpath_testing::skip("no NEARPATH_PROMTOOL");
        return;
    };
    let file = folder.path().join("web.yml");
    let said =
        std::process::Command::new(promtool).args(["check", "web-config"]).arg(file).output();
    assert!(said.unwrap().status.success());
}
