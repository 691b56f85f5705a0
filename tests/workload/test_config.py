"""A configuration is read from the zoo, a file or a folder; every mistake is one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.workload import config_from_hf, load_config, zoo_names

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}


def sentence(given: dict[str, object]) -> str:
    with pytest.raises(AtollError) as caught:
        config_from_hf(given, "my/config.json")
    return str(caught.value)


def test_every_zoo_name_loads_under_its_own_name() -> None:
    assert len(zoo_names()) == 82
    for name in zoo_names():
        assert load_config(name).name == name


@pytest.mark.parametrize(
    ("name", "sequence"),
    [
        ("bert-large", 512),
        ("megatron-bert", 512),
        ("gpt2-xl", 1024),
        ("megatron-gpt2-8.3b", 1024),
        ("gpt3-175b", 2048),
        ("megatron-1t", 2048),
        ("opt-350m", 2048),
        ("llama2-7b", 4096),
        ("mixtral-8x7b", 4096),
        ("t5-11b", 512),
        ("mt5-xl", 1024),
        ("llama3-405b", 8192),
    ],
)
def test_zoo_models_have_their_usual_sequence(name: str, sequence: int) -> None:
    assert load_config(name).sequence == sequence


def test_file_and_folder_give_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(LLAMA))
    assert load_config(folder) == load_config(file) == load_config(str(file))
    assert load_config(file).name == "tiny"


def test_heads_of_qwen3_are_128_columns_unless_it_has_experts() -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    assert config_from_hf({**LLAMA, "model_type": "qwen3"}, "here").head_dim == 128
    routed = {**LLAMA, **experts, "model_type": "qwen3_moe"}
    assert config_from_hf(routed, "here").head_dim == 64 // 4
    assert config_from_hf({**routed, "head_dim": 32}, "here").head_dim == 32


def test_absent_and_null_fields_take_the_family_defaults() -> None:
    config = config_from_hf({**LLAMA, "num_key_value_heads": None}, "here")
    assert (config.kv_heads, config.head_dim) == (4, 16)
    assert not config.tied_embeddings and config.gated and config.norm == "rmsnorm"


def test_an_explicit_head_dim_frees_hidden_from_heads() -> None:
    config = config_from_hf({**LLAMA, "num_attention_heads": 5, "head_dim": 16}, "here")
    assert config.heads * config.head_dim != config.hidden


def test_missing_field() -> None:
    given = {k: v for k, v in LLAMA.items() if k != "hidden_size"}
    assert sentence(given) == "my/config.json: field 'hidden_size' is missing"


@pytest.mark.parametrize("value", [-4, 0, 2.5, 64.0, True, "64", [64]])
def test_sizes_are_positive_integers(value: object) -> None:
    message = f"my/config.json: hidden_size is {value!r}, but must be a positive integer"
    assert sentence({**LLAMA, "hidden_size": value}) == message


@pytest.mark.parametrize("value", [1, -0.1, "a", True])
def test_dropout_is_a_probability(value: object) -> None:
    message = sentence({**LLAMA, "attention_dropout": value})
    assert message.startswith(f"my/config.json: attention_dropout is {value!r}, but must be")


def test_heads_must_divide_hidden_and_be_divided_by_key_heads() -> None:
    message = "my/config.json: num_attention_heads is 5, but must divide hidden_size, 64"
    assert sentence({**LLAMA, "num_attention_heads": 5}) == message
    message = "my/config.json: num_key_value_heads is 3, but must divide num_attention_heads, 4"
    assert sentence({**LLAMA, "num_key_value_heads": 3}) == message


def test_no_more_experts_a_token_than_experts() -> None:
    given = {**LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}
    assert "num_experts_per_tok is 3, but must be at most num_local_experts, 2" in sentence(given)


def test_unknown_family_and_activation_list_what_is_known() -> None:
    message = sentence({**LLAMA, "model_type": "rwkv"})
    assert message.startswith("my/config.json: model_type is 'rwkv', but only apertus, bamba, ")
    assert "qwen3_moe" in message and "`atoll capture`" in message
    message = sentence({**LLAMA, "hidden_act": "mish"})
    assert "hidden_act is 'mish', but must be one of gelu" in message
    message = sentence({**LLAMA, "model_type": "bert", "position_embedding_type": "relative_key"})
    assert "must be one of absolute" in message


def test_truncated_json_is_located(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\n  "model_type": "llama",\n  "hidden_size": ')
    with pytest.raises(AtollError, match=r"config\.json: not valid JSON at line 3, column 18"):
        load_config(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 2]", "expected a JSON object, found a list"),
        (b"\xff\xfe{}", "not UTF-8 text"),
        (b"", "not valid JSON at line 1"),
        (b'{"model_type": ' + b"9" * 5000 + b"}", "not usable JSON"),
        (b"[" * 100_000, "not usable JSON"),
        (b"\xef\xbb\xbf{}", "field 'model_type' is missing"),  # a byte order mark is no mistake
        (b"{}", "field 'model_type' is missing"),
        (b'{"model_type": 7}', "model_type is 7, but must be a text"),
    ],
)
def test_odd_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(AtollError, match=message):
        load_config(file)


def test_a_field_that_is_not_read_may_be_infinite(tmp_path: Path) -> None:
    """transformers writes Mamba's `time_step_limit` so."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, math.inf]}))
    load_config(str(file))
    file.write_text(json.dumps({**LLAMA, "hidden_size": math.inf}))
    with pytest.raises(AtollError, match="hidden_size"):
        load_config(str(file))


def test_unknown_names_get_close_matches() -> None:
    with pytest.raises(AtollError, match="did you mean llama2-7b"):
        load_config("lama-2-7b")
    with pytest.raises(AtollError, match="known: bert-large"):
        load_config("zzzzzz")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3.2-1b", "llama3.2-1b"),
        ("GPT2-XL", "gpt2-xl"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("google/gemma-3-12b-it", "gemma3-12b"),
    ],
)
def test_other_spellings_of_a_zoo_name_are_taken_with_a_sentence(
    spelling: str, name: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert load_config(spelling).name == load_config(spelling).name == name
    assert capfd.readouterr().err == f"atoll: model: {spelling} is taken as {name} of the zoo\n"


@pytest.mark.parametrize("spelling", ["qwen257b", "llama3.21b", "llama-3.2-1b.json", "llama/3.2"])
def test_names_with_other_numbers_are_not_taken(spelling: str) -> None:
    with pytest.raises(AtollError):
        load_config(spelling)


def test_absent_paths(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="no such file or folder"):
        load_config(tmp_path / "absent.json")
    with pytest.raises(AtollError, match="a folder without a config"):
        load_config(tmp_path)
    with pytest.raises(AtollError, match="cannot be read"):
        load_config("x" * 5000)


def test_constants_that_change_no_operator_are_kept() -> None:
    plain = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 64,
    }  # fmt: skip
    found = config_from_hf({**plain, "rope_theta": 5e5, "rms_norm_eps": 1e-6}, "a")
    assert (found.rotary_base, found.norm_epsilon, found.rotary_scaling) == (5e5, 1e-6, "")
    scaled = {"rope_type": "llama3", "rope_theta": 1e6}
    found = config_from_hf({**plain, "rope_parameters": scaled}, "a")
    assert (found.rotary_base, found.rotary_scaling) == (1e6, "llama3")
    assert config_from_hf(plain, "a").rotary_base is None
    with pytest.raises(AtollError, match="rope_theta is -1, but must be a number above 0"):
        config_from_hf({**plain, "rope_theta": -1}, "a")
