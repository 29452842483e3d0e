//! Types, zones, spot prices, subnets, and the price list.

use super::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Two zones, and types that are unlike each other.
fn few_types() -> Ec2Settings {
    let kind = |name: &str| InstanceType {
        name: name.into(),
        vcpus: 2,
        memory_mib: 8192,
        on_demand: Some("0.1000000000".into()),
        ..InstanceType::default()
    };
    Ec2Settings {
        instance_types: vec![
            kind("a1.large"),
            InstanceType { zones: vec!["z2".into()], architectures: vec!["arm64".into()], ..kind("a1.xlarge") },
            InstanceType { on_demand: None, is_previous_generation: true, ..kind("b1.large") },
            InstanceType {
                spot: [("z1".into(), "0.01".into()), ("z2".into(), String::new())].into(),
                ..kind("b2.large")
            },
        ],
        ..two_zones()
    }
}

/// The answers of all pages.
async fn pages(bench: &Bench, action: &str, params: &[(&str, &str)]) -> Vec<Reply> {
    let (mut token, mut pages) = (String::new(), Vec::new());
    loop {
        let mut params = params.to_vec();
        if !token.is_empty() {
            params.push(("NextToken", &token));
        }
        let page = bench.call(action, &params).await.ok();
        let next = page.all("nextToken").pop();
        pages.push(page);
        match next {
            Some(next) => token = next,
            None => return pages,
        }
    }
}

#[tokio::test]
async fn the_built_in_types_are_listed_in_pages() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let by_size = |replies: Vec<Reply>| -> Vec<String> { replies.iter().flat_map(|r| r.all("instanceType")).collect() };
    let pages = pages(&bench, "DescribeInstanceTypes", &[("MaxResults", "5")]).await;
    assert!(pages.iter().rev().skip(1).all(|page| page.all("instanceType").len() == 5));
    let all = by_size(pages);
    let names: BTreeSet<&String> = all.iter().collect();
    assert_eq!((names.len(), all.len()), (53, 53), "each type once");
    for size in ["4", "101", "x"] {
        let reply = bench.call("DescribeInstanceTypes", &[("MaxResults", size)]).await;
        reply.is_refused(400, "InvalidParameterValue");
    }
    let g5 = [("Filter.1.Name", "instance-type"), ("Filter.1.Value.1", "g5.12*")];
    let g5 = bench.call("DescribeInstanceTypes", &g5).await.ok();
    let seen =
        ["currentGeneration", "defaultVCpus", "name", "manufacturer", "count", "totalSizeInGB"].map(|e| g5.one(e));
    assert_eq!(seen, ["true", "48", "A10G", "NVIDIA", "4", "3800"]);
    assert_eq!(g5.all("sizeInMiB"), ["196608", "24576"]);
    assert!(g5.body.contains("<supportedArchitectures><item>x86_64</item></supportedArchitectures>"));
}

