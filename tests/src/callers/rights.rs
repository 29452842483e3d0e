//! The credentials of a job's role. Only the node that runs the job gets them, and only while the job is wanted there.
//!
//! The whole path, from the agent to a program in the job, is tested in `tests/rights.py`.

use crate::second_opinions::Emulator;
use crate::world::all_rows::AllRows;
use crate::world::node::{answer, http};
use crate::world::{World, credentials, job, quick_policy};
use grant_credentials::sts::{AssumeRole, Sts};
use model::functions::GRANT_CREDENTIALS;
use model::{AllocId, AllocSummary, ClientStatus, JobSpec, Span, Time};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ROLE: &str = "arn:aws:iam::123456789012:role/jobs/reader";

/// A node that runs jobs, with its token and incarnation.
struct Party {
    node: String,
    token: String,
    incarnation: String,
}

struct Scene {
    world: World,
    /// Two nodes, each with a job that has a role, and the allocs.
    parties: Vec<(Party, AllocId)>,
}

impl Scene {
    async fn new() -> Self {
        let mut policy = quick_policy();
        policy["jobs"] = json!({"roles": [ROLE]});
        let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
        let mut jobs = Vec::new();
        for role in [Some("reader"), Some("reader"), Some("unlisted"), None] {
            let mut spec: JobSpec = job(&["forever"]);
            spec.needs.exclusive = true;
            spec.work.role = role.map(str::to_owned);
            jobs.push(world.submit(spec).await.summary.job_id);
        }
        for _ in 0..40 {
            world.step().await;
        }
        let mut live: Vec<AllocSummary> = world.look.live_allocs().await.unwrap();
        assert!(live.iter().filter(|a| a.client == ClientStatus::Running).count() == 4, "{live:#?}");
        live.sort_by_key(|a| jobs.iter().position(|job| *job == a.alloc_id.job_id));
        let mut parties = Vec::new();
        for alloc in live {
            let record = world.record(alloc.node_id).await;
            let node = world.nodes.values().find(|n| n.file.node_id == alloc.node_id).unwrap();
            let (token, incarnation) =
                (node.file.token.clone().unwrap(), record.contact().unwrap().incarnation.clone());
            parties.push((Party { node: alloc.node_id.to_string(), token, incarnation }, alloc.alloc_id));
        }
        Self { world, parties }
    }

    async fn ask(&self, by: &Party, incarnation: &str, alloc: &str) -> (u64, Value) {
        let path = format!("/v1/nodes/{}/credentials", by.node);
        let event = http(&path, Some(&by.token), &json!({"incarnation": incarnation, "alloc_id": alloc}));
        answer(&self.world.grants.handle(&event, self.world.now()).await)
    }
}

