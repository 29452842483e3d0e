//! Reads numbers from files of the kernel. A text without a number gives `None`, never 0.

pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind a word at the beginning of a line.
pub(super) fn behind(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| number(line.strip_prefix(word)?))
}
