//! TLS with who can prove who he is.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Trusts the authorities that browsers trust, and those of that file. Shows that certificate, with its key, to who asks.
pub(crate) fn client_config(
    ca_file: Option<&Path>,
    certificate: Option<(&Path, &Path)>,
) -> Result<ClientConfig, Box<dyn Error + Send + Sync>> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        for authority in certificates(path, "authorities")? {
            roots.add(authority)?;
        }
    }
    // With several implementations of cryptography in one program, there has to be a choice.
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let Some((certificate, key)) = certificate else { return Ok(config.with_no_client_auth()) };
    let unread = |error| format!("cannot read the key in {}: {error}", key.display());
    let key = PrivateKeyDer::from_pem_file(key).map_err(unread)?;
    Ok(config.with_client_auth_cert(certificates(certificate, "certificate")?, key)?)
}

fn certificates(path: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let unread = |error| format!("cannot read the {what} in {}: {error}", path.display());
    CertificateDer::pem_file_iter(path).map_err(unread)?.collect::<Result<_, _>>().map_err(unread)
}
