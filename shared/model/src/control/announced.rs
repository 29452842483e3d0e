//! The reasons of waiting jobs and the caps about which poll-and-scale has written events, so that an event is written when
//! something changes and not in every run.
//!
//! Guarantees: a job near the head of the queue gets an event when the kind of its reasons changes; a cap gets one when
//! it begins to bind. One run writes few events, and the next runs write the rest.
//! Does not: hold anything that a decision needs. If the row is lost, events are repeated.

use super::{AnnouncedRow, Announcements};
use crate::enums::ActionName;
use crate::{Explanation, JobId, Reason, Subject, Waiting};

/// How many waiting jobs are remembered, from the head of the queue on. The row then has about 6 KiB.
const REMEMBERED: usize = 100;
/// The most events of one run.
const NEWS: usize = 20;

/// One thing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub subject: Subject,
    pub action: ActionName,
    pub reason: String,
}

impl AnnouncedRow {
    /// The news of this explanation, and the row after they were announced. `queue` has the jobs in the order of the queue.
    pub fn news(&self, explained: &Explanation, queue: impl Iterator<Item = JobId>) -> (Vec<News>, Self) {
        let mut after = Announcements::default();
        let mut news = Vec::new();
        for cap in explained.limits.iter().filter(|reason| reason.is_unstored()) {
            let key = cap.key();
            let is_news = !self.caps.contains(&key) && !after.caps.contains(&key);
            if is_news && news.len() >= NEWS {
                continue;
            }
            if is_news {
                news.push(News { subject: Subject::Cluster, action: ActionName::HoldBack, reason: cap.to_string() });
            }
            after.caps.insert(key);
        }
        let waiting = explained.by_job();
        for (id, waits) in queue.filter_map(|id| Some((id, *waiting.get(&id)?))).take(REMEMBERED) {
            let (words, told) = (words(waits), self.jobs.get(&id));
            if told != Some(&words) && !is_expected(told, &words) {
                if news.len() >= NEWS {
                    after.jobs.extend(told.map(|told| (id, told.clone())));
                    continue;
                }
                news.push(News { subject: Subject::Job(id), action: ActionName::Wait, reason: waits.reason() });
            }
            after.jobs.insert(id, words);
        }
        (news, self.with(after))
    }
}

fn words(waits: &Waiting) -> String {
    waits.why.iter().map(Reason::word).collect::<Vec<_>>().join(",")
}

/// Whether these reasons only continue the announced ones: the launch of a node was announced, and now that node boots.
fn is_expected(told: Option<&String>, words: &str) -> bool {
    let (launched, boot) = (Reason::NodesLaunched { slots: Vec::new() }, Reason::NodesBoot { slots: Vec::new() });
    words == boot.word() && told.is_some_and(|told| told == launched.word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ControlKey;
    use crate::fixtures;
    use crate::summary::JobSummary;

    fn jobs(n: u32) -> Vec<JobSummary> {
        (0..n).map(|n| fixtures::job(n).summary).collect()
    }

    fn explained(jobs: &[JobSummary], why: &Reason) -> Explanation {
        let mut explained = Explanation::default();
        jobs.iter().for_each(|job| explained.waits(job, std::slice::from_ref(why)));
        if why.is_unstored() {
            explained.limits(why);
        }
        explained
    }

    #[test]
    fn each_size_at_its_maximum_is_told_once() {
        let size = |size: &str| Reason::SizeMaximum { size: size.into(), max: 2, there: 2 };
        let mut explained = Explanation::default();
        explained.limits(&size("small"));
        let (news, told) = AnnouncedRow::new(&ControlKey::Announced).news(&explained, std::iter::empty());
        assert_eq!(news.len(), 1);
        explained.limits(&size("large"));
        let (news, told) = told.news(&explained, std::iter::empty());
        assert_eq!(news.iter().map(|n| n.action).collect::<Vec<_>>(), [ActionName::HoldBack]);
        assert_eq!(told.news(&explained, std::iter::empty()), (Vec::new(), told));
    }

    #[test]
    fn a_wait_is_told_when_its_reason_changes_and_a_few_at_a_time() {
        let jobs = jobs(50);
        let ids = || jobs.iter().map(|j| j.job_id);
        let max = explained(&jobs, &Reason::NodesMax { max: 6, there: 6 });
        let mut told = AnnouncedRow::new(&ControlKey::Announced);
        let mut numbers = Vec::new();
        for _ in 0..4 {
            let (news, after) = told.news(&max, ids());
            numbers.push(news.len());
            told = after;
        }
        assert_eq!(numbers, [20, 20, 11, 0], "50 jobs and one cap");
        let (news, after) =
            told.news(&explained(&jobs[..1], &Reason::NodesLaunched { slots: vec![fixtures::slot(3)] }), ids());
        assert_eq!(news.len(), 1);
        assert_eq!((news[0].reason.as_str(), news[0].action), ("this run launches for it: slot 3", ActionName::Wait));
        assert_eq!((after.jobs.len(), after.caps.len()), (1, 0), "what no longer waits is forgotten");
        let (news, after) =
            after.news(&explained(&jobs[..1], &Reason::NodesBoot { slots: vec![fixtures::slot(3)] }), ids());
        assert_eq!((news.len(), after.jobs.len()), (0, 1), "the launched node boots");
        assert_eq!(after.news(&max, ids()).0[1].subject, Subject::Job(jobs[0].job_id));
    }
}
