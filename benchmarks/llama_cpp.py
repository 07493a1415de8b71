"""llama.cpp as a peer: all rows of a group as one batch, greedy, through its C interface.

Runs in an environment of its own (benchmarks/peers.py says how to build it), one JSON line in and
one out; see benchmarks/peer_side.py for what they hold.

    /tmp/llama/venv/bin/python -P benchmarks/llama_cpp.py FILE.gguf --rows 8 --context 128
"""

import argparse
import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

F32 = 0  # of ggml_type


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(_level: int, _text: bytes, _data: Any) -> None:
    pass


class Decoder:
    """One model and one context of ``rows`` sequences."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.use_mmap = not arguments.no_mmap
        self._model = llama_cpp.llama_model_load_from_file(arguments.file.encode(), model_params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {arguments.file}")
        params = llama_cpp.llama_context_default_params()
        rows = arguments.rows
        params.n_ctx = rows * -(-arguments.context // 256) * 256  # it rounds each row up to 256
        params.n_batch = rows * arguments.context
        params.n_ubatch = arguments.ubatch
        params.n_seq_max = params.n_outputs_max = rows
        params.n_threads = params.n_threads_batch = arguments.threads
        params.kv_unified = arguments.unified
        if arguments.float32:
            params.type_k = params.type_v = F32
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp makes no context of {rows} rows for {arguments.file}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def run(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Decode ``prompts`` as one batch; return the tokens and the seconds of both phases."""
        llama_cpp.llama_memory_clear(self._memory, True)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        picked = self._prompts(prompts)
        first = time.perf_counter()
        said = [[token] for token in picked]
        for step in range(new_tokens - 1):
            self._fill(
                (row, token, len(prompt) + step, True)
                for row, (token, prompt) in enumerate(zip(picked, prompts, strict=True))
            )
            picked = self._decode()
            for tokens, token in zip(said, picked, strict=True):
                tokens.append(token)
        end = time.perf_counter()
        return {
            "tokens": said,
            "prompt_s": first - begin,
            "decode_s": end - first,
            "decoded": len(prompts) * (new_tokens - 1),
            "cpu_s": time.process_time() - cpu_begin,
        }

    def _prompts(self, prompts: list[list[int]]) -> list[int]:
        self._fill(
            (row, token, position, position == len(prompt) - 1)
            for row, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        )
        return self._decode()

    def _fill(self, entries: Any) -> None:
        batch, number = self._batch, 0
        for number, (row, token, position, wanted) in enumerate(entries):
            batch.token[number] = token
            batch.pos[number] = position
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = row
            batch.logits[number] = wanted
        batch.n_tokens = number + 1

    def _decode(self) -> list[int]:
        """Run the batch; return the likeliest next token of each entry whose output is wanted."""
        code = llama_cpp.llama_decode(self._context, self._batch)
        if code != 0:
            raise SystemExit(f"llama_decode returned {code}")
        rows = sum(bool(self._batch.logits[n]) for n in range(self._batch.n_tokens))
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (rows, self._vocab_size)).argmax(1).tolist()


def _total(answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum((a[key] for a in answers), type(answers[0][key])()) for key in answers[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, default=8, help="sequences in a batch")
    parser.add_argument("--context", type=int, default=256, help="positions of each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ubatch", type=int, default=512, help="tokens that it computes at once")
    parser.add_argument("--unified", action="store_true", help="one K/V buffer for all rows")
    parser.add_argument(
        "--float32",
        action="store_true",
        help="attention too, not its default of float16 K/V, which moves logits by thousandths",
    )
    parser.add_argument("--no-mmap", action="store_true", help="read the file into memory")
    arguments = parser.parse_args()
    decoder = Decoder(arguments)
    system = llama_cpp.llama_print_system_info().decode()
    print(json.dumps({"is": f"llama.cpp, {arguments.threads} threads, {system}"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompts, rows = request["prompts"], arguments.rows
        groups = [prompts[n : n + rows] for n in range(0, len(prompts), rows)]
        answers = [decoder.run(group, request["new_tokens"]) for group in groups]
        print(json.dumps(_total(answers)), flush=True)


if __name__ == "__main__":
    main()
