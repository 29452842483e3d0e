//! Outputs in S3, in the account that checks signatures and permissions.

use crate::account::{Account, CLUSTER};
use model::S3Place;
use model::stored::{BOTH, END, PIECE_BYTES, STREAMS_HEADER, THEN_HEADER};
use s3::{Head, S3Error};
use std::collections::BTreeSet;

/// A piece with its metadata is stored and read, and only by roles that may.
#[tokio::test]
async fn nodes_store_the_outputs_of_their_cluster_and_people_read_them() {
    let account = Account::new(&CLUSTER.parse().unwrap()).await;
    let bytes: Vec<u8> = (0..PIECE_BYTES).map(|n| b'a' + (n % 26) as u8).collect();
    let place = |text: &str| text.parse::<S3Place>().unwrap();
    let [node, submitter, operator, reader] =
        ["NodeRole", "SubmitterPolicy", "OperatorPolicy", "ReaderPolicy"].map(|who| account.s3(&account.role(who)));
    let output = place("s3://demo-logs/nodes/demo/01JD0000000000000000000000/0-0").piece(0);
    assert_eq!(account.s3(&Account::owner()).get(&output, PIECE_BYTES).await, Err(S3Error::Absent));
    assert_eq!(account.s3(&Account::owner()).head(&output).await, Err(S3Error::Absent));
    // The second write stores a larger piece.
    let metadata = [(THEN_HEADER, END), (STREAMS_HEADER, BOTH)];
    node.put(&output, bytes[..10].to_vec(), &[]).await.unwrap();
    node.put(&output, bytes.clone(), &metadata).await.unwrap();
    refused_nothing_of(&account);
    let head = Head { bytes: PIECE_BYTES, then: Some(END.to_owned()), streams: Some(BOTH.to_owned()), stored: None };
    for person in [&submitter, &operator] {
        assert_eq!(person.head(&output).await, Ok(head.clone()));
        assert!(person.get(&output, PIECE_BYTES).await.unwrap() == (head.clone(), bytes.clone()));
        assert!(person.get_from(&output, 3, PIECE_BYTES).await.unwrap().1 == bytes[3..]);
        assert!(matches!(person.get(&output, 10).await, Err(S3Error::Refused(_))), "it is larger than that");
    }
    let empty = place("s3://demo-logs/nodes/demo/01JD0000000000000000000000/1-0").piece(0);
    node.put(&empty, Vec::new(), &metadata).await.unwrap();
    assert_eq!(operator.get(&empty, PIECE_BYTES).await.map(|(head, bytes)| (head.bytes, bytes)), Ok((0, Vec::new())));
    refused_nothing_of(&account);
    let denied = |result: Result<(), S3Error>| assert!(matches!(result, Err(S3Error::Denied(_))), "{result:?}");
    for other in ["s3://demo-logs/nodes/other/0-0", "s3://demo-logs/x", "s3://other-logs/nodes/demo/0-0"] {
        let other = place(other).piece(0);
        denied(node.put(&other, bytes[..10].to_vec(), &[]).await);
        denied(operator.get(&other, 10).await.map(drop));
    }
    denied(node.get(&output, PIECE_BYTES).await.map(drop));
    denied(reader.get(&output, PIECE_BYTES).await.map(drop));
    denied(submitter.put(&output, bytes[..10].to_vec(), &[]).await);
    denied(operator.put(&output, bytes[..10].to_vec(), &[]).await);
}

fn refused_nothing_of(account: &Account) {
    assert_eq!(account.refused(), BTreeSet::new());
}
