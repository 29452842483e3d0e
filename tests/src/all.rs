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
mod alarmed;
mod arrays;
mod asks;
mod attacks;
mod bad_input;
mod beside;
mod boot;
mod bounds;
mod broken_states;
mod carried_out;
mod contract;
mod cost;
mod crashes;
mod demands;
mod end_to_end;
mod example_events;
mod followers;
mod handles;
mod healing;
mod identity;
mod kept_back;
mod labels;
mod large_fleet;
mod long_queue;
mod node;
mod offers;
mod old_reads;
mod operators_credentials;
mod output;
mod permissions;
mod permitted;
mod placing;
mod races;
mod raw;
mod rights;
mod second_opinions;
mod signatures;
mod simulation;
mod standing_still;
mod starts;
mod store;
mod store_tables;
mod story;
mod switch;
mod turns;
mod ways;
mod world;
