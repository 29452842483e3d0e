"""Jobs of nodekeeper from Python: `Cluster` is where to begin."""

from .cluster import Cluster, Job, JobFailed, Logs
from .errors import NodekeeperError, TryAgain, WrongRequest
from .fields import Fields

__all__ = ["Cluster", "Fields", "Job", "JobFailed", "Logs", "NodekeeperError", "TryAgain", "WrongRequest"]
