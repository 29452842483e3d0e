//! DescribeInstances: pages, ids, filters, and what it hides.

use super::*;

async fn tagged(bench: &Bench, key: &str, value: &str) -> String {
    let kind = ("TagSpecification.1.ResourceType", "instance");
    let reply =
        bench.run(&[kind, ("TagSpecification.1.Tag.1.Key", key), ("TagSpecification.1.Tag.1.Value", value)]).await;
    reply.ok().one("instanceId")
}

async fn filtered(bench: &Bench, filters: &[(&str, &[&str])]) -> Vec<String> {
    let mut params: Vec<(String, String)> = Vec::new();
    for (n, (name, values)) in filters.iter().enumerate() {
        params.push((format!("Filter.{}.Name", n + 1), (*name).to_owned()));
        for (m, value) in values.iter().enumerate() {
            params.push((format!("Filter.{}.Value.{}", n + 1, m + 1), (*value).to_owned()));
        }
    }
    let params: Vec<(&str, &str)> = params.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    bench.describe(&params).await.ok().ids()
}

#[tokio::test]
async fn pages_show_every_instance_once_and_reservations_together() {
    let bench = Bench::new(Ec2Settings::default()).await;
    for _ in 0..2 {
        bench.run(&[("MinCount", "8"), ("MaxCount", "8")]).await.ok();
    }
    let all: Vec<String> = bench.ec2.instances().into_iter().map(|i| i.instance_id).collect();
    let mut seen = Vec::new();
    let mut token = String::new();
    let mut pages = Vec::new();
    loop {
        let mut params = vec![("MaxResults", "6")];
        if !token.is_empty() {
            params.push(("NextToken", &token));
        }
        let page = bench.describe(&params).await.ok();
        pages.push((page.ids().len(), page.all("reservationId").len()));
        seen.extend(page.ids());
        match page.all("nextToken").pop() {
            Some(next) => token = next,
            None => break,
        }
    }
    assert_eq!(seen, all);
    assert_eq!(pages, [(6, 1), (6, 2), (4, 1)]);
}

#[tokio::test]
async fn a_last_page_that_is_full_has_no_token_and_the_default_size_is_a_setting() {
    let bench = Bench::new(Ec2Settings { page_size: 3, ..Ec2Settings::default() }).await;
    bench.run(&[("MinCount", "6"), ("MaxCount", "6")]).await.ok();
    let first = bench.describe(&[]).await.ok();
    assert_eq!(first.ids().len(), 3);
    let second = bench.describe(&[("NextToken", &first.one("nextToken"))]).await.ok();
    assert_eq!((second.ids().len(), second.all("nextToken").len()), (3, 0));
    let by_id: Vec<(String, String)> = bench
        .ec2
        .instances()
        .iter()
        .enumerate()
        .map(|(n, i)| (format!("InstanceId.{n}"), i.instance_id.clone()))
        .collect();
    let by_id: Vec<(&str, &str)> = by_id.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(bench.describe(&by_id).await.ok().ids().len(), 6, "a list by id has no pages");
}

#[tokio::test]
async fn a_page_token_belongs_to_its_query_and_expires() {
    let bench = Bench::new(Ec2Settings { page_size: 5, ..Ec2Settings::default() }).await;
    bench.run(&[("MinCount", "9"), ("MaxCount", "9")]).await.ok();
    let token = bench.describe(&[]).await.ok().one("nextToken");
    for garbage in ["x", "!", "MS4yLjM", &token[1..]] {
        bench.describe(&[("NextToken", garbage)]).await.is_refused(400, "InvalidPaginationToken");
    }
    let other = [("NextToken", token.as_str()), ("Filter.1.Name", "tag:x"), ("Filter.1.Value.1", "y")];
    bench.describe(&other).await.is_refused(400, "InvalidPaginationToken");
    bench.wait(3_600_000);
    bench.describe(&[("NextToken", &token)]).await.ok();
    bench.wait(1);
    bench.describe(&[("NextToken", &token)]).await.is_refused(400, "InvalidPaginationToken");
}

#[tokio::test]
async fn page_sizes_are_between_5_and_1000_and_not_for_ids() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[]).await;
    for size in ["4", "1001", "0", "-1", "many"] {
        bench.describe(&[("MaxResults", size)]).await.is_refused(400, "InvalidParameterValue");
    }
    for size in ["5", "1000"] {
        bench.describe(&[("MaxResults", size)]).await.ok();
    }
    let both = bench.describe(&[("MaxResults", "5"), ("InstanceId.1", &id)]).await;
    both.is_refused(400, "InvalidParameterCombination");
}

