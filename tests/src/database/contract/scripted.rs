//! Answers that no emulator gives, played to the SDK over HTTP: unprocessed keys, transaction conflicts, throttling,
//! and answers that are not valid.

use super::bench::{delete, job, n, put, s, update};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use store::{Answer, Cond, Db, DbError, Dynamo, Key, Scan, Table, WriteError};

#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<(u16, Value)>>,
    asked: Mutex<Vec<(String, Value)>>,
}

/// A DynamoDB that gives prepared answers in order. It repeats the last one.
struct Played {
    script: Arc<Script>,
    dynamo: Dynamo,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Played {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(script): State<Arc<Script>>, headers: HeaderMap, body: String) -> impl IntoResponse {
    let target = headers["x-amz-target"].to_str().unwrap().rsplit('.').next().unwrap().to_owned();
    script.asked.lock().unwrap().push((target, serde_json::from_str(&body).unwrap()));
    let mut answers = script.answers.lock().unwrap();
    let (status, body) = if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() };
    (StatusCode::from_u16(status).unwrap(), [("content-type", "application/x-amz-json-1.0")], body.to_string())
}

impl Played {
    async fn new(answers: impl IntoIterator<Item = (u16, Value)>) -> Self {
        let script = Arc::new(Script { answers: Mutex::new(answers.into_iter().collect()), ..Script::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(answer).with_state(Arc::clone(&script));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        // No retries by the client, so that each answer is read once.
        let config = crate::world::dynamo_client(&url)
            .config()
            .to_builder()
            .retry_config(aws_sdk_dynamodb::config::retry::RetryConfig::disabled())
            .build();
        let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config), "played".parse().unwrap());
        Self { script, dynamo, server }
    }

    fn asked(&self) -> Vec<(String, Value)> {
        self.script.asked.lock().unwrap().clone()
    }
}

