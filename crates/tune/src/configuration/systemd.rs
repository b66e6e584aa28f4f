//! systemd, asked by D-Bus: to read its units anew.
//!
//! As systemctl does for root, on systemd's own socket, which is there without a bus as well; else on
//! the system bus (org.freedesktop.systemd1(5)).

use crate::TuneError;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use zbus::blocking::{Connection, connection::Builder};

/// systemd has this folder where it runs as the first process (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
/// Its own socket.
const PRIVATE: &str = "/run/systemd/private";
const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// Lets systemd read all units anew; nothing is to be done where it does not run.
///
/// # Errors
/// It cannot be reached, or refuses.
pub(super) fn reload() -> Result<(), TuneError> {
    if !Path::new(BOOTED).is_dir() {
        return Ok(());
    }
    let step = "letting systemd read its units anew (systemctl daemon-reload)";
    connect()
        .and_then(|systemd| {
            systemd.call_method(Some(SERVICE), PATH, Some(MANAGER), "Reload", &()).map(drop)
        })
        .map_err(|error| TuneError::kernel(step, error))
}

fn connect() -> zbus::Result<Connection> {
    match UnixStream::connect(PRIVATE) {
        Ok(stream) => Builder::async_io_unix_stream(stream).p2p().build(),
        Err(error) if unreachable(&error) => Connection::system(),
        Err(error) => Err(error.into()),
    }
}

fn unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::PermissionDenied
    )
}
