//! For build scripts: migrations that a crate ships as files and asks its users to copy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, ensure};
use serde_json::Value;

/// Writes the package's migrations, one after the other, to `schema.sql` among the caller's build output.
pub fn embed(package: &str) -> anyhow::Result<()> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory(package)?.join("migrations"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| {
        file.extension().is_some_and(|it| it == "sql") && !file.to_string_lossy().ends_with(".down.sql")
    });
    files.sort();
    ensure!(!files.is_empty(), "{package} has no migrations");
    let sql: Vec<String> = files.iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    let output = env::var("OUT_DIR").context("OUT_DIR is set for build scripts")?;
    fs::write(Path::new(&output).join("schema.sql"), sql.join("\n"))?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../Cargo.lock");
    Ok(())
}

/// Where Cargo has unpacked the package.
fn directory(package: &str) -> anyhow::Result<PathBuf> {
    let cargo = env::var("CARGO").context("CARGO is set for build scripts")?;
    let output = Command::new(cargo).args(["metadata", "--format-version=1", "--locked"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let found = packages.iter().find(|it| it["name"] == package).context("no such package")?;
    let manifest = found["manifest_path"].as_str().context("a package has a manifest")?;
    Ok(Path::new(manifest).parent().context("a manifest is in a directory")?.to_path_buf())
}
