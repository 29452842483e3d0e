//! The files of a job: what its work directory has before its command starts, and what is kept of it afterwards.
//!
//! ```text
//! file:SHA256:BYTES       a file, stored by its content; `program:` if it is executable
//! tree:SHA256:BYTES       a folder, stored as a tar archive
//! s3://BUCKET/KEY         an object, read with the role of the job
//! job:ID/MEMBER/PATH      what an earlier job left at PATH
//! ```
//!
//! Guarantees: a name leads to no place outside the work directory; the same content has one place in the bucket of the
//! cluster, and whoever reads it can check it; each of these has one text.
//! Does not: read or write a file. The command line stores inputs, the supervisor on the node fetches them and stores outputs.

mod pattern;

pub use crate::enums::Form;
use crate::mistakes::{Mistakes, shown};
use crate::text_form::text_form;
use crate::{AllocId, BadText, JobId, S3Place};
use derive_more::Display;
pub use pattern::{Matching, Pattern};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// The most inputs of a job.
pub const MAX_INPUTS: usize = 100;
/// The most outputs of a job. Each is a part of the alloc's row.
pub const MAX_OUTPUTS: usize = 20;
/// The longest name of an input or an output, in bytes.
const MAX_NAME_BYTES: usize = 512;
/// The longest name of a file or a folder, in bytes, as all common file systems of Linux have it.
const MAX_PART_BYTES: usize = 255;
/// The most bytes of one input or output.
pub const MAX_CONTENT_BYTES: u64 = 1 << 40;

/// The name of an input that is the work directory itself.
pub const WORK_DIRECTORY: &str = ".";

/// The inputs of a job: where each comes from, by its name in the work directory.
pub type Inputs = BTreeMap<String, Source>;

/// A content that is stored by its digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Display)]
#[display("{form}:{sha256}:{bytes}")]
pub struct Content {
    pub form: Form,
    /// 64 hexadecimal digits in lower case.
    sha256: String,
    pub bytes: u64,
}

/// Where an input comes from.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
pub enum Source {
    Content(Content),
    Object(S3Place),
    /// An output of another job. It becomes [`Source::Content`] when an alloc is placed.
    #[display("job:{job_id}/{member}/{path}")]
    Output {
        job_id: JobId,
        member: u32,
        path: String,
    },
}

/// What a try left in the folder that its job keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The try that stored it.
    pub alloc_id: AllocId,
    /// Which of the places of the try has it: below [`CHECKPOINT_PLACES`].
    pub place: u8,
    pub content: Content,
}

impl Checkpoint {
    /// Where it is stored, by the place of an alloc of its cluster.
    pub fn stored_at(&self, alloc: &S3Place) -> S3Place {
        let AllocId { job_id, member, copy } = self.alloc_id;
        alloc.content(&format!("{job_id}/{member}-{copy}-{}", self.place))
    }
}

/// How many checkpoints of a try are stored at the same time: two in turn while it runs, and that of its end.
pub const CHECKPOINT_PLACES: u8 = 3;

