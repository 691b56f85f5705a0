"""Models as operator graphs: built, differentiated, sharded and fused, free of any hardware."""

from atoll.workload.builders.model import build_model
from atoll.workload.families.config import config_from_hf
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.fuse import fuse
from atoll.workload.graph.backward import differentiate
from atoll.workload.graph.layer import Layer, Model, predecessors
from atoll.workload.graph.operator import CollectiveKind, Core, Matmul, Operator, Role
from atoll.workload.load import load_config, load_model, zoo_names
from atoll.workload.prepare import prepare
from atoll.workload.shard import shard, widths
from atoll.workload.stored import StoredModel

__all__ = [
    "CollectiveKind", "Core", "Layer", "Matmul", "Model", "ModelConfig", "Operator", "Role",
    "StoredModel", "build_model", "config_from_hf", "differentiate", "fuse", "load_config",
    "load_model", "predecessors", "prepare", "shard", "widths", "zoo_names",
]  # fmt: skip
