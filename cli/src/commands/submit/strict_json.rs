//! JSON from people's files: a name that occurs twice in one object is an error. serde_json would silently take the last one.
//!
//! Guarantees: nothing that the text says is dropped. A number that is whole is an integer, however it is written: data frames write 2
//! as 2.0.
//! Does not: know what the names mean.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

pub(crate) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Strict>(text).map(|strict| strict.0)
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

/// Visits values without parts, which are taken as they are.
macro_rules! plain {
    ($($visit:ident: $value:ty),*) => {
        $(fn $visit<E: Error>(self, value: $value) -> Result<Value, E> {
            Ok(value.into())
        })*
    };
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    plain!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_str: &str);

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        // Above 2^53 a float may stand for another number than the one that was written.
        let is_whole = value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0;
        let whole = if is_whole { format!("{value:.0}").parse::<i64>().ok() } else { None };
        Ok(whole.map_or_else(|| value.into(), Value::from))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Strict(value))) = fields.next_entry::<String, Strict>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:?} stands there twice: give it once")));
            }
            object.insert(name, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_an_integer_however_it_is_written() {
        for (text, number) in
            [("2.0", 2), ("-3.0", -3), ("1e3", 1000), ("-0.0", 0), ("9007199254740992.0", 1_i64 << 53)]
        {
            assert_eq!(parse(text).unwrap(), Value::from(number), "{text}");
        }
        assert!(["2.5", "1e300"].iter().all(|text| parse(text).unwrap().is_f64()));
    }

    #[test]
    fn it_reads_what_the_usual_reader_reads_except_a_name_that_stands_twice() {
        for text in [
            "null",
            "[1, -2, 0.5, 1e300, true, \"a\\u00e9\"]",
            "{\"a\": {\"a\": []}, \"b\": {\"a\": null}}",
            "18446744073709551616",
        ] {
            assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
        for (text, name) in [("{\"a\": 1, \"a\": 1}", "a"), ("[{\"x\": {\"b\": 1, \"c\": 2, \"b\": 3}}]", "b")] {
            assert!(
                parse(text).unwrap_err().to_string().starts_with(&format!("{name:?} stands there twice")),
                "{text}"
            );
        }
        assert!(parse("{} x").is_err() && parse("{").is_err());
    }
}
