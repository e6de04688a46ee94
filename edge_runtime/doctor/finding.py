"""What the doctor says of one thing. Knows no machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "advice", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    text: str
    fix: str = ""
    """A command, or what to do; empty where there is nothing to do."""
