"""The last column of docs/paper_map.md names the items of the reproduction."""

from reproduction.items import ITEMS

from tests.test_paper_map import all_names


def test_the_last_column_has_every_item():
    assert set(all_names(4)) == set(ITEMS)
