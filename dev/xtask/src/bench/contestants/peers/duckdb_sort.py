"""Sorts a text file by whole lines with DuckDB, file to file. The delimiter is a byte that never occurs, so a line
is one column; DuckDB drops the carriage return of CRLF lines, so it is put back."""
import sys
import duckdb

source, target, memory, threads, spill, crlf = sys.argv[1:7]
connection = duckdb.connect(config={"threads": int(threads), "memory_limit": memory, "temp_directory": spill})
connection.execute("SET preserve_insertion_order = false")
line = "coalesce(l, '')" + (" || chr(13)" if crlf == "crlf" else "")
reader = (
    f"read_csv('{source}', header = false, auto_detect = false, columns = {{'l': 'VARCHAR'}}, "
    "delim = '\x01', quote = '', escape = '', strict_mode = false)"
)
# coalesce: an empty line is read as NULL.
connection.execute(
    f"COPY (SELECT {line} AS l FROM (SELECT coalesce(l, '') AS l FROM {reader}) ORDER BY l) "
    f"TO '{target}' (FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER '\x01')"
)
