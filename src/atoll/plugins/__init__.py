"""What authors of plug-ins build on: the kinds of objects that each door takes, and ours.

docs/extending.md has the doors; `atoll.testing` the contracts.

>>> from dataclasses import replace
>>> from atoll.plugins import STACKS
>>> replace(STACKS["megatron"], name="quiet", step_s=0.0).name
'quiet'
"""

from atoll.answers.layout import LaunchFile
from atoll.base.arrays import Floats as FloatArray
from atoll.cost.model import COST_MODELS, MAPPER, map_products
from atoll.explore.proof.objective import AIMS, Aim
from atoll.explore.strategies import STRATEGIES, Strategy
from atoll.hardware.accelerator import GLB_BPC_PER_MIB, MIB
from atoll.hardware.silicon.systolic import SYSTOLIC, TEMPLATES
from atoll.hardware.template.cores import (
    CostModel,
    ProductCosts,
    ProductShape,
    TensorConfigs,
)
from atoll.hardware.template.parameter import Columns, Parameter
from atoll.hardware.template.template import BufferLevels, ChipTemplate, EnergyModel
from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.predictors.registry import PREDICTORS
from atoll.profile import Profile
from atoll.profiles import PROFILES
from atoll.tools.launch_plan import LaunchPlan
from atoll.tools.registry import TOOLS
from atoll.tools.stack import STACKS, Stack
from atoll.tools.tool import Tool
from atoll.workload.families.family import FAMILIES, Family

Levels, Shape = BufferLevels, ProductShape
"""Names of version 0.1, for one release."""

__all__ = [
    "AIMS",
    "COST_MODELS",
    "FAMILIES",
    "GLB_BPC_PER_MIB",
    "MAPPER",
    "MIB",
    "PREDICTORS",
    "PROFILES",
    "STACKS",
    "STRATEGIES",
    "SYSTOLIC",
    "TEMPLATES",
    "TOOLS",
    "Aim",
    "Asked",
    "BufferLevels",
    "ChipTemplate",
    "Columns",
    "CostModel",
    "EnergyModel",
    "Family",
    "FloatArray",
    "LaunchFile",
    "LaunchPlan",
    "Levels",
    "Parameter",
    "Predicted",
    "Predictor",
    "ProductCosts",
    "ProductShape",
    "Profile",
    "Shape",
    "Stack",
    "Strategy",
    "TensorConfigs",
    "Tool",
    "map_products",
]
