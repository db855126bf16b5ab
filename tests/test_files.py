"""Files and folders that are there whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unmask.files import new_folder, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_filled(tmp_path) -> None:
    with new_folder(tmp_path / "deep" / "out") as folder:
        (folder / "a").write_text("1")
        assert not (tmp_path / "deep" / "out").exists()
    assert (tmp_path / "deep" / "out" / "a").read_text() == "1"
    assert names(tmp_path / "deep") == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_no_litter(tmp_path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
        raise error
    assert names(tmp_path) == []


def test_nothing_is_overwritten_but_an_empty_folder_may_be_filled(tmp_path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
    with pytest.raises(FileExistsError), new_folder(tmp_path / "out") as folder:
        pytest.fail("it must not get this far")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError), new_folder(tmp_path / "file") as folder:
        pytest.fail("it must not get this far")
    assert (tmp_path / "file").read_text() == "mine" and names(tmp_path / "out") == ["a"]


def test_what_a_killed_process_left_is_cleared(tmp_path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "old").write_text("half")
    (tmp_path / ".out.lock").write_text("")
    with new_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["a"]


def test_of_several_at_once_one_makes_the_folder(tmp_path) -> None:
    def make(i: int) -> str:
        try:
            with new_folder(tmp_path / "out") as folder:
                (folder / str(i)).write_text("1")
            return str(i)
        except FileExistsError:
            return "found"

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(make, range(8)))
    assert results.count("found") == 7
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == [r for r in results if r != "found"]


def test_a_file_is_replaced_whole(tmp_path) -> None:
    write_whole(tmp_path / "x", b"old")
    write_whole(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    with pytest.raises(TypeError):
        write_whole(tmp_path / "x", "no bytes")  # type: ignore[arg-type]
    assert (tmp_path / "x").read_bytes() == b"new" and names(tmp_path) == ["x"]
