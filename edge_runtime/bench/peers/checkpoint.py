"""A GGUF as the Hugging Face directory that converters of other programs read. Runs in the peer's environment, with its
transformers, and knows no peer.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NO_TOKEN = 262_143
"""The last row of Gemma's vocabulary, which no text uses: what is to end a text, so that nothing does."""


def as_directory(order: dict[str, Any]) -> Path:
    """The source itself where it is one; else made once for all that have transformers of this major release, since
    settings of another are misread. In float32: a converter rounds once, from what the file says."""
    source = Path(order["source"])
    if source.is_dir():
        return source
    import transformers

    made = Path(f"{order['directory']}-{transformers.__version__.split('.')[0]}")
    if made.is_dir():
        return made
    place = made.with_name(f"{made.name}.part")
    shutil.rmtree(place, ignore_errors=True)
    save(load(source, "float32"), place)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, local_files_only=True, trust_remote_code=False
    )
    tokenizer.save_pretrained(place)
    return place.rename(made)


def load(source: Path, kind: str) -> Any:
    """transformers' model of a directory or a GGUF; ``kind``: a float of torch."""
    import torch
    import transformers

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "dtype": getattr(torch, kind)}
    if source.suffix == ".gguf":
        source, options["gguf_file"] = source.parent, source.name
    else:
        options["use_safetensors"] = True
    return transformers.AutoModelForCausalLM.from_pretrained(source, **options).eval()


def save(model: Any, place: Path) -> None:
    """Later releases remember that it came out of a GGUF, and would not write what they have unpacked."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
    model.save_pretrained(place)


def run_converter(what: str, *arguments: str) -> None:
    """By this environment's Python. Raises ``RuntimeError`` with the last that it said."""
    done = subprocess.run(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(f"{what}: {said[-1] if said else f'ended without a word ({done.returncode})'}")
