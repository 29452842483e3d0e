//! The embedded DynamoDB, called in process. It gets the expressions that the product renders, without the SDK and
//! without HTTP.
//!
//! Guarantees: it answers as `store::Dynamo` does, with the same kinds of errors; a request that the engine does not
//! expect is an error, never a panic.
//! Does not: delete expired rows, lag, or use the SDK (the contract test in `tests` does).

use async_trait::async_trait;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use dynoxide::actions::batch_get_item::{BatchGetItemRequest, KeysAndAttributes};
use dynoxide::actions::create_table::CreateTableRequest;
use dynoxide::actions::delete_item::DeleteItemRequest;
use dynoxide::actions::get_item::GetItemRequest;
use dynoxide::actions::put_item::PutItemRequest;
use dynoxide::actions::query::QueryRequest;
use dynoxide::actions::scan::ScanRequest;
use dynoxide::actions::transact_write_items::{
    TransactConditionCheck, TransactDelete, TransactPut, TransactUpdate, TransactWriteItem, TransactWriteItemsRequest,
};
use dynoxide::actions::update_item::UpdateItemRequest;
use dynoxide::types::{
    AttributeDefinition, GlobalSecondaryIndex, KeySchemaElement, KeyType as Role, Projection, ProjectionType,
    ScalarAttributeType,
};
use dynoxide::{AttributeValue as Value, Database, DynoxideError, Item as Theirs};
use std::collections::HashMap;
use std::fmt;
use store::{
    Aliases, Answer, Db, DbError, Definition, Effect, Index, Item, Key, KeyAttribute, KeySchema, KeyType, Page,
    PageKey, Query, Row, Scan, TABLES, Table, Write, WriteError,
};

/// The most keys of one batch read.
const BATCH_KEYS: usize = 100;

/// The tables, in memory.
#[derive(Clone)]
pub struct Embedded {
    db: Database,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Embedded")
    }
}

impl Embedded {
    pub fn new() -> Result<Self, DbError> {
        let operation = "CreateTable";
        let db = Database::memory().map_err(|e| failed(operation, &e))?;
        for definition in TABLES {
            db.create_table(creation(definition)).map_err(|e| failed(operation, &e))?;
        }
        Ok(Self { db })
    }

    /// The engine itself, for a server or a direct look.
    pub const fn database(&self) -> &Database {
        &self.db
    }
}

/// The size of a row in bytes, as DynamoDB counts it.
pub fn size(item: &Item) -> usize {
    row(item).map_or(0, |theirs| dynoxide::types::item_size(&theirs))
}

fn creation(definition: &Definition) -> CreateTableRequest {
    let mut attributes: Vec<KeyAttribute> = Vec::new();
    for key in std::iter::once(definition.key).chain(definition.indexes.iter().map(|i| i.key)) {
        for attribute in std::iter::once(key.hash).chain(key.range) {
            if !attributes.contains(&attribute) {
                attributes.push(attribute);
            }
        }
    }
    let attribute = |a: KeyAttribute| AttributeDefinition {
        attribute_name: a.name.into(),
        attribute_type: match a.kind {
            KeyType::Number => ScalarAttributeType::N,
            KeyType::Text => ScalarAttributeType::S,
        },
    };
    let index = |i: &Index| GlobalSecondaryIndex {
        index_name: i.name.into(),
        key_schema: schema(i.key),
        projection: Projection {
            projection_type: Some(i.projected.map_or(ProjectionType::KEYS_ONLY, |_| ProjectionType::INCLUDE)),
            non_key_attributes: i.projected.map(|names| names.iter().map(|n| (*n).to_owned()).collect()),
        },
        provisioned_throughput: None,
    };
    let indexes: Vec<GlobalSecondaryIndex> = definition.indexes.iter().map(index).collect();
    CreateTableRequest {
        table_name: name(definition.table),
        key_schema: schema(definition.key),
        attribute_definitions: attributes.into_iter().map(attribute).collect(),
        global_secondary_indexes: (!indexes.is_empty()).then_some(indexes),
        billing_mode: Some("PAY_PER_REQUEST".into()),
        ..CreateTableRequest::default()
    }
}

fn schema(key: KeySchema) -> Vec<KeySchemaElement> {
    let element = |a: KeyAttribute, role| KeySchemaElement { attribute_name: a.name.into(), key_type: role };
    std::iter::once(element(key.hash, Role::HASH)).chain(key.range.map(|r| element(r, Role::RANGE))).collect()
}

