"""A tiny checkpoint of every family that is fine-tuned, in its own format, over one alphabet of lower-case letters."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch

import tokenizers
from tests.checkpoints import checkpoints as ddit
from tests.checkpoints import llama_checkpoints as llama
from tests.checkpoints import test_sapiens as fairseq
from unmask.tokenizers.vocabularies import characters

LENGTH = 12  # of every canvas
LETTERS = "abcdefg"
CHAT = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}<a>"
DDIT = ("mdlm", "mdlm-time", "sedd", "radd", "bd3lm")
OTHERS = ("llada", "dream", "bert", "roberta", "esm", "sapiens")
FAMILIES = (*DDIT, *OTHERS)


def made(folder: Path, kind: str) -> Path:
    """The checkpoint of a family in a new folder: what ``--init`` takes."""
    folder.mkdir(parents=True)
    if kind in DDIT:
        return _ddit(folder, kind)
    if kind in ("llada", "dream"):
        return _llama(folder, kind)
    if kind == "sapiens":
        return fairseq.write(folder, positions=LENGTH + 4, symbols=LETTERS)[0]
    return _masked_lm(folder, kind)


def texts(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """Data for a family: one long text, or rows of several lengths. Behind a letter comes the next or the one after."""
    random = torch.Generator().manual_seed(seed)

    def word(size: int) -> str:
        steps = torch.randint(1, 3, (size,), generator=random).cumsum(0) % len(LETTERS)
        return "".join(LETTERS[i] for i in steps.tolist())

    path = folder / f"{'text' if kind in DDIT else 'rows'}.txt"
    sizes = torch.randint(5, LENGTH, (60,), generator=random).tolist()
    path.write_text(word(600) if kind in DDIT else "".join(f"{word(size)}\n" for size in sizes))
    return path


def _ddit(folder: Path, kind: str) -> Path:
    vocab = len(LETTERS) + 2  # eos and the mask
    weights = ddit.state(vocab, adaln=kind != "radd", norm_bias=kind == "radd")
    if kind in ("sedd", "radd"):
        ddit.written(folder, weights, ddit.nested_config(dropout=0.0))
    else:
        more: dict[str, Any] = {"dropout": 0.0, "time_conditioning": kind == "mdlm-time"}
        if kind == "bd3lm":
            more |= {"model_type": "bd3lm", "block_size": 4, "cross_attn": True, "adaln": True}
        ddit.hub_folder(folder, weights, ddit.hub_config(vocab, **more))
    characters(LETTERS).save(folder / "tokenizer.json")
    return folder


def _llama(folder: Path, kind: str) -> Path:
    """Letters, marks of turns, eos and the mask among the special tokens; a chat template, as the Instruct models."""
    letters = string.ascii_lowercase + "<> "
    special = ["<eos>", "<mask>"]
    vocab = {token: i for i, token in enumerate([*letters, *special])}
    ids: dict[str, Any] = {"eos_token_id": vocab["<eos>"], "pad_token_id": vocab["<eos>"]}
    if kind == "llada":
        llama.llada(folder, len(vocab), vocab["<mask>"], max_sequence_length=LENGTH, **ids)
    else:
        llama.dream(folder, len(vocab), vocab["<mask>"], max_position_embeddings=LENGTH, **ids)
    byte_level = {**{c if c != " " else "Ġ": i for c, i in vocab.items() if len(c) == 1}}
    model = tokenizers.models.BPE(vocab=byte_level, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"mask_token": "<mask>", "eos_token": "<eos>", "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _masked_lm(folder: Path, kind: str) -> Path:
    """transformers' own classes, without dropout so that passes can be compared."""
    import transformers

    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24} | still
    most = {"bert": LENGTH + 2, "roberta": LENGTH + 3, "esm": LENGTH + 2}[kind]
    more = {"position_embedding_type": "rotary", "token_dropout": False, "mask_token_id": 4} if kind == "esm" else {}
    config = transformers.CONFIG_MAPPING[kind](
        vocab_size=len(vocab), max_position_embeddings=most, pad_token_id=0, **size, **more
    )
    torch.manual_seed(0)
    network = transformers.AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    return folder
