"""Snakemake runs each job of a workflow as a job of nodekeeper.

Guarantees: no job of the workflow runs twice because the engine was killed, however often it is started again. Output files come back
whole or not at all. Nodes need no shared disk.
Does not: run anything again. Snakemake does (`--retries`), and nodekeeper after a node was lost.
"""

import contextlib
import json
import math
import os
import shlex
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from nodekeeper import Cluster, Job, NodekeeperError, TryAgain, WrongRequest
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase, SharedFSUsage
from snakemake_interface_executor_plugins.utils import format_cli_arg

# A job of nodekeeper has at most 100 inputs. The largest files are inputs of their own, so that each is stored once for all jobs.
SINGLE_INPUTS = 90
# A larger file that git has is data, and no source.
LARGEST_SOURCE = 10_000_000
# What Snakemake itself needs beside the command of a rule.
ENGINE_MIB = 250
# The folder with what a job made. Not every job makes all of its files: a group removes temporary ones, and some write no log.
MADE = "made-by-job"
# Runs on the node: the job, and then its files go into the folder.
SCRIPT = """{job}
code=$?
rm -rf {made} && mkdir {made}
for file in {files}; do
    if [ -e "$file" ]; then mkdir -p "{made}/$(dirname "$file")" && mv "$file" "{made}/$file" || exit 1; fi
done
exit $code
"""


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    # Snakemake reads these types, and knows no `str | None`.
    cluster: Optional[str] = field(default=None, metadata={"help": "The name of the cluster [default: as for the command nodekeeper]"})
    python: str = field(default="python3", metadata={
        "help": "The Python on the nodes that has Snakemake: words for a shell, such as 'uv run --no-project --with snakemake python'"})
    fields: str = field(default="{}", metadata={
        "help": 'Fields of each job, as JSON, such as {"image": "snakemake/snakemake:v9.27.1"}. The resource `nodekeeper` of a rule has more'})


common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=True, job_deploy_sources=False, can_transfer_local_files=True,
                                 pass_envvar_declarations_to_cmd=False, auto_deploy_default_storage_provider=False)


