"""Reads the recording `rec` in the current folder with programs that share no code.

pyarrow and DuckDB always; ClickHouse (chdb) and Spark where they are installed. Input: docs/recordings.md. Output on
standard output: the programs; for each table its rows, and for each column the sum of its whole numbers (modulo 2^64)
and the number of nulls, on which all agree; and the number of queries of the page that ran and returned a row. Fails if
two of them differ.
"""

import json
import pathlib
import re
import shutil
import sys
from collections.abc import Callable

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

try:
    import chdb
except ImportError:
    chdb = None
try:
    from pyspark.sql import SparkSession
except ImportError:
    SparkSession = None

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


def with_sql(ask: Callable[[str], list[tuple]], described: list[tuple[str, bool]], source: str) -> dict:
    """The same of a table, by a program with SQL; of each column its name, and whether it has whole numbers."""
    sums, nulls = {}, {}
    for name, whole in described:
        total = f"coalesce(sum({name}), 0)" if whole else "0"
        found = ask(f"select {total}, count(*) - count({name}) from {source}")[0]
        sums[name], nulls[name] = str(int(found[0]) % WORD), int(found[1])
    return {"rows": int(ask(f"select count(*) from {source}")[0][0]), "sums": sums, "nulls": nulls}


def ask_duckdb(query: str) -> list[tuple]:
    """Rows of a query."""
    return duckdb.sql(query).fetchall()


def with_duckdb(table: str) -> dict:
    """Rows, sums and nulls of a table."""
    source = f"read_parquet('rec/{table}/*.parquet')"
    columns = [(name, kind == "BIGINT") for name, kind, *_ in ask_duckdb(f"describe select * from {source}")]
    return with_sql(ask_duckdb, columns, source)


def ask_clickhouse(query: str) -> list[tuple]:
    """Rows of a query; numbers of 64 bits are text."""
    return [tuple(row) for row in json.loads(str(chdb.query(query, "JSONCompact")))["data"]]


def with_clickhouse(table: str) -> dict:
    """Rows, sums and nulls of a table. A sum of 64-bit numbers wraps in ClickHouse, as the one compared does."""
    source = f"file('rec/{table}/*.parquet', Parquet)"
    columns = [(row[0], "Int64" in row[1]) for row in ask_clickhouse(f"describe {source}")]
    return with_sql(ask_clickhouse, columns, source)


class Spark:
    """A session of Spark, in this process' Java virtual machine."""

    def __init__(self) -> None:
        settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.driver.host": "127.0.0.1"}
        builder = SparkSession.builder.master("local[1]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        self.session = builder.getOrCreate()

    def ask(self, query: str) -> list[tuple]:
        """Rows of a query."""
        return [tuple(row) for row in self.session.sql(query).collect()]

    def table(self, table: str) -> dict:
        """Rows, sums and nulls of a table."""
        frame = self.session.read.parquet(f"rec/{table}")
        frame.createOrReplaceTempView(table)
        columns = [(name, kind == "bigint") for name, kind in frame.dtypes]
        return with_sql(self.ask, columns, f"`{table}`")


def percentiles(table: str, keys: list[str], readers: dict) -> None:
    """The 99th percentile of each series, by a query of each program with SQL, and by hand."""
    names = ", ".join(keys)
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
    assert by_hand
    for reader, (ask, source) in readers.items():
        queried = ask(
            f"""with counts as (
                select {names}, upper_ns, sum(packets) as packets from {source.format(table=table)}
                group by {names}, upper_ns),
            ranked as (
                select {names}, upper_ns, sum(packets) over (partition by {names} order by upper_ns) as upto,
                    sum(packets) over (partition by {names}) as total
                from counts)
            select {names}, min(case when 100 * upto >= 99 * total then upper_ns end) from ranked group by {names}"""
        )
        found = {tuple(row[:-1]): int(row[-1]) for row in queried}
        assert found == by_hand, (reader, found, by_hand)


def main() -> None:
    """Compares all tables, and runs the queries of the page."""
    tables_with = {"DuckDB": with_duckdb}
    sql = {"DuckDB": (ask_duckdb, "'rec/{table}/*.parquet'")}
    if chdb:
        tables_with["ClickHouse"] = with_clickhouse
        sql["ClickHouse"] = (ask_clickhouse, "file('rec/{table}/*.parquet', Parquet)")
    if SparkSession and shutil.which("java"):
        spark = Spark()
        tables_with["Spark"] = spark.table
        sql["Spark"] = (spark.ask, "{table}")
    tables = {}
    for folder in sorted(pathlib.Path("rec").iterdir()):
        if not folder.is_dir():
            continue
        tables[folder.name] = with_pyarrow(folder.name)
        for reader, read in tables_with.items():
            found = read(folder.name)
            assert tables[folder.name] == found, (reader, folder.name, tables[folder.name], found)
    percentiles("path_buckets", ["path"], sql)
    percentiles("span_buckets", ["direction", "from_stage", "to_stage"], sql)
    duckdb.sql("set timezone = 'UTC'")
    text = pathlib.Path(sys.argv[1]).read_text()
    ran = 0
    for query in re.findall(r"```sql\n(.*?)```", text, re.DOTALL):
        # The recording is not of that time of the day.
        found = duckdb.sql(query.replace("between '03:10' and '03:14'", "is not null")).fetchall()
        assert found, query
        ran += 1
    json.dump({"readers": ["pyarrow", *tables_with], "tables": tables, "queries": ran}, sys.stdout)


main()
