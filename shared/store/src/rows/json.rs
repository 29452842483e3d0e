//! Attributes and JSON. What serializes to JSON can be an attribute, and each attribute has a form in JSON.
//!
//! Guarantees: an object is a map, without its fields that are null; a list is a list, a word is a text; a compressed
//! text is text.
//! Does not: know tables or records, or which attributes are left out.

use super::compressed;
use crate::write::Item;
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Map, Value};

pub(crate) fn attribute(value: Value) -> AttributeValue {
    match value {
        Value::Null => AttributeValue::Null(true),
        Value::Bool(b) => AttributeValue::Bool(b),
        // JSON has 3.0 where a row has 3.
        Value::Number(number) if number.is_f64() => AttributeValue::N(number.as_f64().unwrap_or_default().to_string()),
        Value::Number(number) => AttributeValue::N(number.to_string()),
        Value::String(text) => AttributeValue::S(text),
        Value::Array(list) => AttributeValue::L(list.into_iter().map(attribute).collect()),
        Value::Object(map) => {
            let fields = map.into_iter().filter(|(_, value)| !value.is_null());
            AttributeValue::M(fields.map(|(name, value)| (name, attribute(value))).collect())
        }
    }
}

/// The whole row, also attributes that no type of the model has.
pub fn to_json(item: &Item) -> Value {
    Value::Object(item.iter().map(|(k, v)| (k.clone(), plain(v))).collect::<Map<_, _>>())
}

pub(crate) fn plain(value: &AttributeValue) -> Value {
    let number = |text: &str| -> Value {
        let whole = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
        whole.unwrap_or_else(|_| text.parse::<f64>().map_or(Value::Null, Value::from))
    };
    match value {
        AttributeValue::Bool(b) => Value::Bool(*b),
        AttributeValue::N(text) => number(text),
        AttributeValue::S(text) => Value::String(text.clone()),
        AttributeValue::L(list) => list.iter().map(plain).collect(),
        AttributeValue::M(map) => to_json(map),
        AttributeValue::Null(_) => Value::Null,
        // No text: whoever reads the row as a record gets an error.
        other => compressed::text(other).map_or(Value::Array(Vec::new()), Value::String),
    }
}
