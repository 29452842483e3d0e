//! Attacks on the cluster by a rogue node, a stranger, a submitter, and a reader.
//!
//! Each attack is a request that its owner may make. After the attacks, each owner makes this request, and it succeeds.
//! So a test notices an attack that fails for another reason. Attacks of a rogue job on its node are in
//! `agent/tests/isolation.rs`.

use super::permitted::{Fleet, offering};
use crate::account::{Account, CLUSTER};
use crate::world::all_rows::AllRows;
use crate::world::node::{answer, http};
use crate::world::{World, job};
use aws_sdk_dynamodb::config::Credentials as Keys;
use aws_sdk_dynamodb::types::AttributeValue;
use model::ids::Ulid;
use model::{AllocId, ClientStatus, Cloud, Instance, JobId, NodeId, NodeKey, NodeRecord};
use runtime::http::NodeCredentials;
use runtime::lambda::Reply;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use store::Table;

/// A secret in the environment of the victim's job.
const SECRET: &str = "s3cret-of-the-victim";
const NODE_ROLE: &str = "arn:aws:iam::123456789012:role/node";

#[derive(Clone, Copy, Debug)]
enum Door {
    Ingest,
    Sweep,
    /// `heartbeat-ingest` as in AWS. The function URL has already checked the signature of the caller.
    SignedIngest,
}

use Door::{Ingest, SignedIngest, Sweep};

/// A request, and where it arrives.
type Sent = (Door, Value);

/// An attack: who tries what, the expected answer, and the owner's request, which succeeds.
struct Attack {
    who: &'static str,
    tries: &'static str,
    sent: Sent,
    /// The status, and the error code or the reason why an update was refused.
    answer: (u64, String),
    owners: Sent,
}

impl Attack {
    fn by(who: &'static str, tries: &'static str, sent: Sent, (status, outcome): (u64, &str), owners: Sent) -> Self {
        Self { who, tries, sent, answer: (status, outcome.to_owned()), owners }
    }
}

/// A node with its credential, and the values that its reports must have.
struct Party {
    node: NodeId,
    instance: String,
    token: String,
    incarnation: String,
    as_of: u64,
    alloc: AllocId,
}

impl Party {
    fn path(&self, what: &str) -> String {
        format!("/v1/nodes/{}/{what}", self.node)
    }

    fn heartbeat(&self) -> Value {
        json!({"instance_id": self.instance, "boot_id": "boot-1", "incarnation": self.incarnation, "as_of": self.as_of})
    }

    fn report(&self, report_no: u64, alloc: AllocId, client: &str) -> Value {
        let allocs = json!([{"alloc_id": alloc, "client": client, "cause": {"kind": "exited", "code": 0}}]);
        json!({"incarnation": self.incarnation, "report_no": report_no, "as_of": self.as_of, "complete": false,
            "allocs": allocs})
    }

    /// A complete report of no handles. It says that every handle of the node is gone.
    fn no_handles(&self, report_no: u64) -> Value {
        json!({"incarnation": self.incarnation, "report_no": report_no, "as_of": self.as_of, "complete": true,
            "digest": "d", "handles": []})
    }

    /// A heartbeat whose signature AWS has checked: this caller made it.
    fn signed_by(&self, arn: &str) -> Value {
        let mut event = http(&self.path("heartbeat"), None, &self.heartbeat());
        event["requestContext"]["authorizer"] = json!({"iam": {"userArn": arn}});
        event
    }

    /// The session of the nodes' role that EC2 gives this node's instance.
    fn session(&self) -> String {
        format!("arn:aws:sts::123456789012:assumed-role/node/{}", self.instance)
    }
}

/// Two nodes with a job each. The first is the victim.
struct Scene {
    world: World,
    signed: heartbeat_ingest::Ingest,
    victim: Party,
    rogue: Party,
}

