import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.answer import Delta, Usage
from ipc.cli import demo, generate, inspect, main
from ipc.cli.command_error import CommandError, UsageError
from ipc.cli.engine_options import add_engine_arguments, engine_options, given_engine_flags
from ipc.cli.sampling_options import add_sampling_arguments, given_parameters


def parse(command: Any, *words: str) -> argparse.Namespace:
    return main.make_parser(command).parse_args(words)


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0

    told = capsys.readouterr().out
    for name in main.COMMANDS:
        command = main.load_command(name)
        assert (command.NAME, command.HELP in told) == (name, True)


def test_no_arguments_show_the_overview_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["btach"]) == 2
    assert "did you mean 'batch'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_tells_its_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name, "--help"]) == 0
    assert f"usage: octavo {name}" in capsys.readouterr().out


def test_the_overview_imports_neither_mlx_nor_zmq_nor_rich() -> None:
    code = (
        "import sys; from ipc.cli.main import main; main(['--help']);"
        "heavy = {'mlx', 'transformers', 'zmq', 'rich', 'engine'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_flag_cannot_be_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["generate", "x", "--temp", "1"]) == 2
    assert "--temp" in capsys.readouterr().err


class Ends:
    """A command that ends as it is told to."""

    NAME = "ends"
    HELP = "for a test"

    def __init__(self, error: BaseException):
        self.error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, arguments: argparse.Namespace) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (CommandError("no model"), 1, "octavo ends: error: no model\n"),
        (UsageError("no sense"), 2, "octavo ends: error: no sense\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_command_ends_with_its_status_and_a_plain_sentence(
    error: BaseException, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_command(Ends(error), []) == status
    assert capsys.readouterr().err == told


def test_sampling_flags_become_parameters_only_if_given(tmp_path: Any) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    parser = argparse.ArgumentParser()
    add_sampling_arguments(parser, batch=True)
    words = ["--max-tokens", "5", "--stop", "a", "--stop", "b", "--stop-token-id", "7"]
    words += ["--logit-bias", "3=-1.5", "--ignore-eos", "--json-schema", f"@{schema}", "--n", "2"]

    assert given_parameters(parser.parse_args([])) == {}
    assert given_parameters(parser.parse_args(words)) == {
        "max_tokens": 5,
        "stop": ["a", "b"],
        "stop_token_ids": [7],
        "logit_bias": {3: -1.5},
        "ignore_eos": True,
        "json_schema": '{"type": "object"}',
        "n": 2,
    }


def test_engine_flags_become_options_only_if_given() -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    words = ["--max-rows", "4", "--no-prefix-cache", "--exact", "--speculate", "2"]
    given = parser.parse_args(words)

    assert engine_options(parser.parse_args([])) == {}
    assert engine_options(given) == {
        "max_rows": 4,
        "prefix_cache": False,
        "exact": True,
        "speculate": 2,
    }
    assert given_engine_flags(given) == ["--exact", "--no-prefix-cache", "--speculate"]
    assert engine_options(parser.parse_args(["--speculate", "auto"])) == {"speculate": "auto"}


def test_a_count_below_its_least_is_refused_by_the_name_of_its_flag() -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)

    with pytest.raises(UsageError, match="--num-blocks is 0; it must be a whole number from 1"):
        engine_options(parser.parse_args(["--num-blocks", "0"]))


def test_a_prompt_is_a_text_or_a_conversation() -> None:
    assert generate.make_prompt(parse(generate, "Hi")) == "Hi"
    user = {"role": "user", "content": "Hi"}
    assert generate.make_prompt(parse(generate, "Hi", "--chat")) == [user]
    system = {"role": "system", "content": "Be brief."}
    assert generate.make_prompt(parse(generate, "Hi", "--system", "Be brief.")) == [system, user]


def test_generate_refuses_what_is_out_of_range_by_name() -> None:
    with pytest.raises(UsageError, match=r"top_p is 2\.0: it must be"):
        generate.make_params(parse(generate, "Hi", "--top-p", "2"))
    with pytest.raises(UsageError, match="the prompt is empty"):
        generate.make_prompt(parse(generate, ""))


@dataclass
class OneAnswer:
    """An engine that gives the deltas it was made with, one a step."""

    deltas: list[Delta] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return bool(self.deltas)

    def step(self) -> list[Delta]:
        return [self.deltas.pop(0)]


def test_an_answer_is_streamed_and_its_line_ended(capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage(3, 2, drafted_tokens=4, accepted_tokens=1)
    last = Delta("r", 0, " you", (2,), finish_reason="eos", usage=usage)
    engine: Any = OneAnswer([Delta("r", 0, "Thank", (1,)), Delta("r", 0, "", (9,)), last])

    reason, told = generate.stream(engine)

    assert capsys.readouterr().out == "Thank you\n"
    assert generate.describe(5, reason, told) == (
        "finish: eos, seed: 5, prompt tokens: 3 (0 cached), output tokens: 2,"
        " drafts accepted: 1 of 4"
    )


def test_an_answer_that_fails_is_an_error_after_what_came(
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = Delta("r", 0, "", (), finish_reason="error", error="no memory")
    engine: Any = OneAnswer([Delta("r", 0, "Tha", (1,)), last])

    with pytest.raises(CommandError, match="the answer ended with an error: no memory"):
        generate.stream(engine)
    assert capsys.readouterr().out == "Tha\n"


def test_the_demo_has_about_fifty_prompts_and_shows_answers_across_them() -> None:
    prompts = demo.read_prompts()
    names = [json.loads(line)["custom_id"] for line in prompts]
    records = [
        {"custom_id": name, "error": None, "choices": [{"text": f" to {name}"}]} for name in names
    ]
    failed = {"custom_id": names[0], "error": {}}

    shown = demo.show_answers(prompts, [failed, *records[1:]], 3)

    assert 45 <= len(prompts) <= 55
    assert len(shown) == 3
    for text in shown:
        name = text[1 : text.index("]")]
        assert text.endswith(f"\n  -> to {name}\n")
    assert shown == sorted(shown, key=lambda text: names.index(text[1 : text.index("]")]))


def test_inspect_shows_each_run_of_layers_of_a_kind_and_memory_in_units() -> None:
    described = {
        "model": "m",
        "drafter": None,
        "exact": False,
        "blocks": 1025,
        "bytes_per_block": 32768,
        "layers": ["recurrent"] * 3 + ["attention"] + ["recurrent"] * 2,
    }

    assert inspect.lines_of(described) == [
        "model             m",
        "drafter           none",
        "exact             no",
        "blocks            1,025",
        "bytes per block   32.0 KiB",
        "memory in blocks  32.0 MiB",
        "layers",
        "  0-2     recurrent",
        "  3       attention",
        "  4-5     recurrent",
    ]
