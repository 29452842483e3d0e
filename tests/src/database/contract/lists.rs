//! Lists: which rows and attributes an index holds, in which order, and how pages continue while rows come and go.

use super::bench::{Bench, Got, Op, Seen, delete, handle, item, job, n, put, row, s, seen, ss, update};
use aws_sdk_dynamodb::types::AttributeValue;
use store::{Answer, DUE, Index, Item, Key, LIVE, QUEUE, Query, Table, Write};

pub async fn all(bench: &Bench) {
    membership(bench).await;
    projections(bench).await;
    order(bench).await;
    pages_of_a_table(bench).await;
    pages_of_an_index(bench).await;
    many(bench).await;
    refused(bench).await;
}

pub fn query(table: Table, index: Option<Index>, hash: AttributeValue) -> Query {
    Query { table, index, hash, range_at_least: None, range_at_most: None, newest_first: false, limit: None }
}

async fn done(bench: &Bench, write: Write) {
    let got = bench.ask("a write", Op::Write(write, Answer::None)).await;
    assert_eq!(got, Got::Row(None));
}

fn named(rows: &Got, name: &str) -> Vec<String> {
    let rows: &[Seen] = match rows {
        Got::Rows(rows) | Got::Page(rows, _) => rows,
        other => panic!("{other:?} has no rows"),
    };
    rows.iter().map(|r| r[name].split_once(' ').unwrap().1.to_owned()).collect()
}

/// A row is in an index as long as it has both of the index's keys.
async fn membership(bench: &Bench) {
    let key = job("m-1");
    let listed = async |state: &str| {
        let got = bench.ask("membership", Op::Query(query(Table::Jobs, Some(QUEUE), s(state)))).await;
        let all = bench.ask("membership", Op::Scan(Table::Jobs, Some(QUEUE))).await;
        let listed = named(&got, "job_id").contains(&"m-1".to_owned());
        assert!(!listed || named(&all, "job_id").contains(&"m-1".to_owned()));
        listed
    };
    done(bench, put(&key, &[("version", n(1))])).await;
    assert!(!listed("m-queued").await, "no keys");
    done(bench, update(&key, &[("queue", s("m-queued"))], &[])).await;
    assert!(!listed("m-queued").await, "no range key");
    done(bench, update(&key, &[("rank", s("1"))], &[])).await;
    assert!(listed("m-queued").await);
    done(bench, update(&key, &[("queue", s("m-placed"))], &[])).await;
    assert!(!listed("m-queued").await && listed("m-placed").await, "it moved");
    done(bench, update(&key, &[], &["rank"])).await;
    assert!(!listed("m-placed").await, "the range key went");
    done(bench, update(&key, &[("rank", s("2"))], &["queue"])).await;
    assert!(!listed("m-placed").await, "the hash key went");
    done(bench, put(&key, &[("queue", s("m-queued")), ("rank", s("3"))])).await;
    assert!(listed("m-queued").await, "put with both");
    done(bench, put(&key, &[("version", n(2))])).await;
    assert!(!listed("m-queued").await, "put without");
    let back = update(&key, &[("queue", s("m-queued")), ("rank", s("3"))], &[]);
    assert_eq!(bench.ask("membership", Op::Transact(vec![back])).await, Got::Row(None));
    assert!(listed("m-queued").await, "by a transaction");
    assert_eq!(bench.ask("membership", Op::Transact(vec![delete(&key)])).await, Got::Row(None));
    assert!(!listed("m-queued").await, "deleted");
}

