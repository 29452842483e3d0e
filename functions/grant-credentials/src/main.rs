//! grant-credentials as a Lambda function: reads the environment and the clock, then answers.

use grant_credentials::{FUNCTION, Grants};
use runtime::env::Needs;
use runtime::lambda::{self, Reply};
use std::convert::Infallible;
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { nodes: true, urls: false }).await;
    let cluster = parts.env.cluster.clone();
    let sts = Arc::new(aws_sdk_sts::Client::new(&parts.aws));
    let grants = Arc::new(Grants::new(parts.store.clone(), sts, parts.env.credentials.clone(), cluster.clone()));
    lambda::serve(FUNCTION, cluster, move |event, clock| {
        let grants = Arc::clone(&grants);
        async move { Ok::<_, Infallible>(Reply::Http(grants.handle(&event, clock.now()).await)) }
    })
    .await;
}
