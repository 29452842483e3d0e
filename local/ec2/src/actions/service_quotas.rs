//! Service Quotas: ListServiceQuotas for the quotas of vCPUs of EC2.
//!
//! The faults set the quotas. A market without a quota has no limit here, and is not in the list.
//!
//! Does not: know other services or other quotas of EC2, or keep a quota for each group of families: the groups of a market
//! share one.
//! Source: "ListServiceQuotas", Service Quotas API Reference.

use model::Market;
use model::quotas::names;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::call::Ec2Call;

const INVALID: &str = "IllegalArgumentException";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct QuotaQuery {
    service_code: String,
    max_results: Option<usize>,
    next_token: Option<String>,
}

impl Ec2Call<'_> {
    pub(crate) fn list_service_quotas(&mut self, body: &[u8]) -> Result<Value, ApiError> {
        self.world.faults.fail_call("ListServiceQuotas", self.params)?;
        let invalid = |e: serde_json::Error| ApiError::new(INVALID, format!("the request is not valid: {e}"));
        let query: QuotaQuery = serde_json::from_slice(body).map_err(invalid)?;
        if query.service_code != "ec2" {
            let message = format!("the stand-in knows quotas of ec2 only, and not of {}", query.service_code);
            return Err(ApiError::new("NoSuchResourceException", message));
        }
        let faults = &self.world.faults;
        let of = |market, vcpus: Option<u32>| {
            vcpus.into_iter().flat_map(move |vcpus| names(market).map(move |name| (name, vcpus)))
        };
        let quotas = of(Market::OnDemand, faults.max_vcpus).chain(of(Market::Spot, faults.max_spot_vcpus));
        let quota = |(name, vcpus): (String, u32)| {
            json!({ "ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)", "QuotaName": name,
                    "Value": f64::from(vcpus), "Unit": "None", "Adjustable": true, "GlobalQuota": false })
        };
        let (size, token) = (query.max_results, query.next_token.as_deref());
        let (size, token) = ((size, INVALID), (token, "InvalidPaginationTokenException"));
        self.json_page(quotas.map(quota).collect(), size, token, 0, |page| json!({ "Quotas": page }))
    }
}
