//! Hooks around the write.

use std::slice::from_ref;

use posthaste_conformance::testing::{Witness, event, told};
use posthaste_conformance::{Tap, no_interval};
use posthaste_core::hook::HookError;
use posthaste_core::listener::Path;
use posthaste_core::store::NewRow;
use posthaste_core::{Outbox, WriteHook};
use posthaste_sea_orm::OutboxExt;

use crate::order::place;
use crate::support::{Sea, with_orders};

crate::tests! { every: case_12_broken_hooks, case_13_hook_changes_events, case_13_hook_takes_all }

struct Broken;

impl WriteHook for Broken {
    fn before_write(&self, _rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        Err("before".into())
    }

    fn after_commit(&self, _rows: &[NewRow]) -> Result<(), HookError> {
        panic!("after")
    }
}

/// A hook that fails or panics does not reach the caller, and does not stop the others.
async fn case_12_broken_hooks<F: Sea>() {
    let fixture = F::create().await;
    let (db, witness) = (with_orders(&fixture).await, Witness::default());
    let (tap, mut inbox) = Tap::new();
    let builder = Outbox::builder(fixture.store()).options(no_interval()).hook(Broken).hook(witness.clone());
    let outbox = builder.listen_all(tap).start().await.unwrap();
    let written = event("Written");
    let mut tx = outbox.begin_on(&db).await.unwrap();
    tx.write(&written).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", from_ref(&written))]);
    assert_eq!(inbox.next().await.path(), Path::Hot);
    assert!(outbox.shutdown().await.is_clean());
}

struct Region;

impl WriteHook for Region {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        rows.retain(|row| row.event.event_type() != "Secret");
        for row in rows {
            row.event = row.event.to_builder().header("region", "eu").build()?;
        }
        Ok(())
    }
}

/// What a hook has changed is what is written, delivered and named.
async fn case_13_hook_changes_events<F: Sea>() {
    let fixture = F::create().await;
    let db = with_orders(&fixture).await;
    let (tap, mut inbox) = Tap::new();
    let builder = Outbox::builder(fixture.store()).options(no_interval()).hook(Region);
    let outbox = builder.listen_all(tap).start().await.unwrap();
    let (public, secret) = (event("Public"), event("Secret"));
    let mut tx = outbox.begin_on(&db).await.unwrap();
    assert_eq!(tx.write_all([&secret, &public]).await.unwrap(), [public.id().clone()]);
    tx.commit().await.unwrap();
    assert_eq!(inbox.next().await.header("region"), Some("eu"));
    assert!(outbox.shutdown().await.is_clean());
    inbox.assert_empty();
    let row = outbox.admin().find(public.id()).await.unwrap().unwrap();
    assert_eq!(row.event.unwrap().headers().get("region").map(String::as_str), Some("eu"));
}

/// When a hook takes all, nothing is written, and the rest of the transaction is committed.
async fn case_13_hook_takes_all<F: Sea>() {
    let fixture = F::create().await;
    let (db, witness) = (with_orders(&fixture).await, Witness::default());
    let (tap, mut inbox) = Tap::new();
    let builder = Outbox::builder(fixture.store()).options(no_interval()).hook(Region).hook(witness.clone());
    let outbox = builder.listen_all(tap).start().await.unwrap();
    let mut tx = outbox.begin_on(&db).await.unwrap();
    place(&*tx, 1).await;
    assert_eq!(tx.write(event("Secret")).await.unwrap(), None);
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), []);
    assert_eq!(crate::order::placed(&db).await, [1]);
    assert_eq!(crate::support::rows(&outbox).await, 0);
    assert!(outbox.shutdown().await.is_clean());
    inbox.assert_empty();
}
