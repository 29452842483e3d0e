//! Serializes the model's types directly to the attributes of a row, without another form in between.
//!
//! Guarantees: a value has the form that it has in JSON: an object is a map, a list is a list, a word is a text.
//! Does not: know tables or records, which attributes are sets, or which are left out. Enums with data are
//! not supported: the model stores none as an attribute.

use aws_sdk_dynamodb::types::AttributeValue;
use serde::de::value::Error;
use serde::ser::{Error as _, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, Serializer};
use std::collections::HashMap;
use std::fmt::Display;

/// How many attributes to make room for. A type with flattened fields does not say how many it has.
const ATTRIBUTES: usize = 32;

/// Makes one attribute.
pub(super) struct Attribute;

/// A list that is being made.
pub(super) struct List(Vec<AttributeValue>);

/// An object that is being made, and the name of its next field.
pub(super) struct Object {
    fields: HashMap<String, AttributeValue>,
    name: Option<String>,
}

impl Object {
    fn add(&mut self, name: String, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        self.fields.insert(name, value.serialize(Attribute)?);
        Ok(())
    }
}

fn unfit<T>() -> Result<T, Error> {
    Err(Error::custom("a tuple, bytes or an enum that holds something cannot be an attribute"))
}

macro_rules! numbers {
    ($($name:ident: $t:ty),*) => {$(
        fn $name(self, number: $t) -> Result<AttributeValue, Error> {
            Ok(AttributeValue::N(number.to_string()))
        }
    )*};
}

impl Serializer for Attribute {
    type Ok = AttributeValue;
    type Error = Error;
    type SerializeSeq = List;
    type SerializeMap = Object;
    type SerializeStruct = Object;
    type SerializeTuple = Impossible<AttributeValue, Error>;
    type SerializeTupleStruct = Impossible<AttributeValue, Error>;
    type SerializeTupleVariant = Impossible<AttributeValue, Error>;
    type SerializeStructVariant = Impossible<AttributeValue, Error>;

    numbers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    }

    fn serialize_f32(self, number: f32) -> Result<AttributeValue, Error> {
        self.serialize_f64(number.into())
    }

    fn serialize_f64(self, number: f64) -> Result<AttributeValue, Error> {
        Ok(if number.is_finite() { AttributeValue::N(number.to_string()) } else { AttributeValue::Null(true) })
    }

    fn serialize_bool(self, b: bool) -> Result<AttributeValue, Error> {
        Ok(AttributeValue::Bool(b))
    }

    fn serialize_char(self, c: char) -> Result<AttributeValue, Error> {
        self.collect_str(&c)
    }

    fn serialize_str(self, text: &str) -> Result<AttributeValue, Error> {
        Ok(AttributeValue::S(text.to_owned()))
    }

    fn collect_str<T: Display + ?Sized>(self, text: &T) -> Result<AttributeValue, Error> {
        Ok(AttributeValue::S(text.to_string()))
    }

    fn serialize_unit(self) -> Result<AttributeValue, Error> {
        Ok(AttributeValue::Null(true))
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<AttributeValue, Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, word: &'static str) -> Result<AttributeValue, Error> {
        self.serialize_str(word)
    }

    fn serialize_none(self) -> Result<AttributeValue, Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<AttributeValue, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &str, value: &T) -> Result<AttributeValue, Error> {
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<List, Error> {
        Ok(List(Vec::with_capacity(len.unwrap_or_default())))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Object, Error> {
        Ok(Object { fields: HashMap::with_capacity(len.unwrap_or(ATTRIBUTES)), name: None })
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Object, Error> {
        self.serialize_map(Some(len))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<AttributeValue, Error> {
        unfit()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<AttributeValue, Error> {
        unfit()
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        unfit()
    }

    fn serialize_tuple_struct(self, _: &str, _: usize) -> Result<Self::SerializeTuple, Error> {
        unfit()
    }

    fn serialize_tuple_variant(self, _: &str, _: u32, _: &str, _: usize) -> Result<Self::SerializeTuple, Error> {
        unfit()
    }

    fn serialize_struct_variant(self, _: &str, _: u32, _: &str, _: usize) -> Result<Self::SerializeTuple, Error> {
        unfit()
    }
}

impl SerializeSeq for List {
    type Ok = AttributeValue;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.0.push(value.serialize(Attribute)?);
        Ok(())
    }

    fn end(self) -> Result<AttributeValue, Error> {
        Ok(AttributeValue::L(self.0))
    }
}

impl SerializeMap for Object {
    type Ok = AttributeValue;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        match key.serialize(Attribute)? {
            AttributeValue::S(name) | AttributeValue::N(name) => self.name = Some(name),
            _ => return Err(Error::custom("only a text can be a name")),
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let name = self.name.take().ok_or_else(|| Error::custom("a value without a name"))?;
        self.add(name, value)
    }

    fn end(self) -> Result<AttributeValue, Error> {
        Ok(AttributeValue::M(self.fields))
    }
}

impl SerializeStruct for Object {
    type Ok = AttributeValue;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        self.add(name.to_owned(), value)
    }

    fn end(self) -> Result<AttributeValue, Error> {
        SerializeMap::end(self)
    }
}
