//! A real agent that sends output to readers.

use crate::common::{ControlPlane, TestNode, alloc_id, order};
use model::output::{MAX_PIECE_BYTES, Then};
use model::wire::WantedOutput;

fn follow(id: &str, copy: u32, last_bytes: Option<u64>) -> WantedOutput {
    WantedOutput { follow_id: id.into(), alloc_id: alloc_id(copy), last_bytes }
}

/// How the output of a reader ended.
fn end(plane: &ControlPlane, follow_id: &str) -> Option<Then> {
    plane.pieces(follow_id).last().map(|piece| piece.then).filter(|then| *then != Then::More)
}

impl TestNode {
    async fn until_end(&self, follow_id: &str) -> Then {
        self.until("the end of the output", |w| w.with(|p| end(p, follow_id))).await
    }
}

/// 5,000 lines of 60 bytes, each with a byte that is not UTF-8.
const PRINTS: &str = "i=0; while [ $i -lt 5000 ]; do printf '%058d\\377\\n' $i; i=$((i+1)); done";

fn printed() -> Vec<u8> {
    (0..5000).flat_map(|i| [format!("{i:058}").as_bytes(), b"\xff\n"].concat()).collect()
}

#[tokio::test]
async fn output_is_sent_whole_and_in_order_while_the_alloc_runs_and_nobody_else_gets_it() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, &format!("{PRINTS}; until [ -e go ]; do sleep 0.05; done; echo end"))]));
    node.start(&[]);
    node.running(0).await;
    let file = node.alloc_dir(0).join("output");
    let size = |_: &TestNode| std::fs::metadata(&file).map_or(0, |file| file.len());
    node.until("all is printed", |w| (size(w) == printed().len() as u64).then_some(())).await;
    node.beats(3).await;
    node.with(|p| assert!(p.outputs.is_empty(), "nobody reads: {:?}", p.outputs));
    node.with(|p| p.follows = vec![follow("all", 0, None), follow("last", 0, Some(120))]);
    node.until("all of it", |w| w.with(|p| (p.output("all").len() == printed().len()).then_some(()))).await;
    node.with(|p| {
        assert_eq!(p.output("all"), printed());
        let pieces = p.pieces("all");
        assert!(pieces.len() >= 2 && pieces.iter().all(|p| p.then == Then::More), "the alloc runs");
        assert!(pieces.iter().all(|p| p.data.len() <= MAX_PIECE_BYTES.div_ceil(3) * 4));
    });
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    assert_eq!((node.until_end("all").await, node.until_end("last").await), (Then::End, Then::End));
    node.with(|p| {
        assert_eq!(p.output("all"), [&printed()[..], b"end\n"].concat());
        let last = p.output("last");
        assert!(last.len() < 1000 && p.output("all").ends_with(&last), "only the end of what there was: {last:?}");
    });
}

#[tokio::test]
async fn a_new_agent_goes_on_where_the_old_one_was() {
    let mut node = TestNode::new().await;
    let script = "echo one; until [ -e go ]; do sleep 0.05; done; echo two";
    node.with(|p| p.order(vec![order(0, script)]));
    node.start(&[]);
    node.running(0).await;
    node.with(|p| p.follows = vec![follow("f", 0, None)]);
    node.until("the first line", |w| w.with(|p| (p.output("f") == b"one\n").then_some(()))).await;
    node.kill_agent();
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    let sent = node.with(|p| p.outputs.len());
    node.start(&[]);
    assert_eq!(node.until_end("f").await, Then::End);
    node.with(|p| {
        assert_eq!(p.output("f"), b"one\ntwo\n");
        assert!(p.outputs[sent].piece.is_none(), "it asks first: {:?}", p.outputs[sent]);
    });
}

#[tokio::test]
async fn the_output_is_kept_after_the_directory_was_destroyed_unless_nothing_is_to_be_kept() {
    for (args, then) in [(&[][..], Then::End), (&["--keep-output-mib", "0"], Then::Missing)] {
        let mut node = TestNode::new().await;
        node.with(|p| p.order(vec![order(0, PRINTS)]));
        node.start(args);
        node.end_of(0).await;
        node.with(|p| p.destroy = vec![alloc_id(0).to_string()]);
        node.until("it is destroyed", |w| (!w.alloc_dir(0).exists()).then_some(())).await;
        node.with(|p| p.follows = vec![follow("f", 0, None)]);
        assert_eq!(node.until_end("f").await, then, "{args:?}");
        let expected = if then == Then::End { printed() } else { Vec::new() };
        assert_eq!(node.with(|p| p.output("f")), expected, "{args:?}");
        let kept = node.data().join("outputs");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(kept).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o700, "jobs cannot read it");
    }
}

#[tokio::test]
async fn a_reader_who_has_left_gets_no_more_and_the_node_says_what_it_does_not_have() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "while :; do echo tick; sleep 0.05; done")]));
    node.start(&[]);
    node.running(0).await;
    node.with(|p| p.follows = vec![follow("left", 0, None), follow("nothing", 9, None)]);
    assert_eq!(node.until_end("nothing").await, Then::Missing);
    node.until("some pieces", |w| w.with(|p| (p.pieces("left").len() > 2).then_some(()))).await;
    node.with(|p| p.follows.clear());
    node.beats(3).await;
    let sent = node.with(|p| p.outputs.len());
    node.beats(3).await;
    assert_eq!(node.with(|p| p.outputs.len()), sent);
}