#[tokio::test]
async fn ids_must_be_well_formed_and_known() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[]).await;
    assert_eq!(
        bench.describe(&[("InstanceId.1", &id), ("InstanceId.2", &id)]).await.ok().ids(),
        std::slice::from_ref(&id)
    );
    let unknown = "i-00000000000000000";
    let reply = bench.describe(&[("InstanceId.1", &id), ("InstanceId.2", unknown)]).await;
    reply.is_refused(400, "InvalidInstanceID.NotFound");
    assert_eq!(reply.one("Message"), format!("The instance ID '{unknown}' does not exist"));
    let two = bench.describe(&[("InstanceId.1", unknown), ("InstanceId.2", "i-12345678")]).await;
    assert_eq!(two.one("Message"), format!("The instance IDs '{unknown}, i-12345678' do not exist"));
    for malformed in ["", "i-", "i-123", "x-12345678", "i-1234567g", "i-000000000000000000", "<&>\u{1}"] {
        bench.describe(&[("InstanceId.1", malformed)]).await.is_refused(400, "InvalidInstanceID.Malformed");
    }
}

#[tokio::test]
async fn filters_are_joined_by_and_their_values_by_or() {
    let bench = Bench::new(two_zones()).await;
    let red = tagged(&bench, "colour", "red").await;
    let green = tagged(&bench, "colour", "green").await;
    let other = tagged(&bench, "shape", "red").await;
    let is = async |filters: &[(&str, &[&str])], wanted: &[&String]| {
        assert_eq!(filtered(&bench, filters).await.iter().collect::<Vec<_>>(), wanted, "{filters:?}");
    };
    is(&[("tag:colour", &["red"])], &[&red]).await;
    is(&[("tag:colour", &["red", "green"])], &[&red, &green]).await;
    is(&[("tag:colour", &["Red", "re"])], &[]).await;
    is(&[("tag:colour", &["re*", "x*"])], &[&red]).await;
    is(&[("tag:shape", &["red"])], &[&other]).await;
    is(&[("tag:colour", &["red"]), ("tag:shape", &["red"])], &[]).await;
    let both = [("InstanceId.1", red.as_str()), ("Filter.1.Name", "tag:colour"), ("Filter.1.Value.1", "green")];
    assert!(bench.describe(&both).await.ok().ids().is_empty());
}

#[tokio::test]
async fn invalid_filters_are_refused() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let unknown = bench.describe(&[("Filter.1.Name", "colour"), ("Filter.1.Value.1", "red")]).await;
    unknown.is_refused(400, "InvalidParameterValue");
    let wild = bench.describe(&[("Filter.1.Name", "tag:colour"), ("Filter.1.Value.1", "r*d")]).await;
    wild.is_refused(400, "InvalidParameterValue");
    bench.describe(&[("Filter.1.Name", "tag:colour")]).await.is_refused(400, "InvalidParameterValue");
    bench.describe(&[("Filter.1.Value.1", "red")]).await.is_refused(400, "MissingParameter");
    let mut many: Vec<(String, String)> = (1..=201).map(|n| (format!("Filter.1.Value.{n}"), n.to_string())).collect();
    many.push(("Filter.1.Name".into(), "tag:n".into()));
    let many: Vec<(&str, &str)> = many.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    bench.describe(&many).await.is_refused(400, "FilterLimitExceeded");
}

#[tokio::test]
async fn a_new_instance_is_unknown_at_first() {
    let bench = Bench::new(Ec2Settings { list_lag_ms: 5_000, ..Ec2Settings::default() }).await;
    let id = bench.run(&[]).await.ok().one("instanceId");
    bench.wait(4_999);
    assert_eq!(bench.state(&id).await, None);
    bench.describe(&[("InstanceId.1", &id)]).await.is_refused(400, "InvalidInstanceID.NotFound");
    let terminate = bench.call("TerminateInstances", &[("InstanceId.1", &id)]).await;
    terminate.is_refused(400, "InvalidInstanceID.NotFound");
    bench.wait(1);
    assert_eq!(bench.state(&id).await.as_deref(), Some("running"));
    bench.describe(&[("InstanceId.1", &id)]).await.ok();
}

#[tokio::test]
async fn lists_hide_instances_on_demand() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[]).await;
    let forget = |by_id, until| Forget { instance_id: id.clone(), until, by_id };
    let until = Some(Time::from_ms(bench.now() + 1_000));
    bench.ec2.set_faults(Faults { forget: vec![forget(false, until)], ..Faults::default() });
    assert_eq!(bench.state(&id).await, None);
    bench.describe(&[("InstanceId.1", &id)]).await.ok();
    bench.wait(1_000);
    assert!(bench.state(&id).await.is_some());
    bench.ec2.set_faults(Faults { forget: vec![forget(true, None)], ..Faults::default() });
    assert_eq!(bench.state(&id).await, None);
    bench.describe(&[("InstanceId.1", &id)]).await.is_refused(400, "InvalidInstanceID.NotFound");
    let everything = Forget { instance_id: "*".into(), until: None, by_id: false };
    bench.ec2.set_faults(Faults { forget: vec![everything], ..Faults::default() });
    assert!(bench.describe(&[]).await.ok().ids().is_empty());
}
