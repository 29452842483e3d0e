//! Files as contents: their digests, and folders as archives.
//!
//! Guarantees: the same folder gives the same archive, whoever packs it and when; packing follows no link, so nothing
//! outside the folder gets in, even while somebody changes it; unpacking writes nothing outside its folder, and makes
//! only files, folders and links; pipes, sockets and devices get into no archive, and the caller learns their names.
//! Does not: speak to S3, or decide where anything is stored.

mod digest;
mod folder;
mod tree;

pub use digest::{Digest, Digesting, digest_of};
pub use folder::{Found, LeftOut, Packed, open_beneath, pack_folder, walk};
pub use tree::{TreeWriter, unpack};
