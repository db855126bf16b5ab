import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unmask
from tests.small_models import LENGTH, TOKENIZERS, network
from unmask import Model
from unmask.networks.self_conditioned import SelfConditioned
from unmask.tokenizers.vocabularies import characters

TEXT_KINDS = ("bpe", "characters", "bytes")
MODELS = {
    kind: Model(network(tokenizer), tokenizer, layout="rows" if kind in ("smiles", "levels") else "wrapped")
    for kind, tokenizer in TOKENIZERS.items()
}
CAUSAL = Model(network(TOKENIZERS["bpe"], causal=True), TOKENIZERS["bpe"])


def eos(kind):
    return TOKENIZERS[kind].eos_id


class TestSample:
    def test_it_is_unmask_sample_with_text(self):
        model = MODELS["bpe"]
        out = model.sample(3, seed=5, batch=2, temperature=0.9, top_k=50)
        same = unmask.sample(model.denoiser, num=3, seed=5, temperature=0.9, top_k=50)
        for name in ("tokens", "nfe", "ncs"):
            assert torch.equal(getattr(out, name), getattr(same, name))
        assert out.text == [model.decode(row) for row in out.tokens.tolist()] and len(set(out.text)) == 3
        assert out.tokens.shape == (3, LENGTH) and out.calls == len(out.trace) and out.seconds > 0

    def test_steps_alone_mean_parallel_decoding(self):
        model = MODELS["characters"]
        out = model.sample(2, steps=6, seed=1)
        same = unmask.sample(model.denoiser, num=2, plan=unmask.plan.parallel, steps=6, seed=1)
        assert torch.equal(out.tokens, same.tokens) and out.calls == 6
        assert model.sample(2, seed=1).calls == LENGTH
        ancestral = model.sample(2, steps=6, seed=1, plan=unmask.plan.ancestral)
        same = unmask.sample(model.denoiser, num=2, plan=unmask.plan.ancestral, steps=6, seed=1)
        assert torch.equal(ancestral.tokens, same.tokens)

    def test_the_schedule_is_the_models(self):
        model = Model(MODELS["bytes"].denoiser, TOKENIZERS["bytes"], unmask.Cosine())
        same = unmask.sample(model.denoiser, schedule=unmask.Cosine(), seed=3)
        assert torch.equal(model.sample(seed=3).trace[0].tau, same.trace[0].tau)
        assert not torch.equal(model.sample(seed=3, schedule=unmask.Linear()).trace[0].tau, same.trace[0].tau)

    @pytest.mark.parametrize("kind", TEXT_KINDS)
    @pytest.mark.parametrize("prompt", ["In the", "And the earth ", "神 é"])
    def test_a_prompt_begins_every_text_between_two_eos(self, kind, prompt):
        model = MODELS[kind]
        out = model.sample(3, prompt=prompt, seed=2)
        assert all(text.startswith(prompt) for text in out.text)
        assert out.tokens.shape == (3, LENGTH)
        assert bool((out.tokens[:, [0, -1]] == eos(kind)).all())
        start = model.rows.prompted(prompt).holes[0][0]
        assert out.tokens[0, 1:start].tolist() == TOKENIZERS[kind].encode(prompt.rstrip() if kind == "bpe" else prompt)

    def test_a_row_begins_with_its_prompt_and_ends_at_eos(self):
        model = MODELS["smiles"]
        out = model.sample(20, prompt="CC", seed=1)
        assert all(text.startswith("CC") for text in out.text)
        for row, text in zip(out.tokens.tolist(), out.text, strict=True):
            end = row.index(eos("smiles")) if eos("smiles") in row else len(row)
            assert text == "".join(TOKENIZERS["smiles"].vocab[i] for i in row[:end])
        assert len({len(text) for text in out.text}) > 1

    def test_a_prompt_that_does_not_fit_is_refused(self):
        model = MODELS["characters"]
        assert model.sample(prompt="a" * 5, length=8).tokens.shape == (1, 8)
        with pytest.raises(ValueError, match="8 tokens with its eos: length=8 has no room"):
            model.sample(prompt="a" * 6, length=8)
        with pytest.raises(ValueError, match="a prompt or a canvas"):
            model.sample(prompt="a", canvas=torch.zeros(1, 4, dtype=torch.int64))

    def test_a_canvas_is_filled(self):
        model = MODELS["characters"]
        canvas = torch.tensor([[*TOKENIZERS["characters"].encode("the"), model.denoiser.mask_id]])
        out = model.sample(canvas=canvas, seed=1)
        assert out.text[0].startswith("the") and out.calls == 1

    def test_any_denoiser_will_do(self):
        chain = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        oracle = unmask.MarkovOracle(torch.tensor([0.5, 0.5], dtype=torch.float64), chain)
        model = Model(oracle, unmask.model.Tokenizer("characters", ("a", "b")))
        assert set(model.sample(20, length=6).text) == {"ababab", "bababa"}
        assert model.infill("a___a___").text == ["abababab"]
        with pytest.raises(ValueError, match="give length"):
            model.sample(prompt="a")

    def test_what_does_not_belong_together_is_refused(self):
        with pytest.raises(ValueError, match="they do not belong together"):
            Model(MODELS["bytes"].denoiser, TOKENIZERS["bpe"])
        with pytest.raises(ValueError, match="layout must be one of wrapped, rows"):
            Model(MODELS["bytes"].denoiser, TOKENIZERS["bytes"], layout="columns")
        with pytest.raises(FrozenInstanceError):
            MODELS["bytes"].name = "x"
        with pytest.raises(TypeError, match="stpes"):
            MODELS["bytes"].sample(stpes=4)


