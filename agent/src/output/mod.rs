//! The output of jobs on this machine: how it comes to the disk, where it lies, and how it comes to S3.

pub mod capture;
pub mod output_files;
pub mod outputs;
pub mod uploads;
