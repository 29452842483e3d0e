//! grant-credentials: gives a node the credentials of the role of a job that it runs.
//!
//! Guarantees: credentials are given only to the node on which the alloc is live and wanted, read consistently from the record,
//! the alloc and the job; only a role that the policy lists is assumed, and AWS lets this function assume only roles with the tag of the
//! cluster; the session is named after the alloc and tagged with its job.
//! Does not: write anything, keep credentials, or take them back. They last until they expire, an hour at most.

pub mod sts;

use model::functions::GRANT_CREDENTIALS;
use model::rights::role_arn;
use model::wire::{CredentialsRequest, ErrorCode, JobCredentials};
use model::{Alloc, AllocId, ClientStatus, ClusterName, Desired, NodeId, NodeRecord, Policy, Span, Time};
use runtime::env::FunctionNeeds;
use runtime::http::{
    Admitted, HttpError, NodeAdmission, NodeCredentials, answer, internal, policy_now, standing, wrong_incarnation,
};
use runtime::lambda::{self, Handler, Lambda, Parts, Reply};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use store::Store;
use sts::{AssumeRole, Sts, StsError};

pub const FUNCTION: &str = GRANT_CREDENTIALS.name;

pub const LAMBDA: Lambda = Lambda { name: FUNCTION, needs: FunctionNeeds { nodes: true, urls: false }, make };

fn make(parts: Parts) -> Handler {
    let sts = Arc::new(aws_sdk_sts::Client::new(&parts.aws));
    let grants = Grants::new(parts.store, sts, parts.env.credentials, parts.env.cluster);
    lambda::handler(grants, async |grants, event, clock| {
        Ok::<_, Infallible>(Reply::Http(grants.handle(&event, clock.now()).await))
    })
}

/// How long credentials last, at least and at most. AWS allows no less than the first, and no more than the second for a role
/// that another role assumes (AssumeRole, "role chaining").
const SHORTEST: Span = Span::from_s(900);
const LONGEST: Span = Span::from_s(3600);
/// The longest time limit that counts, in seconds: ten years.
const LONGEST_RUN_S: i64 = 3653 * 86_400;

pub struct Grants {
    store: Store,
    sts: Arc<dyn Sts>,
    admission: NodeAdmission,
}

impl Grants {
    pub fn new(store: Store, sts: Arc<dyn Sts>, credentials: NodeCredentials, cluster: ClusterName) -> Self {
        Self { store, sts, admission: NodeAdmission::new(GRANT_CREDENTIALS.routes, credentials, cluster) }
    }

    /// Answers one event. Every event gets an HTTP answer.
    pub async fn handle(&self, event: &Value, now: Time) -> Value {
        answer(self.grant(event, now).await)
    }

    async fn grant(&self, event: &Value, now: Time) -> Result<JobCredentials, HttpError> {
        let Admitted { node_id, proven, request, .. } = self.admission.admit(event, now)?;
        let asked: CredentialsRequest = request.body()?;
        let record = self.store.node(node_id.slot()).await.map_err(internal)?;
        let record = standing(record, node_id, &proven)?;
        if record.contact().is_none_or(|contact| contact.incarnation != asked.incarnation) {
            return Err(wrong_incarnation("the request is from another incarnation"));
        }
        let alloc = self.store.alloc(asked.alloc_id).await.map_err(internal)?;
        let role = entitled(&record, node_id, asked.alloc_id, alloc.as_ref())?;
        // The job is checked too: a cancelled job has ended before a run tells its allocs to stop.
        let job = self.store.job(asked.alloc_id.job_id).await.map_err(internal)?;
        if job.is_none_or(|job| job.summary.state.is_ended()) {
            return Err(denied(format!("the job of {} has ended", asked.alloc_id)));
        }
        let (policy, _) = policy_now(&self.store).await?;
        let assume = self.request(&policy, asked.alloc_id, role)?;
        let lasts = lasts(alloc.as_ref(), now);
        let given = self.sts.assume(&assume, lasts, now).await.map_err(|e| refused(&assume.role_arn, &e))?;
        tracing::info!(%node_id, alloc_id = %asked.alloc_id, role = assume.role_arn, "credentials were given");
        Ok(given)
    }

    fn request(&self, policy: &Policy, alloc_id: AllocId, role: &str) -> Result<AssumeRole, HttpError> {
        let arn = role_arn(&policy.jobs.roles, role).ok_or_else(|| {
            denied(format!("the policy lists no role {role}: add its ARN to jobs.roles, or submit with another --role"))
        })?;
        Ok(AssumeRole {
            role_arn: arn.to_owned(),
            session: alloc_id.to_string(),
            tags: vec![
                ("nodekeeper:cluster".to_owned(), self.admission.cluster.to_string()),
                ("nodekeeper:job".to_owned(), alloc_id.job_id.to_string()),
            ],
        })
    }
}

/// The role of the alloc, if it is live and wanted on this node.
fn entitled<'a>(
    node: &NodeRecord,
    node_id: NodeId,
    id: AllocId,
    alloc: Option<&'a Alloc>,
) -> Result<&'a str, HttpError> {
    // The same answer for each alloc that is not the node's own: a node learns nothing about others.
    let not_here = || denied(format!("the alloc {id} does not run on node {node_id}"));
    let is_on_record = node.life().is_some_and(|life| life.allocs.contains(&id));
    let alloc = alloc.filter(|alloc| is_on_record && alloc.summary.node_id == node_id).ok_or_else(not_here)?;
    let is_live = matches!(alloc.summary.client, ClientStatus::Pending | ClientStatus::Running);
    if !is_live || alloc.summary.desired != Desired::Run {
        return Err(denied(format!("the alloc {id} has ended or was told to stop")));
    }
    alloc.work.role.as_deref().ok_or_else(|| denied(format!("the job of {id} has no role: submit it with --role")))
}

