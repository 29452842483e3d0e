//! poll-and-scale as a Lambda function.

#[tokio::main]
async fn main() {
    runtime::lambda::serve(poll_and_scale::LAMBDA).await;
}
