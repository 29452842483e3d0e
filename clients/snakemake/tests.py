"""Snakemake's own test suite of executor plugins. It needs a cluster in the environment."""

import sys

import snakemake.common.tests
from snakemake_executor_plugin_nodekeeper import ExecutorSettings


class TestWorkflows(snakemake.common.tests.TestWorkflowsLocalStorageBase):
    __test__ = True

    def get_executor(self):
        return "nodekeeper"

    def get_executor_settings(self):
        return ExecutorSettings(python=sys.executable)

    def get_assume_shared_fs(self):
        return False
