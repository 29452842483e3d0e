//! DynamoDB through the AWS SDK: the only file that calls it.
//!
//! Guarantees: unprocessed keys are asked for again; a failed condition, a transaction conflict and a fault are
//! different errors; a retry by the SDK never carries out a write twice, because every write has a condition or puts
//! the same row again.
//! Does not: decide what to read or write.

use crate::db::{Answer, Db, DbError, Page, PageKey, Query, Row, Scan, WriteError};
use crate::tables::Table;
use crate::write::{Aliases, Effect, Item, Key, Write};
use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    CancellationReason, ConditionCheck, Delete, KeysAndAttributes, Put, PutRequest, ReturnValue,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update, WriteRequest,
};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use futures::stream::{self, StreamExt, TryStreamExt};
use model::error_chain::error_chain;
use model::{ClusterName, Rng};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The most keys in one batch read.
const BATCH_KEYS: usize = 100;
/// How many batches are read at the same time.
const BATCHES_AT_ONCE: usize = 8;
/// The most rows in one batch write.
const BATCH_ROWS: usize = 25;
/// The most requests for one batch: the first one, and those for its unprocessed part.
const BATCH_TRIES: u32 = 8;

/// Gives a request the condition of its write, and the names and values that its expressions use. It is a macro because
/// the builders of the SDK have no trait in common.
macro_rules! conditional {
    ($request:expr, $condition:expr, $aliases:expr) => {
        $request
            .set_condition_expression($condition)
            .set_expression_attribute_names(some($aliases.names))
            .set_expression_attribute_values(some($aliases.values))
    };
}

/// Makes the HTTP client that sends requests to AWS. SDK clients that get the same one share its connections.
pub fn http_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new().tls_provider(tls::Provider::Rustls(CryptoMode::Ring)).build_https()
}

/// An HTTP client that believes these root certificates instead of the machine's. They must be PEM.
pub fn http_client_believing(roots: &[u8]) -> SharedHttpClient {
    let roots = tls::TrustStore::empty().with_pem_certificate(roots);
    let Ok(context) = tls::TlsContext::builder().with_trust_store(roots).build() else { return http_client() };
    let builder = aws_smithy_http_client::Builder::new().tls_provider(tls::Provider::Rustls(CryptoMode::Ring));
    builder.tls_context(context).build_https()
}

#[derive(Clone)]
pub struct Dynamo {
    pub client: Client,
    pub cluster: ClusterName,
}

impl Dynamo {
    /// The tables `{cluster}-…`, reached through this client.
    pub const fn new(client: Client, cluster: ClusterName) -> Self {
        Self { client, cluster }
    }

    fn name(&self, table: Table) -> String {
        format!("{}-{}", self.cluster, table.suffix())
    }

    fn transact_item(&self, write: &Write) -> Result<TransactWriteItem, DbError> {
        let wrong = unbuilt("TransactWriteItems");
        let table = self.name(write.key.table);
        let mut aliases = Aliases::default();
        let condition = aliases.condition(&write.when);
        let key = Some(write.key.attributes());
        let builder = TransactWriteItem::builder();
        Ok(match &write.effect {
            Effect::Put(item) => {
                let put = Put::builder().table_name(table).set_item(Some(item.clone()));
                builder.put(conditional!(put, condition, aliases).build().map_err(wrong)?)
            }
            Effect::Update { set, remove } => {
                let change = aliases.update(set, remove);
                let update = Update::builder().table_name(table).set_key(key).update_expression(change);
                builder.update(conditional!(update, condition, aliases).build().map_err(wrong)?)
            }
            Effect::Delete => {
                let delete = Delete::builder().table_name(table).set_key(key);
                builder.delete(conditional!(delete, condition, aliases).build().map_err(wrong)?)
            }
            Effect::Check => {
                let check = ConditionCheck::builder().table_name(table).set_key(key);
                builder.condition_check(conditional!(check, condition, aliases).build().map_err(wrong)?)
            }
        }
        .build())
    }
}

fn some<K, V>(map: HashMap<K, V>) -> Option<HashMap<K, V>> {
    (!map.is_empty()).then_some(map)
}

/// The error when the SDK refuses to build a request.
fn unbuilt(operation: &'static str) -> impl Fn(BuildError) -> DbError + Copy {
    move |e| DbError::Refused { operation, code: "BuildError".into(), message: e.to_string() }
}

