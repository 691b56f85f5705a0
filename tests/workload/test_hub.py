"""Model ids are looked up in the local Hugging Face cache, where its libraries keep it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.workload import load_config
from atoll.workload.families.hub import cache_folder, cached_config, is_model_id

from .published import FOLDER

VARIABLES = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def keep(hub: Path, model_id: str, revision: str, name: str) -> Path:
    """Put a published configuration into the cache."""
    folder = hub / f"models--{model_id.replace('/', '--')}" / "snapshots" / revision
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text((FOLDER / f"{name}.json").read_text(encoding="utf-8"), encoding="utf-8")
    return config


def test_a_cached_model_loads_under_the_name_of_its_id(hub: Path) -> None:
    keep(hub, "Qwen/Qwen3-0.6B", "abc", "qwen3-0.6b")
    config = load_config("Qwen/Qwen3-0.6B")
    assert (config.name, config.family, config.layers) == ("Qwen3-0.6B", "qwen3", 28)


def test_old_ids_have_no_organisation(hub: Path) -> None:
    keep(hub, "openai-gpt2", "abc", "gpt2")
    assert load_config("openai-gpt2").family == "gpt2"


def test_the_main_branch_comes_before_later_snapshots(hub: Path) -> None:
    main = keep(hub, "org/model", "one", "gpt2")
    later = keep(hub, "org/model", "two", "opt-1.3b")
    os.utime(main, (1, 1))
    assert cached_config("org/model") == later
    refs = hub / "models--org--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("one\n")
    assert cached_config("org/model") == main
    (refs / "main").write_text("gone")
    assert cached_config("org/model") == later


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert cache_folder() == Path.home() / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_what_is_not_cached_is_one_sentence(hub: Path) -> None:
    message = (
        "org/absent: no such file or folder, nor is it in the local Hugging Face cache; nothing is "
        "downloaded here: run `hf download org/absent config.json` first"
    )
    with pytest.raises(AtollError, match=f"^{message}$"):
        load_config("org/absent")
    with pytest.raises(AtollError, match=r"; or did you mean llama3\.1-8b or llama3-8b$"):
        load_config("meta-llama/Llama-3.1-8B-FP8")
    keep(hub, "org/broken", "abc", "gpt2").write_text("{")
    with pytest.raises(AtollError, match=r"^org/broken: not valid JSON at line 1"):
        load_config("org/broken")


@pytest.mark.parametrize("text", ["", "/etc", "../x", "a/../b", "a/b/c", "a b", "x" * 200])
def test_texts_that_are_no_ids(text: str, hub: Path) -> None:
    assert not is_model_id(text) and cached_config(text) is None


def test_a_near_id_of_the_cache_is_named(hub: Path) -> None:
    keep(hub, "Qwen/Qwen3-0.6B", "abc", "qwen3-0.6b")
    with pytest.raises(AtollError, match=r"did you mean Qwen/Qwen3-0\.6B"):
        load_config("Qwen/Qwen3-0.6")
