"""Files that mean harm: one sentence, the exit status 2, nothing run, soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.cli import main
from atoll.tools.read import read_launch
from atoll.workload import load_config

RUN = (
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --bf16 "
    "--seq-length 128 --vocab-size 100 --micro-batch-size 1 "
)
MOST_S = 10.0  # of processor time on a busy machine: what grows faster than the file takes minutes
REFUSED = {
    "quote.sh": "run 'open",
    "double.sh": 'run "open',
    "braces.sh": "${" * 50_000,
    "defaults.sh": "X=" + "${a:-" * 5_000 + "1" + "}" * 5_000,
    "sums.sh": "X=" + "$((" * 5_000 + "1" + "))" * 5_000,
    "ticks.sh": "`" * 100_000,
    "dollars.sh": "$" * 100_000,
    "lines.sh": "a\n" * 99_000,
    "brackets.sh": "(" * 100_000,
    "ifs.sh": "if [ 1 ]; then\n" * 12_000,
    "itself.sh": "source itself.sh\n" + RUN,
    "itself_often.sh": "source itself_often.sh\n" * 8_000,
    "large.sh": "x" * 10_000_000,
    "large.json": '{"a": "' + "x" * 10_000_000 + '"}',
    "large.yaml": "a: " + "x" * 10_000_000,
    "large.toml": 'a = "' + "x" * 10_000_000 + '"',
    "deep.json": '{"a":' * 15_000 + "1" + "}" * 15_000,
    "deep.yaml": "[" * 20_000,
    "deep.toml": "a = " + "[" * 90_000,
    "digits.toml": "a = " + "9" * 5_000,
    "infinite.sh": RUN + "--global-batch-size 1e400",
    "nan.sh": RUN + "--global-batch-size nan",
    "list.sh": RUN + "--num-experts 4 --moe-layer-freq '[1]*4096*4096*4096'",
    "code.sh": RUN + "--num-experts 4 --moe-layer-freq '__import__(\"os\").getcwd()'",
    "stages.sh": RUN + "--pipeline-model-parallel-layout '" + "(" * 50 + "t|" + ")*4096" * 50 + "'",
    "experts.sh": RUN + "--num-experts 1000000000000000000",
    "heads.sh": RUN.replace("heads 4", "heads 2048"),
    "narrow.sh": RUN.replace("size 64", "size 16") + "--swiglu",
    "both.sh": RUN + "--fp16",
    "two_batches.sh": RUN + "--global-batch-size 8 --step-batch-size-schedule '0:8 1B:16'",
    "both.json": '{"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}}',
    "batches.json": '{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2, '
    '"bf16": {"enabled": true}}',
}
READ = {
    "words.sh": RUN + " ".join(f"--k{i} 1" for i in range(5_000)),
    "power.sh": "X=$((9**9**9**9)) Y=$((1<<99999999))\n" + RUN,
    "devices.sh": "source /dev/zero\n. /proc/self/mem\nsource ../../../etc/passwd\n" + RUN,
}


def timed_read(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content)
    begun = time.process_time()
    try:
        read_launch(path, load_config("llama3-8b"))
        said = ""
    except AtollError as error:
        said = str(error)
    assert time.process_time() - begun < MOST_S
    assert "\n" not in said and len(said) < 500
    return said


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    assert timed_read(tmp_path, name, REFUSED[name])


@pytest.mark.parametrize("name", READ)
def test_harmless_as_they_are_read(name: str, tmp_path: Path) -> None:
    assert timed_read(tmp_path, name, READ[name]) == ""


@pytest.mark.parametrize("command", ["$(touch mark)", "`touch mark`", "$(rm -rf kept)"])
def test_nothing_is_run(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept").mkdir()
    Path("run.sh").write_text(f"touch mark\nX={command}\n{RUN} --global-batch-size {command}\n")
    words = ["atoll", "check", "run.sh", "--device", "h100", "--devices", "8"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert not Path("mark").exists() and Path("kept").is_dir()
    assert capsys.readouterr().err.count("\n") == 1
