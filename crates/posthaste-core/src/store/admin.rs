//! What an operator needs: to count, find, list, redrive, discard and purge.

use std::time::Duration;

use super::{BoxFuture, ClosedKey, Error, Key, LaneHolders, Pause, Paused, RowState, StalledKey, Status};
use crate::event::{Event, EventId};
use crate::time::Timestamp;

/// What an operator needs of a store. Object-safe, so that a command line and a dashboard share it.
pub trait AdminStore: Send + Sync + 'static {
    /// How many rows there are of each status.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Delivery, Event, Failure, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new())
    /// #     .listen_all(|_: Delivery| async { Err::<(), _>(Failure::permanent("certificate expired")) })
    /// #     .start()
    /// #     .await?;
    /// # let mut tx = outbox.begin().await?;
    /// # let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("there are no hooks");
    /// # tx.commit().await?;
    /// # outbox.shutdown().await;
    /// let counts = outbox.admin().counts().await?;
    /// assert_eq!((counts.pending(), counts.dead), (0, 1));
    /// # let _ = id;
    /// # Ok(())
    /// # }
    /// ```
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>>;

    /// One row, if there is one with that id.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Delivery, Event, Failure, MemoryStore, Outbox};
    /// use posthaste::Status;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new())
    /// #     .listen_all(|_: Delivery| async { Err::<(), _>(Failure::permanent("certificate expired")) })
    /// #     .start()
    /// #     .await?;
    /// # let mut tx = outbox.begin().await?;
    /// # let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("there are no hooks");
    /// # tx.commit().await?;
    /// # outbox.shutdown().await;
    /// let row = outbox.admin().find(&id).await?.expect("it was written");
    /// assert_eq!(row.state.status, Status::Dead);
    /// assert_eq!(row.state.last_error.as_deref(), Some("certificate expired"));
    /// # Ok(())
    /// # }
    /// ```
    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>>;

    /// The rows that fit, ordered by `seq`, a page at a time.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Delivery, Event, Failure, MemoryStore, Outbox};
    /// use posthaste::Status;
    /// use posthaste::store::{Cursor, Filter, Page};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new())
    /// #     .listen_all(|_: Delivery| async { Err::<(), _>(Failure::permanent("certificate expired")) })
    /// #     .start()
    /// #     .await?;
    /// # let mut tx = outbox.begin().await?;
    /// # let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("there are no hooks");
    /// # tx.commit().await?;
    /// # outbox.shutdown().await;
    /// let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    /// let mut page = Page { limit: 50, ..Page::default() };
    /// loop {
    ///     let rows = outbox.admin().list(&dead, &page).await?;
    ///     for row in &rows {
    ///         println!("{}: {:?}", row.id, row.state.last_error);
    ///     }
    ///     let Some(last) = rows.last() else { break };
    ///     page.after = Some(Cursor::from(last));
    /// }
    /// # let _ = id;
    /// # Ok(())
    /// # }
    /// ```
    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>>;

    /// What the clock says that rows have their moments from: that of the database. Default: refused.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Delivery, MemoryStore, Outbox};
    /// use posthaste::store::Filter;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let ended_by_now = Filter { ended_before: Some(outbox.admin().clock().await?), ..Filter::default() };
    /// # let _ = ended_by_now;
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(std::future::ready(Err(Error::Refused("this store does not tell what its clock says".into()))))
    }

    /// Makes DEAD rows NEW again, with no attempts, no error, and available at once. Rows of another status are left
    /// alone. Works on one chunk, and says how many rows it changed; it is over when that is none.
    ///
    /// A chunk is of the rows with the lowest numbers, and a row keeps its own. Where they die again before the next chunk, which
    /// they do while the cause lasts, they come first again: say with [`Filter::ended_before`] that it is about those that had died
    /// by the beginning, and each is redriven once.
    ///
    /// A store may look for the numbers of many chunks at once. What dies before it is through with them, or was held by somebody, then
    /// comes after them.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Delivery, Event, Failure, MemoryStore, Outbox};
    /// use posthaste::store::{Filter, Redrive};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new())
    /// #     .listen_all(|_: Delivery| async { Err::<(), _>(Failure::permanent("certificate expired")) })
    /// #     .start()
    /// #     .await?;
    /// # let mut tx = outbox.begin().await?;
    /// # let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("there are no hooks");
    /// # tx.commit().await?;
    /// # outbox.shutdown().await;
    /// assert_eq!(outbox.admin().redrive(&Redrive::ids([id])).await?, 1);
    ///
    /// let expired = Filter {
    ///     error_contains: Some("certificate".into()),
    ///     ended_before: Some(outbox.admin().clock().await?),
    ///     ..Filter::default()
    /// };
    /// while outbox.admin().redrive(&Redrive::matching(expired.clone())).await? > 0 {}
    /// # Ok(())
    /// # }
    /// ```
    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>>;

    /// Deletes DEAD rows that nobody will deliver any more. Rows of another status are left alone. Works on one chunk, and says how
    /// many rows it deleted; it is over when that is none. Default: refused.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Delivery, Event, Failure, MemoryStore, Outbox};
    /// use posthaste::store::Redrive;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new())
    /// #     .listen_all(|_: Delivery| async { Err::<(), _>(Failure::permanent("certificate expired")) })
    /// #     .start()
    /// #     .await?;
    /// # let mut tx = outbox.begin().await?;
    /// # let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("there are no hooks");
    /// # tx.commit().await?;
    /// # outbox.shutdown().await;
    /// assert_eq!(outbox.admin().discard(&Redrive::ids([id])).await?, 1);
    /// assert_eq!(outbox.admin().counts().await?.total(), 0);
    /// # Ok(())
    /// # }
    /// ```
    fn discard<'a>(&'a self, _dead: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(std::future::ready(Err(Error::Refused("this store cannot discard rows".into()))))
    }

    /// Deletes old rows. Works on one chunk, and says how many rows it deleted; it is over when that is none.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::{Delivery, Event, Failure, MemoryStore, Outbox};
    /// use std::time::Duration;
    ///
    /// use posthaste::store::Purge;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new())
    /// #     .listen_all(|_: Delivery| async { Err::<(), _>(Failure::permanent("certificate expired")) })
    /// #     .start()
    /// #     .await?;
    /// # let mut tx = outbox.begin().await?;
    /// # let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("there are no hooks");
    /// # tx.commit().await?;
    /// # outbox.shutdown().await;
    /// let old = Purge { done_after: Some(Duration::from_secs(30 * 24 * 3600)), ..Purge::default() };
    /// while outbox.admin().purge(&old).await? > 0 {}
    /// # let _ = id;
    /// # Ok(())
    /// # }
    /// ```
    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>>;

    /// Whether the table is kept in parts by age, such as partitions, so that [`maintain`](Self::maintain) has something to
    /// do even where every row is kept for ever. Default: no.
    fn has_parts(&self) -> bool {
        false
    }

    /// Looks after a table that is kept in parts by age: makes the parts that will be needed next, and drops those in which
    /// everything is old. An outbox calls it at its start and then with each round of its retention, in every process.
    /// Default: does nothing.
    ///
    /// # Cancellation
    /// Safe: each part was made or dropped as a whole, or not at all.
    fn maintain<'a>(&'a self, _kept: &'a Purge) -> BoxFuture<'a, Result<Maintained, Error>> {
        Box::pin(std::future::ready(Ok(Maintained::default())))
    }

    /// Keys of which nothing is delivered until somebody decides, those that wait for longest first. Default: none.
    fn closed_keys(&self, _limit: usize) -> BoxFuture<'_, Result<Vec<ClosedKey>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Keys whose events wait for a head that has failed: first those that are parked, then those whose head is tried again, each
    /// in the order since when. Looks at everything that is pending. What is not delivered in order waits for nothing, and is
    /// among the latter all the same: [`LaneHolders::orders`] tells. Nothing where rows are not owned by lanes. Default: none.
    fn stalled_keys(&self, _limit: usize) -> BoxFuture<'_, Result<Vec<StalledKey>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Who has the lanes, and which relays are there; nothing where rows are not owned by lanes. Default: nothing.
    fn lane_holders(&self) -> BoxFuture<'_, Result<Option<LaneHolders>, Error>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Lets a closed key go on with the event that is to blame, which is redriven. Says whether the key was closed because of that
    /// event: whoever decides has seen which it is, and another may have taken its place since. To redrive that event does the
    /// same. Default: none is.
    fn release_key<'a>(&'a self, _key: &'a Key, _head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// What relays are told not to deliver for the time being, in the order in which it was said. Default: nothing.
    ///
    /// The outbox itself does not look: relays do that make [holds](crate::listener::Hold) of it, as the command `posthaste` does.
    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Tells all relays not to deliver something. Says whether it was not paused before; if it was, that stays as it is.
    /// Default: refused.
    fn pause<'a>(&'a self, _what: &'a Paused, _reason: Option<&'a str>) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(std::future::ready(Err(Error::Refused("this store keeps no pauses".into()))))
    }

    /// Lets all relays deliver it again. Says whether it was paused. Default: it was not.
    fn resume<'a>(&'a self, _what: &'a Paused) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Lets a closed key go on behind the event that is to blame, which stays DEAD. Says whether the key was closed because of that
    /// event, as for [`release_key`](Self::release_key). Default: none is.
    fn skip_head<'a>(&'a self, _key: &'a Key, _head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Gives up the event that a key is [blocked](super::Stall::Blocked) by: it becomes DEAD, and those behind it go on. Says whether
    /// that event was it, the first of its key that is pending, and had failed; otherwise nothing changes. What a listener makes of
    /// it that has it just then does not count any more. A key that is closed stays closed: there, [`skip_head`](Self::skip_head)
    /// decides. Default: it was not.
    fn give_up_head<'a>(&'a self, _key: &'a Key, _head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(false)))
    }
}

