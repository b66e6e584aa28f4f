"""Reads the recording `rec` in the current folder with pyarrow and with DuckDB, which share no code.

Input: docs/recordings.md. Output on standard output: for each table its rows, and for each column the sum of its whole
numbers (modulo 2^64) and the number of nulls, on which both agree; and the number of queries of the page that ran and
returned a row. Fails if the two differ.
"""

import json
import pathlib
import re
import sys

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

WORD = 1 << 64


def with_pyarrow(table: str) -> dict:
    """Rows, sums and nulls of a table."""
    rows = ds.dataset(f"rec/{table}", format="parquet", exclude_invalid_files=False).to_table()
    sums, nulls = {}, {}
    for name in rows.column_names:
        column = rows[name]
        nulls[name] = column.null_count
        whole = pa.types.is_integer(column.type)
        sums[name] = str(sum(v for v in column.to_pylist() if v is not None) % WORD if whole else 0)
    return {"rows": rows.num_rows, "sums": sums, "nulls": nulls}


def with_duckdb(table: str) -> dict:
    """Rows, sums and nulls of a table."""
    source = f"read_parquet('rec/{table}/*.parquet')"
    columns = duckdb.sql(f"describe select * from {source}").fetchall()
    sums, nulls = {}, {}
    for name, kind, *_ in columns:
        total = f"coalesce(sum({name}), 0)" if kind == "BIGINT" else "0"
        found = duckdb.sql(f"select {total}, count(*) - count({name}) from {source}").fetchall()[0]
        sums[name], nulls[name] = str(int(found[0]) % WORD), found[1]
    count = duckdb.sql(f"select count(*) from {source}").fetchall()[0]
    return {"rows": count[0], "sums": sums, "nulls": nulls}


def percentiles(table: str, keys: list[str]) -> None:
    """The 99th percentile of each series, by a query and by hand."""
    names = ", ".join(keys)
    queried = duckdb.sql(
        f"""with ranked as (
            select {names}, upper_ns, sum(sum(packets)) over (partition by {names} order by upper_ns) as upto,
                sum(sum(packets)) over (partition by {names}) as total
            from 'rec/{table}/*.parquet' group by {names}, upper_ns)
        select {names}, min(upper_ns) filter (100 * upto >= 99 * total) from ranked group by {names}"""
    ).fetchall()
    rows = ds.dataset(f"rec/{table}", format="parquet").to_table().to_pylist()
    series: dict = {}
    for row in rows:
        series.setdefault(tuple(row[key] for key in keys), []).append((row["upper_ns"], row["packets"]))
    by_hand = {}
    for key, buckets in series.items():
        total, upto = sum(n for _, n in buckets), 0
        for upper, n in sorted(buckets):
            upto += n
            if 100 * upto >= 99 * total:
                by_hand[key] = upper
                break
    assert by_hand and {tuple(row[:-1]): row[-1] for row in queried} == by_hand, (queried, by_hand)


def main() -> None:
    """Compares all tables, and runs the queries of the page."""
    tables = {}
    for folder in sorted(pathlib.Path("rec").iterdir()):
        if not folder.is_dir():
            continue
        tables[folder.name] = with_pyarrow(folder.name)
        assert tables[folder.name] == with_duckdb(folder.name), folder.name
    percentiles("path_buckets", ["path"])
    percentiles("span_buckets", ["direction", "from_stage", "to_stage"])
    duckdb.sql("set timezone = 'UTC'")
    text = pathlib.Path(sys.argv[1]).read_text()
    ran = 0
    for query in re.findall(r"```sql\n(.*?)```", text, re.DOTALL):
        # The recording is not of that time of the day.
        found = duckdb.sql(query.replace("between '03:10' and '03:14'", "is not null")).fetchall()
        assert found, query
        ran += 1
    json.dump({"tables": tables, "queries": ran}, sys.stdout)


main()
