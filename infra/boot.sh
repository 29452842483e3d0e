#!/bin/sh
# Makes an instance a node: fetches the agent, checks it, closes the instance metadata to jobs, starts the agent.
#
# The end of the user data of a node if the policy has `[agent]`, whose values come before it, as does the writing of
# /etc/nodekeeper/node.json. The image needs systemd, iproute2, sha256sum, and curl or the AWS CLI: Amazon Linux 2023,
# Debian 12 and Ubuntu 24.04 have them.
#
# An instance on which this script fails never registers. nodekeeper ends it after `boot.timeout_s`, and shows the end of
# its console with the event.
set -eu

# s3://BUCKET/KEY or https://…, and the digest of the file: `sha256sum nodekeeper-agent`.
AGENT_URL=${AGENT_URL:-}
AGENT_SHA256=${AGENT_SHA256:-}
# The user ids of jobs. The agent and the rules below must have the same ones.
JOB_UIDS=${JOB_UIDS:-1900000000-1900000999}
# More options of the agent, for example: --containers podman
AGENT_OPTIONS=${AGENT_OPTIONS:-}

fail() {
  echo "nodekeeper boot: $*" >&2
  exit 1
}

# The machines of `nodekeeper local` are processes on somebody's computer. Their agents are started without this script.
if [ -n "${NODEKEEPER_LOCAL:-}" ]; then
  echo "nodekeeper boot: nothing to do on this computer: \`nodekeeper local\` starts the agent"
  exit 0
fi

[ -n "$AGENT_URL" ] || fail "the policy has no agent for $(uname -m): see [agent]"
[ -r /etc/nodekeeper/node.json ] || fail "/etc/nodekeeper/node.json is missing"

new=/usr/local/bin/.nodekeeper-agent.new
mkdir -p /usr/local/bin
for attempt in 1 2 3 4 5; do
  case "$AGENT_URL" in
  s3://*) aws s3 cp --only-show-errors "$AGENT_URL" "$new" && break ;;
  *) curl --fail --silent --show-error --location --max-time 120 --output "$new" "$AGENT_URL" && break ;;
  esac
  [ "$attempt" -lt 5 ] || fail "$AGENT_URL cannot be fetched"
  sleep "$attempt"
done
# A file that is not the one that the operator chose is never run.
echo "$AGENT_SHA256  $new" | sha256sum --check --quiet || fail "$AGENT_URL does not have the digest that [agent] says"
chmod 0755 "$new"
mv "$new" /usr/local/bin/nodekeeper-agent

# The metadata hold the credentials of the instance's role. Jobs and containers do not reach them; the machine does.
# "protocol kernel" keeps systemd-networkd from removing the rules.
cat >/usr/local/sbin/nodekeeper-metadata-rules <<RULES
#!/bin/sh
set -eu
rules() {
  family=\$1 address=\$2
  for pref in 100 101 102; do
    while ip "\$family" rule del pref "\$pref" 2>/dev/null; do :; done
  done
  ip "\$family" rule add pref 100 to "\$address" iif lo uidrange $JOB_UIDS prohibit protocol kernel
  ip "\$family" rule add pref 101 to "\$address" iif lo lookup main protocol kernel
  ip "\$family" rule add pref 102 to "\$address" prohibit protocol kernel
}
rules -4 169.254.169.254
# A machine without IPv6 has no such address.
[ ! -e /proc/sys/net/ipv6 ] || rules -6 fd00:ec2::254
RULES
chmod 0755 /usr/local/sbin/nodekeeper-metadata-rules

cat >/etc/systemd/system/nodekeeper-agent.service <<UNIT
[Unit]
Description=nodekeeper agent
# What a node needs comes before it: docker, NVIDIA's driver and the file systems of its data. Units that an image does not have
# are ignored. The agent also waits for GPUs and for docker itself.
After=network-online.target docker.service nvidia-persistenced.service nvidia-fabricmanager.service local-fs.target
Wants=network-online.target
RequiresMountsFor=/var/lib/nodekeeper

[Service]
ExecStartPre=/usr/local/sbin/nodekeeper-metadata-rules
ExecStart=/usr/local/bin/nodekeeper-agent --job-uids $JOB_UIDS $AGENT_OPTIONS
Restart=always
RestartSec=2
# The agent's restart does not end jobs, and the kernel ends jobs before the agent.
KillMode=process
OOMScoreAdjust=-900
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable --now nodekeeper-agent.service