impl Scene {
    async fn new() -> Self {
        let mut world = World::new().await;
        for secret in [SECRET, "other"] {
            let mut spec = job(&["forever"]);
            spec.needs.exclusive = true;
            spec.env.insert("SECRET".into(), secret.into());
            world.submit(spec).await;
        }
        let running = |a: &model::AllocSummary| a.client == ClientStatus::Running;
        for _ in 0..60 {
            world.step().await;
            if world.look.live_allocs().await.unwrap().iter().filter(|a| running(a)).count() == 2 {
                break;
            }
        }
        let mut parties = Vec::new();
        for alloc in world.look.live_allocs().await.unwrap() {
            parties.push((Self::party(&world, alloc.alloc_id, alloc.node_id).await, alloc.alloc_id));
        }
        parties.sort_by_key(|(_, alloc)| alloc.job_id);
        let mut parties = parties.into_iter().map(|(party, _)| party);
        let (victim, rogue) = (parties.next().unwrap(), parties.next().unwrap());
        let role = NodeCredentials::Iam(NODE_ROLE.parse().unwrap());
        let signed = heartbeat_ingest::Ingest::new(world.store.clone(), role, world.cluster.clone());
        world.make_row(victim.alloc).await;
        Self { world, signed, victim, rogue }
    }

    async fn party(world: &World, alloc: AllocId, node: NodeId) -> Party {
        let agent = world.nodes.values().find(|n| n.file.node_id == node).unwrap();
        let record = world.record(node).await;
        Party {
            node,
            instance: record.life().unwrap().instance_id.clone().unwrap(),
            token: agent.file.token.clone().unwrap(),
            incarnation: record.contact().unwrap().incarnation.clone(),
            as_of: agent.protocol.durable.as_of,
            alloc,
        }
    }

    async fn send(&self, (door, event): &Sent) -> (u64, Value) {
        let world = &self.world;
        match door {
            Ingest => answer(&world.ingest.handle(event, world.now()).await),
            SignedIngest => answer(&self.signed.handle(event, world.now()).await),
            Sweep => match world.sweep.handle(event.clone(), world.clock()).await.unwrap() {
                Reply::Http(response) => answer(&response),
                Reply::Run(_) => (0, json!({"error": "", "message": "it was taken for the schedule"})),
            },
        }
    }

    async fn victims(&self) -> Value {
        let look = &self.world.look;
        let record: Option<NodeRecord> = look.node(self.victim.node.slot()).await.unwrap();
        let (jobs, alloc) = (look.jobs().await.unwrap(), look.alloc(self.victim.alloc).await.unwrap());
        let handles = look.handles_of(self.victim.node).await.unwrap().rows;
        assert!(!handles.is_empty(), "the victim's container");
        let machines: Vec<_> = self.world.ec2.instances().into_iter().map(|i| (i.instance_id, i.state)).collect();
        json!([record, jobs, alloc, handles, format!("{machines:?}")])
    }

    /// The attacks of a node with a valid credential on another node.
    fn of_a_node(&self) -> Vec<Attack> {
        let (victim, rogue) = (&self.victim, &self.rogue);
        let by = |token: &str, path: String, body: Value| http(&path, Some(token), &body);
        let attack = |tries, sent, answer, owners| Attack::by("node", tries, sent, answer, owners);
        let not_its = format!("{} is not on node {}", victim.alloc, rogue.node);
        let refused = (401, "unauthorized");
        let beat = |token: &str| (Ingest, by(token, victim.path("heartbeat"), victim.heartbeat()));
        let ends =
            |token: &str| (Ingest, by(token, victim.path("allocs"), victim.report(1000, victim.alloc, "running")));
        let empties = |token: &str| (Sweep, by(token, victim.path("handles"), victim.no_handles(1000)));
        let other_instance = json!({"instance_id": victim.instance, "boot_id": "boot-1", "as_of": 0});
        // The rogue reports the same handle names as the victim.
        let handles = json!([{"handle": victim.alloc, "kind": "container", "label": rogue.node}]);
        let mut same_names = rogue.no_handles(1000);
        same_names["handles"] = handles;
        // An earlier life of the victim's slot, whose token somebody kept.
        let before = NodeId::new(victim.node.slot(), Ulid::from_parts(1, 1));
        let key = self.world.settings.key.as_ref().unwrap();
        let kept = key.token(&self.world.cluster, before);
        let earlier = by(&kept, format!("/v1/nodes/{before}/heartbeat"), victim.heartbeat());
        let own = (Ingest, by(&rogue.token, rogue.path("heartbeat"), rogue.heartbeat()));
        let path_in_path = format!("/v1/nodes/{}/../{}/heartbeat", rogue.node, victim.node);
        vec![
            attack("heartbeats for another node", beat(&rogue.token), refused, beat(&victim.token)),
            attack("reports for another node", ends(&rogue.token), refused, ends(&victim.token)),
            attack(
                "ends another node's alloc in a report of its own",
                (Ingest, by(&rogue.token, rogue.path("allocs"), rogue.report(1000, victim.alloc, "complete"))),
                (200, not_its.as_str()),
                (Ingest, by(&rogue.token, rogue.path("allocs"), rogue.report(1001, rogue.alloc, "running"))),
            ),
            attack("says that another node's handles are gone", empties(&rogue.token), refused, empties(&victim.token)),
            attack(
                "says that another node's handles are its own",
                (Sweep, by(&rogue.token, rogue.path("handles"), same_names.clone())),
                (200, ""),
                (Sweep, by(&rogue.token, rogue.path("handles"), same_names)),
            ),
            attack(
                "claims another node's instance",
                (Ingest, by(&rogue.token, rogue.path("heartbeat"), other_instance)),
                (409, "foreign_instance"),
                own.clone(),
            ),
            attack("uses the token of an earlier life", (Ingest, earlier), (410, "gone"), beat(&victim.token)),
            attack(
                "walks to another node by its path",
                (Ingest, by(&rogue.token, path_in_path, victim.heartbeat())),
                (404, "not_found"),
                own,
            ),
        ]
    }

