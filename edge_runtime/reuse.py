"""Whose texts may make whose answers faster. Pure; knows no cache and no request.

Whatever is not computed again shows in how soon an answer comes, and in ``cached_tokens``: whoever may reuse a text can
find out whether it was asked. So every cache of texts asks an ``Owner`` first.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 64
"""Tokens that one user's prompt takes from another's at a time. Token by token, a text could be guessed a token at a
time, each guess confirmed by the next; so a guess has to be right about a whole block."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a text is."""

    client: int = 0
    """uid; below 0: nobody knows whose, and so of many."""
    salt: str = ""
    """What the client named this part of its texts; its parts are apart from each other too."""
    private: bool = False
    """Whether others are kept out, and their texts out of use."""

    @property
    def known(self) -> bool:
        """Whether equal owners are one: clients that cannot be told apart are, where they share a salt."""
        return self.client >= 0 or bool(self.salt)

    def same(self, other: Owner | None) -> bool:
        """Whether what is ``other``'s is this one's own."""
        return self == other and (self.known or not self.private)

    def usable(self, other: Owner | None, agreed: int) -> int:
        """Of ``agreed`` tokens at the start of a text of ``other``: how many this one may take."""
        if other is None or self.same(other):
            return agreed
        if self.private or other.private:
            return 0
        return agreed - agreed % BLOCK


ONE = Owner()
"""Where there is one client only."""
