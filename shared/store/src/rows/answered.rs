//! Reads the rows of answers in the SDK's place: those of queries and scans, and the one of an update.
//!
//! The SDK makes maps of each row. For 10,000 rows, these maps are more than half of the CPU of a run. So the SDK gets the answer
//! without its rows, and each [`Row`] gets its text.
//! Guarantees: the SDK reads each answer that is not read here, for example an error.
//! Does not: send, sign or repeat a request.

use super::raw::{self, RawAnswer};
use crate::db::Row;
use crate::write::Item;
use aws_sdk_dynamodb::config::interceptors::BeforeSerializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::{Error, Output};
use aws_smithy_runtime_api::client::orchestrator::{HttpResponse, OrchestratorError};
use aws_smithy_runtime_api::client::runtime_plugin::RuntimePlugin;
use aws_smithy_runtime_api::client::ser_de::{DeserializeResponse, SharedResponseDeserializer};
use aws_smithy_types::config_bag::FrozenLayer;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The rows that one request is answered with.
#[derive(Clone, Debug)]
pub(crate) struct Answered(Arc<RowParser>);

struct RowParser {
    /// How the SDK reads an answer.
    sdk: Option<FrozenLayer>,
    /// What the SDK returns for an answer without rows.
    output: fn(Option<Item>) -> Output,
    rows: Mutex<Option<Vec<Row>>>,
}

impl fmt::Debug for RowParser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowParser")
    }
}

impl Answered {
    pub(crate) fn new(operation: &impl RuntimePlugin, output: fn(Option<Item>) -> Output) -> Self {
        Self(Arc::new(RowParser { sdk: operation.config(), output, rows: Mutex::default() }))
    }

    /// The rows of the answer. `by_sdk` has the rows that the SDK read, if it read the answer.
    pub(crate) fn rows(&self, by_sdk: impl IntoIterator<Item = Item>) -> Vec<Row> {
        let read = self.0.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        read.unwrap_or_else(|| by_sdk.into_iter().map(Row::from).collect())
    }
}

impl Intercept for Answered {
    fn name(&self) -> &'static str {
        "Answered"
    }

    fn read_before_execution(
        &self,
        _: &BeforeSerializationInterceptorContextRef<'_>,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if self.0.sdk.is_some() {
            config.interceptor_state().store_put(SharedResponseDeserializer::new(self.clone()));
        }
        Ok(())
    }
}

impl DeserializeResponse for Answered {
    fn deserialize_nonstreaming_with_config(
        &self,
        response: &HttpResponse,
        config: &ConfigBag,
    ) -> Result<Output, OrchestratorError<Error>> {
        let answer = response.body().bytes().filter(|_| response.status().is_success());
        if let Some(RawAnswer { rows, next }) = answer.and_then(raw::answer) {
            let rows = rows.into_iter().map(Row::from).collect();
            *self.0.rows.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows);
            return Ok((self.0.output)(next));
        }
        match self.0.sdk.as_ref().and_then(|sdk| sdk.load::<SharedResponseDeserializer>()) {
            Some(sdk) => sdk.deserialize_nonstreaming_with_config(response, config),
            None => Err(OrchestratorError::other("the SDK has no reader for this operation")),
        }
    }
}