    /// The attacks of somebody without a credential of this cluster.
    fn of_a_stranger(&self) -> Vec<Attack> {
        let victim = &self.victim;
        let attack = |tries, sent, answer, owners| Attack::by("stranger", tries, sent, answer, owners);
        let refused = (401, "unauthorized");
        let beat = |token: Option<&str>| (Ingest, http(&victim.path("heartbeat"), token, &victim.heartbeat()));
        let owners = || beat(Some(&victim.token));
        let made_up = "a5".repeat(32).parse::<NodeKey>().unwrap().token(&self.world.cluster, victim.node);
        let key = self.world.settings.key.as_ref().unwrap();
        let elsewhere = key.token(&"another".parse().unwrap(), victim.node);
        // The input of the schedule, with the fields that a function URL adds to every request.
        let mut scheduled = http("/", None, &json!({}));
        scheduled["source"] = json!("aws.events");
        let mut claims = http(&victim.path("heartbeat"), None, &victim.heartbeat());
        claims["headers"]["x-amzn-iam-user-arn"] = json!(victim.session());
        claims["authorizer"] = json!({"iam": {"userArn": victim.session()}});
        let signed = |arn: &str| (SignedIngest, victim.signed_by(arn));
        let session =
            |account: &str, role: &str, name: &str| format!("arn:aws:sts::{account}:assumed-role/{role}/{name}");
        let own = || signed(&victim.session());
        vec![
            attack("says nothing of who it is", beat(None), refused, owners()),
            attack("makes a token with a key of its own", beat(Some(&made_up)), refused, owners()),
            attack("uses a token of another cluster", beat(Some(&elsewhere)), refused, owners()),
            attack("says that it is the schedule", (Sweep, scheduled), (404, "not_found"), (Sweep, json!({}))),
            attack("writes who it is into the request", (SignedIngest, claims), refused, own()),
            attack(
                "signs in another account",
                signed(&session("210987654321", "node", &victim.instance)),
                refused,
                own(),
            ),
            attack(
                "signs with another role",
                signed(&session("123456789012", "admin", &victim.instance)),
                refused,
                own(),
            ),
            attack("signs as a user", signed("arn:aws:iam::123456789012:user/node"), refused, own()),
            attack(
                "signs with the nodes' role, but in a session that a person made",
                signed(&session("123456789012", "node", "i-am-a-person")),
                refused,
                own(),
            ),
            attack(
                "signs as another instance of the fleet",
                signed(&self.rogue.session()),
                (409, "foreign_instance"),
                own(),
            ),
        ]
    }
}

