"""Executors of tasks: in this process, in local processes, or on a Dask cluster."""

from atoll.executors.base import Executor, InProcess, LostWorkerError, Task
from atoll.executors.choose import choose_executor
from atoll.executors.crew import Call, Crew
from atoll.executors.pieces import Pieces

__all__ = [
    "Call",
    "Crew",
    "Executor",
    "InProcess",
    "LostWorkerError",
    "Pieces",
    "Task",
    "choose_executor",
]
