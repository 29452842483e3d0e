//! The filters of lists of instances, types and places.
//!
//! Guarantees: a filter that the stand-in does not know is refused. If it ignored one, it would list too much.
//! Does not: know the wildcard `?`.

use crate::api_error::{ApiError, clip};
use crate::wire::Params;

/// "The maximum number of filter values" of a call ("FilterLimitExceeded", EC2 API Reference).
const MAX_FILTER_VALUES: usize = 200;

/// One filter: its name, and the values of which one must match.
pub(crate) struct ListFilter {
    pub(crate) name: String,
    values: Vec<String>,
}

impl ListFilter {
    /// Whether one of these facts matches one of the values.
    pub(crate) fn takes<'a>(&self, facts: impl IntoIterator<Item = &'a str>) -> bool {
        facts.into_iter().any(|fact| self.values.iter().any(|pattern| matches(pattern, fact)))
    }
}

/// The filters of a request, joined by AND ("List and filter using the CLI and API", EC2 User Guide).
pub(crate) fn read(params: &Params, known: &[&str]) -> Result<Vec<ListFilter>, ApiError> {
    read_if(params, |name, _| known.contains(&name))
}

/// As [`read`]. `is_known` says, by name and values, whether the stand-in knows a filter.
pub(crate) fn read_if(
    params: &Params,
    is_known: impl Fn(&str, &[String]) -> bool,
) -> Result<Vec<ListFilter>, ApiError> {
    let mut filters = Vec::new();
    for filter in params.structures("Filter") {
        let name = filter.filled("Name").ok_or_else(|| ApiError::missing("Filter.Name"))?.to_owned();
        let values: Vec<String> = filter.list("Value").into_iter().map(str::to_owned).collect();
        if values.is_empty() || !is_known(&name, &values) {
            return Err(ApiError::invalid(format!("The filter '{}' is invalid", clip(&name))));
        }
        filters.push(ListFilter { name, values });
    }
    let values: usize = filters.iter().map(|filter| filter.values.len()).sum();
    if values > MAX_FILTER_VALUES {
        return Err(ApiError::new("FilterLimitExceeded", "The request exceeds the limit of 200 filter values."));
    }
    Ok(filters)
}

/// Whether the whole text matches the pattern, in which `*` is any text. `?` has no meaning here.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(begin) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, behind)) = text.split_once(part) else { return false };
        text = behind;
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use crate::actions::filters::matches;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text, expected) in [
            ("m7i.large", "m7i.large", true),
            ("m7i.large", "m7i.larger", false),
            ("m7i.*", "m7i.large", true),
            ("m7i.*", "m7i-flex.large", false),
            ("*", "", true),
            ("*.large", "m7i.large", true),
            ("*.large", "m7i.xlarge", false),
            ("m*i.*x*", "m7i.4xlarge", true),
            ("a*a", "a", false),
            ("a*b*c", "a-c-b", false),
            ("a**c", "abc", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
