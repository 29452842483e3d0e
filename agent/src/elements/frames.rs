//! What the process that runs elements says to its supervisor: a stream of frames.
//!
//! ```text
//! kind (1 byte)  element (4 bytes)  length (4 bytes)  so many bytes
//! ```
//!
//! Guarantees: a reader that gets the stream in any parts finds the same frames; a stream that is not one is found out, and costs
//! no memory.
//! Does not: know what the bytes say. They come from the job's own user, who may write whatever it likes.

use model::elements::Outcome;

/// The longest frame. A reader takes no longer one.
pub const MAX_BYTES: usize = 64 << 10;
const HEAD: usize = 9;

/// What a frame says of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It was started.
    Begin,
    /// It printed this on standard output.
    Out(Vec<u8>),
    /// It printed this on standard error.
    Err(Vec<u8>),
    /// It ended; `None` if its end counts for nothing, because the alloc was told to stop.
    End(Option<Outcome>),
}

/// A part of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub element: u32,
    pub said: Said,
}

/// The stream is not one of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what runs the elements does not say how they are: a job wrote into its standard output")]
pub struct BadStream;

impl Frame {
    /// The frame as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let outcome = if let Said::End(Some(outcome)) = &self.said { outcome.to_string() } else { String::new() };
        let (kind, content): (u8, &[u8]) = match &self.said {
            Said::Begin => (0, &[]),
            Said::Out(bytes) => (1, bytes),
            Said::Err(bytes) => (2, bytes),
            Said::End(_) => (3, outcome.as_bytes()),
        };
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        [&[kind], &self.element.to_le_bytes()[..], &length.to_le_bytes()[..], content].concat()
    }
}

/// Finds the frames in a stream that comes in parts.
#[derive(Debug, Default)]
pub struct FrameReader(Vec<u8>);

impl FrameReader {
    /// The frames that these bytes complete. An error says that the stream is broken. The frames before the break still count.
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
    let said = match kind {
        0 => Said::Begin,
        1 => Said::Out(content.to_vec()),
        2 => Said::Err(content.to_vec()),
        3 if content.is_empty() => Said::End(None),
        3 => {
            let text = std::str::from_utf8(content).map_err(|_| BadStream)?;
            Said::End(Some(text.parse().map_err(|_| BadStream)?))
        }
        _ => return Err(BadStream),
    };
    Ok(Some((Frame { element, said }, HEAD + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let frame = |element, said| Frame { element, said };
        let frames = vec![
            frame(0, Said::Begin),
            frame(0, Said::Out(b"one\n".to_vec())),
            frame(7, Said::Err(vec![0; MAX_BYTES])),
            frame(0, Said::End(Some(Outcome::Exit(3)))),
            frame(7, Said::End(None)),
        ];
        let stream: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        for size in [1, 3, 9, 4096, stream.len()] {
            let mut reader = FrameReader::default();
            let found: Vec<Frame> = stream.chunks(size).flat_map(|part| reader.read(part).0).collect();
            assert!(found == frames, "in parts of {size}");
        }
    }

    #[test]
    fn a_stream_that_is_none_is_found_out_and_what_came_before_counts() {
        let good = Frame { element: 0, said: Said::End(Some(Outcome::SUCCESS)) };
        for bad in [&b"hello, world"[..], &[4, 0, 0, 0, 0, 0, 0, 0, 0], &[3, 0, 0, 0, 0, 1, 0, 0, 0, b'x'], &[1; 9]] {
            let read = FrameReader::default().read(&[&good.bytes(), bad].concat());
            assert_eq!(read, (vec![good.clone()], Err(BadStream)), "{bad:?}");
        }
    }
}
