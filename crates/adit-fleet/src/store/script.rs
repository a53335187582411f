//! The scripts: one adds up and checks in one step, on one key; one merges sources.

/// Keys of one bucket and period live so long, in seconds: 62 days.
const KEPT_S: u64 = 62 * 86_400;
/// Most users of one call: it stops the store for about a millisecond.
pub(super) const MOST_USERS: usize = 200;
/// Most users of one call about sources, and most sources of one user.
pub(super) const MOST_KEYS: usize = 100;
pub(super) const MOST_SOURCES: usize = 32;
/// A source that has been silent for so long is forgotten, in seconds; its key lives longer.
const GONE_S: u64 = 120;
const KEY_S: u64 = 300;
/// The scripts, by [`MERGE`] and [`SOURCES`].
pub(super) const ALL: [fn() -> String; 2] = [merge, sources];
pub(super) const MERGE: usize = 0;
pub(super) const SOURCES: usize = 1;
/// Buckets of a fleet.
pub(super) const BUCKETS: u16 = 64;

/// `KEYS[1]`: the hash of a bucket and period. `ARGV`: the node, then pairs of a user and its own total on this node.
/// Answers for each user: the total over all nodes, that of before, and the node's own of before.
///
/// Own totals are merged by maximum, so that calls may be repeated and arrive in any order. Both live in one key on purpose:
/// a store that loses the own total alone would count it twice. Numbers that stay as they are stay texts: making and reading
/// texts was a quarter of the store's time.
fn merge() -> String {
    format!(
        "local node, format = '/' .. ARGV[1], string.format\n\
         local fields, count = {{}}, #ARGV - 1\n\
         for i = 1, count, 2 do\n\
         local user = ARGV[i + 1]\n\
         fields[i], fields[i + 1] = user, user .. node\n\
         end\n\
         local had = redis.call('HMGET', KEYS[1], unpack(fields))\n\
         local sets, out, s, o = {{}}, {{}}, 0, 0\n\
         for i = 1, count, 2 do\n\
         local total, own, told = had[i] or '0', had[i + 1] or '0', ARGV[i + 2]\n\
         local old, more = total, told - own\n\
         if more > 0 then\n\
         total = format('%.0f', old + more)\n\
         sets[s + 1], sets[s + 2], sets[s + 3], sets[s + 4] = fields[i], total, fields[i + 1], told\n\
         s = s + 4\n\
         end\n\
         out[o + 1], out[o + 2], out[o + 3] = total, old, own\n\
         o = o + 3\n\
         end\n\
         if s > 0 then\n\
         redis.call('HSET', KEYS[1], unpack(sets))\n\
         redis.call('EXPIRE', KEYS[1], {KEPT_S})\n\
         end\n\
         return out\n"
    )
}

/// `KEYS`: the hashes of users of one bucket, from a source to the times of its first and last byte. `ARGV`: for each key
/// the number of sources on this node, then for each of these the source, the seconds of its silence and those of its age.
/// Answers for each key: sources and the seconds of their silence, in order of arrival.
///
/// All times are of the store's clock, so that nodes come to the same end.
fn sources() -> String {
    format!(
        "local now = tonumber(redis.call('TIME')[1])\n\
         local out, at = {{}}, 1\n\
         for k = 1, #KEYS do\n\
         local first, last, names, gone, sets = {{}}, {{}}, {{}}, {{}}, {{}}\n\
         local had = redis.call('HGETALL', KEYS[k])\n\
         for i = 1, #had, 2 do\n\
         local f, l = string.match(had[i + 1], '^(%d+),(%d+)$')\n\
         if f and now - tonumber(l) < {GONE_S} then\n\
         first[had[i]], last[had[i]] = tonumber(f), tonumber(l)\n\
         names[#names + 1] = had[i]\n\
         else\n\
         gone[#gone + 1] = had[i]\n\
         end\n\
         end\n\
         if #gone > 0 then redis.call('HDEL', KEYS[k], unpack(gone)) end\n\
         local count = tonumber(ARGV[at])\n\
         for i = at + 1, at + 3 * count, 3 do\n\
         local name, silent, age = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])\n\
         if not first[name] then\n\
         names[#names + 1] = name\n\
         first[name], last[name] = now - age, 0\n\
         end\n\
         last[name] = math.max(last[name], now - silent)\n\
         sets[#sets + 1] = name\n\
         sets[#sets + 1] = string.format('%.0f,%.0f', first[name], last[name])\n\
         end\n\
         at = at + 1 + 3 * count\n\
         if #sets > 0 then\n\
         redis.call('HSET', KEYS[k], unpack(sets))\n\
         redis.call('EXPIRE', KEYS[k], {KEY_S})\n\
         end\n\
         table.sort(names, function(a, b)\n\
         return first[a] < first[b] or first[a] == first[b] and a < b\n\
         end)\n\
         local answer = {{}}\n\
         for i = 1, math.min(#names, 2 * {MOST_SOURCES}) do\n\
         answer[#answer + 1] = names[i]\n\
         answer[#answer + 1] = string.format('%.0f', math.max(now - last[names[i]], 0))\n\
         end\n\
         out[k] = answer\n\
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

/// The key of a user's sources.
pub(super) fn source_key(fleet: &str, user: &str) -> String {
    format!("adit:{fleet}:src:{{{}}}:{user}", bucket(user))
}

/// The bucket of a user.
pub(super) fn bucket(user: &str) -> u16 {
    crc16(user.as_bytes()) % BUCKETS
}

/// The slot of a key in a Cluster: that of the part in braces, if there is one.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % 16_384
}

/// The key of a user's totals.
pub(super) fn key(fleet: &str, user: &str, reset_day: Option<u8>, period: u64) -> String {
    let bucket = bucket(user);
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
        assert_eq!(source_key("f", "123456789"), "adit:f:src:{3}:123456789");
        // As `CLUSTER KEYSLOT` of Redis 7.0.15 says.
        assert_eq!((slot("adit:f:use:{3}:d0:0"), slot("foo")), (1584, 12_182));
        assert_eq!(key("f", "123456789", Some(5), 24_323), "adit:f:use:{3}:d5:24323");
    }
}