/// How many rows there are of each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// NEW.
    pub new: u64,
    /// RETRY.
    pub retry: u64,
    /// DONE.
    pub done: u64,
    /// DEAD.
    pub dead: u64,
}

impl Counts {
    /// The count of one status.
    pub fn of(&self, status: Status) -> u64 {
        match status {
            Status::New => self.new,
            Status::Retry => self.retry,
            Status::Done => self.done,
            Status::Dead => self.dead,
        }
    }

    /// The count of one status, to be set.
    pub fn of_mut(&mut self, status: Status) -> &mut u64 {
        match status {
            Status::New => &mut self.new,
            Status::Retry => &mut self.retry,
            Status::Done => &mut self.done,
            Status::Dead => &mut self.dead,
        }
    }

    /// Rows that still have to be delivered.
    pub fn pending(&self) -> u64 {
        self.new + self.retry
    }

    /// All rows.
    pub fn total(&self) -> u64 {
        self.pending() + self.done + self.dead
    }
}

/// A stored row: its event, if it is one, and where it stands.
#[derive(Clone, Debug)]
pub struct Record {
    /// The id of the row.
    pub id: EventId,
    /// The event, or what is wrong with the row.
    pub event: Result<Event, String>,
    /// Where it stands.
    pub state: RowState,
}

