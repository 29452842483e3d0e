//! Takes the rows out of DynamoDB's answers before the SDK reads them.
//!
//! The SDK makes a map with a text for each attribute of each row. Records are read from the text of their rows instead
//! ([`crate::sent`]), so what nobody asks for is never copied.
//!
//! Guarantees: what the SDK finds in an answer is as before, but for the rows.
//! Does not: read an answer that is an error, or no JSON: the SDK does, and says so.

use crate::db::Row;
use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body::{Body, Frame};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

/// An interceptor of one call, which takes the rows out of its answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows(Arc<Mutex<Vec<Row>>>);

impl Rows {
    /// The rows of the answer.
    pub(super) fn take(&self) -> Vec<Row> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Intercept for Rows {
    fn name(&self) -> &'static str {
        "Rows"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response_mut();
        if response.status().is_success() {
            let rest = Rest { body: response.take_body(), read: Vec::new(), rows: self.clone() };
            *response.body_mut() = SdkBody::from_body_1_x(rest);
            // The length of what the SDK reads is another one.
            response.headers_mut().remove("content-length");
        }
        Ok(())
    }
}

/// The body of an answer without its rows.
struct Rest {
    body: SdkBody,
    /// What of the body came so far.
    read: Vec<u8>,
    rows: Rows,
}

impl Rest {
    /// Takes the rows out of the body, once all of it has come. If that cannot be, the SDK gets the body as it is, and says why.
    fn of_whole(&mut self) -> Option<Bytes> {
        let body = std::mem::take(&mut self.read);
        let rest = match split(&body) {
            Ok((rows, rest)) => {
                *self.rows.0.lock().unwrap_or_else(PoisonError::into_inner) = rows;
                rest
            }
            Err(_) => body,
        };
        (!rest.is_empty()).then(|| rest.into())
    }
}

impl Body for Rest {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let rest = self.get_mut();
        loop {
            match ready!(Pin::new(&mut rest.body).poll_frame(cx)) {
                Some(Ok(frame)) => rest.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref())),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(rest.of_whole().map(|bytes| Ok(Frame::data(bytes)))),
            }
        }
    }
}

/// What the answers of the calls have in them.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Answer<'a> {
    #[serde(default, skip_serializing)]
    items: Vec<Box<RawValue>>,
    /// The row of a read.
    #[serde(default, skip_serializing)]
    item: Option<Box<RawValue>>,
    /// The row of a write.
    #[serde(default, skip_serializing)]
    attributes: Option<Box<RawValue>>,
    #[serde(default, skip_serializing)]
    responses: BTreeMap<String, Vec<Box<RawValue>>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    last_evaluated_key: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    unprocessed_keys: Option<&'a RawValue>,
}

/// The rows of an answer, and its text without them.
fn split(body: &[u8]) -> serde_json::Result<(Vec<Row>, Vec<u8>)> {
    let mut answer: Answer<'_> = serde_json::from_slice(body)?;
    let responses = std::mem::take(&mut answer.responses).into_values().flatten();
    let one = answer.item.take().or(answer.attributes.take());
    let rows = std::mem::take(&mut answer.items).into_iter().chain(one).chain(responses);
    let rows = rows.map(Row::from).collect();
    Ok((rows, serde_json::to_vec(&answer)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn split_text(body: &Json) -> (Vec<Row>, Json) {
        let (rows, rest) = split(&serde_json::to_vec(body).unwrap()).unwrap();
        (rows, serde_json::from_slice(&rest).unwrap())
    }

    #[test]
    fn the_rows_are_taken_out_of_each_kind_of_answer_and_the_rest_stays() {
        let row = |n: u32| json!({"slot": {"N": n.to_string()}});
        let key = json!({"slot": {"N": "1"}});
        for (body, rows, rest) in [
            (
                json!({"Items": [row(1), row(2)], "Count": 2, "ScannedCount": 2, "LastEvaluatedKey": key}),
                2,
                json!({"LastEvaluatedKey": key}),
            ),
            (json!({"Item": row(1), "ConsumedCapacity": {}}), 1, json!({})),
            (json!({"Attributes": row(1)}), 1, json!({})),
            (json!({}), 0, json!({})),
            (
                json!({"Responses": {"t": [row(1)]}, "UnprocessedKeys": {"t": {"Keys": [key]}}}),
                1,
                json!({"UnprocessedKeys": {"t": {"Keys": [key]}}}),
            ),
        ] {
            let (found, left) = split_text(&body);
            assert_eq!((found.len(), &left), (rows, &rest), "{body}");
            assert!(found.iter().all(|row| row["slot"].is_n()), "{body}");
        }
        assert!(split(b"<html>").is_err() && split(br#"{"Items": 7}"#).is_err());
    }
}
