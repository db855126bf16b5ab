"""Another library's tokenizer behind our interface: from its files, in a Model, and on a canvas with special ids."""

import json

import pytest
import torch
from torch import nn

import tokenizers
from unmask import Model
from unmask.checkpoints.framed import Framed
from unmask.tokenizers import external, external_files
from unmask.tokenizers.external import ExternalTokenizer

WORDS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["the", "quick", "fox", "jump", "##s", "##ing", "over", "a", "well", "-", "known", ".", "'", "dog", "s"]
ESM = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
TEXT = "the quick brown fox jumps over the lazy dog, and é 神 again the quick fox"


def word_piece(folder, **settings) -> ExternalTokenizer:
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **settings}))
    return external_files.load(folder)


def byte_level(folder, *, as_json: bool) -> ExternalTokenizer:
    made = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator([TEXT] * 20, vocab_size=300, special_tokens=special, show_progress=False)
    if as_json:
        made.save(str(folder / "tokenizer.json"))
    else:
        made.save_model(str(folder))
    return external_files.load(folder)


def metaspace(folder) -> ExternalTokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=60,
        unk_token="<unk>",
        show_progress=False,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )
    made.train_from_iterator([TEXT] * 20, trainer)
    made.save(str(folder / "tokenizer.json"))
    return external_files.load(folder)


