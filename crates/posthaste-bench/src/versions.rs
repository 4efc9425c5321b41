//! Which version of a client or a driver this program was built with.

use serde::Deserialize;

/// What every dependency was resolved to.
const LOCK: &str = include_str!("../../../Cargo.lock");

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    #[serde(default)]
    dependencies: Vec<String>,
}

/// Name and version of a crate that this one depends on.
pub(crate) fn of(name: &str) -> String {
    version(LOCK, name).map_or_else(|| name.to_owned(), |version| format!("{name} {version}"))
}

fn version(lock: &str, name: &str) -> Option<String> {
    let lock: Lock = toml::from_str(lock).ok()?;
    let ours = lock.package.iter().find(|package| package.name == env!("CARGO_PKG_NAME"))?;
    // Where there are several versions of a crate, it says which.
    let mut named = ours.dependencies.iter().map(|entry| entry.split_once(' ').unwrap_or((entry, "")));
    match named.find(|(dependency, _)| *dependency == name)?.1 {
        "" => lock.package.iter().find(|package| package.name == name).map(|package| package.version.clone()),
        version => Some(version.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_dependency() {
        let lock = "
            package = [
                { name = 'redis', version = '2.0.0' },
                { name = 'redis', version = '1.8.1' },
                { name = 'lapin', version = '4.12.3' },
                { name = 'posthaste-bench', version = '0.1.0', dependencies = ['lapin', 'redis 1.8.1'] },
            ]";
        assert_eq!(version(lock, "redis").as_deref(), Some("1.8.1"));
        assert_eq!(version(lock, "lapin").as_deref(), Some("4.12.3"));
        assert_eq!(version(lock, "other"), None);
        for client in ["async-nats", "lapin", "rdkafka", "redis", "reqwest", "rumqttc-v5-next", "sqlx"] {
            assert!(version(LOCK, client).is_some(), "{client}");
        }
    }
}
