//! Breaks everything around Posthaste, and checks that nothing was lost.
//!
//! Producers write business rows and events in one transaction, relays deliver them to a sink, a nemesis breaks what it
//! can reach. All of them are processes of their own, and each writes down what it did. At the end everything is healed
//! and drained, and a checker reads the [history].

pub mod check;
pub mod history;
pub mod report;
