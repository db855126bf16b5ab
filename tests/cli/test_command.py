"""What a verb's command line shows and understands: help, examples, exit codes, completion."""

import importlib
import re
import shlex
import subprocess
import sys

import pytest

from unmask.cli import VERBS, main
from unmask.cli.command import metavar
from unmask.cli.flags import options, wrong


def command(verb):
    return importlib.import_module(f"unmask.cli.{verb}").COMMAND


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_examples_that_parse_and_no_none(verb, capsys):
    with pytest.raises(SystemExit) as left:
        command(verb).parsed(["--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert "None" not in shown and "(default: )" not in shown
    examples = re.findall(rf"^  (unmask {verb}\b.*)$", shown, re.MULTILINE)
    assert 2 <= len(examples) <= 3
    for example in examples:
        command(verb).parsed(shlex.split(example)[2:])


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_explained_and_a_count_of_sequences_is_called_number(verb):
    for action in command(verb).parser()._actions:
        assert action.help and len(action.help) > 5, action.option_strings
        assert not {"--num", "--sequences", "--count"} & set(action.option_strings)


@pytest.mark.parametrize(
    ("hint", "shown"), [(int | None, "INT"), (bool | None, "{True,False}"), (float | str, "FLOAT|STR")]
)
def test_metavar(hint, shown):
    assert metavar(hint) == shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sample", "KJV", "--steps", "2"], "there is no model 'KJV': did you mean 'kjv'?"),
        (["sample", "--watch", "nowhere.jsonl"], "nowhere.jsonl: there is no such file or folder"),
        (["judge", "nowhere.txt", "--judge", "kjv-ar"], "nowhere.txt: there is no such file or folder"),
        (["convert", "nowhere.ckpt", "out"], "nowhere.ckpt"),
        (["evaluate", "kjv", "nowhere.txt"], "nowhere.txt"),
        (["serve", "kjv", "--token-file", "nowhere"], "nowhere: there is no such file or folder"),
        (["frontier", "--out", "x"], "name at least one model"),
        (["train", "kjv", "--steps", "0"], "unmask train: steps must be at least 1, got 0"),
        (["serve", "kjv", "--max-batch", "0"], "unmask serve: max_batch must be at least 1, got 0"),
        (
            ["sample", "kjv", "--particles", "4"],
            "--particles 4: a guide weighs them, so give --contains, --pattern or --json-schema",
        ),
        (["audit", "nothing"], "neither package.module:name nor a built-in subject"),
        (["train", "nowhere.txt"], "nowhere.txt"),
        (["prepare", "nowhere.txt", "out"], "nowhere.txt"),
        (["steps", "kjv", "nowhere.txt"], "nowhere.txt"),
        (["inspect", "nowhere"], "nowhere"),
        (["infill", "kjv", "no blanks"], "blank"),
        (["--completion", "tcsh"], "--completion knows bash, zsh, fish"),
        (["trian"], "did you mean 'train'?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as left:
        code = left.code
    assert code == 2
    out, err = capfd.readouterr()
    assert said in err and "Errno" not in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_the_first_words_come_without_torch(arguments, tmp_path):
    told = f"import sys; from unmask.cli import main; main({arguments}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_are_read_from_the_source_as_the_parser_has_them(verb):
    command = importlib.import_module(f"unmask.cli.{verb}").COMMAND
    strings = [one for action in command.parser()._actions for one in action.option_strings if one.startswith("--")]
    names = {one.removeprefix("--").replace("-", "_") for one in strings} - {"help"}
    read = set(options(verb)) - set(command.positional)
    assert {one for one in names if one.removeprefix("no_") not in read} == set()
    assert {one for one in read if one not in names and f"no_{one}" not in names} == set()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sample", "--ahed", "8"], "there is no option --ahed; did you mean --ahead? unmask sample --help lists them"),
        (["sample", "--xyzzy"], "there is no option --xyzzy; unmask sample --help lists them"),
        (["train", "x.txt", "--minutes", "four"], "--minutes takes a number, got 'four'"),
        (["sample", "--seed=x"], "--seed takes a whole number, got 'x'"),
    ],
)
def test_a_misspelt_option_is_refused_before_torch_is_imported(arguments, says):
    told = f"import sys; from unmask.cli import main\ntry: main({arguments})\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "False\n"
    assert done.stderr == f"unmask {arguments[0]}: {says}\n"


@pytest.mark.parametrize("rest", [["--steps", "8"], ["--ahed", "--help"], ["--seed", "None"], ["--", "--x"], []])
def test_what_the_parser_takes_or_answers_is_left_to_it(rest):
    assert wrong("sample", rest) is None


COMPLETE = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={place}
_unmask
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def completing(tmp_path_factory):
    from unmask.cli.completion import script

    path = tmp_path_factory.mktemp("shell") / "unmask.bash"
    path.write_text(script("bash"))

    def completed(*words):
        told = COMPLETE.format(script=path, words=" ".join(map(shlex.quote, words)), place=len(words) - 1)
        done = subprocess.run(["bash", "-c", told], capture_output=True, text=True, check=True)
        return done.stdout.split()

    return completed


def test_bash_completes_verbs_options_values_and_models(completing):
    assert completing("unmask", "sa") == ["sample"]
    assert completing("unmask", "evaluate", "kjv", "--num") == ["--number"]
    assert completing("unmask", "sample", "--draw", "gum") == ["gumbel-float64", "gumbel-float32"][::-1]
    assert completing("unmask", "sample", "dig") == ["digits"]
    assert completing("unmask", "--completion", "z") == ["zsh"]
    assert completing("unmask", "train", "book.txt", "--objective", "maskg") == ["maskgit"]


def test_fish_completes_every_verb_and_option():
    from unmask.cli.completion import script

    lines = script("fish").splitlines()
    assert all(any(f"-a {verb} " in line for line in lines) for verb in VERBS)
    assert any("seen_subcommand_from evaluate" in line and "-l number " in line for line in lines)
