//! How simulated processes end, and the elements of packs within them.
//!
//! Guarantees: an element ends at its time, however often its process is looked at; its outcome depends only on its
//! number and on the copy of its job that runs it.
//! Does not: end anything.

use super::Process;
use model::files::Form;
use model::wire::AllocOrder;
use model::{
    AllocId, Checkpoint, ClientStatus, Content, ElementReport, EndCause, Ending, Outcome, Output, Pack, Ranges, Span,
    StoredOutput, Time,
};

impl Process {
    /// A process that runs for `s` seconds, unless it is stopped. The elements of a pack end one after the other in
    /// this time, as many as begin.
    pub(super) fn new(order: &AllocOrder, now: Time, s: i64, cause: EndCause, told_code: i32) -> Self {
        let mut failed = 0;
        let begin = |pack: &Pack| {
            let begins = |element: &u32| {
                let is_over = pack.is_over_with(failed);
                failed += u64::from(fails(*element, order.alloc_id.copy));
                !is_over
            };
            pack.elements.iter().take_while(begins).collect()
        };
        let elements: Vec<u32> = order.work.pack.as_ref().map(begin).unwrap_or_default();
        let all = i64::try_from(elements.len()).unwrap_or(1).max(1);
        let at = |n: i64| now + Span::from_ms(s.saturating_mul(1000).saturating_mul(n) / all);
        let elements = (1..).map(at).zip(elements).collect();
        Self { began: now, ends_at: now + Span::from_s(s), cause, told_code, stopping: false, elements }
    }

    /// The results of the elements until now. An end after the order to stop does not count.
    pub(super) fn told(&self, id: AllocId, now: Time) -> ElementReport {
        let mut told = ElementReport::default();
        let (mut succeeded, mut failed) = (Ranges::default(), Ranges::default());
        let until = if self.stopping { self.began.max(self.ends_at - Span::from_s(1)) } else { self.ends_at };
        for (_, element) in self.elements.iter().filter(|(at, _)| *at <= now.min(until)) {
            let all = if fails(*element, id.copy) { &mut failed } else { &mut succeeded };
            all.extend(&Ranges::of(*element, *element));
            told.places.push(*element, u64::from(*element % 3));
        }
        told.results.add(Outcome::SUCCESS, &succeeded);
        told.results.add(Outcome::Exit(1), &failed);
        told
    }

    /// How the process of this order ends.
    pub(super) fn end(self, order: &AllocOrder) -> Ending {
        let mut ended = ended(self.cause.clone());
        ended.run.elements = self.told(order.alloc_id, self.ends_at);
        if let Some(pack) = &order.work.pack {
            let runs = |(_, element): &&(Time, u32)| !ended.run.elements.results.ended().contains(*element);
            let running = self.elements.iter().find(runs).map(|(_, element)| *element);
            if let (Some(outcome), Some(element)) = (Outcome::of_end(&self.cause), running) {
                ended.run.elements.results.add(outcome, &Ranges::of(element, element));
            }
            if self.cause == (EndCause::Exited { code: 0 }) {
                let lost = EndCause::Lost { why: "what ran its elements ended before them".into() };
                ended.cause = ended.run.elements.results.cause(pack).unwrap_or(lost);
            }
        }
        if ended.cause.client() == ClientStatus::Complete {
            ended.run.kept = kept(order);
        }
        ended.run.checkpoint = checkpoint(order);
        ended
    }
}

/// Whether an element fails when this copy of its job runs it.
const fn fails(element: u32, copy: u32) -> bool {
    element.wrapping_mul(7).wrapping_add(copy.wrapping_mul(3)).is_multiple_of(11)
}

/// The outputs of a complete alloc. They differ from alloc to alloc.
fn kept(order: &AllocOrder) -> Vec<StoredOutput> {
    let content = left(order, Form::File);
    let stored =
        |output: &Output| Some(StoredOutput { path: output.path.clone(), content: content.clone()?, to: None });
    order.work.outputs.iter().filter_map(stored).collect()
}

/// What an alloc leaves in the folder that its job keeps.
pub(super) fn checkpoint(order: &AllocOrder) -> Option<Checkpoint> {
    let content = order.work.keep.as_ref().and_then(|_| left(order, Form::Tree))?;
    Some(Checkpoint { alloc_id: order.alloc_id, place: 0, content })
}

/// A content that no other alloc leaves.
fn left(order: &AllocOrder, form: Form) -> Option<Content> {
    let AllocId { job_id, member, copy } = order.alloc_id;
    let random =
        job_id.to_string().bytes().fold(0_u128, |sum, byte| sum.wrapping_mul(31).wrapping_add(u128::from(byte)));
    Content::new(form, &format!("{random:032x}{member:016x}{copy:016x}"), 1)
}

/// The cause of a failure after `s` seconds. There are several causes, so that rules for retries tell them apart.
pub(super) fn failure(s: i64, allowed_mib: u64) -> EndCause {
    match s % 3 {
        0 if allowed_mib > 0 => EndCause::OverMemory { allowed_mib, used_mib: None },
        1 => EndCause::Exited { code: 75 },
        _ => EndCause::Exited { code: 1 },
    }
}

/// An end without output.
pub(super) fn ended(cause: EndCause) -> Ending {
    Ending::new(cause)
}
