"""`atoll search --model path/to/config.json` for published configurations of every family."""

from __future__ import annotations

from pathlib import Path

import pytest

import atoll
from atoll.workload import build_model, load_config

from .published import FOLDER, PARAMETERS

TINY = Path(__file__).parents[2] / "examples" / "spaces" / "tiny.yaml"
NAMES = (
    "bert-base-uncased", "bloom-560m", "deepseek-v2-lite", "gemma-2b", "gpt-j-6b", "gpt2",
    "llama-3.2-1b", "mistral-7b-v0.1", "opt-1.3b", "phi-1.5", "pythia-6.9b", "qwen1.5-moe-a2.7b",
    "qwen3-0.6b", "roberta-base", "t5-small", "t5-v1.1-base", "vit-large-patch16-384",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_published_configuration_is_searched_for(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(text, encoding="utf-8")
    path = folder / "config.json"
    config = load_config(path)
    length = config.sequence if config.patch_inputs else 128
    assert build_model(config, 1, length).parameters == PARAMETERS[name]
    result = atoll.search(
        model=str(path), space=str(TINY), devices=64, batch=64, sequence=length,
        microbatch=[1], tp=[1], baselines=False, tolerance=0.01,
    )  # fmt: skip
    assert result.certificate.gap <= 0.01
    assert result.to_dict()["best"]["models"][0]["placement"]["step_time_s"] > 0
