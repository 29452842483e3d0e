//! Service Quotas: how many vCPUs the account may have in the region.
//!
//! Guarantees: all pages are read, or it is an error; only quotas of vCPUs that [`model::quotas`] knows are returned.
//! Does not: say how much of a quota is used, or ask for more.
//! Source: Service Quotas API reference, "ListServiceQuotas".

use crate::calls::cloud_error;
use aws_sdk_servicequotas::Client;
use model::CloudError;
use model::quotas::is_of_vcpus;
use std::collections::BTreeMap;

/// The most quotas on a page.
const PAGE: i32 = 100;
pub(crate) const LIST: &str = "ListServiceQuotas";

pub(crate) async fn read(client: &Client) -> Result<BTreeMap<String, u64>, CloudError> {
    let call = client.list_service_quotas().service_code("ec2").into_paginator().page_size(PAGE);
    let mut quotas = call.items().send();
    let mut found = BTreeMap::new();
    while let Some(quota) = quotas.next().await {
        let quota = quota.map_err(|e| cloud_error(LIST, &e))?;
        if let (Some(name), Some(vcpus)) = (quota.quota_name().filter(|name| is_of_vcpus(name)), quota.value()) {
            found.insert(name.to_owned(), vcpus.max(0.0) as u64);
        }
    }
    Ok(found)
}
