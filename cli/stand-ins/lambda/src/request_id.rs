//! Request ids.

use model::rng::Rng;

/// A random UUID, as AWS's request ids are.
pub(crate) fn new_request_id() -> String {
    let bits = Rng::real().bits();
    let word = |shift: u32, mask: u128| (bits >> shift) & mask;
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        word(96, 0xffff_ffff),
        word(80, 0xffff),
        word(68, 0xfff),
        0x8000 | word(48, 0x3fff),
        word(0, 0xffff_ffff_ffff)
    )
}
