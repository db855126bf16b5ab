"""Trained models as subjects: a masked one with its left-to-right twin, judged by that twin."""

from dataclasses import replace

import pytest
from reproduction.cells import How
from reproduction.items import WITH_SUBJECTS, published_steps
from reproduction.subjects import subjects
from reproduction.trained import trained

from reproduction import Settings, cells, run
from tests.small_models import folder


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    masked = folder(place / "mine", length=8)
    folder(place / "mine-ar", length=8, causal=True, seed=1)
    return Settings("tiny", checkpoint=str(masked), judge=f"{masked}-ar")


def test_a_checkpoint_is_one_more_subject_with_its_twin_and_its_judge(settings):
    found, missing = subjects(settings)
    assert [subject.name for subject in found] == ["oracle", settings.checkpoint] and missing == []
    mine = found[1]
    assert mine.exact is None and mine.left_to_right is not None and mine.length == 8
    assert mine.left_to_right(2, 8, 0).tokens.shape == (2, 8)


@pytest.mark.parametrize("name", WITH_SUBJECTS)
def test_items_run_on_it(settings, name):
    table = run(name, settings).tables["cells"]
    mine = table.where(subject=settings.checkpoint)
    assert len(mine.rows) >= 3
    assert all(value > 1 for value in mine.column("perplexity"))


def test_without_a_twin_there_is_no_left_to_right(settings, tmp_path):
    alone = trained(str(folder(tmp_path / "alone", length=8)), settings)
    assert alone.left_to_right is None and alone.sedd is None


def test_a_network_trained_as_sedds_is_what_sedds_samplers_run(settings, tmp_path):
    masked = folder(tmp_path / "both", length=8)
    folder(tmp_path / "both-sedd", length=8, seed=2)
    both = replace(settings, checkpoint=str(masked))
    subject = trained(str(masked), both)
    for kind in ("sedd", "sedd law"):
        assert cells.network(subject, How(kind, "float32")) is subject.sedd is not subject.model
    assert cells.network(subject, How("law", "float32")) is subject.model
    result = run("published_steps", both)
    label = "published (SEDD), float32, by its law"
    assert result.tables["cells"].where(subject=str(masked), sampler=label).column("N") == [32, 1000]
    claims = published_steps.claims(result.tables)
    assert sum(claim.says == "and so it is for SEDD" for claim in claims) == 1  # the oracle has one network


def test_what_cannot_be_loaded_is_left_out_and_said(settings):
    found, missing = subjects(replace(settings, checkpoint="/no/such/model"))
    assert [subject.name for subject in found] == ["oracle"]
    assert len(missing) == 1 and "/no/such/model" in missing[0]


def test_a_left_to_right_model_is_no_subject(settings):
    with pytest.raises(ValueError, match="left-to-right"):
        trained(f"{settings.checkpoint}-ar", settings)
