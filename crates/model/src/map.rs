//! An ordered map that takes little of the program.
//!
//! Each type of value in a `BTreeMap` brings a copy of the tree's code, 8 to 16 kB of it. Here the tree holds places in a
//! list, so that maps with one type of key share its code. It is as fast as a tree, and takes a few bytes more.

use std::borrow::Borrow;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Index;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// A map in the order of its keys. It holds at most 2^32 - 1 values.
#[derive(Clone)]
pub struct Map<K, V> {
    /// The place of each key's value.
    places: BTreeMap<K, u32>,
    values: Vec<Option<V>>,
    /// Places without a value.
    free: Vec<u32>,
}

impl<K, V> Map<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self { places: BTreeMap::new(), values: Vec::new(), free: Vec::new() }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Keys and values, in the order of the keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { places: self.places.iter(), values: &self.values }
    }

    /// The same, with values that can be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let mut values: Vec<Option<&mut V>> = self.values.iter_mut().map(Option::as_mut).collect();
        self.places.iter().filter_map(move |(key, place)| Some((key, take(&mut values, *place)?)))
    }

    /// Keys, in order.
    pub fn keys(&self) -> btree_map::Keys<'_, K, u32> {
        self.places.keys()
    }

    /// Values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Values that can be changed, in any order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.values.iter_mut().flatten()
    }

    /// Values, in the order of their keys.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.into_iter().map(|(_, value)| value)
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.places.clear();
        self.values.clear();
        self.free.clear();
    }

    /// The same keys with other values.
    pub fn map<W>(self, mut change: impl FnMut(V) -> W) -> Map<K, W> {
        let values = self.values.into_iter().map(|value| value.map(&mut change)).collect();
        Map { places: self.places, values, free: self.free }
    }

    /// Gives back the room for values that are not there, if it is more than an eighth: a list of many users that has been
    /// filled one by one has up to twice the room that it needs.
    pub fn trim(&mut self)
    where
        K: Ord,
    {
        let len = self.values.len();
        if self.values.capacity() > len + len / 8 {
            self.values.shrink_to_fit();
            // A tree that grew in order is half empty.
            self.places = std::mem::take(&mut self.places).into_iter().collect();
        }
    }

    /// Keeps those for which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool)
    where
        K: Ord,
    {
        let Self { places, values, free } = self;
        places.retain(|key, place| {
            let Some(slot) = values.get_mut(*place as usize) else { return false };
            let is_kept = slot.as_mut().is_some_and(|value| keep(key, value));
            if !is_kept {
                *slot = None;
                free.push(*place);
            }
            is_kept
        });
    }

    /// Puts a value at a free place.
    fn place(&mut self, value: V) -> u32 {
        if let Some(place) = self.free.pop() {
            self.values[place as usize] = Some(value);
            return place;
        }
        self.values.push(Some(value));
        u32::try_from(self.values.len() - 1).expect("memory ends before 2^32 values")
    }
}

impl<K: Ord, V> Map<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.values.get(*self.places.get(key)? as usize)?.as_ref()
    }

    /// The value of a key, which can be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.values.get_mut(*self.places.get(key)? as usize)?.as_mut()
    }

    /// The value of a key, with the key that is kept.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (key, place) = self.places.get_key_value(key)?;
        Some((key, self.values.get(*place as usize)?.as_ref()?))
    }

    /// Whether there is a value of that key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.places.contains_key(key)
    }

    /// Adds a value; gives the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(place) = self.places.get(&key) {
            return self.values.get_mut(*place as usize)?.replace(value);
        }
        let place = self.place(value);
        self.places.insert(key, place);
        None
    }

    /// Removes the value of a key.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.places.remove(key)?;
        self.free.push(place);
        take(&mut self.values, place)
    }

    /// Removes the value of the least key.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let (key, place) = self.places.pop_first()?;
        self.free.push(place);
        Some((key, take(&mut self.values, place)?))
    }

    /// Removes the value of the greatest key.
    pub fn pop_last(&mut self) -> Option<(K, V)> {
        let (key, place) = self.places.pop_last()?;
        self.free.push(place);
        Some((key, take(&mut self.values, place)?))
    }

    /// The place of a key, with or without a value.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        Entry { map: self, key }
    }
}

/// The place of a key.
pub struct Entry<'a, K, V> {
    map: &'a mut Map<K, V>,
    key: K,
}

