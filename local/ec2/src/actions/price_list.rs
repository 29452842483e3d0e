//! AWS's price list: GetProducts for machines of EC2, in JSON 1.1.
//!
//! Guarantees: an answer has the shape of AWS's, with the parts from which a price on demand is read. Any body can be sent.
//! Does not: know a region (the prices of each are the same), other services, or other terms than on demand.
//! Source: "GetProducts", AWS Billing and Cost Management API Reference; "Reading the service price list files", AWS Billing
//! User Guide.

use serde::Deserialize;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::catalogue;
use crate::settings::InstanceType;

const INVALID: &str = "InvalidParameterException";
/// AWS's code of the terms on demand.
const ON_DEMAND: &str = "JRTCKXETXF";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProductQuery {
    service_code: String,
    #[serde(default)]
    filters: Vec<PriceFilter>,
    max_results: Option<usize>,
    next_token: Option<String>,
}

#[derive(Deserialize, Hash)]
#[serde(rename_all = "PascalCase")]
struct PriceFilter {
    #[serde(rename = "Type")]
    kind: String,
    field: String,
    value: String,
}

impl Ec2Call<'_> {
    pub(crate) fn get_products(&mut self, body: &[u8]) -> Result<Value, ApiError> {
        self.world.faults.fail_call("GetProducts", self.params)?;
        let invalid = |message: String| ApiError::new(INVALID, message);
        let query: ProductQuery =
            serde_json::from_slice(body).map_err(|e| invalid(format!("the request is not valid: {e}")))?;
        if let Some(filter) = query.filters.iter().find(|f| f.kind != "TERM_MATCH") {
            let kind = &filter.kind;
            return Err(invalid(format!("the stand-in knows filters of the type TERM_MATCH only, and not {kind}")));
        }
        let types = catalogue::types(self.settings);
        // The prices do not depend on the region: each region that is asked for has them.
        let region = query.filters.iter().find(|f| f.field == "regionCode").map_or("us-east-1", |f| &f.value);
        let products = types.iter().filter(|_| query.service_code == "AmazonEC2");
        let products: Vec<Value> = products
            .filter_map(|kind| Some(product(kind, kind.on_demand.as_ref()?, region)))
            .filter(|product| query.filters.iter().all(|filter| has(product, filter)))
            .collect();
        let mut hasher = DefaultHasher::new();
        (query.service_code.as_str(), &query.filters).hash(&mut hasher);
        let (size, token) = ((query.max_results, INVALID), (query.next_token.as_deref(), "InvalidNextTokenException"));
        self.json_page(products, size, token, hasher.finish(), |page| {
            let texts: Vec<String> = page.iter().map(Value::to_string).collect();
            json!({ "FormatVersion": "aws_v1", "PriceList": texts })
        })
    }
}

fn has(product: &Value, filter: &PriceFilter) -> bool {
    let attributes = product.get("product").and_then(|of| of.get("attributes"));
    attributes.and_then(|of| of.get(&filter.field)).and_then(Value::as_str) == Some(filter.value.as_str())
}

/// A type on demand, as the price list describes it.
fn product(kind: &InstanceType, price: &str, region: &str) -> Value {
    let sku = kind.name.to_ascii_uppercase();
    let (term, rate) = (format!("{sku}.{ON_DEMAND}"), format!("{sku}.{ON_DEMAND}.6YS6EN2CT7"));
    let dimension = json!({
        "unit": "Hrs", "rateCode": rate, "beginRange": "0", "endRange": "Inf", "appliesTo": [],
        "description": format!("${price} per On Demand Linux {} Instance Hour", kind.name),
        "pricePerUnit": { "USD": price },
    });
    let terms = json!({
        "sku": sku, "offerTermCode": ON_DEMAND, "effectiveDate": "2026-01-01T00:00:00Z", "termAttributes": {},
        "priceDimensions": { rate: dimension },
    });
    json!({
        "product": {
            "productFamily": if kind.is_bare_metal { "Compute Instance (bare metal)" } else { "Compute Instance" },
            "sku": sku,
            "attributes": {
                "servicecode": "AmazonEC2", "regionCode": region, "locationType": "AWS Region",
                "instanceType": kind.name, "vcpu": kind.vcpus.to_string(),
                "memory": format!("{} GiB", kind.memory_mib / 1024),
                "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
                "marketoption": "OnDemand", "licenseModel": "No License required",
            },
        },
        "serviceCode": "AmazonEC2",
        "terms": { "OnDemand": { term: terms } },
        "version": "20260101000000",
        "publicationDate": "2026-01-01T00:00:00Z",
    })
}
