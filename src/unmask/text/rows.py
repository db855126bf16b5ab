"""Texts as rows of token ids, and back: what a model's tokenizer and layout say."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.errors import OptionError
from unmask.text.blanks import Blanks, join, spaces, split, with_mask_token
from unmask.tokenizers.external import ExternalTokenizer
from unmask.tokenizers.missing import NoTokenizer
from unmask.tokenizers.molecules import fragments, to_selfies, to_smiles
from unmask.tokenizers.tokenizer import BPE, EOS, Layout, Tokenizer

CHARACTERS_PER_TOKEN = 4.0  # for a BPE tokenizer whose folder does not say


@dataclass(frozen=True)
class TextRows:
    """How texts are laid out as rows of token ids.

    Attributes:
        tokenizer: From text to ids and back.
        layout: "wrapped" (eos, text, eos) or "rows" (a document, eos, padding).
        mask_id: The network's id of a masked position.
        vocab_size: The number of the network's ids, of which the tokenizer may know fewer.
        length: The number of tokens of a training sequence, if known.
        characters_per_token: An average over the training text, used to size blanks.
        continues: Whether the network sees only what comes before, so that nothing is given behind a prompt.
    """

    tokenizer: Tokenizer | ExternalTokenizer
    layout: Layout
    mask_id: int
    vocab_size: int
    length: int | None
    characters_per_token: float | None
    continues: bool

    @property
    def token_width(self) -> float:
        """The number of characters that one token of a blank stands for: 1, except for a BPE."""
        if self.tokenizer.kind not in BPE:
            return 1.0
        return self.characters_per_token or CHARACTERS_PER_TOKEN

    @property
    def begin(self) -> int:
        """The position of a text's first token, after what frames it."""
        return len(self.frame(0)[0])

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a text, first the one that is written."""
        eos = self.tokenizer.eos_id
        return () if eos is None else (eos, *self.tokenizer.other_ends)

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether these tokens end a row; wrapped text goes on."""
        return self.layout == "rows" and not set(self.ends).isdisjoint(ids)

    def frame(self, tokens: int) -> tuple[list[int], list[int]]:
        """The tokens before and after a text of this many tokens in the training data."""
        if self.tokenizer.frame is not None:
            return list(self.tokenizer.frame[0]), list(self.tokenizer.frame[1])
        eos = [] if self.tokenizer.eos_id is None else [self.tokenizer.eos_id]
        if self.layout == "wrapped":
            return eos, eos
        padding = max((self.length or 0) - tokens - len(eos), 0) if self.tokenizer.pad_id is not None else 0
        return [], eos + [self.tokenizer.pad_id or 0] * padding

    def split(self, text: str) -> list[list[int]]:
        """A text as sequences of at most the training length."""
        ids = self.tokenizer.encode(to_selfies(text) if self.tokenizer.kind == "selfies" else text)
        before, after = self.frame(len(ids))
        frame = len(before) + len(after)
        length = self.length or len(ids) + frame
        if self.layout == "rows":
            if len(ids) + frame > length:
                raise ValueError(f"a text of {len(ids)} tokens does not fit into a row of {length}: {text[:40]!r}")
            return [[*before, *ids, *after]]
        body = length - frame
        return [[*before, *ids[i : i + body], *after] for i in range(0, max(len(ids), 1), body)]

    def blanks(self, text: str, mask_character: str | None = None) -> Blanks:
        """The canvas of an infill: the text with its blanks masked, framed like the training data."""
        if mask_character is None:
            text, mask_character = with_mask_token(text, self.tokenizer.mask_token)
        if not isinstance(text, str):
            raise OptionError("text", f"text must be one text with blanks, got {type(text).__name__}")
        words = self.tokenizer.kind in BPE
        pieces = split(text, characters_per_token=self.token_width, mask_character=mask_character, words=words)
        pieces, smiles = self._notated(pieces)
        bare = join(pieces, self.tokenizer, self.mask_id)
        before, after = self.frame(len(bare.ids))
        return replace(join(pieces, self.tokenizer, self.mask_id, before=before, after=after), smiles=smiles)

    def _notated(self, pieces: list[str | int]) -> tuple[list[str | int], bool]:
        """Pieces of text in the tokenizer's notation: SMILES become SELFIES if those are the tokens."""
        return fragments(pieces) if self.tokenizer.kind == "selfies" else (pieces, False)

    def begins(self, prompt: str, stop: object) -> bool:
        """Whether a canvas begins with given tokens: a prompt, or the eos at the start of every wrapped sequence.

        That eos does not end a text, so sampling with ``stop`` must not draw it.
        """
        return bool(prompt) or (stop not in (None, False) and self.layout == "wrapped")

    def prompted(self, prompt: str, length: int | None = None, *, room: int | None = None) -> Blanks:
        """The canvas of a prompted text: masked from the prompt to the end, or for ``room`` tokens."""
        length = self.length if length is None else length
        if length is None and room is None:
            raise ValueError("give length, the number of tokens")
        before, after = self.frame(0)
        if self.tokenizer.frame is None:
            after = [] if self.continues else before
        (begins, *_), smiles = self._notated([prompt, 1, ""])
        begun = join([begins, 1, ""], self.tokenizer, self.mask_id, before=before, after=after)
        room = room or (length or 0) - (len(begun.ids) - 1)
        if room < 1:
            raise ValueError(f"the prompt has {len(begun.ids) - 1} tokens with its eos: length={length} has no room")
        blanks = join([begins, room, ""], self.tokenizer, self.mask_id, before=before, after=after)
        return replace(blanks, smiles=smiles)

    def allowed(self, ids: Sequence[int], blanks: Blanks | None = None, *, stops: bool = False) -> dict[int, Tensor]:
        """The ids that may fill each masked position, {position: bool [V]}, where that is not every id.

        A row has one end: before a visible token, no eos or padding may be drawn; after the end, nothing else may,
        unless sampling ``stops`` at a drawn end. A blank whose surroundings leave out a space must begin with one.
        """
        masks: dict[int, Tensor] = {}
        ends = {*self.ends, self.tokenizer.pad_id} - {None}
        if self.layout == "rows" and ends and self.tokenizer.frame is None and not stops:
            mask_id = self.mask_id
            text = max((at for at, token in enumerate(ids) if token != mask_id and token not in ends), default=-1)
            # where the row ends
            end = next((at for at, token in enumerate(ids) if token in self.ends and at > text), None)
            is_end = torch.zeros(self.vocab_size, dtype=torch.bool)
            is_end[[one for one in ends if one is not None]] = True
            masks = {at: ~is_end for at in range(text if end is None else end) if ids[at] == mask_id}
            masks |= {at: is_end for at in range(len(ids) if end is None else end, len(ids)) if ids[at] == mask_id}
        if blanks is not None and blanks.spaced:
            masks |= dict.fromkeys(blanks.spaced, spaces(self.tokenizer, self.vocab_size))
        return masks

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids. A row ends at its first eos.

        In wrapped text an eos is a newline between documents, or ``<eos>`` where the alphabet has no newline. Molecules
        are written as SMILES, also where the tokens are SELFIES.
        """
        text = self.written(ids)
        return to_smiles(text) if self.tokenizer.kind == "selfies" else text

    def written(self, ids: Sequence[int]) -> str:
        """The text of token ids in the tokenizer's notation: SELFIES stay SELFIES."""
        ids, ends = list(ids), self.ends
        if not ends:
            return self.tokenizer.decode(ids)
        documents = [list(group) for is_end, group in itertools.groupby(ids, lambda i: i in ends) if not is_end]
        if self.layout == "rows":
            documents = documents[:1] if ids and ids[0] not in ends else []
        texts = [self.tokenizer.decode(document) for document in documents]
        if self.tokenizer.kind == "metaspace":  # at the start of a text, the first word comes with a space
            texts[1:] = [text.removeprefix(" ") for text in texts[1:]]
        no_newline = self.tokenizer.kind == "characters" and "\n" not in self.tokenizer.vocab
        return (f" {EOS} " if no_newline else "\n").join(texts)

    def texts(self, rows: Sequence[Sequence[int]], blanks: Blanks | None = None) -> list[str]:
        """The text of each finished sequence, with the visible parts of a canvas kept as they were given."""
        if isinstance(self.tokenizer, NoTokenizer):
            return [""] * len(rows)
        apart = self.tokenizer.kind == "levels"
        whole = blanks is None or blanks.smiles
        text = [self.decode(row) if whole else blanks.filled(row, self.written, apart=apart) for row in rows]  # type: ignore[union-attr]
        if self.tokenizer.kind in ("wordpiece", "metaspace") and (blanks is None or blanks.begins):
            text = [one.removeprefix(" ") for one in text]  # the space that came with the first word
        return text
