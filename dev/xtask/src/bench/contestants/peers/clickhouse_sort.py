"""Sorts a text file by whole lines with ClickHouse in this process (chdb), file to file. Beyond `memory` bytes it
sorts with files in `spill`; some versions drop the carriage return of CRLF lines, so it is put back."""
import sys

from chdb import session

source, target, memory, threads, spill, crlf = sys.argv[1:7]
settings = (
    f"max_threads = {threads}, max_bytes_before_external_sort = {memory}, max_bytes_ratio_before_external_sort = 0, "
    "max_memory_usage = 0, engine_file_truncate_on_insert = 1"
)
line = "if(endsWith(line, '\\r'), line, concat(line, '\\r'))" if crlf == "crlf" else "line"
with session.Session(f"{spill}/clickhouse-of-bench") as clickhouse:
    clickhouse.query(
        f"INSERT INTO FUNCTION file('{target}', 'LineAsString', 'line String') "
        f"SELECT {line} AS line FROM file('{source}', 'LineAsString', 'line String') ORDER BY line SETTINGS {settings}"
    )
