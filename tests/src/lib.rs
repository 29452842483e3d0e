//! Tests that need more than one crate of the workspace: the database contract, crashes, races, bad input, the
//! simulation, and the built programs.
//!
//! The tests are the binary `all` (`src/all.rs`). This library is empty on purpose: cargo wants a library or
//! a binary in every package.
