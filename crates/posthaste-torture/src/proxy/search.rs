//! Finds a needle in streams that come in pieces.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is looked for, in all streams together.
pub(super) struct Needle {
    bytes: Vec<u8>,
    /// How often it has still to be found.
    left: u32,
    /// Tells it from the needles before, for which streams have other remains.
    id: u64,
}

/// The end of one stream, in which the needle may have begun.
#[derive(Default)]
pub(super) struct Remains {
    bytes: Vec<u8>,
    id: u64,
}

impl Needle {
    pub(super) fn new(bytes: &[u8], n: u32) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self { bytes: bytes.to_vec(), left: n.max(1), id: IDS.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether it is found for the last time in this piece.
    pub(super) fn is_in(&mut self, piece: &[u8], remains: &mut Remains) -> bool {
        if remains.id != self.id {
            *remains = Remains { bytes: Vec::new(), id: self.id };
        }
        remains.bytes.extend_from_slice(piece);
        let found = remains.bytes.windows(self.bytes.len()).filter(|window| *window == self.bytes).count();
        let keep = remains.bytes.len().min(self.bytes.len() - 1);
        remains.bytes.drain(..remains.bytes.len() - keep);
        self.left = self.left.saturating_sub(found.try_into().unwrap_or(u32::MAX));
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In which piece it is found for the `n`-th time.
    fn find(n: u32, pieces: &[&str]) -> Option<usize> {
        let (mut needle, mut remains) = (Needle::new(b"COMMIT", n), Remains::default());
        pieces.iter().position(|piece| needle.is_in(piece.as_bytes(), &mut remains))
    }

    #[test]
    fn a_needle_may_be_in_two_pieces() {
        assert_eq!(find(1, &["BEGIN COM", "MIT"]), Some(1));
        assert_eq!(find(1, &["C", "O", "M", "M", "I", "T"]), Some(5));
        assert_eq!(find(1, &["COM", "COMMIT"]), Some(1));
        assert_eq!(find(1, &["COM", "", "PLETE", "MIT"]), None);
    }

    #[test]
    fn every_occurrence_counts_once() {
        assert_eq!(find(2, &["COMMIT", "", "BEGIN", "COMMIT"]), Some(3));
        assert_eq!(find(3, &["COMMITCOM", "MITCOMMIT"]), Some(1));
        assert_eq!(find(0, &["COMMIT"]), Some(0));
    }

    #[test]
    fn streams_do_not_mix() {
        let mut needle = Needle::new(b"COMMIT", 1);
        let (mut one, mut other) = (Remains::default(), Remains::default());
        assert!(!needle.is_in(b"COM", &mut one));
        assert!(!needle.is_in(b"MIT", &mut other));
        assert!(needle.is_in(b"MIT", &mut one));
    }

    #[test]
    fn a_new_needle_starts_afresh() {
        let mut remains = Remains::default();
        assert!(!Needle::new(b"COMMIT", 1).is_in(b"COM", &mut remains));
        assert!(!Needle::new(b"COMMIT", 1).is_in(b"MIT", &mut remains));
    }
}
