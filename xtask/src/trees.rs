//! `cargo xtask trees`: whoever takes one adapter gets nothing of the others.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

/// A feature of the façade, and what it brings that nothing else may bring.
struct Adapter {
    feature: &'static str,
    packages: &'static [&'static str],
}

const ADAPTERS: &[Adapter] = &[
    Adapter { feature: "axum", packages: &["posthaste-axum", "axum-core", "http"] },
    Adapter { feature: "diesel", packages: &["posthaste-diesel", "diesel", "diesel-async"] },
    Adapter { feature: "sea-orm", packages: &["posthaste-sea-orm", "sea-orm"] },
    Adapter { feature: "tokio-postgres", packages: &["posthaste-tokio-postgres", "tokio-postgres"] },
    Adapter { feature: "opentelemetry", packages: &["posthaste-opentelemetry", "opentelemetry"] },
];

/// What an adapter needs of another one's library: diesel-async is made of it.
const SHARED: &[(&str, &str)] = &[("diesel", "tokio-postgres")];

/// The names of our own packages that are adapters.
pub(crate) fn adapter_packages() -> impl Iterator<Item = &'static str> {
    ADAPTERS.iter().map(|adapter| adapter.packages[0])
}

pub(crate) fn run() -> Result<ExitCode> {
    let mut problems = Vec::new();
    for feature in ADAPTERS.iter().map(|adapter| adapter.feature).chain([""]) {
        let packages = packages(feature)?;
        let has = |package: &&str| packages.iter().any(|name| name == package);
        for adapter in ADAPTERS {
            let own = adapter.feature == feature;
            let unwanted = |package: &&&str| has(package) && !own && !SHARED.contains(&(feature, **package));
            problems.extend(adapter.packages.iter().filter(unwanted).map(|package| {
                let feature = if feature.is_empty() { "no adapter" } else { feature };
                format!("with {feature}, the façade depends on {package}")
            }));
            // A name that was misspelt here would never be found anywhere.
            let missing = adapter.packages.iter().filter(|package| own && !has(package));
            problems.extend(missing.map(|package| format!("with {feature}, {package} is not there")));
        }
        println!("{:>3} packages with {}", packages.len(), if feature.is_empty() { "no adapter" } else { feature });
    }
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The names of all packages that the façade depends on with PostgreSQL, SQLite and that feature.
fn packages(feature: &str) -> Result<Vec<String>> {
    let features = format!("postgres,sqlite,{feature}");
    let tree =
        ["tree", "--locked", "-p", "posthaste", "--no-default-features", "--features", features.trim_end_matches(',')];
    let output = Command::new(env!("CARGO"))
        .args(tree)
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo tree")?;
    ensure!(output.status.success(), "cargo tree failed for {features}");
    let mut names: Vec<String> = String::from_utf8(output.stdout)?
        .lines()
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}
