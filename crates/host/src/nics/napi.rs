//! The parameters of NAPI instances, for code that changes them: the transport of the kernel's netdev family (since 6.8).
//!
//! No request that changes something is built here.

use super::netlink::netdev::{self, NAPI_ID, NAPI_PARAMETERS, NapiParameters};
use super::netlink::{Connection, attributes::attribute, generic};
use nearpath_model::IfIndex;
use std::collections::BTreeMap;
use std::io;

/// A connection to the family, in the thread's network namespace.
pub struct NapiInstances {
    connection: Connection,
    family: u16,
}

impl NapiInstances {
    /// Opens a socket.
    ///
    /// # Errors
    /// ENOENT: the kernel does not have the family (before 6.8, or not configured).
    pub fn open() -> io::Result<Self> {
        let mut connection = Connection::open(libc::NETLINK_GENERIC)?;
        let family = connection.family(netdev::FAMILY)?;
        Ok(Self { connection, family })
    }

    /// Those of an interface, by NAPI id. Before 6.13 they have no parameters; an interface that is down has none.
    ///
    /// # Errors
    /// ENODEV: no such interface.
    pub fn of(&mut self, interface: IfIndex) -> io::Result<BTreeMap<u32, NapiParameters>> {
        netdev::napi_instances(&mut self.connection, self.family, interface)
    }

    /// Sends a request of the family about an instance with these parameters, and waits for its acknowledgement.
    ///
    /// # Errors
    /// The error of the kernel; [`NapiInstances::words`] may have a message.
    pub fn send(&mut self, command: u8, id: u32, parameters: &NapiParameters) -> io::Result<()> {
        let mut request = attribute(NAPI_ID, &id.to_ne_bytes());
        for (name, kind) in NAPI_PARAMETERS {
            let Some(&value) = parameters.get(name) else { continue };
            // Those that are u32 in the kernel accept four bytes alone; those that are `uint` either.
            request.extend(match u32::try_from(value) {
                Ok(value) => attribute(kind, &value.to_ne_bytes()),
                Err(_) => attribute(kind, &value.to_ne_bytes()),
            });
        }
        self.connection.ask(self.family, &generic(command, &request), |_| {})
    }

    /// The kernel's message for the last error, if it had one.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        self.connection.words()
    }
}

/// The parameter of NAPI instances with this name; `None` if there is none.
#[must_use]
pub fn napi_parameter(name: &str) -> Option<&'static str> {
    NAPI_PARAMETERS.iter().map(|(known, _)| *known).find(|known| *known == name)
}