fn error(code: &str) -> (u16, Value) {
    (400, json!({"__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "as played"}))
}

fn cancelled(codes: &[&str]) -> (u16, Value) {
    let reasons: Vec<Value> = codes
        .iter()
        .map(|c| if *c == "None" { json!({"Code": c}) } else { json!({"Code": c, "Message": "as played"}) })
        .collect();
    let kind = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
    (400, json!({"__type": kind, "Message": "Transaction cancelled", "CancellationReasons": reasons}))
}

fn rows(ids: &[&str], left: &[&str]) -> (u16, Value) {
    let keyed = |ids: &[&str]| ids.iter().map(|id| json!({"job_id": {"S": id}})).collect::<Vec<_>>();
    let unprocessed = match left {
        [] => json!({}),
        left => json!({"played-jobs": {"Keys": keyed(left), "ConsistentRead": true}}),
    };
    (200, json!({"Responses": {"played-jobs": keyed(ids)}, "UnprocessedKeys": unprocessed}))
}

fn keys_of(asked: &(String, Value)) -> Vec<String> {
    assert_eq!(asked.0, "BatchGetItem");
    let asked = &asked.1["RequestItems"]["played-jobs"];
    assert_eq!(asked["ConsistentRead"], true);
    asked["Keys"].as_array().unwrap().iter().map(|k| k["job_id"]["S"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn unprocessed_keys_are_asked_for_again() {
    let played =
        Played::new([rows(&["a"], &["b", "c"]), rows(&[], &["b", "c"]), rows(&["c"], &["b"]), rows(&["b"], &[])]).await;
    let keys: Vec<Key> = ["a", "b", "c", "missing"].map(job).to_vec();
    let mut found: Vec<_> = played
        .dynamo
        .get_many(&keys)
        .await
        .unwrap()
        .into_iter()
        .map(|row| row["job_id"].as_s().unwrap().clone())
        .collect();
    found.sort_unstable();
    assert_eq!(found, ["a", "b", "c"]);
    let asked: Vec<Vec<String>> = played.asked().iter().map(keys_of).collect();
    assert_eq!(asked, [vec!["a", "b", "c", "missing"], vec!["b", "c"], vec!["b", "c"], vec!["b"]]);
}

#[tokio::test]
async fn keys_that_stay_unprocessed_give_a_throttling_error_and_no_partial_list() {
    let played = Played::new([rows(&["a"], &["b"]), rows(&[], &["b"])]).await;
    let error = played.dynamo.get_many(&["a", "b"].map(job)).await.unwrap_err();
    assert!(matches!(error, DbError::Throttled { operation: "BatchGetItem" }), "{error:?}");
    assert_eq!(played.asked().len(), 8);
}

#[tokio::test]
async fn unprocessed_keys_of_two_batches_are_not_mixed() {
    // Both batches are requested at once, and then the unprocessed keys of each.
    let played = Played::new([rows(&["0"], &["7"]), rows(&[], &["149"]), rows(&["7"], &[]), rows(&["149"], &[])]).await;
    let ids: Vec<String> = (0..150).map(|i| i.to_string()).collect();
    let keys: Vec<Key> = ids.iter().map(|id| job(id)).collect();
    assert_eq!(played.dynamo.get_many(&keys).await.unwrap().len(), 3);
    let asked: BTreeSet<Vec<String>> = played.asked().iter().map(keys_of).collect();
    assert_eq!(asked, [ids[..100].to_vec(), vec!["7".into()], ids[100..].to_vec(), vec!["149".into()]].into());
}

#[tokio::test]
async fn the_reasons_of_cancelled_transactions_are_told_apart() {
    let writes = [put(&job("a"), &[]), delete(&job("b")), update(&job("c"), &[("version", n(1))], &[])];
    let what = async |answer: (u16, Value)| {
        let played = Played::new([answer]).await;
        let error = played.dynamo.transact(&writes).await.unwrap_err();
        assert_eq!(played.asked().len(), 1, "it is tried once");
        error
    };
    for codes in [&["None", "ConditionalCheckFailed", "None"][..], &["ConditionalCheckFailed"]] {
        assert!(matches!(what(cancelled(codes)).await, WriteError::Conflict(None)), "{codes:?}");
    }
    assert!(matches!(what(cancelled(&["None", "TransactionConflict", "None"])).await, WriteError::Contended));
    // A retry cannot change a failed condition. So a failed condition comes before a conflict in the same answer.
    for codes in [
        &["TransactionConflict", "ConditionalCheckFailed", "None"][..],
        &["ConditionalCheckFailed", "TransactionConflict", "ThrottlingError"],
        &["ProvisionedThroughputExceeded", "None", "ConditionalCheckFailed"],
    ] {
        assert!(matches!(what(cancelled(codes)).await, WriteError::Conflict(None)), "{codes:?}");
    }
    assert!(matches!(what(cancelled(&["ThrottlingError", "TransactionConflict"])).await, WriteError::Contended));
    for codes in [&["None", "ThrottlingError"][..], &["ProvisionedThroughputExceeded", "None"]] {
        let error = what(cancelled(codes)).await;
        assert!(matches!(error, WriteError::Db(DbError::Throttled { .. })), "{codes:?} {error:?}");
    }
    for codes in [&["None", "ValidationError", "None"][..], &["ItemCollectionSizeLimitExceeded"]] {
        let error = what(cancelled(codes)).await;
        assert!(
            matches!(&error, WriteError::Db(DbError::Refused { code, message, .. })
                if code == "TransactionCanceledException" && message == "as played"),
            "{codes:?} {error:?}"
        );
    }
    let refused = what(error("IdempotentParameterMismatchException")).await;
    assert!(matches!(refused, WriteError::Db(DbError::Refused { .. })), "{refused:?}");
    let throttled = what(error("ThrottlingException")).await;
    assert!(matches!(throttled, WriteError::Db(DbError::Throttled { .. })), "{throttled:?}");
}

/// The first attempt may commit while its answer is on the way. With another token, the second one would fail at its own write.
#[tokio::test]
async fn a_transaction_that_is_under_way_is_asked_for_again_with_its_token() {
    let under_way = || error("TransactionInProgressException");
    let played = Played::new([under_way(), under_way(), (200, json!({}))]).await;
    played.dynamo.transact(&[put(&job("a"), &[]), delete(&job("b"))]).await.unwrap();
    let tokens: Vec<Value> = played.asked().iter().map(|(_, body)| body["ClientRequestToken"].clone()).collect();
    assert_eq!(tokens.len(), 3);
    assert!(tokens[0].as_str().is_some_and(|token| token.len() == 32) && tokens.iter().all(|t| *t == tokens[0]));
    played.dynamo.transact(&[delete(&job("b"))]).await.unwrap();
    assert_ne!(played.asked()[3].1["ClientRequestToken"], tokens[0], "another transaction has another token");
    let played = Played::new([under_way()]).await;
    let error = played.dynamo.transact(&[delete(&job("b"))]).await.unwrap_err();
    assert!(matches!(error, WriteError::Db(DbError::Throttled { .. })), "{error:?}");
}

#[tokio::test]
async fn a_conflict_with_a_transaction_is_not_a_failed_condition() {
    for write in [put(&job("a"), &[]), delete(&job("a")), update(&job("a"), &[("version", n(1))], &[])] {
        for answer in [Answer::None, Answer::Row] {
            let played = Played::new([error("TransactionConflictException")]).await;
            let write = write.clone().and(Cond::Eq("version", n(1)));
            let error = played.dynamo.write(&write, answer).await.unwrap_err();
            assert!(matches!(error, WriteError::Contended), "{write:?} {error:?}");
        }
    }
}

#[tokio::test]
async fn a_failed_condition_returns_the_row_if_asked() {
    let kind = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException";
    let row = json!({"job_id": {"S": "a"}, "version": {"N": "2"}});
    let with = (400, json!({"__type": kind, "message": "The conditional request failed", "Item": row}));
    let without = (400, json!({"__type": kind, "message": "The conditional request failed"}));
    let write = update(&job("a"), &[("version", n(2))], &[]).and(Cond::Eq("version", n(1)));
    let got = async |answer: (u16, Value), asked: Answer| {
        let played = Played::new([answer]).await;
        let error = played.dynamo.write(&write, asked).await.unwrap_err();
        let wants = &played.asked()[0].1["ReturnValuesOnConditionCheckFailure"];
        assert_eq!(wants, if asked == Answer::Row { "ALL_OLD" } else { "NONE" });
        match error {
            WriteError::Conflict(row) => row.map(|r| r["version"].as_n().unwrap().clone()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(got(with.clone(), Answer::Row).await.as_deref(), Some("2"));
    assert_eq!(got(with, Answer::None).await, None);
    assert_eq!(got(without, Answer::Row).await, None);
}

#[tokio::test]
async fn every_operation_tells_throttling_from_refusal() {
    let throttling = ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"];
    for (code, throttles) in throttling.map(|c| (c, true)).into_iter().chain([("ValidationException", false)]) {
        let played = Played::new([error(code)]).await;
        let db = &played.dynamo;
        let query = crate::database::contract::lists::query(Table::Events, None, s("x"));
        let write = put(&job("a"), &[]);
        let single = async |write| match db.write(&write, Answer::None).await.unwrap_err() {
            WriteError::Db(e) => e,
            other => panic!("{code}: {other:?}"),
        };
        let errors = [
            db.get(&job("a")).await.unwrap_err(),
            db.get_many(&[job("a")]).await.unwrap_err(),
            db.query(&query, None).await.unwrap_err(),
            db.scan(&Scan::all(Table::Jobs, None), None).await.unwrap_err(),
            single(write).await,
            single(delete(&job("a"))).await,
            single(update(&job("a"), &[("version", n(1))], &[])).await,
        ];
        for error in errors {
            assert_eq!(matches!(error, DbError::Throttled { .. }), throttles, "{code}: {error:?}");
            assert_eq!(matches!(error, DbError::Refused { .. }), !throttles, "{code}: {error:?}");
        }
    }
}

#[tokio::test]
async fn an_invalid_answer_is_an_error() {
    let missing = Played::new([error("ResourceNotFoundException")]).await;
    let error_of = missing.dynamo.get(&job("a")).await.unwrap_err();
    assert!(matches!(&error_of, DbError::NoTable(table) if table == "played-jobs"), "{error_of:?}");
    let broken = Played::new([(500, json!({"__type": "InternalServerError", "message": "as played"}))]).await;
    let error_of = broken.dynamo.transact(&[put(&job("a"), &[])]).await.unwrap_err();
    assert!(matches!(error_of, WriteError::Db(_)), "{error_of:?}");
    // A page without rows is valid, and another page may follow.
    let place = json!({"subject": {"S": "x"}, "id": {"S": "5"}});
    let played = Played::new([
        (200, json!({"Count": 0, "ScannedCount": 0, "LastEvaluatedKey": place})),
        (200, json!({"Count": 0, "ScannedCount": 0})),
    ])
    .await;
    let query = crate::database::contract::lists::query(Table::Events, None, s("x"));
    let page = played.dynamo.query(&query, None).await.unwrap();
    assert!(page.items.is_empty() && page.next.is_some());
    let page = played.dynamo.query(&query, page.next).await.unwrap();
    assert!(page.items.is_empty() && page.next.is_none());
    assert_eq!(played.asked()[1].1["ExclusiveStartKey"], place);
    // Nothing listens at this address.
    let nobody = format!("http://127.0.0.1:{}", crate::second_opinions::free_port());
    let config = crate::world::dynamo_client(&nobody)
        .config()
        .to_builder()
        .retry_config(aws_sdk_dynamodb::config::retry::RetryConfig::disabled())
        .build();
    let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config), "played".parse().unwrap());
    let error_of = dynamo.get(&job("a")).await.unwrap_err();
    assert!(matches!(error_of, DbError::Unreachable { operation: "GetItem", .. }), "{error_of:?}");
}
