//! Conditions and effects of single writes, each with the result that it must have.

use super::bench::{Bench, Got, Op, check, delete, handle, item, job, l, m, n, ns, put, row, s, seen, ss, update};
use aws_sdk_dynamodb::types::AttributeValue;
use store::{Answer, Cond, Effect, Item, Key, Table, Write};

pub async fn all(bench: &Bench) {
    conditions(bench).await;
    effects(bench).await;
    wrong_keys(bench).await;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    True,
    False,
    Refused,
}
use Is::{False, Refused, True};

fn given() -> Vec<(&'static str, AttributeValue)> {
    vec![
        ("version", n(3)),
        ("state", s("queued")),
        ("price", n("0.5")),
        ("busy", AttributeValue::Bool(true)),
        ("nothing", AttributeValue::Null(true)),
        ("allocs", ss(&["a", "b"])),
        ("done", ns(&["1", "2"])),
        ("command", l(&[s("true"), n(1)])),
        ("needs", m(&[("vcpus", n(2)), ("tags", l(&[s("x")]))])),
        ("empty", s("")),
    ]
}

/// Conditions, each with its result on the given row and its result without a row.
type Conds = Vec<(Vec<Cond>, Is, Is)>;

fn conds() -> Conds {
    [presence_conds(), equality_conds(), order_conds(), combined_conds()].concat()
}

fn one(cond: Cond, on_row: Is, on_none: Is) -> (Vec<Cond>, Is, Is) {
    (vec![cond], on_row, on_none)
}

fn presence_conds() -> Conds {
    vec![
        (Vec::new(), True, True),
        one(Cond::Absent("job_id"), False, True),
        one(Cond::Absent("version"), False, True),
        one(Cond::Absent("nowhere"), True, True),
        // A null attribute and an empty text exist.
        one(Cond::Absent("nothing"), False, True),
        one(Cond::Absent("empty"), False, True),
    ]
}

fn equality_conds() -> Conds {
    vec![
        one(Cond::Eq("job_id", s("other")), False, False),
        one(Cond::Eq("version", n(3)), True, False),
        one(Cond::Eq("version", n("3.0")), True, False),
        one(Cond::Eq("version", n("03")), True, False),
        one(Cond::Eq("version", n("3e0")), True, False),
        one(Cond::Eq("version", n(4)), False, False),
        one(Cond::Eq("version", s("3")), False, False),
        one(Cond::Eq("price", n("0.50")), True, False),
        one(Cond::Eq("price", n("5e-1")), True, False),
        one(Cond::Eq("nowhere", n(3)), False, False),
        one(Cond::Eq("state", s("queued")), True, False),
        one(Cond::Eq("state", s("Queued")), False, False),
        one(Cond::Eq("empty", s("")), True, False),
        one(Cond::Eq("busy", AttributeValue::Bool(true)), True, False),
        one(Cond::Eq("busy", AttributeValue::Bool(false)), False, False),
        one(Cond::Eq("nothing", AttributeValue::Null(true)), True, False),
        one(Cond::Eq("allocs", ss(&["b", "a"])), True, False),
        one(Cond::Eq("allocs", ss(&["a"])), False, False),
        one(Cond::Eq("allocs", l(&[s("a"), s("b")])), False, False),
        one(Cond::Eq("done", ns(&["2", "1.0"])), True, False),
        one(Cond::Eq("done", ns(&["1", "2", "3"])), False, False),
        one(Cond::Eq("command", l(&[s("true"), n("1.0")])), True, False),
        one(Cond::Eq("command", l(&[n(1), s("true")])), False, False),
        one(Cond::Eq("needs", m(&[("tags", l(&[s("x")])), ("vcpus", n(2))])), True, False),
        one(Cond::Eq("needs", m(&[("vcpus", n(2))])), False, False),
    ]
}

