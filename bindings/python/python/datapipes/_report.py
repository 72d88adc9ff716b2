"""Reports: what was found, chosen or done, as text, as HTML and as a dict."""

from __future__ import annotations

import html
import json
from typing import Any


class Report:
    """A text for people and a dict for programs."""

    def __init__(self, title: str, text: str, data: dict[str, Any]) -> None:
        self.title = title
        self._text = text
        self._data = data

    @classmethod
    def _of(cls, title: str, made: tuple[str, str]) -> Report:
        return cls(title, made[0], json.loads(made[1]))

    def to_dict(self) -> dict[str, Any]:
        """A copy of what the report says."""
        return json.loads(json.dumps(self._data))  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<datapipes.Report {self.title}>"

    def _repr_html_(self) -> str:
        return f"<details open><summary>{html.escape(self.title)}</summary><pre>{html.escape(self._text)}</pre></details>"


def moved(title: str, counters: dict[str, dict[str, Any]]) -> Report:
    """A report of what was moved, by primitive."""
    lines = []
    for primitive, of in counters.items():
        line = f"{primitive}: {of['bytes']} bytes in {of['transfers']} transfers"
        if of["busy_ns"]:
            line += f", {of['bytes'] / of['busy_ns']:.2f} GB/s"
        facts = [
            ("past the page cache", of["direct_bytes"]),
            ("through the page cache", of["cached_bytes"]),
            ("bounced", of["bounced_bytes"]),
        ]
        said = ", ".join(f"{count} bytes {what}" for what, count in facts if count)
        lines.append(f"{line} ({said})" if said else line)
    text = "\n".join(lines) if lines else "nothing was moved"
    return Report(title, text, {"primitives": counters})