/// Which rows. A filter without conditions fits all; several conditions must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these statuses; none means every status.
    pub statuses: Vec<Status>,
    /// This event type.
    pub event_type: Option<String>,
    /// This aggregate type.
    pub aggregate_type: Option<String>,
    /// This aggregate id.
    pub aggregate_id: Option<String>,
    /// This tenant.
    pub tenant_id: Option<String>,
    /// Inserted at or after this moment.
    pub created_from: Option<Timestamp>,
    /// Inserted before this moment.
    pub created_before: Option<Timestamp>,
    /// Became DONE or DEAD before this moment, which no pending row has. Whoever works in chunks says what [`AdminStore::clock`]
    /// said when he began: what ends meanwhile, perhaps for the second time, is then none of his.
    ///
    /// A row that another program ended without saying when has ended at its insert.
    pub ended_before: Option<Timestamp>,
    /// An error that contains this text, letter for letter.
    pub error_contains: Option<String>,
}

/// Which part of a list.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The most rows. Default 100.
    pub limit: usize,
    /// Where to go on; nothing for the beginning.
    pub after: Option<Cursor>,
    /// In which direction. Default: oldest first.
    pub order: Order,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 100, after: None, order: Order::OldestFirst }
    }
}

/// The last row of the page before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub i64);

impl From<&Record> for Cursor {
    fn from(record: &Record) -> Self {
        Self(record.state.seq)
    }
}

/// The direction of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By rising `seq`.
    #[default]
    OldestFirst,
    /// By falling `seq`.
    NewestFirst,
}

/// Which DEAD rows to redrive, or to discard.
#[derive(Clone, Debug)]
pub struct Redrive {
    /// These ids only; nothing means whatever the filter fits.
    pub ids: Option<Vec<EventId>>,
    /// Which of them. Its statuses are not looked at: only DEAD rows are redriven.
    pub filter: Filter,
    /// The most rows to change in one call. Default 1000, so that locks are short.
    pub chunk: usize,
}

impl Redrive {
    /// One row, or several, by id.
    pub fn ids(ids: impl IntoIterator<Item = EventId>) -> Self {
        Self { ids: Some(ids.into_iter().collect()), ..Self::matching(Filter::default()) }
    }

    /// Every DEAD row that fits.
    pub fn matching(filter: Filter) -> Self {
        Self { ids: None, filter, chunk: 1000 }
    }
}

/// Which rows to delete.
#[derive(Clone, Debug)]
pub struct Purge {
    /// How long DONE rows are kept after they became DONE; nothing keeps them for ever.
    pub done_after: Option<Duration>,
    /// How long DEAD rows are kept after they became DEAD; nothing keeps them for ever. One for which its key is closed is kept until
    /// somebody has decided what becomes of the key.
    pub dead_after: Option<Duration>,
    /// How long rows of any status are kept after their insert, for tables that are only appended to and read from the
    /// log. Deletes what was never delivered, too: leave it out unless nobody settles rows. A key that is closed stays so.
    ///
    /// A database may look for them in the order of their numbers, and end where rows are young: one whose moment of insert
    /// was set by hand, out of order, is then deleted once those before it are.
    pub any_after: Option<Duration>,
    /// Whether rows are left alone that will soon be dropped with the whole part of the table that they are in, see
    /// [`AdminStore::maintain`]. They then stay for up to the length of two parts longer. Default false: an operator who
    /// purges gets what was asked for. Without parts it makes no difference.
    pub by_parts: bool,
    /// The most rows to delete in one call. Default 1000, so that locks are short.
    pub chunk: usize,
}

impl Default for Purge {
    /// Deletes nothing: each kind of row is kept unless it is said how long.
    fn default() -> Self {
        Self { done_after: None, dead_after: None, any_after: None, by_parts: false, chunk: 1000 }
    }
}

/// What [`AdminStore::maintain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Parts that were made.
    pub made: u64,
    /// Rows that were moved to the part where they belong.
    pub moved: u64,
    /// Parts that were dropped with all their rows.
    pub dropped: u64,
}