fn db_error<E, R>(operation: &'static str, table: &str, error: &SdkError<E, R>) -> DbError
where
    E: ProvideErrorMetadata + Error + 'static,
    R: fmt::Debug + 'static,
{
    let SdkError::ServiceError(service) = error else {
        return DbError::Unreachable { operation, detail: error_chain(error) };
    };
    let meta = service.err();
    match meta.code().unwrap_or_default() {
        "ResourceNotFoundException" => DbError::NoTable(table.to_owned()),
        "ProvisionedThroughputExceededException" | "ThrottlingException" | "RequestLimitExceeded" => {
            DbError::Throttled { operation }
        }
        code => DbError::Refused {
            operation,
            code: code.to_owned(),
            message: meta.message().unwrap_or("no message").to_owned(),
        },
    }
}

/// The error of a single write. `old` is the current row, if the caller asked for it.
fn write_error<E, R>(operation: &'static str, table: &str, error: &SdkError<E, R>, old: Option<Row>) -> WriteError
where
    E: ProvideErrorMetadata + Error + 'static,
    R: fmt::Debug + 'static,
{
    match error.as_service_error().and_then(ProvideErrorMetadata::code) {
        Some("ConditionalCheckFailedException") => WriteError::Conflict(old),
        Some("TransactionConflictException") => WriteError::Contended,
        _ => WriteError::Db(db_error(operation, table, error)),
    }
}

/// The error of a cancelled transaction. If its writes failed for different reasons, a failed condition comes before a
/// conflict, and a conflict before throttling.
fn cancelled(reasons: &[CancellationReason], message: &str) -> WriteError {
    let has = |code: &str| reasons.iter().any(|r| r.code() == Some(code));
    let operation = "TransactWriteItems";
    if has("ConditionalCheckFailed") {
        WriteError::CONFLICT
    } else if has("TransactionConflict") {
        WriteError::Contended
    } else if has("ThrottlingError") || has("ProvisionedThroughputExceeded") {
        WriteError::Db(DbError::Throttled { operation })
    } else {
        let detail: Vec<&str> = reasons.iter().filter_map(CancellationReason::message).collect();
        WriteError::Db(DbError::Refused {
            operation,
            code: "TransactionCanceledException".into(),
            message: if detail.is_empty() { message.to_owned() } else { detail.join("; ") },
        })
    }
}

/// Waits before the unprocessed part of a batch, or a transaction that is under way, is requested again. An error after
/// [`BATCH_TRIES`] requests.
async fn pause_of_batch(operation: &'static str, tries: &mut u32) -> Result<(), DbError> {
    if *tries == BATCH_TRIES {
        return Err(DbError::Throttled { operation });
    }
    if *tries > 0 {
        tokio::time::sleep(Duration::from_millis(25 << *tries)).await;
    }
    *tries += 1;
    Ok(())
}

impl Dynamo {
    /// Reads rows of one table: at most [`BATCH_KEYS`] of them.
    async fn get_batch(&self, table: Table, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        let (operation, name) = ("BatchGetItem", self.name(table));
        let mut found = Vec::with_capacity(keys.len());
        let mut wanted: Vec<Item> = keys.iter().map(Key::attributes).collect();
        let mut tries = 0;
        while !wanted.is_empty() {
            pause_of_batch(operation, &mut tries).await?;
            let request = KeysAndAttributes::builder()
                .set_keys(Some(std::mem::take(&mut wanted)))
                .consistent_read(true)
                .build()
                .map_err(unbuilt(operation))?;
            let answer = self
                .client
                .batch_get_item()
                .request_items(&name, request)
                .send()
                .await
                .map_err(|e| db_error(operation, &name, &e))?;
            found.extend(answer.responses.unwrap_or_default().into_values().flatten().map(Row::from));
            wanted = answer.unprocessed_keys.unwrap_or_default().into_values().flat_map(|k| k.keys).collect();
        }
        Ok(found)
    }
}

#[async_trait]
impl Db for Dynamo {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        let table = self.name(key.table);
        let answer = self
            .client
            .get_item()
            .table_name(&table)
            .set_key(Some(key.attributes()))
            .consistent_read(true)
            .send()
            .await
            .map_err(|e| db_error("GetItem", &table, &e))?;
        Ok(answer.item.map(Row::from))
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let batches: Vec<_> = keys.chunks(BATCH_KEYS).map(|keys| self.get_batch(first.table, keys)).collect();
        let read: Vec<Vec<Row>> = stream::iter(batches).buffered(BATCHES_AT_ONCE).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        let table = self.name(query.table);
        let key = query.index.map_or(query.table.definition().key, |i| i.key);
        let mut aliases = Aliases::default();
        let mut condition = format!("{} = {}", aliases.name(key.hash.name), aliases.value(&query.hash));
        // DynamoDB takes one condition on a range key.
        let bound = match (key.range, &query.range_at_least, &query.range_at_most) {
            (Some(_), Some(least), Some(most)) => {
                Some(format!("BETWEEN {} AND {}", aliases.value(least), aliases.value(most)))
            }
            (Some(_), Some(least), None) => Some(format!(">= {}", aliases.value(least))),
            (Some(_), None, Some(most)) => Some(format!("<= {}", aliases.value(most))),
            _ => None,
        };
        if let (Some(range), Some(bound)) = (key.range, bound) {
            condition.push_str(&format!(" AND {} {bound}", aliases.name(range.name)));
        }
        let answer = self
            .client
            .query()
            .table_name(&table)
            .set_index_name(query.index.map(|i| i.name.to_owned()))
            .key_condition_expression(condition)
            .set_expression_attribute_names(some(aliases.names))
            .set_expression_attribute_values(some(aliases.values))
            .consistent_read(query.index.is_none())
            .scan_index_forward(!query.newest_first)
            .set_limit(query.limit)
            .set_exclusive_start_key(from)
            .send()
            .await
            .map_err(|e| db_error("Query", &table, &e))?;
        Ok(Page {
            items: answer.items.unwrap_or_default().into_iter().map(Row::from).collect(),
            next: answer.last_evaluated_key.filter(|k| !k.is_empty()),
        })
    }

    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        let Scan { table, index, segment } = *scan;
        let name = self.name(table);
        let answer = self
            .client
            .scan()
            .table_name(&name)
            .set_index_name(index.map(|i| i.name.to_owned()))
            .consistent_read(index.is_none())
            .set_segment(segment.map(|s| s.number))
            .set_total_segments(segment.map(|s| s.of))
            .set_exclusive_start_key(from)
            .send()
            .await
            .map_err(|e| db_error("Scan", &name, &e))?;
        Ok(Page {
            items: answer.items.unwrap_or_default().into_iter().map(Row::from).collect(),
            next: answer.last_evaluated_key.filter(|k| !k.is_empty()),
        })
    }

    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        let table = self.name(write.key.table);
        let mut aliases = Aliases::default();
        let condition = aliases.condition(&write.when);
        let key = Some(write.key.attributes());
        match &write.effect {
            Effect::Put(item) => {
                let put = self.client.put_item().table_name(&table).set_item(Some(item.clone()));
                conditional!(put, condition, aliases)
                    .send()
                    .await
                    .map_err(|e| write_error("PutItem", &table, &e, None))?;
                Ok(None)
            }
            Effect::Update { set, remove } => {
                let change = aliases.update(set, remove);
                let update = self.client.update_item().table_name(&table).set_key(key).update_expression(change);
                let wants = answer == Answer::Row;
                let (after, before) = match answer {
                    Answer::None => (ReturnValue::None, ReturnValuesOnConditionCheckFailure::None),
                    Answer::Row => (ReturnValue::AllNew, ReturnValuesOnConditionCheckFailure::AllOld),
                };
                let answer = conditional!(update, condition, aliases)
                    .return_values(after)
                    .return_values_on_condition_check_failure(before)
                    .send()
                    .await
                    .map_err(|e| {
                        let old = match e.as_service_error() {
                            Some(UpdateItemError::ConditionalCheckFailedException(failure)) => failure.item(),
                            _ => None,
                        };
                        write_error("UpdateItem", &table, &e, old.filter(|_| wants).cloned().map(Row::from))
                    })?;
                Ok(answer.attributes.map(Row::from))
            }
            Effect::Delete => {
                let delete = self.client.delete_item().table_name(&table).set_key(key);
                conditional!(delete, condition, aliases)
                    .send()
                    .await
                    .map_err(|e| write_error("DeleteItem", &table, &e, None))?;
                Ok(None)
            }
            Effect::Check => self.transact(std::slice::from_ref(write)).await.map(|()| None),
        }
    }

    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError as E;
        let items: Vec<TransactWriteItem> = writes.iter().map(|w| self.transact_item(w)).collect::<Result<_, _>>()?;
        let table = writes.first().map(|w| self.name(w.key.table)).unwrap_or_default();
        // Each attempt has the same token. So none fails if the transaction was committed and only its answer was lost, and none
        // makes it a second time while the first attempt is still under way.
        let call = self.client.transact_write_items().set_transact_items(Some(items));
        let call = call.client_request_token(format!("{:032x}", Rng::real().bits()));
        let mut tries = 0;
        loop {
            pause_of_batch("TransactWriteItems", &mut tries).await?;
            let Err(e) = call.clone().send().await else { return Ok(()) };
            return Err(match e.as_service_error() {
                Some(E::TransactionInProgressException(_)) => continue,
                Some(E::TransactionCanceledException(c)) => {
                    cancelled(c.cancellation_reasons(), c.message().unwrap_or("no message"))
                }
                _ => WriteError::Db(db_error("TransactWriteItems", &table, &e)),
            });
        }
    }

    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        let operation = "BatchWriteItem";
        let name = self.name(table);
        let wrong = unbuilt(operation);
        for chunk in rows.chunks(BATCH_ROWS) {
            let mut wanted = Vec::with_capacity(chunk.len());
            for row in chunk {
                let put = PutRequest::builder().set_item(Some(row.clone())).build().map_err(wrong)?;
                wanted.push(WriteRequest::builder().put_request(put).build());
            }
            let mut tries = 0;
            while !wanted.is_empty() {
                pause_of_batch(operation, &mut tries).await?;
                let request = HashMap::from([(name.clone(), std::mem::take(&mut wanted))]);
                let call = self.client.batch_write_item().set_request_items(Some(request)).send();
                let answer = call.await.map_err(|e| db_error(operation, &name, &e))?;
                wanted = answer.unprocessed_items.unwrap_or_default().into_values().flatten().collect();
            }
        }
        Ok(())
    }
}
