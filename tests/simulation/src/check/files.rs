//! The invariants of the files of jobs, by the rows of allocs.

use super::Check;
use super::row::{text, within};
use crate::database::Model;
use model::{AllocId, JobId};
use serde_json::Value;
use store::{Item, Table, alloc_key, job_key};

/// What an alloc has stored: paths and contents.
fn kept(row: &Item) -> Vec<(String, String)> {
    let all = store::to_json(row).get("kept").and_then(Value::as_array).cloned().unwrap_or_default();
    let word = |one: &Value, name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    all.iter().map(|one| (word(one, "path"), word(one, "content"))).collect()
}

impl Check {
    pub(super) fn files(&self, model: &Model, id: AllocId, before: Option<&Item>, after: Option<&Item>) {
        if let Some(after) = after.filter(|_| !self.is_spoiled(&alloc_key(id)) && !self.is_spoiled(&job_key(id.job_id)))
        {
            self.invariant_what_is_complete_has_its_outputs(id, after);
            if before.is_none() {
                self.invariant_what_follows_has_its_inputs(model, id, after);
                self.invariant_a_try_begins_with_the_newest_checkpoint(model, id, after);
            }
        }
    }

    /// A complete alloc has every output that its job wants.
    fn invariant_what_is_complete_has_its_outputs(&self, id: AllocId, after: &Item) {
        let wanted = within(after, "work", "outputs").as_array().cloned().unwrap_or_default();
        if text(after, "client") != Some("complete") || wanted.is_empty() {
            return;
        }
        self.core.count("a complete alloc has outputs");
        let kept = kept(after);
        let is_kept = |path: &Value| kept.iter().any(|(is, _)| path.as_str() == Some(is));
        if !wanted.iter().all(is_kept) {
            self.broken(
                "invariant_what_is_complete_has_its_outputs",
                format!("{id} wants {wanted:?} and has {kept:?}"),
            );
        }
    }

    /// An alloc that is placed gets what the last complete alloc of the job before it has stored. An alloc that was
    /// told to stop does not count, whatever its exit code was. An input is named after the earlier job.
    fn invariant_what_follows_has_its_inputs(&self, model: &Model, id: AllocId, after: &Item) {
        let rule = "invariant_what_follows_has_its_inputs";
        let inputs = within(after, "work", "inputs");
        for (name, source) in inputs.as_object().into_iter().flatten() {
            let Ok(earlier) = name.parse::<JobId>() else { continue };
            let was_stopped = |row: &store::Row| within(row, "cause", "kind").as_str() == Some("stopped");
            let has_succeeded = |row: &store::Row| text(row, "client") == Some("complete") && !was_stopped(row);
            let of_earlier = |row: &&store::Row| has_succeeded(row) && !kept(row).is_empty();
            let ids = |row: &store::Row| text(row, "alloc_id").and_then(|id| id.parse::<AllocId>().ok());
            let is_earlier = |row: &&store::Row| ids(row).is_some_and(|id| id.job_id == earlier && id.member == 0);
            let complete = model.rows(Table::Allocs).filter(is_earlier).filter(of_earlier);
            let last = complete.max_by_key(|row| ids(row).map(|id| id.copy));
            let stored = last.and_then(|row| kept(row).into_iter().next().map(|(_, content)| content));
            let Some(stored) = stored.filter(|_| model.get(&job_key(earlier)).is_some()) else { continue };
            self.core.count("a follower has its input");
            if source.as_str() != Some(&stored) {
                self.broken(rule, format!("{id} is placed with {source}, and job {earlier} left {stored}"));
            }
        }
    }

    /// An alloc that is placed gets the checkpoint of the latest try of its member that has ended, or that it replaces.
    fn invariant_a_try_begins_with_the_newest_checkpoint(&self, model: &Model, id: AllocId, after: &Item) {
        let stored_by = |known: &Value| known.get("alloc_id").and_then(Value::as_str)?.parse::<AllocId>().ok();
        let counts = |row: &&store::Row| {
            let of = text(row, "alloc_id").and_then(|id| id.parse::<AllocId>().ok());
            let is_earlier = of.is_some_and(|of| (of.job_id, of.member) == (id.job_id, id.member) && of.copy < id.copy);
            let has_ended = matches!(text(row, "client"), Some("complete" | "failed" | "lost"));
            is_earlier && (has_ended || text(after, "replaces") == text(row, "alloc_id"))
        };
        let rows = model.rows(Table::Allocs).filter(counts);
        let Some(newest) = rows.filter_map(|row| stored_by(store::to_json(row).get("checkpoint")?)).max() else {
            return;
        };
        self.core.count("a try begins with a checkpoint");
        let begins = stored_by(&within(after, "work", "checkpoint"));
        if begins < Some(newest) {
            self.broken(
                "invariant_a_try_begins_with_the_newest_checkpoint",
                format!("{id} begins with {begins:?}, and that of {newest} is stored"),
            );
        }
    }
}
