//! Which partition of a topic a key leads to, for topics of which one was away.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of how many topics it is remembered.
const MOST: usize = 10_000;

/// How many partitions topics have.
#[derive(Default)]
pub(super) struct Partitions(Mutex<HashMap<String, u32>>);

impl Partitions {
    /// Where a key leads, if that topic is known.
    pub(super) fn of(&self, topic: &str, key: &str) -> Option<u32> {
        let all = self.all();
        // Without a key any partition will do.
        if all.is_empty() || key.is_empty() { None } else { Some(partition(key, *all.get(topic)?)) }
    }

    /// The topic has so many.
    pub(super) fn learn(&self, topic: String, partitions: u32) {
        let mut all = self.all();
        if partitions > 0 && (all.len() < MOST || all.contains_key(&topic)) {
            all.insert(topic, partitions);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As the partitioner `murmur2_random` of librdkafka chooses, and clients in Java.
fn partition(key: &str, partitions: u32) -> u32 {
    (murmur2(key.as_bytes()) & 0x7fff_ffff) % partitions
}

fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let mut hash = 0x9747_b28c ^ length;
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mut word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        word = (word ^ (word >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word, byte| (word << 8) | u32::from(*byte));
        hash = (hash ^ word).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Kafka's own client in Java computes.
    #[test]
    fn keys_are_hashed_as_kafka_does_it() {
        for (key, hash) in [
            ("kafka", 0xd067_cf64),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
            ("", 0x106e_08d9_u32),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn a_topic_that_nobody_told_of_is_not_known() {
        let partitions = Partitions::default();
        partitions.learn("orders".to_owned(), 4);
        partitions.learn("none".to_owned(), 0);
        assert_eq!(partitions.of("orders", "kafka"), Some(0x5067_cf64 % 4));
        assert_eq!([partitions.of("orders", ""), partitions.of("carts", "1"), partitions.of("none", "1")], [None; 3]);
    }
}