fn name(table: Table) -> String {
    table.suffix().into()
}

fn refused(operation: &'static str, code: &str, message: impl Into<String>) -> DbError {
    DbError::Refused { operation, code: code.into(), message: message.into() }
}

/// The engine's error, named as the SDK names it.
fn failed(operation: &'static str, error: &DynoxideError) -> DbError {
    let code = error.error_type().rsplit('#').next().unwrap_or_default();
    match error {
        DynoxideError::ResourceNotFoundException(table) => DbError::NoTable(table.clone()),
        DynoxideError::ProvisionedThroughputExceededException(_) => DbError::Throttled { operation },
        DynoxideError::TransactionCanceledException(message, reasons) => {
            let details: Vec<&str> = reasons.iter().filter_map(|r| r.message.as_deref()).collect();
            let message = if details.is_empty() { message.clone() } else { details.join("; ") };
            refused(operation, code, message)
        }
        other => refused(operation, code, other.to_string()),
    }
}

/// The error of a single write, with the current row if the caller asked for it.
fn not_written(operation: &'static str, error: DynoxideError) -> WriteError {
    match error {
        DynoxideError::ConditionalCheckFailedException(_, row) => {
            WriteError::Conflict(row.filter(|r| !r.is_empty()).map(shared_item))
        }
        other => WriteError::Db(failed(operation, &other)),
    }
}

/// The error of a cancelled transaction. A failed condition comes before a conflict, and a conflict before the rest.
fn cancelled(error: &DynoxideError) -> WriteError {
    if let DynoxideError::TransactionCanceledException(_, reasons) = error {
        let has = |code: &str| reasons.iter().any(|r| r.code == code);
        if has("ConditionalCheckFailed") {
            return WriteError::CONFLICT;
        }
        if has("TransactionConflict") {
            return WriteError::Contended;
        }
    }
    WriteError::Db(failed("TransactWriteItems", error))
}

/// A value for the engine. `None` for a kind that this SDK does not know.
fn value(from: &AttributeValue) -> Option<Value> {
    Some(match from {
        AttributeValue::S(text) => Value::S(text.clone()),
        AttributeValue::N(number) => Value::N(number.clone()),
        AttributeValue::Bool(b) => Value::BOOL(*b),
        AttributeValue::Null(n) => Value::NULL(*n),
        AttributeValue::Ss(texts) => Value::SS(texts.clone()),
        AttributeValue::Ns(numbers) => Value::NS(numbers.clone()),
        AttributeValue::L(list) => Value::L(list.iter().map(value).collect::<Option<_>>()?),
        AttributeValue::M(map) => Value::M(row(map)?),
        AttributeValue::B(bytes) => Value::B(bytes.as_ref().to_vec()),
        AttributeValue::Bs(all) => Value::BS(all.iter().map(|b| b.as_ref().to_vec()).collect()),
        _ => return None,
    })
}

fn row(from: &Item) -> Option<Theirs> {
    from.iter().map(|(k, v)| Some((k.clone(), value(v)?))).collect()
}

fn asked(operation: &'static str, from: &Item) -> Result<Theirs, DbError> {
    row(from).ok_or_else(|| refused(operation, "SerializationException", "a value of an unknown kind"))
}

fn attribute(from: Value) -> AttributeValue {
    match from {
        Value::S(text) => AttributeValue::S(text),
        Value::N(number) => AttributeValue::N(number),
        Value::BOOL(b) => AttributeValue::Bool(b),
        Value::NULL(n) => AttributeValue::Null(n),
        Value::SS(texts) => AttributeValue::Ss(texts),
        Value::NS(numbers) => AttributeValue::Ns(numbers),
        Value::L(list) => AttributeValue::L(list.into_iter().map(attribute).collect()),
        Value::M(map) => AttributeValue::M(item(map)),
        Value::B(bytes) => AttributeValue::B(Blob::new(bytes)),
        Value::BS(all) => AttributeValue::Bs(all.into_iter().map(Blob::new).collect()),
    }
}

fn shared_item(from: Theirs) -> Row {
    Row::from(item(from))
}

fn item(from: Theirs) -> Item {
    from.into_iter().map(|(k, v)| (k, attribute(v))).collect()
}

