//! Private servers and the proxy do what the nemesis relies on.

mod client;
mod server;
