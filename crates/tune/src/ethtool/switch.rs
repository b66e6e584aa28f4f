//! A feature that is on or off (`ethtool -K`).
//!
//! Input: its name and `on` or `off`. Features that the driver cannot toggle are reported as unsupported; the kernel
//! would ignore the request silently.

use super::{NicSetting, failure};
use crate::TuneError;
use crate::setting::Setting;
use nearpath_host::ethtool::{Feature, attribute, nested};

const FEATURES_SET: u8 = 12;
/// `ETHTOOL_A_FEATURES_WANTED` (include/uapi/linux/ethtool_netlink.h).
const WANTED: u16 = 3;
/// `ETHTOOL_A_BITSET_BITS`, and in it `_BIT` with `_NAME` and `_VALUE`.
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// A feature of an interface.
pub(super) struct FeatureSetting<'a> {
    pub target: &'a NicSetting,
    pub name: &'a str,
}

impl FeatureSetting<'_> {
    fn feature(&self) -> Result<Option<Feature>, TuneError> {
        let mut device = failure::open(self.target, "reading")?;
        let features = failure::answer(self.target, device.features())?;
        let Some(features) = features else { return Ok(None) };
        features.get(self.name).copied().map(Some).ok_or_else(|| TuneError::Unsupported {
            step: format!("reading {}", self.target),
            reason: "this kernel has no such feature".to_owned(),
        })
    }
}

impl Setting for FeatureSetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        match value {
            "on" | "off" => Ok(()),
            _ => Err(TuneError::Refused(format!("{}: {value:?} is not on or off", self.target))),
        }
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let text = |active| if active { "on" } else { "off" }.to_owned();
        Ok(self.feature()?.map(|feature| text(feature.active)))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        let step = || format!("turning {} {value}", self.target);
        if self.feature()?.is_some_and(|feature| !feature.changeable) {
            let reason = "the driver does not support toggling it".to_owned();
            return Err(TuneError::Unsupported { step: step(), reason });
        }
        let name = attribute(BIT_NAME, &[self.name.as_bytes(), &[0]].concat());
        let on = (value == "on").then(|| attribute(BIT_VALUE, &[]));
        let bit: Vec<Vec<u8>> = [name].into_iter().chain(on).collect();
        let wanted = nested(WANTED, &[nested(BITS, &[nested(BIT, &bit)])]);
        let mut device = failure::open(self.target, "switching")?;
        device
            .send(FEATURES_SET, &[wanted])
            .map_err(|error| failure::refusal(step(), &error, device.words()))
    }

    fn same(&self, a: &str, b: &str) -> bool {
        a == b
    }
}
