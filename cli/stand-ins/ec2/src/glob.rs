//! The wildcards of EC2's filters ("List and filter using the CLI and API", EC2 User Guide):
//! `*` is any text, `?` any one character, and a backslash takes away their special meaning.

/// A parsed pattern.
pub(crate) struct Glob(Vec<Part>);

#[derive(PartialEq)]
enum Part {
    Any,
    One,
    Char(char),
}

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        let mut parts = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            parts.push(match c {
                '*' => Part::Any,
                '?' => Part::One,
                '\\' => Part::Char(chars.next().unwrap_or('\\')),
                c => Part::Char(c),
            });
        }
        Self(parts)
    }

    /// Whether the pattern matches the whole text. The match is case-sensitive.
    ///
    /// Only the last `*` is ever tried again, so the time is at most the product of the two
    /// lengths.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.as_slice();
        let mut rest = text.chars();
        let mut retry: Option<(&[Part], std::str::Chars<'_>)> = None;
        loop {
            match parts.split_first() {
                Some((Part::Any, after)) => {
                    retry = Some((after, rest.clone()));
                    parts = after;
                    continue;
                }
                Some((part, after)) => {
                    if let Some(c) = rest.next()
                        && (*part == Part::One || *part == Part::Char(c))
                    {
                        parts = after;
                        continue;
                    }
                }
                None if rest.as_str().is_empty() => return true,
                None => {}
            }
            let Some((after, from)) = &mut retry else { return false };
            if from.next().is_none() {
                return false;
            }
            parts = after;
            rest = from.clone();
        }
    }
}
