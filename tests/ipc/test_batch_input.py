import os
import threading
from pathlib import Path

from ipc.input_lines import CHUNK_BYTES, InputLine, InputLines


def lines_of(folder: Path, content: bytes, **options: int) -> list[InputLine]:
    file = folder / "input"
    file.write_bytes(content)
    with file.open("rb") as reader:
        return list(InputLines(reader.fileno(), **options))


def test_blank_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\n\n  \nfour\nfive"

    read = lines_of(tmp_path, content)

    assert read == [InputLine(1, b"one"), InputLine(4, b"four"), InputLine(5, b"five")]


def test_lines_longer_than_a_chunk_are_whole(tmp_path: Path) -> None:
    long = b"x" * (2 * CHUNK_BYTES + 5)

    assert lines_of(tmp_path, b"a\n" + long + b"\nb\n") == [
        InputLine(1, b"a"),
        InputLine(2, long),
        InputLine(3, b"b"),
    ]


def test_a_line_beyond_the_limit_has_no_content_and_the_next_is_read(tmp_path: Path) -> None:
    content = b"a" * 10 + b"\n" + b"b" * 11 + b"\nc\n" + b"d" * (3 * CHUNK_BYTES)

    read = lines_of(tmp_path, content, max_line_bytes=10)

    assert read == [
        InputLine(1, b"a" * 10),
        InputLine(2, None),
        InputLine(3, b"c"),
        InputLine(4, None),
    ]


def test_no_more_than_a_chunk_is_read_ahead(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"line\n" * CHUNK_BYTES)
    with file.open("rb") as reader:
        InputLines(reader.fileno()).take()

        assert os.lseek(reader.fileno(), 0, os.SEEK_CUR) == CHUNK_BYTES


def test_a_pipe_without_a_whole_line_gives_none_and_has_not_ended() -> None:
    receive, send = os.pipe()
    lines = InputLines(receive)
    os.write(send, b"on")
    assert (lines.take(timeout=0.0), lines.ended) == (None, False)

    os.write(send, b"e\ntwo")
    assert lines.take(timeout=0.0) == InputLine(1, b"one")
    assert (lines.take(timeout=0.0), lines.ended) == (None, False)

    os.close(send)
    assert lines.take(timeout=0.0) == InputLine(2, b"two")
    assert (lines.take(timeout=0.0), lines.ended) == (None, True)
    os.close(receive)


def test_taking_without_a_limit_waits_for_the_line() -> None:
    receive, send = os.pipe()
    writer = threading.Timer(0.05, os.write, (send, b"late\n"))
    writer.start()

    assert InputLines(receive).take(timeout=None) == InputLine(1, b"late")

    writer.join()
    os.close(send)
    os.close(receive)
