//! clean-stale-records as a Lambda function.

#[tokio::main]
async fn main() {
    runtime::lambda::serve(clean_stale_records::LAMBDA).await;
}
