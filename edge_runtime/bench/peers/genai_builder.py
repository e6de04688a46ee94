"""The model builder of onnxruntime-genai 0.18, told what it misses of Gemma 3: it needs transformers 5, and looks for
rotary settings where release 4 kept them. Takes the builder's own arguments. Runs in the peer's environment.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from typing import Any


def main() -> None:
    # A program here is called as the package that it drives.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    importlib.import_module("onnxruntime_genai.models")  # puts its builders on the path
    builders: Any = importlib.import_module("builders")

    class Told(builders.Gemma3Model):  # type: ignore[misc]
        def __init__(self, config: Any, *more: Any) -> None:
            rotary = config.rope_parameters
            config.rope_theta = rotary["full_attention"]["rope_theta"]
            config.rope_local_base_freq = rotary["sliding_attention"]["rope_theta"]
            super().__init__(config, *more)

        def make_rope_init(self, config: Any) -> None:
            """For scaled rotations, which it would read in one place for all layers."""

    builders.Gemma3Model = Told
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