class TestDecode:
    def test_wrapped_documents_are_lines(self):
        model, end = MODELS["characters"], eos("characters")
        a, b = (TOKENIZERS["characters"].encode(c)[0] for c in "ab")
        assert model.decode([end, a, b, end, end, b, end]) == "ab\nb"
        assert model.decode([end, end]) == "" and model.decode([]) == ""

    def test_an_end_in_an_alphabet_without_new_lines_is_shown_as_one(self):
        tokenizer = characters("ab", eos=True)
        model = Model(network(tokenizer), tokenizer)
        assert model.decode([2, 0, 1, 2, 2, 1, 2]) == "ab <eos> b" and model.decode([2, 0, 2]) == "a"

    def test_rows_end_at_their_first_eos(self):
        model, end = MODELS["smiles"], eos("smiles")
        c = TOKENIZERS["smiles"].encode("C")[0]
        assert model.decode([c, c, end, c, end]) == "CC"
        assert model.decode([end, c]) == ""

    def test_levels_are_numbers(self):
        assert MODELS["levels"].decode([0, 16, 3]) == "0 16 3"


@st.composite
def blanked(draw):
    """A text with blanks, and its visible pieces."""
    visible = st.text(alphabet="abc he\u00e9\u795e .,\n", max_size=8)
    pieces = draw(st.lists(visible, min_size=2, max_size=4))
    text = pieces[0]
    for piece in pieces[1:]:
        text += "_" * draw(st.integers(3, 9)) + piece  # fewer inside a word are text
    return text, pieces


