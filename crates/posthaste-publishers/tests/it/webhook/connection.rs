//! Connections: when they are used again, and when they are not.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use posthaste_publishers::PublishErrorKind::Retryable;
use posthaste_publishers::webhook::Webhook;
use posthaste_publishers::{Message, Publisher};

use super::receiver::{Receiver, message, until};
use super::{kind, local};

/// What a server does when it has read a request.
#[derive(Clone, Copy)]
enum Manners {
    /// It answers, and waits for the next.
    Stay,
    /// It answers, and leaves without having said so.
    Leave,
    /// It answers, says that it will leave, and does so.
    SayAndLeave,
    /// It leaves without an answer.
    Silent,
    /// It answers before it reads what is sent.
    Hasty,
}

/// A server that tells how many connections there were, are, and how many requests came.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(manners: Manners) -> Self {
        // Every address that begins with 127 leads here.
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let (accepted, open, requests) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
        let server = Self { address: listener.local_addr().unwrap(), accepted, open, requests };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (server, stream) = (serving.clone(), stream.unwrap());
                server.accepted.fetch_add(1, Ordering::SeqCst);
                server.open.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    server.serve(stream, manners);
                    server.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    fn serve(&self, stream: TcpStream, manners: Manners) {
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream);
        if matches!(manners, Manners::Hasty) {
            // An answer to what was not even begun would be none.
            reader.get_ref().peek(&mut [0]).unwrap();
            reader.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            thread::sleep(Duration::from_millis(200));
        }
        while read_request(&mut reader).is_some() {
            self.requests.fetch_add(1, Ordering::SeqCst);
            let answer = match manners {
                Manners::Stay | Manners::Leave => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfine\n",
                Manners::SayAndLeave => "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
                Manners::Silent | Manners::Hasty => return,
            };
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            if !matches!(manners, Manners::Stay) {
                return;
            }
        }
    }

    fn url(&self) -> String {
        self.url_as(0)
    }

    /// The same server as another endpoint.
    fn url_as(&self, number: usize) -> String {
        format!("http://127.0.{}.{}:{}/hook", number / 250, number % 250 + 1, self.address.port())
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Reads one, unless the other end has left.
fn read_request(reader: &mut impl BufRead) -> Option<()> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    assert!(length > 0, "every request has a body");
    reader.read_exact(&mut vec![0; length]).ok()
}

async fn publish(webhook: &Webhook, server: &Server, count: usize) -> usize {
    let results = webhook.publish((0..count).map(|_| message(server.url())).collect()).await;
    results.iter().filter(|result| result.is_ok()).count()
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(Manners::Stay);
    let webhook = Webhook::new(local().concurrency(4)).unwrap();
    for _ in 0..3 {
        assert_eq!(publish(&webhook, &server, 40).await, 40);
        assert!((1..=4).contains(&server.accepted()), "{} connections", server.accepted());
    }
    assert_eq!(server.requests(), 120);
    drop(webhook);
    until("all are closed", || server.open() == 0).await;
}

#[tokio::test]
async fn one_that_the_other_end_has_left_is_replaced() {
    let server = Server::start(Manners::Leave);
    let webhook = Webhook::new(local()).unwrap();
    for sent in 1..=10 {
        assert_eq!(publish(&webhook, &server, 1).await, 1);
        until("it has left", || server.open() == 0).await;
        // What the other end has done is here as soon as the system has passed it on.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!((server.accepted(), server.requests()), (sent, sent));
    }
    // Who says so can be asked for the next at once.
    let server = Server::start(Manners::SayAndLeave);
    assert_eq!(publish(&webhook, &server, 30).await, 30);
    assert_eq!((server.accepted(), server.requests()), (30, 30));
}

#[tokio::test]
async fn who_answers_before_he_has_read_all_of_it_gets_all_of_it() {
    let server = Server::start(Manners::Hasty);
    let webhook = Webhook::new(local()).unwrap();
    let large = Message { body: vec![b'x'; 32 << 20].into(), ..message(server.url()) };
    assert!(webhook.publish(vec![large]).await[0].is_ok());
    until("it has all of it", || server.requests() == 1).await;
}

#[tokio::test]
async fn one_without_a_body_says_so() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let empty = Message { body: Bytes::new().into(), ..message(receiver.url("/status/204")) };
    assert!(webhook.publish(vec![empty]).await[0].is_ok());
    assert_eq!(receiver.got(1).await[0]["headers"]["content-length"], "0");
}

#[tokio::test]
async fn what_may_have_arrived_is_not_sent_again_by_itself() {
    let server = Server::start(Manners::Silent);
    let webhook = Webhook::new(local()).unwrap();
    let result = webhook.publish(vec![message(server.url())]).await.remove(0);
    assert_eq!((kind(&result), server.requests()), (Some(Retryable), 1));
    let stays = Server::start(Manners::Stay);
    assert_eq!(publish(&webhook, &stays, 1).await, 1);
}

#[tokio::test]
async fn one_that_nobody_uses_is_closed() {
    let server = Server::start(Manners::Stay);
    let webhook = Webhook::new(local().concurrency(2)).unwrap();
    assert_eq!(publish(&webhook, &server, 10).await, 10);
    assert!(server.open() > 0);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(70)).await;
    tokio::time::resume();
    until("they are closed", || server.open() == 0).await;
    assert_eq!(publish(&webhook, &server, 10).await, 10);
    assert!(server.open() > 0);
}

#[tokio::test]
async fn not_more_are_kept_to_many_endpoints_than_there_is_room_for() {
    const MOST: usize = 256;
    let server = Server::start(Manners::Stay);
    let webhook = Webhook::new(local()).unwrap();
    for numbers in [0..100, 100..200, 200..300] {
        let results = webhook.publish(numbers.map(|number| message(server.url_as(number))).collect()).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
    until("some are closed", || server.open() <= MOST).await;
    assert_eq!((server.accepted(), server.open()), (300, MOST));
    // The last are still there, and the first are not.
    for (number, connections) in [(299, 300), (0, 301)] {
        assert!(webhook.publish(vec![message(server.url_as(number))]).await[0].is_ok());
        assert_eq!(server.accepted(), connections);
    }
}
