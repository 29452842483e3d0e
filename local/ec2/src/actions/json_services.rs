//! The services that share EC2's address here and speak JSON 1.1: a request names its operation in a header.
//!
//! | operation | service |
//! | --- | --- |
//! | GetProducts | `price_list` |
//! | ListServiceQuotas | `service_quotas` |
//!
//! Does not: answer requests, except those with an unknown operation.

use axum::http::HeaderMap;
use serde_json::Value;

use crate::api_error::{ApiError, clip};
use crate::call::Ec2Call;

const TARGET: &str = "x-amz-target";
/// "The maximum number of results to return": from 1 to 100.
const MAX_RESULTS: usize = 100;

fn target(headers: &HeaderMap) -> Option<&str> {
    headers.get(TARGET).map(|target| target.to_str().unwrap_or_default())
}

/// The service that a request with these headers asks, by its name in signatures; `None` for EC2.
pub(crate) fn service(headers: &HeaderMap) -> Option<&'static str> {
    target(headers).map(|target| if target.starts_with("ServiceQuotas") { "servicequotas" } else { "pricing" })
}

impl Ec2Call<'_> {
    /// The answer to a request with these headers.
    pub(crate) fn json(&mut self, headers: &HeaderMap, body: &[u8]) -> Result<Value, ApiError> {
        match target(headers).unwrap_or_default() {
            "AWSPriceListService.GetProducts" => self.get_products(body),
            "ServiceQuotasV20190624.ListServiceQuotas" => self.list_service_quotas(body),
            other => Err(ApiError::new("UnknownOperationException", clip(other))),
        }
    }

    /// The answer with one page of these rows. `size` and `token` are those of the request, each with the code of the error about it.
    pub(crate) fn json_page(
        &self,
        rows: Vec<Value>,
        (size, bad_size): (Option<usize>, &str),
        (token, bad_token): (Option<&str>, &str),
        query: u64,
        answer: impl FnOnce(Vec<Value>) -> Value,
    ) -> Result<Value, ApiError> {
        let size = size.unwrap_or(MAX_RESULTS);
        if !(1..=MAX_RESULTS).contains(&size) {
            return Err(ApiError::new(bad_size, "MaxResults must be between 1 and 100"));
        }
        let page = self.page(rows, size, token, query);
        let (page, next) = page.map_err(|e| ApiError::new(bad_token, e.message))?;
        let mut answer = answer(page);
        if let (Some(token), Some(fields)) = (next, answer.as_object_mut()) {
            fields.insert("NextToken".into(), token.into());
        }
        Ok(answer)
    }
}
