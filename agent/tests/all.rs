//! Real agents with real processes. They are one binary, because each further one is linked anew.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod allocs;
mod checkpoints;
mod common;
mod containers;
mod files;
mod gpus;
mod handles;
mod inside;
mod isolation;
mod packs;
mod restarts;
mod saves;
mod stops;
mod uploads;
