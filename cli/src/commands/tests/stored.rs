//! Outputs that nodes have stored in S3, as `logs` and `job` show them.

use super::output::{ended, long, stored_in_s3, tail_of};
use super::output_store::{FakeS3, KEY, nothing};
use super::*;
use crate::commands::output::output_stream::MISSING;
use model::stored::{END, MORE, PIECE_BYTES};

/// A world with one ended job with this output, which is to be stored in S3. Its node exists, and does not answer.
async fn to_be_stored(output: &str) -> (World, FakeS3) {
    let (mut world, alloc) = ended(output).await;
    let alloc = world.store().alloc(alloc.id()).await.unwrap().unwrap();
    world.store().write(Some(&alloc), &stored_in_s3(&alloc), Vec::new()).await.unwrap();
    let s3 = FakeS3::default();
    world.cluster.outputs = s3.serve().await;
    world.tick = Span::from_s(60);
    (world, s3)
}

#[tokio::test]
async fn a_stored_output_needs_no_node() {
    let (world, s3) = to_be_stored(&long()).await;
    s3.put(KEY, long().as_bytes(), END);
    let (said, changed) = world.changes(&["logs", &id(1)]).await;
    assert!(said.out == long() && changed.is_empty(), "{} {}", said.out.len(), said.err);
    assert_eq!(
        (said.err.lines().count(), s3.asked()),
        (1, ["HEAD /000000.log", "GET /000000.log"].map(str::to_owned).to_vec())
    );
    assert_eq!(said.result.unwrap(), Exit::Done);
    let followed = world.run(&["logs", "-f", &id(1)]).await;
    assert!(followed.out == long() && followed.err.ends_with(" complete\n"), "{}", followed.err);
    let last = world.run(&["logs", &id(1), "--tail", "2"]).await;
    assert_eq!(last.out.as_str(), "line 19998\nline 19999\n");
    let all = world.run(&["logs", &id(1), "-n", "30000"]).await;
    assert!(all.out == long(), "{}", all.err);
    assert!(world.run(&["job", &id(1)]).await.done().contains(&format!("s3://logs/{KEY}\n")));
}

#[tokio::test]
async fn an_output_of_many_pieces_is_found_in_few_calls_and_read_whole_with_its_streams() {
    let (world, s3) = to_be_stored(&long()).await;
    let large: Vec<u8> = (0..6 * PIECE_BYTES / 8 + 100).flat_map(|n| format!("{n:07}\n").into_bytes()).collect();
    s3.put(KEY, &large, END);
    s3.put_switches("[8,16]");
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out.as_bytes() == large, "{} {}", said.out.len(), said.err);
    let asked = s3.asked();
    assert!(asked.iter().filter(|call| call.starts_with("HEAD")).count() <= 7, "{asked:?}");
    let error = world.run(&["logs", &id(1), "--stderr"]).await;
    assert_eq!(error.out, "0000001\n");
    s3.asked();
    let last = world.run(&["logs", &id(1), "--tail", "1"]).await;
    assert_eq!(last.out.as_bytes(), &large[large.len() - 8..]);
    assert_eq!(s3.asked().iter().filter(|call| call.starts_with("GET")).count(), 2, "only the end is read");
}

#[tokio::test]
async fn a_connection_that_breaks_is_replaced_and_not_for_ever() {
    let (world, s3) = to_be_stored(&long()).await;
    s3.put(KEY, long().as_bytes(), END);
    for (breaks, busy) in [(2, 0), (0, 2)] {
        (s3.0.lock().unwrap().breaks, s3.0.lock().unwrap().busy) = (breaks, busy);
        let said = world.run(&["logs", &id(1)]).await;
        assert!(said.out == long(), "{} {}", said.out.len(), said.err);
    }
    s3.0.lock().unwrap().breaks = 9;
    let said = world.run(&["logs", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out), (Exit::Code(MISSING), tail_of(&long())));
    assert!(said.err.contains(" is missing: s3://logs/"), "{}", said.err);
}

#[tokio::test]
async fn of_an_output_that_is_not_stored_the_end_is_printed_and_why() {
    let (mut world, s3) = to_be_stored(&long()).await;
    let said = world.run(&["logs", &id(1)]).await;
    let place = format!("s3://logs/{KEY} is not there: ");
    assert!(said.out == tail_of(&long()) && said.err.contains(&place), "{}", said.err);
    s3.0.lock().unwrap().denies = true;
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == tail_of(&long()) && said.err.contains("your permissions do not allow it"), "{}", said.err);
    world.cluster.outputs = nothing();
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == tail_of(&long()) && said.err.contains("cannot be read: no usable answer"), "{}", said.err);
}

/// The instance ended while the command ran.
#[tokio::test]
async fn what_was_stored_of_an_output_that_broke_off_is_printed_and_up_to_where_it_is_whole() {
    let (world, s3) = to_be_stored(&long()).await;
    s3.put(KEY, &long().as_bytes()[..100_000], MORE);
    for line in [&["logs", &id(1)][..], &["logs", "--follow", &id(1)]] {
        let said = world.run(line).await;
        assert_eq!(said.result.unwrap(), Exit::Code(MISSING), "{line:?}");
        assert!(said.out == long()[..100_000], "{line:?} {}", said.out.len());
        assert!(said.err.contains("after byte 100000 is missing: node "), "{}", said.err);
        assert!(said.err.contains(" has not stored it"), "{}", said.err);
    }
}

#[tokio::test]
async fn a_short_output_stands_in_the_row_and_is_not_read_elsewhere() {
    let (world, s3) = to_be_stored("short\n").await;
    assert_eq!((world.run(&["logs", &id(1)]).await.out.as_str(), s3.asked()), ("short\n", Vec::new()));
}
