//! The public price list: what machines on demand cost.
//!
//! Guarantees: all pages are read, or it is an error; a price that is not a positive number is left out.
//! Does not: know spot prices, or prices outside of AWS's commercial regions. Elsewhere, the price list has no endpoint
//! that the same credentials could use.
//! Source: AWS Billing user guide, "Using the AWS Price List Query API" and "Reading the service price list files".

use crate::calls::cloud_error;
use aws_config::{Region, SdkConfig};
use aws_sdk_pricing::types::{Filter, FilterType};
use model::{CloudError, Usd};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The region of the price list's endpoint. It has the prices of all regions, and not each region has an endpoint.
pub const PRICES_REGION: &str = "us-east-1";
/// How regions of the other partitions begin.
const OTHER_PARTITIONS: [&str; 5] = ["cn-", "us-gov-", "us-iso", "eu-iso", "eusc-"];
/// The most products on a page.
const PAGE: i32 = 100;
pub(crate) const GET_PRODUCTS: &str = "GetProducts";

/// The public price list, for one region.
#[derive(Clone, Debug)]
pub(crate) struct PriceList {
    client: aws_sdk_pricing::Client,
    region: String,
}

impl PriceList {
    /// `None` if no region is configured.
    pub(crate) fn connect(aws: &SdkConfig) -> Option<Self> {
        let region = aws.region()?.to_string();
        let config = aws_sdk_pricing::config::Builder::from(aws).region(Region::new(PRICES_REGION)).build();
        Some(Self { client: aws_sdk_pricing::Client::from_conf(config), region })
    }

    /// Reads all pages of the region's list, because one call for each type would be more calls.
    pub(crate) async fn prices(&self, types: &BTreeSet<String>) -> Result<BTreeMap<String, Usd>, CloudError> {
        if OTHER_PARTITIONS.iter().any(|begin| self.region.starts_with(begin)) {
            let message = format!("the price list has no prices for the account's partition, that of {}", self.region);
            return Err(CloudError::Refused { operation: GET_PRODUCTS, code: "UnknownRegion".into(), message });
        }
        let mut call = self.client.get_products().service_code("AmazonEC2");
        for (field, value) in [
            ("regionCode", self.region.as_str()),
            ("operatingSystem", "Linux"),
            ("tenancy", "Shared"),
            ("preInstalledSw", "NA"),
            ("capacitystatus", "Used"),
        ] {
            let filter = Filter::builder().r#type(FilterType::TermMatch).field(field).value(value);
            let filter = filter.build();
            let invalid = |e| CloudError::Unreachable { operation: GET_PRODUCTS, detail: format!("no filter: {e}") };
            call = call.filters(filter.map_err(invalid)?);
        }
        let mut products = call.into_paginator().page_size(PAGE).items().send();
        let mut found: BTreeMap<String, Usd> = BTreeMap::new();
        while let Some(product) = products.next().await {
            let product = product.map_err(|e| cloud_error(GET_PRODUCTS, &e))?;
            if let Some((name, price)) = price_on_demand(&product).filter(|(name, _)| types.contains(name)) {
                // Of two prices the higher one counts, so that nothing costs more than planned.
                let highest = found.entry(name).or_insert(price);
                *highest = price.max(*highest);
            }
        }
        Ok(found)
    }
}

#[derive(Deserialize)]
struct Product {
    product: Described,
    terms: Terms,
}

#[derive(Deserialize)]
struct Described {
    attributes: ProductAttributes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProductAttributes {
    instance_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Terms {
    on_demand: BTreeMap<String, Term>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    price_dimensions: BTreeMap<String, Dimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dimension {
    unit: String,
    price_per_unit: BTreeMap<String, String>,
}

/// The type of a product and its price an hour; `None` if the product has none that can be read.
fn price_on_demand(product: &str) -> Option<(String, Usd)> {
    let product: Product = serde_json::from_str(product).ok()?;
    let dimensions = product.terms.on_demand.values().flat_map(|term| term.price_dimensions.values());
    let hourly = dimensions.filter(|dimension| dimension.unit == "Hrs");
    let prices = hourly.filter_map(|dimension| usd(dimension.price_per_unit.get("USD")?));
    Some((product.product.attributes.instance_type, prices.max()?))
}

/// A price as AWS writes it. AWS writes zero where it has no price, so zero is none.
pub(crate) fn usd(text: &str) -> Option<Usd> {
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let dollars: f64 = text.parse().ok().filter(|_| is_decimal)?;
    Usd::try_from(dollars).ok().filter(|price| !price.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_a_positive_decimal_number() {
        for (text, micros) in [
            ("0.1008000000", Some(100_800)),
            ("12", Some(12_000_000)),
            ("0.034567", Some(34_567)),
            ("0.0000000000", None),
            ("", None),
            (".", None),
            ("-0.1", None),
            ("1e3", None),
            ("nan", None),
            ("inf", None),
            ("0,1", None),
            ("$0.1", None),
            ("99999999999999", None),
        ] {
            assert_eq!(usd(text), micros.map(Usd::from_micros), "{text:?}");
        }
    }

    #[test]
    fn a_product_without_a_price_an_hour_has_none() {
        let product = |unit: &str, currency: &str, price: &str| {
            format!(
                r#"{{"product": {{"attributes": {{"instanceType": "m7i.large", "vcpu": "2"}}, "sku": "S"}},
                    "terms": {{"OnDemand": {{"S.J": {{"priceDimensions": {{"S.J.6": {{"unit": "{unit}",
                    "pricePerUnit": {{"{currency}": "{price}"}}}}}}}}}}, "Reserved": {{}}}}}}"#
            )
        };
        assert_eq!(
            price_on_demand(&product("Hrs", "USD", "0.1008")),
            Some(("m7i.large".to_owned(), Usd::from_micros(100_800)))
        );
        for text in [
            product("Hrs", "USD", "free"),
            product("Hrs", "CNY", "0.1008"),
            product("Quantity", "USD", "0.1008"),
            r#"{"product": {"attributes": {"instanceType": "m7i.large"}}, "terms": {"OnDemand": {}}}"#.to_owned(),
            r#"{"product": {"attributes": {"instanceType": "m7i.large"}}, "terms": {}}"#.to_owned(),
            "{}".to_owned(),
            "\u{1}".to_owned(),
        ] {
            assert_eq!(price_on_demand(&text), None, "{text}");
        }
    }
}
