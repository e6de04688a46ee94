"""A GGUF as the Hugging Face directory that converters of other programs read. Runs in the peer's environment, with its
transformers, and knows no peer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def as_directory(source: Path, place: Path) -> Path:
    """``source`` itself where it is one; else made at ``place``, in float32: a converter rounds once, from the file."""
    if source.is_dir():
        return source
    import torch
    import transformers

    options: dict[str, Any] = {"local_files_only": True, "gguf_file": source.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    model.save_pretrained(place)
    transformers.AutoTokenizer.from_pretrained(source.parent, **options).save_pretrained(place)
    return place
