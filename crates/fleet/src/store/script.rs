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
const KEY_S: u64 = 3600;
/// The life of a key is renewed with a source that is new, and in one second out of so many: sources are told each minute.
const RENEWED: u64 = 8;
/// The scripts, by [`MERGE`] and [`SOURCES`].
pub(super) const ALL: [fn() -> String; 2] = [merge, sources];
pub(super) const MERGE: usize = 0;
pub(super) const SOURCES: usize = 1;
/// Buckets of a fleet.
pub(super) const BUCKETS: u16 = 64;

/// `KEYS[1]`: the hash of a bucket and period. `ARGV`: the node, then pairs of a user and its own total on this node, then
/// one word more if the key is to live for another [`KEPT_S`].
/// Answers for each user: the total over all nodes of before, and the node's own of before.
///
/// Own totals are merged by maximum, so that calls may be repeated and arrive in any order. Both live in one key on purpose:
/// a store that loses the own total alone would count it twice. The node adds up for itself: making texts of numbers and
/// lists of them was a third of the store's time.
fn merge() -> String {
    format!(
        "local node, count = '/' .. ARGV[1], #ARGV - 1\n\
         local renew = count % 2\n\
         count = count - renew\n\
         local fields, sets, s = {{}}, {{}}, 0\n\
         for i = 1, count, 2 do\n\
         local user = ARGV[i + 1]\n\
         fields[i], fields[i + 1] = user, user .. node\n\
         end\n\
         local had = redis.call('HMGET', KEYS[1], unpack(fields))\n\
         for i = 1, count, 2 do\n\
         local told = ARGV[i + 2]\n\
         local more = told - (had[i + 1] or 0)\n\
         if more > 0 then\n\
         sets[s + 1], sets[s + 2] = fields[i], (had[i] or 0) + more\n\
         sets[s + 3], sets[s + 4] = fields[i + 1], told\n\
         s = s + 4\n\
         end\n\
         end\n\
         if s > 0 then redis.call('HSET', KEYS[1], unpack(sets)) end\n\
         if renew > 0 then redis.call('EXPIRE', KEYS[1], {KEPT_S}) end\n\
         return had\n"
    )
}

/// `KEYS`: the hashes of users of one bucket, from a source to the times of its first and last byte. `ARGV`: for each key
/// the number of sources on this node, then for each of these the source, the seconds of its silence and those of its age.
/// Answers for each key: sources and the seconds of their silence, in order of arrival.
///
/// All times are of the store's clock, so that nodes come to the same end.
fn sources() -> String {
    format!(
        "local now, call = tonumber(redis.call('TIME')[1]), redis.call\n\
         local out, at, renew = {{}}, 1, now % {RENEWED} == 0\n\
         for k = 1, #KEYS do\n\
         local key, first, last, names, n, sets, s = KEYS[k], {{}}, {{}}, {{}}, 0, {{}}, 0\n\
         local had = call('HGETALL', key)\n\
         for i = 1, #had, 2 do\n\
         local name, _, _, f, l = had[i], string.find(had[i + 1], '^(%d+),(%d+)$')\n\
         if f and now - l < {GONE_S} then\n\
         n = n + 1\n\
         names[n], first[name], last[name] = name, tonumber(f), tonumber(l)\n\
         else\n\
         call('HDEL', key, name)\n\
         end\n\
         end\n\
         local count, old = tonumber(ARGV[at]), n\n\
         for i = at + 1, at + 3 * count, 3 do\n\
         local name, l = ARGV[i], now - ARGV[i + 1]\n\
         if not first[name] then\n\
         n = n + 1\n\
         names[n], first[name], last[name] = name, now - ARGV[i + 2], l\n\
         elseif l > last[name] then\n\
         last[name] = l\n\
         end\n\
         sets[s + 1], sets[s + 2] = name, string.format('%.0f,%.0f', first[name], last[name])\n\
         s = s + 2\n\
         end\n\
         at = at + 1 + 3 * count\n\
         if s > 0 then\n\
         call('HSET', key, unpack(sets))\n\
         if renew or n > old then call('EXPIRE', key, {KEY_S}) end\n\
         end\n\
         if n > 1 then\n\
         table.sort(names, function(a, b)\n\
         return first[a] < first[b] or first[a] == first[b] and a < b\n\
         end)\n\
         end\n\
         local answer = {{}}\n\
         for i = 1, math.min(n, 2 * {MOST_SOURCES}) do\n\
         answer[2 * i - 1], answer[2 * i] = names[i], math.max(now - last[names[i]], 0)\n\
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