/// The outcome of a request: an error code, or the reason why an update was refused.
fn outcome(body: &Value) -> String {
    let refused = body.pointer("/refused/0/reason");
    body.get("error").or(refused).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn no_attack_of_a_node_or_a_stranger_succeeds() {
    let scene = Scene::new().await;
    let attacks: Vec<Attack> = scene.of_a_node().into_iter().chain(scene.of_a_stranger()).collect();
    let before = scene.victims().await;
    for Attack { who, tries, sent, answer, .. } in &attacks {
        let (status, body) = scene.send(sent).await;
        assert_eq!((status, outcome(&body)), *answer, "a {who} {tries}: {body}");
        assert!(!body.to_string().contains(SECRET), "a {who} {tries}, and learns a secret: {body}");
        assert_eq!(scene.victims().await, before, "a {who} {tries}");
    }
    for Attack { who, tries, owners, .. } in &attacks {
        let (status, body) = scene.send(owners).await;
        let is_schedule = owners.1 == json!({});
        let expected = if is_schedule { 0 } else { 200 };
        assert_eq!(status, expected, "the owner cannot do what a {who} tries ({tries}): {body}");
    }
}

/// The attempts of a person with the credentials that a policy gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Try {
    /// Runs a command. SLOT and JOB stand for the slot and the job of the account.
    Run(&'static [&'static str]),
    /// Changes a row of this table.
    Change(Table),
    /// Deletes a row of this table.
    Delete(Table),
    /// Reads all rows of this table. The rows contain the environments of jobs.
    Scan(Table),
    /// Reads one row of this table. The row contains the environment of a job.
    Get(Table),
    /// Reads all rows of this table by a PartiQL statement.
    Select(Table),
    Terminate,
    Launch,
}

use Table::{Allocs, Control, Handles, Jobs, Nodes};
use Try::{Change, Delete, Get, Launch, Run, Scan, Select, Terminate};

/// What readers may do: they see the environments of jobs. (What nobody may see belongs in a secret, and the row then has its
/// place only.)
const OF_READERS: [Try; 4] = [Scan(Jobs), Scan(Allocs), Get(Jobs), Get(Allocs)];

const OF_PEOPLE: [(&str, Try); 25] = [
    ("ReaderPolicy", Select(Jobs)),
    ("ReaderPolicy", Change(Nodes)),
    ("ReaderPolicy", Change(Jobs)),
    ("ReaderPolicy", Change(Allocs)),
    ("ReaderPolicy", Change(Control)),
    ("ReaderPolicy", Delete(Nodes)),
    ("ReaderPolicy", Terminate),
    ("ReaderPolicy", Launch),
    ("ReaderPolicy", Run(&["submit", "--", "true"])),
    ("ReaderPolicy", Run(&["cancel", "JOB"])),
    ("ReaderPolicy", Run(&["drain", "SLOT"])),
    ("SubmitterPolicy", Change(Nodes)),
    ("SubmitterPolicy", Change(Allocs)),
    ("SubmitterPolicy", Change(Control)),
    ("SubmitterPolicy", Delete(Nodes)),
    ("SubmitterPolicy", Delete(Jobs)),
    ("SubmitterPolicy", Delete(Handles)),
    ("SubmitterPolicy", Terminate),
    ("SubmitterPolicy", Launch),
    ("SubmitterPolicy", Run(&["drain", "SLOT"])),
    ("SubmitterPolicy", Run(&["release", "missing"])),
    ("OperatorPolicy", Change(Allocs)),
    ("OperatorPolicy", Delete(Nodes)),
    ("OperatorPolicy", Delete(Jobs)),
    ("OperatorPolicy", Launch),
];

/// An account with a running job.
struct Stage {
    fleet: Fleet,
    job: JobId,
    node: NodeId,
}

impl Stage {
    async fn new() -> Self {
        let mut fleet = Fleet::new().await;
        let functions = fleet.functions();
        let line = ["submit", "--env", &format!("SECRET={SECRET}"), "--", "forever"];
        let job = fleet.operate(&Account::owner(), &line).await.unwrap().trim().parse().unwrap();
        for _ in 0..100 {
            fleet.step(&functions).await;
            let allocs = fleet.store(&Account::owner()).live_allocs().await.unwrap();
            if let Some(alloc) = allocs.iter().find(|a| a.client == ClientStatus::Running) {
                let node = alloc.node_id;
                fleet.hold_back().await;
                return Self { fleet, job, node };
            }
        }
        panic!("the job does not run");
    }

    /// The name of a table, and the key of an existing row in it.
    fn row(&self, table: Table) -> (String, HashMap<String, AttributeValue>) {
        let text = |name: &str, value: String| (name.to_owned(), AttributeValue::S(value));
        let alloc = AllocId { job_id: self.job, member: 0, copy: 0 };
        let key = match table {
            Jobs => vec![text("job_id", self.job.to_string())],
            Allocs => vec![text("alloc_id", alloc.to_string())],
            Nodes => vec![("slot".to_owned(), AttributeValue::N(self.node.slot().to_string()))],
            Handles => vec![text("node_id", self.node.to_string()), text("handle", alloc.to_string())],
            _ => vec![text("key", "policy".to_owned())],
        };
        (format!("{CLUSTER}-{}", table.suffix()), key.into_iter().collect())
    }

