//! Connecting to an endpoint without a request.

use std::io;
use std::sync::Arc;

use reqwest::Url;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use super::address::{NotPublic, is_public};
use super::options::WebhookOptions;
use super::request::private;
use crate::publisher::PublishError;
use crate::tls;

/// Connects, and leaves. What a name leads to is looked at just as for a request.
pub(super) async fn connect(url: &Url, options: &WebhookOptions) -> Result<(), PublishError> {
    let away = |error: io::Error| PublishError::outage(error);
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or_default();
    let mut addresses: Vec<_> = lookup_host((host, port)).await.map_err(away)?.collect();
    addresses.retain(|address| options.allow_private_addresses || is_public(address.ip()));
    if addresses.is_empty() {
        return Err(private(NotPublic::new(host)));
    }
    let stream = TcpStream::connect(&*addresses).await.map_err(away)?;
    if url.scheme() == "https" {
        let config = tls::client_config(options.ca_file.as_deref(), None).map_err(PublishError::permanent)?;
        let name = ServerName::try_from(host.to_owned()).map_err(PublishError::permanent)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(away)?;
    }
    Ok(())
}
