//! Patterns of paths, as a shell reads them: `results/*.csv`, `run-?/log`, `**/[a-c]*.png`.
//!
//! ```text
//! *       any characters of one name, but no dot at its beginning
//! ?       one character of a name
//! [a-c_]  one of these characters; [!a-c] one that is none of these
//! **      as a whole part: any number of folders, which are not hidden; at the end, all that is in them and is not hidden
//! ```
//!
//! Guarantees: a path without one of `*?[` is no pattern; matching takes no more time than the product of the two lengths.
//! Does not: read a disk.

/// A pattern for paths in the work directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<String>);

/// How a path and a pattern go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// The pattern names the path, or a folder that it is in.
    Yes,
    /// The pattern names the path, and says of each path in it whether it names that too.
    Alone,
    /// The path may be a folder with something that the pattern names.
    Above,
    No,
}

/// The part of a pattern that stands for any number of folders.
const FOLDERS: &str = "**";

fn is_special(c: char) -> bool {
    matches!(c, '*' | '?' | '[')
}

impl Pattern {
    /// `None` if the path names one thing only.
    pub fn of(path: &str) -> Option<Self> {
        let end = if path.split('/').next_back() == Some(FOLDERS) { Some("*") } else { None };
        path.contains(is_special).then(|| Self(path.split('/').chain(end).map(str::to_owned).collect()))
    }

    /// Whether the pattern names everything that is not hidden, at any depth. Then it takes no folder whole.
    fn names_each(&self) -> bool {
        matches!(self.0.as_slice(), [.., folders, all] if folders == FOLDERS && all == "*")
    }

    /// The folder that contains all that the pattern names: its parts before the first special character. May be empty.
    pub fn folder(&self) -> String {
        let plain = self.0.iter().take_while(|part| !part.contains(is_special));
        plain.map(String::as_str).collect::<Vec<_>>().join("/")
    }

    /// How the pattern matches a path, which is given by its parts.
    pub fn matches<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> Matching {
        // The places in the pattern that the path up to now leads to.
        let mut places = self.from([0]);
        for name in path {
            if places.contains(&self.0.len()) && !self.names_each() {
                return Matching::Yes;
            }
            let next = places.iter().filter_map(|place| match self.0.get(*place)?.as_str() {
                FOLDERS => (!name.starts_with('.')).then_some(*place),
                part => is_match(part, name).then_some(place.saturating_add(1)),
            });
            places = self.from(next);
        }
        match places.contains(&self.0.len()) {
            true if self.names_each() => Matching::Alone,
            true => Matching::Yes,
            false if places.is_empty() => Matching::No,
            false => Matching::Above,
        }
    }

    /// These places, and those that come after any number of folders from there.
    fn from(&self, places: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut reached = vec![false; self.0.len().saturating_add(1)];
        for mut place in places {
            while let Some(is_new) = reached.get_mut(place).filter(|is_reached| !**is_reached) {
                *is_new = true;
                if self.0.get(place).is_some_and(|part| part == FOLDERS) {
                    place = place.saturating_add(1);
                }
            }
        }
        reached.into_iter().enumerate().filter(|(_, is_reached)| *is_reached).map(|(place, _)| place).collect()
    }
}

/// Whether a part of a pattern names this file or folder.
fn is_match(part: &str, name: &str) -> bool {
    if name.starts_with('.') && !part.starts_with('.') {
        return false;
    }
    let (part, name): (Vec<char>, Vec<char>) = (part.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last star is, and the character up to which it has taken the name.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = name.get(n).and_then(|c| one(part.get(p..)?, *c));
        if part.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(length) = step {
            (p, n) = (p.saturating_add(length), n + 1);
        } else if let Some((at, taken)) = star {
            (p, n) = (at + 1, taken + 1);
            star = Some((at, taken + 1));
        } else {
            return false;
        }
    }
    part.iter().skip(p).all(|c| *c == '*')
}

/// How long the beginning of a pattern is that names this one character; `None` if it does not.
fn one(part: &[char], c: char) -> Option<usize> {
    match *part.first()? {
        '?' => Some(1),
        '[' => match set(part) {
            Some((is_in, length)) => is_in(c).then_some(length),
            None => (c == '[').then_some(1),
        },
        plain => (plain == c).then_some(1),
    }
}

