//! clean-stale-records as a Lambda function: reads the environment and the clock, then runs.

use clean_stale_records::{FUNCTION, tick};
use shared::env::Needs;
use shared::lambda;
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = Arc::new(lambda::start(FUNCTION, Needs { key: false, urls: false }).await);
    lambda::serve(FUNCTION, move |input, clock| {
        let parts = Arc::clone(&parts);
        async move {
            let answer = tick(&parts.store, &parts.cloud, &input, clock).await;
            answer.map(|a| serde_json::to_value(a).unwrap_or_default())
        }
    })
    .await;
}