/// An output that a job wants kept.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[display("{path}{}", to.as_ref().map(|place| format!("={place}")).unwrap_or_default())]
pub struct Output {
    /// A file or a folder in the work directory, or a [pattern](Pattern) of such.
    pub path: String,
    /// Where it is stored with the role of the job; `None`: in the bucket of the cluster, by its content.
    pub to: Option<S3Place>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredOutput {
    pub path: String,
    pub content: Content,
    /// As in [`Output::to`].
    pub to: Option<S3Place>,
}

impl Content {
    /// `None` if this is no digest.
    pub fn new(form: Form, sha256: &str, bytes: u64) -> Option<Self> {
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let is_digest = sha256.len() == 64 && sha256.bytes().all(is_digit);
        is_digest.then(|| Self { form, sha256: sha256.to_owned(), bytes })
    }

    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

impl Output {
    /// What the path means if it names more than one thing. A file or folder that has exactly this name comes first.
    pub fn pattern(&self) -> Option<Pattern> {
        Pattern::of(&self.path)
    }
}

impl StoredOutput {
    /// The same as an input of another job.
    pub fn source(&self) -> Source {
        self.to.clone().map_or_else(|| Source::Content(self.content.clone()), Source::Object)
    }
}

impl Source {
    /// Whether the rights of the job's role fetch it, and not those of the node.
    pub const fn is_of_the_role(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// Whether it is certainly a file. Another job may have left a file or a folder.
    pub(crate) fn is_file(&self) -> bool {
        match self {
            Self::Content(content) => content.form != Form::Tree,
            Self::Object(_) => true,
            Self::Output { .. } => false,
        }
    }
}

/// Whether this can be a name in the work directory: relative, without `..`, on one line, and of parts that files can have.
pub fn is_name(name: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= MAX_PART_BYTES;
    name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control) && name.split('/').all(is_part)
}

/// Checks the files of a job that somebody submits. `has_role` says whether the job has a role.
pub(crate) fn check(inputs: &Inputs, outputs: &[Output], has_role: bool, mistakes: &mut Mistakes) {
    mistakes.require(inputs.len() <= MAX_INPUTS, || {
        format!("it has {} inputs, {MAX_INPUTS} are allowed: put them into a folder", inputs.len())
    });
    mistakes.require(outputs.len() <= MAX_OUTPUTS, || {
        format!("it has {} outputs, {MAX_OUTPUTS} are allowed: put them into a folder", outputs.len())
    });
    let rule = "must be relative to the work directory, without `..`, and have at most 255 bytes between two slashes, like \
                data/table.csv";
    for (name, source) in inputs {
        let is_whole = name == WORK_DIRECTORY && matches!(source, Source::Content(c) if c.form == Form::Tree);
        let is_whole = is_whole || name == WORK_DIRECTORY && matches!(source, Source::Output { .. });
        mistakes.require(is_whole || is_name(name), || format!("the name of an input {rule}; it is {}", shown(name)));
    }
    for (file, _) in inputs.iter().filter(|(_, source)| source.is_file()) {
        let inside =
            inputs.keys().find(|name| name.strip_prefix(file.as_str()).is_some_and(|rest| rest.starts_with('/')));
        mistakes.require(inside.is_none(), || {
            let inside = inside.map(|name| shown(name)).unwrap_or_default();
            format!(
                "the input {inside} is inside of the input {}, which is a file: give one of them another name",
                shown(file)
            )
        });
    }
    let (mut paths, mut places) = (BTreeSet::new(), BTreeSet::new());
    for Output { path, to } in outputs {
        mistakes.require(is_name(path), || format!("the path of an output {rule}; it is {}", shown(path)));
        mistakes.require(paths.insert(path), || format!("the output {} is named twice", shown(path)));
        if let Some(to) = to {
            mistakes
                .require(places.insert(to), || format!("two outputs would be stored at {}", shown(&to.to_string())));
        }
    }
    let needs_role = inputs.values().any(Source::is_of_the_role) || outputs.iter().any(|output| output.to.is_some());
    mistakes.require(has_role || !needs_role, || {
        "an s3:// place of an input or an output is used with the role of the job: give --role NAME, a role that the policy \
         lists in jobs.roles"
            .into()
    });
}

/// How many bytes the inputs take up on the disk of a node, as far as it is known before they come. The archive of a folder lies beside
/// what is unpacked of it.
pub fn bytes_on_disk(inputs: &Inputs) -> u64 {
    let bytes = inputs.values().map(|source| match source {
        Source::Content(Content { form: Form::Tree, bytes, .. }) => bytes.saturating_mul(2),
        Source::Content(content) => content.bytes,
        Source::Object(_) | Source::Output { .. } => 0,
    });
    bytes.fold(0, u64::saturating_add)
}

/// How many bytes the inputs and outputs take up in a row.
pub(crate) fn bytes_in_row(inputs: &Inputs, outputs: &[Output]) -> usize {
    let inputs = inputs.iter().map(|(name, source)| name.len() + source.to_string().len());
    inputs.chain(outputs.iter().map(|output| output.to_string().len())).sum()
}

/// All the outputs that the job wants, as the node reported them. The error is the path of one that is missing.
pub(crate) fn all_of(wanted: &[Output], told: &[StoredOutput]) -> Result<Vec<StoredOutput>, String> {
    let of = |output: &Output| told.iter().find(|stored| stored.path == output.path && stored.to == output.to);
    let find = |output: &Output| of(output).cloned().ok_or_else(|| output.path.clone());
    wanted.iter().map(find).collect()
}

/// Those of the wanted outputs that the node could keep.
pub(crate) fn some_of(wanted: &[Output], told: &[StoredOutput]) -> Vec<StoredOutput> {
    wanted.iter().filter_map(|output| all_of(std::slice::from_ref(output), told).ok()).flatten().collect()
}

impl FromStr for Content {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let read = || {
            let mut parts = text.splitn(3, ':');
            let (form, sha256, bytes) = (parts.next()?, parts.next()?, parts.next()?);
            let form = form.parse().ok()?;
            let content = Self::new(form, sha256, bytes.parse().ok().filter(|bytes| *bytes <= MAX_CONTENT_BYTES)?)?;
            (content.to_string() == text).then_some(content)
        };
        let fault = "is not a stored content: file:SHA256:BYTES, program:SHA256:BYTES or tree:SHA256:BYTES";
        read().ok_or_else(|| BadText::of(text, fault))
    }
}

impl FromStr for Source {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let fault = "is not where an input comes from: file:SHA256:BYTES, program:SHA256:BYTES, tree:SHA256:BYTES, \
                    s3://BUCKET/KEY or job:ID/MEMBER/PATH";
        let bad = || BadText::of(text, fault);
        if let Some(output) = text.strip_prefix("job:") {
            let mut parts = output.splitn(3, '/');
            let (Some(id), Some(member), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(bad());
            };
            let (job_id, number) = (id.parse().map_err(|_| bad())?, member.parse().map_err(|_| bad())?);
            let source = Self::Output { job_id, member: number, path: path.to_owned() };
            return if is_name(path) && source.to_string() == text { Ok(source) } else { Err(bad()) };
        }
        if text.starts_with("s3:") {
            return text.parse().map(Self::Object).map_err(|_| bad());
        }
        text.parse().map(Self::Content).map_err(|_| bad())
    }
}