#[tokio::test]
async fn credentials_go_to_the_node_that_runs_the_job_and_to_nobody_else() {
    let mut scene = Scene::new().await;
    let Scene { parties, .. } = &scene;
    let [(own, first), (other, second), (third, unlisted), (fourth, without)] = parties.as_slice() else { panic!() };
    let (status, given) = scene.ask(own, &own.incarnation, &first.to_string()).await;
    assert_eq!((status, &given["role_arn"], &given["access_key_id"]), (200, &json!(ROLE), &json!(first.to_string())));
    let absent = AllocId { copy: 99, ..*first }.to_string();
    let forged = Party { token: other.token.clone(), node: own.node.clone(), incarnation: own.incarnation.clone() };
    let mut tried = 0;
    for (who, incarnation, alloc, expected) in [
        // The alloc of another node, with each combination of what a node may know of the other.
        (other, &other.incarnation, first.to_string(), "denied"),
        (other, &own.incarnation, first.to_string(), "wrong_incarnation"),
        (own, &own.incarnation, second.to_string(), "denied"),
        (third, &third.incarnation, first.to_string(), "denied"),
        (fourth, &fourth.incarnation, first.to_string(), "denied"),
        (fourth, &fourth.incarnation, second.to_string(), "denied"),
        (&forged, &own.incarnation, first.to_string(), "unauthorized"),
        (&forged, &own.incarnation, second.to_string(), "unauthorized"),
        // A job without a role, or with a role that the policy does not list.
        (third, &third.incarnation, unlisted.to_string(), "denied"),
        (fourth, &fourth.incarnation, without.to_string(), "denied"),
        // An alloc that does not exist, or text that is no alloc id.
        (own, &own.incarnation, absent, "denied"),
        (own, &own.incarnation, String::new(), "bad_request"),
        (own, &own.incarnation, "../../nodes/0".to_owned(), "bad_request"),
        (own, &own.incarnation, first.job_id.to_string(), "bad_request"),
        // An agent that has not registered again.
        (own, &String::new(), first.to_string(), "wrong_incarnation"),
        (own, &"of another boot".to_owned(), first.to_string(), "wrong_incarnation"),
    ] {
        let (status, said) = scene.ask(who, incarnation, &alloc).await;
        assert!(status >= 400 && said["error"] == expected, "{} {alloc}: {status} {said}", who.node);
        scene.world.pass(1);
        tried += 1;
    }
    // After the order to stop and after the end, the node gets no credentials.
    let (job_id, node) = (first.job_id, own.node.clone());
    let stored = scene.world.look.job(job_id).await.unwrap().unwrap();
    let now = scene.world.now();
    let cancel = |job: &model::Job| job.cancel("ann", keep().finished, now);
    let event = (model::ActionName::Cancel, "test");
    store::transactions::change_jobs(&scene.world.look, &[stored], event, cancel, keep(), now).await.unwrap();
    for what in ["told to stop", "has ended"] {
        let (status, said) = scene.ask(&scene.parties[0].0, &scene.parties[0].0.incarnation, &first_of(&scene)).await;
        assert!(status == 403 && said["error"] == "denied", "{what} on {node}: {status} {said}");
        tried += 1;
        scene.world.nodes.values_mut().for_each(|node| {
            for id in node.protocol.unfinished().into_iter().filter(|id| id.job_id == job_id) {
                let order = node.protocol.durable.allocs[&id].order.clone();
                node.end(&order, 0);
            }
        });
        for _ in 0..3 {
            scene.world.step().await;
        }
    }
    assert_eq!(tried, 18);
}

fn first_of(scene: &Scene) -> String {
    scene.parties[0].1.to_string()
}

fn keep() -> store::Retention {
    store::Retention::of(&model::policy::Policy::from_json(&quick_policy()).unwrap())
}

/// calls.json also lists the calls to STS. They are tested below, with moto.
#[tokio::test]
async fn the_function_makes_the_calls_that_its_role_allows() {
    let scene = Scene::new().await;
    let (party, alloc) = &scene.parties[0];
    assert_eq!(scene.ask(party, &party.incarnation, &alloc.to_string()).await.0, 200);
    let made = scene.world.switch.made()[GRANT_CREDENTIALS.name].clone();
    let listed: Value = serde_json::from_str(include_str!("../../../infra/calls.json")).unwrap();
    let listed: BTreeSet<String> = serde_json::from_value(listed[GRANT_CREDENTIALS.name].clone()).unwrap();
    let of_tables: BTreeSet<String> = listed.into_iter().filter(|call| call.starts_with("dynamodb:")).collect();
    assert_eq!(made, of_tables);
}

/// moto's STS accepts the call as the SDK makes it.
#[tokio::test]
async fn a_role_is_assumed_as_sts_expects() {
    let moto = Emulator::moto();
    let config = aws_sdk_sts::Config::builder()
        .behavior_version(aws_sdk_sts::config::BehaviorVersion::latest())
        .http_client(store::http_client())
        .region(aws_sdk_sts::config::Region::new("us-east-1"))
        .credentials_provider(credentials())
        .endpoint_url(&moto.url)
        .build();
    let request = AssumeRole {
        role_arn: ROLE.into(),
        session: "01JD0000000000000000000001.0.0".into(),
        tags: vec![("nodekeeper:job".into(), "01JD0000000000000000000001".into())],
    };
    let given = aws_sdk_sts::Client::from_conf(config)
        .assume(&request, Span::from_s(900), model::fixtures::at(0))
        .await
        .unwrap();
    assert!(given.access_key_id.starts_with("ASIA") && given.role_arn == ROLE, "{given:?}");
    assert!(!format!("{given:?}").contains(&given.secret_access_key), "a secret is never printed");
    let left = given.expires_at.since(Time::now()).as_ms() / 1000;
    assert!((800..=900).contains(&left), "{left}");
}
