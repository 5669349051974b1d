"""Stop strings over a text that arrives in pieces: where it ends, what must wait.

Fed token by token, so the outcome does not depend on how many tokens one step commits.
Pure; knows no tokens. Used by ``specdist.api.answer``.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Holds back only text that may still become a stop string.

    ``push`` returns the text that is free to be shown. Once a stop string is complete,
    ``hit`` names it, the text before it has been released and nothing more ever is. When
    one piece completes several, the one that starts first wins, then the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece; return what can be shown now."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, -len(s), s) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            at, _, self.hit = min(found)
            self._held = ""
            return text[:at]
        keep = self._num_to_hold(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text is over: what was held back is no stop string."""
        held, self._held = self._held, ""
        return held

    def _num_to_hold(self, text: str) -> int:
        """Length of the longest end of ``text`` that is the beginning of a stop string."""
        longest = min(len(text), max(len(s) for s in self._stops) - 1)
        for length in range(longest, 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stops):
                return length
        return 0
