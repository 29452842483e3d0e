//! DescribeInstances: by id or by filter, in pages.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use shared::time::{Span, Time};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Call;
use super::glob::Glob;
use super::refusal::Refusal;
use super::shape;
use super::wire::{Params, Xml};
use super::world::Instance;

/// "This value can be between 5 and 1000" ("DescribeInstances", EC2 API Reference).
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 5..=1_000;
/// "The maximum number of filter values" of a call ("FilterLimitExceeded", EC2 API Reference).
const MOST_FILTER_VALUES: usize = 200;

impl Call<'_> {
    /// Instances in launch order; those of one launch that follow each other are one reservation.
    pub(super) fn describe_instances(&mut self, xml: &mut Xml) -> Result<(), Refusal> {
        let ids = self.instance_ids()?;
        let filters = read_filters(self.params)?;
        let size = self.page_size(&ids)?;
        let query = digest(self.params);
        let after = self.params.filled("NextToken").map(|token| self.read_token(token, query)).transpose()?;
        let gone: Vec<String> = ids.iter().filter(|id| !self.shows(id)).cloned().collect();
        if !gone.is_empty() {
            return Err(Refusal::InstanceNotFound(gone));
        }
        self.unless_dry_run()?;

        let by_id = !ids.is_empty();
        let wanted = |instance: &Instance| {
            self.is_known(instance)
                && !self.world.faults.is_forgotten(instance, by_id, self.now)
                && (!by_id || ids.contains(&instance.instance_id))
                && filters.iter().all(|filter| filter.lets_through(instance))
        };
        let mut found = self.world.listed(after).filter(|(_, instance)| wanted(instance));
        let page: Vec<(u64, &Instance)> = found.by_ref().take(size).collect();
        let more = found.next().is_some();

        let reservations = page.chunk_by(|(_, a), (_, b)| a.reservation_id == b.reservation_id);
        xml.items("reservationSet", reservations, |xml, together| {
            if let Some((_, first)) = together.first() {
                shape::reservation(xml, &first.reservation_id, together.iter().map(|(_, instance)| *instance));
            }
        });
        if let (true, Some((last, _))) = (more, page.last()) {
            xml.text("nextToken", &write_token(*last, query, self.now));
        }
        Ok(())
    }

    fn shows(&self, id: &str) -> bool {
        let forgotten = |instance| self.world.faults.is_forgotten(instance, true, self.now);
        self.world.find(id).is_some_and(|instance| self.is_known(instance) && !forgotten(instance))
    }

    /// "You cannot specify this parameter and the instance IDs parameter in the same request"
    /// ("DescribeInstances", EC2 API Reference, MaxResults).
    fn page_size(&self, ids: &[String]) -> Result<usize, Refusal> {
        match self.params.number::<usize>("MaxResults")? {
            Some(_) if !ids.is_empty() => Err(Refusal::InvalidParameterCombination(
                "The parameter instancesSet cannot be used with the parameter maxResults".into(),
            )),
            Some(n) if PAGE_SIZES.contains(&n) => Ok(n),
            Some(n) => Err(Refusal::value(&n.to_string(), "maxResults", "a value between 5 and 1000 is wanted")),
            None if ids.is_empty() => Ok(self.config.page_size.max(1)),
            None => Ok(usize::MAX),
        }
    }

    fn read_token(&self, token: &str, query: u64) -> Result<u64, Refusal> {
        let read = || {
            let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
            let mut parts = text.splitn(3, '.');
            let (last, of, at) = (parts.next()?, parts.next()?, parts.next()?);
            Some((last.parse().ok()?, of.parse::<u64>().ok()?, Time::from_ms(at.parse().ok()?)))
        };
        match read() {
            Some((last, of, at)) if of == query && self.now.since(at) <= Span::from_ms(self.config.page_token_ms) => {
                Ok(last)
            }
            _ => Err(Refusal::InvalidPaginationToken),
        }
    }
}

/// A page token: the last instance shown, the query it belongs to, and when that was.
fn write_token(last: u64, query: u64, now: Time) -> String {
    URL_SAFE_NO_PAD.encode(format!("{last}.{query}.{}", now.as_ms()))
}

/// What the pages of one list have in common.
fn digest(params: &Params) -> u64 {
    let mut hasher = DefaultHasher::new();
    params.clone().without(&["NextToken", "MaxResults"]).hash(&mut hasher);
    hasher.finish()
}

/// One filter: any of its values lets an instance through.
struct Filter {
    on: Field,
    values: Vec<Glob>,
}

enum Field {
    Tag(String),
    TagKey,
    Text(fn(&Instance) -> &str),
}

impl Filter {
    fn lets_through(&self, instance: &Instance) -> bool {
        let any = |text: &str| self.values.iter().any(|glob| glob.matches(text));
        match &self.on {
            Field::Tag(key) => instance.tags.get(key).is_some_and(|value| any(value)),
            Field::TagKey => instance.tags.keys().any(|key| any(key)),
            Field::Text(text) => any(text(instance)),
        }
    }
}

/// The filters of a request: several are joined by AND ("List and filter using the CLI and
/// API", EC2 User Guide). One that is not known is refused: to ignore it would list too much.
fn read_filters(params: &Params) -> Result<Vec<Filter>, Refusal> {
    let mut filters = Vec::new();
    let mut values_in_all = 0;
    for filter in params.structures("Filter") {
        let name = filter.filled("Name").ok_or(Refusal::MissingParameter("Filter.Name"))?;
        let values: Vec<Glob> = filter.list("Value").into_iter().map(Glob::new).collect();
        if values.is_empty() {
            return Err(Refusal::value(name, "Filter", "the filter has no values"));
        }
        values_in_all += values.len();
        filters.push(Filter { on: field(name)?, values });
    }
    if values_in_all > MOST_FILTER_VALUES { Err(Refusal::FilterLimitExceeded) } else { Ok(filters) }
}

fn field(name: &str) -> Result<Field, Refusal> {
    if let Some(key) = name.strip_prefix("tag:") {
        return Ok(Field::Tag(key.to_owned()));
    }
    Ok(match name {
        "tag-key" => Field::TagKey,
        "instance-state-name" => Field::Text(|i| i.state.name_and_code().0),
        "instance-id" => Field::Text(|i| &i.instance_id),
        "instance-type" => Field::Text(|i| &i.instance_type),
        "availability-zone" => Field::Text(|i| &i.zone),
        "client-token" => Field::Text(|i| i.client_token.as_deref().unwrap_or_default()),
        other => {
            let other: String = other.chars().take(100).collect();
            return Err(Refusal::InvalidParameterValue(format!("The filter '{other}' is invalid")));
        }
    })
}
