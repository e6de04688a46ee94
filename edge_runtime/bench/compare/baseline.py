"""Which plain mode of a bundle is the fastest: what every speed-up is over. Knows no drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ...bundle import TARGET, read_manifest
from ...loading import LoadedBundle, LoadSettings, load_bundle
from ...sampling import SamplingParams
from ..methods import PLAIN
from ..texts import Desk, Held, Law, Task

_ROUNDS, _TOKENS = 7, 24
_GREEDY = Law("greedy", SamplingParams(temperature=0.0))


def plain_modes(directory: Path) -> tuple[str, ...]:
    """Heads that a bundle can run; the deterministic mode is none of them, it is slower by design."""
    return ("full",) if read_manifest(directory).model(TARGET).screen is None else ("screened", "full")


def plain_ms(bundles: dict[str, LoadedBundle], prompt: str) -> dict[str, float]:
    """Milliseconds a token by mode, medians of rounds in which all of them take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in bundles}
    desks = {name: Desk(bundle, Held()) for name, bundle in bundles.items()}
    for number in range(_ROUNDS):
        for name in _turned(list(bundles), number):
            task = Task("", "", tuple(bundles[name].tokenizer.encode(prompt)))
            one = desks[name].speak(PLAIN, task, _GREEDY, number, _TOKENS)
            seconds[name].append(one.seconds_per_token)
    return {name: 1e3 * median(found) for name, found in seconds.items()}


def fastest_plain(
    subject: LoadedBundle, settings: LoadSettings, prompt: str, known_ms: dict[str, float] | None
) -> tuple[LoadedBundle, dict[str, float]]:
    """The bundle in its fastest plain mode, which may be ``subject`` as it is, and what each plain mode took.

    ``known_ms``: what they took in an earlier part of the same comparison.
    """
    modes = plain_modes(subject.directory)
    own: str = settings.head if settings.head in modes else "full"
    bundles = {own: subject}
    try:
        for mode in modes:
            if mode not in bundles:
                # Its files were just checked, and it drafts nothing.
                other = replace(settings, head=mode, drafter="none", verify_hashes=False)  # type: ignore[arg-type]
                bundles[mode] = load_bundle(subject.directory, other)
        found = known_ms or plain_ms(bundles, prompt)
        fastest = bundles[min(found, key=lambda mode: found[mode])]
    except BaseException:
        _close_others(bundles, subject)
        raise
    _close_others(bundles, subject, fastest)
    return fastest, found


def _turned(names: Sequence[str], number: int) -> Sequence[str]:
    return names if number % 2 == 0 else names[::-1]


def _close_others(bundles: dict[str, LoadedBundle], *kept: LoadedBundle) -> None:
    for bundle in bundles.values():
        if not any(bundle is one for one in kept):
            bundle.close()
