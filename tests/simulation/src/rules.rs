//! What one write changes in one row in DynamoDB, and which requests DynamoDB refuses before it reads any row.
//!
//! Guarantees: conditions, equality and order of values are as in DynamoDB; numbers are stored in DynamoDB's one
//! spelling (developer guide, naming rules and data types); the same requests are refused: keys and index keys that are
//! empty or of another type, empty sets, sets with a value twice, conditions without an operand, updates of keys or of
//! nothing.
//! Does not: limit sizes of rows, expressions and requests in bytes.

use aws_sdk_dynamodb::types::AttributeValue;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use store::{Cond, Effect, Item, Key, KeyAttribute, KeySchema, KeyType, Query, Table, Write};

pub type Refusal = &'static str;

/// The most values of an IN (DynamoDB developer guide, condition expressions).
const MOST_OPERANDS: usize = 100;
/// The most digits of a number.
const MOST_DIGITS: usize = 38;

/// A number in the spelling that DynamoDB stores. `None` if DynamoDB does not accept it.
pub fn number(text: &str) -> Option<Cow<'_, str>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    // The usual case: a whole number that is already spelled as it is stored.
    let whole = digits.len() <= 18 && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    if text == "0" || (whole && !digits.is_empty()) {
        return Some(Cow::Borrowed(text));
    }
    decimal(text).map(Cow::Owned)
}

fn decimal(text: &str) -> Option<String> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (rest, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || !all.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let leading = all.trim_start_matches('0');
    let digits = leading.trim_end_matches('0');
    if digits.is_empty() {
        return Some("0".into());
    }
    // The value is 0.digits × 10^point.
    let point = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let point = point.checked_add(i64::try_from(leading.len()).ok()?)?;
    if digits.len() > MOST_DIGITS || !(-129..=126).contains(&point) {
        return None;
    }
    let count = i64::try_from(digits.len()).ok()?;
    let zeros = |n: i64| "0".repeat(usize::try_from(n).unwrap_or_default());
    Some(if point >= count {
        format!("{sign}{digits}{}", zeros(point - count))
    } else if point > 0 {
        let (before, after) = digits.split_at_checked(usize::try_from(point).ok()?)?;
        format!("{sign}{before}.{after}")
    } else {
        format!("{sign}0.{}{digits}", zeros(-point))
    })
}

/// A value as DynamoDB stores it.
pub fn kept(value: &AttributeValue) -> AttributeValue {
    use AttributeValue as V;
    let spelled = |n: &String| number(n).map_or_else(|| n.clone(), Cow::into_owned);
    match value {
        V::N(n) => V::N(spelled(n)),
        V::Ns(all) => V::Ns(all.iter().map(spelled).collect()),
        V::L(list) => V::L(list.iter().map(kept).collect()),
        V::M(map) => V::M(map.iter().map(|(k, v)| (k.clone(), kept(v))).collect()),
        other => other.clone(),
    }
}

fn value(value: &AttributeValue) -> Result<(), Refusal> {
    use AttributeValue as V;
    match value {
        V::N(n) if number(n).is_none() => Err("not a number"),
        V::Ss(all) if all.is_empty() => Err("an empty set"),
        V::Ss(all) if all.iter().collect::<HashSet<_>>().len() < all.len() => Err("a set with a value twice"),
        V::Ns(all) if all.is_empty() => Err("an empty set"),
        V::Ns(all) => {
            let numbers = all.iter().map(|n| number(n)).collect::<Option<HashSet<_>>>().ok_or("not a number")?;
            if numbers.len() < all.len() { Err("a set with a number twice") } else { Ok(()) }
        }
        V::L(list) => list.iter().try_for_each(self::value),
        V::M(map) => map.values().try_for_each(self::value),
        V::Bs(_) => Err("a set of bytes, which nothing here writes"),
        _ => Ok(()),
    }
}

