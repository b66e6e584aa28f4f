//! A daemon with a thread that has panicked, as scrapers and a service manager see it. The only test of this program: it
//! sets the environment.

use nearpath_monitor::runner::{self, Config, Outside, Source, Stop};
use nearpath_testing::{PATIENCE, wait_for};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_collector_that_panics_makes_it_unhealthy_and_the_watchdog_silent() {
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    // SAFETY: no other thread of this program uses the environment now.
    unsafe { std::env::set_var("NOTIFY_SOCKET", folder.path().join("notify")) };
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        insecure: false,
        web_config: None,
        interval: Duration::from_millis(20),
        findings: Duration::from_secs(1),
        limit: None,
        sources: BTreeSet::from([Source::Drops]),
        record: None,
        report: None,
        // It cannot observe without: so its thread reports something.
        btf_file: Some(folder.path().join("no-btf")),
        version: "1".to_owned(),
    };
    let (stop, (says, said), (ticks, ticked)) = (Stop::new().unwrap(), channel(), channel());
    let (panics, may_panic) = channel::<()>();
    let may_panic = Mutex::new(may_panic);
    let say = |line: &str| {
        if line.starts_with("cannot observe drops") {
            let _ = may_panic.lock().unwrap().recv();
            panic!("as a fault of the collector would");
        }
        says.send(line.to_owned()).unwrap();
    };
    let wait = |time| {
        let _ = ticks.send(());
        stop.wait(time)
    };
    std::thread::scope(|scope| {
        let daemon = scope.spawn(|| runner::run(&config, Outside { wait: &wait, say: &say }));
        let tested = std::panic::catch_unwind(|| {
            let serving = said.recv_timeout(PATIENCE).unwrap();
            let address = serving.strip_prefix("serving http://").unwrap();
            let address = address.split('/').next().unwrap();
            let state = || {
                let mut state = [0; 64];
                manager.recv(&mut state).map(|n| String::from_utf8_lossy(&state[..n]).into_owned())
            };
            assert!(state().unwrap().starts_with("READY=1"));
            assert_eq!(state().unwrap(), "WATCHDOG=1");
            assert!(get(address, "/-/healthy").starts_with("HTTP/1.1 200 "));
            panics.send(()).unwrap();
            manager.set_nonblocking(true).unwrap();
            let page = wait_for("503", || {
                while state().is_ok() {}
                Some(get(address, "/-/healthy")).filter(|page| page.starts_with("HTTP/1.1 503 "))
            });
            assert!(page.ends_with("\r\n\r\nthe thread 'drops' has ended\n"), "{page}");
            assert_eq!(said.recv_timeout(PATIENCE).unwrap(), "the thread 'drops' has ended");
            // What was sent before, and until the end of a tick that had begun before.
            let next_tick = || ticked.recv_timeout(PATIENCE).unwrap();
            while ticked.try_recv().is_ok() {}
            next_tick();
            while state().is_ok() {}
            (0..5).for_each(|_| next_tick());
            assert_eq!(state().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        });
        drop(panics);
        stop.set();
        assert!(daemon.join().is_err(), "it ends with the panic of its thread");
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    });
}
