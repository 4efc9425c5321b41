//! Encrypted connections.

use posthaste_core::store::{AdminStore, Error};
use posthaste_core::{Delivery, Outbox};
use posthaste_sql::MySqlStore;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, MySqlPool};
use tokio::sync::mpsc::unbounded_channel;

use super::Database;
use crate::between::Between;
use crate::support::{ANOTHER_AUTHORITY, chain, event};

/// What to say to be sure of the server.
fn verified() -> String {
    const CA: &str = "POSTHASTE_TEST_MYSQL_TLS_CA";
    let authority = std::env::var(CA).unwrap_or_else(|_| {
        panic!(
            "{CA} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first, for a server with TLS; for one of \
             your own, set it to the file with the certificate of the authority that signed the server's"
        )
    });
    format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={authority}")
}

/// The URL, with these parameters instead of those of the server.
fn url(options: &MySqlConnectOptions, parameters: &str) -> String {
    let mut url = options.to_url_lossy();
    url.set_query(Some(parameters));
    url.into()
}

/// What the server says of a connection; nothing if it is not encrypted.
async fn cipher(pool: &MySqlPool) -> String {
    let (_, cipher): (String, String) =
        sqlx::query_as("SHOW SESSION STATUS LIKE 'Ssl_cipher'").fetch_one(pool).await.unwrap();
    cipher
}

#[tokio::test]
async fn writers_and_relays_are_encrypted() {
    let database = Database::new().await;
    // The server lets this one in by no other way.
    let user = database.user("REQUIRE SSL").await;
    let store = MySqlStore::connect(&url(&user, &verified())).await.unwrap();
    store.migrate().await.unwrap();
    let (sender, mut delivered) = unbounded_channel();
    let listener = move |event: Delivery| {
        let sent = sender.send(event.id().to_string());
        async move { sent.unwrap() }
    };
    let outbox = Outbox::many_nodes(store.clone()).listen_all(listener).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("x")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(delivered.recv().await.unwrap(), "x");
    assert!(outbox.shutdown().await.is_clean());
    assert_eq!(store.counts().await.unwrap().done, 1);
    assert_ne!(cipher(store.pool()).await, "");

    let error = MySqlStore::connect(&url(&user, "ssl-mode=DISABLED")).await.unwrap_err();
    assert!(chain(&error).contains("TLS"), "{}", chain(&error));
}

#[tokio::test]
async fn another_authority_and_another_name_are_refused_with_what_to_do() {
    let database = Database::new().await;
    let another = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ANOTHER_AUTHORITY}");
    // Without one, only the authorities that everybody knows are trusted.
    for parameters in [another.as_str(), "ssl-mode=VERIFY_IDENTITY", "ssl-mode=VERIFY_CA"] {
        let error = MySqlStore::connect(&url(&database.options(), parameters)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(chain(&error).contains("name the authority's certificate in the URL"), "{}", chain(&error));
    }

    let port = Between::Honest.start(database.address()).await;
    let elsewhere = database.options().host("localhost").port(port);
    let error = MySqlStore::connect(&url(&elsewhere, &verified())).await.unwrap_err();
    assert!(chain(&error).contains("is for another name; connect by the name"), "{}", chain(&error));
    MySqlStore::connect(&url(&elsewhere, &verified().replace("VERIFY_IDENTITY", "VERIFY_CA"))).await.unwrap();
}

#[tokio::test]
async fn what_was_demanded_is_not_given_up_when_somebody_says_that_there_is_none() {
    let database = Database::new().await;
    let port = Between::HidesTlsOfMySql.start(database.address()).await;
    let through = database.options().host("127.0.0.1").port(port);
    for parameters in ["ssl-mode=REQUIRED", "ssl-mode=VERIFY_CA", &verified()] {
        let error = MySqlStore::connect(&url(&through, parameters)).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(chain(&error).contains("turn it on in the server"), "{}", chain(&error));
    }

    // By default it is, and this is why the default is not advised.
    let fooled = MySqlStore::connect(&url(&through, "")).await.unwrap();
    assert_eq!(cipher(fooled.pool()).await, "");
    let preferred = MySqlStore::connect(&url(&database.options(), "")).await.unwrap();
    assert_ne!(cipher(preferred.pool()).await, "");
}

#[tokio::test]
async fn what_would_be_ignored_is_refused() {
    let database = Database::new().await;
    for parameters in
        ["ssl_mode=VERIFY_IDENTITY", "ssl-mode=verify-full", "ssl-mode=REQUIRED&ssl-ca=ca.pem", "sslrootcert=ca.pem"]
    {
        let error = MySqlStore::connect(&url(&database.options(), parameters)).await.unwrap_err();
        assert!(matches!(error, Error::Config { field: "url", .. }), "{parameters}: {error:?}");
    }
}