    /// Makes the attempt with these credentials. Returns what was read, or why it failed.
    async fn attempt(&self, what: Try, keys: &Keys) -> Result<String, String> {
        let (fleet, dynamo) = (&self.fleet, self.fleet.account.dynamo_client(keys));
        match what {
            Run(line) => {
                let word = |word: &&str| match *word {
                    "SLOT" => self.node.slot().to_string(),
                    "JOB" => self.job.to_string(),
                    other => other.to_owned(),
                };
                let words: Vec<String> = line.iter().map(word).collect();
                fleet.operate(keys, &words.iter().map(String::as_str).collect::<Vec<_>>()).await
            }
            Change(table) => {
                let (table, key) = self.row(table);
                let change = dynamo.update_item().table_name(table).set_key(Some(key));
                let change = change.update_expression("SET forged = :x");
                told(change.expression_attribute_values(":x", AttributeValue::S("x".into())).send().await)
            }
            Delete(table) => {
                let (table, key) = self.row(table);
                told(dynamo.delete_item().table_name(table).set_key(Some(key)).send().await)
            }
            Scan(table) => told(dynamo.scan().table_name(self.row(table).0).send().await),
            Get(table) => {
                let (table, key) = self.row(table);
                told(dynamo.get_item().table_name(table).set_key(Some(key)).send().await)
            }
            Select(table) => {
                let text = format!("SELECT * FROM \"{}\"", self.row(table).0);
                told(dynamo.execute_statement().statement(text).send().await)
            }
            Terminate => {
                let instances = fleet.cloud(&Account::owner()).instances().await.map_err(|e| e.to_string())?;
                let ids: Vec<String> = instances.into_iter().map(|i| i.instance_id).collect();
                told(fleet.cloud(keys).terminate(&ids).await)
            }
            Launch => told(fleet.cloud(keys).launch(&fleet.request(offering(fleet)), &format!("{keys:?}")).await),
        }
    }
}

fn told<T: Debug, E: Debug>(result: Result<T, E>) -> Result<String, String> {
    result.map(|read| format!("{read:?}")).map_err(|e| format!("{e:?}"))
}

/// All rows of this account's tables, with every attribute, and its machines.
async fn everything(fleet: &Fleet) -> (BTreeMap<String, Vec<HashMap<String, AttributeValue>>>, Vec<Instance>) {
    let owner = fleet.account.dynamo_client(&Account::owner());
    let mut all = BTreeMap::new();
    for table in [Jobs, Allocs, Nodes, Handles, Control] {
        let name = format!("{CLUSTER}-{}", table.suffix());
        let rows = owner.scan().table_name(&name).send().await.unwrap().items.unwrap();
        all.insert(name, rows);
    }
    (all, fleet.cloud(&Account::owner()).instances().await.unwrap())
}

#[tokio::test]
async fn nightly_no_attack_of_a_person_succeeds_and_without_the_policies_all_do() {
    let stage = Stage::new().await;
    let account = &stage.fleet.account;
    let before = everything(&stage.fleet).await;
    for what in OF_READERS {
        let read = stage.attempt(what, &account.role("ReaderPolicy")).await.unwrap();
        assert!(read.contains(SECRET), "{what:?}: {read}");
        assert_eq!((account.refused(), everything(&stage.fleet).await), (BTreeSet::new(), before.clone()), "{what:?}");
    }
    for (policy, what) in OF_PEOPLE {
        let result = stage.attempt(what, &account.role(policy)).await;
        assert_ne!(account.refused(), BTreeSet::new(), "{policy}: {what:?}: nothing was refused: {result:?}");
        assert_eq!(everything(&stage.fleet).await, before, "{policy}: {what:?}");
    }
    // The owner may do everything, like everybody with credentials if there were no policies for people.
    let owner = Account::owner();
    let last = |what: &Try| matches!(what, Delete(_) | Terminate);
    let (destroy, rest): (Vec<Try>, Vec<Try>) = OF_PEOPLE.into_iter().map(|(_, what)| what).partition(last);
    for what in rest.into_iter().chain(destroy) {
        let read = stage.attempt(what, &owner).await.unwrap_or_else(|e| panic!("{what:?}: {e}"));
        assert_eq!(account.refused(), BTreeSet::new(), "{what:?}");
        assert_eq!(read.contains(SECRET), matches!(what, Select(_)), "{what:?}: {read}");
    }
}
