//! grant-credentials as a Lambda function.

#[tokio::main]
async fn main() {
    runtime::lambda::serve(grant_credentials::LAMBDA).await;
}
