"""What is compared: a drafter, its strategy, a length of drafts and a rule of acceptance, by name. Knows no text and no
figure.

The names are those that a loaded bundle offers, so that a new drafter or policy appears here by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ..decoder import Clock, Decoder
from ..drafters.strategy import STRATEGIES, Strategy, strategy_named
from ..errors import ConfigError, did_you_mean
from ..loading import LENGTH_POLICIES, DrafterName, LoadedBundle, length_policy, most_draft_tokens
from ..session import Policy

AUTO = "auto"
SEARCHED_K = (1, 2, 3, 4, 5, 6, 7)
_AS_REQUESTED = STRATEGIES[0]
_RULES: tuple[Policy, ...] = ("exact", "threshold")
"""Of acceptance, by name. For requests without a seed, lossless is the sampled rule: it is every other method's."""
_COPY = ("lookup", "suffix")
"""Drafters without weights, which no strategy changes."""


@dataclass(frozen=True, slots=True)
class Method:
    drafter: str
    length: str
    """A policy of K by name, or a number."""
    acceptance: Policy = "lossless"
    strategy: str = _AS_REQUESTED

    @property
    def label(self) -> str:
        """For tables and records, as in ``lookup auto`` or ``mtp K=3``."""
        words = [self.drafter, f"K={self.length}" if self.length.isdecimal() else self.length]
        words += [self.strategy] * (self.strategy != _AS_REQUESTED)
        words += [self.acceptance] * (self.acceptance != "lossless")
        return " ".join(words)

    @property
    def lossy(self) -> bool:
        return self.acceptance == "threshold"

    def differs(self, greedy: bool) -> bool:
        """Whether it is something of its own under such a law.

        The lossy rule knows no law but greedy's; other rules and strategies are told apart by what is drawn.
        """
        if self.lossy:
            return greedy
        return not greedy or (self.acceptance == "lossless" and self.strategy in (_AS_REQUESTED, "beam"))


PLAIN = Method("none", "0")
DEFAULT = Method(AUTO, AUTO)
"""What binds the floors: nobody has chosen anything."""


def policy_names() -> tuple[str, ...]:
    """Lengths, then rules of acceptance and strategies of drafting, which come with the measured length."""
    return (*LENGTH_POLICIES, *_RULES, *STRATEGIES[1:])


def named_methods(bundle: LoadedBundle, drafters: Sequence[str], policies: Sequence[str]) -> tuple[Method, ...]:
    """Each drafter with each policy (all that there are for none), the default left out. Raises ``ConfigError``.

    The chooser goes by its own prices, so it comes with the measured length only.
    """
    offered, known = bundle.drafters(), policy_names()
    for name in drafters:
        if name not in offered:
            raise ConfigError(f"drafters: {name!r} is none of {', '.join(offered)}{did_you_mean(name, offered)}")
    for name in policies:
        if name not in known and not (name.isdecimal() and 1 <= int(name) <= SEARCHED_K[-1]):
            choices = f"{', '.join(known)} or a K from 1 to {SEARCHED_K[-1]}"
            raise ConfigError(f"policies: {name!r} is none of {choices}{did_you_mean(name, known)}")
    pairs = _pairs(drafters or offered, policies or known)
    return tuple(method for method in pairs if method != DEFAULT and _possible(bundle, method))


def _pairs(drafters: Sequence[str], policies: Sequence[str]) -> Iterator[Method]:
    for drafter in drafters:
        for policy in policies:
            rule = next((rule for rule in _RULES if rule == policy), None)
            if rule is not None:
                yield Method(drafter, AUTO, rule)
            elif policy in STRATEGIES:
                yield Method(drafter, AUTO, strategy=policy)
            else:
                yield Method(drafter, policy)


def _possible(bundle: LoadedBundle, method: Method) -> bool:
    if method.drafter == AUTO:
        return method.length == AUTO and method.strategy == _AS_REQUESTED
    if method.drafter in _COPY:
        return method.strategy == _AS_REQUESTED
    try:
        bundle.drafter(cast(DrafterName, method.drafter), _strategy(method))
    except ConfigError:
        return False
    return True


def fixed_methods(bundle: LoadedBundle, drafters: Sequence[str], ks: Sequence[int]) -> tuple[Method, ...]:
    """What the best fixed choice is searched among."""
    names = [name for name in (drafters or bundle.drafters()) if name != AUTO]
    return tuple(Method(name, str(k)) for name in names for k in ks)


def decoder_for(bundle: LoadedBundle, method: Method, clock: Clock) -> Decoder:
    """Of its own, with its own memory of costs and acceptance. Raises ``ConfigError``."""
    drafter, strategy = cast(DrafterName, method.drafter), _strategy(method)
    longest = bundle.target.info.max_rows - 1
    length = length_policy(method.length, longest)
    if method == PLAIN or length is None:
        return bundle.decoder(drafter, length, strategy=strategy, clock=clock)
    # A rule may ask for longer drafts than one call of the head reads; the measured length is bound by it.
    rows = max(bundle.max_head_rows, most_draft_tokens(method.length, longest) + 1)
    longer = replace(bundle, max_head_rows=rows).drafter(drafter, strategy)
    return Decoder(bundle.target, longer, length, max_head_rows=bundle.max_head_rows, clock=clock)


def _strategy(method: Method) -> Strategy | None:
    return None if method.strategy == _AS_REQUESTED else strategy_named(method.strategy)
