//! Where lines are written to, and what became of them there.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use super::file::Appended;
use super::lines::Lines;

/// Where lines are written to.
pub(super) enum Sink {
    Stdout {
        /// The last line was not written whole.
        torn: bool,
    },
    File(Appended),
}

impl Sink {
    pub(super) fn append(&mut self, lines: &Lines, until: Instant) -> Written {
        match self {
            Self::Stdout { torn } => {
                // Held against what others print; written to directly, since a buffer would not say what of it arrived.
                let mut held = io::stdout().lock();
                match held.flush().and_then(|()| direct(&held)) {
                    Ok(mut out) => append(&mut out, torn, lines),
                    Err(error) => error.into(),
                }
            }
            Self::File(file) => file.append(lines, until),
        }
    }

    pub(super) fn check(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout { .. } => Ok(()),
            Self::File(file) => file.follow(),
        }
    }
}

/// What became of lines.
#[derive(Default)]
pub(super) struct Written {
    /// How many of them were written whole.
    pub(super) lines: usize,
    /// How many bytes it takes to the end of the last of these.
    pub(super) whole: usize,
    /// How many bytes were written.
    pub(super) bytes: usize,
    /// Why not all of them.
    pub(super) error: Option<io::Error>,
}

impl From<io::Error> for Written {
    fn from(error: io::Error) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

/// Writes the lines. If the last line there is torn they begin on a line of their own.
pub(super) fn append(out: &mut impl Write, torn: &mut bool, lines: &Lines) -> Written {
    // By one call all the same: another process may write between two.
    let text = if *torn { Cow::Owned([b"\n", &*lines.text].concat()) } else { Cow::Borrowed(&lines.text) };
    let before = text.len() - lines.text.len();
    let mut bytes = 0;
    let error = loop {
        if bytes == text.len() {
            break None;
        }
        match out.write(&text[bytes..]) {
            Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
            Ok(more) => bytes += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error),
        }
    };
    if let Some(last) = text[..bytes].last() {
        *torn = *last != b'\n';
    }
    let whole_lines = lines.ends.partition_point(|end| before + end <= bytes);
    let whole = whole_lines.checked_sub(1).map_or(0, |last| before + lines.ends[last]);
    Written { lines: whole_lines, whole, bytes, error }
}

/// Standard output without its buffer.
#[cfg(unix)]
fn direct(stdout: &io::StdoutLock<'_>) -> io::Result<File> {
    use std::os::fd::AsFd;
    stdout.as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(windows)]
fn direct(stdout: &io::StdoutLock<'_>) -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    stdout.as_handle().try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, and no more until there is room again.
    struct Full {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let some = bytes.len().min(self.room).min(5);
            if some == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(&bytes[..some]);
            self.room -= some;
            Ok(some)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn wherever_a_line_is_torn_the_next_begins_on_its_own() {
        let texts = [b"{\"a\":1}".to_vec(), b"{}".to_vec(), b"{\"b\":[2]}".to_vec()];
        let all: usize = texts.iter().map(|line| line.len() + 1).sum();
        for room in 0..=all {
            for second_room in 0..=3 {
                let (mut out, mut torn) = (Full { taken: Vec::new(), room }, false);
                let first = append(&mut out, &mut torn, &Lines::of(&texts));
                assert_eq!((first.bytes, first.error.is_none()), (room, room == all));
                assert_eq!(torn, out.taken.last().is_some_and(|last| *last != b'\n'), "{room}");
                out.room = second_room;
                let second = append(&mut out, &mut torn, &Lines::of(&texts[first.lines..]));
                out.room = usize::MAX;
                let third = append(&mut out, &mut torn, &Lines::of(&texts[first.lines + second.lines..]));
                assert!(third.error.is_none() && first.lines + second.lines + third.lines == texts.len());
                let text = String::from_utf8(out.taken).unwrap();
                let mut whole: Vec<&str> = text.lines().filter(|line| line.ends_with('}')).collect();
                // A line of which only the end was missing comes again.
                whole.dedup();
                assert_eq!(whole, texts.iter().map(|line| std::str::from_utf8(line).unwrap()).collect::<Vec<_>>());
                assert!(text.ends_with('\n') && !text.contains("}{"), "{room}, then {second_room}: {text}");
            }
        }
    }
}
