//! Hooks around the write.

use posthaste_conformance::testing::{Witness, event, events, told};
use posthaste_conformance::{Tap, no_interval};
use posthaste_core::hook::HookError;
use posthaste_core::listener::Path;
use posthaste_core::store::NewRow;
use posthaste_core::{Options, Outbox, Status, WriteHook};
use posthaste_diesel::OutboxExt;

use crate::database::Database;
use crate::observe::total;

/// What a broken hook does.
#[derive(Clone, Copy)]
enum Broken {
    Fails,
    Panics,
}

impl Broken {
    fn act(self) -> Result<(), HookError> {
        match self {
            Self::Fails => Err("a broken hook".into()),
            Self::Panics => panic!("a broken hook"),
        }
    }
}

impl WriteHook for Broken {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        rows.clear();
        self.act()
    }

    fn after_commit(&self, _rows: &[NewRow]) -> Result<(), HookError> {
        self.act()
    }

    fn after_rollback(&self, _rows: &[NewRow]) -> Result<(), HookError> {
        self.act()
    }
}

pub(crate) async fn case_12_broken_hooks<D: Database>(database: D) {
    for broken in [Broken::Fails, Broken::Panics] {
        let (tap, mut inbox) = Tap::new();
        let witness = Witness::default();
        let outbox = Outbox::builder(database.store()).options(no_interval()).hook(broken).hook(witness.clone());
        let outbox = outbox.listen_all(tap).start().await.unwrap();
        let mut conn = database.connect().await;
        let (committed, undone) = (event("Committed"), event("Undone"));
        outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&committed).await?)).await.unwrap();
        let undo = outbox.transaction_on(&mut conn, async |tx| {
            tx.write(&undone).await?;
            Err::<(), _>(anyhow::anyhow!("undone"))
        });
        assert_eq!(undo.await.unwrap_err().to_string(), "undone");
        let one = std::slice::from_ref;
        assert_eq!(witness.told(), [told("commit", one(&committed)), told("rollback", one(&undone))]);
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (committed.id(), Path::Hot));
        outbox.shutdown().await;
        inbox.assert_empty();
    }
}

/// A hook that works on what is about to be written.
struct Editor<E>(E);

impl<E: Fn(&mut Vec<NewRow>) + Send + Sync + 'static> WriteHook for Editor<E> {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        (self.0)(rows);
        Ok(())
    }
}

pub(crate) async fn case_13_hook_changes_events<D: Database>(database: D) {
    let (tap, mut inbox) = Tap::new();
    let editor = Editor(|rows: &mut Vec<NewRow>| {
        rows.retain(|row| row.event.event_type() != "Secret");
        for row in rows.iter_mut() {
            row.event = row.event.to_builder().header("seen", "yes").build().unwrap();
        }
        rows.push(NewRow::new(event("Added")));
    });
    let options = Options { workers: 1, ..no_interval() };
    let outbox = Outbox::builder(database.store()).options(options).hook(editor).listen_all(tap).start().await.unwrap();
    let mut conn = database.connect().await;
    let three = [event("First"), event("Secret"), event("Last")];
    let ids = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write_all(&three).await?)).await.unwrap();
    assert_eq!(ids.len(), 3);
    let expected = [("First", Some("yes")), ("Last", Some("yes")), ("Added", None)];
    for (id, (event_type, seen)) in ids.iter().zip(expected) {
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.event_type(), delivered.header("seen")), (id, event_type, seen));
        let stored = outbox.admin().find(id).await.unwrap().unwrap().event.unwrap();
        assert_eq!(stored.headers(), delivered.headers());
    }
    assert_eq!(total(&outbox).await, 3);
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_13_hook_takes_all<D: Database>(database: D) {
    let (tap, mut inbox) = Tap::new();
    let witness = Witness::default();
    let outbox =
        Outbox::builder(database.store()).options(no_interval()).hook(Editor(Vec::clear)).hook(witness.clone());
    let outbox = outbox.listen_all(tap).start().await.unwrap();
    let mut conn = database.connect().await;
    outbox
        .transaction_on(&mut conn, async |tx| {
            assert_eq!(tx.write(event("One")).await?, None);
            assert!(tx.write_all(events(3)).await?.is_empty());
            assert!(outbox.write_in(tx, event("One")).await?.ids().is_empty());
            anyhow::Ok(())
        })
        .await
        .unwrap();
    assert_eq!((total(&outbox).await, witness.told()), (0, vec![]));
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_17_writer_only<D: Database>(database: D) {
    let witness = Witness::default();
    let outbox = Outbox::writer_only(database.store()).hook(witness.clone()).start().await.unwrap();
    let mut conn = database.connect().await;
    let three = events(3);
    let ids = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write_all(&three).await?)).await.unwrap();
    assert_eq!(witness.told(), [told("commit", &three)]);
    assert_eq!(outbox.in_flight(), 0);
    for id in &ids {
        let row = outbox.admin().find(id).await.unwrap().unwrap();
        assert_eq!((row.state.status, row.state.lease), (Status::New, None));
    }
    assert!(outbox.shutdown().await.is_clean());
}
