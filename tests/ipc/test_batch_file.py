import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ipc.batch_file import BatchFile, BatchFileError, BatchPipe, encode_record


def record(name: str, **more: Any) -> dict[str, Any]:
    return {"id": f"batch_req_{name:0>16}", "custom_id": name, "error": None, **more}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_records_are_appended_and_in_the_file_at_once(tmp_path: Path) -> None:
    file = BatchFile(tmp_path / "out")
    file.append(record("a"))
    file.append(record("b", text="héé\n"))

    assert read(tmp_path / "out") == [record("a"), record("b", text="héé\n")]
    file.close()


def test_a_file_opened_again_has_its_records_and_grows(tmp_path: Path) -> None:
    for name in "ab":
        file = BatchFile(tmp_path / "out")
        before = list(file.records())
        file.append(record(name))
        file.close()

    assert before == [(1, record("a"))]
    assert read(tmp_path / "out") == [record("a"), record("b")]


@pytest.mark.parametrize("cut", [1, 5, 30, 60])
def test_a_torn_last_line_is_cut_off_but_not_before_repair(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out"
    torn = encode_record(record("b"))[:cut]
    path.write_bytes(encode_record(record("a")) + torn)
    file = BatchFile(path)

    assert list(file.records()) == [(1, record("a"))]
    assert path.read_bytes().endswith(torn)
    assert file.repair() == cut
    file.append(record("c"))
    file.close()
    assert read(path) == [record("a"), record("c")]


def test_zeros_where_a_page_was_lost_count_as_torn(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(encode_record(record("a")) + b"\0" * 4096)
    file = BatchFile(tmp_path / "out")

    assert len(list(file.records())) == 1
    assert file.repair() == 4096
    file.close()


@pytest.mark.parametrize(
    "content",
    [b"my thesis", b"my thesis\n", b'{"a": 1}\n', b'{"custom_id": "a"}\n', b'{"id": "x_1", "c'],
)
def test_a_file_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    file = BatchFile(path)

    with pytest.raises(BatchFileError, match=r"line 1 of .* is no record"):
        list(file.records())
    file.close()
    assert path.read_bytes() == content


def test_two_jobs_cannot_write_one_file(tmp_path: Path) -> None:
    file = BatchFile(tmp_path / "out")
    with pytest.raises(BatchFileError, match="another job is writing"):
        BatchFile(tmp_path / "out")

    file.close()
    BatchFile(tmp_path / "out").close()


def test_dropping_records_keeps_the_others_the_mode_the_link_and_the_lock(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_bytes(b"".join(encode_record(record(name)) for name in "abc") + b'{"id": "ba')
    path.chmod(0o640)
    link.symlink_to(path)
    file = BatchFile(link)

    assert file.keep(lambda each: each["custom_id"] != "b") == 1
    file.append(record("d"))

    assert read(path) == [record("a"), record("c"), record("d")]
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "out"]
    with pytest.raises(BatchFileError, match="another job"):
        BatchFile(path)
    file.close()


def test_a_custom_id_with_half_a_character_survives(tmp_path: Path) -> None:
    file = BatchFile(tmp_path / "out")
    file.append(record("a") | {"custom_id": "\ud800"})
    file.close()

    assert read(tmp_path / "out")[0]["custom_id"] == "\ud800"


FILL = """
import resource, sys
from pathlib import Path
from ipc.batch_file import BatchFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = BatchFile(Path(sys.argv[1]))
try:
    for number in range(99):
        file.append({"id": "batch_req_0", "custom_id": str(number), "error": None, "x": "y" * 200})
except OSError as error:
    print(number, error.strerror)
"""


def test_a_full_disk_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "out"
    command = [sys.executable, "-c", FILL, str(path)]

    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert told == "3 File too large\n"
    assert [each["custom_id"] for each in read(path)] == ["0", "1", "2"]


def test_a_pipe_gets_whole_lines() -> None:
    receive, send = os.pipe()
    BatchPipe(send).append(record("a"))

    assert json.loads(os.read(receive, 1000)) == record("a")
    os.close(receive)
    os.close(send)
