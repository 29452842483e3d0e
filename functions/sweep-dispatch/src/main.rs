//! sweep-dispatch as a Lambda function: reads the environment and the clock, then runs.

use shared::env::Needs;
use shared::lambda;
use std::sync::Arc;
use sweep_dispatch::{FUNCTION, Sweep};

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { key: true, urls: false }).await;
    let sweep = Arc::new(Sweep::new(parts.store.clone(), parts.credentials(), parts.env.cluster.clone()));
    lambda::serve(FUNCTION, move |event, clock| {
        let sweep = Arc::clone(&sweep);
        async move { sweep.handle(&event, clock).await }
    })
    .await;
}
