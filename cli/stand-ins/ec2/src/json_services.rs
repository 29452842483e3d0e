//! The services that share EC2's address here and speak JSON 1.1: a request names its operation in a header.
//!
//! | operation | service |
//! | --- | --- |
//! | GetProducts | `price_list` |
//! | ListServiceQuotas | `service_quotas` |
//!
//! Does not: answer requests, except that it knows no such operation.

use axum::http::HeaderMap;
use serde_json::Value;

use crate::api_error::ApiError;
use crate::call::Call;

const TARGET: &str = "x-amz-target";

fn target(headers: &HeaderMap) -> Option<&str> {
    headers.get(TARGET).map(|target| target.to_str().unwrap_or_default())
}

/// The name in signatures of the service that a request with these headers is for; `None` for EC2.
pub(crate) fn service(headers: &HeaderMap) -> Option<&'static str> {
    target(headers).map(|target| if target.starts_with("ServiceQuotas") { "servicequotas" } else { "pricing" })
}

impl Call<'_> {
    /// The answer to a request with these headers.
    pub(crate) fn json(&mut self, headers: &HeaderMap, body: &[u8]) -> Result<Value, ApiError> {
        match target(headers).unwrap_or_default() {
            "AWSPriceListService.GetProducts" => self.get_products(body),
            "ServiceQuotasV20190624.ListServiceQuotas" => self.list_service_quotas(body),
            other => {
                let message = other.chars().take(100).collect();
                Err(ApiError::Json { code: "UnknownOperationException", message })
            }
        }
    }
}
