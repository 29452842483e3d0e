//! `top`: the cluster in a terminal, as the page shows it.
//!
//! | where | what |
//! | --- | --- |
//! | `state` | the state of the screen, without clock, terminal or database |
//! | `keys`, `list` | the effect of each key; a list with a selected row and a filter |
//! | `draw`, `rows`, `detail`, `fold`, `paint` | draw the screen |
//! | `reader` | reads in the background what the page reads |
//! | `operator_action` | cancels and drains, as the commands do |
//! | `screen` | the terminal, and the loop |
//!
//! Guarantees: nothing is changed before a yes to a question that says what will happen. The terminal is restored at every end.
//! Reading costs as much as one viewer of the page.
//! Does not: read or change anything in a way of its own.

mod detail;
mod draw;
mod fold;
mod keys;
mod list;
mod operator_action;
mod paint;
mod reader;
mod rows;
mod screen;
mod state;
#[cfg(test)]
mod tests;

use crate::console::Context;
use crate::console::show::Screen;
use crate::view::{Source, Views};
use paint::Paint;
use std::sync::Arc;

/// The text of `--help` below the options.
pub(crate) const HELP: &str =
    "Example: nodekeeper top   then 2 for the jobs, /failed Enter for those that failed, Enter for why, ? for all keys";

pub(crate) async fn run(context: &mut Context<'_>) -> anyhow::Result<()> {
    if context.screen != Screen::Terminal {
        anyhow::bail!(
            "top needs a terminal, and standard output is none: `nodekeeper status`, `nodekeeper jobs` and `nodekeeper nodes` print the same as text"
        );
    }
    let cluster = context.cluster().await?;
    let source = Source::in_aws(&cluster, &context.clock);
    let paint = Paint { colours: context.colours };
    screen::run(cluster, Arc::new(Views::new(source)), Arc::clone(&context.clock), paint).await
}
