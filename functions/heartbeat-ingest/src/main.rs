//! heartbeat-ingest as a Lambda function.

#[tokio::main]
async fn main() {
    runtime::lambda::serve(heartbeat_ingest::LAMBDA).await;
}
