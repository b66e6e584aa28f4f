//! One interface, queried with ethtool requests on demand: the state to compare before and after a change.
//!
//! Input: the name of an interface of the calling thread's network namespace. Output: its current settings. The
//! code that changes it is elsewhere (`crates/tune`): [`Device::send`] and [`Device::ioctl`] only transmit
//! requests.

use super::ioctl::Ioctl;
use super::netlink::attributes::{attribute, nested};
use super::netlink::ethtool::{self, Ethtool};
use super::netlink::{Connection, generic, generic_body};
use nearpath_model::{Channels, Rings, Rss};
use std::collections::BTreeMap;
use std::io;

/// A feature of `ethtool -k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Whether it is on.
    pub active: bool,
    /// Whether it can be changed.
    pub changeable: bool,
}

/// A connection for requests about one interface.
pub struct Device {
    connection: Connection,
    family: u16,
    ioctl: Ioctl,
    name: String,
}

impl Device {
    /// Opens sockets in the thread's network namespace. Whether the interface exists is known only from the
    /// requests (ENODEV).
    ///
    /// # Errors
    /// ENOENT: the kernel has no ethtool netlink family (before 5.6, or not configured).
    pub fn open(name: &str) -> io::Result<Self> {
        let mut connection = Connection::open(libc::NETLINK_GENERIC)?;
        let family = connection.family(ethtool::FAMILY)?;
        Ok(Self { connection, family, ioctl: Ioctl::open()?, name: name.to_owned() })
    }

    /// `ethtool -l`.
    ///
    /// # Errors
    /// ENODEV: no such interface. EOPNOTSUPP: not supported by the driver.
    pub fn channels(&mut self) -> io::Result<Channels> {
        self.ask(ethtool::CHANNELS_GET, ethtool::channels)
    }

    /// `ethtool -g`.
    ///
    /// # Errors
    /// As [`Device::channels`].
    pub fn rings(&mut self) -> io::Result<Rings> {
        self.ask(ethtool::RINGS_GET, ethtool::rings)
    }

    /// `ethtool -c`, by the names of the kernel's attributes, booleans as 0 and 1.
    ///
    /// # Errors
    /// As [`Device::channels`].
    pub fn coalesce(&mut self) -> io::Result<BTreeMap<String, u64>> {
        self.ask(ethtool::COALESCE_GET, ethtool::coalesce)
    }

    /// `ethtool -k`, by name (`rx-gro`).
    ///
    /// # Errors
    /// As [`Device::channels`].
    pub fn features(&mut self) -> io::Result<BTreeMap<String, Feature>> {
        let family = self.family;
        let names = Ethtool { connection: &mut self.connection, family }.feature_names()?;
        self.ask(ethtool::FEATURES_GET, |body| {
            let changeable = ethtool::changeable(body, &names)?;
            let feature = |(name, active): (String, bool)| {
                let changeable = changeable.get(&name).copied().unwrap_or(false);
                (name, Feature { active, changeable })
            };
            Some(ethtool::features(body, &names)?.into_iter().map(feature).collect())
        })
    }

    /// `ethtool -x`; `None` if the NIC has neither a table nor a key. Uses the ioctl: kernels before 6.3 have
    /// nothing else, and the result is the same.
    ///
    /// # Errors
    /// As [`Device::channels`].
    pub fn rss(&mut self) -> io::Result<Option<Rss>> {
        self.ioctl.rss(&self.name)
    }

    /// Sends a request of the ethtool family with these attributes, and waits for its
    /// acknowledgement.
    ///
    /// # Errors
    /// The error of the kernel or the driver; [`Device::words`] may have a message.
    pub fn send(&mut self, command: u8, attributes: &[Vec<u8>]) -> io::Result<()> {
        let request = [self.header(0), attributes.concat()].concat();
        self.connection.ask(self.family, &generic(command, &request), |_| {})
    }

    /// The kernel's message for the last error, if it had one.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        self.connection.words()
    }

    /// The socket for requests that netlink does not have.
    #[must_use]
    pub fn ioctl(&self) -> &Ioctl {
        &self.ioctl
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn ask<T>(&mut self, command: u8, parse: impl Fn(&[u8]) -> Option<T>) -> io::Result<T> {
        let request = generic(command, &self.header(ethtool::COMPACT_BITSETS));
        let mut answer = None;
        self.connection.ask(self.family, &request, |payload| {
            answer = answer.take().or(parse(generic_body(payload)));
        })?;
        answer.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn header(&self, flags: u32) -> Vec<u8> {
        let name = attribute(ethtool::HEADER_DEV_NAME, &[self.name.as_bytes(), &[0]].concat());
        let mut inner = vec![name];
        if flags != 0 {
            inner.push(attribute(ethtool::HEADER_FLAGS, &flags.to_ne_bytes()));
        }
        nested(ethtool::HEADER, &inner)
    }
}

/// The attribute number of a coalescing parameter, by its name in [`Device::coalesce`].
#[must_use]
pub fn coalesce_attribute(name: &str) -> Option<u16> {
    let index = ethtool::COALESCE_NAMES.iter().position(|known| *known == name)?;
    u16::try_from(index + 2).ok()
}
