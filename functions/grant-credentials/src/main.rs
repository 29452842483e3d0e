//! grant-credentials as a Lambda function. `runtime::lambda` reads the clock and the environment; what it does is in
//! `lib.rs`.

#[tokio::main]
async fn main() {
    runtime::lambda::serve(grant_credentials::LAMBDA).await;
}