class TestInfill:
    @pytest.mark.parametrize("kind", TEXT_KINDS)
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(case=blanked(), seed=st.integers(0, 1000))
    def test_visible_text_comes_out_byte_for_byte(self, kind, case, seed):
        text, pieces = case
        model = MODELS[kind]
        blanks = model.rows.blanks(text)
        out = model.infill(text, 2, steps=3, seed=seed)
        for made, ids in zip(out.text, out.tokens.tolist(), strict=True):
            encoded, at = made.encode(), 0
            assert encoded.startswith(pieces[0].encode()) and encoded.endswith(pieces[-1].encode())
            for piece in pieces:
                at = encoded.index(piece.encode(), at) + len(piece.encode())
            for given_id, id_now in zip(blanks.ids, ids, strict=True):
                assert given_id in (id_now, model.denoiser.mask_id)
            assert model.denoiser.mask_id not in ids
            if eos(kind) not in ids[1:-1]:
                assert TOKENIZERS[kind].decode(ids) == made  # what is shown is what the tokens say

    @pytest.mark.parametrize("kind", TEXT_KINDS)
    def test_the_canvas_is_the_text_between_two_eos(self, kind):
        ids = MODELS[kind].rows.blanks("the ____ earth").ids
        assert ids[0] == ids[-1] == eos(kind)
        holes = ids.count(MODELS[kind].denoiser.mask_id)
        assert holes == (1 if kind == "bpe" else 4)
        rest = [i for i in ids[1:-1] if i != MODELS[kind].denoiser.mask_id]
        visible = ("the", " earth") if kind == "bpe" else ("the ", " earth")
        assert rest == [i for piece in visible for i in TOKENIZERS[kind].encode(piece)]

    def test_the_size_of_a_blank_follows_the_training_data(self):
        model = Model(MODELS["bpe"].denoiser, TOKENIZERS["bpe"], characters_per_token=2.0)
        assert model.rows.blanks("the ________").ids.count(model.denoiser.mask_id) == 4
        assert MODELS["bpe"].rows.blanks("the ________").ids.count(model.denoiser.mask_id) == 2
        assert model.rows.blanks("the ░░░", "░").ids.count(model.denoiser.mask_id) == 3

    def test_a_word_of_a_bpe_brings_its_space(self):
        model = MODELS["bpe"]
        free = model.infill("the░", 40, mask_character="░", seed=1)
        assert any(not text.startswith("the ") for text in free.text)
        for options in ({}, {"steps": 2, "predict": unmask.predict.extrapolate}, {"predict": unmask.predict.correct}):
            bound = model.infill("the ░░ earth", 40, mask_character="░", seed=1, **options)
            assert all(text.startswith("the ") and text.endswith(" earth") for text in bound.text)
            first = bound.tokens[:, model.rows.blanks("the ░░ earth", "░").holes[0][0]].tolist()
            assert len(set(first)) > 1
            assert all(piece.startswith(b" ") for piece in TOKENIZERS["bpe"].pieces(first))

    def test_rows_are_padded_as_in_training(self):
        model = MODELS["smiles"]
        out = model.infill("C__O", 10, seed=1)
        assert out.tokens.shape == (10, LENGTH)
        assert bool((out.tokens[:, 4:] == eos("smiles")).all())
        assert all(text.startswith("C") and text.endswith("O") for text in out.text)

    def test_images_keep_their_visible_levels(self):
        out = MODELS["levels"].infill("1 2 ___ 16\n0_", 3, seed=1)
        for text in out.text:
            assert text.startswith("1 2 ") and " 16\n0 " in text
            assert [int(level) for level in text.split()] == out.tokens[out.text.index(text)].tolist()

    def test_sequence_i_of_a_seed_is_the_same_in_any_batch(self):
        model = MODELS["bytes"]
        whole = model.infill("a ____ b", 5, seed=9)
        assert model.infill("a ____ b", 5, seed=9, batch=2).text == whole.text
        assert model.infill("a ____ b", 2, seed=9).text == whole.text[:2]

    def test_what_cannot_be_filled_is_an_error(self):
        with pytest.raises(ValueError, match="no blank"):
            MODELS["bpe"].infill("nothing")
        with pytest.raises(ValueError, match="the character '€' at 0 is not among"):
            MODELS["characters"].infill("€ ____")