impl<'a, K: Ord, V> Entry<'a, K, V> {
    /// Its value; `make` makes one if there is none.
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        let Self { map, key } = self;
        let place = match map.places.get(&key) {
            Some(place) => *place,
            None => {
                let place = map.place(make());
                map.places.insert(key, place);
                place
            }
        };
        map.values[place as usize].as_mut().expect("a place in the tree has a value")
    }

    /// Its value, or `value` if there is none.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    /// Its value, or the usual one if there is none.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Changes its value, if there is one.
    pub fn and_modify(self, change: impl FnOnce(&mut V)) -> Self {
        if let Some(value) = self.map.get_mut(&self.key) {
            change(value);
        }
        self
    }
}

fn take<V>(values: &mut [Option<V>], place: u32) -> Option<V> {
    values.get_mut(place as usize)?.take()
}

/// See [`Map::iter`].
pub struct Iter<'a, K, V> {
    places: btree_map::Iter<'a, K, u32>,
    values: &'a [Option<V>],
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { places: self.places.clone(), values: self.values }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, place) = self.places.next()?;
        Some((key, self.values.get(*place as usize)?.as_ref()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// Keys with their values, in the order of the keys.
pub struct IntoIter<K, V> {
    places: btree_map::IntoIter<K, u32>,
    values: Vec<Option<V>>,
}

impl<K, V> Iterator for IntoIter<K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        let (key, place) = self.places.next()?;
        Some((key, take(&mut self.values, place)?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> IntoIter<K, V> {
        IntoIter { places: self.places.into_iter(), values: self.values }
    }
}

impl<K: Ord, V> Extend<(K, V)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut map = Self::new();
        map.extend(pairs);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Map<K, V> {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for Map<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for Map<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("a value of this key")
    }
}

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for Map<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

struct Reader<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Reader<K, V> {
    type Value = Map<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Map<K, V>, A::Error> {
        let mut map = Map::new();
        while let Some((key, value)) = access.next_entry()? {
            map.insert(key, value);
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// It does what a tree does.
        #[test]
        fn a_map_is_a_tree(steps in proptest::collection::vec((0_u8..7, 0_u8..12, any::<u16>()), 0..80)) {
            let (mut map, mut tree) = (Map::new(), BTreeMap::new());
            for (step, key, value) in steps {
                match step {
                    0 | 1 => prop_assert_eq!(map.insert(key, value), tree.insert(key, value)),
                    2 => prop_assert_eq!(map.remove(&key), tree.remove(&key)),
                    3 => prop_assert_eq!(&*map.entry(key).or_insert(value), &*tree.entry(key).or_insert(value)),
                    4 => {
                        map.retain(|key, value| u16::from(*key) > *value % 12);
                        tree.retain(|key, value| u16::from(*key) > *value % 12);
                    }
                    5 if value % 4 == 3 => {
                        map = map.map(|value| value ^ 1);
                        tree.values_mut().for_each(|value| *value ^= 1);
                        map.trim();
                    }
                    5 => {
                        map.iter_mut().for_each(|(key, value)| *value ^= u16::from(*key));
                        tree.iter_mut().for_each(|(key, value)| *value ^= u16::from(*key));
                    }
                    6 if value % 4 == 0 => prop_assert_eq!(map.pop_last(), tree.pop_last()),
                    6 if value % 4 == 1 => prop_assert_eq!(map.pop_first(), tree.pop_first()),
                    _ => {
                        map.values_mut().for_each(|value| *value /= 2);
                        tree.values_mut().for_each(|value| *value /= 2);
                        *map.entry(key).and_modify(|value| *value |= 1).or_default() |= 2;
                        *tree.entry(key).and_modify(|value| *value |= 1).or_default() |= 2;
                    }
                }
                prop_assert_eq!(map.get(&key), tree.get(&key));
                prop_assert_eq!(map.get_key_value(&key), tree.get_key_value(&key));
                prop_assert_eq!((map.len(), map.contains_key(&key)), (tree.len(), tree.contains_key(&key)));
                prop_assert!(map.iter().eq(tree.iter()) && map.keys().eq(tree.keys()) && map.values().eq(tree.values()));
                prop_assert!(map.values.len() <= 12, "places are used again");
            }
            prop_assert_eq!(format!("{map:?}"), format!("{tree:?}"));
            let text = serde_json::to_string(&map).unwrap();
            prop_assert_eq!(&text, &serde_json::to_string(&tree).unwrap());
            prop_assert_eq!(&serde_json::from_str::<Map<u8, u16>>(&text).unwrap(), &map);
            let same: Map<u8, u16> = tree.clone().into_iter().rev().collect();
            prop_assert_eq!(&same, &map);
            prop_assert!(map.clone().into_iter().eq(tree.clone()) && map.into_values().eq(tree.into_values()));
        }
    }
}