/// How long the credentials of an alloc last: to the end of its time limit, but within what AWS allows. The time limit of a
/// pack is that of one element.
fn lasts(alloc: Option<&Alloc>, now: Time) -> Span {
    let is_limited = |alloc: &&Alloc| alloc.work.timeout_s > 0 && alloc.work.pack.is_none();
    let left = alloc.filter(is_limited).map(|alloc| {
        let whole_s = alloc.work.timeout_s.saturating_add(alloc.summary.failure_policy.kill_timeout_s);
        let ran_s = now.since(alloc.summary.started_at.unwrap_or(now)).as_ms() / 1000;
        Span::from_s(i64::try_from(whole_s).unwrap_or(i64::MAX).min(LONGEST_RUN_S).saturating_sub(ran_s))
    });
    left.unwrap_or(LONGEST).clamp(SHORTEST, LONGEST)
}

fn denied(message: String) -> HttpError {
    HttpError::new(ErrorCode::Denied, message)
}

fn refused(role_arn: &str, error: &StsError) -> HttpError {
    match error {
        StsError::Denied(why) => denied(format!(
            "AWS does not let the cluster take the role {role_arn}: {why}; the role must have the tag nodekeeper:cluster with \
             the name of the cluster, and its trust policy must allow sts:AssumeRole and sts:TagSession to the role of \
             grant-credentials"
        )),
        StsError::Failed(why) => {
            tracing::error!(role_arn, why, "the role was not assumed");
            HttpError::new(ErrorCode::Busy, format!("the role {role_arn} was not assumed: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::elements::Pack;
    use model::fixtures::{self, at};
    use model::{FailurePolicy, Work};

    /// A node with an alloc, and the alloc.
    fn running(role: Option<&str>) -> (NodeRecord, Alloc) {
        let mut job = fixtures::job(0);
        job.work = Work { role: role.map(str::to_owned), ..job.work };
        let node = fixtures::ready(0);
        let alloc = Alloc::place(fixtures::alloc_id(0), &job, &node, at(1)).unwrap();
        let record = node.with_alloc(alloc.id(), at(1)).unwrap();
        (record, alloc)
    }

    fn judged(record: &NodeRecord, node: u32, alloc: Option<&Alloc>) -> Result<String, String> {
        let id = fixtures::alloc_id(0);
        entitled(record, fixtures::node_id(node), id, alloc).map(str::to_owned).map_err(|refusal| {
            assert_eq!(refusal.code, ErrorCode::Denied);
            refusal.message
        })
    }

    #[test]
    fn a_role_is_for_an_alloc_that_is_live_and_wanted_on_the_node_that_asks() {
        let (record, alloc) = running(Some("reader"));
        assert_eq!(judged(&record, 0, Some(&alloc)), Ok("reader".to_owned()));
        let ended = alloc.end(&model::Ending::lost("gone"), Span::from_s(1), at(3));
        let unknown = Alloc {
            summary: model::AllocSummary { client: ClientStatus::Unknown, ..alloc.summary.clone() },
            ..alloc.clone()
        };
        for (record, node, alloc, why) in [
            (&record, 0, None, "does not run on node"),
            (&record, 1, Some(&alloc), "does not run on node"),
            (&fixtures::ready(0), 0, Some(&alloc), "does not run on node"),
            (&record, 0, Some(&alloc.stop(at(2)).unwrap()), "told to stop"),
            (&record, 0, Some(&ended), "has ended"),
            (&record, 0, Some(&unknown), "has ended or"),
            (&record, 0, Some(&running(None).1), "has no role"),
        ] {
            let said = judged(record, node, alloc).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn credentials_last_no_longer_than_the_job_may_run() {
        let (_, mut alloc) = running(Some("reader"));
        let of = |alloc: &Alloc, timeout_s, kill_timeout_s, since_s| {
            let mut alloc = alloc.clone();
            alloc.work.timeout_s = timeout_s;
            alloc.summary.failure_policy = FailurePolicy { kill_timeout_s, ..alloc.summary.failure_policy };
            alloc.summary.started_at = Some(at(0));
            lasts(Some(&alloc), at(0) + Span::from_s(since_s)).as_ms() / 1000
        };
        let with = |timeout_s, kill_timeout_s, since_s| of(&alloc, timeout_s, kill_timeout_s, since_s);
        let lasting = [
            with(0, 30, 0),
            with(1800, 30, 0),
            with(1800, 30, 800),
            with(60, 30, 0),
            with(1800, 30, 9999),
            with(u64::MAX, 30, 0),
        ];
        assert_eq!(lasting, [3600, 1830, 1030, 900, 900, 3600]);
        // The time limit is that of one element.
        alloc.work.pack = Some(Pack::of("0-99".parse().unwrap()));
        assert_eq!(of(&alloc, 60, 30, 9999), 3600);
    }

    #[test]
    fn what_aws_refuses_for_good_is_told_apart_from_what_passes() {
        let denied = refused("arn", &StsError::Denied("no".into()));
        assert_eq!(denied.code, ErrorCode::Denied);
        assert!(denied.message.contains("sts:TagSession"), "{}", denied.message);
        assert_eq!(refused("arn", &StsError::Failed("throttled".into())).code, ErrorCode::Busy);
    }
}
