"""What a table of runs may say of model, stages, states and kernels, and what it means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_cases import dense, small_run

from atoll.base.errors import AtollError
from atoll.step.layout import Layout, check_layout
from atoll.tools.software import flagged
from atoll.tools.stack import STACKS
from atoll.training.estimate import Estimate, Estimator, estimate
from atoll.training.memory import WORKSPACE_BYTES
from atoll.validation.row_runs import peak_meaning, predicted_peak_bytes, run_from_row
from atoll.validation.tables import RunRow
from atoll.workload.builders.model import build_model
from atoll.workload.families.model_config import ModelConfig

SMALL = {
    "id": "any-1", "device": "H100-SXM", "quality": "A",
    "layers": "12", "hidden": "512", "heads": "8", "ffn": "2048", "vocab": "50304", "seq": "1024",
    "devices": "8", "global_batch": "32", "micro_batch": "4", "tp": "1", "pp": "1",
    "zero_stage": "0", "measured_peak_mem_GB": "1",
}  # fmt: skip


def row(**more: str) -> RunRow:
    return RunRow(2, SMALL | more)


def model(**more: str) -> ModelConfig:
    return run_from_row(row(**more))[0].model


def found(**more: str) -> Estimate:
    return estimate(*run_from_row(row(**more)))


def test_a_row_may_say_what_its_blocks_are_made_of() -> None:
    plain = model()
    assert (plain.norm, plain.positions, plain.tied_embeddings) == ("layernorm", "learned", True)
    told = model(
        normalization="RMSNorm", position_embedding="rope", untied_embeddings="1", bias_linear="0",
        kv_channels="128", activation="squared_relu", qk_layernorm="1", hidden_dropout="0.1",
    )  # fmt: skip
    assert (told.norm, told.positions, told.tied_embeddings) == ("rmsnorm", "rotary", False)
    assert not (told.attention_bias or told.output_bias or told.mlp_bias)
    assert (told.head_dim, told.activation, told.qk_norm) == (128, "relu2", True)
    assert told.dropout == told.attention_dropout == 0.1
    with pytest.raises(AtollError, match="activation 'sine' is not modelled"):
        model(activation="sine")


def test_experts_beside_dense_blocks_and_latent_attention() -> None:
    told = model(
        n_experts="64", top_k="8", moe_ffn="256", shared_expert_ffn="512", n_moe_layers="9",
        kv_lora_rank="64", q_lora_rank="192", qk_head_dim="16", qk_pos_emb_head_dim="8",
        v_head_dim="16", mtp_layers="1",
    )  # fmt: skip
    assert (told.ffn, told.dense_ffn, told.shared_ffn) == (256, 2048, 512)
    assert told.dense_layers == (0, 1, 2)
    assert (told.head_dim, told.rotated, told.value_width) == (24, 8, 16)
    assert (told.latent_kv, told.latent_q, told.mtp_layers) == (64, 192, 1)


def test_encoders_masked_models_and_patterns() -> None:
    t5 = model(arch="t5", decoder_layers="6", decoder_seq="128")
    assert (t5.layers, t5.encoder_layers, t5.decoder_sequence) == (18, 12, 128)
    bert = model(arch="bert")
    assert bert.mlm_head
    assert not bert.causal
    hybrid = model(hybrid_pattern="M-M*|M-ME", n_experts="4", mamba="mamba-num-heads=16")
    first, second = ("mamba2", "none", "mamba2", "attention"), ("mamba2", "none", "mamba2", "none")
    assert hybrid.mixers == (*first, *second)
    assert hybrid.scan is not None
    assert (hybrid.scan.heads, hybrid.scan.state, hybrid.dense_layers) == (16, 128, (1, 5))
    with pytest.raises(AtollError, match="expected a size"):
        model(hybrid_pattern="M-", mamba="mamba-num-heads=many")


@pytest.mark.parametrize(
    ("cells", "blocks"),
    [
        ({"pp": "4", "decoder_first_pp_layers": "2", "decoder_last_pp_layers": "2"}, (2, 4, 4, 2)),
        ({"pp": "4", "vpp": "2", "account_loss_in_pp": "1", "layers": "15"}, (2,) * 7 + (1,)),
        ({"pp": "2", "pp_layout_expanded": "Ettttttt|tttttL"}, (7, 5)),
        ({"pp": "2", "hybrid_pattern": "M-M-M-M-|M-M-"}, (8, 4)),
        ({"pp": "4"}, ()),
    ],
)
def test_stages_as_a_row_gives_them(cells: dict[str, str], blocks: tuple[int, ...]) -> None:
    run, layout = run_from_row(row(**cells))
    assert layout.blocks == blocks
    assert estimate(run, layout).memory


def test_given_stages_must_hold_the_model() -> None:
    for blocks in ((2, 3), (1, 1, 2), (5, -1)):
        with pytest.raises(AtollError, match="for 2 model chunks"):
            check_layout(Layout(dp=4, pp=2, blocks=blocks), dense(4), 8, 32, 1024)
    few, many = (
        estimate(small_run(dense(4)), Layout(dp=4, pp=2, blocks=b)) for b in ((1, 3), (3, 1))
    )
    assert few.memory[0].weights < many.memory[0].weights


def test_the_rank_that_a_peak_belongs_to() -> None:
    cells = {"pp": "4", "dp": "2"}
    memory = found(**cells).memory
    assert (
        predicted_peak_bytes(peak_meaning(row(memory_rank="first", **cells)), memory)
        == memory[0].allocated
    )
    assert (
        predicted_peak_bytes(peak_meaning(row(memory_rank="last", **cells)), memory)
        == memory[-1].allocated
    )
    assert (
        predicted_peak_bytes(peak_meaning(row(**cells)), memory)
        == max(memory, key=lambda m: m.needed).allocated
    )


def test_states_by_the_precisions_of_weights_and_gradients() -> None:
    held = {
        (): 18,
        ("params_dtype", "fp16"): 20,  # 16-bit gradients, and fp32 copies of them
        ("grad_reduce_in_bf16", "1"): 16,
    }
    for cells, bytes_ in held.items():
        run, _ = run_from_row(row(**dict([cells] if cells else [])))
        assert run.states.bytes_per_parameter == bytes_


def test_the_kernel_of_attention_as_launch_files_name_it() -> None:
    told = {
        ("unfused", "", ""): "unfused",
        ("fused", "", ""): "flash",
        ("auto", "", ""): "flash",
        ("auto", "unfused", ""): "unfused",
        ("auto", "", "local"): "unfused",
    }
    for (backend, inferred, layers), kernel in told.items():
        cells = {"attn_inferred": inferred, "transformer_impl": layers}
        assert run_from_row(row(attention_backend=backend, **cells))[0].attention == kernel


def test_the_last_stages_loss() -> None:
    """Megatron's cross entropy: 16-bit logits and fp32 ones that become their gradient."""
    logits = 4 * 1024 * 50304
    assert found().memory[-1].logits == 6 * logits
    assert found(cross_entropy_fusion="te").memory[-1].logits == 2 * logits
    waiting = found(wgrad_deferral_limit="2", global_batch="64").memory[-1].logits
    assert waiting == (6 + 2 * 2) * logits  # logits' gradients wait for the end of the step


