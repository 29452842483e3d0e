//! An AWS account that checks permissions: roles with the policies of the template, and a door that every call passes.
//!
//! Guarantees: a call that its role does not allow is refused as AWS refuses it, and the door notes every call.
//! MiniStack itself checks the calls of DynamoDB, S3 and Secrets Manager, signatures included: each item of a
//! transaction, each table of a batch, each index. Moto is EC2, and the door checks EC2's calls: it knows which
//! permissions each call needs (from AWS's "Service Authorization Reference"), and MiniStack's evaluator decides.
//! Does not: check the signatures of EC2's calls; know resource policies, or what Lambda itself does with a role.
//!
//! Why moto does not check permissions here (5.2.5, `moto/iam/access_control.py`): for these services it compares the
//! resource of a statement with `*`, so it refuses whatever names a resource. It ignores conditions. For a transaction it
//! asks for `dynamodb:TransactWriteItems`, which is no permission in AWS.

pub mod recorded;

use crate::second_opinions::{Emulator, python_tool, root};
use crate::world::s3_client;
use aws_sdk_dynamodb::config::Credentials;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use model::ClusterName;
use model::stored::{STREAMS_HEADER, THEN_HEADER};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

pub const ACCOUNT: &str = "123456789012";
pub const REGION: &str = "eu-west-1";
/// The name that `infra/check.py` gives the cluster. Each test has an account of its own.
pub const CLUSTER: &str = "demo";

/// A call that passed the door, in the words of `infra/calls.json`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub role: String,
    pub what: String,
    pub refused: bool,
}

/// The program `tests/account.py`: it makes roles, and decides on permissions.
struct Helper {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    fn start(ministack: &str, moto: &str, cluster: &ClusterName) -> (Self, Value) {
        let mut process = Command::new(python_tool("python"))
            .arg(root().join("tests/account.py"))
            .args([ministack, moto, cluster.as_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut helper = Self { process, input, output: BufReader::new(output) };
        let stack = helper.read();
        (helper, stack)
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).expect("tests/account.py failed: its error is above")
    }

    fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.input, "{question}").unwrap();
        self.read()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Clone)]
struct Role {
    name: String,
    documents: Vec<Value>,
}

struct Inside {
    ministack: Emulator,
    moto: Emulator,
    helper: Mutex<Helper>,
    stack: Value,
    /// The roles by access key.
    roles: Mutex<BTreeMap<String, Role>>,
    calls: Mutex<Vec<Call>>,
    cluster: ClusterName,
    http: reqwest::Client,
}

pub struct Account {
    pub url: String,
    inside: Arc<Inside>,
    /// The policy documents of the template, by logical id.
    policies: BTreeMap<String, Vec<Value>>,
    /// The credentials of each role that exists, by its name.
    made: Mutex<BTreeMap<String, Credentials>>,
}

/// The policy documents of the roles and managed policies of `infra/template.yaml` for this account.
fn policies(stack: &Value) -> BTreeMap<String, Vec<Value>> {
    static PRINTED: OnceLock<String> = OnceLock::new();
    let mut text = PRINTED
        .get_or_init(|| {
            let check = root().join("infra/check.py");
            let printed = Command::new(python_tool("python"))
                .arg(check)
                .args(["--print-policies", "OutputS3=demo-logs/nodes"])
                .output()
                .unwrap();
            assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
            String::from_utf8(printed.stdout).unwrap()
        })
        .clone();
    // AWS chooses the name of the template. check.py prints another one.
    let template = format!("launch-template/{}", stack["template"].as_str().unwrap());
    let name = "launch-template/NodeTemplate";
    assert!(text.contains(name), "{name} is in no policy");
    text = text.replace(name, &template);
    serde_json::from_str(&text).unwrap()
}

