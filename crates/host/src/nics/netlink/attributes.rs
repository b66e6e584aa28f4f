//! Netlink attributes (`struct nlattr`): bounded reads, and encoding for requests.

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, NlasIterator};

/// The attributes in `bytes` as type and value, without the flags in the type; ends at the first malformed one.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|attribute| {
        let attribute = attribute.ok()?;
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        Some((kind, attribute.into_inner().get(NLA_HEADER_SIZE..length)?))
    })
}

/// The value of the first attribute of a type.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// A `u8`.
pub(crate) fn u8_of(value: &[u8]) -> Option<u8> {
    value.first().copied()
}

/// A `u16` in the machine's byte order.
pub(crate) fn u16_of(value: &[u8]) -> Option<u16> {
    value.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// A `u32` in the machine's byte order.
pub(crate) fn u32_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// An unsigned number of four or eight bytes, as the kernel's `uint` attributes are.
pub(crate) fn uint_of(value: &[u8]) -> Option<u64> {
    match value.len() {
        8 => value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)),
        _ => u32_of(value).map(u64::from),
    }
}

/// The `u32`s of an array; trailing bytes are ignored.
pub(crate) fn u32s_of(value: &[u8]) -> impl Iterator<Item = u32> + '_ {
    value.chunks_exact(4).filter_map(u32_of)
}

/// Text up to its terminating zero; invalid UTF-8 is replaced.
pub(crate) fn text_of(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// An attribute for a request.
#[must_use]
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute = DefaultNla::new(kind, value.to_vec());
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}

/// A nested attribute.
#[must_use]
pub fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &attributes.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_attributes_are_read_back() {
        let bytes = [attribute(3, b"eth0\0"), nested(4, &[attribute(1, &7u32.to_ne_bytes())])];
        let bytes = bytes.concat();
        assert_eq!(bytes.len(), 12 + 12);
        assert_eq!(find(&bytes, 3).map(text_of).as_deref(), Some("eth0"));
        let inner = find(&bytes, 4).and_then(|nest| find(nest, 1)).and_then(u32_of);
        assert_eq!(inner, Some(7));
        assert_eq!(find(&bytes, 5), None);
    }

    #[test]
    fn malformed_attributes_end_the_reading() {
        let whole = attribute(1, &[9; 8]);
        for end in 1..whole.len() {
            assert_eq!(attributes(&whole[..end]).count(), 0, "cut at {end}");
        }
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0, "shorter than its header");
        assert_eq!(u32_of(&[1, 2, 3]), None);
        assert_eq!(
            u32s_of(&[1, 0, 0, 0, 2, 0]).collect::<Vec<_>>(),
            [u32::from_ne_bytes([1, 0, 0, 0])]
        );
        assert_eq!(text_of(b"\xff\0x"), "\u{fffd}");
    }
}
