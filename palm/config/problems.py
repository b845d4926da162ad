"""The one report that collects everything wrong with a configuration."""

from __future__ import annotations

from palm.core.errors import ConfigError


class Problems:
    """Lines of a report, each at most once, in the order found."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    @property
    def lines(self) -> list[str]:
        """The lines so far."""
        return list(self._found)

    def add(self, *lines: str) -> None:
        """Enter what is not in the report yet."""
        self._found |= dict.fromkeys(lines)

    def raise_if_any(self) -> None:
        """Raise all lines as one ConfigError."""
        if self.lines:
            raise ConfigError(self.lines)