class Executor(RemoteExecutor):
    def __post_init__(self) -> None:
        settings = self.workflow.executor_settings
        self.fields = parsed(settings.fields)
        self.has_shared_files = SharedFSUsage.INPUT_OUTPUT in self.workflow.storage_settings.shared_fs_usage
        try:
            self.cluster = Cluster(settings.cluster)
        except NodekeeperError as error:
            raise WorkflowError(str(error)) from error
        self.threads = ThreadPoolExecutor(8)
        self.sources: set[str] = set()
        self.staged_sources = ""
        # To look costs nothing: the program behind the cluster says when a job has ended.
        self.next_seconds_between_status_checks = 1

    def get_python_executable(self) -> str:
        return str(self.workflow.executor_settings.python)

    def run_job(self, job: JobExecutorInterface) -> None:
        self.run_jobs([job])

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submits these jobs. Where an earlier run of the engine did not see the end of a job, this goes on with it."""
        keys = {}
        for job in jobs:
            self.run_job_pre(job)
            # Snakemake keeps the key until it has seen the end of the job.
            earlier = {key for part in parts(job) for key in self.workflow.persistence.external_jobids(part)}
            if len(earlier) == 1:
                keys[job] = earlier.pop()
        try:
            submitted = self.resume(keys)
            fresh = {job: f"snakemake/{uuid.uuid4().hex}" for job in jobs if job not in submitted}
            for job, key in fresh.items():
                job.register(external_jobid=key)
            submitted.update(self.submit(fresh))
        except NodekeeperError as error:
            raise WorkflowError(f"{', '.join(job.name for job in jobs)}: {error}") from error
        for job, its in submitted.items():
            self.report_job_submission(SubmittedJobInfo(job, its.id, {"job": its}), register_job=False)

    def submit(self, keys: dict[JobExecutorInterface, str]) -> dict[JobExecutorInterface, Job[str]]:
        return dict(zip(keys, self.cluster.submit_all([self.line(job, key) for job, key in keys.items()]), strict=True))

    def resume(self, keys: dict[JobExecutorInterface, str]) -> dict[JobExecutorInterface, Job[str]]:
        """The jobs of these keys that are still the same, and have not failed."""
        try:
            submitted = self.submit(keys)
            self.cluster.refresh(submitted.values())
        except WrongRequest as error:
            if len(keys) > 1:
                return {job: its for one in keys.items() for job, its in self.resume(dict([one])).items()}
            self.logger.warning(f"{', '.join(job.name for job in keys)} is submitted anew: {error}")
            return {}
        return {job: its for job, its in submitted.items() if its.state not in ("failed", "cancelled", "rejected")}

    def line(self, job: JobExecutorInterface, key: str) -> dict[str, Any]:
        """The job, as a line of `nodekeeper submit --file`."""
        needs = job.resources
        line = {
            "name": job.name, "key": key, "env": dict(self.envvars()),
            "vcpus": max(1, job.threads), "gpus": needs.get("gpu"), "gpu_type": needs.get("gpu_model"),
            "memory": needs["mem_mb"] + ENGINE_MIB if "mem_mb" in needs.keys() else None,
            "scratch": math.ceil(needs.get("disk_mb", 0) / 1024), "timeout": needs.get("runtime", 0) * 60,
            **self.fields, **parsed(needs.get("nodekeeper", "{}")),
        }
        command = in_order(self.format_job_exec(job))
        if self.has_shared_files:
            return {**line, "command": f"cd {shlex.quote(os.getcwd())} && {command}"}
        # The node has a work directory of its own.
        command = command.replace(shlex.join(shlex.split(format_cli_arg("--directory", self.workflow.overwrite_workdir))), "")
        script = Path(self.tmpdir, f"{uuid.uuid4().hex}.sh")
        script.write_text(SCRIPT.format(job=command, made=MADE, files=shlex.join(map(inner, made_by(job)))), encoding="utf-8")
        return {**line, "command": ["sh", "job.sh"], "in": [f"{script}=job.sh", *self.inputs(job)], "outputs": [MADE], "keep": MADE}

    def inputs(self, job: JobExecutorInterface) -> list[str]:
        """The files of the workflow and the inputs of the job. What has an absolute path is on the nodes already."""
        if not self.staged_sources:
            made = {file for one in self.dag.jobs for file in made_by(one)}
            sources = {os.path.normpath(file) for file in self.dag.get_sources()} - made
            self.sources = {file for file in sources if os.path.isfile(file) and os.path.getsize(file) <= LARGEST_SOURCE}
            self.staged_sources = self.stage(self.sources)
        given = {os.path.normpath(file) for file in job.input if not file.is_storage and not os.path.isabs(file)} - self.sources
        by_size = sorted(map(inner, given), key=lambda file: (-os.path.getsize(file), file))
        rest = by_size[SINGLE_INPUTS:]
        folder = self.stage({*self.sources, *rest}) if rest else self.staged_sources
        return [f"{folder}=.", *(f"{file}={file}" for file in by_size[:SINGLE_INPUTS])]

    def stage(self, files: Iterable[str]) -> str:
        """A folder with these files, for all inputs that are too many or too small to be one each."""
        folder = tempfile.mkdtemp(dir=self.tmpdir)
        for file in map(inner, files):
            to = os.path.join(folder, file)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            (shutil.copytree if os.path.isdir(file) else shutil.copy2)(file, to)
        return folder

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        active = {info.aux["job"]: info for info in active_jobs}
        # The first look may come before there is a cluster: a thread that Snakemake starts early makes it.
        for end, jobs in self.cluster.ends(active).items() if active else ():
            for job in jobs:
                brought = active[job].aux.get("brought")
                if brought is None and end.done() and not isinstance(end.exception(), TryAgain):
                    active[job].aux["brought"] = self.threads.submit(self.bring, active[job].job, job, end)
                if brought is None or not brought.done():
                    yield active[job]
                elif (error := brought.exception()) or (error := brought.result()):
                    self.report_job_error(active[job], msg=f"{error}\n")
                else:
                    self.report_job_success(active[job])

    def bring(self, of: JobExecutorInterface, job: Job[str], end: Any) -> str:
        """Brings what the job made here. Why it failed, or nothing."""
        job.row = end.result()
        # Of a job that failed these are the logs, if there are any.
        with contextlib.suppress(*([] if job.state == "complete" else [NodekeeperError])), tempfile.TemporaryDirectory(dir=self.tmpdir) as folder:
            if not self.has_shared_files:
                job.fetch(folder)
            for file in made_by(of):
                if os.path.lexists(made := os.path.join(folder, MADE, file)):
                    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
                    if os.path.isdir(file):
                        shutil.rmtree(file)
                    os.replace(made, file)
        return "" if job.state == "complete" else job.failure()

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        try:
            self.cluster.cancel([info.aux["job"] for info in active_jobs])
        except NodekeeperError as error:
            self.logger.error(f"Jobs may go on: {error}")

    def shutdown(self) -> None:
        super().shutdown()
        self.threads.shutdown()
        self.cluster.close()


def parsed(fields: str) -> dict[str, Any]:
    try:
        return dict(json.loads(fields))
    except ValueError as error:
        raise WorkflowError(f"the fields of a job of nodekeeper are no JSON object: {fields}: {error}") from error


def in_order(command: str) -> str:
    """The command, the same for the same job: values that are a set have another order in each process of Snakemake."""
    program, snakemake, words = command.partition(" -m snakemake ")
    options: list[list[str]] = []
    for word in shlex.split(words):
        options += [[]] if word.startswith("--") else []
        options[-1].append(word)
    # The order of configurations counts: a later one overrides an earlier one.
    return program + snakemake + " ".join(shlex.join(one if one[0] == "--configfiles" else [one[0], *sorted(one[1:])]) for one in options)


def parts(job: JobExecutorInterface) -> Iterable[Any]:
    """The jobs of a group, or the job."""
    return job.jobs if job.is_group() else [job]


def made_by(job: JobExecutorInterface) -> list[str]:
    """What a job may make: outputs, logs and benchmarks."""
    return sorted({os.path.normpath(file) for part in parts(job) for file in part.products() if not file.is_storage})


def inner(file: str) -> str:
    if os.path.isabs(file) or file.startswith(".."):
        raise WorkflowError(f"{file} is outside of the working directory, so it cannot come to a node or back: give a path below it")
    return file
