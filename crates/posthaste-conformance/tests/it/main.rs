//! Every case for every store.

mod event;
mod ui;

mod mariadb {
    posthaste_conformance::store_tests!(posthaste_conformance::MariaDbFixture);
    posthaste_conformance::table_tests!(posthaste_conformance::MariaDbFixture);
    posthaste_conformance::lane_tests!(
        #[tokio::test]
        posthaste_conformance::MariaDbFixture
    );
    posthaste_conformance::server_tests!(posthaste_conformance::MariaDbFixture);
}

mod memory {
    posthaste_conformance::store_tests!(posthaste_conformance::MemoryFixture);
    posthaste_conformance::lane_tests!(
        #[tokio::test(start_paused = true)]
        posthaste_conformance::MemoryFixture
    );
}

mod partitioned {
    posthaste_conformance::store_tests!(posthaste_conformance::PartitionedFixture);
    posthaste_conformance::table_tests!(posthaste_conformance::PartitionedFixture);
    posthaste_conformance::lane_tests!(
        #[tokio::test]
        posthaste_conformance::PartitionedFixture
    );
    posthaste_conformance::server_tests!(posthaste_conformance::PartitionedFixture);
}

mod postgres {
    posthaste_conformance::store_tests!(posthaste_conformance::PgFixture);
    posthaste_conformance::table_tests!(posthaste_conformance::PgFixture);
    posthaste_conformance::lane_tests!(
        #[tokio::test]
        posthaste_conformance::PgFixture
    );
    posthaste_conformance::server_tests!(posthaste_conformance::PgFixture);
}

mod sqlite {
    posthaste_conformance::store_tests!(posthaste_conformance::SqliteFixture);
    posthaste_conformance::table_tests!(posthaste_conformance::SqliteFixture);
    posthaste_conformance::lane_tests!(
        #[tokio::test]
        posthaste_conformance::SqliteFixture
    );
}

#[tokio::test]
#[ignore = "no test: a process that the case about clocks starts"]
async fn node() {
    posthaste_conformance::clock::node().await;
}
