//! clean-stale-records as a Lambda function: reads the environment and the clock, then runs.

use clean_stale_records::{FUNCTION, tick};
use cloud::Ec2;
use runtime::env::Needs;
use runtime::lambda::{self, Reply};
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { nodes: false, urls: false }).await;
    let (cluster, ec2) = (parts.env.cluster.clone(), Ec2::connect(&parts.aws, parts.env.cluster.clone()));
    let parts = Arc::new((parts, ec2));
    lambda::serve(FUNCTION, cluster, move |input, clock| {
        let parts = Arc::clone(&parts);
        async move { tick(&parts.0.store, &parts.1, &input, clock).await.map(Reply::run) }
    })
    .await;
}
