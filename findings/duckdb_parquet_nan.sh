#!/usr/bin/env bash
# DuckDB 2.0.1 (PyPI) reads Parquet files that pyarrow 26.0.1 wrote (so does pandas), with NaN in a column of floats: a
# reward that failed, the KL of a step that blew up.
#
# Expected: a query of the file gives what it gives of the same table in memory.
# Seen: DuckDB takes a column for free of NaN unless the file says otherwise, and then decides by minimum and maximum, which
# leave NaN out by the Parquet standard. So `isnan(kl)` finds no row, `max(kl)` is a number, and `kl > 0.5` returns a NaN
# (greater than all numbers in DuckDB) only if its row group has another hit. No error, no warning. polars 2.1.0 and
# pyarrow give the same rows for the file and for the table.
# What helps: `read_parquet(FILE, can_have_nan = true)`, or write NULL in place of NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import duckdb
import polars
import pyarrow
import pyarrow.parquet

nan = float("nan")
# Two row groups of three steps; steps 1 and 4 are NaN.
steps = pyarrow.table({"step": [0, 1, 2, 3, 4, 5], "kl": [0.1, nan, 0.2, 0.9, nan, 1.0]})
pyarrow.parquet.write_table(steps, "steps.parquet", row_group_size=3)
sources = {"table": "steps", "file": "'steps.parquet'", "file, can_have_nan": "read_parquet('steps.parquet', can_have_nan = true)"}
seen = {}
for name, source in sources.items():
    answers = [[step for (step,) in duckdb.sql(f"SELECT step FROM {source} WHERE {test} ORDER BY step").fetchall()] for test in ("isnan(kl)", "kl > 0.5")]
    seen[name] = (*answers, str(duckdb.sql(f"SELECT max(kl) FROM {source}").fetchall()[0][0]))
    print("%-20s isnan(kl): %-7s kl > 0.5: %-13s max(kl): %s" % (name + ":", *seen[name]))
assert seen["table"] == ([1, 4], [1, 3, 4, 5], "nan"), seen
assert seen["file"] == ([], [3, 4, 5], "1.0"), seen
assert seen["file, can_have_nan"] == seen["table"], seen
lazy = polars.scan_parquet("steps.parquet")
also = [lazy.filter(test).collect()["step"].to_list() for test in (polars.col("kl").is_nan(), polars.col("kl") > 0.5)]
print("polars, file:        isnan(kl): %-7s kl > 0.5: %s" % tuple(also))
assert also == list(seen["table"][:2]), also
PYTHON
# Output on 2026-11-30, Python 3.11.7:
#   table:               isnan(kl): [1, 4]  kl > 0.5: [1, 3, 4, 5]  max(kl): nan
#   file:                isnan(kl): []      kl > 0.5: [3, 4, 5]     max(kl): 1.0
#   file, can_have_nan:  isnan(kl): [1, 4]  kl > 0.5: [1, 3, 4, 5]  max(kl): nan
#   polars, file:        isnan(kl): [1, 4]  kl > 0.5: [1, 3, 4, 5]
