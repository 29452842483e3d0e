//! Commands that bring what jobs made: their output and their files.

pub(crate) mod fetch;
pub(crate) mod follow;
pub(crate) mod logs;
pub(crate) mod output_printer;
pub(crate) mod output_stream;
pub(crate) mod stored_output;
