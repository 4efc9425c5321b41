//! From where on a lane is read.

use std::collections::BTreeSet;
use std::time::Duration;

use foldhash::HashSet;
use tokio::time::Instant;

use crate::store::{LaneLease, Writer};

/// How long the cursor stays for writers whose transactions are open, before it passes them.
const PATIENCE: Duration = Duration::from_secs(1);

/// From where on a lane is read: before every number that a writer may have and nobody has seen, but for writers whose
/// transactions are open for long. Those are remembered, and when one of them has ended, the lane is read again from where he
/// was passed before anything else is taken from it.
///
/// A number is given at the insert and seen at the commit. So what a read has seen says nothing of lower numbers, only of those
/// of writers who are not in the list that was made after it; and that a writer is missing in the list says only that the next
/// read sees what he has written.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) lease: LaneLease,
    /// Reads begin after this number.
    after: i64,
    /// The last of which account was taken.
    seen: i64,
    /// Where it goes next.
    next: Option<Next>,
    /// Who was passed, and from where on he is looked for when he has ended.
    passed: Vec<(Writer, i64)>,
    /// Rows behind the cursor that were seen and not taken, since their keys have more.
    left: BTreeSet<i64>,
    /// The last read has not come to the end.
    pub(crate) has_more: bool,
    /// Up to where the lane was swept in this round.
    swept: i64,
    sweeps: bool,
}

#[derive(Debug)]
struct Next {
    to: i64,
    /// Whose numbers may be lower, and have not been seen.
    open: Vec<Writer>,
    since: Instant,
}

impl Cursor {
    /// Before the first row of a lane.
    pub(crate) fn new(lease: LaneLease) -> Self {
        Self {
            lease,
            after: 0,
            seen: 0,
            next: None,
            passed: Vec::new(),
            left: BTreeSet::new(),
            has_more: true,
            swept: 0,
            sweeps: false,
        }
    }

    pub(crate) fn after(&self) -> i64 {
        self.after
    }

    /// How far reads have come, which is further than where they begin.
    pub(crate) fn seen(&self) -> i64 {
        self.seen
    }

    /// The rows behind it that need not be read again.
    pub(crate) fn left(&self) -> impl Iterator<Item = i64> {
        self.left.iter().copied()
    }

    pub(crate) fn passed(&self) -> impl Iterator<Item = &Writer> {
        self.passed.iter().map(|(writer, _)| writer)
    }

    /// Those whose end it waits for, or has stopped waiting for. A read is to say of each whether he is open, however far it goes: one
    /// that is not named counts as ended.
    pub(crate) fn expected(&self) -> impl Iterator<Item = &Writer> {
        self.passed().chain(self.next.iter().flat_map(|next| &next.open))
    }

    /// Reads again from there on, and forgets what was seen since.
    pub(crate) fn look_back(&mut self, to: i64) {
        self.after = self.after.min(to);
        self.seen = self.after;
        self.next = None;
        self.left.clear();
        self.has_more = true;
    }

    /// Whether what a read of this lane has found can be used, given who was open after it. If one who was passed is not any
    /// more, his rows may be among those that it has seen, without those before them.
    pub(crate) fn accepts(&mut self, open: &HashSet<&Writer>) -> bool {
        let ended = self.passed.iter().filter(|(writer, _)| !open.contains(writer)).map(|(_, from)| *from).min();
        let Some(from) = ended else { return true };
        self.passed.retain(|(writer, _)| open.contains(writer));
        self.look_back(from);
        false
    }

    /// A read from the cursor on was accepted. `seen` is the last row of which it took account, `cut` whether it did not come to
    /// the end, and `left` what it saw and did not take.
    pub(crate) fn advance(
        &mut self,
        seen: Option<i64>,
        cut: bool,
        left: impl IntoIterator<Item = i64>,
        open: &[Writer],
        now: Instant,
    ) {
        self.left.extend(left);
        self.has_more = cut;
        self.seen = seen.unwrap_or(self.seen).max(self.seen);
        if let Some(next) = &mut self.next {
            if next.open.is_empty() {
                // They had ended before this read, which began before all of them, and has seen up to here.
                let reached = if cut { next.to.min(seen.unwrap_or(self.after)) } else { next.to };
                self.after = self.after.max(reached);
                if reached >= next.to {
                    self.next = None;
                }
                self.left = self.left.split_off(&self.after.saturating_add(1));
            } else {
                next.open.retain(|writer| open.contains(writer));
                if now.duration_since(next.since) >= PATIENCE {
                    let after = self.after;
                    self.passed.extend(next.open.drain(..).map(|writer| (writer, after)));
                }
            }
        }
        if self.next.is_none()
            && let Some(to) = seen.filter(|seen| *seen > self.after)
        {
            let open = open.iter().filter(|writer| self.passed.iter().all(|(passed, _)| passed != *writer));
            self.next = Some(Next { to, open: open.cloned().collect(), since: now });
        }
    }

    /// Begins to sweep the lane from its beginning.
    pub(crate) fn begin_sweep(&mut self) {
        (self.swept, self.sweeps) = (0, true);
    }

    /// From where to where the sweep goes on, if it does. What is behind the cursor is read anyway.
    pub(crate) fn sweep(&self) -> Option<(i64, i64)> {
        (self.sweeps && self.swept < self.after).then_some((self.swept, self.after))
    }

