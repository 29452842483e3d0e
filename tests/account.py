#!/usr/bin/env python3
"""The account in which `src/permitted.rs` runs the functions: its roles and its launch template.

    account.py MINISTACK MOTO CLUSTER      the URLs of the two emulators, and the name of the cluster

It makes what the stack would make besides the tables, and prints its names as one line of JSON. Then it answers one
line of JSON for each line that it reads:

    {"role": NAME, "documents": [...]}          makes a role with these policies; answers credentials of the role
    {"documents": [...], "checks": [...]}       answers the first check that these policies do not allow, or null

A check is [ACTION, RESOURCE, {CONDITION KEY: VALUE}]. MiniStack's evaluator decides it.
"""

import json
import sys

import boto3
from ministack.core.iam_evaluator import EvalContext, evaluate, parse_policy_document

ACCOUNT = "123456789012"
REGION = "eu-west-1"


def client(service, url):
    """A client of the account itself, which may do everything. The account's number is its access key."""
    return boto3.client(
        service, endpoint_url=url, region_name=REGION, aws_access_key_id=ACCOUNT, aws_secret_access_key="test"
    )


def trust(service):
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def make_stack(ministack, moto, cluster):
    """The nodes' role and profile, a launch template with them, and the bucket of outputs."""
    iam, ec2 = client("iam", moto), client("ec2", moto)
    iam.create_role(RoleName="NodeRole", AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))
    profile = iam.create_instance_profile(InstanceProfileName="NodeProfile")["InstanceProfile"]["Arn"]
    iam.add_role_to_instance_profile(InstanceProfileName="NodeProfile", RoleName="NodeRole")
    subnet = ec2.describe_subnets()["Subnets"][0]
    group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=subnet["VpcId"])["GroupId"]
    data = {"ImageId": "ami-12c6146b", "IamInstanceProfile": {"Arn": profile}, "SecurityGroupIds": [group]}
    template = ec2.create_launch_template(LaunchTemplateName=f"{cluster}-node", LaunchTemplateData=data)
    place = {"LocationConstraint": REGION}
    for bucket in [f"{cluster}-logs", "other-logs"]:
        client("s3", ministack).create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
    return {
        "template": template["LaunchTemplate"]["LaunchTemplateId"],
        "data": data,
        "node_role": f"arn:aws:iam::{ACCOUNT}:role/NodeRole",
        "subnet": subnet["SubnetId"],
    }


def make_role(iam, sts, name, documents):
    arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust("lambda.amazonaws.com"))["Role"]["Arn"]
    for n, document in enumerate(documents):
        iam.put_role_policy(RoleName=name, PolicyName=f"policy-{n}", PolicyDocument=json.dumps(document))
    return sts.assume_role(RoleArn=arn, RoleSessionName="tests")["Credentials"]


def refused(documents, checks):
    policies = [parse_policy_document(document) for document in documents]
    for action, resource, keys in checks:
        context = EvalContext(
            principal_arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/tests/tests",
            principal_type="AssumedRole",
            principal_account=ACCOUNT,
            action=action,
            resource_arn=resource,
            region=REGION,
            service_context={key.lower(): value for key, value in keys.items()},
        )
        if evaluate(context, policies).decision != "Allow":
            return f"{action} on {resource}"
    return None


def main():
    ministack, moto, cluster = sys.argv[1:]
    iam, sts = client("iam", ministack), client("sts", ministack)
    print(json.dumps(make_stack(ministack, moto, cluster)), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "role" in asked:
            answer = make_role(iam, sts, asked["role"], asked["documents"])
        else:
            answer = refused(asked["documents"], asked["checks"])
        print(json.dumps(answer, default=str), flush=True)


main()
