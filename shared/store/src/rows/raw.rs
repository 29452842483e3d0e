//! Rows as the database sends them: JSON in which each value names its type, as in `{"slot":{"N":"3"}}`.
//!
//! Guarantees: a record is read from the text of its row, with no map in between: a run on 10,000 nodes needs two fifths of the
//! CPU that way. What it reads is what [`super::json`] reads from the attributes of the same row.
//! Does not: read null, binary values and escaped names, or say why a row cannot be read. The caller then uses the attributes.

use crate::write::Item;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_types::base64;
use serde::Deserialize;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// The rows that a request is answered with.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) rows: Vec<Box<RawValue>>,
    /// Where the next page of a list begins; `None` on the last page.
    pub(crate) next: Option<Item>,
}

/// Reads the answer to a query, a scan or an update. `None` if this module cannot read the answer.
pub(crate) fn answer(answer: &[u8]) -> Option<RawAnswer> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct AnswerBody<'a> {
        #[serde(borrow, default)]
        items: Vec<&'a RawValue>,
        #[serde(borrow)]
        attributes: Option<&'a RawValue>,
        #[serde(borrow)]
        last_evaluated_key: Option<&'a RawValue>,
    }
    let answer: AnswerBody<'_> = serde_json::from_slice(answer).ok()?;
    let next = match answer.last_evaluated_key {
        Some(key) => Some(item(key.get())?),
        None => None,
    };
    let rows = answer.items.into_iter().chain(answer.attributes);
    Some(RawAnswer { rows: rows.map(ToOwned::to_owned).collect(), next })
}

/// The record of a row. `None` if the row must be read through its attributes.
pub(crate) fn read<R: DeserializeOwned>(row: &str) -> Option<R> {
    let mut text = serde_json::Deserializer::from_str(row);
    R::deserialize(Attributes(&mut text)).ok()
}

/// Reads the text of a number.
fn number<'de, V: Visitor<'de>, E: serde::de::Error>(text: &'de str, visitor: V) -> Result<V::Value, E> {
    if let Ok(whole) = text.parse::<u64>() {
        visitor.visit_u64(whole)
    } else if let Ok(whole) = text.parse::<i64>() {
        visitor.visit_i64(whole)
    } else if let Ok(number) = text.parse::<f64>() {
        visitor.visit_f64(number)
    } else {
        visitor.visit_borrowed_str(text)
    }
}

/// The attributes of a row. `None` if one of them has a type that DynamoDB does not have.
pub(crate) fn item(row: &str) -> Option<Item> {
    attributes(serde_json::from_str(row).ok()?)
}

fn attributes(value: Value) -> Option<Item> {
    let Value::Object(map) = value else { return None };
    map.into_iter().map(|(name, value)| Some((name, attribute(value)?))).collect()
}

fn attribute(value: Value) -> Option<AttributeValue> {
    let Value::Object(map) = value else { return None };
    let (kind, value) = map.into_iter().next()?;
    let texts = |value: Value| serde_json::from_value(value).ok();
    let blob = |text: &str| base64::decode(text).ok().map(Blob::new);
    Some(match (kind.as_str(), value) {
        ("S", Value::String(text)) => AttributeValue::S(text),
        ("N", Value::String(text)) => AttributeValue::N(text),
        ("BOOL", Value::Bool(b)) => AttributeValue::Bool(b),
        ("NULL", Value::Bool(b)) => AttributeValue::Null(b),
        ("B", Value::String(text)) => AttributeValue::B(blob(&text)?),
        ("M", map) => AttributeValue::M(attributes(map)?),
        ("L", Value::Array(list)) => AttributeValue::L(list.into_iter().map(attribute).collect::<Option<_>>()?),
        ("SS", list) => AttributeValue::Ss(texts(list)?),
        ("NS", list) => AttributeValue::Ns(texts(list)?),
        ("BS", list) => AttributeValue::Bs(texts(list)?.iter().map(|text| blob(text)).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// A map of attributes: a row, or the value of an attribute of type `M`.
struct Attributes<D>(D);

/// The value of an attribute: an object with one name, which is the type.
struct Attribute<D>(D);

/// A number. DynamoDB sends it as a text.
struct Number<D>(D);

macro_rules! any_is_all {
    ($($hint:ident)*) => {
        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
            seq tuple tuple_struct map struct identifier ignored_any $($hint)*
        }
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Attributes<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(OfAttributes(visitor))
    }

    any_is_all! { option newtype_struct enum }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Attribute<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(ByType { visitor, enum_of: None })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(ByType { visitor, enum_of: Some((name, variants)) })
    }

    any_is_all! {}
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Number<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        number(<&str>::deserialize(self.0)?, visitor)
    }

    any_is_all! { option newtype_struct enum }
}

/// These seeds read an attribute or a number from the text.
struct ReadsAttribute<S>(S);
struct ReadsNumber<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for ReadsAttribute<S> {
    type Value = S::Value;
    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Attribute(value))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for ReadsNumber<S> {
    type Value = S::Value;
    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Number(value))
    }
}

