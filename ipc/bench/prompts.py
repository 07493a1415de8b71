"""The bundled prompts, sorted by what workloads want: passages, long texts, questions."""

import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

LONG = 2000  # characters
SHORT = 300


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts as they are bundled; the demo model has read their like in training."""

    lines: tuple[Mapping[str, Any], ...]

    @classmethod
    def bundled(cls) -> "Prompts":
        """Read the file that comes with the package."""
        file = importlib.resources.files("engine.demo") / "prompts.jsonl"
        return cls(tuple(map(json.loads, file.read_text(encoding="utf-8").splitlines())))

    @property
    def passages(self) -> list[str]:
        """Short beginnings of texts."""
        return [text for text in self._texts if len(text) < LONG]

    @property
    def long_texts(self) -> list[str]:
        """Texts of a thousand tokens and more."""
        return [text for text in self._texts if len(text) >= LONG]

    @property
    def questions(self) -> list[str]:
        """Short questions that need nothing before them."""
        chats = [line["messages"] for line in self.lines if "messages" in line]
        alone = [str(messages[0]["content"]) for messages in chats if len(messages) == 1]
        return [question for question in alone if len(question) <= SHORT]

    @property
    def paragraphs(self) -> list[str]:
        """Paragraphs of the long texts."""
        found = (part.strip() for text in self.long_texts for part in text.split("\n\n"))
        return [part for part in found if 40 <= len(part) <= 2 * SHORT]

    @property
    def _texts(self) -> list[str]:
        return [str(line["prompt"]) for line in self.lines if "prompt" in line]


def cycle_unlike(texts: Sequence[str]) -> Iterable[str]:
    """Yield texts for ever. One that comes again lacks first words: it shares no prefix."""
    for turn in count():
        for text in texts:
            words = text.split(" ")
            yield " ".join(words[turn % max(1, len(words) - 1) :])
