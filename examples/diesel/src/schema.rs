//! The tables, as `diesel print-schema` writes them.

diesel::table! {
    orders (id) {
        id -> Integer,
        item -> Text,
        total -> Integer,
        cancelled -> Bool,
    }
}
