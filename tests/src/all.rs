//! The tests that need more than one crate. They are one binary, because linking the AWS SDK takes long.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]
#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(clippy::disallowed_methods, reason = "tests find binaries and emulators by the environment")]

mod account;
mod boot;
mod callers;
mod database;
mod end_to_end;
mod faults;
mod fleets;
mod second_opinions;
mod simulation;
mod work;
mod world;
