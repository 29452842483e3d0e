//! poll-and-scale as a Lambda function: reads the environment and the clock, then runs.

use cloud::Ec2;
use poll_and_scale::{FUNCTION, tick};
use runtime::env::Needs;
use runtime::lambda::{self, Reply};
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { key: true, callers: false, urls: true }).await;
    let (cluster, ec2) = (parts.env.cluster.clone(), Ec2::connect(&parts.aws, parts.env.cluster.clone()));
    let parts = Arc::new((parts, ec2));
    lambda::serve(FUNCTION, cluster, move |input, clock| {
        let parts = Arc::clone(&parts);
        async move {
            let (parts, ec2) = &*parts;
            let settings = parts.launch_settings(clock.now()).await;
            tick(&parts.store, ec2, &settings, &input, clock).await.map(Reply::run)
        }
    })
    .await;
}
