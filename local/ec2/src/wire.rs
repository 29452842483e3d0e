//! The EC2 Query protocol: parameters in, XML out. It knows no action.
//!
//! Guarantees: any bytes can be parsed and any text can be written; the output is well-formed
//! XML 1.0. Does not: check a signature, or read the API version.
//!
//! Source: "Query requests for Amazon EC2", EC2 Developer Guide; the names of the lists and
//! elements are those that the AWS SDK writes and reads.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::api_error::ApiError;

/// The parameters of one request, or of one structure in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Params(BTreeMap<String, String>);

impl Params {
    /// Reads `name=value&…`. Other bytes give parameters with names that no action uses.
    pub(crate) fn parse(form: &[u8]) -> Self {
        Self(form_urlencoded::parse(form).into_owned().collect())
    }

    /// The parameter, which may be empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The parameter, unless it is empty.
    pub(crate) fn filled(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn number<N: FromStr>(&self, name: &'static str) -> Result<Option<N>, ApiError> {
        let Some(value) = self.filled(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| ApiError::value(value, name, "it must be a whole number in range"))
    }

    /// The values of `name.1`, `name.2`, … in that order.
    pub(crate) fn list(&self, name: &str) -> Vec<&str> {
        let mut found: Vec<(u32, &str)> =
            self.below(name).filter_map(|(rest, value)| Some((rest.parse().ok()?, value))).collect();
        found.sort_by_key(|(n, _)| *n);
        found.into_iter().map(|(_, value)| value).collect()
    }

    /// The structures `name.1.…`, `name.2.…`, in that order, each with the parameters inside it.
    pub(crate) fn structures(&self, name: &str) -> Vec<Params> {
        let mut found: BTreeMap<u32, Params> = BTreeMap::new();
        for (rest, value) in self.below(name) {
            if let Some((n, field)) = rest.split_once('.')
                && let Ok(n) = n.parse()
            {
                found.entry(n).or_default().0.insert(field.to_owned(), value.to_owned());
            }
        }
        found.into_values().collect()
    }

    /// The structure `name.…`, if the request has any part of it.
    pub(crate) fn structure(&self, name: &str) -> Option<Params> {
        let inside: BTreeMap<_, _> =
            self.below(name).map(|(field, value)| (field.to_owned(), value.to_owned())).collect();
        (!inside.is_empty()).then_some(Params(inside))
    }

    pub(crate) fn of<'a>(pairs: impl IntoIterator<Item = (String, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect())
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// All parameters but these.
    pub(crate) fn without(mut self, names: &[&str]) -> Params {
        self.0.retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    fn below<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let prefix = format!("{name}.");
        self.0.range(prefix.clone()..).map_while(move |(key, value)| Some((key.strip_prefix(&prefix)?, value.as_str())))
    }
}

/// XML being written. The call that opens an element also closes it.
#[derive(Default)]
pub(crate) struct Xml(String);

impl Xml {
    /// A complete answer to `action`: the request id and what `body` writes.
    pub(crate) fn answer(
        action: &str,
        request_id: &str,
        body: impl FnOnce(&mut Xml) -> Result<(), ApiError>,
    ) -> Result<String, ApiError> {
        let mut xml = Xml(String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"));
        let root = format!("{action}Response");
        xml.0.push_str(&format!("<{root} xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">"));
        xml.text("requestId", request_id);
        body(&mut xml)?;
        xml.0.push_str(&format!("</{root}>"));
        Ok(xml.0)
    }

    /// A part of an answer, to be written with [`Xml::raw`].
    pub(crate) fn part(body: impl FnOnce(&mut Xml)) -> String {
        let mut xml = Xml::default();
        body(&mut xml);
        xml.0
    }

    /// The answer to a refused request ("Example error response", EC2 API Reference).
    pub(crate) fn error(error: &ApiError, request_id: &str) -> String {
        let mut xml = Xml(String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"));
        xml.element("Response", |xml| {
            xml.element("Errors", |xml| {
                xml.element("Error", |xml| {
                    xml.text("Code", &error.code);
                    xml.text("Message", &error.message);
                });
            });
            xml.text("RequestID", request_id);
        });
        xml.0
    }

    /// `<name>…</name>` around what `inside` writes.
    pub(crate) fn element(&mut self, name: &str, inside: impl FnOnce(&mut Xml)) {
        self.0.push_str(&format!("<{name}>"));
        inside(self);
        self.0.push_str(&format!("</{name}>"));
    }

    /// Elements that are XML already.
    pub(crate) fn raw(&mut self, xml: &str) {
        self.0.push_str(xml);
    }

    /// `<name>` with text in it.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.element(name, |xml| xml.content(text));
    }

    /// Text inside of the element that is open.
    pub(crate) fn content(&mut self, text: &str) {
        // XML 1.0 cannot hold control characters, not even escaped.
        let text = text.replace(|c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r'), "\u{fffd}");
        let text = text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
        self.0.push_str(&quick_xml::escape::escape(text));
    }

    /// `<name>` with a printed value in it.
    pub(crate) fn value(&mut self, name: &str, value: impl std::fmt::Display) {
        self.text(name, &value.to_string());
    }

    /// `<name>` with one `<item>` for each thing.
    pub(crate) fn items<T>(&mut self, name: &str, things: impl IntoIterator<Item = T>, write: impl Fn(&mut Xml, T)) {
        self.element(name, |xml| {
            for thing in things {
                xml.element("item", |xml| write(xml, thing));
            }
        });
    }

    /// `<name>` with one `<item>` of key and value for each tag.
    pub(crate) fn tags(&mut self, name: &str, tags: &BTreeMap<String, String>) {
        self.items(name, tags, |xml, (key, value)| {
            xml.text("key", key);
            xml.text("value", value);
        });
    }
}
