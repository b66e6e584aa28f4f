//! The PCIe link of a device (drivers/pci/pci-sysfs.c): its current speed and width, and the maximum
//! supported by both the device and its upstream port. A card that negotiated less than that has a contact,
//! riser or firmware problem; one in a smaller slot does not.

use crate::Root;
use nearpath_model::PcieLink;

/// Reads the link of the device at a path; `None` if it has none.
pub(crate) fn read(root: &Root, device: &str) -> Option<PcieLink> {
    let current = End::read(root, device, "current_link")?;
    let own = End::read(root, device, "max_link")?;
    let above = device.rsplit_once('/').and_then(|(port, _)| End::read(root, port, "max_link"));
    let above = above.unwrap_or(own);
    Some(PcieLink {
        speed_mts: current.speed_mts,
        width: current.width,
        max_speed_mts: own.speed_mts.min(above.speed_mts),
        max_width: own.width.min(above.width),
    })
}

#[derive(Clone, Copy)]
struct End {
    speed_mts: u32,
    width: u32,
}

impl End {
    fn read(root: &Root, device: &str, which: &str) -> Option<Self> {
        let text = |what: &str| root.text(&format!("{device}/{which}_{what}")).ok();
        let speed_mts = speed(&text("speed")?)?;
        // A virtual function shows no lanes, or all bits set.
        let width = text("width")?.parse().ok().filter(|width| (1..=32).contains(width))?;
        Some(Self { speed_mts, width })
    }
}

/// `8.0 GT/s PCIe`, `2.5 GT/s` or `5 GT/s`; `None` for `Unknown`.
fn speed(text: &str) -> Option<u32> {
    let (whole, tenth) = match text.split(' ').next()?.split_once('.') {
        Some((whole, tenth)) => (whole, tenth.get(..1)?),
        None => (text.split(' ').next()?, "0"),
    };
    let tenths = whole.parse::<u32>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?;
    tenths.checked_mul(100).filter(|speed| *speed > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_link_is_compared_with_the_maximum_of_both_ends() {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("sys/devices/pci0000:5d/0000:5d:00.0");
        let device = port.join("0000:5e:00.0");
        fs::create_dir_all(&device).unwrap();
        let link = |at: &std::path::Path, which: &str, speed: &str, width: &str| {
            fs::write(at.join(format!("{which}_link_speed")), speed).unwrap();
            fs::write(at.join(format!("{which}_link_width")), width).unwrap();
        };
        link(&device, "current", "8.0 GT/s PCIe\n", "8\n");
        link(&device, "max", "16.0 GT/s PCIe\n", "16\n");
        let root = Root::tree(dir.path()).unwrap();
        let path = "/sys/devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0";
        let expected =
            PcieLink { speed_mts: 8_000, width: 8, max_speed_mts: 16_000, max_width: 16 };
        assert_eq!(read(&root, path), Some(expected));
        link(&port, "max", "8.0 GT/s PCIe\n", "16\n");
        assert_eq!(read(&root, path), Some(PcieLink { max_speed_mts: 8_000, ..expected }));
        link(&device, "current", "Unknown\n", "0\n");
        assert_eq!(read(&root, path), None, "a virtual function");
        assert_eq!(read(&root, "/sys/devices/none"), None);
        assert_eq!(
            (speed("2.5 GT/s"), speed("5 GT/s"), speed("x")),
            (Some(2500), Some(5000), None)
        );
    }
}
