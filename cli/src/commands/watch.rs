//! `--watch`: shows a list again and again.
//!
//! Guarantees: on a terminal each list replaces the one before; in a pipe they follow each other. An error is shown,
//! and the next one follows; after several failed reads in a row the command fails.
//! Does not: know what it shows.

use crate::console::show::{self, Screen};
use crate::console::{Context, Exit};
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

/// The time between two reads. Each reads the whole cluster, as a run does.
const PERIOD: Duration = Duration::from_secs(5);
const FAILED_READS: u32 = 5;

/// Runs a command that shows the cluster: once, or again and again until Ctrl-C.
pub(crate) async fn show(
    context: &mut Context<'_>,
    is_watched: bool,
    look: impl AsyncFn(&mut Context<'_>) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    if !is_watched {
        return look(context).await;
    }
    let pause = async || {
        tokio::time::sleep(PERIOD).await;
        true
    };
    let rows = || crossterm::terminal::window_size().map_or(usize::MAX, |size| usize::from(size.rows));
    repeat(context, look, rows, pause).await
}

/// Repeats the command until `pause` says that this was the last time. `rows` is the height of the terminal.
pub(super) async fn repeat(
    context: &mut Context<'_>,
    look: impl AsyncFn(&mut Context<'_>) -> anyhow::Result<Exit>,
    rows: impl Fn() -> usize,
    pause: impl AsyncFn() -> bool,
) -> anyhow::Result<Exit> {
    let connected = context.cluster().await?;
    let (mut failed, mut is_first) = (0, true);
    loop {
        let (mut out, mut err, now) = (Vec::new(), Vec::new(), context.now());
        let mut page = Context {
            connect: connected.as_connected(),
            clock: Arc::new(move || now),
            input: &mut io::empty(),
            out: &mut out,
            err: &mut err,
            screen: context.screen,
            err_screen: context.err_screen,
            in_screen: context.in_screen,
            colours: context.colours,
        };
        match look(&mut page).await {
            Ok(_) => failed = 0,
            Err(e) if failed + 1 < FAILED_READS => {
                failed += 1;
                writeln!(page.err, "nodekeeper: {}: looking again", show::error(&e))?;
            }
            Err(e) => return Err(e),
        }
        let text = [now.to_string().into_bytes(), b"\n".to_vec(), out, err].concat();
        match context.screen {
            // Each line is written over the old one from the top left corner on, and the rest is erased. So the screen does not
            // flicker. The terminal cuts lines at its edge. What does not fit below is counted, so that the head stays in sight.
            Screen::Terminal => {
                let begin = if is_first { "\x1b[?7l\x1b[2J\x1b[H" } else { "\x1b[?7l\x1b[H" };
                let (mut page, all) = (begin.as_bytes().to_vec(), text.iter().filter(|b| **b == b'\n').count());
                let shown = if all < rows() { all } else { rows().saturating_sub(2) };
                for line in text.split_inclusive(|b| *b == b'\n').take(shown) {
                    page.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
                    page.extend_from_slice(b"\x1b[K\n");
                }
                if shown < all {
                    write!(page, "and {} more lines\x1b[K", all - shown)?;
                }
                page.extend_from_slice(b"\x1b[J\x1b[?7h");
                context.out.write_all(&page)?;
            }
            Screen::Pipe => context.out.write_all(&text)?,
        }
        context.out.flush()?;
        is_first = false;
        if !pause().await {
            return Ok(Exit::Done);
        }
    }
}