fn order_conds() -> Conds {
    vec![
        one(Cond::Lt("version", n(4)), True, False),
        one(Cond::Lt("version", n("3.5")), True, False),
        one(Cond::Lt("version", n(10)), True, False),
        one(Cond::Lt("version", n(3)), False, False),
        one(Cond::Lt("version", n(-4)), False, False),
        one(Cond::Lt("version", s("4")), False, False),
        one(Cond::Lt("nowhere", n(4)), False, False),
        one(Cond::Lt("state", s("r")), True, False),
        one(Cond::Lt("state", s("Z")), False, False),
        one(Cond::Lt("state", s("queued")), False, False),
        one(Cond::Lt("state", n(9)), False, False),
        one(Cond::Lt("busy", n(9)), False, False),
    ]
}

fn combined_conds() -> Conds {
    vec![
        one(Cond::In("state", vec![s("placed"), s("queued")]), True, False),
        one(Cond::In("state", vec![s("placed"), n(1)]), False, False),
        one(Cond::In("version", vec![n("3.0")]), True, False),
        one(Cond::In("nowhere", vec![s("placed")]), False, False),
        one(Cond::Any(vec![Cond::Absent("version"), Cond::Lt("version", n(4))]), True, True),
        one(Cond::Any(vec![Cond::Absent("version"), Cond::Lt("version", n(3))]), False, True),
        one(Cond::Any(vec![Cond::Eq("state", s("placed")), Cond::Lt("version", n(4))]), True, False),
        one(Cond::Any(vec![Cond::Any(vec![Cond::Lt("version", n(4))]), Cond::Lt("nowhere", n(4))]), True, False),
        // All conditions must hold. An Any contains only its own conditions.
        (vec![Cond::Eq("version", n(3)), Cond::Eq("state", s("queued"))], True, False),
        (vec![Cond::Eq("version", n(3)), Cond::Eq("state", s("placed"))], False, False),
        (vec![Cond::Absent("nowhere"), Cond::Any(vec![Cond::Absent("a"), Cond::Absent("b")])], True, True),
        (vec![Cond::Eq("version", n(4)), Cond::Any(vec![Cond::Absent("a"), Cond::Absent("b")])], False, False),
        (vec![Cond::Any(vec![Cond::Absent("a"), Cond::Absent("b")]), Cond::Eq("version", n(4))], False, False),
    ]
}

/// Expressions that are refused before any row is read.
fn refused_conds() -> Vec<(&'static str, Cond)> {
    let huge: Vec<AttributeValue> = (0..101).map(n).collect();
    vec![
        ("a bound without order", Cond::Lt("busy", AttributeValue::Bool(true))),
        ("one of no values", Cond::In("state", Vec::new())),
        ("one of too many values", Cond::In("version", huge)),
        ("any of none", Cond::Any(Vec::new())),
        ("an empty set to compare with", Cond::Eq("allocs", AttributeValue::Ss(Vec::new()))),
        ("a set with a value twice to compare with", Cond::Eq("allocs", ss(&["a", "a"]))),
        ("no number to compare with", Cond::Eq("version", n("three"))),
    ]
}

