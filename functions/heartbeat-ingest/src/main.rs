//! heartbeat-ingest as a Lambda function: reads the environment and the clock, then answers.

use heartbeat_ingest::{FUNCTION, Ingest};
use runtime::env::Needs;
use runtime::lambda::{self, Reply};
use std::convert::Infallible;
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { nodes: true, urls: false }).await;
    let cluster = parts.env.cluster.clone();
    let ingest = Ingest::new(parts.store.clone(), parts.env.credentials.clone(), cluster.clone());
    let ingest = Arc::new(ingest.with_grant_url(parts.env.grant_url.clone()));
    lambda::serve(FUNCTION, cluster, move |event, clock| {
        let ingest = Arc::clone(&ingest);
        async move { Ok::<_, Infallible>(Reply::Http(ingest.handle(&event, clock.now()).await)) }
    })
    .await;
}
