"""Captures count what training runs (routed experts, windows), or they say that they do not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import atoll  # noqa: E402
from atoll.cli import app  # noqa: E402
from atoll.workload import StoredModel, config_from_hf, prepare  # noqa: E402
from atoll.workload.graph.operator import Matmul  # noqa: E402

from .modules import Experts  # noqa: E402

TOKENS, WIDTH, EXPERTS = 128, 64, 8
TINY = Path(__file__).parents[2] / "examples" / "spaces" / "tiny.yaml"


# --- models of the transformers library -----------------------------------------------------------

BASE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA4 = BASE | {
    "model_type": "llama4_text", "intermediate_size_mlp": 96, "num_local_experts": EXPERTS,
    "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "attention_chunk_size": 32,
    "no_rope_layers": [1, 1, 1, 0],
}  # fmt: skip
WINDOWED = {
    "mistral": BASE | {"model_type": "mistral", "sliding_window": 32},
    "gemma2": BASE | {"model_type": "gemma2", "sliding_window": 32, "tie_word_embeddings": True},
    "qwen2": BASE | {
        "model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True,
        "max_window_layers": 2,
    },
}  # fmt: skip


def from_config(given: dict[str, Any], tokens: int = TOKENS) -> StoredModel:
    pytest.importorskip("transformers")
    from atoll.tracing.record.huggingface import module_from_config

    logging.getLogger("transformers").setLevel(logging.ERROR)
    module, inputs = module_from_config(dict(given), sequence=tokens)
    return atoll.capture(module, inputs, name=given["model_type"])


def products(model: StoredModel) -> list[tuple[str, Matmul]]:
    prepared = prepare(model, 1, None, 1, attention="flash")
    return [
        (op.name, product)
        for layer, repeat in prepared.layers
        for op in layer.forward
        for product in op.matmuls * repeat
    ]


def test_llama_4_runs_each_expert_on_its_share_of_the_tokens() -> None:
    model = from_config(LLAMA4)
    experts = [product for _, product in products(model) if product.batch == EXPERTS]
    assert len(experts) == 2 * 4, "two grouped products in each of four layers"
    assert all(product.m == TOKENS // EXPERTS for product in experts)
    assert model.file.warnings == ()
    prepared = prepare(model, 1, None, 1)
    expected = sum(tensor.numel() for _, tensor in _llama4_module().named_parameters())
    assert prepared.parameters == expected


def _llama4_module() -> nn.Module:
    from atoll.tracing.record.huggingface import module_from_config

    with torch.device("meta"):
        built: nn.Module = module_from_config(dict(LLAMA4), sequence=8)[0]()
    return built


def test_llama_4_attends_within_chunks_but_for_its_global_layers() -> None:
    scores = [p for name, p in products(from_config(LLAMA4)) if name.endswith("attention")]
    in_chunk = 4 * (32 * 33 / 2) / TOKENS**2
    triangle = (TOKENS + 1) / 2 / TOKENS
    assert sorted({round(p.fraction, 9) for p in scores}) == [
        round(in_chunk, 9), round(triangle, 9),
    ]  # fmt: skip
    assert sum(p.fraction < 0.2 for p in scores) == 2 * 3, "three of four layers"


@pytest.mark.parametrize("name", WINDOWED)
def test_sliding_windows_are_captured_as_builders_count_them(name: str) -> None:
    model, config = from_config(WINDOWED[name]), config_from_hf(WINDOWED[name], name)
    ours = prepare(model, 1, None, 1, attention="flash")
    built = prepare(config, 1, TOKENS, 1, False, "flash")

    def work(prepared: Any, which: str) -> float:
        return sum(
            product.flops * product.fraction * repeat
            for layer, repeat in prepared.layers
            for op in getattr(layer, which)
            for product in op.matmuls
        )

    for which in ("forward", "backward"):
        assert work(ours, which) == pytest.approx(work(built, which), rel=1e-9)
    assert model.file.warnings == ()


def test_a_window_that_hides_nothing_changes_nothing() -> None:
    wide = from_config(BASE | {"model_type": "mistral", "sliding_window": TOKENS})
    none = from_config(BASE | {"model_type": "mistral", "sliding_window": None})
    assert products(wide) == products(none)
    assert wide.file.warnings == none.file.warnings == ()


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_the_librarys_own_module_is_captured_with_warnings(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    given = dict(LLAMA4)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given, use_cache=False)

    def build() -> nn.Module:
        loader = transformers.AutoModelForCausalLM
        module: nn.Module = loader.from_config(config, attn_implementation=kind).eval()
        return module

    ids = torch.empty(1, TOKENS, dtype=torch.int64, device="meta")
    warnings = atoll.capture(build, {"input_ids": ids, "labels": ids}).file.warnings
    assert "each token has 1 of 8 experts, but the module runs all 8 on every token" in warnings[0]
    assert "attention windows of 32 tokens" in warnings[1]


# --- modules of one's own -------------------------------------------------------------------------


class BatchedExperts(nn.Module):
    """Every expert on every token, as one batched product; a gate of zero hides the others."""

    def __init__(self, chosen: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.empty(EXPERTS, WIDTH, 2 * WIDTH))
        self.down = nn.Parameter(torch.empty(EXPERTS, 2 * WIDTH, WIDTH))
        self.chosen = chosen

    def gates(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        top, index = logits.topk(self.chosen, dim=-1)
        return torch.zeros_like(logits).scatter(-1, index, top.softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        every = torch.bmm(F.silu(torch.bmm(flat.expand(EXPERTS, -1, -1), self.up)), self.down)
        return (every * self.gates(flat).t()[..., None]).sum(0).square().mean()


class LoopedExperts(BatchedExperts):
    """The same as a loop over a list of modules."""

    def __init__(self, chosen: int = 2) -> None:
        super().__init__(chosen)
        del self.up, self.down
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        gates = self.gates(flat)
        parts = [gates[:, i : i + 1] * expert(flat) for i, expert in enumerate(self.experts)]
        return sum(parts, torch.zeros_like(flat)).square().mean()


class MixtureOfAll(BatchedExperts):
    """Soft gates: here every token does go to every expert."""

    def gates(self, x: Tensor) -> Tensor:
        return self.router(x).softmax(-1)


def captured(module: Any, *shape: int) -> StoredModel:
    return atoll.capture(module, torch.empty(1, *shape, device="meta"), sequence=shape[0])


@pytest.mark.parametrize("module", [BatchedExperts, LoopedExperts])
def test_experts_that_run_on_all_tokens_are_named(module: type[nn.Module]) -> None:
    (warning,) = captured(module, TOKENS, WIDTH).file.warnings
    assert "each token has 2 of 8 experts, but the module runs all 8 on every token" in warning
    assert "4 times" in warning


@pytest.mark.parametrize("module", [MixtureOfAll, lambda: BatchedExperts(EXPERTS), Experts])
def test_experts_that_get_what_is_meant_for_them_are_not(module: Any) -> None:
    assert captured(module, TOKENS, WIDTH).file.warnings == ()


class Masked(nn.Module):
    """Fused attention with a mask of its own, or as causal."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)[:, None].chunk(3, dim=-1)
        tokens = x.shape[1]
        at = torch.arange(tokens)
        mask = None
        if self.mask == "window":
            mask = (at[:, None] >= at) & (at[:, None] - at < 16)
        elif self.mask == "padding":
            mask = torch.empty(1, 1, 1, tokens)
        causal = self.mask == "causal"
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal).square().mean()


