import io
from itertools import pairwise

import pytest
import torch

import unmask
from tests.small_models import TOKENIZERS, network
from unmask import Model
from unmask.cli import view as terminal
from unmask.cli.view import (
    END,
    FOG,
    GIVEN,
    NEW,
    CanvasView,
    duration,
    lines_of,
    picture,
    printable,
    shade,
    square,
    view,
)

pytest.importorskip("rich")

from rich.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(made, width=80, height=24):
    """The view as plain lines."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False, highlight=False)
    console.print(made.render(width, height))
    return console.file.getvalue().splitlines()


def filling(kind, *, num=1, length=24, **options):
    """A view before, while and after a model fills its canvas."""
    model = Model(network(TOKENIZERS[kind], length=length), TOKENIZERS[kind])
    mask_id = model.denoiser.mask_id
    made = CanvasView(TOKENIZERS[kind], torch.full((num, length), mask_id), mask_id, width=model.rows.token_width)
    yield model, made, None
    out = model.sample(num, seed=1, **options)
    for step in out.trace:
        made(step)
        yield model, made, step
    assert torch.equal(made.tokens, out.tokens)


def test_a_canvas_of_characters_stands_still_while_it_fills():
    for _, made, step in filling("characters"):
        lines = shown(made)
        ids = made.tokens[0].tolist()
        mask_id = made.mask_id
        expected = "".join(
            FOG if i == mask_id else END if i == made.tokenizer.eos_id else made.tokenizer.vocab[i] for i in ids
        )
        assert "\n".join(lines[:-2]).rstrip() == expected.rstrip()
        if step is not None:
            assert f"call {step.calls}/24" in lines[-1] and f"tau {float(step.tau.min()):.3f}" in lines[-1]
            assert "elapsed" in lines[-1] and "left" in lines[-1]


def test_guesses_are_ghosts_and_tokens_are_counted():
    ghosts = 0
    for _, made, step in filling("characters", ahead=6):
        if step is None:
            continue
        guesses = {p: i for p, i in step.guessed[0].tolist() if p >= 0}
        assert all(int(made.tokens[0, p]) == made.mask_id for p in guesses)
        styles = [made._style(p, i) for p, i in enumerate(made.tokens[0].tolist())]
        assert [p for p, style in enumerate(styles) if style == terminal.GUESS] == sorted(guesses)
        drawn = "".join(text for text, _ in made.spans())
        assert drawn.count(FOG) == int((made.tokens == made.mask_id).sum()) - len(guesses)
        filled = int((made.tokens != made.mask_id).sum())
        assert f"call {step.calls}, token {filled}/24" in shown(made)[-1]
        ghosts += len(guesses)
    assert ghosts


def test_what_is_new_is_coloured_and_what_was_given_is_not():
    model = Model(network(TOKENIZERS["characters"]), TOKENIZERS["characters"])
    ids = model.rows.blanks("the ____ earth").ids
    made = CanvasView(model.tokenizer, torch.tensor([ids]), model.denoiser.mask_id)
    assert {style for text, style in made.spans() if text.strip()} == {GIVEN, terminal.BLANK}
    before = set()
    for step in model.infill("the ____ earth", seed=1).trace:
        made(step)
        styles = [style for text, style in made.spans() if text]
        assert styles.count(NEW) == 1
        before.add(styles.index(NEW))
    assert before == set(range(5, 9))


def test_characters_of_several_bytes_appear_when_they_are_whole():
    tokenizer = TOKENIZERS["bytes"]
    mask_id = tokenizer.vocab_size
    canvas = torch.tensor([[*tokenizer.encode("a神b")[:3], mask_id, ord("b")]])
    made = CanvasView(tokenizer, canvas, mask_id)
    assert "".join(text for text, _ in made.spans()) == f"a\ufffd{FOG}b"
    made.tokens[0, 3] = tokenizer.encode("神")[2]
    assert "".join(text for text, _ in made.spans()) == "a神b"


def test_a_long_canvas_is_cut_to_the_part_that_fits():
    tokenizer = TOKENIZERS["bpe"]
    made = CanvasView(tokenizer, torch.full((3, 1024), tokenizer.vocab_size), tokenizer.vocab_size, width=4.0)
    for width, height in ((80, 24), (40, 10), (200, 60), (20, 3), (1, 1)):
        lines = shown(made, width, height)
        assert len(lines) <= max(height, 4) and all(len(line) <= width for line in lines)
    lines = shown(made, 80, 24)
    assert lines[0] == FOG * 79 and len(lines) == 23
    assert lines[-1] == "the first 20 lines of 1,024 tokens; sequence 1 of 3; 0 done"
    assert lines[-2].startswith("call 0/?")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four", ["one two ", "three four"]),
        ("one two thr four", ["one two ", "thr four"]),
        ("one two t four", ["one two t ", "four"]),
        ("one twothree", ["one twothr", "ee"]),
        (FOG * 15, [FOG * 10, FOG * 5]),
        ("a\nb", ["a", "b"]),
    ],
)
def test_a_line_ends_between_words_unless_they_are_long(text, lines):
    spans = [(text[:9], "x"), (text[9:], "y")]
    drawn, cut = lines_of(spans, 10, 3, words=True)
    assert ["".join(part for part, _ in line) for line in drawn] == lines and not cut
    assert all(a[1] != b[1] for line in drawn for a, b in pairwise(line))


def test_wide_characters_are_not_cut_in_two():
    tokenizer = TOKENIZERS["bytes"]
    canvas = torch.tensor([tokenizer.encode("神" * 10)])
    assert shown(CanvasView(tokenizer, canvas, 300), width=8, height=24)[:4] == ["神" * 3] * 3 + ["神"]


def test_the_rest_of_the_sequences_is_counted():
    counts = []
    for _, made, step in filling("characters", num=5, steps=3, batch=2):
        if step is not None:
            counts.append(int(shown(made)[-1].split("; ")[-1].removesuffix(" done")))
    assert counts[-1] == 5 and counts == sorted(counts) and len(counts) == 9


def test_an_image_is_drawn_in_shaded_blocks():
    assert square(64) == 8 and square(63) is None and square(1) is None
    assert [shade(level, 17) for level in (0, 4, 8, 12, 16)] == ["  ", "░░", "▒▒", "▓▓", "██"]
    assert picture([0, 16, 8, 0], 17) == "  ██\n▒▒"
    assert picture([0, 1, 2], 17) is None
    tokenizer = TOKENIZERS["levels"]
    canvas = torch.full((1, 64), 16)
    canvas[0, 9] = tokenizer.vocab_size
    lines = shown(CanvasView(tokenizer, canvas, tokenizer.vocab_size))
    assert lines[:8] == ["█" * 16, "██··" + "█" * 12, *["█" * 16] * 6]
    not_square = CanvasView(tokenizer, torch.tensor([[3, tokenizer.vocab_size, 12]]), tokenizer.vocab_size)
    assert shown(not_square)[0].split() == ["3", FOG, "12"]


def test_nothing_that_a_model_writes_can_move_the_cursor():
    assert printable("a\x1b[2Jb\r\x07\x9b\tc\nd") == "a\ufffd[2Jb\ufffd\ufffd\ufffd    c\nd"
    tokenizer = TOKENIZERS["bytes"]
    made = CanvasView(tokenizer, torch.arange(256).unsqueeze(0), 300)
    assert all(character == "\n" or character >= " " for text, _ in made.spans() for character in text)


def test_durations():
    assert [duration(s) for s in (0, 0.6, 61, 3725)] == ["0:00", "0:01", "1:01", "1:02:05"]


def test_algorithm_4_may_mask_again():
    masked = [
        int((made.tokens == made.mask_id).sum())
        for _, made, _ in filling("characters", steps=6, predict=unmask.predict.correct)
    ]
    assert masked[0] == 24 and masked[-1] == 0


def test_off_a_terminal_nothing_is_drawn():
    tokenizer = TOKENIZERS["bpe"]
    stream = io.StringIO()
    with view(tokenizer, torch.full((1, 4), 300), 300, stream=stream) as show:
        for step in unmask.sample(network(tokenizer), length=4).trace:
            show(step)
    assert stream.getvalue() == ""


def test_a_terminal_is_left_as_it_was_found(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    tokenizer = TOKENIZERS["characters"]
    for with_canvas in (True, False):
        stream = Terminal()
        canvas = torch.full((1, 4), tokenizer.vocab_size)
        with view(tokenizer, canvas, tokenizer.vocab_size, stream=stream, with_canvas=with_canvas) as show:
            for step in unmask.sample(network(tokenizer), length=4).trace:
                show(step)
        written = stream.getvalue()
        assert written.startswith("\x1b[?25l") and "\x1b[?25h" in written  # the cursor hides and comes back
        assert "\x1b[2J" not in written and "call 4/4" in written
        assert ("\n\ncall" in written) == with_canvas
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with view(tokenizer, canvas, tokenizer.vocab_size, stream=stream):
        pass
    assert stream.getvalue() == ""
