//! The embedded DynamoDB called in process: the same expressions, without the SDK and HTTP in
//! between. For tests of very many writes; the store's own tests go through the SDK.

use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use dynoxide::Database;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::ids::ClusterName;
use shared::store::{
    Aliases, Answer, Db, DbError, Effect, Index, Item, Key, Page, PageKey, Query, Table, Write, WriteError,
};

pub struct Embedded {
    db: Database,
    cluster: ClusterName,
}

impl Embedded {
    /// With the nodes table, which is all it is for.
    pub fn new(cluster: ClusterName) -> Self {
        let db = Database::memory().unwrap();
        let table = json!({
            "TableName": format!("{cluster}-nodes"), "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": "slot", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "slot", "AttributeType": "N"}],
        });
        db.create_table(request(table)).unwrap();
        Self { db, cluster }
    }

    fn name(&self, table: Table) -> String {
        format!("{}-{}", self.cluster, table.suffix())
    }
}

fn request<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn value(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(t) => json!({"S": t}),
        AttributeValue::N(t) => json!({"N": t}),
        AttributeValue::Bool(b) => json!({"BOOL": b}),
        AttributeValue::Ss(t) => json!({"SS": t}),
        AttributeValue::Ns(t) => json!({"NS": t}),
        AttributeValue::L(l) => json!({"L": l.iter().map(self::value).collect::<Vec<_>>()}),
        AttributeValue::M(m) => {
            json!({"M": m.iter().map(|(k, v)| (k.clone(), self::value(v))).collect::<serde_json::Map<_, _>>()})
        }
        other => panic!("{other:?} is not used"),
    }
}

fn item(item: &Item) -> Value {
    Value::Object(item.iter().map(|(k, v)| (k.clone(), value(v))).collect())
}

fn attribute(value: &Value) -> AttributeValue {
    let (kind, inner) = value.as_object().unwrap().iter().next().unwrap();
    let texts = || inner.as_array().unwrap().iter().map(|t| t.as_str().unwrap().to_owned()).collect();
    match kind.as_str() {
        "S" => AttributeValue::S(inner.as_str().unwrap().into()),
        "N" => AttributeValue::N(inner.as_str().unwrap().into()),
        "BOOL" => AttributeValue::Bool(inner.as_bool().unwrap()),
        "SS" => AttributeValue::Ss(texts()),
        "NS" => AttributeValue::Ns(texts()),
        other => panic!("{other} is not used"),
    }
}

#[async_trait]
impl Db for Embedded {
    async fn get(&self, key: &Key) -> Result<Option<Item>, DbError> {
        let asked = json!({"TableName": self.name(key.table), "Key": item(&key.attributes()), "ConsistentRead": true});
        let answer = serde_json::to_value(self.db.get_item(request(asked)).unwrap()).unwrap();
        Ok(answer["Item"].as_object().map(|i| i.iter().map(|(k, v)| (k.clone(), attribute(v))).collect()))
    }
    async fn get_many(&self, _: &[Key]) -> Result<Vec<Item>, DbError> {
        unreachable!("not for this")
    }
    async fn query(&self, _: &Query, _: Option<PageKey>) -> Result<Page, DbError> {
        unreachable!("not for this")
    }
    async fn scan(&self, _: Table, _: Option<Index>, _: Option<PageKey>) -> Result<Page, DbError> {
        unreachable!("not for this")
    }
    async fn write(&self, write: &Write, _: Answer) -> Result<Option<Item>, WriteError> {
        tokio::task::yield_now().await;
        let mut aliases = Aliases::default();
        let mut asked = json!({"TableName": self.name(write.key.table)});
        if let Some(condition) = aliases.condition(&write.when) {
            asked["ConditionExpression"] = json!(condition);
        }
        let update = match &write.effect {
            Effect::Put(row) => {
                asked["Item"] = item(row);
                false
            }
            Effect::Update { set, remove } => {
                asked["Key"] = item(&write.key.attributes());
                asked["UpdateExpression"] = json!(aliases.update(set, remove));
                true
            }
            other => unreachable!("{other:?} is not for this"),
        };
        if !aliases.names.is_empty() {
            asked["ExpressionAttributeNames"] = json!(aliases.names);
        }
        if !aliases.values.is_empty() {
            asked["ExpressionAttributeValues"] = item(&aliases.values);
        }
        let result = if update {
            self.db.update_item(request(asked)).map(|_| ()).map_err(|e| e.to_string())
        } else {
            self.db.put_item(request(asked)).map(|_| ()).map_err(|e| e.to_string())
        };
        match result {
            Ok(()) => Ok(None),
            Err(e) if e.contains("conditional request failed") => Err(WriteError::CONFLICT),
            Err(e) => panic!("{e}"),
        }
    }
    async fn transact(&self, _: &[Write]) -> Result<(), WriteError> {
        unreachable!("not for this")
    }
}
