//! `cargo xtask trees`: whoever takes one adapter gets nothing of the others, and whoever takes one database no other driver.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

/// A feature of the façade, and what it brings that nothing else may bring.
struct Part {
    feature: &'static str,
    packages: &'static [&'static str],
}

const ADAPTERS: &[Part] = &[
    Part { feature: "axum", packages: &["posthaste-axum", "axum-core", "http"] },
    Part { feature: "diesel", packages: &["posthaste-diesel", "diesel", "diesel-async"] },
    Part { feature: "sea-orm", packages: &["posthaste-sea-orm", "sea-orm"] },
    Part { feature: "tokio-postgres", packages: &["posthaste-tokio-postgres", "tokio-postgres"] },
    Part { feature: "deadpool", packages: &["deadpool-postgres", "deadpool"] },
    Part { feature: "opentelemetry", packages: &["posthaste-opentelemetry", "opentelemetry"] },
];

const DATABASES: &[Part] = &[
    Part { feature: "postgres", packages: &["sqlx-postgres"] },
    Part { feature: "mysql", packages: &["sqlx-mysql"] },
    Part { feature: "sqlite", packages: &["sqlx-sqlite", "libsqlite3-sys"] },
];

/// What a feature needs of another one: diesel-async is made of tokio-postgres, and deadpool is for nothing else.
const SHARED: &[(&str, &str)] = &[
    ("diesel", "tokio-postgres"),
    ("deadpool", "posthaste-tokio-postgres"),
    ("deadpool", "tokio-postgres"),
    ("deadpool", "sqlx-postgres"),
    ("tokio-postgres", "sqlx-postgres"),
];

/// The names of our own packages that are adapters.
pub(crate) fn adapter_packages() -> impl Iterator<Item = &'static str> {
    ADAPTERS.iter().map(|adapter| adapter.packages[0]).filter(|package| package.starts_with("posthaste-"))
}

pub(crate) fn run() -> Result<ExitCode> {
    let every: Vec<_> = DATABASES.iter().map(|database| database.feature).collect();
    let mut problems = Vec::new();
    for adapter in ADAPTERS.iter().map(|adapter| Some(adapter.feature)).chain([None]) {
        for databases in every.chunks(1).chain([&every[..]]) {
            let features: Vec<_> = databases.iter().copied().chain(adapter).collect();
            let packages = packages(&features)?;
            problems.extend(problems_with(&features, &packages));
            println!("{:>3} packages with {}", packages.len(), features.join(", "));
        }
    }
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is there of a feature that is off, and what is missing of one that is on.
fn problems_with(features: &[&str], packages: &[String]) -> Vec<String> {
    let with = features.join(", ");
    let has = |package: &str| packages.iter().any(|name| name == package);
    let mut problems = Vec::new();
    for part in ADAPTERS.iter().chain(DATABASES) {
        for package in part.packages {
            let wanted = features.contains(&part.feature);
            let needed = SHARED.iter().any(|(feature, shared)| features.contains(feature) && shared == package);
            match has(package) {
                true if !wanted && !needed => problems.push(format!("with {with}, the façade depends on {package}")),
                // A name that was misspelt here would never be found anywhere.
                false if wanted => problems.push(format!("with {with}, {package} is not there")),
                _ => {}
            }
        }
    }
    problems
}

/// The names of all packages that the façade depends on with these features.
fn packages(features: &[&str]) -> Result<Vec<String>> {
    let features = features.join(",");
    let tree = ["tree", "--locked", "-p", "posthaste", "--no-default-features", "--features", &features];
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

#[cfg(test)]
mod tests {
    use super::problems_with;

    #[test]
    fn what_is_too_much_or_missing_is_told() {
        let problems = |packages: &[&str]| {
            let packages: Vec<_> = packages.iter().map(|package| (*package).to_owned()).collect();
            problems_with(&["postgres", "deadpool"], &packages)
        };
        let enough = ["sqlx-postgres", "posthaste-tokio-postgres", "tokio-postgres", "deadpool-postgres", "deadpool"];
        assert_eq!(problems(&enough), [] as [&str; 0]);
        assert_eq!(
            problems(&[&enough[..], &["diesel", "sqlx-mysql"]].concat()),
            [
                "with postgres, deadpool, the façade depends on diesel",
                "with postgres, deadpool, the façade depends on sqlx-mysql"
            ]
        );
        assert_eq!(problems(&enough[..4]), ["with postgres, deadpool, deadpool is not there"]);
    }
}
