"""The models that Megatron builds of exported arguments have the parameters that Atoll counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from megatron_machine import parsed

from atoll.base.errors import AtollError
from atoll.export import export
from atoll.step.layout import Layout
from atoll.workload.builders.model import build_model
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.load import load_config, zoo_names

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own
SEQUENCE = 512


def shallow(name: str) -> ModelConfig:
    """Three blocks of a model, one of them dense where the model has dense ones."""
    model = load_config(name)
    return replace(model, layers=3, dense_layers=model.dense_layers[:1])


def exported() -> list[str]:
    names = []
    for name in zoo_names():
        try:
            export("megatron", shallow(name), Layout(zero=0), sequence=SEQUENCE, global_batch=1)
        except AtollError:
            continue
        names.append(name)
    return names


@pytest.fixture(scope="module")
def parser() -> Iterator[Any]:
    """Megatron's arguments, in a job of one process that talks to nobody."""
    found = pytest.importorskip("megatron.training.arguments")
    import torch
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    parallel_state.destroy_model_parallel()  # another test of this process may have left its own
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    yield found
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def layer_specs(arguments: Any, core: Any) -> Any:
    """Megatron's layers without Transformer Engine; attention itself holds no parameters."""
    import torch
    from megatron.core.models.gpt import gpt_layer_specs as specs

    class NoAttention(torch.nn.Module):
        def __init__(self, **_: Any) -> None:
            super().__init__()

    if arguments.num_experts:
        made = specs.get_gpt_decoder_block_spec(core, use_transformer_engine=False)
        layers = made.layer_specs
    else:
        made = specs.get_gpt_layer_local_spec(
            qk_layernorm=arguments.qk_layernorm, normalization=arguments.normalization
        )
        layers = [made]
    for layer in layers:
        layer.submodules.self_attention.submodules.core_attention = NoAttention
    return made


def megatron_parameters(arguments: Any, core: Any) -> int:
    import torch
    from megatron.core.models.gpt import GPTModel

    with torch.device("meta"):
        model = GPTModel(
            config=core,
            transformer_layer_spec=layer_specs(arguments, core),
            vocab_size=arguments.padded_vocab_size,
            max_sequence_length=arguments.max_position_embeddings,
            share_embeddings_and_output_weights=not arguments.untie_embeddings_and_output_weights,
            position_embedding_type=arguments.position_embedding_type,
            rotary_percent=arguments.rotary_percent,
        )
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", exported())
def test_parameters_are_those_that_atoll_counts(
    name: str, parser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, layout = shallow(name), Layout(zero=0)
    made = export("megatron", model, layout, sequence=SEQUENCE, global_batch=1)
    arguments, core = parsed(parser, monkeypatch, made.save(tmp_path), layout)
    # Kernels and streams that this machine has not; none of them holds a parameter.
    core.gradient_accumulation_fusion = core.moe_grouped_gemm = core.apply_rope_fusion = False
    core.persist_layer_norm = core.perform_initialization = False
    core.use_cpu_initialization = True
    monkeypatch.setattr(parser.torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(parser.torch.cuda, "current_device", lambda: "cpu")
    theirs = megatron_parameters(arguments, core)
    assert theirs == build_model(model, 1, SEQUENCE).parameters