class Flat(nn.Module):
    """A network without an opinion, or with one on a single id; it keeps what it was shown."""

    def __init__(self, vocab: int, favourite: int | None = None) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(vocab))
        if favourite is not None:
            self.logits.data[favourite] = 50.0
        self.seen: list[torch.Tensor] = []

    def forward(self, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.seen.append(ids)
        return self.logits.expand(*rows.shape, -1)


def flat(tokenizer: ExternalTokenizer, *, favourite: int | None = None, limit: int | None = None) -> Model:
    network = Framed(
        Flat(tokenizer.vocab_size, favourite),
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.mask_id,
        special_ids=tokenizer.special_ids,
        around=tokenizer.around,
        limit=limit,
    )
    return Model(network, tokenizer, layout="rows")


class TestFiles:
    def test_word_piece(self, tmp_path):
        made = word_piece(tmp_path)
        assert made.kind == "wordpiece" and made.vocab_size == len(WORDS)
        assert (made.mask_id, made.pad_id, made.around) == (5, 0, ((3,), (4,)))
        assert made.special_ids == {0, 1, 2, 3, 4, 5} and made.mask_token == "[MASK]"
        ids = made.encode("The quick fox jumps.")
        assert [WORDS[i] for i in ids] == ["the", "quick", "fox", "jump", "##s", "."]
        assert made.decode(ids) == " the quick fox jumps."
        assert made.decode(made.encode("a well-known dog's")) == " a well-known dog's"
        assert made.encode_many(["a", ""])[0].tolist() == [WORDS.index("a")]

    def test_case_is_the_vocabularys(self, tmp_path):
        assert WORDS[word_piece(tmp_path, do_lower_case=False).encode("The")[0]] == "[UNK]"
        assert WORDS[word_piece(tmp_path, do_lower_case=None).encode("The")[0]] == "the"

    @pytest.mark.parametrize("as_json", [True, False])
    def test_byte_level_bpe(self, tmp_path, as_json):
        made = byte_level(tmp_path, as_json=as_json)
        assert made.kind == "bpe" and made.mask_token == "<mask>" and made.around == ((0,), (2,))
        assert made.special_ids == {0, 1, 2, 3, 4}
        for text in (TEXT, " the", "é 神\n  x"):
            assert made.decode(made.encode(text)) == text

    def test_metaspace(self, tmp_path):
        made = metaspace(tmp_path)
        assert made.kind == "metaspace" and made.special_ids == {0, 1, 2, 3, 4}
        assert made.decode(made.encode("the quick fox")) == " the quick fox"

    def test_an_alphabet(self, tmp_path):
        (tmp_path / "vocab.txt").write_text("\n".join(ESM))
        made = external_files.load(tmp_path)
        assert made.kind == "characters" and made.mask_id == 32 and made.around == ((0,), (2,))
        assert made.special_ids == {0, 1, 2, 3, 31, 32}
        assert made.decode(made.encode("MKV")) == "MKV"
        with pytest.raises(ValueError, match="the character 'j' at 1 is not among the tokenizer's 27: LAGV"):
            made.encode("Mj")

    def test_fairseqs_dictionary(self, tmp_path):
        (tmp_path / "dict.txt").write_text("A 12\nC 3\n")
        made = external_files.load(tmp_path)
        assert made.vocab == ("<s>", "<pad>", "</s>", "<unk>", "A", "C", "<mask>")
        assert made.encode("CA") == [5, 4] and made.mask_id == 6 and made.special_ids == {0, 1, 2, 3, 6}
        (tmp_path / "dict.txt").write_text("1532 12\n464 3\n")
        with pytest.raises(ValueError, match="its symbols are not single characters"):
            external_files.load(tmp_path)

    def test_names_come_from_the_config(self, tmp_path):
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "dog"}}))
        assert word_piece(tmp_path, cls_token="quick").around[0] == (WORDS.index("quick"),)
        assert word_piece(tmp_path).mask_id == WORDS.index("dog")

    def test_a_folder_without_one_and_damaged_files(self, tmp_path):
        assert external_files.load(tmp_path) is None
        (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
        with pytest.raises(ValueError, match="its tokenizer cannot be read"):
            external_files.load(tmp_path)
        (tmp_path / "special_tokens_map.json").write_text("[")
        with pytest.raises(ValueError, match=r"special_tokens_map\.json"):
            external_files.load(tmp_path)

    def test_pieces(self, tmp_path):
        made = word_piece(tmp_path)
        ids = [3, WORDS.index("fox"), WORDS.index("##s"), 5]
        assert made.pieces(ids, mask="?") == [b"", b" fox", b"s", b"?"]
        assert made.pieces(ids[:2], special=True) == [b"[CLS]", b" fox"]
        with pytest.raises(ValueError, match="id 5 is the mask"):
            made.decode([5])
        with pytest.raises(ValueError, match=r"id 99 is not a token of this vocabulary, 0\.\.20"):
            made.decode([99])


class TestModel:
    def test_special_ids_are_never_drawn_and_stand_around_the_canvas(self, tmp_path):
        (tmp_path / "vocab.txt").write_text("\n".join(ESM))
        model = flat(external_files.load(tmp_path))
        out = model.sample(200, length=12, seed=1, steps=3)
        assert not set(out.tokens.flatten().tolist()) & model.tokenizer.special_ids
        assert len(set(out.tokens.flatten().tolist())) == 27
        shown = model.denoiser.network.seen[0]
        assert shown.shape == (200, 14) and set(shown[:, 0].tolist()) == {0} and set(shown[:, -1].tolist()) == {2}

    def test_rows_are_those_of_the_canvas(self):
        tokenizer = external.alphabet(["<cls>", "<eos>", "<mask>", "a", "b"])

        def echo(ids, rows):  # names the token at each row, and the row
            chosen = ids.gather(1, rows)
            return torch.stack([rows, chosen, rows, rows, chosen], -1).float()

        network = Framed(echo, vocab_size=5, mask_id=2, special_ids=tokenizer.special_ids, around=((0,), (1,)))
        tokens = torch.tensor([[3, 4, 2]])
        whole, some = network(tokens), network(tokens, rows=torch.tensor([[2, 0]]))
        assert whole[0, :, 3].tolist() == [1, 2, 3] and whole[0, :, 4].tolist() == [3, 4, 2]
        assert torch.equal(some, whole[:, [2, 0]]) and bool(whole[..., :3].isneginf().all())

    def test_an_infill_keeps_what_is_visible(self, tmp_path):
        model = flat(word_piece(tmp_path))
        for text in ("The  ____ over, 神!", "____ dog.", "a fox ____"):
            visible = text.split("____")
            for made in model.infill(text, 20, seed=2).text:
                assert made.startswith(visible[0]) and made.endswith(visible[1])

    def test_a_space_before_a_blank_belongs_to_its_word(self, tmp_path):
        tokenizer = word_piece(tmp_path)
        out = flat(tokenizer).infill("the ____ over", 60, seed=3)
        first = {WORDS[i] for i in out.tokens[:, 1].tolist()}
        assert len(first) > 5 and not first & {"##s", "##ing", ".", "-", "'"}
        free = flat(tokenizer).infill("the____over", 60, seed=3)
        assert {WORDS[i] for i in free.tokens[:, 1].tolist()} & {"##s", "##ing"}
        glued = flat(tokenizer, favourite=WORDS.index("##ing")).infill("jump____.")
        assert glued.text == ["jumping."]

    def test_mask_tokens_in_the_text_are_blanks(self, tmp_path):
        model = flat(word_piece(tmp_path), favourite=WORDS.index("dog"))
        assert model.infill("the [MASK] [MASK] jumps.").text == ["the dog dog jumps."]
        assert model.infill("[MASK] jumps").text == ["dog jumps"]
        assert model.sample(length=2).text == ["dog dog"]
        assert model.sample(prompt="the", length=2).text == ["the dog"]

    def test_a_canvas_longer_than_the_network_is_reported(self):
        model = flat(external.alphabet(["<cls>", "<eos>", "<mask>", "a", "b"]), limit=6)
        assert model.length == 4 and len(model.sample().text[0]) == 4
        for run in (lambda: model.sample(length=5), lambda: model.infill("ab___")):
            with pytest.raises(ValueError, match=r"a canvas of 5 tokens: this network takes at most 4 \(6 with"):
                run()

    def test_a_bound_counts_the_text_alone(self):
        model = flat(external.alphabet(["<cls>", "<eos>", "<mask>", "a", "b"]))
        found = model.bound(["abba", "ab"], passes=2)
        assert found.nats.tolist() == pytest.approx([4 * 0.6931471805599453, 2 * 0.6931471805599453])

    def test_what_does_not_belong_together_is_refused(self):
        tokenizer = external.alphabet(["<mask>", "a", "b"])
        small = Framed(Flat(2), vocab_size=2, mask_id=0)
        with pytest.raises(ValueError, match="knows 2 ids and the mask 0, and the tokenizer 3 ids"):
            Model(small, tokenizer)
        with pytest.raises(ValueError, match="do not belong together"):
            Model(Framed(Flat(3), vocab_size=3, mask_id=2), tokenizer)
        with pytest.raises(ValueError, match=r"special ids must be in 0\.\.2, got 0\.\.7"):
            Framed(Flat(3), vocab_size=3, mask_id=0, special_ids=[7])
