//! poll-and-scale as a Lambda function: reads the environment and the clock, then runs.

use cloud::Ec2;
use poll_and_scale::{FUNCTION, tick};
use runtime::env::Needs;
use runtime::lambda::{self, Reply};
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { nodes: true, urls: true }).await;
    let (cluster, ec2) = (parts.env.cluster.clone(), Ec2::connect(&parts.aws, parts.env.cluster.clone()));
    let settings = parts.launch_settings();
    let parts = Arc::new((parts.store, ec2, settings));
    lambda::serve(FUNCTION, cluster, move |input, clock| {
        let parts = Arc::clone(&parts);
        async move {
            let (store, ec2, settings) = &*parts;
            tick(store, ec2, settings, &input, clock).await.map(Reply::run)
        }
    })
    .await;
}
