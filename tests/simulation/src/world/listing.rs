//! What goes wrong with the list of the jobs that start next: nothing may depend on it.
//!
//! Guarantees: a row that is put back has a new version, as after any write.
//! Does not: change a row that is unreadable.

use super::World;
use crate::core::{Fault, lock};
use aws_sdk_dynamodb::types::AttributeValue;
use model::ControlKey;
use std::sync::Arc;
use std::time::Duration;
use store::{Item, Row, control_key};
use tokio::time::sleep;

fn number(row: &Item, name: &str) -> i64 {
    row.get(name).and_then(|value| value.as_n().ok()?.parse().ok()).unwrap_or(0)
}

fn put(row: &mut Item, name: &str, value: i64) {
    row.insert(name.to_owned(), AttributeValue::N(value.to_string()));
}

impl World {
    pub(super) async fn lists_go_wrong(self: Arc<Self>) {
        let core = &self.core;
        let mut older: Option<Row> = None;
        while core.scenario.chance(Fault::NextListWrong) > 0.0 && !core.is_healed() {
            sleep(Duration::from_secs(10)).await;
            let (list, turn) = (control_key(&ControlKey::NextJobs), control_key(&ControlKey::NextTurn));
            let mut model = lock(&self.tables.model);
            if self.check.is_spoiled(&list) || self.check.is_spoiled(&turn) {
                continue;
            }
            let Some(row) = model.get(&list).cloned() else { continue };
            if !core.happens(Fault::NextListWrong) {
                older = older.filter(|_| number(&row, "version") % 4 != 0).or(Some(row));
                continue;
            }
            core.count("a list of what starts next went wrong");
            let (way, until) = (core.of(Fault::NextListWrong, 0, 3), core.ms() + 600_000);
            core.tell(|| "somebody".into(), || format!("spoils the list of what starts next, in way {way}"));
            let mut bad = Item::clone(if way == 1 { older.as_ref().unwrap_or(&row) } else { &row });
            match (way, model.get(&turn).cloned()) {
                (0, Some(drawn)) => {
                    self.check.draws_again(number(&drawn, "list").unsigned_abs());
                    let mut drawn = Item::clone(&drawn);
                    drawn.insert("drawn".to_owned(), AttributeValue::L(Vec::new()));
                    let version = number(&drawn, "version") + 1;
                    put(&mut drawn, "version", version);
                    model.replace(&turn, drawn, core.ms());
                    continue;
                }
                (3, _) => bad = Item::from([("key".to_owned(), AttributeValue::S(ControlKey::NextJobs.to_string()))]),
                _ => put(&mut bad, "until_at", until),
            }
            put(&mut bad, "version", number(&row, "version") + 1);
            self.check.lists(&Row::from(bad.clone()));
            model.replace(&list, bad, core.ms());
        }
    }
}
