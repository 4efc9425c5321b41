//! The mark that is left in the code where a test may end the process.

/// Names a point at which a test may end the process. The name is one of `kill::POINTS` of the core, or this
/// does not compile.
#[cfg(feature = "failpoints")]
macro_rules! kill_point {
    ($name:literal) => {{
        const { assert!(posthaste_core::kill::is_point($name), "a point that is not in kill::POINTS") };
        posthaste_core::kill::reached($name)
    }};
}

/// Nothing: points are for tests.
#[cfg(not(feature = "failpoints"))]
macro_rules! kill_point {
    ($name:literal) => {
        ()
    };
}

// A constant cannot look at the environment or end a process, so this compiles only where nothing is left of a point.
#[cfg(not(feature = "failpoints"))]
const _: () = kill_point!("commit.after");
