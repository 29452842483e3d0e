"""Rows of a large cluster for `page.py`, as docs/contract/tables.md describes them, written into a local DynamoDB."""

import decimal
import time

import boto3

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
DAY_MS = 86_400_000


def ulid(ms, number):
    """A ULID of this time. `number` makes it unique."""
    value, digits = (ms << 80) | number, []
    for _ in range(26):
        value, digit = divmod(value, 32)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


class Rows:
    """The tables of a cluster."""

    def __init__(self, environment, cluster="local"):
        self.db = boto3.resource(
            "dynamodb", endpoint_url=environment["AWS_ENDPOINT_URL_DYNAMODB"], region_name=environment["AWS_REGION"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"], aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )
        self.cluster = cluster
        self.now = int(time.time() * 1000)

    def put(self, table, rows):
        def typed(value):
            return decimal.Decimal(str(value)) if isinstance(value, float) else value

        with self.db.Table(f"{self.cluster}-{table}").batch_writer() as batch:
            for row in rows:
                batch.put_item(Item={name: typed(value) for name, value in row.items() if value is not None})

    def job(self, number, state, **more):
        """A job. Its number decides its id and its age."""
        submitted = self.now - 3_600_000 - number * 100
        job_id = ulid(submitted, number + 1)
        row = {
            "job_id": job_id, "version": 1, "state": state, "priority": 500, "submitted_at": submitted,
            "needs": {"vcpus": 2, "memory_mib": 4096}, "work": {"command": ["train", "--part", str(number)]},
            "name": f"train-{number}", "tail": job_id[-1], "named": f"{more.get('name', f'train-{number}')}#{job_id}",
        }
        if state == "queued":
            row |= {"queue": f"queued#{number % 8}", "rank": f"0500#{job_id}"}
        if state == "placed":
            row |= {"queue": "placed", "rank": f"0500#{job_id}"}
        if state in ("failed", "complete"):
            finished = self.now - 60_000 - number
            row |= {"queue": f"{state}#{number % 8}", "rank": f"{finished:015d}", "finished_at": finished, "reason": "member 0 failed: exit code 3, 0 of 0 retries left"
                    if state == "failed" else None}
        return row | more

    def node(self, slot, status, allocs=()):
        assigned = self.now - 1_800_000 - slot * 1000
        heard = self.now - 5_000
        row = {
            "slot": slot, "version": 5, "modified_at": assigned + 60_000, "reason": "runs" if allocs else "idle",
            "state": "in_use", "node_id": f"{slot}-{ulid(assigned, slot + 1)}", "attempt": 1,
            "launch_claim_until_at": assigned + 60_000, "size": "small", "instance_type": "m7a.large",
            "market": "on_demand", "template": "nodekeeper", "price_per_hour": 0.116, "vcpus": 2, "memory_mib": 8192,
            "scratch_gib": 0, "gpus": 0, "request_digest": "d", "instance_id": f"i-{slot:017x}",
            "assigned_at": assigned, "seq": 3, "first_ping_at": assigned + 55_000, "last_ping_at": heard,
            "lease_expires_at": heard + 600_000, "status": status, "incarnation": "one", "boot_id": "boot", "gate_seq": 1,
        }
        return row | ({"allocs": set(allocs)} if allocs else {})

    def alloc(self, job, node):
        return {
            "alloc_id": f"{job['job_id']}.0.0", "version": 2, "slot": node["slot"], "node_id": node["node_id"],
            "live_node": node["node_id"], "desired": "run", "client": "running", "placed_seq": 2,
            "placed_at": self.now - 600_000, "started_at": self.now - 590_000,
            "needs": job["needs"], "work": job["work"],
        }


def large(environment):
    """10,000 jobs and 1,000 nodes, of which one is silent. No function has ever run. Returns a running job's id."""
    rows = Rows(environment)
    running, nodes, allocs = [], [], []
    for slot in range(1000):
        if slot >= 60:
            nodes.append(rows.node(slot, "down" if slot == 999 else "ready"))
            continue
        job_id = ulid(rows.now - 3_600_000 - slot * 100, slot + 1)
        node = rows.node(slot, "ready", [f"{job_id}.0.0"])
        name = "<img src=x onerror=alert(1)>" if slot == 0 else f"train-{slot}"
        job = rows.job(slot, "placed", name=name, allocs={f"{job_id}.0.0"}, tries={"copies": 1})
        running.append(job)
        nodes.append(node)
        allocs.append(rows.alloc(job, node))
    rows.put("nodes", nodes)
    rows.put("allocs", allocs)
    rows.put("jobs", running)
    rows.put("jobs", (rows.job(n, "failed") for n in range(60, 100)))
    rows.put("jobs", (rows.job(n, "complete") for n in range(100, 1000)))
    rows.put("jobs", (rows.job(n, "queued") for n in range(1000, 10_000)))
    return running[0]["job_id"]
