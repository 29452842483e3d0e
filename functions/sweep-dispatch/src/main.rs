//! sweep-dispatch as a Lambda function.

#[tokio::main]
async fn main() {
    runtime::lambda::serve(sweep_dispatch::LAMBDA).await;
}
