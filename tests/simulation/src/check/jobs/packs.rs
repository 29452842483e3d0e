//! The invariants of packs, by the rows of jobs and allocs and by what machines saw.

use crate::check::jobs;
use crate::check::row::{count, text, within};
use crate::check::{Check, is_ended, is_final};
use crate::core::lock;
use crate::database::Model;
use model::elements::Results;
use model::{AllocId, ElementReport, JobId, Outcome, Ranges};
use serde_json::Value;
use store::{Item, Table, alloc_key, job_key};

/// The elements of a row; `None` if it is no pack.
fn elements(row: &Item) -> Option<Ranges> {
    let pack = within(row, "work", "pack");
    pack.get("elements").and_then(Value::as_str)?.parse().ok()
}

fn results(row: &Item) -> Results {
    serde_json::from_value(within(row, "elements", "results")).unwrap_or_default()
}

impl Check {
    /// Called when a machine sees how elements stand.
    pub fn elements_ran(&self, id: AllocId, told: &ElementReport) {
        if !told.is_empty() {
            let mut seen = lock(&self.seen);
            let ran = seen.elements_ran.entry(id.job_id).or_default();
            told.results.iter().for_each(|(outcome, elements)| {
                ran.entry(outcome).or_default().extend(elements);
            });
        }
    }

    pub(in crate::check) fn pack(&self, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let Some((after, id)) = after.and_then(|row| Some((row, jobs::job_id(row)?))) else { return };
        let Some(all) = elements(after).filter(|_| !self.is_spoiled(&job_key(id))) else { return };
        let (was, is) = (before.map(results).unwrap_or_default(), results(after));
        self.invariant_an_element_ends_once(model, id, &was, &is);
        self.invariant_elements_ended_as_machines_saw(id, &is);
        let state = text(after, "state");
        let has_all = all.without(&is.ended()).is_empty();
        let is_news = before.is_none_or(|before| text(before, "state") != state);
        if is_news && state == Some("complete") {
            self.core.count("a pack was complete");
            if !has_all || !is.failed().is_empty() {
                self.broken("invariant_no_element_is_lost", format!("{id} is complete with {is:?} of {all}"));
            }
        }
        if has_all && !is_ended(after) {
            self.broken(
                "invariant_no_element_is_lost",
                format!("{id} has nothing left to run, and goes on: {after:?}"),
            );
        }
        let failed = is.failed().count();
        if u64::try_from(count(after, "max_failures")).is_ok_and(|max| max > 0 && failed >= max) && !has_all {
            self.core.count("a pack ended at its bound of failures");
            if !is_ended(after) {
                self.broken(
                    "invariant_failures_end_a_pack",
                    format!("{id} goes on after {failed} failures: {after:?}"),
                );
            }
        }
    }

    /// The result of an element never changes.
    fn invariant_an_element_ends_once(&self, model: &Model, id: JobId, was: &Results, is: &Results) {
        let changed = was.iter().find(|(outcome, elements)| {
            let now = is.iter().find(|(other, _)| other == outcome).map(|(_, now)| now.clone()).unwrap_or_default();
            !elements.without(&now).is_empty()
        });
        if changed.is_some() && !self.forgets_job(model, id) {
            self.broken("invariant_an_element_ends_once", format!("{id}: {was:?} → {is:?}"));
        }
    }

    /// A machine has seen each result.
    fn invariant_elements_ended_as_machines_saw(&self, id: JobId, is: &Results) {
        let seen = lock(&self.seen);
        let none = std::collections::BTreeMap::new();
        let ran = seen.elements_ran.get(&id).unwrap_or(&none);
        let made_up = is
            .iter()
            .find(|(outcome, elements)| !elements.without(ran.get(outcome).unwrap_or(&Ranges::default())).is_empty());
        let made_up =
            made_up.map(|(outcome, elements)| format!("{id}: {elements} ended as {outcome}, and nobody saw it"));
        drop(seen);
        made_up.into_iter().for_each(|what| self.broken("invariant_elements_ended_as_machines_saw", what));
    }

    /// An alloc runs no element that succeeded in an alloc whose end was accepted. It runs every other element that has
    /// no result.
    pub(in crate::check) fn elements_placed(
        &self,
        model: &Model,
        id: AllocId,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let rule = "invariant_what_succeeded_does_not_run_again";
        let Some(row) = after.filter(|_| before.is_none() && !self.is_spoiled(&alloc_key(id))) else { return };
        let (Some(run), Some(job)) = (elements(row), model.get(&job_key(id.job_id))) else { return };
        if self.is_spoiled(&job_key(id.job_id)) || self.forgets_job(model, id.job_id) {
            return;
        }
        let wanted = elements(job).unwrap_or_default().without(&results(job).ended());
        if run != wanted {
            self.broken(rule, format!("{id} runs {run}, and {wanted} are left of its job"));
        }
        let is_other = |row: &&store::Row| {
            text(row, "alloc_id").and_then(|t| t.parse().ok()).is_some_and(|other: AllocId| other.job_id == id.job_id)
        };
        for other in model.rows(Table::Allocs).filter(is_other).filter(|row| is_final(row)) {
            let again = results(other).succeeded().within(&run);
            if !again.is_empty() {
                self.broken(rule, format!("{id} runs {again}, which succeeded in {:?}", text(other, "alloc_id")));
            }
        }
        if !results(job).is_empty() {
            self.core.count("a pack went on with what was left");
        }
    }
}

/// The outcomes of the elements of each job, as machines saw them. An element that is tried again has several.
pub(in crate::check) type Ran = std::collections::BTreeMap<Outcome, Ranges>;
