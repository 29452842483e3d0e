//! poll-and-scale as a Lambda function: reads the environment and the clock, then runs.

use poll_and_scale::{FUNCTION, tick};
use shared::env::Needs;
use shared::lambda;
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = Arc::new(lambda::start(FUNCTION, Needs { key: true, urls: true }).await);
    lambda::serve(FUNCTION, move |input, clock| {
        let parts = Arc::clone(&parts);
        async move {
            let answer = tick(&parts.store, &parts.cloud, &parts.launch_settings(), &input, clock).await;
            answer.map(|a| serde_json::to_value(a).unwrap_or_default())
        }
    })
    .await;
}
