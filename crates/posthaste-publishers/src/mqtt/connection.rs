//! The connection to a broker.

use std::sync::Arc;
use std::time::Duration;

use rumqttc::{
    AsyncClient, ConnAck, ConnectReturnCode, ConnectionError, DisconnectReasonCode, Event, Packet, StateError,
    default_socket_connect,
};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::MqttOptions;
use super::options::WINDOW;
use super::parting::{Ear, Overheard, Reason};
use super::prompt::Prompt;
use crate::address;
use crate::publisher::PublishError;

/// How long the end of a connection is waited for when a message has noticed it.
const END: Duration = Duration::from_millis(500);

/// One connection and session, until it is lost: another is made then. So nothing that was given up is sent later.
pub(super) struct Connection {
    pub(super) client: AsyncClient,
    /// The most bytes of a packet that the broker takes.
    pub(super) max_packet: Option<usize>,
    /// A permit for each message that the broker takes now, if no batch was given up in the middle: their client holds back what is
    /// too much. Closed when the connection is over.
    pub(super) room: Arc<Semaphore>,
    /// For who waits for answers, and has nothing more to send.
    pub(super) prompt: Prompt,
    /// Why the broker ended it, if it said so.
    parting: Reason,
    /// Ends when the connection does.
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    pub(super) async fn dial(
        options: &MqttOptions,
        client_options: &rumqttc::MqttOptions,
    ) -> Result<Self, PublishError> {
        let shown = address::shown(&options.url);
        let failed = |reason: String| PublishError::outage(format!("cannot connect to {shown}: {reason}"));
        let refused = |reason: String, is_ours: bool| match is_ours {
            true => PublishError::permanent(format!("cannot connect to {shown}: {reason}; check user and password")),
            false => failed(reason),
        };
        let (parting, mut client_options) = (Reason::default(), client_options.clone());
        let (told_by, prompt) = (Arc::clone(&parting), Prompt::default());
        let prompted = prompt.clone();
        client_options.set_socket_connector(move |host, network| {
            let (ear, prompt) = (Ear::new(Arc::clone(&told_by)), prompted.clone());
            async move {
                let stream = default_socket_connect(host, network).await?;
                let socket = prompt.of(&stream)?;
                Ok(Overheard { stream, ear, _socket: socket })
            }
        });
        let (client, mut events) =
            AsyncClient::builder(client_options).try_build().map_err(|error| failed(error.to_string()))?;
        let (tell, told) = oneshot::channel::<Result<ConnAck, (String, bool)>>();
        let part = Arc::clone(&parting);
        let name = options.name.clone();
        // Until it is known how many there are.
        let room = Arc::new(Semaphore::new(0));
        let closed_with = ClosedWith(Arc::clone(&room));
        let driver = tokio::spawn(async move {
            let _closed = closed_with;
            let mut tell = Some(tell);
            // Their client would connect again by itself, and repeat what was given up.
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(accepted))) => {
                        if let Some(tell) = tell.take() {
                            tell.send(Ok(accepted)).ok();
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        if let ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) = &error {
                            // Over TLS it is heard here only.
                            let _ = part.set(*reason_code);
                        }
                        match tell.take() {
                            Some(tell) => drop(tell.send(Err((error.to_string(), is_of_us(&error))))),
                            None => tracing::debug!(destination = name, %error, "connection ended"),
                        }
                        return;
                    }
                }
            }
        });
        let mut connection = Self { client, max_packet: None, room, prompt, parting, driver };
        let limit = options.connect_timeout;
        let accepted = match timeout(limit, told).await {
            Ok(Ok(accepted)) => accepted.map_err(|(reason, is_ours)| refused(reason, is_ours))?,
            Ok(Err(_)) => return Err(failed("the connection ended".to_owned())),
            Err(_) => return Err(failed(format!("no answer within {limit:?}"))),
        };
        let properties = accepted.properties;
        let packet = properties.as_ref().and_then(|properties| properties.max_packet_size);
        connection.max_packet = packet.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let at_once = properties.and_then(|properties| properties.receive_max).unwrap_or(u16::MAX);
        connection.room.add_permits(usize::from(at_once.min(WINDOW)));
        Ok(connection)
    }

    /// Whether it was neither lost nor left.
    pub(super) fn stands(&self) -> bool {
        !self.driver.is_finished()
    }

    /// Why the broker ended it, if it said so.
    pub(super) async fn parting(&self) -> Option<DisconnectReasonCode> {
        // Messages may notice the end before it is known here.
        let _ = timeout(END, self.ended()).await;
        self.parting.get().copied()
    }

    async fn ended(&self) {
        while self.stands() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends nothing any more over a connection that does not answer.
    pub(super) fn abandon(&self) {
        self.driver.abort();
    }

    /// Says goodbye.
    pub(super) async fn close(&self) {
        self.client.disconnect().await.ok();
        self.ended().await;
    }
}

/// Closes the room of a connection when its driver ends, however that is.
struct ClosedWith(Arc<Semaphore>);

impl Drop for ClosedWith {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Whether the broker refuses who we are, which waiting does not change.
fn is_of_us(error: &ConnectionError) -> bool {
    use ConnectReturnCode as Code;
    let ConnectionError::ConnectionRefused(code) = error else { return false };
    matches!(
        code,
        Code::BadUserNamePassword
            | Code::NotAuthorized
            | Code::Banned
            | Code::BadAuthenticationMethod
            | Code::BadClientId
            | Code::ClientIdentifierNotValid
            | Code::RefusedProtocolVersion
            | Code::UnsupportedProtocolVersion
    )
}
