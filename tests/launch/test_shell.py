"""Scripts are followed, never run: variables, defaults, arrays, conditions, files beside them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.tools.files.shell import follow_script, read_script
from atoll.tools.files.shell_tokens import UNKNOWN


def words(text: str, **environment: str) -> tuple[str, ...]:
    return follow_script(text, "run.sh", Path(), environment).commands[-1]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("TP=8\nrun --tp $TP", "8"),
        ('run --tp "${TP:-4}"', "4"),
        ("TP=\nrun --tp ${TP:-4}", "4"),
        ("TP=2\nrun --tp ${TP-4}", "2"),
        ("N=4\nrun --world $((8 * N))", "32"),
        ("N=4\nrun --world $((8 * ${N} + 1))", "33"),
        ("export TP=8; run --tp ${TP}", "8"),
        ("A='x y'\nrun \"$A\"", "x y"),
        ("run --tp \\\n  16", "16"),
        ("if [ -z $TP ]; then TP=2; else TP=4; fi\nrun $TP", "2"),
        ("N=9\nif [[ $N -gt 8 ]]; then P=a; elif [ $N = 1 ]; then P=b; else P=c; fi\nrun $P", "a"),
        ("M=small\ncase $M in\n big) S=1 ;;\n small|tiny) S=2 ;;\nesac\nrun $S", "2"),
        ("f() {\n  X=7\n}\nf\nrun $X", "7"),
        ("for g in 1 2 4; do run $g; done", "1"),
        ("cat <<EOF\nX=1 'unclosed\nEOF\nrun ok", "ok"),
        ("X=1\nsbatch <<EOF\n#SBATCH -N 2\nrun $X \\$Y\nrun $X\nEOF", "1"),
        ("X=2\nbash <<'EOF'\nX=3; run $X\nEOF\necho", "echo"),
        ('C="run 5"\nsrun -l bash -x -c "cd a; $C"', "5"),
        ("X=1 # a comment 'with a quote\nrun $X", "1"),
    ],
)
def test_the_last_word_is_what_a_shell_would_make_of_it(script: str, said: str) -> None:
    assert words(script)[-1] == said


def test_arrays_are_spread_item_by_item() -> None:
    script = 'A=(--x 1)\nA+=(--y "two words")\nB=" --z 3 "\nrun "${A[@]}" $B'
    assert words(script) == ("run", "--x", "1", "--y", "two words", "--z", "3")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('run "$@"', ("a b", "8")),
        ("run $@", ("a", "b", "8")),
        ("run ${2:-4} $#", ("8", "2")),
        ("shift\nrun $1", ("8",)),
        ('if [ "$1" = "a b" ]; then N=1; fi\nrun $N', ("1",)),
    ],
)
def test_arguments_of_the_script(script: str, said: tuple[str, ...]) -> None:
    commands = follow_script(script, "run.sh", Path(), {}, ("a b", "8")).commands
    assert commands[-1][1:] == said


def test_the_environment_can_be_given() -> None:
    assert words("run --tp ${TP:-1}", TP="8")[-1] == "8"


def test_what_the_user_says_stands_where_a_script_takes_its_own_arguments() -> None:
    script = 'SIZE=$1\nif [ "$SIZE" = 8B ]; then H=4096; fi\nrun $H'
    assert words(script, SIZE="8B")[-1] == "4096"
    assert "SIZE" in follow_script("run --h $SIZE", "run.sh", Path()).unset


def test_a_file_beside_the_script_is_sourced_and_one_elsewhere_is_not(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "common.sh").write_text("TP=8\n")
    (tmp_path / "secret.sh").write_text("TP=9\n")
    script = tmp_path / "run" / "go.sh"
    script.write_text("source common.sh\n. ../secret.sh\nrun $TP\n")
    assert read_script(script).commands[-1] == ("run", "8")


@pytest.mark.parametrize(
    "folder",
    ["$(dirname ${BASH_SOURCE[0]})", '"$(cd "$(dirname "$0")" && pwd)"', "`pwd`", '"$(pwd)"'],
)
def test_the_scripts_own_folder_is_known(folder: str, tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text("export TP=8 MORE=1\nunset MORE\n")
    script = tmp_path / "go.sh"
    script.write_text(f"source {folder}/common.sh\nOWN=2\n")
    assert read_script(script).exported == {"TP": "8"}


def test_a_sourced_file_that_is_not_there_is_noted(tmp_path: Path) -> None:
    script = tmp_path / "go.sh"
    script.write_text("source common.sh\nsource $ELSEWHERE/more.sh\nrun 1\n")
    assert read_script(script).missing == ("common.sh", "?/more.sh")


def test_what_is_not_set_is_empty() -> None:
    assert words('S=$1\nif [ "$S" == "" ]; then S=3; fi\nrun $S')[-1] == "3"


def test_what_a_wrapper_hands_to_a_shell_is_read() -> None:
    script = "O='--tp 4'\nsrun -l --nodes 2 bash -c \"python train.py ${O}\""
    assert words(script) == ("python", "train.py", "--tp", "4")


@pytest.mark.parametrize("command", ["$(touch %s)", "`touch %s`", "$(rm -rf %s)"])
def test_nothing_is_run_and_its_output_is_unknown(command: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert words(f"X={command % mark}\nrun $X")[-1] == UNKNOWN
    assert not mark.exists()


@pytest.mark.parametrize(
    "script",
    ["run 'open", 'run "open', "X=${open", "A=(1 2", "if [ 1 ]", "f() { run", "run $(open"],
)
def test_what_is_not_closed_is_a_sentence(script: str) -> None:
    with pytest.raises(AtollError, match=r"run\.sh"):
        follow_script(script, "run.sh", Path())


@pytest.mark.parametrize(
    "script",
    [
        "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "run $A",
        "f() {\n f\n}\nf",
        "A=(1)\n" + 'A+=("${A[@]}")\n' * 40,
        "((" * 5000,
        "$((" + "(" * 3000 + "1" + ")" * 3000 + "))",
    ],
    ids=["doubling", "recursion", "arrays", "brackets", "sums"],
)
def test_a_script_that_grows_without_end_is_refused_or_read_soon(script: str) -> None:
    with suppress(AtollError):
        follow_script(script, "run.sh", Path())


@given(st.text(alphabet="ab $(){}[]\"'`\\=;&|#\n<>*@-:+!if then fi", max_size=60))
@example("${a:=${a}}")
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    with suppress(AtollError):
        follow_script(text, "run.sh", Path())
