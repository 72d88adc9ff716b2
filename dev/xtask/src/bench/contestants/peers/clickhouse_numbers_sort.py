"""Sorts a file of little-endian u64 with ClickHouse in this process (chdb), file to file. Beyond `memory` bytes it
sorts with files in `spill`."""
import sys

from chdb import session

source, target, memory, threads, spill = sys.argv[1:6]
settings = (
    f"max_threads = {threads}, max_bytes_before_external_sort = {memory}, max_bytes_ratio_before_external_sort = 0, "
    "max_memory_usage = 0, engine_file_truncate_on_insert = 1"
)
with session.Session(f"{spill}/clickhouse-of-bench") as clickhouse:
    clickhouse.query(
        f"INSERT INTO FUNCTION file('{target}', 'RowBinary', 'n UInt64') "
        f"SELECT n FROM file('{source}', 'RowBinary', 'n UInt64') ORDER BY n SETTINGS {settings}"
    )