impl Account {
    pub async fn new(cluster: &ClusterName) -> Self {
        let (ministack, moto) = (Emulator::ministack_with_permissions(), Emulator::moto());
        let (helper, stack) = Helper::start(&ministack.url, &moto.url, cluster);
        let policies = policies(&stack);
        let inside = Arc::new(Inside {
            ministack,
            moto,
            helper: Mutex::new(helper),
            stack,
            roles: Mutex::default(),
            calls: Mutex::default(),
            cluster: cluster.clone(),
            http: reqwest::Client::new(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        // A part of an upload has 8 MiB.
        let any_size = axum::extract::DefaultBodyLimit::disable();
        let router = axum::Router::new().fallback(door).layer(any_size).with_state(Arc::clone(&inside));
        let router = recorded::recorded(router);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inside, policies, made: Mutex::default() }
    }

    /// An id that the stack made: `template`, `secret`, `subnet`, …
    pub fn made(&self, what: &str) -> &str {
        self.inside.stack[what].as_str().unwrap()
    }

    /// The credentials of the account itself, which may do everything.
    pub fn owner() -> Credentials {
        Credentials::new(ACCOUNT, "test", None, None, "tests")
    }

    /// Credentials with exactly what a role or a managed policy of the template allows.
    pub fn role(&self, logical_id: &str) -> Credentials {
        self.make_role(logical_id, self.policies(logical_id))
    }

    /// As [`Account::role`], without one action of one statement. The name of that role says so.
    pub fn role_without(&self, logical_id: &str, sid: &str, action: &str) -> (String, Credentials) {
        let mut documents = self.policies(logical_id);
        let mut taken = 0;
        for statement in documents.iter_mut().flat_map(|d| d["Statement"].as_array_mut().unwrap()) {
            if statement["Sid"] == sid {
                let actions = match statement["Action"].take() {
                    Value::Array(actions) => actions,
                    one => vec![one],
                };
                let kept: Vec<Value> = actions.iter().filter(|a| *a != action).cloned().collect();
                taken += actions.len() - kept.len();
                // A statement needs an action. Nobody here uses this one.
                statement["Action"] = if kept.is_empty() { json!("sts:TagSession") } else { json!(kept) };
            }
        }
        assert_eq!(taken, 1, "{logical_id} has no statement {sid} with {action}");
        let name = format!("{logical_id}-{sid}-{}", action.replace(':', "-"));
        let credentials = self.make_role(&name, documents);
        (name, credentials)
    }

    fn policies(&self, logical_id: &str) -> Vec<Value> {
        let found = self.policies.get(logical_id);
        found.unwrap_or_else(|| panic!("the template has no {logical_id}: {:?}", self.policies.keys())).clone()
    }

    fn make_role(&self, name: &str, documents: Vec<Value>) -> Credentials {
        let mut all = self.made.lock().unwrap();
        if let Some(known) = all.get(name) {
            return known.clone();
        }
        let made = self.inside.helper.lock().unwrap().ask(&json!({"role": name, "documents": documents}));
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        let role = Role { name: name.to_owned(), documents };
        self.inside.roles.lock().unwrap().insert(text("AccessKeyId"), role);
        let session = Some(text("SessionToken"));
        let credentials = Credentials::new(text("AccessKeyId"), text("SecretAccessKey"), session, None, "tests");
        all.insert(name.to_owned(), credentials.clone());
        credentials
    }

    pub fn dynamo_client(&self, credentials: &Credentials) -> aws_sdk_dynamodb::Client {
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(aws_sdk_dynamodb::config::Region::new(REGION))
            .credentials_provider(credentials.clone())
            .endpoint_url(&self.url)
            .build();
        aws_sdk_dynamodb::Client::from_conf(config)
    }

    pub fn dynamo(&self, credentials: &Credentials) -> store::Dynamo {
        store::Dynamo::new(self.dynamo_client(credentials), self.inside.cluster.clone())
    }

    pub fn ec2(&self, credentials: &Credentials) -> aws_sdk_ec2::Client {
        let config = aws_sdk_ec2::Config::builder()
            .behavior_version(aws_sdk_ec2::config::BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(aws_sdk_ec2::config::Region::new(REGION))
            .credentials_provider(credentials.clone())
            .endpoint_url(&self.url)
            .build();
        aws_sdk_ec2::Client::from_conf(config)
    }

    pub fn s3(&self, credentials: &Credentials) -> s3::S3 {
        s3_client(&self.url, REGION, credentials.clone())
    }

    /// The calls that were refused since the last time.
    pub fn refused(&self) -> BTreeSet<(String, String)> {
        let mut calls = self.inside.calls.lock().unwrap();
        let refused = calls.iter().filter(|c| c.refused).map(|c| (c.role.clone(), c.what.clone())).collect();
        calls.retain(|c| !c.refused);
        refused
    }

    /// Every kind of call that this role made and that was not refused.
    pub fn calls_of(&self, role: &str) -> BTreeSet<String> {
        let calls = self.inside.calls.lock().unwrap();
        calls.iter().filter(|c| c.role == role && !c.refused).map(|c| c.what.clone()).collect()
    }
}

/// One permission that a call needs: the action, the resource, and the values of condition keys.
type Check = (String, String, Value);

struct Form(Vec<(String, String)>);

impl Form {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The values of a list: `InstanceId.1`, `InstanceId.2`, …
    fn list(&self, name: &str) -> Vec<&str> {
        let numbered =
            |n: &str| n.strip_prefix(name).and_then(|r| r.strip_prefix('.')).is_some_and(|r| r.parse::<u32>().is_ok());
        self.0.iter().filter(|(n, _)| n == name || numbered(n)).map(|(_, v)| v.as_str()).collect()
    }

    /// The tags that the call puts on the instance.
    fn tags(&self) -> BTreeMap<String, String> {
        assert_eq!(self.get("TagSpecification.1.ResourceType"), Some("instance"));
        assert_eq!(self.get("TagSpecification.2.ResourceType"), None);
        let part = |n: usize, part: &str| self.get(&format!("TagSpecification.1.Tag.{n}.{part}")).map(str::to_owned);
        (1..).map_while(|n| Some((part(n, "Key")?, part(n, "Value")?))).collect()
    }
}

impl Form {
    /// The calls of RunInstances that a fleet stands for, one for each way. EC2 makes them with the caller's
    /// permissions.
    fn launches_of_fleet(&self) -> Vec<Self> {
        let config = "LaunchTemplateConfigs.1";
        let way = |n: usize| {
            let of = |name: &str| self.get(&format!("{config}.Overrides.{n}.{name}"));
            let mut pairs = vec![("InstanceType".to_owned(), of("InstanceType")?.to_owned())];
            pairs.extend(of("SubnetId").map(|id| ("SubnetId".to_owned(), id.to_owned())));
            for name in ["LaunchTemplateId", "LaunchTemplateName"] {
                let given = self.get(&format!("{config}.LaunchTemplateSpecification.{name}"));
                pairs.extend(given.map(|value| (format!("LaunchTemplate.{name}"), value.to_owned())));
            }
            if self.get("TargetCapacitySpecification.DefaultTargetCapacityType") == Some("spot") {
                pairs.push(("InstanceMarketOptions.MarketType".to_owned(), "spot".to_owned()));
            }
            pairs.extend(self.0.iter().filter(|(name, _)| name.starts_with("TagSpecification.")).cloned());
            Some(Self(pairs))
        };
        (1..).map_while(way).collect()
    }
}

fn resource(kind: &str, id: &str) -> String {
    // An image may belong to any account, so its ARN names none.
    let account = if kind == "image" { "" } else { ACCOUNT };
    format!("arn:aws:ec2:{REGION}:{account}:{kind}/{id}")
}

impl Inside {
    fn owners_ec2(&self) -> aws_sdk_ec2::Client {
        let config = aws_sdk_ec2::Config::builder()
            .behavior_version(aws_sdk_ec2::config::BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(aws_sdk_ec2::config::Region::new(REGION))
            .credentials_provider(Account::owner())
            .endpoint_url(&self.moto.url)
            .build();
        aws_sdk_ec2::Client::from_conf(config)
    }

    /// The permissions that a call of EC2 needs, by AWS's "Service Authorization Reference" (Actions, resources, and
    /// condition keys for Amazon EC2).
    async fn checks(&self, form: &Form) -> Vec<Check> {
        let action = form.get("Action").unwrap();
        let name = format!("ec2:{action}");
        match action {
            // A call that lists has no resource.
            "DescribeInstances"
            | "DescribeInstanceTypes"
            | "DescribeInstanceTypeOfferings"
            | "DescribeSpotPriceHistory"
            | "DescribeSubnets"
            | "DescribeCapacityReservations" => vec![(name, "*".into(), json!({}))],
            "TerminateInstances" | "GetConsoleOutput" => {
                let mut checks = Vec::new();
                for id in form.list("InstanceId") {
                    checks.push((name.clone(), resource("instance", id), self.tags_of(id).await));
                }
                checks
            }
            "CreateTags" => {
                let tagged = form.list("ResourceId").into_iter();
                tagged.map(|id| (name.clone(), resource("instance", id), json!({}))).collect()
            }
            "RunInstances" => self.launch_checks(form).await,
            "CreateFleet" => {
                let mut checks = vec![(name.clone(), resource("fleet", "*"), json!({}))];
                for launch in form.launches_of_fleet() {
                    checks.extend(launch.get("SubnetId").map(|id| (name.clone(), resource("subnet", id), json!({}))));
                    checks.extend(self.launch_checks(&launch).await);
                }
                checks
            }
            other => panic!("{other} is new: say here what it asks for"),
        }
    }

    async fn tags_of(&self, instance_id: &str) -> Value {
        let found = self.owners_ec2().describe_instances().instance_ids(instance_id).send().await;
        let found = found.ok().and_then(|f| f.reservations().first()?.instances().first().cloned());
        let tags = found.iter().flat_map(|i| i.tags());
        tags.map(|t| (format!("aws:ResourceTag/{}", t.key().unwrap()), json!(t.value().unwrap()))).collect()
    }

    /// RunInstances needs permissions for every resource that it uses or makes, for the tags, and for passing the role.
    async fn launch_checks(&self, form: &Form) -> Vec<Check> {
        let templates = self.owners_ec2().describe_launch_templates();
        let templates =
            match (form.get("LaunchTemplate.LaunchTemplateId"), form.get("LaunchTemplate.LaunchTemplateName")) {
                (Some(id), _) => templates.launch_template_ids(id),
                (None, Some(name)) => templates.launch_template_names(name),
                (None, None) => templates.launch_template_ids("none"),
            };
        let template =
            templates.send().await.ok().and_then(|t| t.launch_templates().first()?.launch_template_id.clone());
        let of_stack = template.as_deref() == self.stack["template"].as_str();
        let mut common = json!({"ec2:InstanceType": form.get("InstanceType")});
        if let Some(id) = &template {
            common["ec2:LaunchTemplate"] = json!(resource("launch-template", id));
        }
        let keys = |in_template: bool| {
            let mut keys = common.clone();
            keys["ec2:IsLaunchTemplateResource"] = json!(in_template.to_string());
            keys
        };
        let run = |kind: &str, id: &str, in_template: bool| {
            ("ec2:RunInstances".to_owned(), resource(kind, id), keys(in_template))
        };
        let mut checks = vec![run("network-interface", "*", of_stack), run("volume", "*", of_stack)];
        checks.extend(template.iter().map(|id| run("launch-template", id, false)));
        checks.extend(form.get("SubnetId").map(|id| run("subnet", id, false)));
        checks.extend(form.get("KeyName").map(|id| run("key-pair", id, false)));
        let image = form.get("ImageId");
        checks.push(run(
            "image",
            image.or(self.stack["data"]["ImageId"].as_str()).unwrap(),
            of_stack && image.is_none(),
        ));
        let groups = form.list("SecurityGroupId");
        checks.extend(groups.iter().map(|id| run("security-group", id, false)));
        if groups.is_empty() {
            checks.push(run("security-group", self.stack["data"]["SecurityGroupIds"][0].as_str().unwrap(), of_stack));
        }
        if form.get("InstanceMarketOptions.MarketType") == Some("spot") {
            checks.push(run("spot-instances-request", "*", false));
        }
        let tags = form.tags();
        let mut tagged = keys(of_stack);
        tagged["aws:TagKeys"] = json!(tags.keys().collect::<Vec<_>>());
        for (key, value) in &tags {
            tagged[format!("aws:RequestTag/{key}")] = json!(value);
        }
        checks.push(("ec2:RunInstances".into(), resource("instance", "*"), tagged.clone()));
        tagged["ec2:CreateAction"] = json!("RunInstances");
        checks.push(("ec2:CreateTags".into(), resource("instance", "*"), tagged));
        // The image may be a public parameter. AWS names only `ssm:GetParameters`, but EC2 refused a fleet without `ssm:GetParameter`
        // (kent8192/reinhardt-web, issue 2027).
        for action in ["ssm:GetParameter", "ssm:GetParameters"] {
            let parameter = format!("arn:aws:ssm:{REGION}::parameter/aws/service/image");
            checks.push((action.into(), parameter, json!({})));
        }
        let passed = json!({"iam:PassedToService": "ec2.amazonaws.com"});
        checks.push(("iam:PassRole".into(), self.stack["node_role"].as_str().unwrap().into(), passed));
        checks
    }

    /// The first permission that the role lacks.
    fn decide(&self, role: &Role, checks: &[Check]) -> Option<String> {
        let answer = self.helper.lock().unwrap().ask(&json!({"documents": role.documents, "checks": checks}));
        answer.as_str().map(str::to_owned)
    }

    fn note(&self, role: &str, what: Vec<String>, refused: bool) {
        let call = |what| Call { role: role.to_owned(), what, refused };
        self.calls.lock().unwrap().extend(what.into_iter().map(call));
    }

    /// The call in the words of `infra/calls.json`: one for each item of a transaction.
    fn words(&self, target: &str, body: &Value) -> Vec<String> {
        let (_, action) = target.rsplit_once('.').unwrap();
        let table = |name: &str| name.strip_prefix(&format!("{}-", self.cluster)).unwrap_or(name).to_owned();
        let on = |action: &str, part: &Value| {
            format!("dynamodb:{action} {}", table(part["TableName"].as_str().unwrap_or("")))
        };
        let mut words = Vec::new();
        for (kind, part) in body["TransactItems"].as_array().into_iter().flatten().flat_map(|i| i.as_object().unwrap())
        {
            let item = if kind.ends_with("Check") { "ConditionCheckItem".to_owned() } else { format!("{kind}Item") };
            words.push(on(&item, part));
        }
        for batch in body["RequestItems"].as_object().into_iter().flat_map(|tables| tables.keys()) {
            words.push(format!("dynamodb:{action} {}", table(batch)));
        }
        if words.is_empty() {
            let index = body["IndexName"].as_str().map(|i| format!("/{i}")).unwrap_or_default();
            words.push(format!("{}{index}", on(action, body)));
        }
        words
    }

    async fn pass_on(
        &self,
        to: &str,
        method: Method,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> (StatusCode, Response) {
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        // The headers stay as they are, `Host` too, because they are signed.
        let sent = self.http.request(method, format!("{to}{path}")).headers(headers).body(body).send().await.unwrap();
        let status = sent.status();
        let mut response = Response::builder().status(status);
        for name in ["content-type", "content-length", THEN_HEADER, STREAMS_HEADER, "x-amzn-requestid", "x-amz-crc32"] {
            if let Some(value) = sent.headers().get(name) {
                response = response.header(name, value);
            }
        }
        (status, response.body(Body::from(sent.bytes().await.unwrap())).unwrap())
    }
}

/// The permission that a call of S3 needs, by AWS's "Service Authorization Reference".
fn s3_words(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" | "HEAD" => "s3:GetObject",
        "PUT" => "s3:PutObject",
        other => panic!("{other} is new: say here what it asks for"),
    }
}

async fn door(
    State(inside): State<Arc<Inside>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let signed = headers["authorization"].to_str().unwrap();
    let key = signed.split_once("Credential=").unwrap().1.split('/').next().unwrap();
    let role = inside.roles.lock().unwrap().get(key).cloned();
    let name = role.as_ref().map_or("owner", |r| r.name.as_str()).to_owned();
    if let Some(target) = headers.get("x-amz-target").and_then(|t| t.to_str().ok()) {
        let what = inside.words(target, &serde_json::from_slice(&body).unwrap());
        let (status, response) = inside.pass_on(&inside.ministack.url, method, &uri, headers.clone(), body).await;
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let refused = !status.is_success() && String::from_utf8_lossy(&bytes).contains("AccessDenied");
        inside.note(&name, what, refused);
        return Response::from_parts(parts, Body::from(bytes));
    }
    if signed.contains("/s3/aws4_request") {
        // MiniStack checks these calls itself too.
        let what = s3_words(&method);
        let (status, response) = inside.pass_on(&inside.ministack.url, method, &uri, headers, body).await;
        inside.note(&name, vec![what.to_owned()], status == StatusCode::FORBIDDEN);
        return response;
    }
    let form = Form(
        reqwest::Url::parse(&format!("http://form/?{}", String::from_utf8_lossy(&body)))
            .unwrap()
            .query_pairs()
            .into_owned()
            .collect(),
    );
    let Some(role) = role else {
        assert_eq!(key, ACCOUNT, "nobody has this access key");
        return inside.pass_on(&inside.moto.url, method, &uri, headers, body).await.1;
    };
    let checks = inside.checks(&form).await;
    let refusal = inside.decide(&role, &checks);
    let asked = checks.iter().map(|(action, ..)| action.clone()).collect::<BTreeSet<_>>().into_iter().collect();
    let first = refusal.as_ref().map(|r| vec![r.split(' ').next().unwrap().to_owned()]);
    inside.note(&name, first.unwrap_or(asked), refusal.is_some());
    match refusal {
        Some(what) => Response::builder()
            .status(StatusCode::FORBIDDEN)
            .header("content-type", "text/xml")
            .body(Body::from(format!(
                "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>You are not authorized: {what}\
                 </Message></Error></Errors><RequestID>r</RequestID></Response>"
            )))
            .unwrap(),
        None => inside.pass_on(&inside.moto.url, method, &uri, headers, body).await.1,
    }
}
