//! The stream of frames from the process that runs elements to its supervisor.
//!
//! ```text
//! kind (1 byte)  element (4 bytes)  length (4 bytes)  that many bytes
//! ```
//!
//! Guarantees: a reader finds the same frames however the stream is cut into parts; invalid input is detected, and uses little
//! memory.
//! Does not: trust the content. It comes from the job's own user, who may write anything.

use model::Outcome;

/// The longest content of a frame. A reader refuses a longer one.
pub const MAX_BYTES: usize = 64 << 10;
const HEAD: usize = 9;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameContent {
    Begin,
    Out(Vec<u8>),
    Err(Vec<u8>),
    /// `None` if the end has no outcome, because the alloc was told to stop.
    End(Option<Outcome>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub element: u32,
    pub content: FrameContent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process that runs the elements sent invalid data: a job wrote into its standard output")]
pub struct BadStream;

impl Frame {
    pub fn bytes(&self) -> Vec<u8> {
        let outcome =
            if let FrameContent::End(Some(outcome)) = &self.content { outcome.to_string() } else { String::new() };
        let (kind, content): (u8, &[u8]) = match &self.content {
            FrameContent::Begin => (0, &[]),
            FrameContent::Out(bytes) => (1, bytes),
            FrameContent::Err(bytes) => (2, bytes),
            FrameContent::End(_) => (3, outcome.as_bytes()),
        };
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        [&[kind], &self.element.to_le_bytes()[..], &length.to_le_bytes()[..], content].concat()
    }
}

/// Finds the frames in a stream that comes in parts.
#[derive(Debug, Default)]
pub struct FrameParser(Vec<u8>);

impl FrameParser {
    /// The frames that these bytes complete. An error means that the stream is broken. The frames before the break still count.
    pub fn read(&mut self, bytes: &[u8]) -> (Vec<Frame>, Result<(), BadStream>) {
        self.0.extend_from_slice(bytes);
        let mut frames = Vec::new();
        let mut at = 0;
        let end = loop {
            match first(self.0.get(at..).unwrap_or_default()) {
                Ok(Some((frame, size))) => {
                    frames.push(frame);
                    at += size;
                }
                Ok(None) => break Ok(()),
                Err(bad) => break Err(bad),
            }
        };
        self.0.drain(..at);
        (frames, end)
    }
}

/// The first frame, and how many bytes it takes; `None` if it is not whole.
fn first(bytes: &[u8]) -> Result<Option<(Frame, usize)>, BadStream> {
    let number = |at: usize| {
        let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
        four.map(u32::from_le_bytes)
    };
    let (Some(kind), Some(element), Some(length)) = (bytes.first(), number(1), number(5)) else { return Ok(None) };
    let length = usize::try_from(length).map_err(|_| BadStream)?;
    if length > MAX_BYTES {
        return Err(BadStream);
    }
    let Some(content) = bytes.get(HEAD..HEAD + length) else { return Ok(None) };
    let content = match kind {
        0 => FrameContent::Begin,
        1 => FrameContent::Out(content.to_vec()),
        2 => FrameContent::Err(content.to_vec()),
        3 if content.is_empty() => FrameContent::End(None),
        3 => {
            let text = std::str::from_utf8(content).map_err(|_| BadStream)?;
            FrameContent::End(Some(text.parse().map_err(|_| BadStream)?))
        }
        _ => return Err(BadStream),
    };
    Ok(Some((Frame { element, content }, HEAD + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let frame = |element, content| Frame { element, content };
        let frames = vec![
            frame(0, FrameContent::Begin),
            frame(0, FrameContent::Out(b"one\n".to_vec())),
            frame(7, FrameContent::Err(vec![0; MAX_BYTES])),
            frame(0, FrameContent::End(Some(Outcome::Exit(3)))),
            frame(7, FrameContent::End(None)),
        ];
        let stream: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        for size in [1, 3, 9, 4096, stream.len()] {
            let mut reader = FrameParser::default();
            let found: Vec<Frame> = stream.chunks(size).flat_map(|part| reader.read(part).0).collect();
            assert!(found == frames, "in parts of {size}");
        }
    }

    #[test]
    fn a_stream_that_is_none_is_found_out_and_what_came_before_counts() {
        let good = Frame { element: 0, content: FrameContent::End(Some(Outcome::SUCCESS)) };
        for bad in [&b"hello, world"[..], &[4, 0, 0, 0, 0, 0, 0, 0, 0], &[3, 0, 0, 0, 0, 1, 0, 0, 0, b'x'], &[1; 9]] {
            let read = FrameParser::default().read(&[&good.bytes(), bad].concat());
            assert_eq!(read, (vec![good.clone()], Err(BadStream)), "{bad:?}");
        }
    }
}