class TestLeftToRight:
    def test_it_is_unmask_sample_with_text(self):
        out = CAUSAL.sample(5, seed=4, batch=2, temperature=0.8, top_p=0.9)
        same = unmask.sample(CAUSAL.denoiser, num=5, seed=4, temperature=0.8, top_p=0.9).tokens
        assert torch.equal(out.tokens, same)
        assert out.nfe.tolist() == out.ncs.tolist() == [LENGTH] * 5
        assert out.calls == len(out.trace) == 3 * LENGTH == out.trace[0].planned
        assert out.text == [CAUSAL.decode(row) for row in same.tolist()]

    def test_its_trace_is_one_step_per_token(self):
        seen = []
        out = CAUSAL.sample(3, length=8, seed=1, callback=seen.append)
        assert len(seen) == 8 and [step.calls for step in seen] == list(range(1, 9))
        canvas = torch.full((3, 8), CAUSAL.denoiser.mask_id)
        for at, step in enumerate(out.trace):
            assert step.positions.tolist() == [[at]] * 3 and float(step.tau[0, 0]) == 1 - at / 8
            logits = CAUSAL.denoiser(canvas)[:, at].detach().double()
            expected = torch.softmax(logits, -1).gather(1, step.tokens)
            assert torch.allclose(step.probabilities, expected, atol=1e-6)
            unmask.apply(step, canvas, CAUSAL.denoiser.mask_id)
        assert torch.equal(canvas, out.tokens)

    @pytest.mark.parametrize("prompt", ["In the", "And the "])
    def test_a_prompt_is_continued(self, prompt):
        out = CAUSAL.sample(30, prompt=prompt, seed=3, top_k=2)
        assert all(text.startswith(prompt) for text in out.text) and len(set(out.text)) > 1
        assert bool((out.tokens[:, 0] == eos("bpe")).all())
        assert out.tokens.shape == (30, LENGTH)
        assert out.calls == LENGTH - 1 - len(TOKENIZERS["bpe"].encode(prompt.rstrip()))

    def test_what_has_no_meaning_is_refused(self):
        for options in ({"steps": 4}, {"plan": unmask.plan.parallel}, {"predict": unmask.predict.correct}):
            with pytest.raises(ValueError, match=f"it takes no {next(iter(options))}"):
                CAUSAL.sample(**options)
        with pytest.raises(ValueError, match="continues a text: the masked positions must come last"):
            CAUSAL.sample(canvas=torch.tensor([[CAUSAL.denoiser.mask_id, 1]]))
        with pytest.raises(ValueError, match="batch must be a whole number of at least 1"):
            CAUSAL.sample(batch=0)
        assert CAUSAL.sample(0).text == []


class TestBound:
    def test_a_text_is_scored_between_its_eos(self):
        model = MODELS["characters"]
        found = model.bound(["the earth", "and", "the heaven"], passes=4)
        rows = [[eos("characters"), *TOKENIZERS["characters"].encode(t), eos("characters")] for t in ("and",)]
        alone = model.bound(["and"], passes=4)
        same = unmask.nelbo(model.denoiser, torch.tensor(rows), passes=4)
        assert torch.equal(alone.nats, same.nats) and torch.equal(alone.errors, same.errors)
        assert found.tokens.tolist() == [11, 5, 12] and found.characters.tolist() == [9, 3, 10]
        assert found.nats_per_token == pytest.approx(float(found.nats.sum()) / 28)
        assert found.perplexity == pytest.approx(math.exp(found.nats_per_token))
        assert found.bits_per_character == pytest.approx(float(found.nats.sum()) / 22 / math.log(2))

    def test_a_long_text_is_cut_and_its_parts_added(self):
        text = "abc " * 20
        found = CAUSAL.bound([text, "the"])
        ids, body, end = TOKENIZERS["bpe"].encode(text), LENGTH - 2, eos("bpe")
        parts = [[end, *ids[i : i + body], end] for i in range(0, len(ids), body)]
        assert len(parts) > 1 and int(found.tokens[0]) == sum(map(len, parts))
        with torch.no_grad():
            exact = sum(float(unmask.objective.left_to_right(CAUSAL.denoiser, torch.tensor([part]))) for part in parts)
        assert float(found.nats[0]) == pytest.approx(exact, rel=1e-5) and found.errors.tolist() == [0.0, 0.0]

    def test_rows_are_scored_with_their_padding(self):
        found = MODELS["smiles"].bound(["CCO", "C"], passes=2)
        assert found.tokens.tolist() == [LENGTH, LENGTH] and bool((found.errors > 0).all())
        with pytest.raises(ValueError, match="a text of 24 tokens does not fit into a row of 24"):
            MODELS["smiles"].bound(["C" * 24])

    def test_a_self_conditioned_network_is_scored_with_nothing_remembered(self):
        tokenizer = TOKENIZERS["characters"]
        net = network(tokenizer, self_conditioning=True)
        with torch.no_grad():
            net.self_condition.weight.normal_()
        found = Model(net, tokenizer).bound(["and"], passes=3)
        row = torch.tensor([[tokenizer.eos_id, *tokenizer.encode("and"), tokenizer.eos_id]])
        assert torch.equal(found.nats, unmask.nelbo(SelfConditioned(net, remember=False), row, passes=3).nats)
        assert not torch.equal(found.nats, unmask.nelbo(net, row, passes=3).nats)

    def test_texts_are_a_list(self):
        for wrong in ([], "one text"):
            with pytest.raises(ValueError, match="a list of at least one text"):
                MODELS["bytes"].bound(wrong)
