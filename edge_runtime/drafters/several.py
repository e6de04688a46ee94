"""The drafters of one target, together. Knows neither which of them is good nor what any costs."""

from __future__ import annotations

from collections.abc import Sequence

from .protocol import NO_TOKENS, DraftContext, Drafter, DraftProposal


class Several:
    """Implements ``Drafter`` as well: the first that finds something, for policies that choose no drafter."""

    def __init__(self, name: str, free: Sequence[Drafter], models: Sequence[Drafter]) -> None:
        """``free`` cost microseconds to ask and draw nothing: what they say depends on the text alone."""
        self.name = name
        self.free, self.models = tuple(free), tuple(models)
        self._by_name = {one.name: one for one in (*free, *models)}
        if len(self._by_name) < len(self.free) + len(self.models):
            raise ValueError("two drafters have one name")
        self.window: int | None = None
        self.max_k = max((one.max_k for one in self._by_name.values()), default=0)
        self._last: dict[int, Drafter] = {}
        """Slot -> whose proposal was the last."""

    def named(self, name: str) -> Drafter:
        return self._by_name[name]

    def warm(self, context: DraftContext) -> int:
        """Of models alone: the others need no cache."""
        return sum(one.warm(context) for one in self.models)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        for one in (*self.free, *self.models):
            proposal = one.propose(context, k)
            if len(proposal.tokens):
                self.told_by(one, context.slot)
                return proposal
        return DraftProposal(NO_TOKENS, None, self.name, "nobody has a draft")

    def told_by(self, drafter: Drafter, slot: int) -> None:
        """Whose proposal goes out next."""
        self._last[slot] = drafter

    def observe(self, slot: int, accepted: int) -> None:
        if slot in self._last:
            self._last[slot].observe(slot, accepted)

    def reset(self, slot: int) -> None:
        self._last.pop(slot, None)
        for one in self._by_name.values():
            one.reset(slot)