def test_workspaces_of_matrix_libraries() -> None:
    """Two of PyTorch's, one of Transformer Engine, four for its grouped products."""
    assert found().worst.buffers == 3 * WORKSPACE_BYTES
    assert found(transformer_impl="local").worst.buffers == 2 * WORKSPACE_BYTES
    experts = {"n_experts": "4", "top_k": "1"}
    assert found(**experts).worst.buffers == 7 * WORKSPACE_BYTES
    assert found(moe_grouped_gemm="0", **experts).worst.buffers == 3 * WORKSPACE_BYTES


def test_fp8_weights_are_copies_unless_they_are_all_there_is() -> None:
    half, eighth = found().worst.weights, found(precision="fp8").worst.weights
    blocks = 12 * (4 * 512 * 512 + 2 * 512 * 2048)
    assert eighth - half == pytest.approx(2 * blocks, rel=0.01)
    assert found(precision="fp8", fp8_param_gather="1").worst.weights == half


def test_an_encoder_with_stages_of_its_own() -> None:
    _, layout = run_from_row(row(arch="t5", tp="2", pp="2", encoder_pp="2", decoder_layers="12"))
    assert (layout.pp, layout.dp) == (4, 1)


def test_a_short_decoder_keeps_less() -> None:
    long, short = (found(arch="t5", decoder_seq=n).worst for n in ("1024", "128"))
    assert short.weights == long.weights
    assert short.activations < 0.75 * long.activations
    assert short.logits * 8 == long.logits


def test_tokens_further_on_cost_a_block_an_embedding_and_a_loss() -> None:
    """DeepSeek-V3's multi-token prediction, on the last stage."""
    config = dense(4, tied_embeddings=False)
    run = small_run(config, devices=4, global_batch=16)
    more = replace(run, model=replace(config, mtp_layers=1))
    layout = Layout(dp=2, pp=2, zero=0)
    plain, further = (Estimator(r).estimate(layout).memory for r in (run, more))
    assert further[0] == plain[0]
    block = next(c.parameters for c in Estimator(run).costs(layout) if c.is_block)
    table = config.vocab * config.hidden + 1024 * config.hidden  # words and positions
    added = (further[-1].weights - plain[-1].weights) / 2
    assert added == pytest.approx(block + table + 2 * config.hidden**2, rel=0.01)
    # Its probabilities wait for the backward pass while the last loss runs.
    logits = 1024 * config.vocab
    assert further[-1].logits - plain[-1].logits == STACKS["megatron"].loss_kept * logits
    assert estimate(more, layout).step.time_s > estimate(run, layout).step.time_s
    whole = build_model(more.model, 1)
    assert whole.shared_parameters >= 2 * config.vocab * config.hidden  # with both ends


def test_flags_of_a_launch_file_change_what_is_kept() -> None:
    plain = STACKS["megatron"]
    assert flagged(plain, "") == plain
    assert flagged(plain, "fp8_params te_loss").fp8_copies == 0
    assert flagged(plain, "te_loss").loss_bytes < plain.loss_bytes
    assert not flagged(plain, "no_grad_fusion").adds_in_products
    assert flagged(plain, "head_wgrad=50").deferred_heads == 50
    with pytest.raises(AtollError, match="'wings' is not known"):
        flagged(plain, "local,wings")
