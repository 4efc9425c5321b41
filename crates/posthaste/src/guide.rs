//! The README and the chapters of the guide, so that their Rust is compiled, and run where no server is needed.

#[doc = include_str!("../README.md")]
mod readme {}

#[doc = include_str!("../../../docs/guide/getting-started.md")]
mod getting_started {}

#[doc = include_str!("../../../docs/guide/servers.md")]
mod servers {}

#[cfg(all(feature = "axum", feature = "deadpool", feature = "diesel", feature = "sea-orm"))]
#[doc = include_str!("../../../docs/guide/adopting.md")]
mod adopting {}

#[doc = include_str!("../../../docs/guide/listeners.md")]
mod listeners {}

#[doc = include_str!("../../../docs/guide/dead-letters.md")]
mod dead_letters {}

#[doc = include_str!("../../../docs/guide/many-nodes.md")]
mod many_nodes {}

#[doc = include_str!("../../../docs/guide/order.md")]
mod order {}

#[doc = include_str!("../../../docs/guide/tracing.md")]
mod tracing {}

#[doc = include_str!("../../../docs/guide/testing.md")]
mod testing {}

#[doc = include_str!("../../../docs/guide/tuning.md")]
mod tuning {}

#[doc = include_str!("../../../docs/guide/how-it-works.md")]
mod how_it_works {}

#[doc = include_str!("../../../docs/guide/migrating.md")]
mod migrating {}
