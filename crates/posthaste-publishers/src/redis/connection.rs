//! The connection to the server, and why there is none.

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError};
use tokio::time::timeout;

use super::RedisOptions;
use crate::address;
use crate::publisher::PublishError;

/// Connects, and logs in.
pub(super) async fn dial(options: &RedisOptions, client: &Client) -> Result<MultiplexedConnection, PublishError> {
    let limit = options.connect_timeout;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limit))
        .set_response_timeout(Some(options.ack_timeout));
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let failed = |reason: String| format!("cannot connect to {}: {reason}", address::shown(&options.url));
    // Their limit is for the socket; a server that accepts and says nothing would keep us waiting.
    match timeout(limit, connecting).await {
        Ok(connected) => connected.map_err(|error| unwelcome(&error, failed(error.to_string()))),
        Err(_) => Err(PublishError::outage(failed(format!("no answer within {limit:?}")))),
    }
}

/// Why there is no connection: the server does not know us, or it is away.
pub(super) fn unwelcome(error: &RedisError, reason: String) -> PublishError {
    let is_stranger =
        error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    if is_stranger {
        PublishError::permanent(format!("{reason}; check user and password"))
    } else {
        PublishError::outage(reason)
    }
}
