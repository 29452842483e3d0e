//! The tone of a word of a state: whether it has a colour, and which.
//!
//! Guarantees: an unknown word has no colour. A colour has no meaning of its own: the word is always there.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// On its way, or an operator may want to know of it.
    Warn,
    /// It failed, or somebody must act.
    Bad,
    /// No colour.
    Plain,
}

impl Tone {
    /// The tone of a state, a status or a mark of `status`.
    pub(crate) fn of(word: &str) -> Self {
        match word {
            "ok" | "ready" | "running" | "placed" | "complete" => Self::Good,
            "look" | "assigned" | "syncing" | "shutting_down" | "placing" | "regrouping" | "unknown" | "cancelled"
            | "hold" | "drain" | "stop" => Self::Warn,
            "WRONG" | "disconnected" | "down" | "failed" | "rejected" | "lost" => Self::Bad,
            _ => Self::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ClientStatus, Intent, JobState, NodeStateName, NodeStatus};

    /// A new state must get a tone, or be added to this list of words without a colour.
    #[test]
    fn every_state_has_a_tone_or_is_meant_to_have_none() {
        let words = JobState::ALL.iter().map(|w| w.as_str());
        let words = words.chain(NodeStatus::ALL.iter().map(|w| w.as_str()));
        let words = words.chain(NodeStateName::ALL.iter().map(|w| w.as_str()));
        let words = words.chain(ClientStatus::ALL.iter().map(|w| w.as_str()));
        let words = words.chain(Intent::ALL.iter().map(|w| w.as_str()));
        let plain: Vec<&str> = words.filter(|word| Tone::of(word) == Tone::Plain).collect();
        assert_eq!(plain, ["queued", "cleaned", "in_use", "pending", "run"]);
        assert_eq!([Tone::of("failed"), Tone::of("ready"), Tone::of("")], [Tone::Bad, Tone::Good, Tone::Plain]);
    }
}
