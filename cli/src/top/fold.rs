//! Breaks text into lines of a width.

use ratatui::text::Span;

/// The lines of a text, none wider than `width` columns. What does not fit into a line continues on lines that are indented by
/// `indent` columns.
pub(super) fn fold(text: &str, width: usize, indent: usize) -> Vec<String> {
    let width = width.max(2);
    let indent = if indent + 8 > width { 0 } else { indent };
    let mut lines = Vec::new();
    for part in text.split('\n') {
        let (mut line, mut wide) = (String::new(), 0);
        // The position after the last space, at which the line can be broken.
        let mut word = None;
        for c in part.chars() {
            let more = Span::raw(c.encode_utf8(&mut [0; 4]).to_owned()).width();
            if wide + more > width {
                // The last word goes to the next line, if it fits there.
                let last = |at: &usize| line.get(*at..).map_or(width, |rest| Span::raw(rest).width());
                let at = word.take().filter(|at| indent + last(at) + more <= width);
                let rest = at.map(|at| line.split_off(at)).unwrap_or_default();
                lines.push(line.trim_end().to_owned());
                line = " ".repeat(indent) + &rest;
                wide = Span::raw(line.as_str()).width();
            }
            line.push(c);
            wide += more;
            if c == ' ' && line.trim().len() > 1 {
                word = Some(line.len());
            }
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_the_screen_and_nothing_is_lost() {
        assert_eq!(fold("one two three", 40, 4), ["one two three"]);
        assert_eq!(fold("one two three four five", 14, 4), ["one two three", "    four five"]);
        assert_eq!(fold("abcdefghij", 4, 0), ["abcd", "efgh", "ij"]);
        assert_eq!(fold("a\n\nb", 10, 2), ["a", "", "b"]);
        assert_eq!(fold("日本語日本語", 5, 2), ["日本", "語日", "本語"], "wide characters take two columns");
        for width in 1..30 {
            for indent in 0..30 {
                let text = "the quick brown fox jumps_over_the_lazy_dog and so on";
                let lines = fold(text, width, indent);
                assert!(lines.iter().all(|line| line.chars().count() <= width.max(2)), "{width} {indent} {lines:?}");
                let kept: String = lines.concat().split_whitespace().collect();
                assert_eq!(kept, text.replace(' ', ""), "{width} {indent}");
            }
        }
    }
}
