//! What happened, as everybody who took part wrote it down.
//!
//! One JSON object a line. Every process appends to a file of its own with one `write` a line, so that what it had written
//! survives it; at the end the files become one, in the order of time, with what stands in the database behind it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in microseconds since 1970, by the clock of the machine.
    pub at: i64,
    /// Which process, such as `producer-1`.
    pub who: String,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// The first line: what was intended.
    Run(Run),
    /// A process came to life.
    Started {
        /// Its process id.
        pid: u32,
    },
    /// A process ended.
    Exited {
        /// Its exit status, if it ended by itself.
        status: Option<i32>,
        /// The signal that ended it otherwise.
        signal: Option<i32>,
        /// Whether somebody wanted it to end.
        wanted: bool,
    },
    /// A process did not end in time after it had been asked to.
    DidNotEnd,
    /// A process delivered nothing for long, although everything was mended.
    Silent,

    /// A producer was told that its transaction is committed.
    Acked {
        /// The event written in it.
        id: String,
    },
    /// A producer was told that its transaction is not committed, or rolled it back.
    Failed {
        /// The event written in it.
        id: String,
        /// Why.
        error: String,
    },
    /// A producer was told that nobody knows whether its transaction is committed.
    Unknown {
        /// The event written in it.
        id: String,
        /// Why.
        error: String,
    },
    /// A producer looked an unknown transaction up by the id of its event.
    Resolved {
        /// The event written in it.
        id: String,
        /// Whether it was found.
        committed: bool,
    },

    /// The sink took a message, whether the sender learnt of it or not; or the broker has it, as a reader found at the end.
    Received(Message),
    /// A relay was told that the broker has a message.
    Taken {
        /// Its event.
        id: String,
    },
    /// The sink or the broker refused a message.
    Refused {
        /// Its event.
        id: String,
    },
    /// A relay cannot know whether the sink or the broker took these messages: the connection broke, or the time was over.
    AnswerLost {
        /// The events that the lost answer was about.
        ids: Vec<String>,
    },
    /// A relay claimed rows, and is about to deliver them.
    Claimed {
        /// The lease under which it did, the same for all.
        lease: String,
        /// Their events.
        ids: Vec<String>,
        /// How many milliseconds before that it asked for them.
        took_ms: i64,
    },
    /// A relay settled a row.
    Settled {
        /// The event.
        id: String,
        /// The lease under which it did.
        lease: String,
        /// What it made of it: `done`, `retry`, `defer`, `dead` or `release`.
        action: String,
        /// Whether the store said that it was written, rather than that the lease was lost.
        applied: bool,
    },

    /// The nemesis broke something.
    Broken {
        /// The name of the fault, such as `database-restart`.
        fault: String,
        /// To whom or what.
        detail: String,
    },
    /// The nemesis mended what it had broken.
    Mended {
        /// The name of the fault.
        fault: String,
        /// How often the fault can be shown to have done something, such as connections cut or processes killed.
        effects: u64,
    },
    /// An operator is about to decide on an event that its key waits for.
    Decided {
        /// The event.
        id: String,
        /// What he is about to do: `release` it, so that it is tried again, `skip` it, or `give up`.
        decision: String,
    },
    /// A row that is no event was put into the table by hand.
    Malformed {
        /// Its id.
        id: String,
    },
    /// Everything is mended, nothing more is written; what is pending has until now plus this long.
    Healed {
        /// How long, in milliseconds: the lease, the greatest backoff and a margin.
        patience_ms: u64,
    },
    /// Nothing is pending any more, or the patience is over.
    Drained {
        /// How many rows are still pending.
        pending: u64,
    },

    /// A business row, found in the database at the end.
    Ledger(Message),
    /// A row of the outbox, found in the database at the end.
    Row {
        /// Its event.
        id: String,
        /// `new`, `done`, `retry` or `dead`.
        status: String,
        /// How often it has failed.
        attempts: u32,
        /// Why it failed last.
        error: Option<String>,
    },
    /// A change of a row of the outbox, as a trigger of the database noted it: of its status, or of a lease that it had.
    Changed {
        /// The event.
        id: String,
        /// The status before and after, as in [`Row`](What::Row).
        status: [String; 2],
        /// The lease before and after.
        lease: [Option<String>; 2],
        /// For how many milliseconds the lease before had stood since it was taken or renewed, by the clock that decides
        /// when it has run out. Nothing if there was none, or that is not known.
        held_ms: Option<i64>,
    },
    /// The last line: the history is whole.
    End,
}

