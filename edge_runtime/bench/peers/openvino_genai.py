"""OpenVINO GenAI, on a model that optimum makes of the checkpoint. Runs in the peer's environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import as_directory, run_converter
from .likelihood import surprise

PACKAGES = ("openvino-genai", "openvino", "optimum-intel")
_LOOKED_UP, _GRAM = 5, 3
"""Tokens of a draft by prompt lookup and of what it looks for, as in its sample."""
_CACHE_GB = 1


def prepare(order: dict[str, Any]) -> str:
    """It reads a GGUF of a few families, Gemma not among them: optimum makes its format of a directory."""
    place, made = Path(order["place"]), as_directory(order)
    command = ("-m", "optimum.commands.optimum_cli")
    options = ["--task", "text-generation-with-past", "--weight-format", order["mode"]]
    run_converter("optimum", *command, "export", "openvino", "--model", str(made), *options, str(place / "built"))
    return str(place / "built")


def open_peer(order: dict[str, Any]) -> OpenvinoPeer:
    return OpenvinoPeer(Path(order["source"]), order["threads"], order["mode"])


class OpenvinoPeer:
    def __init__(self, source: Path, threads: int, mode: str) -> None:
        import openvino
        import openvino_genai

        self._core, self._api, self._source = openvino, openvino_genai, source
        self._threads = threads
        self.weights = "int8 by its exporter"
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.enable_prefix_caching = True
        scheduling.cache_size = _CACHE_GB
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "scheduler_config": scheduling}
        if mode == "lookup":
            options["prompt_lookup"] = True
        self._pipeline: Any = openvino_genai.LLMPipeline(str(source), "CPU", **options)
        self._settings: Any = openvino_genai.GenerationConfig()
        self._settings.ignore_eos, self._settings.do_sample = True, False
        if mode == "lookup":
            self._settings.num_assistant_tokens, self._settings.max_ngram_size = _LOOKED_UP, _GRAM

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> dict[str, Any]:
        """It keeps prefixes by itself and cannot forget them; no two prompts begin alike unless that is meant."""
        started = time.perf_counter()
        self._settings.max_new_tokens = count
        prompt = self._core.Tensor(np.array([ids], np.int64))
        mask = self._core.Tensor(np.ones((1, len(ids)), np.int64))
        told = self._pipeline.generate(self._api.TokenizedInputs(prompt, mask), self._settings)
        tokens = [int(token) for token in told.tokens[0]]
        return {"tokens": tokens, "seconds": time.perf_counter() - started}

    def nll(self, ids: Sequence[int]) -> float:
        """The pipeline gives no logits: the same file, opened beside it."""
        core = self._core.Core()
        model = core.compile_model(self._source / "openvino_model.xml", "CPU", {"INFERENCE_NUM_THREADS": self._threads})
        request: Any = model.create_infer_request()
        count = len(ids) - 1
        given: dict[str, Any] = {
            "input_ids": np.array([ids[:-1]], np.int64),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        names = {name for port in model.inputs for name in port.get_names()}
        request.infer({name: value for name, value in given.items() if name in names})
        rows = request.get_tensor("logits").data[0]
        # Row by row: in float64 all of them would be a gigabyte.
        return sum(surprise(row, [following]) for row, following in zip(rows, ids[1:], strict=True)) / count
