//! Encrypted connections.

use std::time::Duration;

use posthaste_core::store::{AdminStore, Error};
use posthaste_core::{Delivery, Options, Outbox};
use posthaste_sql::PgStore;
use tokio::sync::mpsc::unbounded_channel;

use super::support::{Database, eventually, within};
use crate::between::Between;
use crate::support::{ANOTHER_AUTHORITY, chain, event};

const ENCRYPTED: &str = "pid IN (SELECT pid FROM pg_stat_ssl WHERE ssl)";
const PLAIN: &str = "pid IN (SELECT pid FROM pg_stat_ssl WHERE NOT ssl)";

/// What to say to be sure of the server.
fn verified() -> String {
    const CA: &str = "POSTHASTE_TEST_POSTGRES_TLS_CA";
    let authority = std::env::var(CA).unwrap_or_else(|_| {
        panic!(
            "{CA} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first, for a server with TLS; for one of \
             your own, set it to the file with the certificate of the authority that signed the server's"
        )
    });
    format!("sslmode=verify-full&sslrootcert={authority}")
}

#[tokio::test]
async fn writers_relays_and_listeners_are_encrypted_also_after_they_were_cut_off() {
    let database = Database::new().await;
    let url = database.url(&verified());
    let store = PgStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let (sender, mut delivered) = unbounded_channel();
    let listener = move |event: Delivery| {
        let sent = sender.send(event.id().to_string());
        async move { sent.unwrap() }
    };
    // It finds nothing unless it is woken, through a connection of its own.
    let options = Options { poll_interval: Duration::from_secs(3600), ..Options::default() };
    let relay = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    let writer = Outbox::writer_only(PgStore::connect(&url).await.unwrap()).start().await.unwrap();

    for id in ["first", "second"] {
        let listening = format!("query LIKE 'LISTEN %' AND state = 'idle' AND {ENCRYPTED}");
        eventually("it listens", async || database.backends(&listening).await == 1).await;
        let mut tx = writer.begin().await.unwrap();
        tx.write(event(id)).await.unwrap();
        assert!(database.backends(&format!("state = 'idle in transaction' AND {ENCRYPTED}")).await > 0);
        tx.commit().await.unwrap();
        assert_eq!(within("it is delivered", delivered.recv()).await.unwrap(), id);
        assert_eq!(database.backends(PLAIN).await, 0);
        database.terminate("TRUE").await;
    }
    eventually("both are settled", async || store.counts().await.is_ok_and(|counts| counts.done == 2)).await;
    assert_eq!(database.backends(PLAIN).await, 0);
    writer.shutdown().await;
    relay.shutdown().await;
}

#[tokio::test]
async fn another_authority_and_another_name_are_refused_with_what_to_do() {
    let database = Database::new().await;
    let another = format!("sslmode=verify-full&sslrootcert={ANOTHER_AUTHORITY}");
    // Without one, only the authorities that everybody knows are trusted.
    for parameters in [another.as_str(), "sslmode=verify-full", "sslmode=verify-ca"] {
        let error = PgStore::connect(&database.url(parameters)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(chain(&error).contains("name the authority's certificate in the URL"), "{}", chain(&error));
    }

    let port = Between::Honest.start(database.address()).await;
    let error = PgStore::connect(&database.url_at(("localhost", port), &verified())).await.unwrap_err();
    assert!(chain(&error).contains("is for another name; connect by the name"), "{}", chain(&error));
    let anywhere = verified().replace("verify-full", "verify-ca");
    PgStore::connect(&database.url_at(("localhost", port), &anywhere)).await.unwrap();
}

#[tokio::test]
async fn what_was_demanded_is_not_given_up_when_somebody_says_that_there_is_none() {
    let database = Database::new().await;
    let port = Between::HidesTlsOfPostgres.start(database.address()).await;
    for parameters in ["sslmode=require", "sslmode=verify-ca", &verified()] {
        let error = PgStore::connect(&database.url_at(("127.0.0.1", port), parameters)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(chain(&error).contains("turn it on in the server"), "{}", chain(&error));
    }

    // By default it is, and this is why the default is not advised.
    let fooled = PgStore::connect(&database.url_at(("127.0.0.1", port), "")).await.unwrap();
    fooled.migrate().await.unwrap();
    assert!(fooled.counts().await.is_ok() && database.backends(PLAIN).await > 0);
    let preferred = PgStore::connect(&database.url("")).await.unwrap();
    assert!(preferred.counts().await.is_ok() && database.backends(ENCRYPTED).await > 0);
}

#[tokio::test]
async fn what_would_be_ignored_is_refused() {
    let database = Database::new().await;
    for parameters in
        ["sslMode=verify-full", "sslmode=verify-everything", "sslmode=require&sslrootcert=ca.pem", "ssl_ca=ca.pem"]
    {
        let error = PgStore::connect(&database.url(parameters)).await.unwrap_err();
        assert!(matches!(error, Error::Config { field: "url", .. }), "{parameters}: {error:?}");
    }
}