fn typed(attribute: KeyAttribute, value: &AttributeValue) -> Result<(), Refusal> {
    match (attribute.kind, value) {
        (KeyType::Number, AttributeValue::N(n)) if number(n).is_some() => Ok(()),
        (KeyType::Text, AttributeValue::S(text)) if text.is_empty() => Err("an empty key"),
        (KeyType::Text, AttributeValue::S(_)) => Ok(()),
        _ => Err("a key of another type"),
    }
}

/// Whether a key has its table's shape.
pub fn key(key: &Key) -> Result<(), Refusal> {
    let schema = key.table.definition().key;
    typed(schema.hash, &key.hash)?;
    match (schema.range, &key.range) {
        (Some(range), Some(value)) => typed(range, value),
        (None, None) => Ok(()),
        _ => Err("a key of another shape"),
    }
}

/// Checks the keys of a batch: each key at most once.
pub fn keys(keys: &[Key]) -> Result<(), Refusal> {
    keys.iter().try_for_each(self::key)?;
    for (n, one) in keys.iter().enumerate() {
        if keys.iter().take(n).any(|other| alike(one, other)) {
            return Err("a key twice");
        }
    }
    Ok(())
}

/// Whether two keys name the same row.
pub fn alike(a: &Key, b: &Key) -> bool {
    let range = match (&a.range, &b.range) {
        (Some(a), Some(b)) => same(a, b),
        (None, None) => true,
        _ => false,
    };
    a.table == b.table && range && same(&a.hash, &b.hash)
}

/// Checks the key after which a list begins.
pub fn place(schemas: &[KeySchema], from: &Item) -> Result<(), Refusal> {
    for attribute in schemas.iter().flat_map(|s| [Some(s.hash), s.range]).flatten() {
        typed(attribute, from.get(attribute.name).ok_or("a start without all its keys")?)?;
    }
    Ok(())
}

pub fn query(query: &Query, from: Option<&Item>) -> Result<(), Refusal> {
    let table = query.table.definition().key;
    let key = query.index.map_or(table, |i| i.key);
    typed(key.hash, &query.hash)?;
    for bound in [&query.range_at_least, &query.range_at_most].into_iter().flatten() {
        key.range.map_or(Ok(()), |range| typed(range, bound))?;
    }
    if let (Some(_), Some(least), Some(most)) = (key.range, &query.range_at_least, &query.range_at_most)
        && order(least, most) == Some(Ordering::Greater)
    {
        return Err("a least bound above the most");
    }
    if query.limit.is_some_and(|l| l < 1) {
        return Err("a limit below 1");
    }
    let Some(from) = from else { return Ok(()) };
    place(&[table, key], from)?;
    if from.get(key.hash.name).is_some_and(|hash| same(hash, &query.hash)) {
        Ok(())
    } else {
        Err("a start outside what is asked for")
    }
}

fn index_keys<'a>(
    table: Table,
    mut row: impl Iterator<Item = (&'a String, &'a AttributeValue)>,
) -> Result<(), Refusal> {
    let indexes = table.definition().indexes;
    row.try_for_each(|(name, value)| {
        let keys = indexes.iter().flat_map(|i| [Some(i.key.hash), i.key.range]).flatten();
        keys.filter(|k| k.name == name).try_for_each(|k| typed(k, value))
    })
}

pub fn write(write: &Write) -> Result<(), Refusal> {
    key(&write.key)?;
    write.when.iter().try_for_each(cond)?;
    match &write.effect {
        Effect::Put(item) => {
            item.values().try_for_each(value)?;
            index_keys(write.key.table, item.iter())?;
            if write.key.attributes().iter().any(|(name, value)| !item.get(name).is_some_and(|v| same(v, value))) {
                return Err("a row under a key that is not its own");
            }
            Ok(())
        }
        Effect::Update { set, remove } => {
            if set.is_empty() && remove.is_empty() {
                return Err("an update that changes nothing");
            }
            let schema = write.key.table.definition().key;
            let is_key = |name: &String| *name == schema.hash.name || schema.range.is_some_and(|r| *name == r.name);
            if set.keys().chain(remove).any(is_key) {
                return Err("an update of a key attribute");
            }
            if remove.iter().enumerate().any(|(n, r)| set.contains_key(r) || remove.iter().take(n).any(|o| o == r)) {
                return Err("an attribute changed twice");
            }
            set.values().try_for_each(value)?;
            index_keys(write.key.table, set.iter())
        }
        Effect::Check if write.when.is_empty() => Err("a check without a condition"),
        Effect::Delete | Effect::Check => Ok(()),
    }
}

