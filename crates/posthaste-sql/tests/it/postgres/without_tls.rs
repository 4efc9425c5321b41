//! A build without TLS. `--all-features` does not make one:
//! `scripts/test plain` does.

use posthaste_core::store::Error;
use posthaste_sql::PgStore;

use super::support::Database;

#[tokio::test]
async fn a_url_that_demands_it_is_refused_by_the_name_of_the_feature() {
    let database = Database::new().await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let error = PgStore::connect(&database.url(&format!("sslmode={mode}"))).await.unwrap_err();
        assert!(matches!(&error, Error::Config { reason, .. } if reason.contains("feature `tls`")), "{error:?}");
    }
    PgStore::connect(&database.url("sslmode=prefer")).await.unwrap();
}
