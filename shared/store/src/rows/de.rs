//! Deserializes the model's types directly from the attributes of a row, without a copy in between.
//!
//! Guarantees: a set is read as a list; a number without a fraction is read as a whole number; a null attribute counts
//! as absent.
//! Does not: know tables or records. Binary values are not supported and read as no value.

use aws_sdk_dynamodb::types::AttributeValue;
use serde::de::value::{BorrowedStrDeserializer, Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

#[derive(Clone, Copy)]
struct Attribute<'a>(&'a AttributeValue);

/// The name of an attribute, or a text in a set.
#[derive(Clone, Copy)]
struct Text<'a>(&'a str);

/// A number, in a set or alone.
#[derive(Clone, Copy)]
struct Number<'a>(&'a str);

pub(crate) fn attributes<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a AttributeValue)>,
) -> impl Deserializer<'a, Error = Error> {
    MapDeserializer::new(said(pairs))
}

/// Leaves out null attributes. Other programs may write null where nodekeeper leaves the attribute out.
fn said<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a AttributeValue)>,
) -> impl Iterator<Item = (Text<'a>, Attribute<'a>)> {
    let said = pairs.filter(|(_, value)| !matches!(value, AttributeValue::Null(_)));
    said.map(|(name, value)| (Text(name), Attribute(value)))
}

macro_rules! into_itself {
    ($($t:ident),*) => {$(
        impl<'de> IntoDeserializer<'de, Error> for $t<'de> {
            type Deserializer = Self;
            fn into_deserializer(self) -> Self {
                self
            }
        }
    )*};
}
into_itself!(Attribute, Number);

impl<'de> IntoDeserializer<'de, Error> for Text<'de> {
    type Deserializer = BorrowedStrDeserializer<'de, Error>;
    fn into_deserializer(self) -> Self::Deserializer {
        BorrowedStrDeserializer::new(self.0)
    }
}

/// Reads the text of a number.
pub(crate) fn number<'de, V: Visitor<'de>, E: serde::de::Error>(text: &'de str, visitor: V) -> Result<V::Value, E> {
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

impl<'de> Deserializer<'de> for Number<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        number(self.0, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> Deserializer<'de> for Attribute<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            AttributeValue::Bool(b) => visitor.visit_bool(*b),
            AttributeValue::N(text) => Number(text).deserialize_any(visitor),
            AttributeValue::S(text) => visitor.visit_borrowed_str(text),
            AttributeValue::L(list) => SeqDeserializer::new(list.iter().map(Attribute)).deserialize_any(visitor),
            AttributeValue::M(map) => {
                MapDeserializer::new(said(map.iter().map(|(k, v)| (k.as_str(), v)))).deserialize_any(visitor)
            }
            AttributeValue::Ss(texts) => SeqDeserializer::new(texts.iter().map(|t| Text(t))).deserialize_any(visitor),
            AttributeValue::Ns(numbers) => {
                SeqDeserializer::new(numbers.iter().map(|t| Number(t))).deserialize_any(visitor)
            }
            _ => visitor.visit_unit(),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            AttributeValue::Null(_) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// The model stores an enum as text: the word of its variant.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            AttributeValue::S(word) => Text(word).into_deserializer().deserialize_enum(name, variants, visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
