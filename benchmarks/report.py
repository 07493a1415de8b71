"""Plots and a page of Markdown from the lines that ``octavo bench`` wrote, here or elsewhere.

python -m benchmarks.report runs.jsonl more.jsonl --folder report
"""

import argparse
from pathlib import Path

from ipc.bench.report import read_records, write_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="files of JSON lines")
    parser.add_argument("--folder", type=Path, default=Path("report"), help="where to write")
    arguments = parser.parse_args()
    records = [record for file in arguments.files for record in read_records(file)]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for path in write_report(records, arguments.folder):
        print(path)


if __name__ == "__main__":
    main()
