//! DescribeInstances: by id or by filter, in pages.
//!
//! Guarantees: an unknown id fails the whole call, and an unknown filter is refused. To ignore it would list too much.
//! Does not: know filters except those by tag.

use std::collections::HashSet;

use super::filters;
use super::pages::{digest, write_token};
use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::faults::Lookup;
use crate::instance::Ec2Instance;
use crate::instance_xml;
use crate::wire::Xml;

/// "This value can be between 5 and 1000" ("DescribeInstances", EC2 API Reference).
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 5..=1_000;

impl Ec2Call<'_> {
    /// Instances in launch order. Consecutive instances of one launch form one reservation.
    pub(crate) fn describe_instances(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        let ids = self.instance_ids()?;
        // The stand-in knows only filters by tag, and wildcards only at the end of a value.
        let is_plain = |value: &str| !value.strip_suffix('*').unwrap_or(value).contains(['*', '?', '\\']);
        let is_known = |name: &str, values: &[String]| name.starts_with("tag:") && values.iter().all(|v| is_plain(v));
        let filters = filters::read_if(self.params, is_known)?;
        let size = self.page_size(&ids)?;
        let query = digest(self.params);
        let after = self.params.filled("NextToken").map(|token| self.read_token(token, query)).transpose()?;
        let unknown: Vec<String> = ids.iter().filter(|id| !self.is_visible(id)).cloned().collect();
        if !unknown.is_empty() {
            return Err(ApiError::no_instances(&unknown));
        }

        let lookup = if ids.is_empty() { Lookup::ByFilter } else { Lookup::ById };
        let named: HashSet<&str> = ids.iter().map(String::as_str).collect();
        let wanted = |instance: &Ec2Instance| {
            (ids.is_empty() || named.contains(instance.instance_id.as_str()))
                && self.is_listed(instance)
                && !self.world.faults.is_forgotten(instance, lookup, self.now)
                && filters.iter().all(|filter| {
                    let value = filter.name.strip_prefix("tag:").and_then(|tag| instance.tags.get(tag));
                    filter.takes(value.map(String::as_str))
                })
        };
        let mut found = self.world.listed(after).filter(|(_, instance)| wanted(instance));
        let page: Vec<(u64, &Ec2Instance)> = found.by_ref().take(size).collect();
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
        self.world.find(id).is_some_and(|instance| self.is_listed(instance) && !forgotten(instance))
    }

    /// "You cannot specify this parameter and the instance IDs parameter in the same request"
    /// ("DescribeInstances", EC2 API Reference, MaxResults).
    fn page_size(&self, ids: &[String]) -> Result<usize, ApiError> {
        match self.params.number::<usize>("MaxResults")? {
            Some(_) if !ids.is_empty() => {
                Err(ApiError::combination("The parameter instancesSet cannot be used with the parameter maxResults"))
            }
            Some(n) if PAGE_SIZES.contains(&n) => Ok(n),
            Some(n) => Err(ApiError::value(&n.to_string(), "maxResults", "it must be between 5 and 1000")),
            None if ids.is_empty() => Ok(self.settings.page_size.max(1)),
            None => Ok(usize::MAX),
        }
    }
}
