"""Sorts a text file by whole lines with Polars' streaming engine, file to file. It takes no memory limit."""
import os
import sys

source, target, threads, spill, crlf = sys.argv[1:6]
os.environ["POLARS_MAX_THREADS"] = threads
os.environ["POLARS_TEMP_DIR"] = spill
import polars  # noqa: E402, reads its environment when imported

line = polars.col("l")
lines = polars.scan_csv(source, has_header=False, separator="\x01", quote_char=None, schema={"l": polars.String})
# fill_null: an empty line is read as null.
lines.select(line.fill_null("")).sort("l").sink_csv(
    target,
    include_header=False,
    quote_style="never",
    separator="\x01",
    line_terminator="\r\n" if crlf == "crlf" else "\n",
    engine="streaming",
)
