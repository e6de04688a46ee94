"""A GGUF as the Hugging Face directory that converters of other programs read. Runs in the peer's environment, with its
transformers, and knows no peer.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def as_directory(order: dict[str, Any]) -> Path:
    """The source itself where it is one; else made once for all that have this release of transformers, since releases
    write what others misread. In float32: a converter rounds once, from what the file says."""
    source = Path(order["source"])
    if source.is_dir():
        return source
    import torch
    import transformers

    made = Path(f"{order['directory']}-{transformers.__version__}")
    if made.is_dir():
        return made
    place = made.with_name(f"{made.name}.part")
    shutil.rmtree(place, ignore_errors=True)
    options: dict[str, Any] = {"local_files_only": True, "gguf_file": source.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    save(model, place)
    transformers.AutoTokenizer.from_pretrained(source.parent, **options).save_pretrained(place)
    return place.rename(made)


def save(model: Any, place: Path) -> None:
    """Later releases remember that it came out of a GGUF, and would not write what they have unpacked."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
    model.save_pretrained(place)
