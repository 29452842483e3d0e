//! `history`: what happened to something, and why.
//!
//! A job or an alloc has a story, other subjects have their events: the oldest first.
//!
//! Guarantees: shows everything stored about the subject, up to `--limit`.
//! Does not: know what happened before the oldest stored event.

use crate::console::show::{self, Rows, moment};
use crate::console::{Cluster, Context, UsageError};
use crate::view::find::{Finder, NoSuch};
use crate::view::story::{self, Happening};
use clap::Args;
use model::{NodeId, Subject, Time};

#[derive(Args, Clone, Debug)]
pub struct HistoryArgs {
    /// A slot, node, job or alloc by its number, its id or a part of it, a job by its name, or `cluster`
    subject: String,
    /// The most events to show, the newest ones [default: 50; for a job or an alloc 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1000))]
    limit: Option<i32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses a subject: `7` and `slot#7` are the same.
pub(crate) fn subject(text: &str) -> Result<Subject, UsageError> {
    let (kind, name) = text.split_once('#').map_or((None, text), |(kind, name)| (Some(kind), name));
    let slot = name.parse().ok().or_else(|| Some(name.parse::<NodeId>().ok()?.slot()));
    let by_kind = [
        ("slot", slot.map(Subject::Slot)),
        ("job", name.parse().ok().map(Subject::Job)),
        ("alloc", name.parse().ok().map(Subject::Alloc)),
    ];
    let mut found = by_kind.into_iter().filter(|(of, _)| kind.is_none_or(|kind| kind == *of));
    let found = found.find_map(|(_, subject)| subject).or_else(|| (text == "cluster").then_some(Subject::Cluster));
    found.ok_or_else(|| {
        let given: String = show::one_line(text).chars().take(80).collect();
        UsageError(format!(
            "{given} is not a subject: give a slot, the id of a node, job or alloc or a part of it, the name of a job, or cluster"
        ))
    })
}

pub(crate) async fn run(context: &mut Context<'_>, args: &HistoryArgs) -> anyhow::Result<()> {
    let known = subject(&args.subject);
    let (cluster, now) = (context.cluster().await?, context.now());
    let subject = match known {
        Ok(subject) => subject,
        Err(unknown) => find(&cluster, &args.subject, unknown).await?,
    };
    let story = story::of(&cluster.store, &subject, args.limit).await?;
    if args.json {
        return show::json(context.out, &story);
    }
    if story.is_empty() {
        writeln!(context.out, "nothing is stored about {subject}")?;
    }
    Ok(table(&story, now).print(context.out)?)
}

/// Shows each time in three ways: exact, relative to now, and since the beginning of the story.
pub(super) fn table(story: &[Happening], now: Time) -> Rows {
    let begin = story.first().map_or(now, |h| h.at);
    let cells = |Happening { at, subject, action, reason }: &Happening| {
        [moment(*at, now), at.since(begin).to_string(), action.clone(), subject.clone(), reason.clone()]
    };
    Rows::of(&["WHEN", "AFTER", "WHAT", "SUBJECT", "REASON"], story.iter().map(cells))
}

/// The job, alloc or node of a name or of a part of an id.
async fn find(cluster: &Cluster, text: &str, unknown: UsageError) -> anyhow::Result<Subject> {
    let mut finder = Finder::new(cluster);
    match finder.work_of_one(text).await {
        Ok((id, alloc)) => return Ok(alloc.map_or(Subject::Job(id), Subject::Alloc)),
        Err(e) if e.is::<NoSuch>() => {}
        Err(e) => return Err(e),
    }
    match finder.slot(text).await {
        Ok(slot) => Ok(Subject::Slot(slot)),
        Err(e) if e.is::<NoSuch>() => Err(unknown.into()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_known_by_their_plain_names() {
        let job = "01JD0000000000000000000000";
        for (said, meant) in [
            ("7", "slot#7".to_owned()),
            ("slot#7", "slot#7".to_owned()),
            ("7-01JD0000000000000000000000", "slot#7".to_owned()),
            (job, format!("job#{job}")),
            ("job#01JD0000000000000000000000", format!("job#{job}")),
            ("01JD0000000000000000000000.0.1", format!("alloc#{job}.0.1")),
            ("cluster", "cluster".to_owned()),
        ] {
            assert_eq!(subject(said).unwrap().to_string(), meant, "{said}");
        }
        for bad in ["", "slot#x", "job#7", "sweep", "100000", "x#cluster", "sweep-dispatch"] {
            assert!(subject(bad).is_err(), "{bad}");
        }
    }
}
