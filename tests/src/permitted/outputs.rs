//! Outputs in S3, in the account that checks signatures and permissions.

use crate::account::{Account, CLUSTER};
use model::stored::S3Place;
use s3::{From, S3, S3Error};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

/// Reads an object to its end.
async fn read(s3: &S3, place: &S3Place) -> Result<Vec<u8>, S3Error> {
    let (mut object, mut all) = (s3.open(place, From::Byte(0)).await?, Vec::new());
    while let Some(bytes) = object.chunk().await? {
        all.extend(bytes);
    }
    Ok(all)
}

/// A file of several parts is stored and read, only by who may.
#[tokio::test]
async fn nodes_store_the_outputs_of_their_cluster_and_people_read_them() {
    let account = Account::new(&CLUSTER.parse().unwrap()).await;
    let bytes: Vec<u8> = (0..1_500_000u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let (file, size) = (Arc::new(file), bytes.len() as u64);
    let place = |text: &str| text.parse::<S3Place>().unwrap();
    let [node, submitter, operator, reader] =
        ["NodeRole", "SubmitterPolicy", "OperatorPolicy", "ReaderPolicy"].map(|who| account.s3(&account.role(who)));
    let output = place("s3://demo-logs/nodes/demo/01JD0000000000000000000000/0-0.log");
    assert_eq!(read(&account.s3(&Account::owner()), &output).await, Err(S3Error::Absent));
    node.store(&output, &file, size).await.unwrap();
    refused_nothing_of(&account);
    for person in [&submitter, &operator] {
        assert!(read(person, &output).await.unwrap() == bytes);
        let last = person.open(&output, From::Last(10)).await.unwrap();
        assert_eq!(last.offset, size - 10);
        let end = person.open(&output, From::Byte(size)).await.unwrap().chunk().await.unwrap();
        assert_eq!(end, None, "nothing is left there");
    }
    let empty = place("s3://demo-logs/nodes/demo/01JD0000000000000000000000/1-0.log");
    node.store(&empty, &file, 0).await.unwrap();
    assert_eq!(read(&operator, &empty).await, Ok(Vec::new()));
    refused_nothing_of(&account);
    let denied = |result: Result<(), S3Error>| assert!(matches!(result, Err(S3Error::Denied(_))), "{result:?}");
    for other in ["s3://demo-logs/nodes/other/0-0.log", "s3://demo-logs/x.log", "s3://other-logs/nodes/demo/0-0.log"] {
        denied(node.store(&place(other), &file, 10).await);
        denied(node.store(&place(other), &file, size).await);
        denied(read(&operator, &place(other)).await.map(drop));
    }
    denied(read(&node, &output).await.map(drop));
    denied(read(&reader, &output).await.map(drop));
    denied(submitter.store(&output, &file, 10).await);
    denied(operator.store(&output, &file, 10).await);
}

fn refused_nothing_of(account: &Account) {
    assert_eq!(account.refused(), BTreeSet::new());
}
