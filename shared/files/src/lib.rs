//! Files as contents: their digests, and folders as archives.
//!
//! Guarantees: the same folder gives the same archive, whoever packs it and when; packing follows no link, so nothing
//! outside the folder gets in, even while somebody changes it; all work has an allowance of bytes and entries, and ends early when
//! nobody waits for it; unpacking follows no link either, so it writes nothing outside its folder, and makes only files, folders and
//! links, each whole and all of one time; pipes, sockets and devices get into no archive, and the caller learns their names.
//! Does not: speak to S3, or decide where anything is stored.

mod allowance;
mod beneath;
mod digest;
mod folder;
mod tree;

pub use allowance::{Allowance, ByteCount, CancelOnDrop, MAX_BYTES, MAX_ENTRIES, OverBounds};
pub use beneath::{Beneath, MAX_DEPTH, NewFile, NewFolder, PathEntry};
pub use digest::{Digest, Digesting, digest_of, digest_within};
pub use folder::{
    Choice, LeftOut, OpenedEntry, Packed, PackedEntries, Selected, open_beneath, pack, pack_folder, walk,
};
pub use tree::{names, unpack, unpack_within};
