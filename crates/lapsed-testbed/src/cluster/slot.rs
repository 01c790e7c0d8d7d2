//! Which slot a key is in, and whether a line of `CLUSTER NODES` lists a slot.

/// The number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: CRC16 (XMODEM) of what stands between its first `{` and the next `}`, or of
/// all of it if nothing does.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let after = &key[key.iter().position(|byte| *byte == b'{')? + 1..];
    let length = after.iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &after[..length])
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Whether a line of `CLUSTER NODES` says that its node holds `slot`.
pub(super) fn listed(line: &str, slot: u16) -> bool {
    // Eight fields come before the slots; `[slot->-id]` is a migration on its way, not a holding.
    line.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        matches!((first.parse::<u16>(), last.parse::<u16>()),
            (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    })
}

#[cfg(test)]
mod tests {
    use super::{listed, slot_of};

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
    }

    #[test]
    fn a_line_lists_ranges_and_single_slots() {
        let line = "id 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-99 200 [300->-other]";
        assert!(listed(line, 0) && listed(line, 99) && listed(line, 200));
        assert!(!listed(line, 100) && !listed(line, 300));
    }
}
