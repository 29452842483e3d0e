//! Programs that submit jobs with keys, by the real commands. They die, get no answer, and begin again.
//!
//! Guarantees: several of them give the same keys at the same time, each alone or in a file with others.
//! Does not: say what a key means (`check::jobs` does). Submit anything unless the fault `KeyGivenAgain` happens.

use super::World;
use crate::core::{Fault, START};
use clap::Parser;
use futures::future::{join_all, pending};
use model::{ClusterName, Time};
use nodekeeper_cli::command::{self, Command};
use nodekeeper_cli::console::{Cluster, ClusterAccess, Context, Exit, Screen};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use store::Dynamo;
use tokio::time::{sleep, timeout};

/// How often a program begins again.
const LIVES: u32 = 20;
/// The longest life of a program that is killed, in milliseconds.
const LIFE_MS: i64 = 600;

#[derive(Parser)]
struct Given {
    #[command(subcommand)]
    command: Command,
}

impl World {
    /// Never ends: the futures of commands stay on the thread of the world, so this is no task of its own.
    pub(super) async fn programs(&self) -> Infallible {
        let core = &self.core;
        if core.scenario.chance(Fault::KeyGivenAgain) > 0.0
            && let Ok(cluster) = self.cluster()
        {
            while !core.is_healed() {
                sleep(Duration::from_secs(60)).await;
                if core.happens(Fault::KeyGivenAgain) {
                    let programs = core.of(Fault::KeyGivenAgain, 1, 3);
                    join_all((0..programs).map(|_| self.program(&cluster))).await;
                }
            }
        }
        pending().await
    }

    /// A program with one to three keys of this quarter of an hour. Each key always has the same content.
    async fn program(&self, cluster: &Cluster) {
        let core = &self.core;
        let draw = |high| core.of(Fault::KeyGivenAgain, 0, high);
        let first = core.now().since(START).as_ms() / 900_000 * 4 + draw(2);
        let keys: Vec<String> = (first..=first + draw(2)).map(|n| format!("k{n}")).collect();
        for _ in 0..LIVES {
            let life = Duration::from_millis(draw(LIFE_MS).unsigned_abs());
            match timeout(life, self.submit_with(cluster, &keys)).await {
                Ok(Ok(Exit::Done)) => return core.count("a program has its jobs"),
                Ok(_) => core.count("a submission with keys had an error"),
                Err(_) => core.count("a program was killed while it submitted"),
            }
        }
    }

    async fn submit_with(&self, cluster: &Cluster, keys: &[String]) -> anyhow::Result<Exit> {
        let line = |key: &String| format!("{{\"key\": \"{key}\", \"command\": [\"work\", \"30\"]}}\n");
        let (line, input) = match keys {
            [key] => (vec!["submit", "--key", key, "--", "work", "30"], String::new()),
            _ => (vec!["submit", "--file", "-"], keys.iter().map(line).collect()),
        };
        let command = Given::try_parse_from(std::iter::once("nodekeeper").chain(line))?.command;
        let (cluster, now) = (cluster.clone(), self.core.now());
        let mut context = Context {
            connect: Box::new(move || {
                let cluster = cluster.clone();
                Box::pin(async { Ok(cluster) })
            }),
            clock: Arc::new(move || now),
            screen: Screen::Pipe,
            err_screen: Screen::Pipe,
            in_screen: Screen::Pipe,
            colours: false,
            input: &mut input.as_bytes(),
            out: &mut std::io::sink(),
            err: &mut std::io::sink(),
        };
        command::run(command, &mut context).await
    }

    /// The world as commands reach it. A submission without files uses the tables only.
    fn cluster(&self) -> anyhow::Result<Cluster> {
        let region = aws_config::Region::new("eu-west-1");
        let config = aws_config::SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(region)
            .build();
        let name: ClusterName = "simulated".parse()?;
        Ok(Cluster {
            store: self.store.clone(),
            dynamo: Dynamo::new(aws_sdk_dynamodb::Client::new(&config), name.clone()),
            cloud: Arc::new(cloud::Ec2::connect(&config, name)),
            outputs: nodekeeper_cli::aws::s3(&config, None, Arc::new(|| Time::from_ms(0)))?,
            reach: ClusterAccess::default(),
        })
    }
}
