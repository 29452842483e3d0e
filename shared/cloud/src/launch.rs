//! What the two calls that launch have in common.
//!
//! Guarantees: a call is made once, and the SDK does not retry it; the same request makes the same call.
//! Does not: make one.

use crate::refusal::launch_error;
use aws_sdk_ec2::config::Builder;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::config::timeout::TimeoutConfig;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::types::{ResourceType, Tag, TagSpecification};
use base64::Engine;
use model::enums::Class;
use model::error_chain::error_chain;
use model::{LaunchError, LaunchRequest, Offering, Reach, Refusal};
use std::error::Error;
use std::time::Duration;

/// How long one launch call may take, in seconds. The launch claim lasts longer: 60 seconds.
const LAUNCH_CALL_S: u64 = 25;

pub(crate) fn one_call() -> Builder {
    Builder::default()
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::builder().operation_timeout(Duration::from_secs(LAUNCH_CALL_S)).build())
}

/// The launch template of a way, by its id or by its name.
pub(crate) struct Template {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) version: String,
}

impl Template {
    pub(crate) fn of(way: &Offering) -> Self {
        let is_id = way.template.starts_with("lt-");
        let named = |is_wanted: bool| is_wanted.then(|| way.template.clone());
        let version = way.template_version.map_or_else(|| "$Default".to_owned(), |version| version.to_string());
        Self { id: named(is_id), name: named(!is_id), version }
    }
}

pub(crate) fn user_data(request: &LaunchRequest) -> String {
    base64::engine::general_purpose::STANDARD.encode(&request.user_data)
}

pub(crate) fn tags(request: &LaunchRequest) -> TagSpecification {
    let tags = request.tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build());
    TagSpecification::builder().resource_type(ResourceType::Instance).set_tags(Some(tags.collect())).build()
}

/// The error of a call whose first way is this one.
pub(crate) fn failed<E>(first: &Offering, error: &SdkError<E, HttpResponse>) -> LaunchError
where
    E: Error + ProvideErrorMetadata + 'static,
{
    let Some(service) = error.as_service_error() else { return LaunchError::Lost(error_chain(error)) };
    let status = error.raw_response().map_or(0, |response| response.status().as_u16());
    error_of(first, service.code().unwrap_or(""), service.message().unwrap_or("no message"), status)
}

/// The error about a way. If it is about the reservation of the call, it says nothing of other launches by the same
/// template.
pub(crate) fn error_of(way: &Offering, code: &str, message: &str, status: u16) -> LaunchError {
    if way.reservation.is_some() && code.contains("Reservation") {
        let (reach, class) = (Reach::Offering, Class::Short);
        return Refusal { reach, class, message: format!("{code}: {message}") }.into();
    }
    launch_error(code, message, status)
}
