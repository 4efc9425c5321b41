//! Every case for every store.

mod event;

mod memory {
    posthaste_conformance::store_tests!(posthaste_conformance::MemoryFixture);
}

mod sqlite {
    posthaste_conformance::store_tests!(posthaste_conformance::SqliteFixture);
    posthaste_conformance::table_tests!(posthaste_conformance::SqliteFixture);
}