async fn conditions(bench: &Bench) {
    let named = conds().into_iter().map(|(when, on_row, on_none)| (format!("{when:?}"), when, on_row, on_none));
    let refused = refused_conds().into_iter().map(|(name, cond)| (name.to_owned(), vec![cond], Refused, Refused));
    for (number, (case, when, on_row, on_none)) in named.chain(refused).enumerate() {
        for (there, is) in [(true, on_row), (false, on_none)] {
            let effects = ["update", "put", "delete", "check"];
            // If calls are slow, only the update is tried, because its answer shows the most.
            for name in effects.iter().take(if bench.thorough { 4 } else { 1 }) {
                for answer in [Answer::Row, Answer::None] {
                    let key = job(&format!("cond-{number}-{there}-{name}-{answer:?}"));
                    let what = format!("condition: {case} ({name}, there: {there}, {answer:?})");
                    one_condition(bench, &what, &key, name, when.clone(), is, there, answer).await;
                }
            }
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "a row of a table")]
async fn one_condition(
    bench: &Bench,
    what: &str,
    key: &Key,
    name: &str,
    when: Vec<Cond>,
    is: Is,
    there: bool,
    answer: Answer,
) {
    if there {
        bench.given(put(key, &given())).await;
    }
    let before: Option<Item> = there.then(|| row(key, &given()));
    let (mut write, after) = match name {
        "update" => {
            let mut after = before.clone().unwrap_or_else(|| key.attributes());
            after.extend(item(&[("reason", s("r"))]));
            (update(key, &[("reason", s("r"))], &[]), Some(after))
        }
        "put" => (put(key, &[("reason", s("p"))]), Some(row(key, &[("reason", s("p"))]))),
        "delete" => (delete(key), None),
        _ => (check(key), before.clone()),
    };
    write.when = when;
    // DynamoDB refuses a check without a condition.
    let is = if name == "check" && write.when.is_empty() { Refused } else { is };
    let answers = answer == Answer::Row && name == "update";
    let expected = match is {
        True => Got::Row(after.as_ref().filter(|_| answers).map(seen)),
        False => Got::Conflict(before.as_ref().filter(|_| answers).map(seen)),
        Refused => Got::Refused,
    };
    bench.expect(what, Op::Write(write, answer), &expected).await;
    let then = if is == True { after } else { before };
    bench.expect(what, Op::Get(key.clone()), &Got::Row(then.as_ref().map(seen))).await;
}

/// An effect: the row before, the write, and the row after. `after` is `None` if the write is refused.
struct Case {
    name: &'static str,
    before: Option<Vec<(&'static str, AttributeValue)>>,
    write: fn(&Key) -> Write,
    after: Option<Option<Vec<(&'static str, AttributeValue)>>>,
}

fn case(
    name: &'static str,
    before: Option<&[(&'static str, AttributeValue)]>,
    write: fn(&Key) -> Write,
    after: Option<Option<&[(&'static str, AttributeValue)]>>,
) -> Case {
    Case { name, before: before.map(<[_]>::to_vec), write, after: after.map(|a| a.map(<[_]>::to_vec)) }
}

fn effect_cases() -> Vec<Case> {
    let old = [("version", n(1)), ("state", s("queued"))];
    let mut cases = row_cases(&old);
    cases.extend(value_cases());
    cases.extend(number_cases(&old));
    cases.extend(refused_cases(&old));
    cases
}

fn row_cases(old: &[(&'static str, AttributeValue)]) -> Vec<Case> {
    vec![
        case("put where nothing is", None, |k| put(k, &[("version", n(1))]), Some(Some(&[("version", n(1))]))),
        case("put replaces the whole row", Some(old), |k| put(k, &[("name", s("x"))]), Some(Some(&[("name", s("x"))]))),
        case("put of the key alone", Some(old), |k| put(k, &[]), Some(Some(&[]))),
        case("set makes the row", None, |k| update(k, &[("version", n(1))], &[]), Some(Some(&[("version", n(1))]))),
        case("remove makes the row", None, |k| update(k, &[], &["version"]), Some(Some(&[]))),
        case("remove of what is not there", Some(old), |k| update(k, &[], &["nowhere"]), Some(Some(old))),
        case(
            "set and remove",
            Some(old),
            |k| update(k, &[("version", n(2)), ("name", s("x"))], &["state"]),
            Some(Some(&[("version", n(2)), ("name", s("x"))])),
        ),
        case(
            "set changes the type",
            Some(old),
            |k| update(k, &[("version", s("two"))], &[]),
            Some(Some(&[("version", s("two")), ("state", s("queued"))])),
        ),
    ]
}

fn value_cases() -> Vec<Case> {
    vec![
        case(
            "reserved and odd names",
            None,
            |k| update(k, &[("size", n(1)), ("a.b", n(2)), ("a-b", n(3)), ("ä", n(4)), ("#x", n(5))], &[]),
            Some(Some(&[("size", n(1)), ("a.b", n(2)), ("a-b", n(3)), ("ä", n(4)), ("#x", n(5))])),
        ),
        case(
            "a dot in a name is no path",
            Some(&[("a", m(&[("b", n(1))])), ("a.b", n(2))]),
            |k| update(k, &[], &["a.b"]),
            Some(Some(&[("a", m(&[("b", n(1))]))])),
        ),
        case(
            "sets, lists and maps",
            None,
            |k| put(k, &[("allocs", ss(&["b", "a"])), ("done", ns(&["2", "10"])), ("command", l(&[s(""), l(&[])]))]),
            Some(Some(&[("allocs", ss(&["a", "b"])), ("done", ns(&["10", "2"])), ("command", l(&[s(""), l(&[])]))])),
        ),
        case(
            "a set is replaced",
            Some(&[("allocs", ss(&["a", "b"]))]),
            |k| update(k, &[("allocs", ss(&["c"]))], &[]),
            Some(Some(&[("allocs", ss(&["c"]))])),
        ),
        case(
            "an empty map, list and text",
            None,
            |k| put(k, &[("needs", m(&[])), ("command", l(&[])), ("name", s(""))]),
            Some(Some(&[("needs", m(&[])), ("command", l(&[])), ("name", s(""))])),
        ),
    ]
}

fn number_cases(old: &[(&'static str, AttributeValue)]) -> Vec<Case> {
    vec![
        // DynamoDB stores numbers, not their spelling (developer guide, naming rules and data types).
        case(
            "numbers are kept in one spelling",
            None,
            |k| {
                let spelled = ["1.0", "0.50", "007", "1e3", "1.5E2", "-0", "25e-4", "+3", "-1.20"];
                let mut numbers: Vec<(String, AttributeValue)> =
                    spelled.iter().enumerate().map(|(i, t)| (format!("n{i}"), n(t))).collect();
                numbers.push(("within".into(), m(&[("list", l(&[n("2.0")]))])));
                let numbers: Vec<(&str, AttributeValue)> =
                    numbers.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
                update(k, &numbers, &[])
            },
            Some(Some(&[
                ("n0", n(1)),
                ("n1", n("0.5")),
                ("n2", n(7)),
                ("n3", n(1000)),
                ("n4", n(150)),
                ("n5", n(0)),
                ("n6", n("0.0025")),
                ("n7", n(3)),
                ("n8", n("-1.2")),
                ("within", m(&[("list", l(&[n(2)]))])),
            ])),
        ),
        case(
            "thirty-eight digits",
            None,
            |k| put(k, &[("version", n("12345678901234567890123456789012345678"))]),
            Some(Some(&[("version", n("12345678901234567890123456789012345678"))])),
        ),
        case("too many digits", None, |k| put(k, &[("version", n("123456789012345678901234567890123456789"))]), None),
        case("too large a number", None, |k| put(k, &[("version", n("1e126"))]), None),
        case("no number at all", Some(old), |k| update(k, &[("version", n("x"))], &[]), None),
        case("an empty number", Some(old), |k| update(k, &[("version", n(""))], &[]), None),
    ]
}

fn refused_cases(old: &[(&'static str, AttributeValue)]) -> Vec<Case> {
    vec![
        case("delete", Some(old), delete, Some(None)),
        case("delete of what is not there", None, delete, Some(None)),
        case("an update of nothing", Some(old), |k| update(k, &[], &[]), None),
        case("an update of the key", Some(old), |k| update(k, &[("job_id", s("x"))], &[]), None),
        case("a removal of the key", Some(old), |k| update(k, &[], &["job_id"]), None),
        case("set and removed at once", Some(old), |k| update(k, &[("state", s("x"))], &["state"]), None),
        case("an empty set", Some(old), |k| update(k, &[("allocs", AttributeValue::Ss(Vec::new()))], &[]), None),
        case(
            "an empty set in a map",
            None,
            |k| put(k, &[("needs", m(&[("x", AttributeValue::Ns(Vec::new()))]))]),
            None,
        ),
        case("a set with a value twice", Some(old), |k| update(k, &[("allocs", ss(&["a", "a"]))], &[]), None),
        case("a set with a number twice", None, |k| put(k, &[("done", ns(&["1", "1.0"]))]), None),
        // An attribute that is an index key must have the key's type in every row.
        case("an index key of another type", Some(old), |k| update(k, &[("rank", n(1))], &[]), None),
        case("an index key of another type, put", None, |k| put(k, &[("queue", n(1)), ("rank", s("a"))]), None),
        case("an empty index key", Some(old), |k| update(k, &[("queue", s(""))], &[]), None),
        case("an empty index key, put", None, |k| put(k, &[("queue", s("")), ("rank", s("a"))]), None),
    ]
}

async fn effects(bench: &Bench) {
    for (number, case) in effect_cases().into_iter().enumerate() {
        for way in ["alone", "answered", "in a transaction"] {
            let what = format!("effect: {} ({way})", case.name);
            let key = job(&format!("effect-{number}-{way}"));
            if let Some(before) = &case.before {
                bench.given(put(&key, before)).await;
            }
            let write = (case.write)(&key);
            let after = case.after.as_ref().map(|a| a.as_ref().map(|a| row(&key, a)));
            let answered = match (&write.effect, way) {
                // A put returns the item as the client sent it.
                (Effect::Update { .. }, "answered") => after.clone().flatten().as_ref().map(seen),
                _ => None,
            };
            let expected = if after.is_some() { Got::Row(answered) } else { Got::Refused };
            let op = match way {
                "alone" => Op::Write(write, Answer::None),
                "answered" => Op::Write(write, Answer::Row),
                _ => Op::Transact(vec![write]),
            };
            bench.expect(&what, op, &expected).await;
            let then = after.unwrap_or_else(|| case.before.as_ref().map(|b| row(&key, b)));
            bench.expect(&what, Op::Get(key), &Got::Row(then.as_ref().map(seen))).await;
        }
    }
}

/// A key of the wrong shape is refused in every operation.
async fn wrong_keys(bench: &Bench) {
    let keys = [
        Key::hash(Table::Jobs, n(1)),
        Key::hash(Table::Jobs, s("")),
        Key::hash(Table::Nodes, s("1")),
        Key::hash(Table::Handles, s("node")),
        handle("node", ""),
        Key { table: Table::Handles, hash: s("node"), range: Some(n(1)) },
    ];
    let whats = ["type", "emptiness", "number's type", "shape", "empty range", "range's type"];
    for (what, key) in whats.into_iter().zip(keys) {
        let what = format!("wrong key: {what}");
        let versioned = Cond::Eq("version", n(1));
        let ops = [
            Op::Get(key.clone()),
            Op::GetMany(vec![key.clone()]),
            Op::Write(put(&key, &[]), Answer::None),
            Op::Write(update(&key, &[("version", n(1))], &[]), Answer::Row),
            Op::Write(delete(&key), Answer::None),
            Op::Transact(vec![put(&key, &[])]),
            Op::Transact(vec![update(&key, &[("version", n(1))], &[])]),
            Op::Transact(vec![delete(&key)]),
            Op::Transact(vec![check(&key).and(versioned)]),
        ];
        for op in ops {
            bench.expect(&what, op, &Got::Refused).await;
        }
    }
    // Two spellings of one number are the same key.
    let (one, other) = (Key::hash(Table::Nodes, n(7)), Key::hash(Table::Nodes, n("7.0")));
    bench.given(put(&one, &[("version", n(1))])).await;
    bench
        .expect("a key spelled otherwise", Op::Get(other), &Got::Row(Some(seen(&row(&one, &[("version", n(1))])))))
        .await;
}
