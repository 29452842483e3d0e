//! Jobs, their output and their handles, through whole runs.

pub(crate) mod arrays;
pub(crate) mod asks;
pub(crate) mod demands;
pub(crate) mod followers;
pub(crate) mod handles;
pub(crate) mod labels;
pub(crate) mod next;
pub(crate) mod output;
pub(crate) mod put_off;
pub(crate) mod story;
