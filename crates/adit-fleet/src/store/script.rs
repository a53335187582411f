//! The script that adds up and checks in one step, on one key.

/// Keys of one bucket and period live so long, in seconds: 62 days.
const KEPT_S: u64 = 62 * 86_400;
/// Most users of one call: it stops the store for about a millisecond.
pub(super) const MOST_USERS: usize = 200;
/// Buckets of a fleet.
pub(super) const BUCKETS: u16 = 64;

/// `KEYS[1]`: the hash of a bucket and period. `ARGV`: the node, then pairs of a user and its own total on this node.
/// Answers for each user: the total over all nodes, that of before, and the node's own of before.
///
/// Own totals are merged by maximum, so that calls may be repeated and arrive in any order. Both live in one key on purpose:
/// a store that loses the own total alone would count it twice.
pub(super) fn merge() -> String {
    format!(
        "local fields = {{}}\n\
         for i = 2, #ARGV, 2 do\n\
         fields[#fields + 1] = ARGV[i]\n\
         fields[#fields + 1] = ARGV[i] .. '/' .. ARGV[1]\n\
         end\n\
         local had = redis.call('HMGET', KEYS[1], unpack(fields))\n\
         local sets, out = {{}}, {{}}\n\
         for i = 2, #ARGV, 2 do\n\
         local old, own, new = tonumber(had[i - 1] or 0), tonumber(had[i] or 0), tonumber(ARGV[i + 1])\n\
         local total = old\n\
         if new > own then\n\
         total = old + new - own\n\
         sets[#sets + 1] = fields[i - 1]\n\
         sets[#sets + 1] = string.format('%.0f', total)\n\
         sets[#sets + 1] = fields[i]\n\
         sets[#sets + 1] = ARGV[i + 1]\n\
         end\n\
         out[#out + 1] = string.format('%.0f', total)\n\
         out[#out + 1] = string.format('%.0f', old)\n\
         out[#out + 1] = string.format('%.0f', own)\n\
         end\n\
         if #sets > 0 then\n\
         redis.call('HSET', KEYS[1], unpack(sets))\n\
         redis.call('EXPIRE', KEYS[1], {KEPT_S})\n\
         end\n\
         return out\n"
    )
}

/// CRC-16/XMODEM, as the slots of a cluster are made.
pub(super) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

/// The key of a user's totals.
pub(super) fn key(fleet: &str, user: &str, reset_day: Option<u8>, period: u64) -> String {
    let bucket = crc16(user.as_bytes()) % BUCKETS;
    format!("adit:{fleet}:use:{{{bucket}}}:d{}:{period}", reset_day.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_the_notes() {
        // The check value of CRC-16/XMODEM.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(key("f", "123456789", None, 0), "adit:f:use:{3}:d0:0");
        assert_eq!(key("f", "123456789", Some(5), 24_323), "adit:f:use:{3}:d5:24323");
    }
}