/// An index shows the keys of the table and of the index, and the projected attributes that the row has.
async fn projections(bench: &Bench) {
    let of = |names: &[&str], row: &Item| -> Seen {
        seen(&row.iter().filter(|(k, _)| names.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect())
    };
    let alloc = Key::hash(Table::Allocs, s("p-a"));
    type Attributes = Vec<(&'static str, AttributeValue)>;
    let rows: [(Key, Index, AttributeValue, Attributes); 3] = [
        (
            job("p-j"),
            QUEUE,
            s("p-queued"),
            vec![("queue", s("p-queued")), ("rank", s("1")), ("state", s("queued")), ("allocs", ss(&["a"]))],
        ),
        (alloc, LIVE, s("p-node"), vec![("live_node", s("p-node")), ("client", s("running")), ("slot", n(0))]),
        (handle("p-n", "h"), DUE, s("p-due"), vec![("due", s("p-due")), ("due_at", n(5)), ("state", s("live"))]),
    ];
    for (key, index, hash, mut attributes) in rows {
        attributes.extend([
            ("version", n(1)),
            ("log_tail", s("long")),
            ("command", crate::database::contract::bench::l(&[s("x")])),
        ]);
        bench.given(put(&key, &attributes)).await;
        let whole = row(&key, &attributes);
        let table = key.table.definition().key;
        let mut names: Vec<&str> = vec![table.hash.name, index.key.hash.name];
        names.extend([table.range, index.key.range].into_iter().flatten().map(|r| r.name));
        names.extend(index.projected.unwrap_or_default());
        let expected = of(&names, &whole);
        let shows = index.projected.is_some_and(|names| names.contains(&"version"));
        assert_eq!(expected.contains_key("version"), shows);
        assert!(!expected.contains_key("log_tail"));
        let got = Got::Rows(vec![expected]);
        bench.expect("projection", Op::Query(query(key.table, Some(index), hash)), &got).await;
    }
}

async fn order(bench: &Bench) {
    // Texts are ordered by their bytes.
    let ranks = ["9", "10", "a", "B", "ä", "", "aa", "Z", "\u{10000}", "\u{ffff}"];
    for (i, rank) in ranks.iter().enumerate() {
        let key = job(&format!("o-{i}"));
        done(bench, put(&key, &[("queue", s("o")), ("rank", s(&format!("r{rank}")))])).await;
    }
    let mut expected: Vec<String> = ranks.iter().map(|r| format!("r{r}")).collect();
    expected.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    let of_text = query(Table::Jobs, Some(QUEUE), s("o"));
    let got = bench.ask("order of texts", Op::Query(of_text.clone())).await;
    assert_eq!(named(&got, "rank"), expected);
    let newest = Query { newest_first: true, ..of_text.clone() };
    let got = bench.ask("texts backwards", Op::Query(newest)).await;
    assert_eq!(named(&got, "rank"), expected.iter().rev().cloned().collect::<Vec<_>>());
    let most = Query { range_at_most: Some(s("rZ")), ..of_text };
    let got = bench.ask("texts at most", Op::Query(most)).await;
    assert_eq!(named(&got, "rank"), ["r", "r10", "r9", "rB", "rZ"]);
    // Numbers are ordered by their value. Two rows may have the same.
    for (i, at) in ["100", "9", "10", "-5", "0", "9", "1800000000000"].iter().enumerate() {
        let key = handle("o", &format!("h{i}"));
        done(bench, put(&key, &[("due", s("o")), ("due_at", n(at))])).await;
    }
    let of_number = query(Table::Handles, Some(DUE), s("o"));
    let got = bench.ask("order of numbers", Op::Query(of_number.clone())).await;
    assert_eq!(named(&got, "due_at"), ["-5", "0", "9", "9", "10", "100", "1800000000000"]);
    let newest = Query { newest_first: true, ..of_number.clone() };
    let got = bench.ask("numbers backwards", Op::Query(newest)).await;
    assert_eq!(named(&got, "due_at"), ["1800000000000", "100", "10", "9", "9", "0", "-5"]);
    for (most, count) in [(-6, 0), (-5, 1), (8, 2), (9, 4), (10, 5), (99, 5), (100, 6)] {
        for newest_first in [false, true] {
            let query = Query { range_at_most: Some(n(most)), newest_first, ..of_number.clone() };
            let got = bench.ask("numbers at most", Op::Query(query)).await;
            assert_eq!(named(&got, "due_at").len(), count, "at most {most}");
        }
    }
    // A query of one hash value does not show rows of another hash value. The rows are in the order of the table's
    // range key.
    let got = bench.ask("order of a table", Op::Query(query(Table::Handles, None, s("o")))).await;
    assert_eq!(named(&got, "handle"), ["h0", "h1", "h2", "h3", "h4", "h5", "h6"]);
    let most = Query { range_at_most: Some(s("h3")), newest_first: true, ..query(Table::Handles, None, s("o")) };
    let got = bench.ask("a table at most", Op::Query(most)).await;
    assert_eq!(named(&got, "handle"), ["h3", "h2", "h1", "h0"]);
    bench.expect("nobody's", Op::Query(query(Table::Handles, None, s("nobody"))), &Got::Rows(Vec::new())).await;
    // Without a range key there is one row, and `range_at_most` has no meaning.
    let query = Query { range_at_most: Some(s("a")), ..query(Table::Jobs, None, s("o-1")) };
    let got = bench.ask("no range key", Op::Query(query)).await;
    assert_eq!(named(&got, "job_id"), ["o-1"]);
}

fn event(subject: &str, id: &str) -> Key {
    Key { table: Table::Events, hash: s(subject), range: Some(s(id)) }
}

/// Asks for a page. All databases must name the same place to continue.
async fn page(bench: &Bench, query: &Query, from: Option<Item>, range: &str) -> (Vec<String>, Option<Seen>) {
    let got = bench.ask("a page", Op::Page(query.clone(), from)).await;
    let Got::Page(_, next) = &got else { panic!("{got:?}") };
    (named(&got, range), next.clone())
}

async fn pages_of_a_table(bench: &Bench) {
    for newest_first in [false, true] {
        let subject = format!("pages-{newest_first}");
        for i in ["b", "d", "f", "h", "j"] {
            done(bench, put(&event(&subject, i), &[("text", s(i))])).await;
        }
        let first = Query { newest_first, limit: Some(2), ..query(Table::Events, None, s(&subject)) };
        let (rows, next) = page(bench, &first, None, "id").await;
        let (expected, went, missed, come) =
            if newest_first { (["j", "h"], "h", "i", "e") } else { (["b", "d"], "d", "c", "g") };
        assert_eq!(rows, expected);
        assert_eq!(next, Some(seen(&event(&subject, expected[1]).attributes())));
        // The row at which the page stopped is deleted. One row is added before that place and one after it.
        done(bench, delete(&event(&subject, went))).await;
        done(bench, put(&event(&subject, missed), &[])).await;
        done(bench, put(&event(&subject, come), &[])).await;
        let from = Some(event(&subject, expected[1]).attributes());
        let (rows, next) = page(bench, &first, from, "id").await;
        let expected = if newest_first { ["f", "e"] } else { ["f", "g"] };
        assert_eq!(rows, expected);
        assert_eq!(next, Some(seen(&event(&subject, expected[1]).attributes())));
        let from = Some(event(&subject, expected[1]).attributes());
        let (rows, next) = page(bench, &first, from, "id").await;
        let expected = if newest_first { ["d", "b"] } else { ["h", "j"] };
        assert_eq!(rows, expected);
        // The page is full, so another page may follow. That page is empty and the last one.
        assert_eq!(next, Some(seen(&event(&subject, expected[1]).attributes())));
        let from = Some(event(&subject, expected[1]).attributes());
        assert_eq!(page(bench, &first, from, "id").await, (Vec::new(), None));
        // A page that is not full is the last one.
        let all = Query { limit: Some(6), ..first.clone() };
        let (rows, next) = page(bench, &all, None, "id").await;
        assert_eq!(rows.len(), 6);
        assert!(next.is_some());
        let all = Query { limit: Some(7), ..first };
        assert_eq!(page(bench, &all, None, "id").await.1, None);
    }
}

async fn pages_of_an_index(bench: &Bench) {
    let at = |name: &str, due_at: i64| put(&handle("pi", name), &[("due", s("pi")), ("due_at", n(due_at))]);
    for (name, due_at) in [("a", 10), ("b", 20), ("c", 30), ("d", 40), ("e", 50)] {
        done(bench, at(name, due_at)).await;
    }
    let place = |name: &str, due_at: i64| {
        let mut place = handle("pi", name).attributes();
        place.extend(item(&[("due", s("pi")), ("due_at", n(due_at))]));
        place
    };
    let first = Query { limit: Some(2), range_at_most: Some(n(45)), ..query(Table::Handles, Some(DUE), s("pi")) };
    let (rows, next) = page(bench, &first, None, "handle").await;
    assert_eq!((rows, next), (vec!["a".into(), "b".into()], Some(seen(&place("b", 20)))));
    // A row that moves behind the start of the next page is listed again. A row that moves before it is missed. The
    // same holds for the row at the start itself.
    done(bench, at("a", 35)).await;
    done(bench, at("b", 36)).await;
    done(bench, at("c", 5)).await;
    let (rows, next) = page(bench, &first, Some(place("b", 20)), "handle").await;
    assert_eq!((rows, next), (vec!["a".into(), "b".into()], Some(seen(&place("b", 36)))));
    done(bench, delete(&handle("pi", "b"))).await;
    let (rows, next) = page(bench, &first, Some(place("b", 36)), "handle").await;
    assert_eq!((rows, next), (vec!["d".into()], None));
}

async fn many(bench: &Bench) {
    let keys: Vec<Key> = (0..150).map(|i| event("many", &format!("{i:03}"))).collect();
    for (i, key) in keys.iter().enumerate().filter(|(i, _)| i % 3 == 0) {
        done(bench, put(key, &[("number", n(i))])).await;
    }
    let got = bench.ask("150 keys", Op::GetMany(keys.clone())).await;
    assert_eq!(named(&got, "id").len(), 50);
    let got = bench.ask("a missing key", Op::GetMany(keys[1..3].to_vec())).await;
    assert_eq!(got, Got::Rows(Vec::new()));
    bench.expect("no keys", Op::GetMany(Vec::new()), &Got::Rows(Vec::new())).await;
    let twice = vec![keys[0].clone(), keys[1].clone(), keys[0].clone()];
    bench.expect("a key twice", Op::GetMany(twice), &Got::Refused).await;
    let twice = vec![keys[1].clone(), keys[1].clone()];
    bench.expect("a missing key twice", Op::GetMany(twice), &Got::Refused).await;
    let got = bench.ask("a long list", Op::Query(query(Table::Events, None, s("many")))).await;
    assert_eq!(named(&got, "id").len(), 50);
    bench.ask("a whole table", Op::Scan(Table::Events, None)).await;
    bench.expect("an empty table", Op::Scan(Table::Control, None), &Got::Rows(Vec::new())).await;
}

async fn refused(bench: &Bench) {
    let events = query(Table::Events, None, s("many"));
    let due = query(Table::Handles, Some(DUE), s("o"));
    let queries = [
        ("a hash value of another type", Query { hash: n(1), ..events.clone() }),
        ("an empty hash value", Query { hash: s(""), ..events.clone() }),
        ("an index's hash value of another type", Query { hash: n(1), ..due.clone() }),
        ("a bound of another type", Query { range_at_most: Some(s("1")), ..due.clone() }),
        ("a bound of another type", Query { range_at_most: Some(n(1)), ..events.clone() }),
        ("a limit of 0", Query { limit: Some(0), ..events.clone() }),
        ("a negative limit", Query { limit: Some(-1), ..events.clone() }),
    ];
    for (what, query) in queries {
        bench.expect(&format!("refused: {what}"), Op::Page(query, None), &Got::Refused).await;
    }
    let places = [
        ("a start without its range key", &events, item(&[("subject", s("many"))])),
        ("a start of another type", &events, item(&[("subject", s("many")), ("id", n(1))])),
        ("a start with another hash value", &events, event("others", "1").attributes()),
        ("an index's start without its own keys", &due, handle("o", "h1").attributes()),
    ];
    for (what, query, from) in places {
        bench.expect(&format!("refused: {what}"), Op::Page(query.clone(), Some(from)), &Got::Refused).await;
    }
}
