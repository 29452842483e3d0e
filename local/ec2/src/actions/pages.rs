//! Pages of a list, and the tokens that ask for the next page.
//!
//! Guarantees: a token belongs to its query and expires. A client that follows the tokens gets each row once.
//! Does not: keep a list between two pages: each page is cut from the list of its time.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{Span, Time};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::wire::{Params, Xml};

impl Ec2Call<'_> {
    /// The number of the last row before the page that a token asks for.
    pub(crate) fn read_token(&self, token: &str, query: u64) -> Result<u64, ApiError> {
        let read = || {
            let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
            let mut parts = text.splitn(3, '.');
            let (last, of, at) = (parts.next()?, parts.next()?, parts.next()?);
            Some((last.parse().ok()?, of.parse::<u64>().ok()?, Time::from_ms(at.parse().ok()?)))
        };
        match read() {
            Some((last, of, at)) if of == query && self.now.since(at) <= Span::from_ms(self.settings.page_token_ms) => {
                Ok(last)
            }
            _ => {
                let message = "The specified pagination token is invalid or has expired.";
                Err(ApiError::new("InvalidPaginationToken", message))
            }
        }
    }

    /// The rows of the page that `NextToken` asks for, and the token of the next page. `asked` is how many rows the request
    /// wants.
    pub(crate) fn page<T>(
        &self,
        rows: Vec<T>,
        asked: usize,
        token: Option<&str>,
        query: u64,
    ) -> Result<(Vec<T>, Option<String>), ApiError> {
        let shown = token.map_or(Ok(0), |token| self.read_token(token, query))?;
        let size = asked.min(self.settings.page_size).max(1);
        let skipped = usize::try_from(shown).unwrap_or(usize::MAX);
        let end = skipped.saturating_add(size);
        let next = (rows.len() > end).then(|| write_token(end as u64, query, self.now));
        Ok((rows.into_iter().skip(skipped).take(size).collect(), next))
    }

    /// Writes the page of these rows that the request asks for, as items of `name`. `sizes` has the allowed values of `MaxResults`,
    /// and its end is the default.
    pub(crate) fn write_page<T>(
        &self,
        xml: &mut Xml,
        name: &str,
        rows: Vec<T>,
        sizes: RangeInclusive<usize>,
        write: impl Fn(&mut Xml, T),
    ) -> Result<(), ApiError> {
        let asked = match self.params.number::<usize>("MaxResults")? {
            None => *sizes.end(),
            Some(n) if sizes.contains(&n) => n,
            Some(n) => {
                let why = format!("it must be between {} and {}", sizes.start(), sizes.end());
                return Err(ApiError::value(&n.to_string(), "maxResults", &why));
            }
        };
        let (page, next) = self.page(rows, asked, self.params.filled("NextToken"), digest(self.params))?;
        xml.items(name, page, write);
        if let Some(token) = next {
            xml.text("nextToken", &token);
        }
        Ok(())
    }
}

/// A page token: the last row shown, the query of the token, and the time of the page.
pub(crate) fn write_token(last: u64, query: u64, now: Time) -> String {
    URL_SAFE_NO_PAD.encode(format!("{last}.{query}.{}", now.as_ms()))
}

/// Identifies the query that all pages of one list belong to.
pub(crate) fn digest(params: &Params) -> u64 {
    let mut hasher = DefaultHasher::new();
    params.clone().without(&["NextToken", "MaxResults"]).hash(&mut hasher);
    hasher.finish()
}
