//! Deserializes the model's types directly from a row, without a copy in between: from the attributes of the SDK, and from the
//! text that DynamoDB sent.
//!
//! Guarantees: a set is read as a list; a number without a fraction is read as a whole number; an attribute that is null is as
//! good as absent; a compressed text is read as the text.
//! Does not: know tables or records. Other binary values are not supported and are read as no value.

use crate::compressed;
use aws_sdk_dynamodb::types::AttributeValue;
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use std::borrow::Cow;

/// A text that may be a part of the row.
pub(super) type Text<'de> = Cow<'de, str>;

/// The value of an attribute, as somebody holds it.
pub(super) trait Value<'de>: Copy {
    /// Takes the value apart, but not what is in it.
    fn kind(self) -> Result<Kind<'de, Self>, Error>;

    /// Whether the value says nothing.
    fn is_null(self) -> bool;
}

/// What a value is.
pub(super) enum Kind<'de, V> {
    Nothing,
    Bool(bool),
    Number(Text<'de>),
    Text(Text<'de>),
    List(Vec<V>),
    Map(Vec<(Text<'de>, V)>),
    Texts(Vec<Text<'de>>),
    Numbers(Vec<Text<'de>>),
}

fn texts(texts: &[String]) -> Vec<Text<'_>> {
    texts.iter().map(|text| Cow::Borrowed(text.as_str())).collect()
}

impl<'de> Value<'de> for &'de AttributeValue {
    fn kind(self) -> Result<Kind<'de, Self>, Error> {
        Ok(match self {
            AttributeValue::Bool(b) => Kind::Bool(*b),
            AttributeValue::N(text) => Kind::Number(text.into()),
            AttributeValue::S(text) => Kind::Text(text.into()),
            AttributeValue::L(list) => Kind::List(list.iter().collect()),
            AttributeValue::M(map) => Kind::Map(map.iter().map(|(name, value)| (name.into(), value)).collect()),
            AttributeValue::Ss(set) => Kind::Texts(texts(set)),
            AttributeValue::Ns(set) => Kind::Numbers(texts(set)),
            AttributeValue::B(bytes) => {
                compressed::text(bytes.as_ref()).map_or(Kind::Nothing, |text| Kind::Text(text.into()))
            }
            _ => Kind::Nothing,
        })
    }

    fn is_null(self) -> bool {
        matches!(self, AttributeValue::Null(_))
    }
}

/// The attributes of a row.
pub(super) fn attributes<'de, V: Value<'de>>(
    attributes: impl IntoIterator<Item = (Text<'de>, V)>,
) -> impl Deserializer<'de, Error = Error> {
    // Other programs may write null in place of nothing.
    let said = attributes.into_iter().filter(|(_, value)| !value.is_null());
    MapDeserializer::new(said.map(|(name, value)| (Word(name), Attribute(value))))
}

/// An attribute's value.
struct Attribute<V>(V);

/// The name of an attribute, or a text in a set.
struct Word<'de>(Text<'de>);

/// A number, in a set or alone.
struct Number<'de>(Text<'de>);

impl<'de, V: Value<'de>> IntoDeserializer<'de, Error> for Attribute<V> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
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
into_itself!(Word, Number);

impl<'de> Deserializer<'de> for Word<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.into_deserializer().deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> Deserializer<'de> for Number<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if let Ok(whole) = self.0.parse::<u64>() {
            visitor.visit_u64(whole)
        } else if let Ok(whole) = self.0.parse::<i64>() {
            visitor.visit_i64(whole)
        } else if let Ok(number) = self.0.parse::<f64>() {
            visitor.visit_f64(number)
        } else {
            Word(self.0).deserialize_any(visitor)
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, A: Value<'de>> Deserializer<'de> for Attribute<A> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.kind()? {
            Kind::Nothing => visitor.visit_unit(),
            Kind::Bool(b) => visitor.visit_bool(b),
            Kind::Number(text) => Number(text).deserialize_any(visitor),
            Kind::Text(text) => Word(text).deserialize_any(visitor),
            Kind::List(list) => SeqDeserializer::new(list.into_iter().map(Attribute)).deserialize_any(visitor),
            Kind::Map(map) => attributes(map).deserialize_any(visitor),
            Kind::Texts(set) => SeqDeserializer::new(set.into_iter().map(Word)).deserialize_any(visitor),
            Kind::Numbers(set) => SeqDeserializer::new(set.into_iter().map(Number)).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// The model stores an enum as a text, which is the word of the variant.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0.kind()? {
            Kind::Text(word) => Word(word).deserialize_enum(name, variants, visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier
    }
}