impl FromStr for Output {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let (path, to) = match text.split_once("=s3:") {
            None => (text, None),
            Some((path, rest)) => {
                let bad = |_| BadText::of(text, "is not an output: PATH or PATH=s3://BUCKET/KEY");
                (path, Some(format!("s3:{rest}").parse().map_err(bad)?))
            }
        };
        Ok(Self { path: path.to_owned(), to })
    }
}

text_form!(Content, Source, Output);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    const DIGEST: &str = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";

    fn content(form: Form) -> Content {
        Content::new(form, DIGEST, 7).unwrap()
    }

    #[test]
    fn each_source_and_each_output_has_one_text() {
        let job_id = fixtures::alloc_id(0).job_id;
        for (source, text) in [
            (Source::Content(content(Form::File)), format!("file:{DIGEST}:7")),
            (Source::Content(content(Form::Program)), format!("program:{DIGEST}:7")),
            (Source::Content(content(Form::Tree)), format!("tree:{DIGEST}:7")),
            (Source::Object("s3://data/a/b.csv".parse().unwrap()), "s3://data/a/b.csv".to_owned()),
            (Source::Output { job_id, member: 2, path: "a/b".into() }, format!("job:{job_id}/2/a/b")),
        ] {
            assert_eq!((source.to_string(), text.parse::<Source>()), (text.clone(), Ok(source)));
        }
        for text in ["results", "results=s3://data/run-1", "a=b", "a=b=s3://data/k"] {
            assert_eq!(text.parse::<Output>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_source_is_refused() {
        let job_id = fixtures::alloc_id(0).job_id;
        for text in [
            String::new(),
            "a.csv".into(),
            format!("file:{DIGEST}"),
            format!("file:{}:7", DIGEST.to_uppercase()),
            format!("file:{DIGEST}:07"),
            format!("file:{DIGEST}:-1"),
            format!("file:{DIGEST}:{}", MAX_CONTENT_BYTES + 1),
            format!("folder:{DIGEST}:7"),
            "s3://data".into(),
            "s3://data/../x".into(),
            "job:x/0/a".into(),
            format!("job:{job_id}/0/../a"),
            format!("job:{job_id}/0"),
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
        assert!("a=s3://B".parse::<Output>().is_err());
    }

    #[test]
    fn a_name_stays_in_the_work_directory() {
        for good in ["a", "a/b.c", "a b", "é", ".hidden", "a..b"] {
            assert!(is_name(good), "{good}");
        }
        assert!(is_name(&format!("a/{}", "é".repeat(127))));
        let long = ["x".repeat(256), format!("a/{}", "é".repeat(128)), "a/".repeat(256) + "b"];
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\nb", "a\0b"]
            .into_iter()
            .chain(long.each_ref().map(|l| &**l))
        {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_folder_takes_up_its_archive_too() {
        let inputs = [Form::File, Form::Program, Form::Tree].map(|form| Source::Content(content(form)));
        let names = ["a", "b", "c"].map(str::to_owned);
        let mut inputs: Inputs = names.into_iter().zip(inputs).collect();
        inputs.insert("d".to_owned(), "s3://data/x".parse().unwrap());
        assert_eq!(bytes_on_disk(&inputs), 4 * 7);
    }

    #[test]
    fn no_input_is_inside_of_a_file() {
        for (text, is_file) in [
            (format!("program:{DIGEST}:7"), true),
            ("s3://data/x".into(), true),
            (format!("tree:{DIGEST}:7"), false),
            (format!("job:{}/0/x", fixtures::alloc_id(0).job_id), false),
        ] {
            let (at, inside): (Source, _) = (text.parse().unwrap(), Source::Content(content(Form::File)));
            for (name, is_inside) in [("a/b", true), ("ab", false), ("b", false)] {
                let inputs: Inputs = [("a".to_owned(), at.clone()), (name.to_owned(), inside.clone())].into();
                let mut mistakes = Mistakes::default();
                check(&inputs, &[], true, &mut mistakes);
                assert_eq!(mistakes.into_list().is_none(), !(is_file && is_inside), "{text} and {name}");
            }
        }
    }

    #[test]
    fn a_command_that_succeeded_has_all_its_outputs_and_no_others() {
        let wanted: Vec<Output> = ["a", "b=s3://data/b"].map(|text| text.parse().unwrap()).into();
        let stored = |text: &str| {
            let Output { path, to } = text.parse().unwrap();
            StoredOutput { path, content: content(Form::File), to }
        };
        let all = [stored("b=s3://data/b"), stored("c"), stored("a")];
        assert_eq!(all_of(&wanted, &all), Ok(vec![stored("a"), stored("b=s3://data/b")]));
        assert_eq!(all_of(&wanted, &[stored("a"), stored("b")]), Err("b".to_owned()), "it is elsewhere");
        assert_eq!(some_of(&wanted, &[stored("b"), stored("a")]), [stored("a")]);
    }
}
