//! `cargo xtask features`: the command compiles without a warning with fewer features than all.

use std::env;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const PACKAGE: &str = "posthaste-cli";

/// Builds that somebody may want: what is there without a feature, what `cargo install` makes, and that with Kafka.
const BUILDS: &[&[&str]] = &[&[], &["default"], &["default", "kafka"]];

pub(crate) fn run() -> Result<ExitCode> {
    let others = features_of_others(&metadata()?);
    for build in BUILDS {
        let chosen: Vec<String> = build.iter().map(|feature| format!("{PACKAGE}/{feature}")).collect();
        println!("{PACKAGE} with {}", if build.is_empty() { "no feature".to_owned() } else { build.join(", ") });
        // Everything else has all of its features, as in the other steps: what they compiled is used, and it is the command
        // alone that is compiled again. By itself it would take minutes, for each build.
        let status = cargo()
            .args(["clippy", "--locked", "--workspace", "--bin", "posthaste", "--no-default-features", "--features"])
            .arg([&others[..], &chosen].concat().join(","))
            .args(["--", "-D", "warnings"])
            .status()
            .context("cargo clippy")?;
        if !status.success() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Cargo without what it has told this program of itself, which would look like a change to build scripts that ask for it.
fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    cargo
}

fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// All features of all packages of the workspace but that of the command, as `package/feature`.
fn features_of_others(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let others = packages.filter(|package| package["name"] != PACKAGE);
    others
        .flat_map(|package| {
            let name = package["name"].as_str().unwrap_or_default();
            let features = package["features"].as_object().into_iter().flatten();
            features.map(move |(feature, _)| format!("{name}/{feature}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_of_the_command_are_left_out() {
        let metadata = serde_json::json!({ "packages": [
            { "name": PACKAGE, "features": { "default": ["nats"], "nats": [] } },
            { "name": "posthaste", "features": { "kafka": [], "nats": [] } },
            { "name": "xtask", "features": {} },
        ] });
        assert_eq!(features_of_others(&metadata), ["posthaste/kafka", "posthaste/nats"]);
    }
}
