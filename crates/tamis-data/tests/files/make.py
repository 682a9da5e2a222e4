"""Writes the Parquet files beside it, as pyarrow and pandas write them (pip install pyarrow pandas)."""

import datetime
import decimal
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

os.chdir(os.path.dirname(os.path.abspath(__file__)))

verl = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "Sé breve."}, {"role": "user", "content": f"{i}*7?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(i * 7)},
        "extra_info": {"index": i, "split": "train", "tags": [["a"], [], None, ["b", "c"]][i % 4]},
    }
    for i in range(10)
]
table = pa.Table.from_pylist(verl)
pq.write_table(table, "verl.parquet", row_group_size=4)
for codec in ["gzip", "lz4", "zstd", "brotli", "none"]:
    pq.write_table(table.slice(0, 2), f"verl_{codec}.parquet", compression=codec)

# pandas: text prompts, float ground truths, nullable columns, an index.
pd.DataFrame(
    {"question": ["a", "b", "c"], "answer": [1.5, np.nan, 3.0], "level": pd.array([1, None, 3], dtype="Int64")},
    index=[5, 6, 7],
).to_parquet("pandas.parquet")

# Every type that a column may have, each with a null.
at = datetime.datetime(2024, 2, 29, 12, 30, 5, 250000)
types = pa.table(
    {
        "bool": pa.array([True, None]),
        "int8": pa.array([-1, None], pa.int8()),
        "int16": pa.array([-300, None], pa.int16()),
        "uint8": pa.array([255, None], pa.uint8()),
        "uint16": pa.array([65535, None], pa.uint16()),
        "uint32": pa.array([4294967295, None], pa.uint32()),
        "uint64": pa.array([18446744073709551615, None], pa.uint64()),
        "int64": pa.array([-(2**63), None], pa.int64()),
        "half": pa.array([np.float16(0.5), None], pa.float16()),
        "float": pa.array([0.25, None], pa.float32()),
        "double": pa.array([float("nan"), None], pa.float64()),
        "decimal": pa.array([decimal.Decimal("-12.50"), None], pa.decimal128(6, 2)),
        "fraction": pa.array([decimal.Decimal("0.07"), None], pa.decimal128(2, 2)),
        "text": pa.array(["naïve", None]),
        "large_text": pa.array(["large", None], pa.large_string()),
        "category": pa.array(["x", None]).dictionary_encode(),
        "binary": pa.array([b"\xff\x00", None]),
        "date": pa.array([at.date(), None]),
        "time_ms": pa.array([at.time(), None], pa.time32("ms")),
        "time_us": pa.array([at.time(), None], pa.time64("us")),
        "timestamp_ms": pa.array([at, None], pa.timestamp("ms")),
        "timestamp_us": pa.array([at, None], pa.timestamp("us", tz="UTC")),
        "timestamp_ns": pa.array([at, None], pa.timestamp("ns")),
        "list": pa.array([[1, None, 3], None]),
        "lists": pa.array([[[1], [], None], None], pa.list_(pa.list_(pa.int32()))),
        "structs": pa.array([[{"a": 1, "b": None}, None], []], pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        "map": pa.array([[("k", 1), ("l", None)], None], pa.map_(pa.string(), pa.int32())),
        "fixed": pa.array([b"ab", None], pa.binary(2)),
        "nothing": pa.array([None, None], pa.null()),
    }
)
pq.write_table(types, "types.parquet")

# Uneven rows, which the `datasets` library (5.2) writes as columns and fields of the logical type JSON.
import datasets  # noqa: E402

uneven = [
    {
        "data_source": "a",
        "prompt": [{"role": "user", "content": "1/2?"}],
        "reward_model": {"style": "rule", "ground_truth": "1/2"},
        "extra_info": {"index": 0},
    },
    {
        "data_source": "b",
        "prompt": [{"role": "system", "content": "Sé breve."}, {"role": "user", "content": "2+3?", "name": "bob"}],
        "reward_model": {"style": "rule", "ground_truth": 5},
        "extra_info": {"index": "x", "why": [1, 2.5]},
    },
    {"data_source": "c", "prompt": [{"role": "user", "content": "?"}], "reward_model": {"style": "rule", "ground_truth": None}, "extra_info": None},
]
datasets.Dataset.from_list(uneven, on_mixed_types="use_json").to_parquet("datasets.parquet")

# One row whose list has ten million members, in a file of 1 kB: more than a row may have.
zeros = pa.array(np.zeros(10_000_000, dtype=np.int8))
long = pa.ListArray.from_arrays(pa.array([0, len(zeros)], pa.int32()), zeros)
pq.write_table(pa.table({"uid": ["a"], "acc": [1], "other": long}), "long_list.parquet", compression="none")
