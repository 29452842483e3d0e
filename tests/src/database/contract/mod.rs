//! The contract of the database: four databases must give the same answers. They are the model that the simulation
//! runs on, the embedded DynamoDB called in process, the embedded DynamoDB through the SDK, and an emulator from
//! another project.
//!
//! Guarantees: every kind of condition and effect, transactions, indexes, order and pages are compared, as written out
//! (`cases`, `lists`, `transactions`) and at random (`walk`); errors are of the same kind; answers that no emulator
//! gives are played to the SDK (`scripted`). If an engine is wrong and AWS's documentation is clear, the model follows
//! AWS, and `EXCUSED` names the difference.
//! Does not: compare error messages, or the order of rows with the same index key, which DynamoDB leaves open.

mod bench;
mod cases;
mod lists;
mod scripted;
mod transactions;
mod walk;

use bench::Bench;

async fn written_out(bench: &Bench) {
    cases::all(bench).await;
    transactions::all(bench).await;
    lists::all(bench).await;
    bench.close();
    bench.excuses_are_needed();
}

#[tokio::test]
async fn the_model_answers_as_the_embedded_dynamodb() {
    written_out(&Bench::in_process()).await;
}

#[tokio::test]
async fn the_model_answers_as_the_embedded_dynamodb_through_the_sdk() {
    written_out(&Bench::http().await).await;
}

#[tokio::test]
async fn nightly_the_model_answers_as_ministack() {
    written_out(&Bench::ministack().await).await;
}

async fn walked(bench: Bench, seed: u64, steps: usize) {
    walk::walk(&bench, seed, steps).await;
    bench.close();
}

#[tokio::test]
async fn walks_agree_with_the_embedded_dynamodb() {
    for seed in 1..=4 {
        walked(Bench::in_process(), seed, 500).await;
    }
}

#[tokio::test]
async fn nightly_walks_agree_with_the_embedded_dynamodb_through_the_sdk() {
    for seed in 11..=12 {
        walked(Bench::http().await, seed, 200).await;
    }
}

#[tokio::test]
async fn nightly_walks_agree_with_ministack() {
    walked(Bench::ministack().await, 21, 200).await;
}