/// What was intended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The release of Posthaste.
    pub version: String,
    /// The seed of all that was random.
    pub seed: u64,
    /// Which database.
    pub database: String,
    /// Where events were delivered to. Empty in histories that are older than the choice: to a sink.
    #[serde(default)]
    pub destination: String,
    /// How long things were broken.
    pub seconds: u64,
    /// The faults that must happen for the run to count.
    pub faults: Vec<String>,
    /// Faults that were left out, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// After how many milliseconds a lease has run out. 0 if that is not known.
    pub lease_ms: i64,
    /// At which failure an event is DEAD. 0 if that is not known.
    pub attempts: u32,
    /// Whether order within a key is promised.
    pub ordered: bool,
    /// What becomes of a key whose event is refused for good: `skip`, `block` or `park`. Empty in histories that are older than the
    /// choice: `skip`.
    #[serde(default)]
    pub on_dead: String,
    /// Whether rows are owned by lanes of keys, and not by leases of their own. A lease is then that of a lane: its number and its
    /// epoch.
    #[serde(default)]
    pub lanes: bool,
}

impl Run {
    /// Whether the destination was a broker, which is read at the end.
    pub fn reads_back(&self) -> bool {
        !["", "sink"].contains(&self.destination.as_str())
    }

    /// Whether those behind an event that is refused for good wait until an operator gives it up.
    pub fn waits(&self) -> bool {
        self.ordered && ["block", "park"].contains(&self.on_dead.as_str())
    }

    /// From which database to which destination.
    pub fn route(&self) -> String {
        if self.reads_back() { format!("{} to {}", self.database, self.destination) } else { self.database.clone() }
    }
}

/// A message, as it was written or as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The id of the event.
    pub id: String,
    /// Its type.
    pub event_type: String,
    /// Its aggregate id.
    pub key: String,
    /// Its number within the key, as the business row and a header of the event have it.
    pub number: u64,
    /// A hash of its payload.
    pub hash: u64,
    /// Whether the sink refuses it for good, by plan; or it goes where no broker takes anything.
    pub poison: bool,
}

/// Appends to a history.
pub struct Recorder {
    file: Mutex<File>,
    who: String,
    /// How many microseconds the clock of this process is ahead of the machine's.
    ahead: i64,
}

impl Recorder {
    /// Appends to the file at that path, which is created if it is missing.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, who: &str) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { file: Mutex::new(file), who: who.to_owned(), ahead: 0 })
    }

    /// The same for a process whose clock is that many seconds ahead, so that the history has one time.
    #[must_use]
    pub fn with_clock_ahead(self, seconds: i64) -> Self {
        Self { ahead: seconds * 1_000_000, ..self }
    }

    /// Appends what happened now.
    ///
    /// # Panics
    /// When it cannot be written: a history with holes proves nothing.
    pub fn record(&self, what: What) {
        self.record_all([what]);
    }

    /// Appends what happened now, as one `write`.
    ///
    /// # Panics
    /// As [`record`](Self::record).
    pub fn record_all(&self, whats: impl IntoIterator<Item = What>) {
        let at = now() - self.ahead;
        let mut lines = Vec::new();
        for what in whats {
            let entry = Entry { at, who: self.who.clone(), what };
            serde_json::to_writer(&mut lines, &entry).expect("an entry is JSON");
            lines.push(b'\n');
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&lines).expect("the history can be written");
    }
}

/// Reads a history. A last line that was cut short by a kill is left out.
///
/// # Errors
/// When the file cannot be read, or another line is not an entry.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut reader = BufReader::new(File::open(path)?);
    let (mut line, mut number) = (String::new(), 0_u64);
    while reader.read_line(&mut line)? > 0 {
        number += 1;
        match serde_json::from_str(&line) {
            Ok(entry) => entries.push(entry),
            Err(_) if !line.ends_with('\n') => {}
            Err(error) => {
                let error = format!("{}, line {number}: {error}", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        line.clear();
    }
    Ok(entries)
}

/// Writes a history.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, entries: &[Entry]) -> io::Result<()> {
    let mut writer = BufWriter::new(File::create(path)?);
    for entry in entries {
        serde_json::to_writer(&mut writer, entry)?;
        writer.write_all(b"\n")?;
    }
    writer.flush()
}

/// Microseconds since 1970, by the clock of the machine.
pub fn now() -> i64 {
    posthaste_core::Timestamp::now().as_micros()
}
