//! `--watch`: shows a list again and again.
//!
//! Guarantees: on a terminal each look replaces the one before; in a pipe the looks follow each other. A failed look is shown,
//! and the next one follows; after several failed looks in a row the command fails.
//! Does not: know what it shows.

use crate::console::show::{self, Screen};
use crate::console::{CommandOutcome, Context};
use model::time::Time;
use std::time::Duration;

/// The time between two looks. Each look reads the whole cluster, as a run does.
const PERIOD: Duration = Duration::from_secs(5);
const FAILED_READS: u32 = 5;

/// The output of a look.
#[derive(Debug, Default)]
pub(super) struct Screenful {
    pub(super) out: Vec<u8>,
    pub(super) err: Vec<u8>,
    pub(super) colours: bool,
}

pub(crate) async fn pause() -> bool {
    tokio::time::sleep(PERIOD).await;
    true
}

pub(super) async fn once(
    context: &mut Context<'_>,
    look: impl AsyncFn(Time, &mut Screenful) -> anyhow::Result<()>,
) -> anyhow::Result<CommandOutcome> {
    let mut page = Screenful { colours: context.colours, ..Screenful::default() };
    let looked = look(context.now(), &mut page).await;
    context.err.write_all(&page.err)?;
    context.out.write_all(&page.out)?;
    looked.map(|()| CommandOutcome::Done)
}

/// Repeats the look until `pause` says that no other follows.
pub(super) async fn repeat(
    context: &mut Context<'_>,
    look: impl AsyncFn(Time, &mut Screenful) -> anyhow::Result<()>,
    pause: impl AsyncFn() -> bool,
) -> anyhow::Result<CommandOutcome> {
    let (mut failed, mut is_first) = (0, true);
    loop {
        let (mut page, now) = (Screenful { colours: context.colours, ..Screenful::default() }, context.now());
        match look(now, &mut page).await {
            Ok(()) => failed = 0,
            Err(e) if failed + 1 < FAILED_READS => {
                failed += 1;
                page.err.extend(format!("nodekeeper: {}: looking again\n", show::error(&e)).into_bytes());
            }
            Err(e) => return Err(e),
        }
        let text = [now.to_string().into_bytes(), b"\n".to_vec(), page.out, page.err].concat();
        match context.screen {
            // Each line is written over the old one from the top left corner on, and the rest is erased. So the screen does not
            // flicker.
            Screen::Terminal => {
                let begin = if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" };
                context.out.write_all(begin.as_bytes())?;
                for line in text.split_inclusive(|b| *b == b'\n') {
                    context.out.write_all(line.strip_suffix(b"\n").unwrap_or(line))?;
                    context.out.write_all(b"\x1b[K\n")?;
                }
                context.out.write_all(b"\x1b[J")?;
            }
            Screen::Pipe => context.out.write_all(&text)?,
        }
        context.out.flush()?;
        is_first = false;
        if !pause().await {
            return Ok(CommandOutcome::Done);
        }
    }
}
