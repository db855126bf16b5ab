"""MOSES's metrics on molecules whose answers are known, and SELFIES there and back."""

from __future__ import annotations

import pytest

from unmask.evaluate.judge.molecules import canonical, judged, properties
from unmask.tokenizers.molecules import to_selfies, to_smiles
from unmask.tokenizers.vocabularies import selfies

pytest.importorskip("rdkit")
pytest.importorskip("selfies")

ASPIRIN, CAFFEINE = "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C"


class TestJudged:
    def test_counts_are_the_benchmarks(self) -> None:
        samples = ["CCO", "OCC", "C1CC", "c1ccccc1", "CC(C)(C)(C)(C)C", ""]
        found = judged(samples, training={"CCO"})
        assert (found.num, found.valid, found.unique, found.novel) == (6, 3, 2, 1)
        assert (found.validity, found.uniqueness, found.novelty) == (3 / 6, 2 / 3, 1 / 2)

    def test_nothing_valid(self) -> None:
        found = judged(["C1", "("], training=set(), held_out=["CCO"])
        assert (found.validity, found.uniqueness, found.novelty, found.distance) == (0, 0, 0, {})

    def test_without_training_molecules_novelty_is_not_known(self) -> None:
        assert judged(["CCO"]).novelty is None

    def test_distance_of_a_set_to_itself_is_zero_and_to_one_molecule_the_mean_difference(self) -> None:
        assert judged([ASPIRIN, CAFFEINE], held_out=[CAFFEINE, ASPIRIN]).distance == pytest.approx(
            {"logP": 0, "QED": 0, "weight": 0}
        )
        distance = judged(["CCO"], held_out=["CCCO", "CCCCO"]).distance["weight"]
        methylene = 14.027
        assert distance == pytest.approx(1.5 * methylene, abs=1e-2)

    def test_properties_of_aspirin(self) -> None:
        # Molecular weight 180.16 g/mol (its formula C9H8O4); QED 0.55 in Bickerton et al. (2012).
        found = properties(ASPIRIN)
        assert found["weight"] == pytest.approx(180.16, abs=0.01)
        assert found["QED"] == pytest.approx(0.55, abs=0.01)

    def test_a_string_is_no_list(self) -> None:
        with pytest.raises(ValueError, match="list of at least one"):
            judged("CCO")

    def test_what_is_no_molecule_has_no_properties(self) -> None:
        with pytest.raises(ValueError, match="not a molecule"):
            properties("C1")


class TestSelfies:
    @pytest.mark.parametrize("smiles", [ASPIRIN, CAFFEINE, "CCO", "O=S(=O)(N)c1ccc(Br)cc1Cl"])
    def test_there_and_back(self, smiles: str) -> None:
        assert canonical(to_smiles(to_selfies(smiles))) == canonical(smiles)

    def test_selfies_stay_as_they_are(self) -> None:
        assert to_selfies("[C][C][O]") == "[C][C][O]"

    def test_what_cannot_be_written_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"'C\(' has no SELFIES"):
            to_selfies("C(")

    def test_every_string_of_symbols_is_a_molecule(self) -> None:
        """The reason for SELFIES: whatever a model samples can be read."""
        tokenizer = selfies([to_selfies(ASPIRIN), to_selfies(CAFFEINE)])
        for start in range(tokenizer.vocab_size - 1):
            ids = [(start + 7 * i) % (tokenizer.vocab_size - 1) for i in range(12)]
            assert canonical(to_smiles(tokenizer.decode(ids))) is not None

    def test_tokenizer(self) -> None:
        tokenizer = selfies(["[C][=C][O]", "[N]"])
        assert tokenizer.decode(tokenizer.encode("[C][O][N]")) == "[C][O][N]"
        with pytest.raises(ValueError, match="is not SELFIES"):
            tokenizer.encode("CCO")
        with pytest.raises(ValueError, match=r"'\[S\]' is not among the tokenizer's 4 selfies tokens"):
            tokenizer.encode("[S]")
