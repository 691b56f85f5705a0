"""Executors of tasks: in this process, in local processes, or on a Dask cluster."""

from atoll.executors.base import Executor, InProcess, LostWorkerError, Task
from atoll.executors.choose import choose_executor, spare_executor
from atoll.executors.crew import Crew, PieceRunner, TaskCall

__all__ = [
    "Crew",
    "Executor",
    "InProcess",
    "LostWorkerError",
    "PieceRunner",
    "Task",
    "TaskCall",
    "choose_executor",
    "spare_executor",
]