fn page(items: Option<Vec<Theirs>>, next: Option<Theirs>) -> Page {
    Page {
        items: items.unwrap_or_default().into_iter().map(shared_item).collect(),
        next: next.filter(|k| !k.is_empty()).map(item),
    }
}

/// The names and values of an expression. `None` instead of an empty map, which the engine refuses.
type Expression = (Option<HashMap<String, String>>, Option<Theirs>);

fn expression(operation: &'static str, aliases: Aliases) -> Result<Expression, DbError> {
    let values = asked(operation, &aliases.values)?;
    Ok((Some(aliases.names).filter(|n| !n.is_empty()), Some(values).filter(|v| !v.is_empty())))
}

fn transact_item(write: &Write) -> Result<TransactWriteItem, DbError> {
    let operation = "TransactWriteItems";
    let table_name = name(write.key.table);
    let mut aliases = Aliases::default();
    let condition_expression = aliases.condition(&write.when);
    let update_expression = match &write.effect {
        Effect::Update { set, remove } => aliases.update(set, remove),
        _ => String::new(),
    };
    let (expression_attribute_names, expression_attribute_values) = expression(operation, aliases)?;
    let return_values_on_condition_check_failure = None;
    let key = asked(operation, &write.key.attributes())?;
    let mut one = TransactWriteItem::default();
    match &write.effect {
        Effect::Put(item) => {
            one.put = Some(TransactPut {
                table_name,
                item: asked(operation, item)?,
                condition_expression,
                expression_attribute_names,
                expression_attribute_values,
                return_values_on_condition_check_failure,
            });
        }
        Effect::Update { .. } => {
            one.update = Some(TransactUpdate {
                table_name,
                key,
                update_expression,
                condition_expression,
                expression_attribute_names,
                expression_attribute_values,
                return_values_on_condition_check_failure,
            });
        }
        Effect::Delete => {
            one.delete = Some(TransactDelete {
                table_name,
                key,
                condition_expression,
                expression_attribute_names,
                expression_attribute_values,
                return_values_on_condition_check_failure,
            });
        }
        Effect::Check => {
            one.condition_check = Some(TransactConditionCheck {
                table_name,
                key,
                condition_expression: condition_expression
                    .ok_or_else(|| refused(operation, "BuildError", "a check without a condition"))?,
                expression_attribute_names,
                expression_attribute_values,
                return_values_on_condition_check_failure,
            });
        }
    }
    Ok(one)
}

