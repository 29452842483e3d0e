//! DescribeInstances: by id or by filter, in pages.

use std::collections::HashSet;

use crate::api_error::ApiError;
use crate::call::Call;
use crate::faults::Lookup;
use crate::instance::Instance;
use crate::instance_xml;
use crate::pages::{digest, write_token};
use crate::wire::{Params, Xml};

/// "This value can be between 5 and 1000" ("DescribeInstances", EC2 API Reference).
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 5..=1_000;
/// "The maximum number of filter values" of a call ("FilterLimitExceeded", EC2 API Reference).
pub(crate) const MAX_FILTER_VALUES: usize = 200;

impl Call<'_> {
    /// Instances in launch order. Consecutive instances of one launch form one reservation.
    pub(crate) fn describe_instances(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        let ids = self.instance_ids()?;
        let filters = self.params.structures("Filter");
        let filters = read_filters(&filters)?;
        let size = self.page_size(&ids)?;
        let query = digest(self.params);
        let after = self.params.filled("NextToken").map(|token| self.read_token(token, query)).transpose()?;
        let unknown: Vec<String> = ids.iter().filter(|id| !self.is_visible(id)).cloned().collect();
        if !unknown.is_empty() {
            return Err(ApiError::InstanceNotFound(unknown));
        }

        let lookup = if ids.is_empty() { Lookup::ByFilter } else { Lookup::ById };
        let named: HashSet<&str> = ids.iter().map(String::as_str).collect();
        let wanted = |instance: &Instance| {
            (ids.is_empty() || named.contains(instance.instance_id.as_str()))
                && self.is_known(instance)
                && !self.world.faults.is_forgotten(instance, lookup, self.now)
                && filters.iter().all(|filter| filter.matches(instance))
        };
        let mut found = self.world.listed(after).filter(|(_, instance)| wanted(instance));
        let page: Vec<(u64, &Instance)> = found.by_ref().take(size).collect();
        let more = found.next().is_some();

        let reservations = page.chunk_by(|(_, a), (_, b)| a.reservation_id == b.reservation_id);
        xml.items("reservationSet", reservations, |xml, together| {
            if let Some((_, first)) = together.first() {
                instance_xml::reservation(xml, &first.reservation_id, together.iter().map(|(_, instance)| *instance));
            }
        });
        if let (true, Some((last, _))) = (more, page.last()) {
            xml.text("nextToken", &write_token(*last, query, self.now));
        }
        Ok(())
    }

    fn is_visible(&self, id: &str) -> bool {
        let forgotten = |instance| self.world.faults.is_forgotten(instance, Lookup::ById, self.now);
        self.world.find(id).is_some_and(|instance| self.is_known(instance) && !forgotten(instance))
    }

    /// "You cannot specify this parameter and the instance IDs parameter in the same request"
    /// ("DescribeInstances", EC2 API Reference, MaxResults).
    fn page_size(&self, ids: &[String]) -> Result<usize, ApiError> {
        match self.params.number::<usize>("MaxResults")? {
            Some(_) if !ids.is_empty() => Err(ApiError::InvalidParameterCombination(
                "The parameter instancesSet cannot be used with the parameter maxResults".into(),
            )),
            Some(n) if PAGE_SIZES.contains(&n) => Ok(n),
            Some(n) => Err(ApiError::value(&n.to_string(), "maxResults", "it must be between 5 and 1000")),
            None if ids.is_empty() => Ok(self.settings.page_size.max(1)),
            None => Ok(usize::MAX),
        }
    }
}

/// One filter: an instance matches if its tag has one of these values, or begins with one that ends in `*`.
struct Filter<'a> {
    tag: String,
    values: Vec<&'a str>,
}

impl Filter<'_> {
    fn matches(&self, instance: &Instance) -> bool {
        let is = |value: &str, wanted: &str| match wanted.strip_suffix('*') {
            Some(begin) => value.starts_with(begin),
            None => value == wanted,
        };
        instance.tags.get(&self.tag).is_some_and(|value| self.values.iter().any(|wanted| is(value, wanted)))
    }
}

/// The filters of a request, joined by AND ("List and filter using the CLI and API", EC2 User
/// Guide). The stand-in refuses what it does not know: filters by other things than tags, and wildcards in other places than the end. If it ignored a
/// filter, it would list too many instances.
fn read_filters(structures: &[Params]) -> Result<Vec<Filter<'_>>, ApiError> {
    let mut filters = Vec::new();
    for filter in structures {
        let name = filter.filled("Name").ok_or(ApiError::MissingParameter("Filter.Name"))?;
        let (tag, values) = (name.strip_prefix("tag:"), filter.list("Value"));
        let is_plain = values.iter().all(|value| !value.strip_suffix('*').unwrap_or(value).contains(['*', '?', '\\']));
        let Some(tag) = tag.filter(|_| is_plain && !values.is_empty()) else {
            let name: String = name.chars().take(100).collect();
            return Err(ApiError::InvalidParameterValue(format!("The filter '{name}' is invalid")));
        };
        filters.push(Filter { tag: tag.to_owned(), values });
    }
    let values: usize = filters.iter().map(|filter| filter.values.len()).sum();
    if values > MAX_FILTER_VALUES { Err(ApiError::FilterLimitExceeded) } else { Ok(filters) }
}
