//! Every case for every store.

mod event;

mod memory {
    posthaste_conformance::store_tests!(posthaste_conformance::MemoryFixture);
}

mod postgres {
    posthaste_conformance::store_tests!(posthaste_conformance::PgFixture);
    posthaste_conformance::table_tests!(posthaste_conformance::PgFixture);
}

mod sqlite {
    posthaste_conformance::store_tests!(posthaste_conformance::SqliteFixture);
    posthaste_conformance::table_tests!(posthaste_conformance::SqliteFixture);
}