fn cond(one: &Cond) -> Result<(), Refusal> {
    match one {
        Cond::Absent(_) => Ok(()),
        Cond::Eq(_, operand) => value(operand),
        Cond::Lt(_, bound @ (AttributeValue::N(_) | AttributeValue::S(_))) => value(bound),
        Cond::Lt(..) => Err("a bound of a type without order"),
        Cond::In(_, all) if all.is_empty() || all.len() > MOST_OPERANDS => Err("1 to 100 operands are allowed"),
        Cond::In(_, all) => all.iter().try_for_each(value),
        Cond::Any(all) if all.is_empty() => Err("none of no conditions holds"),
        Cond::Any(all) => all.iter().try_for_each(cond),
    }
}

/// The row after a write. `None` if the write changes nothing, `Some(None)` if it deletes the row.
#[allow(clippy::option_option, reason = "no change and no row are two things")]
pub fn outcome(write: &Write, before: Option<&Item>) -> Option<Option<Item>> {
    match &write.effect {
        Effect::Check => None,
        Effect::Delete => before.map(|_| None),
        Effect::Put(item) => Some(Some(item.iter().map(|(k, v)| (k.clone(), kept(v))).collect())),
        Effect::Update { set, remove } => {
            let mut item = match before {
                Some(row) => row.clone(),
                None => write.key.attributes().into_iter().map(|(k, v)| (k, kept(&v))).collect(),
            };
            for name in remove {
                item.remove(name);
            }
            item.extend(set.iter().map(|(k, v)| (k.clone(), kept(v))));
            Some(Some(item))
        }
    }
}

/// Whether all of these conditions hold for a row, or for a row that does not exist.
pub fn holds(conds: &[Cond], row: Option<&Item>) -> bool {
    conds.iter().all(|cond| one_holds(cond, row))
}

fn one_holds(cond: &Cond, row: Option<&Item>) -> bool {
    let value = |name: &str| row.and_then(|r| r.get(name));
    match cond {
        Cond::Absent(name) => value(name).is_none(),
        Cond::Eq(name, expected) => value(name).is_some_and(|v| same(v, expected)),
        Cond::Lt(name, bound) => value(name).is_some_and(|v| order(v, bound) == Some(Ordering::Less)),
        Cond::In(name, all) => value(name).is_some_and(|v| all.iter().any(|one| same(v, one))),
        Cond::Any(conds) => conds.iter().any(|c| one_holds(c, row)),
    }
}

/// Whether two values are equal: numbers by value, sets without order.
pub fn same(a: &AttributeValue, b: &AttributeValue) -> bool {
    use AttributeValue as V;
    match (a, b) {
        (V::N(x), V::N(y)) => x == y || number(x).is_some_and(|x| number(y) == Some(x)),
        (V::Ss(a), V::Ss(b)) => a.len() == b.len() && a.iter().all(|x| b.contains(x)),
        (V::Ns(a), V::Ns(b)) => a.len() == b.len() && a.iter().all(|x| b.iter().any(|y| number(x) == number(y))),
        (V::L(a), V::L(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (V::M(a), V::M(b)) => a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w))),
        _ => a == b,
    }
}

/// The order of two values of one type; `None` if they have no order.
fn order(a: &AttributeValue, b: &AttributeValue) -> Option<Ordering> {
    use AttributeValue as V;
    match (a, b) {
        (V::N(a), V::N(b)) => match (a.parse::<i128>(), b.parse::<i128>()) {
            (Ok(a), Ok(b)) => Some(a.cmp(&b)),
            // The fractions in the tables have few digits, so floating point compares them exactly enough.
            _ => a.parse::<f64>().ok()?.partial_cmp(&b.parse::<f64>().ok()?),
        },
        (V::S(a), V::S(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        _ => None,
    }
}
