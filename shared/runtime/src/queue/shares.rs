//! What a run reads about shares and limits: what each share has used, and the turn to place what is under a limit.
//!
//! Guarantees: of two runs that overlap, at most one has the turn, and a placement that requires it is no longer made when another run
//! has taken it; an alloc counts once, live or ended.
//! Does not: decide.

use model::control::totals::ShareUse;
use model::control::{PollTurn, RunTurn, Totals, TotalsRow};
use model::{AllocId, AllocSummary, ControlKey, EndedAlloc, Needs, Policy, Span, Time, Usd};
use std::collections::{BTreeMap, BTreeSet};
use store::{DbError, Store, unless_raced};

/// No run lasts longer: Lambda ends it before.
const LONGEST_RUN: Span = Span::from_s(60);

/// The end of an alloc may be written, and shown by the index, this long after its time.
const LATE: Span = Span::from_s(120);

/// The most ended allocs that one run counts. Of more, the newest count.
const MOST_ENDED: usize = 100_000;

/// The turn as a run finds it; `None` while another run has it.
pub(crate) async fn free_limit_turn(store: &Store, now: Time) -> Result<Option<PollTurn>, DbError> {
    let last: PollTurn = store.entry(&ControlKey::LimitTurn).await?;
    let is_held = |until: &Time| now < *until && until.since(now) <= LONGEST_RUN;
    Ok(Some(last).filter(|last| !last.until_at.as_ref().is_some_and(is_held)))
}

/// Takes the turn; `None` while another run has it.
pub(crate) async fn take_limit_turn(store: &Store, now: Time) -> Result<Option<PollTurn>, DbError> {
    let Some(last) = free_limit_turn(store, now).await? else { return Ok(None) };
    let turn = RunTurn { since_at: Some(now), until_at: Some(now + LONGEST_RUN) };
    unless_raced(store.write_entry(&last, &last.with(turn)).await)
}

/// Gives the turn back. If that fails, it ends by itself.
pub async fn end_limit_turn(store: &Store, turn: &PollTurn, now: Time) -> Result<(), DbError> {
    let over = RunTurn { until_at: Some(now), ..turn.entry.clone() };
    unless_raced(store.write_entry(turn, &turn.with(over)).await).map(drop)
}

/// Gives back the turn that a run took at this time, because the run has failed: the next one must not wait for its end.
pub(crate) async fn lose_limit_turn(store: &Store, taken_at: Time) {
    let given_back = async {
        let turn: PollTurn = store.entry(&ControlKey::LimitTurn).await?;
        if turn.since_at == Some(taken_at) { end_limit_turn(store, &turn, taken_at).await } else { Ok(()) }
    };
    if let Err(error) = given_back.await {
        tracing::warn!(%error, "the turn to place what is under a limit was not given back: it ends by itself");
    }
}

/// What a run knows of shares.
#[derive(Clone, Debug, Default)]
pub struct SharesRead {
    /// What each share has used, in vCPU-seconds that count less with age (`docs/rules.md#shares`).
    pub used: BTreeMap<String, f64>,
    /// What each share has cost in this month.
    pub costs: BTreeMap<String, Usd>,
    /// The totals as read and as they become, if they change.
    pub totals: Option<(TotalsRow, TotalsRow)>,
}

/// Reads what the shares have used and cost, and adds to the totals what has ended. The live allocs were read before.
pub(crate) async fn read_shares(
    store: &Store,
    (policy, before): (&Policy, Option<&TotalsRow>),
    live: &[AllocSummary],
    now: Time,
) -> Result<SharesRead, DbError> {
    let before = before.cloned().unwrap_or_else(|| TotalsRow::new(&ControlKey::Totals));
    let (mut read, mut after) = (SharesRead::default(), before.entry.clone());
    let of =
        |(share, by): (&Option<String>, &Option<String>), needs: &Needs, price_per_hour: Usd, (from, to)| ShareUse {
            share: policy.share_name(share.as_deref(), by.as_deref()),
            vcpus: policy.shares.vcpus(needs, 1),
            price_per_hour,
            from,
            to,
        };
    if !policy.share.is_empty() {
        let half_life = policy.shares.half_life();
        let ended = store.ended_allocs(before.since(half_life, now), MOST_ENDED).await?.rows;
        let is_new = |alloc: &&EndedAlloc| before.until_at.is_none_or(|until| alloc.finished_at > until);
        let uses: Vec<ShareUse<'_>> = ended
            .iter()
            .filter(is_new)
            .map(|a| of((&a.share, &a.by), &a.needs, a.price_per_hour, (a.placed_at, a.finished_at)))
            .collect();
        let ended: BTreeSet<AllocId> = ended.iter().map(|alloc| alloc.alloc_id).collect();
        let live = live.iter().filter(|alloc| !ended.contains(&alloc.alloc_id));
        let live = live.map(|a| of((&a.share, &a.by), &a.needs, a.price_per_hour, (a.placed_at, now)));
        let all: Vec<ShareUse<'_>> = uses.iter().copied().chain(live).collect();
        read.used = before.used_at(all.iter().copied(), half_life, now);
        read.costs = before.costs_at(all.into_iter(), now);
        let until = now - LATE;
        if before.until_at.is_none_or(|last| until.since(last) >= LATE) {
            let settled: Vec<ShareUse<'_>> = uses.into_iter().filter(|part| part.to <= until).collect();
            // What a share has used that is gone fades as that of the others.
            let used = before.used_at(settled.iter().copied(), half_life, until);
            let month_of = before.costs_at(settled.into_iter(), until);
            after = Totals { until_at: Some(until), used, month_of };
        }
    }
    read.totals = (after != before.entry).then(|| (before.clone(), before.with(after)));
    Ok(read)
}