    /// A step of the sweep was accepted. It is over when it came to the end.
    pub(crate) fn swept(&mut self, seen: Option<i64>, cut: bool) {
        self.swept = seen.unwrap_or(self.swept).max(self.swept);
        self.sweeps = cut;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Lane;

    fn cursor() -> Cursor {
        Cursor::new(LaneLease { lane: Lane(3), epoch: 1 })
    }

    fn writers(names: &[&str]) -> Vec<Writer> {
        names.iter().map(|name| Writer((*name).into())).collect()
    }

    /// A read that found rows up to a number, came to the end, and heard who was open then. False if it was not accepted.
    fn read(cursor: &mut Cursor, seen: Option<i64>, open: &[&str], now: Instant) -> bool {
        let open = writers(open);
        let accepted = cursor.accepts(&open.iter().collect());
        if accepted {
            cursor.advance(seen, false, [], &open, now);
        }
        accepted
    }

    #[test]
    fn it_stays_one_read_behind_where_nobody_is_open() {
        let (mut cursor, now) = (cursor(), Instant::now());
        read(&mut cursor, Some(5), &[], now);
        assert_eq!(cursor.after(), 0);
        read(&mut cursor, Some(9), &[], now);
        assert_eq!(cursor.after(), 5);
        read(&mut cursor, None, &[], now);
        assert_eq!(cursor.after(), 9);
    }

    #[test]
    fn it_waits_for_who_was_open_and_for_the_read_after_he_was_not() {
        let (mut cursor, now) = (cursor(), Instant::now());
        read(&mut cursor, Some(5), &["a", "b"], now);
        read(&mut cursor, Some(6), &["b"], now);
        // He may have committed after what this one saw.
        read(&mut cursor, Some(7), &["c"], now);
        assert_eq!(cursor.after(), 0);
        read(&mut cursor, Some(8), &["c"], now);
        assert_eq!(cursor.after(), 5);
    }

    #[test]
    fn who_is_open_for_long_is_passed_and_looked_for_when_he_has_ended() {
        let (mut cursor, now) = (cursor(), Instant::now());
        read(&mut cursor, Some(5), &["long"], now);
        read(&mut cursor, None, &["long"], now + PATIENCE / 2);
        assert_eq!(cursor.passed().count(), 0);
        read(&mut cursor, None, &["long", "late"], now + PATIENCE);
        assert_eq!(cursor.passed().count(), 1);
        read(&mut cursor, Some(9), &["long"], now + PATIENCE);
        assert_eq!(cursor.after(), 5);
        // He is passed for good, and holds nobody up any more.
        read(&mut cursor, Some(12), &["long"], now + PATIENCE);
        assert_eq!(cursor.after(), 9);
        // What a read found that does not know of him any more is of no use.
        assert!(!read(&mut cursor, Some(14), &[], now + PATIENCE));
        assert_eq!((cursor.after(), cursor.passed().count()), (0, 0));
        assert!(read(&mut cursor, Some(14), &[], now + PATIENCE));
    }

    #[test]
    fn who_is_waited_for_is_asked_for_like_who_was_passed() {
        let (mut cursor, now) = (cursor(), Instant::now());
        read(&mut cursor, Some(5), &["long"], now);
        assert_eq!(cursor.expected().cloned().collect::<Vec<_>>(), writers(&["long"]));
        read(&mut cursor, None, &["long"], now + PATIENCE);
        read(&mut cursor, Some(9), &["long"], now + PATIENCE);
        read(&mut cursor, Some(12), &["long", "late"], now + PATIENCE);
        assert_eq!(cursor.expected().cloned().collect::<Vec<_>>(), writers(&["long", "late"]));
    }

    #[test]
    fn what_a_read_had_no_room_for_is_not_passed() {
        let (mut cursor, now) = (cursor(), Instant::now());
        read(&mut cursor, Some(9), &[], now);
        // A row with a lower number has come, and no more than that was taken.
        cursor.advance(Some(4), true, [], &[], now);
        assert_eq!(cursor.after(), 4);
        cursor.advance(None, true, [], &[], now);
        assert_eq!(cursor.after(), 4);
        read(&mut cursor, Some(7), &[], now);
        assert_eq!(cursor.after(), 9);
    }

    #[test]
    fn what_was_left_is_told_until_the_cursor_has_passed_it() {
        let (mut cursor, now) = (cursor(), Instant::now());
        cursor.advance(Some(5), false, [2, 5], &[], now);
        cursor.advance(Some(8), false, [8], &[], now);
        assert_eq!((cursor.after(), cursor.left().collect::<Vec<_>>()), (5, vec![8]));
        cursor.look_back(3);
        assert_eq!((cursor.after(), cursor.left().count()), (3, 0));
    }

    #[test]
    fn a_sweep_goes_up_to_the_cursor() {
        let (mut cursor, now) = (cursor(), Instant::now());
        cursor.begin_sweep();
        assert_eq!(cursor.sweep(), None);
        read(&mut cursor, Some(9), &[], now);
        read(&mut cursor, None, &[], now);
        assert_eq!(cursor.sweep(), Some((0, 9)));
        cursor.swept(Some(4), true);
        assert_eq!(cursor.sweep(), Some((4, 9)));
        cursor.swept(None, false);
        assert_eq!(cursor.sweep(), None);
    }
}
