//! Which services nodes reach, and who is to blame where one does not: the node, if others get through, and otherwise the service.
//!
//! | who cannot reach a service | who has reached it lately | to blame |
//! | --- | --- | --- |
//! | some nodes | another node that is heard | these nodes: they take no work |
//! | some nodes, or all | nobody | the service: the nodes go on |
//! | nobody: a job asks for what is not there | – | nobody |
//!
//! Guarantees: a pure function of the records.
//! Does not: try anything. The agents tell what their jobs got.

use super::NodeRecord;
use crate::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The services that nodes which are heard have reached lately.
#[derive(Clone, Debug, Default)]
pub struct Reached<'a>(BTreeSet<&'a str>);

impl<'a> Reached<'a> {
    /// By the last heartbeats of the nodes that are heard at this time.
    pub fn of(nodes: &'a [NodeRecord], now: Time) -> Self {
        let heard = nodes.iter().filter(|node| node.is_heard(now)).filter_map(NodeRecord::contact);
        Self(heard.filter_map(|contact| contact.health.reaches.as_deref()).flat_map(|text| text.split(',')).collect())
    }

    /// Why the node takes no work: its agent says so, or it cannot reach a service that other nodes reach.
    pub fn refusal(&self, node: &NodeRecord) -> Option<String> {
        let unfit = || {
            let (service, why) = node.contact()?.health.failing().filter(|(service, _)| self.0.contains(service))?;
            Some(format!("it cannot reach {service}, and other nodes can: {why}"))
        };
        node.refuses().map(str::to_owned).or_else(unfit)
    }

    /// The services that some nodes which are heard cannot reach, and nobody has reached lately: how many nodes, and why.
    pub fn away(&self, nodes: &'a [NodeRecord], now: Time) -> BTreeMap<&'a str, (usize, &'a str)> {
        let mut away = BTreeMap::new();
        let heard = nodes.iter().filter(|node| node.is_heard(now)).filter_map(NodeRecord::contact);
        for (service, why) in heard.filter_map(|contact| contact.health.failing()) {
            if !self.0.contains(service) {
                away.entry(service).or_insert((0, why)).0 += 1;
            }
        }
        away
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, at};
    use crate::node::NodeState;

    fn node(n: u32, fails: Option<&str>, reaches: Option<&str>) -> NodeRecord {
        let mut node = fixtures::ready(n);
        let NodeState::InUse(in_use) = &mut node.state else { panic!() };
        let text = |text: Option<&str>| text.map(str::to_owned);
        (in_use.contact.health.fails, in_use.contact.health.reaches) = (text(fails), text(reaches));
        node
    }

    /// Who fails, what the nodes say, who takes no work, and which services are away for how many nodes.
    type Case<'a> = (&'a str, Vec<NodeRecord>, &'a [usize], &'a [(&'a str, usize)]);

    /// What each node of a fleet says: who takes no work, and which services are away.
    #[test]
    fn the_node_is_to_blame_if_others_get_through_and_otherwise_the_service() {
        let s3 = Some("s3: no route");
        let cases: [Case<'_>; 7] = [
            ("nobody", vec![node(0, None, Some("s3")), node(1, None, None)], &[], &[]),
            ("one node", vec![node(0, s3, None), node(1, None, Some("registry a:1,s3"))], &[0], &[]),
            ("two of three", vec![node(0, s3, None), node(1, s3, None), node(2, None, Some("s3"))], &[0, 1], &[]),
            ("all", vec![node(0, s3, None), node(1, s3, None)], &[], &[("s3", 2)]),
            ("the only node", vec![node(0, s3, None)], &[], &[("s3", 1)]),
            (
                "others reach other services",
                vec![node(0, s3, Some("ssm")), node(1, None, Some("ssm"))],
                &[],
                &[("s3", 1)],
            ),
            (
                "another service of each",
                vec![node(0, s3, Some("ssm")), node(1, Some("ssm: x"), Some("s3"))],
                &[0, 1],
                &[],
            ),
        ];
        for (who, nodes, refuse, services) in cases {
            let reached = Reached::of(&nodes, at(100));
            let refusing: Vec<usize> =
                nodes.iter().enumerate().filter(|(_, node)| reached.refusal(node).is_some()).map(|(n, _)| n).collect();
            let away: Vec<_> =
                reached.away(&nodes, at(100)).into_iter().map(|(name, (nodes, _))| (name, nodes)).collect();
            assert_eq!((&*refusing, &*away), (refuse, services), "{who}");
        }
        // What a silent node said is no proof.
        let nodes = [node(0, s3, None), node(1, None, Some("s3"))];
        let late = Reached::of(&nodes, at(151));
        assert_eq!(late.refusal(&nodes[0]), None);
        let why = Reached::of(&nodes, at(100)).refusal(&nodes[0]).unwrap();
        assert_eq!(why, "it cannot reach s3, and other nodes can: no route");
    }
}
