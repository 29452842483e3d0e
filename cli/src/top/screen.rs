//! The terminal: draws, takes keys, and restores the terminal.
//!
//! Guarantees: the terminal is restored, whatever ends `top`: a key, a signal, an error, or a panic.
//! Does not: decide anything. `keys` and `state` do.

use super::draw::draw;
use super::keys::press;
use super::operator_action::OperatorAction;
use super::paint::Paint;
use super::reader::{self, RefreshRequest, Update};
use super::state::{Effect, State};
use crate::console::signals::Signals;
use crate::console::{Clock, Cluster, show};
use crate::view::Views;
use anyhow::Context as _;
use futures::future::{FutureExt, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The screen is redrawn this often, because it shows ages.
const TICK: Duration = Duration::from_secs(1);
/// How many messages may wait in a channel.
const WAITING: usize = 64;

/// Restores the terminal when it is dropped.
struct Screen(DefaultTerminal);

impl Screen {
    fn new() -> io::Result<Self> {
        let screen = ratatui::try_init();
        if screen.is_err() {
            let _ = ratatui::try_restore();
        }
        screen.map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = ratatui::try_restore();
    }
}

struct Loop {
    cluster: Cluster,
    clock: Clock,
    views: Arc<Views>,
    asked: watch::Sender<RefreshRequest>,
    /// The changes that are under way.
    actions: FuturesUnordered<LocalBoxFuture<'static, Result<String, String>>>,
    state: State,
}

/// Shows the cluster until a key or a signal ends it.
pub(super) async fn run(cluster: Cluster, views: Arc<Views>, clock: Clock, paint: Paint) -> anyhow::Result<()> {
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let (asked, wanted) = watch::channel(RefreshRequest::default());
    let (news, mut news_in) = mpsc::channel(WAITING);
    let reading = [
        tokio::spawn(reader::lists(Arc::clone(&views), wanted.clone(), news.clone())),
        tokio::spawn(reader::details(Arc::clone(&views), wanted, news)),
    ];
    let mut on = Loop { cluster, clock, views, asked, actions: FuturesUnordered::new(), state: State::default() };
    let mut screen = Screen::new().context("the terminal cannot be set up")?;
    let mut keys = keys();
    let mut tick = tokio::time::interval(TICK);
    let ended = loop {
        let now = (on.clock)();
        if let Err(e) = screen.0.draw(|frame| draw(frame, &mut on.state, now, paint)) {
            break Err(anyhow::Error::new(e).context("the terminal cannot be drawn on"));
        }
        tokio::select! {
            biased;
            () = signals.next() => break Ok(()),
            key = keys.recv() => match key {
                Some(Ok(Event::Key(key))) => {
                    let wish = press(&mut on.state, key);
                    if on.follow(wish) {
                        break Ok(());
                    }
                }
                // Every event redraws the screen, also a new size.
                Some(Ok(_)) => {}
                Some(Err(e)) => break Err(anyhow::Error::new(e).context("the keys cannot be read")),
                None => break Err(anyhow::anyhow!("the keys are no longer read")),
            },
            Some(said) = on.actions.next() => {
                on.state.said = Some(said);
                on.again();
            }
            Some(told) = news_in.recv() => match told {
                Update::Snapshot(seen) => on.state.saw(seen),
                Update::Failed(why) => on.state.failed((on.clock)(), why),
                Update::Detail(thing, read) => on.state.detailed(thing, read),
            },
            _ = tick.tick() => {}
        }
    };
    reading.iter().for_each(tokio::task::JoinHandle::abort);
    drop(screen);
    ended
}

impl Loop {
    /// Carries out the effect of a key. Returns whether `top` ends.
    fn follow(&self, wish: Option<Effect>) -> bool {
        match wish {
            None => {}
            Some(Effect::Quit) => return true,
            Some(Effect::Refresh) => self.again(),
            Some(Effect::Open(opened)) => self.asked.send_modify(|asked| asked.opened = opened),
            Some(Effect::Do(action)) => self.perform(action),
        }
        false
    }

    fn again(&self) {
        self.views.forget();
        self.asked.send_modify(|asked| asked.again = asked.again.wrapping_add(1));
    }

    /// Starts a change. Keys are taken meanwhile.
    fn perform(&self, action: OperatorAction) {
        let (cluster, clock) = (self.cluster.clone(), Arc::clone(&self.clock));
        let doing = async move { action.perform(&cluster, &clock).await.map_err(|e| show::error(&e)) };
        self.actions.push(doing.boxed_local());
    }
}

/// The events of the terminal. A thread waits for them, which ends with the program.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}
