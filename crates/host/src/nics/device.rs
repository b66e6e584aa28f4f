//! One interface, asked by ethtool's requests when it is needed: what a change of it is compared with
//! before and after it is made.
//!
//! In goes the name of an interface of the calling thread's network namespace; out come its settings as
//! they are now. What changes it is written elsewhere (`crates/tune`): [`Device::send`] and
//! [`Device::ioctl`] only carry the requests.

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
    /// Whether it can be switched.
    pub changeable: bool,
}

/// A conversation about one interface.
pub struct Device {
    connection: Connection,
    family: u16,
    ioctl: Ioctl,
    name: String,
}

impl Device {
    /// Opens sockets in the thread's network namespace. That there is such an interface only the
    /// requests tell, by ENODEV.
    ///
    /// # Errors
    /// ENOENT: the kernel has no ethtool by netlink (before 5.6, or left out of it).
    pub fn open(name: &str) -> io::Result<Self> {
        let mut connection = Connection::open(libc::NETLINK_GENERIC)?;
        let family = connection.family(ethtool::FAMILY)?;
        Ok(Self { connection, family, ioctl: Ioctl::open()?, name: name.to_owned() })
    }

    /// `ethtool -l`.
    ///
    /// # Errors
    /// ENODEV: there is no such interface. EOPNOTSUPP: the driver does not tell it.
    pub fn channels(&mut self) -> io::Result<Channels> {
        self.ask(ethtool::CHANNELS_GET, ethtool::channels)
    }

    /// `ethtool -g`.
    ///
    /// # Errors
    /// As of [`Device::channels`].
    pub fn rings(&mut self) -> io::Result<Rings> {
        self.ask(ethtool::RINGS_GET, ethtool::rings)
    }

    /// `ethtool -c`, by the names of the kernel's attributes, booleans as 0 and 1.
    ///
    /// # Errors
    /// As of [`Device::channels`].
    pub fn coalesce(&mut self) -> io::Result<BTreeMap<String, u64>> {
        self.ask(ethtool::COALESCE_GET, ethtool::coalesce)
    }

    /// `ethtool -k`, by name (`rx-gro`).
    ///
    /// # Errors
    /// As of [`Device::channels`].
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

    /// `ethtool -x`; `None` when the NIC has neither a table nor a key. By ioctl, as kernels before
    /// 6.3 have no other way, and it is the same.
    ///
    /// # Errors
    /// As of [`Device::channels`].
    pub fn rss(&mut self) -> io::Result<Option<Rss>> {
        self.ioctl.rss(&self.name)
    }

    /// Sends a request of the ethtool family with these attributes, and waits for its
    /// acknowledgement.
    ///
    /// # Errors
    /// What the kernel or the driver refused it with; [`Device::words`] may say more.
    pub fn send(&mut self, command: u8, attributes: &[Vec<u8>]) -> io::Result<()> {
        let request = [self.header(0), attributes.concat()].concat();
        self.connection.ask(self.family, &generic(command, &request), |_| {})
    }

    /// The kernel's own words for the last refusal, if it had any.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        self.connection.words()
    }

    /// The socket for what netlink has no request for.
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

/// The number of a coalescing parameter's attribute, by its name in [`Device::coalesce`].
#[must_use]
pub fn coalesce_attribute(name: &str) -> Option<u16> {
    let index = ethtool::COALESCE_NAMES.iter().position(|known| *known == name)?;
    u16::try_from(index + 2).ok()
}
