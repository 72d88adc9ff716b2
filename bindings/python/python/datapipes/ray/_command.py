"""`dpipe-ray`: the sort on Ray as a command."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from collections.abc import Sequence

from .._datapipes import __version__
from .._errors import Error

_REFUSED = {
    ("-m", "--merge"): "files in order are sorted as others are",
    ("-c", "-C", "--check"): "`dpipe sort -c` and `dpipe check` check files: lines, records and numbers",
    ("-R", "--random-sort", "--random-source"): "a random order is not sorted on a cluster",
    ("-S", "--buffer-size", "--memory"): "say --memory-per-task",
    ("--parallel", "--threads"): "say --parallelism",
    ("--batch-size",): "a range is merged in one pass",
    ("--compress-program", "--spill-compression", "--spill-order", "--method", "--explain"): "tasks decide it",
    ("--no-sync",): "parts are always durable before the output has its name",
    ("--debug", "--files0-from", "--report", "--report-html", "--metrics"): "only `dpipe sort` has it",
}

_LETTERS = {
    "b": ("--ignore-leading-blanks", "ignore leading blanks"),
    "d": ("--dictionary-order", "consider only blanks and alphanumeric characters"),
    "f": ("--ignore-case", "fold lower case to upper case characters"),
    "g": ("--general-numeric-sort", "compare according to general numerical value"),
    "h": ("--human-numeric-sort", "compare human readable numbers (e.g., 2K 1G)"),
    "i": ("--ignore-nonprinting", "consider only printable characters"),
    "M": ("--month-sort", "compare (unknown) < 'JAN' < ... < 'DEC'"),
    "n": ("--numeric-sort", "compare according to string numerical value"),
    "V": ("--version-sort", "natural sort of (version) numbers within text"),
}


_WORDS = {"general-numeric": "g", "human-numeric": "h", "month": "M", "numeric": "n", "version": "V"}
"""Words of --sort, and the letters that say the same."""

_TERASORT = "100:0:10"
"""What --records means without a value."""


class _Refuse(argparse.Action):
    """An option of `dpipe sort` that makes no sense on a cluster."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: object, name: str | None = None) -> None:
        why = next(why for names, why in _REFUSED.items() if self.option_strings[0] in names)
        parser.error(f"{name} is not an option of dpipe-ray sort: {why}")


def _records(text: str) -> tuple[int, int, int]:
    numbers = [int(number) for number in text.split(":")]
    length = numbers[0]
    start = numbers[1] if len(numbers) > 1 else 0
    if len(numbers) > 3:
        raise argparse.ArgumentTypeError(f"{text}: say LEN, LEN:KEYOFFSET or LEN:KEYOFFSET:KEYLEN")
    return length, start, numbers[2] if len(numbers) > 2 else length - start


def _letter(word: str) -> str:
    found = [letter for known, letter in _WORDS.items() if word and known.startswith(word)]
    if "random".startswith(word or "-"):
        raise argparse.ArgumentTypeError("a random order is not sorted on a cluster")
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{word!r}: say one of {', '.join(_WORDS)}")
    return found[0]


def _input(name: str) -> str:
    if name in ("", "-"):
        raise argparse.ArgumentTypeError("standard input is not sorted on a cluster: give files that all nodes see")
    return name


def parser() -> argparse.ArgumentParser:
    """The commands."""
    whole = argparse.ArgumentParser(prog="dpipe-ray", description="Data Pipes on a cluster of Ray.")
    whole.add_argument("--version", action="version", version=f"dpipe-ray {__version__}")
    commands = whole.add_subparsers(dest="command", required=True)
    commands.add_parser("sort", help="sort files into a folder of parts in order")
    return whole


def sort_parser() -> argparse.ArgumentParser:
    """The options of `sort`."""
    sort = argparse.ArgumentParser(
        prog="dpipe-ray sort",
        add_help=False,
        description="Sorts files that all nodes see into a folder of parts in order, which appears when it is "
        "complete and verified. Lines are ordered as by GNU sort in the C locale.",
        epilog="Exit status: 0 sorted, 2 an error, after which nothing is left under the output's name.",
    )
    add = sort.add_argument
    add(
        "inputs",
        nargs="+",
        type=_input,
        metavar="FILE",
        help='files, objects, or folders of files without those whose names begin with "." or "_"',
    )
    add("--help", action="help", help="display this help and exit")
    add("--version", action="version", version=f"dpipe-ray {__version__}", help="print the version and exit")
    add("-o", "--output", required=True, help="the folder to make; it must not exist")
    add("--single-file", action="store_true", help="make one file; the driver copies the parts together")
    for letter, (name, what) in _LETTERS.items():
        add(f"-{letter}", name, dest="letters", action="append_const", const=letter, help=what)
    add(
        "--sort",
        dest="letters",
        action="append",
        type=_letter,
        metavar="WORD",
        help=f"compare as the letters do: {', '.join(f'{word} -{letter}' for word, letter in _WORDS.items())}",
    )
    add("-k", "--key", dest="keys", action="append", default=[], metavar="KEYDEF", help="sort via a key, as of sort -k")
    add("-t", "--field-separator", dest="separator", metavar="SEP", help="use SEP between fields; '\\0' is NUL")
    add("-r", "--reverse", action="store_true", help="reverse the result of comparisons")
    add("-s", "--stable", action="store_true", help="lines with equal keys keep their order")
    add("-u", "--unique", action="store_true", help="output only the first of lines with equal keys")
    add("-z", "--zero-terminated", action="store_true", help="line delimiter is NUL, not newline")
    kinds = sort.add_mutually_exclusive_group()
    kinds.add_argument(
        "--records",
        type=_records,
        metavar="LEN[:KEYOFFSET[:KEYLEN]]",
        help=f"binary records by the bytes of their key; {_TERASORT} without `=` and a value",
    )
    for kind in ("u32", "u64", "i64", "f64"):
        kinds.add_argument(f"--{kind}", dest="format", action="store_const", const=kind, help="little-endian numbers")
    add("--memory-per-task", metavar="SIZE", help="what one task may use, beside Ray's object store: 512M, 2G")
    add("--parallelism", type=int, metavar="N", help="how many tasks run at once (all processors)")
    add("--partitions", type=int, metavar="N", help="how many parts the output has")
    add("-T", "--temporary-directory", dest="spill", metavar="DIR", help="a folder of each node, for sorted parts and runs")
    add(
        "--shuffle",
        choices=("direct", "store"),
        help="how sorted parts come to other nodes: as files that nodes send, or by Ray's object store "
        "(the store for at most 256 MiB a node)",
    )
    add("--address", help="the cluster, as ray.init takes it; otherwise RAY_ADDRESS, or a cluster of this machine")
    add("--json", action="store_true", help="print the account as JSON")
    add("--progress", action=argparse.BooleanOptionalAction, default=None, help="a line on standard error")
    for names in _REFUSED:
        add(*names, action=_Refuse, nargs="?", help=argparse.SUPPRESS)
    return sort


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    """What the words of the command line say. Options may stand behind files, as of sort."""
    if list(words[:1]) != ["sort"]:
        return parser().parse_args(words)
    rest = list(words[1:])
    options = rest.index("--") if "--" in rest else len(rest)
    # A value of --records stands behind `=` only, so that it takes no file.
    said = [f"--records={_TERASORT}" if word == "--records" else word for word in rest[:options]]
    return sort_parser().parse_intermixed_args([*said, *rest[options:]])


