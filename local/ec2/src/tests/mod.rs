//! The stand-in over real sockets, with a clock that only the tests move.

mod broken;
mod fleet;
mod fleet_rules;
mod launch;
mod life;
mod limits;
mod lists;
mod offers;
mod reservations;

use std::sync::atomic::{AtomicI64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::wire::Params;
use crate::*;
use model::{Span, Time};
use std::sync::{Arc, Mutex};

/// A served stand-in, its clock, and the hook calls that its machines got.
struct Bench {
    ec2: Arc<Ec2Region>,
    clock: Arc<AtomicI64>,
    machines: Arc<Recorder>,
    address: String,
}

/// Machines that record their hook calls.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<String>>,
    started: Mutex<Vec<MachineStart>>,
    console: Mutex<Option<String>>,
}

impl Machines for Recorder {
    fn start(&self, machine: MachineStart) {
        self.calls.lock().unwrap().push(format!("start {}", machine.instance_id));
        self.started.lock().unwrap().push(machine);
    }
    fn stop(&self, instance_id: &str) {
        self.calls.lock().unwrap().push(format!("stop {instance_id}"));
    }
    fn warn(&self, instance_id: &str, at: Time) {
        self.calls.lock().unwrap().push(format!("warn {instance_id} {}", at.as_ms()));
    }
    fn console(&self, _instance_id: &str) -> Option<String> {
        self.console.lock().unwrap().clone()
    }
}

/// One answer.
#[derive(Clone, Debug)]
struct Reply {
    status: u16,
    body: String,
}

impl Reply {
    /// The texts of all elements with this name, in order.
    fn all(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        self.body
            .split(&open)
            .skip(1)
            .map(|rest| quick_xml::escape::unescape(rest.split(&close).next().unwrap()).unwrap().into_owned())
            .collect()
    }

    fn one(&self, name: &str) -> String {
        let all = self.all(name);
        assert_eq!(all.len(), 1, "expected one <{name}> in {self:?}");
        all[0].clone()
    }

    fn ids(&self) -> Vec<String> {
        self.all("instanceId")
    }

    /// Status and code of an error answer, which must have EC2's form.
    fn refused(&self) -> (u16, String) {
        assert!(self.body.contains("<Response><Errors><Error><Code>"), "not an error answer: {self:?}");
        assert!(self.body.contains("<RequestID>"), "no request id: {self:?}");
        (self.status, self.one("Code"))
    }

    #[track_caller]
    fn is_refused(&self, status: u16, code: &str) {
        assert_eq!(self.refused(), (status, code.to_owned()), "{self:?}");
    }

    #[track_caller]
    fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{self:?}");
        self
    }
}

impl Bench {
    async fn new(settings: Ec2Settings) -> Self {
        let clock = Arc::new(AtomicI64::new(1_000_000_000_000));
        let read = Arc::clone(&clock);
        let machines = Arc::new(Recorder::default());
        let now = Arc::new(move || Time::from_ms(read.load(Ordering::SeqCst)));
        let ec2 = Ec2Region::new(settings, now, machines.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = ec2.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { ec2, clock, machines, address }
    }

    fn now(&self) -> i64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// Moves the clock. The stand-in notices at the next call.
    fn wait(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    fn hook_calls(&self) -> Vec<String> {
        self.machines.calls.lock().unwrap().clone()
    }

    /// One HTTP exchange; an error if the connection ended before the answer did.
    async fn exchange(&self, head: &str, body: &[u8]) -> Result<Reply, String> {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let head =
            format!("{head} HTTP/1.1\r\nhost: ec2\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may answer, and close, before it has read everything.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let Some((head, body)) = answer.split_once("\r\n\r\n") else { return Err(answer) };
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length != Some(&body.len().to_string()) {
            return Err(answer);
        }
        if body.starts_with("<?xml") {
            well_formed(body);
        }
        Ok(Reply { status, body: body.to_owned() })
    }

    async fn raw(&self, body: &[u8]) -> Reply {
        self.exchange("POST /", body).await.unwrap()
    }

    async fn call(&self, action: &str, params: &[(&str, &str)]) -> Reply {
        self.raw(form(action, params).as_bytes()).await
    }

    /// RunInstances for one instance, with these parameters added.
    async fn run(&self, params: &[(&str, &str)]) -> Reply {
        let mut all = vec![("MinCount", "1"), ("MaxCount", "1")];
        all.retain(|(name, _)| !params.iter().any(|(given, _)| given == name));
        all.extend_from_slice(params);
        self.call("RunInstances", &all).await
    }

    /// One running instance.
    async fn running(&self, params: &[(&str, &str)]) -> String {
        let id = self.run(params).await.ok().one("instanceId");
        self.wait(self.ec2.settings.pending_ms);
        self.ec2.advance();
        id
    }

    async fn describe(&self, params: &[(&str, &str)]) -> Reply {
        self.call("DescribeInstances", params).await
    }

    /// The state that lists show for an instance, if they show it.
    async fn state(&self, id: &str) -> Option<String> {
        let reply = self.describe(&[]).await.ok();
        let place = reply.ids().iter().position(|shown| shown == id)?;
        reply.all("name").get(place).cloned()
    }
}

fn form(action: &str, params: &[(&str, &str)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("Action", action).append_pair("Version", "2016-11-15");
    form.extend_pairs(params).finish()
}

fn well_formed(xml: &str) {
    let mut reader = quick_xml::Reader::from_str(xml);
    while reader.read_event().unwrap_or_else(|e| panic!("{e} in {xml}")) != quick_xml::events::Event::Eof {}
}

/// Two zones, the first with two subnets.
fn two_zones() -> Ec2Settings {
    let subnet = |id: &str, zone: &str| Ec2Subnet { subnet_id: id.into(), zone: zone.into(), addresses: None };
    Ec2Settings {
        subnets: vec![subnet("subnet-a", "z1"), subnet("subnet-b", "z1"), subnet("subnet-c", "z2")],
        ..Ec2Settings::default()
    }
}
