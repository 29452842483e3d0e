//! Panics in a world: each one fails the world, in whichever task it happens.
//!
//! The runtime of a world catches a panic of a spawned task, and a task that waits for it sees only an error. So the
//! hook of the process notes every panic of a thread while a world runs on this thread.
//!
//! Guarantees: the message and the place of the first panic are kept.
//! Does not: stop the world at once. The world looks here every simulated minute, and at its end.

use crate::fault::Broken;
use model::Time;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;

/// The name of the rule that a panic breaks.
pub const RULE: &str = "invariant_nothing_panics";

thread_local! {
    /// The panics of the world that runs on this thread; `None` while no world runs.
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Records the panics of this thread from now on. Earlier ones are forgotten.
pub fn listen() {
    HOOK.call_once(|| {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let _ = HEARD.try_with(|heard| {
                if let Ok(mut heard) = heard.try_borrow_mut()
                    && let Some(heard) = heard.as_mut()
                {
                    heard.push(info.to_string());
                }
            });
            earlier(info);
        }));
    });
    HEARD.with(|heard| *heard.borrow_mut() = Some(Vec::new()));
}

pub fn stop_listening() {
    HEARD.with(|heard| *heard.borrow_mut() = None);
}

/// The message of the first panic of this thread since [`listen`], with its place.
pub fn first() -> Option<String> {
    HEARD.with(|heard| heard.borrow().as_ref()?.first().cloned())
}

/// The broken invariant of a world with this seed in which something panicked.
pub fn broken(seed: u64, who: &str, at: Time) -> Broken {
    let message = first().unwrap_or_else(|| "the message is not known".into());
    Broken { rule: RULE, what: format!("seed {seed}: {who}: {message}"), at }
}
