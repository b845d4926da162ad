"""The one report that collects everything wrong with a configuration."""

from __future__ import annotations

from palm.core.errors import ConfigError


class Problems:
    """Lines of a report, each at most once, in the order found."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, *lines: str) -> None:
        """Enter what is not in the report yet."""
        self.lines.extend(line for line in dict.fromkeys(lines) if line not in self.lines)

    def raise_if_any(self) -> None:
        """Raise all lines as one ConfigError."""
        if self.lines:
            raise ConfigError(self.lines)
