"""Another layout of a user's run: what no layout changes stays as the user's file says it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import atoll
from atoll.export import export_run

from .test_check import SCRIPT

MINE = """--data-path 0.3 /a 0.7 /b --split 99,1,0 --seed 17 --lr 3e-4 --min-lr 3e-5
  --tokenizer-type NullTokenizer --save-interval 1000 --load /there --my_own_flag 7
  --cross-entropy-loss-fusion --overlap-grad-reduce --wandb-project "$PROJECT"
"""
TRAINER = {
    "model_name_or_path": "/mine", "stage": "sft", "finetuning_type": "lora", "lora_rank": 8,
    "lora_alpha": 48, "lora_target": "q_proj,v_proj", "dataset": "my_data", "cutoff_len": 2048,
    "template": "llama3", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
    "learning_rate": 2e-4, "num_train_epochs": 3, "save_steps": 500, "bf16": True, "packing": True,
    "output_dir": "/out",
}  # fmt: skip


def script(tmp_path: Path, more: str = MINE) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.replace("--lr 1e-4 --save /nowhere", f"--save /nowhere {more}"))
    return path


def planned(path: Path, **asked: Any) -> Any:
    given = {"device": "h100", "devices": 8, **asked}
    return atoll.plan(from_=str(path), **given)


def test_the_same_tool_takes_every_argument_that_no_layout_changes(tmp_path: Path) -> None:
    plan = planned(script(tmp_path), set=["GPUS=8"])
    file = plan.export("megatron-lm")
    for line in (
        "--data-path 0.3 /a 0.7 /b", "--split 99,1,0", "--seed 17", "--lr 3e-4", "--min-lr 3e-5",
        "--tokenizer-type NullTokenizer", "--save /nowhere", "--load /there", "--my_own_flag 7",
        "--save-interval 1000", "--cross-entropy-loss-fusion", "--vocab-size 32000",
    ):  # fmt: skip
        assert f"\n  {line}\n" in file.text
    assert "TRAIN_ITERS=${TRAIN_ITERS:-1000}" in file.text
    for line in ("DATA=", "TOKENIZER=", "LR=", "SAVE=", "--recompute-granularity full"):
        assert line not in file.text
    assert file.text.count("--global-batch-size") == 1
    (note,) = [note for note in file.notes if "Not carried over" in note]
    assert "--wandb-project;" in note, "whose value is not known"
    checked = atoll.check(file.save(tmp_path), device="h100", devices=8, time_limit=1e-6)
    assert checked.estimate.step.time_s == pytest.approx(plan.best.step.time_s, rel=1e-9)
    assert checked.launch.steps == 1000


def test_variables_of_a_written_file_stay_variables(tmp_path: Path) -> None:
    first = atoll.plan("llama2-7b", "h100", 8, batch=64, tp=[2], pp=[1]).export("megatron-lm")
    text = first.text.replace("SAVE_INTERVAL:-500", "SAVE_INTERVAL:-70").replace("-20}", "-900}")
    mine = tmp_path / "first.sh"
    mine.write_text(text.replace("MEGATRON:-.", "MEGATRON:-/opt/megatron"))
    file = planned(mine, tp=[4], pp=[1]).export("megatron-lm")
    for line in (
        "DATA=${DATA:---mock-data}", "LR=${LR:-3e-4}", "TRAIN_ITERS=${TRAIN_ITERS:-900}",
        "TOKENIZER=${TOKENIZER:---tokenizer-type NullTokenizer --vocab-size 31999}",
        "SAVE=${SAVE:-}", "SAVE_INTERVAL=${SAVE_INTERVAL:-70}",
        "MEGATRON=${MEGATRON:-/opt/megatron}",
    ):  # fmt: skip
        assert f"\n{line}  # " in file.text
    assert file.notes[0].startswith("As it is, the file trains on random tokens and saves nothing")
    assert "TRAIN_ITERS" not in file.notes[0], "its number is said"
    assert not any("does not have" in note for note in file.notes)
    again = file.save(tmp_path / "again.sh")
    twice = planned(again, tp=[4], pp=[1]).export("megatron-lm").text
    assert twice.replace("again", "first") == file.text
    given = {"DATA": "--data-path /my/data", "LR": "7e-5", "SAVE": "/kept"}
    words = words_of(again, **given)
    for part in ("--data-path /my/data", "--lr 7e-5", "--save /kept", "--save-interval 70"):
        assert part in words
    assert "--mock-data" not in words


def words_of(file: Path, **variables: str) -> str:
    """The words with which a script of one node starts torchrun."""
    file.write_text(file.read_text().replace("exec torchrun", "echo torchrun"))
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.check_output(["bash", str(file)], env=environment, text=True)


def test_variables_of_a_users_file_stay_variables_or_are_named(tmp_path: Path) -> None:
    """Wherever a whole argument that no layout changes has them; a size does not."""
    path = script(
        tmp_path,
        '--data-path $BLEND --save "$RUNS"/one --lr ${RATE} --seed $SEED ${LOGS} --split 9,1',
    )
    head = """BLEND=${BLEND:-0.3 /a 0.7 /b}; export RUNS="${RUNS:-/my runs}"
        RATE=${RATE:-2e-4}
        : ${SEED:=17}
        LOGS=${LOGS:---log-interval 5 --wandb-project p}
        if [ "${DEBUG:=0}" = 1 ]; then MORE=--profile; fi
        """
    path.write_text(head + path.read_text())
    file = planned(path, set=["GPUS=8"]).export("megatron-lm")
    for line in (
        "BLEND=${BLEND:-0.3 /a 0.7 /b}", "RUNS=${RUNS:-/my runs}", "RATE=${RATE:-2e-4}",
        "SEED=${SEED:-17}", "LOGS=${LOGS:---log-interval 5 --wandb-project p}",
        "  --data-path ${BLEND}", '  --save "$RUNS"/one', "  --lr ${RATE}", "  $LOGS",
    ):  # fmt: skip
        assert f"\n{line}" in file.text
    (note,) = [note for note in file.notes if "does not have" in note]
    assert note.endswith("written into it: GPUS, BATCH.")
    saved = file.save(tmp_path / "new.sh")
    words = words_of(saved, BLEND="/one", RUNS="/two words", LOGS="--log-interval 9")
    for part in ("--data-path /one ", "--save /two words/one", "--log-interval 9", "--split 9,1"):
        assert part in words
    checked = atoll.check(saved, device="h100", devices=8, time_limit=1e-6)
    assert checked.launch.arguments.without_effect["save"] == "/my runs/one"


def test_words_that_stand_where_a_variable_is_not_empty_stay_so(tmp_path: Path) -> None:
    """Neither quotes inside ${NAME:+words} nor an empty "$@" become arguments."""
    first = atoll.plan("llama2-7b", "h100", 8, batch=64, tp=[2], pp=[1]).export("megatron-lm")
    mine = tmp_path / "first.sh"
    named = """ --wandb-exp-name "it's" "$@"\n"""
    mine.write_text(first.text.replace("SAVE:-}", "SAVE:-/my runs}").replace(' "$@"\n', named))
    file = planned(mine, tp=[4], pp=[1]).export("megatron-lm")
    guarded = '${SAVE:+--save "$SAVE" --load "$SAVE" --save-interval "$SAVE_INTERVAL"}'
    assert f"\n  {guarded}\n" in file.text
    assert "\nSAVE=${SAVE:-/my runs}  # folder" in file.text
    assert "--wandb-exp-name 'it'\"'\"'s'\n" in file.text
    assert file.text.endswith('--train-iters "$TRAIN_ITERS" "$@"\n')
    saved = file.save(tmp_path / "new.sh")
    assert "--save /kept --load /kept --save-interval 500 " in words_of(saved, SAVE="/kept")
    assert "--save /my runs --load /my runs " in words_of(saved)
    saved.write_text(saved.read_text().replace("SAVE:-/my runs}", "SAVE:-}"))
    assert "--save" not in words_of(saved)
    mine.write_text(mine.read_text().replace("/my runs}", "/runs/$USER/$(date)}"))
    file = planned(mine, tp=[4], pp=[1]).export("megatron-lm")
    assert "SAVE=${SAVE:-}  #" in file.text, "its default is not known"
    (note,) = [note for note in file.notes if "Not carried over" in note]
    assert note.endswith("--save, --load; add them to this file.")


def test_samples_stay_samples(tmp_path: Path) -> None:
    path = script(tmp_path)
    path.write_text(path.read_text().replace("--train-iters 1000", "--train-samples 6401"))
    text = planned(path, set=["GPUS=8"]).export("megatron-lm").text
    assert "TRAIN_ITERS=${TRAIN_ITERS:-101}" in text
    assert '--train-samples "$((TRAIN_ITERS * 64))"' in text
    assert "--train-iters" not in text


def test_another_tool_names_what_it_does_not_take(tmp_path: Path) -> None:
    run = planned(script(tmp_path), set=["GPUS=8"])
    file = export_run("deepspeed", run.run, run.best.layout)
    assert "'steps': 1000" in file.text
    (note,) = [note for note in file.notes if "Not carried over" in note]
    assert "--data-path" in note
    assert "--seed" in note


def test_changes_of_a_written_python_file_that_are_reset_are_named(tmp_path: Path) -> None:
    plan = atoll.plan("llama3-8b", "h100", 64, batch=256, sequence=8192, tool="nemo", zero=[3])
    mine = plan.export("nemo").save(tmp_path / "mine.py")
    checked = atoll.check(mine, device="h100", devices=64, time_limit=1e-6)
    assert checked.estimate.run.model.name == "llama3-8b", "by its recipe"

    def notes(tool: str) -> list[str]:
        file = planned(mine, devices=64, model="llama3-8b", tp=[2], zero=[1]).export(tool)
        return [note for note in file.notes if str(mine) in note]

    assert not notes("nemo"), "what goes with the layout is no one's loss"
    text = mine.read_text().replace('"LR", ""', '"LR", "1e-5"')
    mine.write_text(text.replace("'optimizer': {", "'optimizer': {'weight_decay': 0.3, "))
    reset, lost = notes("nemo")
    assert reset.endswith("does not have: LR; make them here again.")
    assert lost.endswith(": optimizer.weight_decay; add them to this file.")
    mine = plan.export("torchtitan").save(tmp_path / "job.py")
    assert not notes("torchtitan")
    mine.write_text(mine.read_text().replace("(lr=LR)", "(lr=LR, weight_decay=0.3)"))
    (reset,) = notes("torchtitan")
    assert "have: optimizer=default_adamw(lr=LR, weight_decay=0.3); make" in reset


def test_a_trainer_file_keeps_its_data_and_length(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TRAINER))
    written = yaml.safe_load(planned(path, model="llama3-8b").export("llama-factory").text)
    changed = {name for name, value in TRAINER.items() if written[name] != value}
    assert changed <= {"per_device_train_batch_size", "gradient_accumulation_steps"}
    assert "max_steps" not in written, "which would end the epochs"
    assert "save_strategy" not in written


def test_segments_that_grow_stay_from_file_to_file(tmp_path: Path) -> None:
    path = script(tmp_path)
    fixed = atoll.check(str(path), device="h100", devices=8).estimate
    path.write_text(f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n{path.read_text()}")
    growing = atoll.check(str(path), device="h100", devices=8).estimate
    assert growing.step_time_s == fixed.step_time_s
    before, after = (estimate.memory[0] for estimate in (fixed, growing))
    assert before.needed - after.needed == pytest.approx(0.05 * after.allocated)
    plan = planned(path)
    text = export_run("megatron-lm", plan.run, plan.best.layout).text
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
