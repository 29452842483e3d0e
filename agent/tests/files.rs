//! The files of a job on its node: what a command leaves, and what it is to have.

use crate::uploads::{Bucket, any_port, node, stored};
use model::files::Form;
use model::wire::{AllocOrder, AllocUpdate};
use model::{ClientStatus, Content, Desired, EndCause, FailurePolicy, Inputs, Source, Work};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn keeps(copy: u32, script: &str, outputs: &[&str]) -> AllocOrder {
    let order = stored(copy, script);
    let outputs = outputs.iter().map(|output| output.parse().unwrap()).collect();
    AllocOrder { work: Work { outputs, ..order.work }, ..order }
}

/// The paths of the outputs that are kept, each with the text of a file or the names of an archive.
fn kept(bucket: &Bucket, end: &AllocUpdate) -> BTreeMap<String, String> {
    let text = |content: &Content| {
        let bytes = bucket.content(content);
        if content.form != Form::Tree {
            return String::from_utf8(bytes).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), bytes).unwrap();
        let listed = std::process::Command::new("tar").args(["-tf", "a"]).current_dir(dir.path()).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().replace('\n', " ").trim().to_owned()
    };
    end.run.kept.iter().map(|stored| (stored.path.clone(), text(&stored.content))).collect()
}

#[tokio::test]
async fn each_output_that_can_be_stored_is_stored_and_the_end_names_the_others() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    let script = "mkdir -p r/a r/b d; echo 1 > r/a/x.csv; echo 2 > r/b/y.csv; echo no > r/b/y.txt; echo last > last
        truncate -s 15T holes; truncate -s 15T d/holes; mkfifo pipe; ln -s /etc/passwd out; ln -s r/a/x.csv in
        ln -s ../last r/best.txt; ln -s $PWD/last whole; echo b > '[x]'; ln -s loop loop";
    let outputs = [
        "no",
        "r/*/*.csv",
        "r/best*",
        "*.none",
        "holes",
        "d",
        "pipe",
        "out",
        "loop",
        "in",
        "whole",
        "[x]",
        "r/b",
        "last",
    ];
    let began = Instant::now();
    node.with(|p| p.order(vec![keeps(0, script, &outputs)]));
    node.start(&[]);
    let end = node.end_of(0).await;
    let Some(EndCause::NoOutput { path, why, mut others }) = end.cause.clone() else { panic!("{:?}", end.cause) };
    others.insert(path, why);
    for (path, says) in [
        ("no", "it is not there"),
        ("*.none", "nothing in the work directory has such a name"),
        ("holes", "it is too large: it has more than 1 TiB"),
        ("d", "it is too large: it has more than 1 TiB"),
        ("pipe", "neither a file nor a folder"),
        ("out", "a link out of the work directory"),
        ("loop", "too many links"),
    ] {
        assert!(others.remove(path).is_some_and(|why| why.contains(says)), "{path}: {:?}", end.cause);
    }
    assert_eq!(others, BTreeMap::new());
    let all = [
        ("r/*/*.csv", "r/a/x.csv r/b/y.csv"),
        ("r/best*", "r/best.txt"),
        ("in", "1\n"),
        ("whole", "last\n"),
        ("[x]", "b\n"),
        ("r/b", "y.csv y.txt"),
        ("last", "last\n"),
    ];
    assert_eq!(kept(&bucket, &end), all.map(|(path, text)| (path.to_owned(), text.to_owned())).into());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let left = std::fs::read_dir(node.alloc_dir(0)).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(left.sum::<u64>() < 1 << 20, "no archive is written to the disk");
}

#[tokio::test]
async fn a_stop_ends_the_storing_of_outputs_with_a_peer_that_hangs() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    bucket.with(|s3| s3.hangs = Some("lab/files/".to_owned()));
    let policy = FailurePolicy { kill_timeout_s: 1, ..FailurePolicy::default() };
    let order = AllocOrder { failure_policy: policy, ..keeps(0, "echo x > f; mkdir d; echo y > d/f", &["d", "f"]) };
    node.with(|p| p.order(vec![order.clone()]));
    node.start(&[]);
    node.until("it is being stored", |_| {
        bucket.with(|s3| s3.calls.iter().any(|key| key.contains("files/"))).then_some(())
    })
    .await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..order }]));
    let end = node.end_of(0).await;
    let cause = end.cause.unwrap();
    assert!(
        matches!(&cause, EndCause::Stopped { why, code: None } if why.ends_with("while its outputs were stored")),
        "{cause}"
    );
}

fn wants(copy: u32, bytes: u64) -> AllocOrder {
    let content = Content::new(Form::File, &"0".repeat(64), bytes).unwrap();
    let order = stored(copy, "true");
    let inputs: Inputs = [("big".to_owned(), Source::Content(content))].into();
    AllocOrder { work: Work { inputs, ..order.work }, ..order }
}

#[tokio::test]
async fn an_input_that_no_disk_here_can_take_is_refused_before_its_first_byte() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    node.with(|p| p.order(vec![wants(0, 1 << 40), wants(1, 10)]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Failed);
    let cause = end.cause.unwrap();
    assert!(
        matches!(&cause, EndCause::Rejected { why } if why.contains("1 TiB") && why.contains("--scratch")),
        "{cause}"
    );
    assert!(!node.alloc_dir(0).join("work").exists(), "nothing is left");
    // The stand-in has no such object, and answers each read with an error.
    let end = node.end_of(1).await;
    assert!(matches!(end.cause, Some(EndCause::Rejected { .. })), "{:?}", end.cause);
    let parts = std::fs::read_dir(node.data().join("inputs")).unwrap();
    assert!(parts.map(|e| e.unwrap().path()).all(|path| path.extension() == Some("lock".as_ref())), "nothing is left");
}

#[tokio::test]
async fn two_inputs_in_each_others_way_are_the_jobs_fault() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    let file = bucket.put_content(b"x", Form::File);
    let order = stored(0, "true");
    // A file of another job may stand where a folder is wanted: only the node finds out.
    let inputs: Inputs = [("a", &file), ("a/b", &file)]
        .map(|(name, content)| (name.to_owned(), Source::Content(content.clone())))
        .into();
    node.with(|p| p.order(vec![AllocOrder { work: Work { inputs, ..order.work.clone() }, ..order.clone() }]));
    node.start(&[]);
    let end = node.end_of(0).await;
    let cause = end.cause.unwrap();
    assert!(
        matches!(&cause, EndCause::Rejected { why } if why.contains("the input a/b cannot be put there")),
        "{cause}"
    );
}
