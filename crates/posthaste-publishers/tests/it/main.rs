//! Destinations on real servers, read back by clients that are not ours.

#[cfg(feature = "kafka")]
mod kafka;
