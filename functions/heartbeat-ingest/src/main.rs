//! heartbeat-ingest as a Lambda function: reads the environment and the clock, then answers.

use heartbeat_ingest::{FUNCTION, Ingest};
use shared::env::Needs;
use shared::lambda;
use std::convert::Infallible;
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { key: true, urls: false }).await;
    let ingest = Arc::new(Ingest::new(parts.store.clone(), parts.credentials(), parts.env.cluster.clone()));
    lambda::serve(FUNCTION, move |event, clock| {
        let ingest = Arc::clone(&ingest);
        async move { Ok::<_, Infallible>(ingest.handle(&event, clock.now()).await) }
    })
    .await;
}
