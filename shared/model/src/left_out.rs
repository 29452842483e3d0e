//! Which fields JSON leaves out.

/// Whether a reader takes this value for a field that is left out: for `skip_serializing_if`.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
