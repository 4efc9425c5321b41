//! What the guide says beside its Rust.

use posthaste::Options;

const ADOPTING: &str = include_str!("../../../../docs/guide/adopting.md");
const TUNING: &str = include_str!("../../../../docs/guide/tuning.md");

/// What the compiler says to who hands over a pool; a test of the conformance suite has it say that.
const REFUSED: &str = include_str!("../../../posthaste-conformance/tests/ui/sqlx_postgres_pool.stderr");

#[test]
fn every_option_is_explained() {
    let options = serde_json::to_value(Options::default()).expect("options are plain data");
    let options = options.as_object().expect("options are a struct");
    assert!(options.len() > 20, "{options:?}");
    for option in options.keys() {
        assert!(TUNING.contains(&format!("| `{option}` |")), "docs/guide/tuning.md has no line for {option}");
    }
}

#[test]
fn its_options_in_a_file_are_read() {
    let (_, rest) = TUNING.split_once("```toml\n").expect("there is a block of TOML");
    let (file, _) = rest.split_once("```").expect("the block ends");
    let options: Options = toml::from_str(file).expect("it is as options are written");
    options.check().expect("it makes sense");
    assert_ne!(options, Options::default());
}

#[test]
fn what_the_compiler_says_is_what_it_says() {
    let (_, rest) = ADOPTING.split_once("```text\n").expect("there is a block of text");
    let (said, _) = rest.split_once("\n```").expect("the block ends");
    assert!(REFUSED.contains(said), "{said}");
}

#[test]
fn every_library_has_a_before_and_an_after() {
    let sections: Vec<_> = ADOPTING.split("\n## ").collect();
    let section = |name: &str| sections.iter().find(|section| section.starts_with(name)).expect("it has a section");
    for library in ["sqlx", "Functions", "axum", "tokio-postgres and deadpool", "SeaORM", "Diesel"] {
        let (before, after) = section(library).split_once("\nAfter").expect("it has an after");
        assert!(before.contains("\nBefore") && before.contains("```rust"), "{library}");
        assert!(after.contains("Outbox") && after.contains("write"), "{library}");
    }
}
