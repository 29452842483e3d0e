//! Operators commands.