/// Passes an object or a list on to a visitor, with each value read as an attribute.
struct OfAttributes<T>(T);
/// Passes a list on to a visitor, with each value read as a number.
struct OfNumbers<T>(T);

impl<'de, V: Visitor<'de>> Visitor<'de> for OfAttributes<V> {
    type Value = V::Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(OfAttributes(map))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(OfAttributes(list))
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for OfNumbers<V> {
    type Value = V::Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(OfNumbers(list))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for OfAttributes<A> {
    type Error = A::Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(ReadsAttribute(seed))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for OfAttributes<A> {
    type Error = A::Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(ReadsAttribute(seed))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for OfNumbers<A> {
    type Error = A::Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(ReadsNumber(seed))
    }
}

/// The name and the variants of an enum.
type Enum = (&'static str, &'static [&'static str]);

/// Reads the value of an attribute: first its type, and then the value itself.
struct ByType<V> {
    visitor: V,
    enum_of: Option<Enum>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ByType<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<V::Value, A::Error> {
        let Self { visitor, enum_of } = self;
        let kind = object.next_key::<&str>()?.unwrap_or_default();
        match (kind, enum_of) {
            ("S", Some((name, variants))) => {
                // The model stores an enum as text: the word of its variant.
                BorrowedStrDeserializer::new(object.next_value()?).deserialize_enum(name, variants, visitor)
            }
            ("N", _) => number(object.next_value()?, visitor),
            ("S" | "BOOL" | "SS", _) => object.next_value_seed(AsSent(visitor)),
            ("M" | "L", _) => object.next_value_seed(AsSent(OfAttributes(visitor))),
            ("NS", _) => object.next_value_seed(AsSent(OfNumbers(visitor))),
            _ => Err(A::Error::custom("only the attributes of the row can be read")),
        }
    }
}

/// Gives a visitor what the text has.
struct AsSent<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for AsSent<V> {
    type Value = V::Value;
    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        value.deserialize_any(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Row;
    use crate::rows::{Readable, from_item, from_row, handle_row, row};
    use crate::tables::Table;
    use model::fixtures::{self, at};
    use model::{Alloc, Handle, HandleKind, HandleState, Job, NodeRecord};
    use serde_json::json;

    /// The row as DynamoDB sends it.
    fn sent(item: &Item) -> Value {
        Value::Object(item.iter().map(|(name, value)| (name.clone(), sent_value(value))).collect())
    }

    fn sent_value(value: &AttributeValue) -> Value {
        match value {
            AttributeValue::S(text) => json!({"S": text}),
            AttributeValue::N(text) => json!({"N": text}),
            AttributeValue::Bool(b) => json!({"BOOL": b}),
            AttributeValue::Null(b) => json!({"NULL": b}),
            AttributeValue::B(blob) => json!({"B": base64::encode(blob)}),
            AttributeValue::M(map) => json!({"M": sent(map)}),
            AttributeValue::L(list) => json!({"L": list.iter().map(sent_value).collect::<Vec<_>>()}),
            AttributeValue::Ss(texts) => json!({"SS": texts}),
            AttributeValue::Ns(numbers) => json!({"NS": numbers}),
            other => panic!("{other:?}"),
        }
    }

    fn rows() -> Vec<(Table, Item)> {
        let id = fixtures::alloc_id(1);
        let mut job = fixtures::job(1).with_placed(&[id]).unwrap();
        job.summary.done = [0, 7, 100].into();
        let mut alloc = Alloc::place(id, &job, &fixtures::ready(1), at(1)).unwrap();
        let with_alloc = row(&alloc);
        alloc.run.log_tail = Some("a line \u{1} \"with\" é\n".to_owned());
        let mut rejected = fixtures::job(2).reject("too large", model::time::Span::from_s(1), at(7)).unwrap();
        rejected.summary.name = Some("a \"name\"\\".to_owned());
        let handle =
            Handle::new(fixtures::node_id(1), "c".into(), HandleKind::Container, HandleState::Live, u64::MAX, at(0));
        vec![
            (Table::Nodes, row(&fixtures::ready(3).with_alloc(id, at(90)).unwrap())),
            (Table::Nodes, row(&fixtures::bound(4))),
            (Table::Jobs, row(&job)),
            (Table::Jobs, row(&rejected)),
            (Table::Allocs, with_alloc),
            (Table::Allocs, row(&alloc)),
            (Table::Handles, handle_row(&handle)),
        ]
    }

    /// Reads the row from its attributes and from its text, as each of its types. Both ways must give the same record, or the same
    /// error. Returns whether the attributes gave a record, and whether the text alone gave one.
    fn reads(table: Table, item: &Item) -> Vec<(bool, bool)> {
        fn one<R: Readable + PartialEq + fmt::Debug>(table: Table, item: &Item) -> (bool, bool) {
            let text = sent(item).to_string();
            let both = from_row::<R>(table, &RawValue::from_string(text.clone()).map(Row::from).unwrap());
            let by_attributes = from_item::<R>(table, item);
            match (&both, &by_attributes) {
                (Ok(one), Ok(other)) => assert_eq!(one, other),
                (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
                _ => panic!("{both:?} and {by_attributes:?} of {text}"),
            }
            (by_attributes.is_ok(), read::<R>(&text).is_some())
        }
        match table {
            Table::Nodes => vec![one::<NodeRecord>(table, item)],
            Table::Jobs => vec![one::<Job>(table, item), one::<model::JobSummary>(table, item)],
            Table::Allocs => vec![one::<Alloc>(table, item), one::<model::AllocSummary>(table, item)],
            _ => vec![one::<Handle>(table, item)],
        }
    }

    #[test]
    fn a_row_reads_the_same_from_its_text_and_from_its_attributes() {
        for (table, row) in rows() {
            assert_eq!(item(&sent(&row).to_string()).as_ref(), Some(&row));
            // The text alone must be enough. Else a run on a large fleet needs more than twice the CPU.
            assert!(reads(table, &row).iter().all(|read| *read == (true, true)), "{table:?} {row:?}");
        }
    }

    #[test]
    fn a_wrong_row_says_the_same_both_ways() {
        let wrong = [
            AttributeValue::S("x".into()),
            AttributeValue::S(String::new()),
            AttributeValue::N("1.5".into()),
            AttributeValue::N("-1".into()),
            AttributeValue::N("1e40".into()),
            AttributeValue::Bool(true),
            AttributeValue::Null(true),
            AttributeValue::B(Blob::new(*b"bytes")),
            AttributeValue::M(Item::new()),
            AttributeValue::L(vec![AttributeValue::Null(true)]),
            AttributeValue::Ss(vec!["x".into()]),
            AttributeValue::Ns(vec!["7".into()]),
        ];
        for (table, row) in rows() {
            for name in row.keys().cloned().chain(["new".to_owned(), "a \"b\"".to_owned()]) {
                for value in wrong.iter().cloned().map(Some).chain([None]) {
                    let mut row = row.clone();
                    row.remove(&name);
                    row.extend(value.map(|value| (name.clone(), value)));
                    reads(table, &row);
                }
            }
        }
    }

    #[test]
    fn an_answer_has_its_rows_and_says_where_the_next_page_begins() {
        let answer = json!({"Count": 1, "Items": [{"slot": {"N": "3"}}], "LastEvaluatedKey": {"slot": {"N": "3"}}});
        let read = crate::rows::raw::answer(answer.to_string().as_bytes()).unwrap();
        assert_eq!(read.rows.iter().map(|row| row.get()).collect::<Vec<_>>(), [r#"{"slot":{"N":"3"}}"#]);
        assert_eq!(read.next, Some(Item::from([("slot".to_owned(), AttributeValue::N("3".into()))])));
        let last = crate::rows::raw::answer(br#"{"Items": [], "Count": 0}"#).unwrap();
        assert!(last.rows.is_empty() && last.next.is_none());
        let updated = crate::rows::raw::answer(br#"{"Attributes": {"slot": {"N": "4"}}}"#).unwrap();
        assert_eq!(updated.rows.iter().map(|row| row.get()).collect::<Vec<_>>(), [r#"{"slot": {"N": "4"}}"#]);
        for none in [&b""[..], b"{", b"[]", br#"{"Items": {}}"#, br#"{"LastEvaluatedKey": {"slot": {"X": "3"}}}"#] {
            assert!(crate::rows::raw::answer(none).is_none(), "{}", String::from_utf8_lossy(none));
        }
    }
}
