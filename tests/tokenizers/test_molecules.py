"""SMILES in and SMILES out where the tokens are SELFIES, and rows that end where their layout lets them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unmask
from tests.small_models import folder
from unmask.cli import main
from unmask.data.prepare import prepare
from unmask.tokenizers import molecules as notation
from unmask.tokenizers.molecules import fragments, not_smiles, of_smiles, problem, to_smiles, verdict, verdict_on


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> unmask.Model:
    """A model of SELFIES; what it writes is of no importance here."""
    return unmask.load(folder(tmp_path_factory.mktemp("selfies") / "model", "selfies"))


def test_the_blanks_of_a_smiles_are_selfies_tokens(molecules: unmask.Model) -> None:
    made = molecules.infill("c1ccccc1____", 4, seed=1)
    ring = molecules.tokenizer.encode(of_smiles("c1ccccc1"))
    for row, text in zip(made.tokens.tolist(), made.text, strict=True):
        assert row[: len(ring)] == ring and row[len(ring) + 4] == molecules.tokenizer.eos_id
        assert text == to_smiles(molecules.tokenizer.decode(row[: len(ring) + 4]))
    selfies = molecules.infill("[C][C]__[O]", seed=1).text[0]
    assert selfies.startswith("[C][C]") and selfies.endswith("[O]"), "SELFIES in, SELFIES out"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(C__O", "is no SMILES: close its rings and branches"),
        ("c1ccccc__", "is no SMILES: close its rings and branches"),
        ("c1cc__c1", "is joined by single bonds, and is no part of a ring"),
        ("c1ccc(=__)cc1", "is no SMILES|is joined by single bonds"),
        ("c1c(__)cc(__)cc1__", "one blank, or two at the ends of branches"),
    ],
)
def test_a_smiles_whose_blanks_have_no_place_is_refused(molecules: unmask.Model, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        molecules.infill(text)


# What a chemist writes, with something in the place of the blanks, and the scaffold that must be there.
SCAFFOLDS = [
    ("c1ccc({})cc1", ["OC"], "c1ccccc1"),
    ("O=C(N{})c1ccncc1", ["CCO"], "O=C(N)c1ccncc1"),
    ("c1cc({})ccc1C(=O)N{}", ["F", "CC"], "c1ccccc1C(=O)N"),
    ("c1ccccc1C({}N2CCOCC2)=O", ["CC"], "c1ccccc1C=O"),
    ("c1ccccc1C(=O){}", ["NC"], "c1ccccc1C=O"),
    ("C1CC1{}C(=O)O", ["CN"], "C1CC1"),
]


@pytest.mark.parametrize(("written", "fillings", "scaffold"), SCAFFOLDS, ids=[row[0] for row in SCAFFOLDS])
def test_a_molecule_with_blanks_is_the_same_molecule_when_they_are_filled(
    written: str, fillings: list[str], scaffold: str
) -> None:
    """The pieces around the blanks, joined by other atoms: what the SMILES says with these atoms in the blanks."""
    chem = pytest.importorskip("rdkit.Chem")
    texts = written.split("{}")
    pieces = [part for pair in zip(texts, [*fillings, ""], strict=True) for part in pair][:-1]
    blanks = [len(part) if i % 2 else part for i, part in enumerate(pieces)]
    made, smiles = fragments(blanks)
    assert smiles and [type(part) for part in made] == [str, int] * len(fillings) + [str] * (len(made) % 2)
    # A blank before its scaffold is read from its free end.
    turned = made[0] == ""
    filled = "".join(part if isinstance(part, str) else _symbols(fillings[i // 2], turned and i == 1)
                     for i, part in enumerate(made))  # fmt: skip
    wanted = written.format(*fillings)
    assert chem.CanonSmiles(to_smiles(filled)) == chem.CanonSmiles(wanted)
    assert chem.MolFromSmiles(wanted).HasSubstructMatch(chem.MolFromSmiles(scaffold))


def _symbols(atoms: str, turned: bool) -> str:
    return "".join(f"[{atom}]" for atom in (reversed(atoms) if turned else atoms))


def test_what_fills_a_branch_is_joined_to_the_scaffold(molecules: unmask.Model) -> None:
    chem = pytest.importorskip("rdkit.Chem")
    made = molecules.infill("c1ccc(____)cc1", 20, seed=1).text
    ring = chem.MolFromSmiles("c1ccccc1")
    # A symbol of a ring or a branch in the blank reads the scaffold's first symbols as a number.
    kept = [chem.MolFromSmiles(text).HasSubstructMatch(ring) for text in made]
    alone = molecules.infill("c1ccc(_)cc1", 20, seed=1).text
    assert sum(kept) >= 10 and len(set(made)) > 5 and len(set(alone)) > 3


def test_a_prompt_may_be_smiles(molecules: unmask.Model) -> None:
    made = molecules.sample(2, prompt="c1ccccc1", seed=0)
    assert made.text == [molecules.decode(row) for row in made.tokens.tolist()]
    ring = molecules.tokenizer.encode(of_smiles("c1ccccc1"))
    assert [row[: len(ring)] for row in made.tokens.tolist()] == [ring] * 2


def test_every_verb_takes_smiles(molecules: unmask.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infill", molecules.name, "CC__O", "--seed", "1"]) == 0
    assert "[" not in capsys.readouterr().out
    assert main(["sample", molecules.name, "--prompt", "c1ccccc1", "--seed", "0"]) == 0
    assert capsys.readouterr().out.startswith("C1=CC=CC=C1")
    (tmp_path / "some.smi").write_text("CCO\nc1ccccc1O ethanol\n")
    assert main(["evaluate", molecules.name, str(tmp_path / "some.smi"), "--passes", "2", "--json"]) == 0
    assert '"sequences": 2' in capsys.readouterr().out


def test_what_is_no_smiles_is_named(tmp_path: Path) -> None:
    good = [
        "CCO",
        "c1ccccc1Br",
        "C[C@@H](N)C(=O)[O-]",
        "F/C=C/F",
        "[nH]1cccc1",
        "C%12CCCC%12",
        "[Na+].[Cl-]",
        "[13CH4]",
    ]
    assert [not_smiles(text) for text in good] == [""] * len(good)
    wrong = ["hello world", "C1CC", "CC(", "CC)", "", "12", "C[", "X"]
    assert all(not_smiles(text) for text in wrong)
    (tmp_path / "some.txt").write_text("\n".join([*good, "C1CC"]))
    with pytest.raises(ValueError, match="molecule 9: 'C1CC' is not SMILES: ring 1 is not closed"):
        prepare(tmp_path / "some.txt", tmp_path / "data", tokenizer="smiles", held_out="random")
    (tmp_path / "fine.txt").write_text("\n".join(good[:2] * 20))
    train, _ = prepare(tmp_path / "fine.txt", tmp_path / "selfies", tokenizer="selfies", layout="rows")
    assert train.tokenizer.kind == "selfies" and "[=C]" in train.tokenizer.vocab


def test_a_row_ends_only_where_its_canvas_lets_it(molecules: unmask.Model) -> None:
    """By a network that wants the end everywhere: in front of visible text it may not have it."""
    eos, mask = molecules.tokenizer.eos_id, molecules.denoiser.mask_id

    class Ends:
        vocab_size, mask_id, length = molecules.denoiser.vocab_size, mask, molecules.length

        def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
            logits = torch.zeros(*tokens.shape, self.vocab_size)
            logits[..., eos] = 30.0
            return logits

    model = unmask.Model(Ends(), molecules.tokenizer, layout="rows")
    carbon = molecules.tokenizer.encode("[C]")[0]
    canvas = torch.tensor(
        [[mask, carbon, mask, mask], [mask, mask, mask, carbon], [mask, mask, eos, mask], [mask, mask, mask, mask]]
    )
    made = model.sample(canvas=canvas, seed=3).tokens
    assert made[0, 0] != eos and made[0, 2:].tolist() == [eos, eos]
    assert bool((made[1] != eos).all()) and bool((made[2, :2] != eos).all()) and made[2, 3] == eos
    assert made[3].tolist() == [eos] * 4
    assert eos not in model.infill("[C]__[C]", seed=1).tokens[0, :4].tolist()


@pytest.mark.parametrize(
    ("smiles", "says"),
    [
        ("c1ccccc1cc1O", "ring 1 is not closed"),
        ("c1ccccc1ccO", "aromatic but in no ring"),
        ("CC(C)(C)(C)C", "more bonds"),
        ("c1cccc1", "alternating"),
        ("C=", "order of atoms and bonds"),
        ("", "no atom"),
    ],
)
def test_what_is_wrong_with_a_text_that_is_no_molecule(smiles: str, says: str) -> None:
    pytest.importorskip("rdkit")
    assert says in problem(smiles)
    assert verdict(smiles) == {"valid": False, "verdict": f"not a molecule: {problem(smiles)}"}


def test_how_many_are_molecules_and_that_without_rdkit_less_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rdkit")
    assert verdict("c1ccncc1") == {"valid": True, "verdict": "a valid molecule"}
    assert verdict_on(["c1ccncc1", "cc"]) == "1 of 2 are valid molecules"
    monkeypatch.setattr(notation, "has_rdkit", lambda: False)
    assert verdict("cc")["verdict"] == "a well-formed SMILES, without a check by RDKit"
    assert verdict_on(["c1ccncc1", "cc", "c1"]).startswith("2 of 3 are well-formed SMILES; pip install")
