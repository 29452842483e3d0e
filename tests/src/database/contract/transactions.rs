//! Transactions: all writes or none, and the requests that are refused.

use super::bench::{Bench, Got, Op, check, delete, handle, job, n, put, row, seen, update};
use store::{Cond, Key, Table};

pub async fn all(bench: &Bench) {
    all_or_nothing(bench).await;
    sizes(bench).await;
    what_outweighs(bench).await;
}

async fn holds(bench: &Bench, what: &str, key: &Key, version: Option<u32>) {
    let row = version.map(|v| seen(&row(key, &[("version", n(v))])));
    bench.expect(what, Op::Get(key.clone()), &Got::Row(row)).await;
}

async fn all_or_nothing(bench: &Bench) {
    let (a, b, c, d) = (job("t-a"), job("t-b"), handle("t", "c"), Key::hash(Table::Nodes, n(0)));
    let none = job("t-none");
    for key in [&a, &b, &c] {
        bench.given(put(key, &[("version", n(1))])).await;
    }
    let version = |v: u32| Cond::Eq("version", n(v));
    let set = |key: &Key, v: u32| update(key, &[("version", n(v))], &[]);
    // Several tables, every effect, and a check that a row does not exist.
    let op = Op::Transact(vec![
        set(&a, 2).and(version(1)),
        delete(&b).and(version(1)),
        check(&c).and(version(1)),
        put(&d, &[("version", n(1))]).and(Cond::Absent("slot")),
        check(&none).and(Cond::Absent("job_id")),
    ]);
    bench.expect("a transaction", op, &Got::Row(None)).await;
    for (key, v) in [(&a, Some(2)), (&b, None), (&c, Some(1)), (&d, Some(1)), (&none, None)] {
        holds(bench, "a transaction", key, v).await;
    }
    // If one condition fails, at any position, nothing is written and no row is returned.
    let failing = [
        ("update", set(&a, 9).and(version(1))),
        ("put", put(&a, &[]).and(Cond::Absent("job_id"))),
        ("delete", delete(&a).and(version(1))),
        ("check", check(&a).and(version(1))),
        ("check of nothing", check(&none).and(Cond::Eq("version", n(1)))),
    ];
    for (name, failing) in failing {
        for first in [true, false] {
            let mut writes = vec![set(&c, 9), put(&b, &[("version", n(9))]), delete(&d)];
            writes.insert(if first { 0 } else { 3 }, failing.clone());
            bench.expect(name, Op::Transact(writes), &Got::Conflict(None)).await;
            for (key, v) in [(&a, Some(2)), (&b, None), (&c, Some(1)), (&d, Some(1)), (&none, None)] {
                holds(bench, name, key, v).await;
            }
        }
    }
    // A transaction of checks only.
    let op = Op::Transact(vec![check(&a).and(version(2)), check(&c).and(version(1))]);
    bench.expect("only checks", op, &Got::Row(None)).await;
    // One transaction creates and deletes rows.
    let made = [job("t-x"), job("t-y")];
    let op = Op::Transact(made.iter().map(|k| set(k, 5)).collect());
    bench.expect("updates that make rows", op, &Got::Row(None)).await;
    for key in &made {
        holds(bench, "updates that make rows", key, Some(5)).await;
    }
}

async fn sizes(bench: &Bench) {
    let many = |count: u32| (0..count).map(|i| put(&job(&format!("t-many-{i}")), &[("version", n(i))])).collect();
    bench.expect("101 items", Op::Transact(many(101)), &Got::Refused).await;
    holds(bench, "101 items", &job("t-many-0"), None).await;
    bench.expect("100 items", Op::Transact(many(100)), &Got::Row(None)).await;
    holds(bench, "100 items", &job("t-many-99"), Some(99)).await;
    bench.expect("no items", Op::Transact(Vec::new()), &Got::Refused).await;
    let (a, b) = (job("t-many-1"), job("t-many-2"));
    let twice = [
        vec![update(&a, &[("version", n(7))], &[]), update(&b, &[("version", n(7))], &[]), delete(&a)],
        vec![check(&a).and(Cond::Eq("version", n(1))), update(&a, &[("version", n(7))], &[])],
        vec![put(&a, &[]), put(&a, &[])],
        vec![put(&Key::hash(Table::Nodes, n(70)), &[]), put(&Key::hash(Table::Nodes, n("70.0")), &[])],
    ];
    for writes in twice {
        bench.expect("an item twice", Op::Transact(writes), &Got::Refused).await;
    }
    for (key, v) in [(&a, 1), (&b, 2)] {
        holds(bench, "an item twice", key, Some(v)).await;
    }
    bench.expect("a check of nothing", Op::Transact(vec![check(&a)]), &Got::Refused).await;
}

/// A wrong request is refused before any condition is checked.
async fn what_outweighs(bench: &Bench) {
    let (a, b) = (job("t-many-1"), job("t-many-2"));
    let fails = update(&a, &[("version", n(8))], &[]).and(Cond::Absent("version"));
    let refused = [
        update(&b, &[], &[]),
        update(&b, &[("allocs", crate::database::contract::bench::ss(&["a", "a"]))], &[]),
        update(&b, &[("version", n(8))], &[]).and(Cond::Any(Vec::new())),
    ];
    for wrong in refused {
        let what = format!("refused beside a failed condition: {wrong:?}");
        bench.expect(&what, Op::Transact(vec![fails.clone(), wrong.clone()]), &Got::Refused).await;
        bench.expect(&what, Op::Transact(vec![wrong, fails.clone()]), &Got::Refused).await;
    }
    for (key, v) in [(&a, 1), (&b, 2)] {
        holds(bench, "refused", key, Some(v)).await;
    }
}
