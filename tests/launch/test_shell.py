"""Scripts are followed as bash would, without running them; what only a running shell could know is named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ckpt_tools.launch.shell.lexer import ScriptError
from ckpt_tools.launch.shell.script import Script, launch_command, read_script, read_words

# Every script ends in a command `python3 train.py ...`; bash itself says what its words are.
FOLLOWED = {
    "quotes": r"""python3 train.py --a 'one two' --b "x y"z --c \$HOME --d "a\"b" --e 'it'"'"'s' --f "" --g $'q' """,
    "lists": 'A=(--x 1\n  # --not this\n  --y "2 3"   # nor this\n)\nA+=(--z)\npython3 train.py "${A[@]}" ${A[@]} --n ${#A[@]}',
    "empty list": 'A=(\n  # nothing\n)\npython3 train.py --a "${A[@]}" ${A[@]} pre"${A[@]}"post --b',
    "list inside a word": 'A=(1 2 3)\npython3 train.py --a x"${A[@]}"y x${A[@]}y "${A[*]}" ${A[1]} ${A[0]}',
    "default": 'python3 train.py --a ${NOT_SET:-5} --b "${NOT_SET:-x y}" --c ${NOT_SET-} --d ${NOT_SET:+no}'
    ' --e "${NOT_SET:-$((2 * 3))}"',
    "set beats default": "N=7\npython3 train.py --a ${N:-5} --b ${N:+yes} --c ${N-3}",
    "split": 'ALL="--a 1  --b 2"\npython3 train.py $ALL "$ALL" x${ALL}y',
    "arithmetic": "A=3\nB=89\npython3 train.py --n $((A + B)) --m $(( (A*B - 1) / 2 % 7 ))"
    " --k $(( A > 2 && B != 3 )) --j $((-7 / 2))",
    "unquoted pattern": "A=3\nB=4\npython3 train.py --f [0]*$A+[1]*$B",
    "counting loop": "x=()\nfor ((i=0; i<4; i++)); do\n  if (( i < 2 )); then x+=(0); else x+=(1); fi\ndone\n"
    "python3 train.py --f ${x[@]}",
    "loop over words": 'L=(a b)\nfor w in "${L[@]}" c; do ARGS+=(--w $w); done\npython3 train.py "${ARGS[@]}"',
    "joined": """x=(0 1 1)\nprintf -v P "[%s]" "$(IFS=', '; echo "${x[*]}")"\npython3 train.py --p "$P" --q $P""",
    "printf": "printf -v P '%s-%d' a 3\npython3 train.py --p $P",
    "sequence": "python3 train.py --bs 1 2 $(seq 16 8 40) $(seq 3) $(seq 2 4)",
    "echo": "A=5\npython3 train.py $(echo $A --b) `echo $A`",
    "continuation": "python3 train.py \\\n  --a 1 \\\n  --b \\\n  2",
    "comment in the middle": "python3 train.py --a 1 --b#c # --d\n",
    "removed ends": "P=/x/model/\npython3 train.py --p ${P%/} ${P#/x} ${P%%/}",
    "here-document": "cat > /dev/null <<EOF\nA=(never (\nEOF\ncat > /dev/null <<'E2'\n\"\nE2\npython3 train.py --a",
    "redirections": "python3 train.py --a 1 2>/dev/null --b >/dev/null",
    "logical": "export C=4 D\ntrue && python3 train.py --c $C || exit 1",
    "equals": "python3 train.py --a=1 --b='x y'",
    "appended text": 'A=x\nA+=y\npython3 train.py --a "$A"',
    "functions and blocks": "f() { echo hi; }\nfunction g { echo ho; }\nwhile false; do echo; done\npython3 train.py --a",
    "case": "case x in\n  a|b) echo 1 ;;\n  *) echo 2 ;;\nesac\npython3 train.py --a",
    "else of a computed condition": "N=3\nif (( N > 5 )); then X=(1); elif (( N == 3 )); then X=(2); else X=(3); fi\n"
    "python3 train.py --x ${X[@]}",
    "submitted": 'ray() { shift 3; "$@"; }\nray job submit -- python3 train.py --a 1',
    "own folder": 'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\npython3 train.py --here $HERE',
    "own folder, above": 'HERE="$(cd "$(dirname "$0")/.." && pwd)"\npython3 train.py --here $HERE',
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the judge")
@pytest.mark.parametrize("name", FOLLOWED)
def test_the_words_are_those_of_bash(name: str, tmp_path: Path) -> None:
    script, out = tmp_path / "run.sh", tmp_path / "words"
    script.write_text(f"python3() {{ shift; printf '%s\\0' \"$@\" > {out}; }}\n{FOLLOWED[name]}\n")
    subprocess.run(["bash", str(script)], check=True, capture_output=True, cwd=tmp_path)
    bash = out.read_text().split("\0")[:-1]
    program, words = launch_command(read(script.read_text(), tmp_path / "run.sh"))
    assert program == "train.py"
    assert [word.value for word in words] == bash
    assert not any(word.unknown for word in words)


def read(text: str, path: Path, **given: str) -> Script:
    path.write_text(text)
    return read_script(path, given)


UNKNOWN = {
    "variable of the environment": ("python3 train.py --a $BASE/x --b", "${BASE}/x", "BASE is not set"),
    "either": (
        "true && X=2 || X=3\npython3 train.py --a $X",
        "${X}",
        "X is set under a condition that is not evaluated (line 1)",
    ),
    "command": ("X=$(mktemp)\npython3 train.py --a $X", "$(mktemp)", "$(mktemp) would have to be run"),
    "condition": (
        'if [ "$N" -gt 0 ]; then X=1; else X=0; fi\npython3 train.py --a $X',
        "${X}",
        "X is set under a condition that is not evaluated (line 1)",
    ),
    "read": ("read X\npython3 train.py --a $X", "${X}", "X is set by read (line 1)"),
    "while": (
        "while f; do X=1; done\npython3 train.py --a $X",
        "${X}",
        "X is set inside a block that is not followed (line 1)",
    ),
    "loop without end": (
        "for ((i=0; i<9; i=i)); do X=1; done\npython3 train.py --a $X",
        "${X}",
        "X is set inside a loop that is not followed (line 1)",
    ),
    "number": ("X=abc\npython3 train.py --a $((X + 1))", "$((X + 1))", "X is 'abc', not a number"),
    "unset number": ("python3 train.py --a $((N + 1))", "$((N + 1))", "N is not set"),
    "power": ("python3 train.py --a $((9**9**9**9))", "$((9**9**9**9))", "((9**9**9**9)) is not understood"),
    "must be set": ("python3 train.py --a ${N:?}", "${N:?}", "N is not set"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_stays_as_written_with_its_reason(name: str, tmp_path: Path) -> None:
    text, written, why = UNKNOWN[name]
    _, words = launch_command(read(text, tmp_path / "run.sh"))
    (unknown,) = [word for word in words if word.unknown]
    assert (unknown.value, unknown.unknown) == (written, (why,))


def test_variables_from_outside(tmp_path: Path) -> None:
    text = "N=${N:-1}\npython3 train.py --a $BASE/x --n $N"
    _, words = launch_command(read(text, tmp_path / "run.sh", BASE="/data", N="4"))
    assert [word.value for word in words] == ["--a", "/data/x", "--n", "4"]


def test_a_word_says_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "model.sh").write_text("\n\nM=(\n  --a 1\n)\n")
    _, words = launch_command(
        read('source "$(dirname "$0")/model.sh"\npython3 train.py ${M[@]} --b', tmp_path / "run.sh")
    )
    assert [word.where for word in words] == ["model.sh:4", "model.sh:4", "run.sh:2"]


def test_a_list_that_a_condition_may_change_is_a_doubt(tmp_path: Path) -> None:
    script = read('A=(--x)\nif [ -n "$Y" ]; then\n  A+=(--y)\nfi\npython3 train.py ${A[@]}', tmp_path / "run.sh")
    (doubt,) = script.doubts
    assert doubt.where.endswith("run.sh:3")
    assert doubt.what == "A may change under a condition that is not evaluated (line 2)"


def test_a_sourced_file_that_is_not_there(tmp_path: Path) -> None:
    script = read("source models/x.sh\npython3 train.py ${M[@]} --b", tmp_path / "run.sh")
    _, words = launch_command(script)
    assert words[0].unknown == ("M is not set, and a sourced file was not read",)
    assert [doubt.what for doubt in script.doubts] == [
        f"{tmp_path}/models/x.sh is not there, so nothing of it is known"
    ]


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    touch = f"touch {witness}"
    text = f"{touch}\nX=$({touch})\nY=`{touch}`\n$({touch})\npython3 train.py --a $((X[$({touch})])) ${{Z:-$({touch})}}"
    launch_command(read(text, tmp_path / "run.sh"))
    assert not witness.exists()


def test_the_last_program_counts(tmp_path: Path) -> None:
    text = "python3 convert.py --a 1\npython3 train.py --b 2\necho done.py\n"
    program, words = launch_command(read(text, tmp_path / "run.sh"))
    assert (program, [word.value for word in words]) == ("train.py", ["--b", "2"])


def test_a_server_that_is_started_as_a_module(tmp_path: Path) -> None:
    program, words = launch_command(read("python -m sglang.launch_server --tp 8", tmp_path / "run.sh"))
    assert (program, len(words)) == ("sglang.launch_server", 2)


def test_lists_alone(tmp_path: Path) -> None:
    """A model script has no command: its lists are what it says."""
    program, words = launch_command(read("N=(1 2)\nM=(--a 1)\nK=(--b)", tmp_path / "m.sh"))
    assert (program, [word.value for word in words]) == ("", ["--a", "1", "--b"])


@pytest.mark.parametrize(
    "text",
    [
        "A=(--x\n",
        'echo "x',
        "echo 'x",
        "echo ${x",
        "if true; then\n",
        "for x in 1; do\n",
        "fi\n",
        "A=(a | b)\n",
        "echo $((1 + 2\n",
    ],
)
def test_what_bash_refuses_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ScriptError):
        read(text, tmp_path / "run.sh")
    if shutil.which("bash"):
        assert subprocess.run(["bash", "-n", str(tmp_path / "run.sh")], capture_output=True, check=False).returncode


def test_files_that_source_each_other(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="without end"):
        read("source run.sh", tmp_path / "run.sh")


def test_a_flat_list() -> None:
    words = read_words("--a 1 --b 'x y'\n  --c [0]*2")
    assert [word.value for word in words] == ["--a", "1", "--b", "x y", "--c", "[0]*2"]


PREFIXED = {
    "a command": 'TP=1\nTP=8 env true\npython3 train.py --tp $TP "${N:-none}"',
    "its own words": "TP=1\nTP=8 python3 train.py --tp $TP",
    "a command that expands to nothing": "EMPTY=\nTP=1\nTP=8 $EMPTY\npython3 train.py --tp $TP",
    "a sourced file": "TP=1\nTP=8 source ./more.sh\npython3 train.py --tp $TP $SEEN $N",
    "a sourced file, of a new name": "NEW=8 . ./more.sh\npython3 train.py --new ${NEW:-none} $N",
    "under a condition": "TP=1\ntrue && TP=8 env true\npython3 train.py --tp $TP",
    "in a loop": "TP=1\nwhile false; do TP=8 env true; done\npython3 train.py --tp $TP",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the judge")
@pytest.mark.parametrize("name", PREFIXED)
def test_a_value_for_one_command(name: str, tmp_path: Path) -> None:
    (tmp_path / "more.sh").write_text("SEEN=$TP\nN=3\n")
    out = tmp_path / "words"
    text = f"python3() {{ shift; printf '%s\\0' \"$@\" > {out}; }}\n{PREFIXED[name]}\n"
    subprocess.run(["bash", "-c", text], check=True, capture_output=True, cwd=tmp_path)
    _, words = launch_command(read(text, tmp_path / "run.sh"))
    assert [word.value for word in words] == out.read_text().split("\0")[:-1]
