//! Prints bytes of an output, each stream to its place.
//!
//! Guarantees: a terminal obeys nothing in the output; elsewhere each byte is printed as it is. Of the last lines, none is
//! printed before all of them are there. Where no more can be written, such as on a full disk, nothing more is printed, and that is known.
//! Does not: know where the bytes come from, or whether some are missing.

use crate::console::{Context, Screen, show};
use model::{Stream, Switches};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;

/// How many bytes are read for each wanted line. If lines are longer, fewer lines are printed.
const BYTES_A_LINE: u64 = 400;
/// The most bytes that are read for the wanted lines.
const MAX_LINES_BYTES: u64 = 64 << 20;

/// Where the two streams of a job are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Each to the stream of this command with the same name.
    Apart,
    /// Both to standard output, in the order in which they came.
    Together,
    /// Only this one, to standard output.
    Only(Stream),
}

impl Route {
    /// How many bytes at the end of an output are read for this many last lines; `None`: all of it.
    pub(crate) fn last_bytes(self, lines: usize) -> Option<u64> {
        match self {
            Self::Apart | Self::Together => {
                Some((lines as u64).saturating_mul(BYTES_A_LINE).saturating_add(64 << 10).min(MAX_LINES_BYTES))
            }
            // The beginning of the last lines of one stream is known only after all is read.
            Self::Only(_) => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    bytes: Vec<u8>,
    switches: Switches,
}

impl Text {
    pub(crate) fn new(bytes: &[u8], switches: Switches) -> Self {
        Self { bytes: bytes.to_vec(), switches }
    }

    /// Adds the parts of a text that this route prints.
    pub(crate) fn add(&mut self, route: Route, other: &Self) {
        for (stream, bytes) in other.parts(route) {
            self.switches.note(self.bytes.len() as u64, stream);
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn parts(&self, route: Route) -> impl Iterator<Item = (Stream, &[u8])> {
        let prints = move |stream: Stream| !matches!(route, Route::Only(only) if only != stream);
        self.switches.split(&self.bytes).filter(move |(stream, _)| prints(*stream))
    }

    /// The text from this byte on.
    pub(crate) fn from(&self, from: u64) -> Self {
        let bytes = usize::try_from(from).ok().and_then(|from| self.bytes.get(from..)).unwrap_or_default();
        Self::new(bytes, self.switches.part(from, 0))
    }

    /// The text before this byte.
    fn up_to(mut self, to: u64) -> Self {
        self.bytes.truncate(usize::try_from(to).unwrap_or(usize::MAX));
        self
    }

    /// The number of lines. The last line may lack its line end.
    pub(crate) fn lines(&self) -> usize {
        let ends = self.bytes.iter().filter(|byte| **byte == b'\n').count();
        ends.saturating_add(usize::from(self.bytes.last().is_some_and(|byte| *byte != b'\n')))
    }
}

/// The position at which the last lines of a text begin.
fn begin_of_last(text: &[u8], lines: usize) -> usize {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match lines.checked_sub(1) {
        None => text.len(),
        Some(before) => ends.map(|(at, _)| at.saturating_add(1)).nth(before).unwrap_or(0),
    }
}

/// Prints the bytes of one output in order.
pub(crate) struct Printer {
    pub(crate) route: Route,
    /// Only these bytes of the output are printed; `None`: all.
    pub(crate) only: Option<Range<u64>>,
    /// How many bytes have come.
    came: u64,
    /// The beginnings of characters whose rest has not come: of standard output, and of standard error.
    begun: [Vec<u8>; 2],
    /// The number of last lines to hold back, the last lines of what has come, and whether these begin with a whole line, wherever in the output the reading began.
    pub(crate) tail: Option<(usize, Text, bool)>,
    /// Whether something could not be written.
    pub(crate) is_cut: bool,
}

impl Printer {
    pub(crate) const fn new(route: Route) -> Self {
        Self { route, only: None, came: 0, begun: [Vec::new(), Vec::new()], tail: None, is_cut: false }
    }

    /// From now on, holds back this many last lines of what comes, until `release`. `None`: prints all as it comes.
    pub(crate) fn hold(&mut self, lines: Option<usize>) {
        self.tail = lines.map(|lines| (lines, Text::default(), false));
    }

    /// Prints the lines that were held back. What comes later is printed as it comes.
    pub(crate) fn release(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        match self.tail.take() {
            Some((_, last, _)) => self.print(context, &last),
            None => Ok(()),
        }
    }

    pub(crate) fn print(&mut self, context: &mut Context<'_>, text: &Text) -> anyhow::Result<()> {
        let (route, begin) = (self.route, self.came);
        if let Some((lines, last, is_whole)) = &mut self.tail {
            last.add(route, text);
            let begin = begin_of_last(&last.bytes, *lines) as u64;
            *is_whole |= begin > 0;
            *last = last.from(begin);
            return Ok(());
        }
        self.came = begin.saturating_add(text.bytes.len() as u64);
        let cut = self.only.as_ref().map(|only| {
            text.from(only.start.saturating_sub(begin)).up_to(only.end.saturating_sub(begin.max(only.start)))
        });
        let text = cut.as_ref().unwrap_or(text);
        let written = self.write(context, text);
        self.unless_cut(context, written)
    }

    fn write(&mut self, context: &mut Context<'_>, text: &Text) -> io::Result<()> {
        for (stream, bytes) in text.parts(self.route).filter(|_| !self.is_cut) {
            let [of_out, of_err] = &mut self.begun;
            let begun = if stream == Stream::Out { of_out } else { of_err };
            let (to, screen) = target(context, self.route, stream);
            if screen == Screen::Pipe {
                to.write_all(bytes)?;
            } else {
                print_text(to, begun, bytes, screen)?;
            }
        }
        context.err.flush()?;
        context.out.flush()
    }

    /// A closed pipe is an error: nobody reads on. Any other error cuts the output off, and the job goes on.
    fn unless_cut(&mut self, context: &mut Context<'_>, written: io::Result<()>) -> anyhow::Result<()> {
        match written {
            Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                if !std::mem::replace(&mut self.is_cut, true) {
                    // Standard error may be on the same full disk.
                    let _ = writeln!(context.err, "nodekeeper: {e}: the rest of the output is not printed");
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Prints the beginning of a character that will not get its rest. Drops lines that are still held back, because some are
    /// missing.
    pub(crate) fn end(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        self.tail = None;
        let begun = std::mem::take(&mut self.begun);
        let mut streams = [Stream::Out, Stream::Err].into_iter().zip(begun).filter(|_| !self.is_cut);
        let written = streams.try_for_each(|(stream, begun)| {
            let (to, _) = target(context, self.route, stream);
            write!(to, "{}", String::from_utf8_lossy(&begun))?;
            to.flush()
        });
        self.unless_cut(context, written)
    }
}

fn target<'a>(context: &'a mut Context<'_>, route: Route, stream: Stream) -> (&'a mut (dyn Write + Send), Screen) {
    match (route, stream) {
        (Route::Apart, Stream::Err) => (&mut *context.err, context.err_screen),
        _ => (&mut *context.out, context.screen),
    }
}

/// Prints bytes as text that a terminal does not obey. The beginning of a character at the end stays in `part`.
fn print_text(to: &mut (dyn Write + Send), part: &mut Vec<u8>, bytes: &[u8], screen: Screen) -> io::Result<()> {
    part.extend_from_slice(bytes);
    let last = part.utf8_chunks().last().map(|chunk| chunk.invalid()).unwrap_or_default();
    let is_begun = std::str::from_utf8(last).is_err_and(|e| e.error_len().is_none());
    let whole = part.len().saturating_sub(if is_begun { last.len() } else { 0 });
    let begun = part.split_off(whole);
    write!(to, "{}", show::output(&String::from_utf8_lossy(part), screen))?;
    *part = begun;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Time;

    fn text(text: &[u8]) -> Text {
        Text::new(text, Switches::default())
    }

    #[test]
    fn the_last_lines_of_a_text() {
        let of = |bytes: &[u8], lines| text(bytes).from(begin_of_last(bytes, lines) as u64).bytes;
        let last = |lines| of(b"one\ntwo\nthree\n", lines);
        let expected: [&[u8]; 5] = [b"", b"three\n", b"two\nthree\n", b"one\ntwo\nthree\n", b"one\ntwo\nthree\n"];
        assert_eq!([0, 1, 2, 3, 9].map(last), expected);
        let short: [&[u8]; 4] = [b"b", b"", b"\n", b"\xff\n"];
        assert_eq!([of(b"a\nb", 1), of(b"", 3), of(b"\n", 1), of(b"a\n\xff\n", 1)], short);
        assert_eq!([&b"a\nb\n"[..], b"a\nb", b"", b"\n"].map(|bytes| text(bytes).lines()), [2, 2, 0, 1]);
    }

    fn context<'a>(
        screen: Screen,
        input: &'a mut (dyn io::BufRead + Send),
        out: &'a mut (dyn Write + Send),
        err: &'a mut (dyn Write + Send),
    ) -> Context<'a> {
        Context {
            screen,
            err_screen: screen,
            in_screen: Screen::Pipe,
            colours: false,
            connect: Box::new(|| Box::pin(async { anyhow::bail!("not connected") })),
            clock: std::sync::Arc::new(|| Time::from_ms(0)),
            input,
            out,
            err,
        }
    }

    /// What is printed on standard output and standard error.
    fn print(route: Route, screen: Screen, pieces: &[Text]) -> (Vec<u8>, Vec<u8>) {
        let (mut out, mut err, mut input) = (Vec::new(), Vec::new(), &b""[..]);
        let mut context = context(screen, &mut input, &mut out, &mut err);
        let mut printer = Printer::new(route);
        pieces.iter().for_each(|piece| printer.print(&mut context, piece).unwrap());
        printer.end(&mut context).unwrap();
        (out, err)
    }

    #[test]
    fn a_character_that_comes_in_two_pieces_is_printed_whole() {
        let euro: [&[u8]; 4] = [b"a\xe2", b"\x82", b"\xac\xff", b"\x1b\xe2"];
        let euro = euro.map(text);
        let (printed, _) = print(Route::Apart, Screen::Terminal, &euro);
        assert_eq!(String::from_utf8(printed).unwrap(), "a€\u{fffd}\\x1b\u{fffd}");
        assert_eq!(print(Route::Apart, Screen::Pipe, &euro).0, b"a\xe2\x82\xac\xff\x1b\xe2");
    }

    #[test]
    fn each_stream_goes_its_own_way() {
        let mixed = [Text::new(b"o1e1", Switches::new(vec![2])), Text::new(b"e2o2", Switches::new(vec![0, 2]))];
        let of = |route| print(route, Screen::Pipe, &mixed);
        assert_eq!(of(Route::Apart), (b"o1o2".to_vec(), b"e1e2".to_vec()));
        assert_eq!(of(Route::Together), (b"o1e1e2o2".to_vec(), Vec::new()));
        assert_eq!(of(Route::Only(Stream::Err)), (b"e1e2".to_vec(), Vec::new()));
        assert_eq!(of(Route::Only(Stream::Out)), (b"o1o2".to_vec(), Vec::new()));
        // The other stream does not split a character.
        let torn = [Text::new(b"\xe2\x82e\xac", Switches::new(vec![2, 3]))];
        assert_eq!(print(Route::Apart, Screen::Terminal, &torn), ("€".into(), b"e".to_vec()));
        let mut held = Text::default();
        mixed.iter().for_each(|piece| held.add(Route::Together, piece));
        assert_eq!(held, Text::new(b"o1e1e2o2", Switches::new(vec![2, 6])));
        assert_eq!(held.from(3), Text::new(b"1e2o2", Switches::new(vec![0, 3])));
    }

    /// A disk with room for so many bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.0.min(bytes.len());
            self.0 -= room;
            if room == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(room) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_does_not_fit_on_the_disk_is_cut_once_and_that_is_known() {
        for room in 0..10 {
            let (mut out, mut err, mut input) = (Disk(room), Vec::new(), &b""[..]);
            let mut context = context(Screen::Pipe, &mut input, &mut out, &mut err);
            let mut printer = Printer::new(Route::Apart);
            [b"ab\n", b"cd\n", b"ef\n"].iter().for_each(|piece| printer.print(&mut context, &text(*piece)).unwrap());
            printer.end(&mut context).unwrap();
            assert_eq!(printer.is_cut, room < 9, "{room}");
            let said = String::from_utf8(err).unwrap();
            assert_eq!(said.lines().count(), usize::from(room < 9), "{room}: {said}");
        }
    }
}
