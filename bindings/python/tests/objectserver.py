"""The S3 server of the tests, behind a proxy that injects faults: `dev/objectserver/examples/serve.rs`.

DATAPIPES_TEST_SERVER names the program, with further words for it (`serve`, or `... --gateway CACHE`,
which is versitygw then).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PROGRAM = os.environ.get("DATAPIPES_TEST_SERVER", "").split()


class ObjectServer:
    """A server with the bucket `box`."""

    def __init__(self, folder: Path) -> None:
        words = [PROGRAM[0], folder, *PROGRAM[1:]]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._commands, self._answers = self._process.stdin, self._process.stdout
        self.settings: dict[str, str] = {}
        """What the environment of clients says."""
        while line := self._answers.readline().strip():
            name, value = line.split("=", 1)
            self.settings[name] = value
        assert self.settings, "the server did not start"
        self.say("bucket", "box")

    def say(self, *words: object) -> str:
        """A command of the program, and its answer."""
        print(*words, file=self._commands, flush=True)
        answer = self._answers.readline().strip()
        assert answer not in ("", "unknown"), words
        return answer

    def fault(self, count: int, method: str, part: str, *kind: object) -> None:
        """Do this to the next requests whose target has such a part."""
        self.say("fault", count, method, part, *kind)

    def hits(self) -> int:
        return int(self.say("hits"))

    def unfinished(self) -> int:
        """Uploads that are begun and not ended."""
        return int(self.say("unfinished"))

    def close(self) -> None:
        self._commands.close()
        self._process.wait()
