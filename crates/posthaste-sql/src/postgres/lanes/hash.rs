//! The hash by which PostgreSQL finds the lane of a row.

use posthaste_core::Event;
use posthaste_core::store::Lane;

use super::super::sql::lanes::LANES;
use crate::lanes::lane;

/// What the server is asked to hash, to see whether it does it as we do.
pub(super) const PROBE: &str = "posthaste, 20 bytes.";

/// The lane of an event.
pub(super) fn lane_of(event: &Event) -> Lane {
    let hash = hashtextextended(event.aggregate_id().unwrap_or(event.id().as_str()));
    lane(hash & i64::from(LANES - 1))
}

/// PostgreSQL's function of that name, with a seed of zero, as servers compute it that store the lowest byte first: Jenkins'
/// lookup3, of which both words of the result count.
pub(super) fn hashtextextended(text: &str) -> i64 {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let start = 0x9e37_79b9_u32.wrapping_add(length).wrapping_add(3_923_095);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut twelves = text.as_bytes().chunks_exact(12);
    for twelve in &mut twelves {
        a = a.wrapping_add(word(&twelve[..4]));
        b = b.wrapping_add(word(&twelve[4..8]));
        c = c.wrapping_add(word(&twelve[8..]));
        a = a.wrapping_sub(c) ^ c.rotate_left(4);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(6);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(8);
        b = b.wrapping_add(a);
        a = a.wrapping_sub(c) ^ c.rotate_left(16);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(19);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(4);
        b = b.wrapping_add(a);
    }
    let mut words = twelves.remainder().chunks(4).map(word);
    a = a.wrapping_add(words.next().unwrap_or(0));
    b = b.wrapping_add(words.next().unwrap_or(0));
    // The lowest byte is left for the length, which is in the start.
    c = c.wrapping_add(words.next().unwrap_or(0) << 8);
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    c = (c ^ b).wrapping_sub(b.rotate_left(24));
    ((u64::from(b) << 32) | u64::from(c)).cast_signed()
}

/// Up to four bytes, the lowest first.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_length_are_hashed_as_a_server_does() {
        // SELECT hashtextextended($1 COLLATE "C", 0)
        let known = [
            ("", -6_939_563_903_564_495_251),
            ("7", -852_251_272_628_808_647),
            ("posthaste", 3_623_263_873_961_317_308),
            ("twelve bytes", -7_123_776_401_673_968_163),
            ("thirteen byte", -1_147_533_121_609_491_268),
            ("Łódź", -2_936_353_352_975_065_719),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAV01ARZ3NDEKTSV4RRFFQ69G5FAV", -8_690_774_208_022_855_980),
        ];
        for (text, hash) in known {
            assert_eq!(hashtextextended(text), hash, "{text}");
        }
    }
}