def test_a_mask_that_fused_attention_is_given_is_said_not_to_be_counted() -> None:
    (warning,) = captured(lambda: Masked("window"), TOKENS, WIDTH).file.warnings
    assert "have a mask that compares positions" in warning and "counted in full" in warning
    for other in ("causal", "padding", "none"):
        assert captured(lambda mask=other: Masked(mask), TOKENS, WIDTH).file.warnings == ()


# --- every answer repeats them --------------------------------------------------------------------


def test_every_answer_repeats_the_warnings_of_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from atoll.printing.search import print_result

    file = captured(BatchedExperts, TOKENS, WIDTH).save(tmp_path / "model.json")
    said = "each token has 2 of 8 experts"
    result = atoll.search(
        model=str(file), space=str(TINY), devices=4, batch=16, microbatch=[1],
        tp=[1], baselines=False,
    )  # fmt: skip
    assert said in result.to_dict()["warnings"][0] and said in str(result)
    print_result(result)
    assert "Note" in (out := capsys.readouterr().out) and "each token has 2 of" in out
    found = atoll.estimate(str(file), "h100", 1, batch=1)
    assert said in found.to_dict()["notes"][0]
    assert said in atoll.describe_model(str(file)).warnings[0]


def test_the_command_warns_on_the_error_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "batched_experts.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from tracing.test_capture_caveats import BatchedExperts\n",
        encoding="utf-8",
    )
    arguments = ["batched_experts:BatchedExperts", "--inputs", f"float32[1,{TOKENS},{WIDTH}]"]
    done = CliRunner().invoke(
        app, ["capture", *arguments, "--sequence", str(TOKENS), "--out", "m.json", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert "atoll: warning: each token has 2 of 8 experts" in done.stderr
    assert "each token has 2 of 8 experts" in json.loads(done.stdout)["warnings"][0]
