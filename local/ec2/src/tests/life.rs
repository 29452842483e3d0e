//! States over time, hook calls, and how instances end.

use super::*;

#[tokio::test]
async fn states_change_on_time() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.run(&[]).await.ok().one("instanceId");
    let is = |state: Option<&'static str>| {
        let (bench, id) = (&bench, &id);
        async move { assert_eq!(bench.state(id).await.as_deref(), state) }
    };
    bench.wait(1_499);
    is(Some("pending")).await;
    bench.wait(1);
    is(Some("running")).await;
    let ended = bench.call("TerminateInstances", &[("InstanceId.1", &id)]).await.ok();
    assert_eq!(ended.all("name"), ["shutting-down", "running"], "the current state and the previous one");
    assert_eq!(ended.all("code"), ["32", "16"]);
    bench.wait(999);
    is(Some("shutting-down")).await;
    bench.wait(1);
    is(Some("terminated")).await;
    bench.wait(59_999);
    let late = bench.describe(&[("InstanceId.1", &id)]).await.ok();
    assert_eq!(late.all("code"), ["48", "Client.UserInitiatedShutdown"]);
    assert!(late.all("privateIpAddress").is_empty());
    bench.wait(1);
    is(None).await;
    bench.describe(&[("InstanceId.1", &id)]).await.is_refused(400, "InvalidInstanceID.NotFound");
    assert_eq!(bench.hook_calls(), [format!("start {id}"), format!("stop {id}")]);
}

#[tokio::test]
async fn changes_happen_at_their_due_time_even_if_the_clock_is_read_late() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[]).await;
    assert!(bench.ec2.interrupt(&id, Span::from_s(120)).is_some());
    bench.wait(120_000 + 1_000 + 60_000 - 1);
    assert_eq!(bench.state(&id).await.as_deref(), Some("terminated"));
    bench.wait(1);
    assert_eq!(bench.state(&id).await, None);
}

#[tokio::test]
async fn hooks_are_called_once_and_in_order() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let first = bench.run(&[]).await.ok().one("instanceId");
    bench.wait(500);
    let second = bench.run(&[]).await.ok().one("instanceId");
    let never = bench.run(&[]).await.ok().one("instanceId");
    bench.call("TerminateInstances", &[("InstanceId.1", &never)]).await.ok();
    bench.wait(10_000);
    bench.ec2.advance();
    bench.ec2.advance();
    assert_eq!(
        bench.hook_calls(),
        [format!("start {first}"), format!("start {second}")],
        "an instance that never ran has no machine"
    );
}

#[tokio::test]
async fn a_hook_may_use_the_stand_in() {
    struct PowersOff(Mutex<Option<Arc<Ec2Region>>>);
    impl Machines for PowersOff {
        fn start(&self, machine: MachineStart) {
            let ec2 = self.0.lock().unwrap().clone().unwrap();
            assert!(ec2.powered_off(&machine.instance_id));
        }
        fn stop(&self, _instance_id: &str) {}
    }
    let machines = Arc::new(PowersOff(Mutex::default()));
    let ec2 = Ec2Region::new(
        Ec2Settings { pending_ms: 0, ..Ec2Settings::default() },
        Arc::new(|| Time::from_ms(0)),
        machines.clone(),
    );
    *machines.0.lock().unwrap() = Some(Arc::clone(&ec2));
    let form = form("RunInstances", &[("MinCount", "1"), ("MaxCount", "1")]);
    assert!(ec2.answer(&Params::parse(form.as_bytes())).1.is_ok());
    ec2.advance();
    assert_eq!(ec2.instances()[0].state, InstanceState::Stopping);
}

#[tokio::test]
async fn one_unknown_id_fails_a_termination_for_all() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[]).await;
    let unknown = "i-0123456789abcdef0";
    let reply = bench.call("TerminateInstances", &[("InstanceId.1", &id), ("InstanceId.2", unknown)]).await;
    reply.is_refused(400, "InvalidInstanceID.NotFound");
    assert!(reply.one("Message").contains(unknown) && !reply.one("Message").contains(&id));
    assert_eq!(bench.state(&id).await.as_deref(), Some("running"));
    bench.call("TerminateInstances", &[]).await.is_refused(400, "InvalidParameterCombination");
    let malformed = bench.call("TerminateInstances", &[("InstanceId.1", "7")]).await;
    malformed.is_refused(400, "InvalidInstanceID.Malformed");
    assert_eq!(bench.state(&id).await.as_deref(), Some("running"));
}

#[tokio::test]
async fn one_call_terminates_a_thousand_and_may_be_repeated() {
    let bench = Bench::new(Ec2Settings::default()).await;
    bench.run(&[("MinCount", "1000"), ("MaxCount", "1000")]).await.ok();
    let ids: Vec<String> = bench.ec2.instances().into_iter().map(|i| i.instance_id).collect();
    let named: Vec<(String, &str)> =
        ids.iter().enumerate().map(|(n, id)| (format!("InstanceId.{}", n + 1), id.as_str())).collect();
    let mut params: Vec<(&str, &str)> = named.iter().map(|(name, id)| (name.as_str(), *id)).collect();
    let ended = bench.call("TerminateInstances", &params).await.ok();
    assert_eq!(ended.ids(), ids);
    bench.wait(1_000);
    let again = bench.call("TerminateInstances", &params).await.ok();
    assert!(again.all("name").iter().all(|state| state == "terminated"));
    params.push(("InstanceId.1001", "i-12345678"));
    bench.call("TerminateInstances", &params).await.is_refused(400, "InvalidParameterValue");
}

