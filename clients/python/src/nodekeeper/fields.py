"""The fields of a job, as a line of `nodekeeper submit --file` has them: `docs/contract/commands.md#job`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

Amount = int | str
Texts = Sequence[str]
Table = Mapping[str, str]

# `in_` stands for `in`, which is a word of Python. An amount may have a unit: memory="4G", timeout="1h".
Fields = TypedDict("Fields", {
    "name": str, "labels": Table, "share": str, "priority": int, "env": Table, "after": str | Texts, "after_any": str | Texts,
    "not_before_at": str, "give_up_after": Amount,
    # What each member needs of its node.
    "vcpus": int, "memory": Amount, "scratch": Amount, "gpus": int, "gpu_type": str, "gpu_memory": Amount,
    "instance_type": str, "market": str, "arch": str, "require": Texts, "exclusive": bool, "nodes": int,
    "licences": Mapping[str, int],
    # What the nodes run.
    "image": str, "entrypoint": str, "registry_login": str, "caches": Texts, "timeout": Amount,
    "in_": str | Texts, "workdir": str, "outputs": Texts, "keep": str, "keep_every": Amount,
    "role": str, "secrets": Table, "secret_files": Table,
    # How it is stopped, and when it is run again.
    "stop_signal": str, "stop_notice": Amount, "kill_timeout": Amount, "lost_after": Amount, "replace": bool, "reconcile": str,
    "retry": Texts, "retry_failed": int, "retry_lost": int,
}, total=False)
