//! Which fields JSON leaves out, and what a reader takes them for.
//!
//! Guarantees: what [`to_json`] writes has no field that is null.
//! Does not: shorten a list. A null in a list stays.

use serde::Serialize;
use serde_json::Value;

/// The value in JSON. A field without a value is left out, never null: so rows, bodies and documents say it alike, and no type says it
/// of each field.
pub fn to_json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Value> {
    serde_json::to_value(value).map(without_nulls)
}

/// The value without fields that are null.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect()
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

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