#[tokio::test]
async fn a_stuck_termination_continues_when_the_fault_is_lifted() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let (stuck, free) = (bench.running(&[]).await, bench.running(&[]).await);
    bench.ec2.set_faults(Faults { stuck: [stuck.clone()].into(), ..Faults::default() });
    bench.call("TerminateInstances", &[("InstanceId.1", &stuck), ("InstanceId.2", &free)]).await.ok();
    bench.wait(3_600_000);
    assert_eq!(bench.state(&stuck).await.as_deref(), Some("shutting-down"));
    assert_eq!(bench.state(&free).await, None);
    bench.ec2.set_faults(Faults::default());
    bench.wait(1_000);
    assert_eq!(bench.state(&stuck).await.as_deref(), Some("terminated"));
}

#[tokio::test]
async fn ec2_and_other_users_interrupt_stop_and_terminate() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let spot = bench.running(&[("InstanceMarketOptions.MarketType", "spot")]).await;
    let (broken, stopped) = (bench.running(&[]).await, bench.running(&[]).await);
    let at = bench.now() + 2_000;
    let event = |id: &str, event: &str| {
        let head = format!("POST /_stand-in/instances/{id}/{event}");
        let bench = &bench;
        async move { bench.exchange(&head, b"").await.unwrap().status }
    };
    assert_eq!(event(&spot, "interrupt?warning_ms=2000").await, 200);
    assert_eq!(event(&broken, "terminate").await, 200);
    assert_eq!(event(&stopped, "stop").await, 200);
    assert_eq!(event(&stopped, "stop").await, 409);
    assert_eq!(event("i-nobody", "terminate").await, 409);
    assert_eq!(event(&spot, "explode").await, 404);
    assert_eq!(event(&spot, "interrupt?warning_ms=soon").await, 400);
    assert_eq!(
        bench.hook_calls()[3..],
        [format!("warn {spot} {at}"), format!("stop {broken}"), format!("stop {stopped}")]
    );
    bench.wait(1_000);
    assert_eq!(bench.state(&broken).await.as_deref(), Some("terminated"));
    assert_eq!(bench.state(&stopped).await.as_deref(), Some("stopped"));
    assert_eq!(bench.state(&spot).await.as_deref(), Some("running"));
    bench.wait(1_000);
    let gone = bench.describe(&[("InstanceId.1", &spot)]).await.ok();
    assert_eq!(gone.all("code"), ["32", "Server.SpotInstanceTermination"]);
    assert_eq!(bench.hook_calls().last().unwrap(), &format!("stop {spot}"));
    bench.call("TerminateInstances", &[("InstanceId.1", &stopped)]).await.ok();
    assert_eq!(bench.state(&stopped).await.as_deref(), Some("shutting-down"));
    assert!(bench.ec2.interrupt(&broken, Span::ZERO).is_none());
}

#[tokio::test]
async fn a_power_off_stops_or_terminates_as_the_launch_asked() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let stops = bench.running(&[]).await;
    let ends = bench.running(&[("InstanceInitiatedShutdownBehavior", "terminate")]).await;
    assert!(bench.ec2.powered_off(&stops) && bench.ec2.powered_off(&ends));
    assert_eq!(bench.state(&stops).await.as_deref(), Some("stopping"));
    assert_eq!(bench.state(&ends).await.as_deref(), Some("shutting-down"));
}

#[tokio::test]
async fn a_termination_while_stopping_takes_its_full_time() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[]).await;
    assert!(bench.ec2.stop_by_cloud(&id));
    bench.wait(600);
    bench.call("TerminateInstances", &[("InstanceId.1", &id)]).await.ok();
    bench.wait(999);
    assert_eq!(bench.state(&id).await.as_deref(), Some("shutting-down"));
    bench.wait(1);
    assert_eq!(bench.state(&id).await.as_deref(), Some("terminated"));
}

#[tokio::test]
async fn the_console_shows_the_end_of_the_machines_output() {
    use base64::Engine;
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[]).await;
    let asked = [("InstanceId", id.as_str())];
    let console = || bench.call("GetConsoleOutput", &asked);
    assert!(console().await.ok().all("output").is_empty());
    *bench.machines.console.lock().unwrap() = Some(format!("{}end", "ü".repeat(65_536)));
    let shown = base64::engine::general_purpose::STANDARD.decode(console().await.ok().one("output")).unwrap();
    assert_eq!(shown.len(), 65_536);
    assert!(shown.ends_with(b"end"));
    let unknown = bench.call("GetConsoleOutput", &[("InstanceId", "i-12345678")]).await;
    unknown.is_refused(400, "InvalidInstanceID.NotFound");
}

#[tokio::test]
async fn a_served_stand_in_makes_due_changes_without_requests() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = tokio::spawn(serve(listener, Arc::clone(&bench.ec2)));
    let id = bench.run(&[]).await.ok().one("instanceId");
    bench.wait(1_500);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while bench.hook_calls().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "nothing happens without a request");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(bench.hook_calls(), [format!("start {id}")]);
    served.abort();
}
