//! What EC2 offers for a policy that was just stored.
//!
//! Guarantees: if EC2 can be asked from here, the functions know at once what the sizes of several instance types mean, and the
//! quotas of the account.
//! Does not: fail if EC2 cannot be asked. clean-stale-records asks in its next run.

use crate::console::{Cluster, Context, show};
use model::Usd;
use runtime::catalogue;

/// A price per hour, with as many digits as AWS gives.
pub(in crate::commands) fn price(usd: Usd) -> String {
    format!("${:.4}", f64::from(usd))
}

/// Asks EC2 what the stored policy needs to know, and stores the answers for the functions. So the next run need not wait for
/// clean-stale-records.
pub(in crate::commands) async fn ask_and_keep(context: &mut Context<'_>, cluster: &Cluster) -> anyhow::Result<()> {
    let control = cluster.store.control().await?;
    let (policy, _) = control.checked_policy()?;
    const LATER: &str = "clean-stale-records asks EC2 in its next run";
    let Some(offers) = cluster.cloud.offers() else {
        if !policy.several.is_empty() {
            writeln!(context.err, "what EC2 offers is not known from here: {LATER}")?;
        }
        return Ok(());
    };
    let now = context.now();
    // All parts are read, due or not: the person may have made a subnet or a reservation just before.
    let read = catalogue::read(offers, &policy, &policy.catalogue, &policy.parts_wanted(), now).await;
    if let Err(error) = catalogue::keep(&cluster.store, &control, &read).await {
        writeln!(context.err, "what EC2 offers was not stored: {error}; {LATER}")?;
        return Ok(());
    }
    let policy = cluster.store.control().await?.checked_policy()?.0;
    for several in &policy.several {
        let mut of = policy.size.iter().filter(|size| size.name == several.name).collect::<Vec<_>>();
        of.sort_by_key(|size| size.price_per_hour);
        if let [cheapest, ..] = of.as_slice() {
            let (types, market) = (show::several(of.len(), "instance type"), several.market);
            let (name, from) = (&cheapest.instance_type, price(cheapest.price_per_hour));
            writeln!(context.out, "size {}: {types}, {market}, from {name} at {from} an hour", several.name)?;
        }
    }
    let faults = catalogue::faults(&policy, now).into_iter().map(|fault| fault.text);
    for says in faults.chain(catalogue::remarks(&policy)) {
        writeln!(context.err, "{says}")?;
    }
    Ok(())
}