#[tokio::test]
async fn filters_of_types_are_joined() {
    let bench = Bench::new(few_types()).await;
    let arch = "processor-info.supported-architecture";
    // The name of each filter with its values; then the types that are listed.
    type Case<'a> = (&'a [(&'a str, &'a [&'a str])], &'a [&'a str]);
    let cases: [Case<'_>; 5] = [
        (&[("instance-type", &["a1.*"])], &["a1.large", "a1.xlarge"]),
        (&[("instance-type", &["a1.large", "b2.*"])], &["a1.large", "b2.large"]),
        (&[("instance-type", &["*.large"]), ("current-generation", &["true"])], &["a1.large", "b2.large"]),
        (&[(arch, &["arm64"])], &["a1.xlarge"]),
        (&[(arch, &["x86_64"]), ("current-generation", &["false"])], &["b1.large"]),
    ];
    for (filters, expected) in cases {
        let mut params: Vec<(String, String)> = Vec::new();
        for (n, (name, values)) in filters.iter().enumerate() {
            params.push((format!("Filter.{n}.Name"), (*name).to_owned()));
            params.extend(values.iter().enumerate().map(|(m, v)| (format!("Filter.{n}.Value.{m}"), (*v).to_owned())));
        }
        let params: Vec<(&str, &str)> = params.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let reply = bench.call("DescribeInstanceTypes", &params).await.ok();
        assert_eq!(reply.all("instanceType"), expected, "{filters:?}");
    }
    let unknown = [("Filter.1.Name", "bare-metal"), ("Filter.1.Value.1", "true")];
    bench.call("DescribeInstanceTypes", &unknown).await.is_refused(400, "InvalidParameterValue");
    let named = bench.call("DescribeInstanceTypes", &[("InstanceType.1", "b2.large")]).await.ok();
    assert_eq!(named.all("instanceType"), ["b2.large"]);
    bench.call("DescribeInstanceTypes", &[("InstanceType.1", "c")]).await.is_refused(400, "InvalidInstanceType");
}

#[tokio::test]
async fn zones_and_spot_prices_are_those_of_each_type() {
    let bench = Bench::new(few_types()).await;
    let by_zone = ("LocationType", "availability-zone");
    let a1 = [by_zone, ("Filter.1.Name", "instance-type"), ("Filter.1.Value.1", "a1*")];
    let zones = bench.call("DescribeInstanceTypeOfferings", &a1).await.ok();
    let pairs: Vec<_> = zones.all("instanceType").into_iter().zip(zones.all("location")).collect();
    let expected = [("a1.large", "z1"), ("a1.large", "z2"), ("a1.xlarge", "z2")];
    assert_eq!(pairs, expected.map(|(name, zone)| (name.to_owned(), zone.to_owned())));
    bench.call("DescribeInstanceTypeOfferings", &[]).await.is_refused(400, "InvalidParameterValue");

    let asked = [
        ("ProductDescription.1", "Linux/UNIX"),
        ("InstanceType.1", "a1.large"),
        ("InstanceType.2", "b1.large"),
        ("InstanceType.3", "b2.large"),
    ];
    let prices = bench.call("DescribeSpotPriceHistory", &asked).await.ok();
    assert_eq!(prices.all("instanceType"), ["a1.large", "a1.large", "b2.large"], "b1.large has no price");
    assert_eq!(prices.all("availabilityZone"), ["z1", "z2", "z1"]);
    let prices = prices.all("spotPrice");
    let of_a1: Vec<f64> = prices[..2].iter().map(|price| price.parse().unwrap()).collect();
    assert!(of_a1.iter().all(|price| (0.028..0.04).contains(price)) && of_a1[0] != of_a1[1], "{of_a1:?}");
    assert_eq!(prices[2], "0.01");
    let windows = bench.call("DescribeSpotPriceHistory", &[("ProductDescription.1", "Windows")]).await.ok();
    assert_eq!(windows.all("instanceType"), Vec::<String>::new());
}

#[tokio::test]
async fn a_subnet_runs_out_of_addresses() {
    let mut settings = two_zones();
    settings.subnets[0].addresses = Some(3);
    let bench = Bench::new(settings).await;
    let in_a = ("SubnetId", "subnet-a");
    let free = || async {
        let reply = bench.call("DescribeSubnets", &[("SubnetId.1", "subnet-a")]).await.ok();
        assert_eq!((reply.one("subnetId"), reply.one("availabilityZone")), ("subnet-a".into(), "z1".into()));
        reply.one("availableIpAddressCount")
    };
    assert_eq!(free().await, "3");
    let first = bench.run(&[in_a, ("MaxCount", "2")]).await.ok().ids();
    assert_eq!(free().await, "1");
    let too_many = bench.run(&[in_a, ("MinCount", "2"), ("MaxCount", "2")]).await;
    too_many.is_refused(400, "InsufficientFreeAddressesInSubnet");
    assert_eq!(bench.run(&[in_a, ("MaxCount", "5")]).await.ok().ids().len(), 1, "what fits");
    bench.run(&[in_a]).await.is_refused(400, "InsufficientFreeAddressesInSubnet");
    bench.run(&[("SubnetId", "subnet-b")]).await.ok();
    bench.call("TerminateInstances", &[("InstanceId.1", &first[0])]).await.ok();
    assert_eq!(free().await, "0", "an instance that shuts down has its address still");
    bench.wait(1_000);
    assert_eq!(free().await, "1");
    bench.run(&[in_a]).await.ok();
}

#[tokio::test]
async fn one_unknown_subnet_fails_the_call() {
    let bench = Bench::new(two_zones()).await;
    let all = bench.call("DescribeSubnets", &[]).await.ok();
    assert_eq!(all.all("subnetId"), ["subnet-a", "subnet-b", "subnet-c"]);
    assert_eq!(all.all("availableIpAddressCount"), ["65531"; 3]);
    let some = [("SubnetId.1", "subnet-a"), ("SubnetId.2", "subnet-x")];
    let refused = bench.call("DescribeSubnets", &some).await;
    refused.is_refused(400, "InvalidSubnetID.NotFound");
    assert!(refused.body.contains("subnet-x"), "{refused:?}");
}

const GET_PRODUCTS: &str = "AWSPriceListService.GetProducts";

async fn json_call(bench: &Bench, target: &str, body: &str) -> (u16, Value) {
    let head = format!("POST / HTTP/1.1\r\nx-amz-target: {target}\r\nx-rest:");
    let reply = bench.exchange(&head, body.as_bytes()).await.unwrap();
    (reply.status, serde_json::from_str(&reply.body).unwrap())
}

#[tokio::test]
async fn the_price_list_has_prices_on_demand_in_pages() {
    let bench = Bench::new(few_types()).await;
    let filter = |field: &str, value: &str| json!({ "Type": "TERM_MATCH", "Field": field, "Value": value });
    let filters =
        json!([filter("regionCode", "eu-west-1"), filter("operatingSystem", "Linux"), filter("tenancy", "Shared")]);
    let mut asked = json!({ "ServiceCode": "AmazonEC2", "Filters": filters, "MaxResults": 2 });
    let (mut seen, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let (status, page) = json_call(&bench, GET_PRODUCTS, &asked.to_string()).await;
        assert_eq!(status, 200, "{page}");
        let products = page["PriceList"].as_array().unwrap();
        sizes.push(products.len());
        for text in products {
            let product: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
            let term = product["terms"]["OnDemand"].as_object().unwrap().values().next().unwrap();
            let dimension = term["priceDimensions"].as_object().unwrap().values().next().unwrap();
            let attributes = &product["product"]["attributes"];
            assert_eq!((&attributes["regionCode"], &dimension["unit"]), (&json!("eu-west-1"), &json!("Hrs")));
            seen.push((attributes["instanceType"].clone(), dimension["pricePerUnit"]["USD"].clone()));
        }
        match page.get("NextToken") {
            Some(token) => asked["NextToken"] = token.clone(),
            None => break,
        }
    }
    let names = ["a1.large", "a1.xlarge", "b2.large"];
    assert_eq!(seen, names.map(|name| (json!(name), json!("0.1000000000"))), "b1.large is not in the list");
    assert_eq!(sizes, [2, 1]);
    asked = json!({ "ServiceCode": "AmazonEC2", "MaxResults": 3 });
    let full = json_call(&bench, GET_PRODUCTS, &asked.to_string()).await.1;
    assert_eq!(
        (full["PriceList"].as_array().unwrap().len(), full.get("NextToken")),
        (3, None),
        "a last page that is full"
    );
    let windows = json!({ "ServiceCode": "AmazonEC2", "Filters": [filter("operatingSystem", "Windows")] });
    assert_eq!(json_call(&bench, GET_PRODUCTS, &windows.to_string()).await.1["PriceList"], json!([]));
}

#[tokio::test]
async fn the_price_list_refuses_what_it_cannot_read() {
    let bench = Bench::new(few_types()).await;
    let any_of = r#"{"ServiceCode": "AmazonEC2", "Filters": [{"Type": "ANY_OF", "Field": "x", "Value": "y"}]}"#;
    for (target, body, code) in [
        (GET_PRODUCTS, "", "InvalidParameterException"),
        (GET_PRODUCTS, "\u{1}[{", "InvalidParameterException"),
        (GET_PRODUCTS, "{}", "InvalidParameterException"),
        (GET_PRODUCTS, any_of, "InvalidParameterException"),
        (GET_PRODUCTS, r#"{"ServiceCode": "AmazonEC2", "MaxResults": 101}"#, "InvalidParameterException"),
        (GET_PRODUCTS, r#"{"ServiceCode": "AmazonEC2", "NextToken": "x"}"#, "InvalidNextTokenException"),
        ("AWSPriceListService.DescribeServices", "{}", "UnknownOperationException"),
    ] {
        let (status, answer) = json_call(&bench, target, body).await;
        assert_eq!((status, &answer["__type"]), (400, &json!(code)), "{target} {body}");
    }
    let fail = FailCall {
        action: "GetProducts".into(),
        code: "ThrottlingException".into(),
        on_call: 1,
        times: 1,
        instance_type: None,
        market: None,
        subnet_id: None,
        template: None,
        status: 400,
        message: String::new(),
    };
    bench.ec2.set_faults(Faults { fail: vec![fail], ..Faults::default() });
    let asked = r#"{"ServiceCode": "AmazonEC2"}"#;
    assert_eq!(json_call(&bench, GET_PRODUCTS, asked).await.1["__type"], "ThrottlingException");
    assert_eq!(json_call(&bench, GET_PRODUCTS, asked).await.0, 200);
}

#[tokio::test]
async fn the_quotas_are_those_that_the_faults_set() {
    const LIST: &str = "ServiceQuotasV20190624.ListServiceQuotas";
    let bench = Bench::new(few_types()).await;
    let none = json_call(&bench, LIST, r#"{"ServiceCode": "ec2"}"#).await;
    assert_eq!(none, (200, json!({ "Quotas": [] })), "there is no limit");
    bench.ec2.set_faults(Faults { max_vcpus: Some(11), max_spot_vcpus: Some(0), ..Faults::default() });
    let (mut asked, mut seen) = (json!({ "ServiceCode": "ec2", "MaxResults": 7 }), Vec::new());
    loop {
        let (_, page) = json_call(&bench, LIST, &asked.to_string()).await;
        seen.extend(page["Quotas"].as_array().unwrap().iter().map(|q| (q["QuotaName"].clone(), q["Value"].clone())));
        match page.get("NextToken") {
            Some(token) => asked["NextToken"] = token.clone(),
            None => break,
        }
    }
    assert_eq!(seen.len(), 22);
    assert!(seen.contains(&(json!("Running On-Demand G and VT instances"), json!(11.0))), "{seen:?}");
    assert!(seen.contains(&(json!("All P4, P3 and P2 Spot Instance Requests"), json!(0.0))), "{seen:?}");
    for (body, code) in [
        ("[", "IllegalArgumentException"),
        (r#"{"ServiceCode": "ec2", "MaxResults": 0}"#, "IllegalArgumentException"),
        (r#"{"ServiceCode": "s3"}"#, "NoSuchResourceException"),
        (r#"{"ServiceCode": "ec2", "NextToken": "x"}"#, "InvalidPaginationTokenException"),
    ] {
        let (status, answer) = json_call(&bench, LIST, body).await;
        assert_eq!((status, &answer["__type"]), (400, &json!(code)), "{body}");
    }
}
