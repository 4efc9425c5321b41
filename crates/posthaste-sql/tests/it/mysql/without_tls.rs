//! A build without TLS. `--all-features` does not make one:
//! `scripts/test plain` does.

use posthaste_core::store::Error;
use posthaste_sql::MySqlStore;
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlSslMode;

use super::Database;

#[tokio::test]
async fn a_url_that_demands_it_is_refused_by_the_name_of_the_feature() {
    let database = Database::new().await;
    for mode in [MySqlSslMode::Required, MySqlSslMode::VerifyCa, MySqlSslMode::VerifyIdentity] {
        let url = database.options().ssl_mode(mode).to_url_lossy();
        let error = MySqlStore::connect(url.as_str()).await.unwrap_err();
        assert!(matches!(&error, Error::Config { reason, .. } if reason.contains("feature `tls`")), "{error:?}");
    }
    let url = database.options().ssl_mode(MySqlSslMode::Preferred).to_url_lossy();
    MySqlStore::connect(url.as_str()).await.unwrap();
}

#[tokio::test]
async fn a_password_that_may_only_be_sent_encrypted_names_the_feature_too() {
    let database = Database::new().await;
    let url = database.user("").await.to_url_lossy();
    let server: String =
        sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut database.connection().await).await.unwrap();
    let connected = MySqlStore::connect(url.as_str()).await;
    if server.contains("MariaDB") {
        connected.unwrap();
    } else {
        let error = connected.unwrap_err();
        assert!(matches!(&error, Error::Config { reason, .. } if reason.contains("feature `tls`")), "{error:?}");
    }
}