/// The set of characters at the beginning of a pattern, and its length. A bracket that is not closed is a plain character.
fn set(part: &[char]) -> Option<(impl Fn(char) -> bool, usize)> {
    let is_negated = matches!(part.get(1), Some('!' | '^'));
    let from = if is_negated { 2 } else { 1 };
    // A closing bracket that comes first belongs to the set.
    let length = part.iter().skip(from + 1).position(|c| *c == ']')? + from + 1;
    let all: Vec<char> = part.get(from..length)?.to_vec();
    let is_in = move |c: char| {
        let mut n = 0;
        let mut found = false;
        while let Some(first) = all.get(n) {
            match (all.get(n + 1), all.get(n + 2)) {
                (Some('-'), Some(last)) => (found, n) = (found || (*first..=*last).contains(&c), n + 3),
                _ => (found, n) = (found || *first == c, n + 1),
            }
        }
        found != is_negated
    };
    Some((is_in, length + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_what_a_shell_would_name() {
        use Matching::{Above, Alone, No, Yes};
        for (pattern, path, expected) in [
            ("*.csv", "a.csv", Yes),
            ("*.csv", ".a.csv", No),
            (".*", ".a", Yes),
            ("*.csv", "a.csv.gz", No),
            ("*.csv", "d/a.csv", No),
            ("*", "d", Yes),
            ("*", "d/deep/f", Yes),
            ("res*.csv", "results.csv", Yes),
            ("a*b*c", "aXbYbZc", Yes),
            ("a*b*c", "aXbYbZ", No),
            ("r/*.csv", "r", Above),
            ("r/*.csv", "s", No),
            ("r/*.csv", "r/a.csv", Yes),
            ("r/*/log", "r/7", Above),
            ("r/*/log", "r/7/log", Yes),
            ("r/*/log", "r/7/8/log", No),
            ("**/f", "f", Yes),
            ("**/f", "a/b/f", Yes),
            ("**/f", "a/b", Above),
            ("**/f", ".git/f", No),
            ("a/**/f", "a/f", Yes),
            ("a/**", "a", Above),
            ("a/**", "a/b/c", Alone),
            ("a/**", "a/.b", No),
            ("a/**", "a/b/.c", No),
            ("a/**", "a/.b/c", No),
            ("a/**/*", "a/b/.c", No),
            ("**", "a", Alone),
            ("**", ".a/b", No),
            ("**/d*", "x/d1/.c", Yes),
            ("a/**/b/**/f", "a/x/b/y/z/f", Yes),
            ("run-?", "run-7", Yes),
            ("run-?", "run-17", No),
            ("run-??", "run-é7", Yes),
            ("[a-c]x", "bx", Yes),
            ("[!a-c]x", "bx", No),
            ("[^a-c]x", "dx", Yes),
            ("[]x]", "]", Yes),
            ("[a", "[a", Yes),
            ("[a-]", "-", Yes),
            ("*[", "x[", Yes),
        ] {
            assert_eq!(Pattern::of(pattern).unwrap().matches(path.split('/')), expected, "{pattern} {path}");
        }
        for plain in ["a", "a/b.c", "a]", "!a", "{a,b}"] {
            assert_eq!(Pattern::of(plain), None, "{plain}");
        }
    }

    #[test]
    fn a_pattern_says_which_folder_to_look_in() {
        for (pattern, folder) in [("*.csv", ""), ("r/x/*.csv", "r/x"), ("r/[ab]/c", "r"), ("**/f", "")] {
            assert_eq!(Pattern::of(pattern).unwrap().folder(), folder);
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_long_time() {
        let pattern = Pattern::of(&"*a".repeat(120)).unwrap();
        assert_eq!(pattern.matches(["a".repeat(255).as_str()].map(|name| name.trim_end_matches('b'))), Matching::Yes);
        let folders = Pattern::of(&format!("{}f", "**/".repeat(100))).unwrap();
        assert_eq!(folders.matches(["a"; 100]), Matching::Above);
    }
}
