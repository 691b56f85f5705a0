"""Where tasks run: in this process, in local processes, or on a Dask cluster."""

from atoll.executors.base import Executor, InProcess, LostWorkerError
from atoll.executors.choose import choose_executor
from atoll.executors.crew import Call, Crew

__all__ = ["Call", "Crew", "Executor", "InProcess", "LostWorkerError", "choose_executor"]
