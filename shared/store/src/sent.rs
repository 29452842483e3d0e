//! Values as DynamoDB sends them: JSON in which each has a type, such as `{"S": "text"}`.
//!
//! Guarantees: a value reads the same as from the SDK's form.
//! Does not: know tables or records.

use crate::compressed;
use crate::de::{Kind, Text, Value};
use crate::write::Item;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_types::base64;
use serde::de::value::Error;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;

/// A value as DynamoDB sends it.
#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Sent<'a> {
    S(#[serde(borrow)] Text<'a>),
    N(#[serde(borrow)] Text<'a>),
    B(#[serde(borrow)] Text<'a>),
    Bool(bool),
    L(#[serde(borrow)] Vec<&'a RawValue>),
    M(#[serde(borrow)] Attributes<'a>),
    Ss(Vec<String>),
    Ns(Vec<String>),
    Bs(IgnoredAny),
    Null(IgnoredAny),
}

impl<'a> Sent<'a> {
    fn of(text: &'a RawValue) -> Result<Self, Error> {
        serde_json::from_str(text.get()).map_err(Error::custom)
    }
}

impl<'de> Value<'de> for &'de RawValue {
    fn kind(self) -> Result<Kind<'de, Self>, Error> {
        let owned = |set: Vec<String>| set.into_iter().map(Text::Owned).collect();
        Ok(match Sent::of(self)? {
            Sent::S(text) => Kind::Text(text),
            Sent::N(text) => Kind::Number(text),
            Sent::B(bytes) => {
                let text = base64::decode(bytes.as_ref()).ok().and_then(|bytes| compressed::text(&bytes));
                text.map_or(Kind::Nothing, |text| Kind::Text(text.into()))
            }
            Sent::Bool(b) => Kind::Bool(b),
            Sent::L(list) => Kind::List(list),
            Sent::M(Attributes(map)) => Kind::Map(map),
            Sent::Ss(set) => Kind::Texts(owned(set)),
            Sent::Ns(set) => Kind::Numbers(owned(set)),
            Sent::Bs(_) | Sent::Null(_) => Kind::Nothing,
        })
    }

    fn is_null(self) -> bool {
        // Only a short value is worth being looked into.
        self.get().len() < 32 && self.get().contains("NULL") && matches!(Sent::of(self), Ok(Sent::Null(_)))
    }
}

/// The attributes of a row or of a map.
#[derive(Default)]
pub(super) struct Attributes<'a>(pub(super) Vec<(Text<'a>, &'a RawValue)>);

impl<'a> Attributes<'a> {
    /// The attributes of a row.
    pub(super) fn of(row: &'a RawValue) -> Result<Self, Error> {
        serde_json::from_str(row.get()).map_err(Error::custom)
    }

    /// The attributes as the SDK has them.
    pub(super) fn item(self) -> Item {
        self.0.into_iter().map(|(name, value)| (name.into_owned(), attribute(value))).collect()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        #[derive(Deserialize)]
        struct Name<'a>(#[serde(borrow)] Text<'a>);

        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(Text<'de>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("attributes")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::with_capacity(24);
                while let Some((Name(name), value)) = map.next_entry()? {
                    pairs.push((name, value));
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Pairs).map(Self)
    }
}

fn attribute(value: &RawValue) -> AttributeValue {
    match Sent::of(value) {
        Ok(Sent::S(text)) => AttributeValue::S(text.into_owned()),
        Ok(Sent::N(text)) => AttributeValue::N(text.into_owned()),
        Ok(Sent::B(bytes)) => AttributeValue::B(Blob::new(base64::decode(bytes.as_ref()).unwrap_or_default())),
        Ok(Sent::Bool(b)) => AttributeValue::Bool(b),
        Ok(Sent::L(list)) => AttributeValue::L(list.into_iter().map(attribute).collect()),
        Ok(Sent::M(map)) => AttributeValue::M(map.item()),
        Ok(Sent::Ss(set)) => AttributeValue::Ss(set),
        Ok(Sent::Ns(set)) => AttributeValue::Ns(set),
        Ok(Sent::Bs(_)) => AttributeValue::Bs(Vec::new()),
        Ok(Sent::Null(_)) | Err(_) => AttributeValue::Null(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Row;
    use serde_json::{Value as Json, json, value::to_raw_value};

    #[test]
    fn a_value_reads_the_same_from_its_text_and_from_the_sdks_form() {
        for value in [
            json!({"S": "a \"b\" é\n"}),
            json!({"N": "17"}),
            json!({"N": "-0.5"}),
            json!({"BOOL": true}),
            json!({"NULL": true}),
            json!({"L": [{"S": "x"}, {"M": {"NULL": {"S": "y"}, "gone": {"NULL": true}}}]}),
            json!({"SS": ["b", "a"]}),
            json!({"NS": ["2", "1"]}),
            json!({"B": "bm90IGNvbXByZXNzZWQ="}),
            json!({"BS": ["AA=="]}),
        ] {
            let text = to_raw_value(&json!({"value": value, "after": {"N": "1"}})).unwrap();
            let item = Attributes::of(&text).unwrap().item();
            let read = |row: &Row| crate::rows::from_row::<Json>(crate::Table::Nodes, row).unwrap();
            assert_eq!(read(&Row::from(text)), read(&Row::from(item)), "{value}");
        }
    }
}