#[async_trait]
impl Db for Embedded {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        let operation = "GetItem";
        let request = GetItemRequest {
            table_name: name(key.table),
            key: asked(operation, &key.attributes())?,
            consistent_read: Some(true),
            ..GetItemRequest::default()
        };
        Ok(self.db.get_item(request).map_err(|e| failed(operation, &e))?.item.map(shared_item))
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        let operation = "BatchGetItem";
        let mut found = Vec::with_capacity(keys.len());
        let Some(first) = keys.first() else { return Ok(found) };
        for chunk in keys.chunks(BATCH_KEYS) {
            let keys = chunk.iter().map(|k| asked(operation, &k.attributes())).collect::<Result<_, _>>()?;
            let wanted = KeysAndAttributes { keys, consistent_read: Some(true), ..KeysAndAttributes::default() };
            let request = BatchGetItemRequest {
                request_items: HashMap::from([(name(first.table), wanted)]),
                ..BatchGetItemRequest::default()
            };
            let answer = self.db.batch_get_item(request).map_err(|e| failed(operation, &e))?;
            if !answer.unprocessed_keys.is_empty() {
                return Err(DbError::Throttled { operation });
            }
            found.extend(answer.responses.into_values().flatten().map(shared_item));
        }
        Ok(found)
    }

    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        let operation = "Query";
        let key = query.index.map_or(query.table.definition().key, |i| i.key);
        let mut aliases = Aliases::default();
        let mut condition = format!("{} = {}", aliases.name(key.hash.name), aliases.value(&query.hash));
        let bound = match (key.range, &query.range_at_least, &query.range_at_most) {
            (Some(range), Some(least), Some(most)) => {
                format!(
                    " AND {} BETWEEN {} AND {}",
                    aliases.name(range.name),
                    aliases.value(least),
                    aliases.value(most)
                )
            }
            (Some(range), Some(least), None) => {
                format!(" AND {} >= {}", aliases.name(range.name), aliases.value(least))
            }
            (Some(range), None, Some(most)) => format!(" AND {} <= {}", aliases.name(range.name), aliases.value(most)),
            _ => String::new(),
        };
        condition.push_str(&bound);
        let (expression_attribute_names, expression_attribute_values) = expression(operation, aliases)?;
        let limit = query
            .limit
            .map(usize::try_from)
            .transpose()
            .map_err(|_| refused(operation, "ValidationException", "a limit below 1"))?;
        let request = QueryRequest {
            table_name: name(query.table),
            index_name: query.index.map(|i| i.name.into()),
            key_condition_expression: Some(condition),
            expression_attribute_names,
            expression_attribute_values,
            consistent_read: Some(query.index.is_none()),
            scan_index_forward: !query.newest_first,
            limit,
            exclusive_start_key: from.as_ref().map(|f| asked(operation, f)).transpose()?,
            ..QueryRequest::default()
        };
        let answer = self.db.query(request).map_err(|e| failed(operation, &e))?;
        Ok(page(answer.items, answer.last_evaluated_key))
    }

    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        let operation = "Scan";
        let request = ScanRequest {
            table_name: name(scan.table),
            index_name: scan.index.map(|i| i.name.into()),
            consistent_read: Some(scan.index.is_none()),
            segment: scan.segment.map(|s| s.number.unsigned_abs()),
            total_segments: scan.segment.map(|s| s.of.unsigned_abs()),
            exclusive_start_key: from.as_ref().map(|f| asked(operation, f)).transpose()?,
            ..ScanRequest::default()
        };
        let answer = self.db.scan(request).map_err(|e| failed(operation, &e))?;
        Ok(page(answer.items, answer.last_evaluated_key))
    }

    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        let table_name = name(write.key.table);
        let mut aliases = Aliases::default();
        let condition_expression = aliases.condition(&write.when);
        let wants = answer == Answer::Row;
        let return_values_on_condition_check_failure = wants.then(|| "ALL_OLD".to_owned());
        match &write.effect {
            Effect::Put(put) => {
                let operation = "PutItem";
                let (expression_attribute_names, expression_attribute_values) = expression(operation, aliases)?;
                let request = PutItemRequest {
                    table_name,
                    item: asked(operation, put)?,
                    condition_expression,
                    expression_attribute_names,
                    expression_attribute_values,
                    ..PutItemRequest::default()
                };
                self.db.put_item(request).map_err(|e| not_written(operation, e))?;
                Ok(None)
            }
            Effect::Update { set, remove } => {
                let operation = "UpdateItem";
                let update_expression = Some(aliases.update(set, remove));
                let (expression_attribute_names, expression_attribute_values) = expression(operation, aliases)?;
                let request = UpdateItemRequest {
                    table_name,
                    key: asked(operation, &write.key.attributes())?,
                    update_expression,
                    condition_expression,
                    expression_attribute_names,
                    expression_attribute_values,
                    return_values: wants.then(|| "ALL_NEW".to_owned()),
                    return_values_on_condition_check_failure,
                    ..UpdateItemRequest::default()
                };
                let answer = self.db.update_item(request).map_err(|e| not_written(operation, e))?;
                Ok(answer.attributes.map(shared_item))
            }
            Effect::Delete => {
                let operation = "DeleteItem";
                let (expression_attribute_names, expression_attribute_values) = expression(operation, aliases)?;
                let request = DeleteItemRequest {
                    table_name,
                    key: asked(operation, &write.key.attributes())?,
                    condition_expression,
                    expression_attribute_names,
                    expression_attribute_values,
                    ..DeleteItemRequest::default()
                };
                self.db.delete_item(request).map_err(|e| not_written(operation, e))?;
                Ok(None)
            }
            Effect::Check => self.transact(std::slice::from_ref(write)).await.map(|()| None),
        }
    }

    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        let transact_items = writes.iter().map(transact_item).collect::<Result<_, _>>()?;
        let request = TransactWriteItemsRequest { transact_items, ..TransactWriteItemsRequest::default() };
        self.db.transact_write_items(request).map(|_| ()).map_err(|e| cancelled(&e))
    }

    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        let operation = "BatchWriteItem";
        for row in rows {
            let request =
                PutItemRequest { table_name: name(table), item: asked(operation, row)?, ..PutItemRequest::default() };
            self.db.put_item(request).map_err(|e| failed(operation, &e))?;
        }
        Ok(())
    }
}
