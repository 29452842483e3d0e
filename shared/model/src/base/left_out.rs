//! Which fields JSON leaves out, and what a reader takes them for.

/// Whether a reader takes this value for a field that is left out: for `skip_serializing_if`.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The default of a number that is left out: for `default`.
pub const fn one() -> u32 {
    1
}

/// Whether a number is 1: for `skip_serializing_if`.
pub fn is_one<T: From<u8> + PartialEq>(number: &T) -> bool {
    *number == T::from(1_u8)
}