class _Signals:
    """The signals that ask the process to end."""

    def __init__(self) -> None:
        self._seen: signal.Signals | None = None
        self._caught: tuple[signal.Signals, ...] = ()

    def catch(self) -> None:
        """Take them from Ray, which would end the process at once."""
        self._caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in self._caught:
            signal.signal(number, self._note)
        shown = sys.unraisablehook
        # One that a destructor throws away was noted, and is no news.
        sys.unraisablehook = lambda of: None if of.exc_type is KeyboardInterrupt else shown(of)

    def _note(self, number: int, _frame: object) -> None:
        self._seen = signal.Signals(number)
        # Ray's compiled code lets this exception through, and makes of any other one an error of its own.
        raise KeyboardInterrupt

    def ignore(self) -> None:
        """The outcome is known. What Ray does at the end of the process, a signal does not make shorter."""
        for number in self._caught:
            signal.signal(number, signal.SIG_IGN)

    def check(self) -> None:
        """Fail if one came: where it was raised, it may have been thrown away (in a destructor)."""
        if self._seen is not None:
            raise KeyboardInterrupt

    def outcome(self, is_there: bool | None) -> tuple[str, int]:
        """What is said of the end, and the exit status."""
        how, status = self._end()
        said = {
            True: "the work was done, and the output is there",
            False: "nothing was left",
            None: "whether the output is there is not known, for the server does not answer",
        }
        return f"{how}; {said[is_there]}", status

    def _end(self) -> tuple[str, int]:
        if self._seen is None or self._seen == signal.SIGINT:
            return "interrupted", 128 + signal.SIGINT
        return f"ended by {self._seen.name}", 128 + self._seen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit status."""
    given = _arguments(sys.argv[1:] if arguments is None else arguments)
    shows = given.progress if given.progress is not None else sys.stderr.isatty()

    def progress(total: int, read: int, written: int) -> None:
        signals.check()
        if not shows:
            return
        # A last line without a newline gets one, so more may be written than was read.
        share = min(50 * (read + written) // total, 100) if total else 100
        print(f"\rdpipe-ray sort: {share:3}%", end="", file=sys.stderr, flush=True)

    signals = _Signals()
    report = None
    try:
        from ._cluster import join
        from ._sort import sort

        join(given.address, log_to_driver=False, logging_level=logging.ERROR)
        signals.catch()
        report = sort(
            given.inputs,
            given.output,
            records=given.records,
            format=given.format or "lines",
            keys=given.keys,
            separator="\0" if given.separator == "\\0" else given.separator,
            letters="".join(given.letters or ()),
            reverse=given.reverse,
            unique=given.unique,
            stable=given.stable,
            zero_terminated=given.zero_terminated,
            memory_per_task=given.memory_per_task,
            parallelism=given.parallelism,
            partitions=given.partitions,
            single_file=given.single_file,
            shuffle=given.shuffle,
            spill=given.spill,
            progress=progress,
        )
        signals.ignore()
        if shows:
            print(file=sys.stderr)
        shows = False
        print(json.dumps(report.to_dict()) if given.json else report, flush=True)
    except KeyboardInterrupt as interrupt:
        signals.ignore()
        said, status = signals.outcome(report is not None or getattr(interrupt, "is_done", False))
        print(f"dpipe-ray sort: {said}", file=sys.stderr)
        return status
    except (Error, ImportError, OSError) as error:
        signals.ignore()
        advice = getattr(error, "advice", None)
        said = f"{error} ({advice})" if advice and str(advice) not in str(error) else str(error)
        print(f"dpipe-ray sort: {said.removeprefix('sort: ')}", file=sys.stderr)
        return 2
    finally:
        if shows:
            print(file=sys.stderr)
    return 0


__all__ = ["main", "parser"]
