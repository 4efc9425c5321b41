//! Certificates for servers on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A certificate for 127.0.0.1 that signs itself, and its key.
pub(crate) fn certificate(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (certificate, key) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
    let wanted = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"];
    let named = ["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=IP:127.0.0.1"];
    let made = Command::new("openssl")
        .args(wanted)
        .args(named)
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout".as_ref(), key.as_os_str(), "-out".as_ref(), certificate.as_os_str()])
        .output()
        .expect("openssl is installed; it is a package of Debian");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}
