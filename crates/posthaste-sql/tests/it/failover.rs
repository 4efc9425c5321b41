//! Connections that were made before a failover, and lead to a server that only reads by now.

use std::time::Duration;

use posthaste_core::store::{Action, AdminStore, Error, Filter, Purge, Redrive, RelayStore, WriteStore};

use crate::support::{chain, claim, claim_of, event, settle_all, unleased, write};

/// Whatever a store does, such a connection refuses it once, and is not used again.
///
/// `stale` makes stores that have one such connection, and room for no other.
pub(crate) async fn assert_stale_connections_are_left<S>(good: &S, stale: impl AsyncFn() -> S)
where
    S: WriteStore + RelayStore + AdminStore,
{
    write(good, ["a", "b"].map(event)).await;
    let (lease, claimed) = claim(good, 1).await;
    let leases = [(claimed.rows[0].event.id().clone(), lease.clone())];
    let settlements = settle_all(&lease, &claimed, &Action::Done);
    let purge = Purge { done_after: Some(Duration::ZERO), ..Purge::default() };

    assert_refused_once("renew", &stale().await, async |store| store.renew(&leases).await.map(drop)).await;
    assert_refused_once("settle", &stale().await, async |store| store.settle(&settlements).await.map(drop)).await;
    assert_refused_once("claim", &stale().await, async |store| store.claim(&claim_of(1)).await.map(drop)).await;
    assert_refused_once("release", &stale().await, async |store| store.release_all().await.map(drop)).await;
    assert_refused_once("purge", &stale().await, async |store| store.purge(&purge).await.map(drop)).await;
    let redrive = Redrive::matching(Filter::default());
    assert_refused_once("redrive", &stale().await, async |store| store.redrive(&redrive).await.map(drop)).await;
    assert_refused_once("write", &stale().await, async |store| {
        let mut tx = store.begin().await?;
        store.insert(&mut tx, &unleased([event("written")])).await?;
        store.commit(tx).await.unwrap();
        Ok(())
    })
    .await;

    let counts = good.counts().await.unwrap();
    assert_eq!((counts.new, counts.done), (2, 0), "one was purged, one released, one written");
}

async fn assert_refused_once<S>(what: &str, store: &S, call: impl AsyncFn(&S) -> Result<(), Error>) {
    let error = call(store).await.expect_err(what);
    assert!(matches!(error, Error::Unavailable(_)), "{what}: {error:?}");
    assert!(chain(&error).contains("connect to the primary"), "{what}: {}", chain(&error));
    if let Err(error) = call(store).await {
        panic!("{what}: {}", chain(&error));
    }
}
