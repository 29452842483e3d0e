//! sweep-dispatch as a Lambda function: reads the environment and the clock, then runs or answers.

use runtime::env::Needs;
use runtime::lambda;
use std::sync::Arc;
use sweep_dispatch::{FUNCTION, Sweep};

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { nodes: true, urls: false }).await;
    let cluster = parts.env.cluster.clone();
    let sweep = Arc::new(Sweep::new(parts.store.clone(), parts.env.credentials.clone(), cluster.clone()));
    lambda::serve(FUNCTION, cluster, move |event, clock| {
        let sweep = Arc::clone(&sweep);
        async move { sweep.handle(event, clock).await }
    })
    .await;
}
