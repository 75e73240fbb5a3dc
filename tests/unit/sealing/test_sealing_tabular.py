"""Records in: one schema for a whole file, and errors that name positions, never content."""

from __future__ import annotations

import gzip
import json
import time
import traceback
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from pyarrow import parquet
from sealing_world import CANARY, json_lines, sealed_folder

from sealtrain.errors import DataInvalid, FormatUnknown, LimitExceeded, UsageError
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular import delimited, jsonarray, jsonl
from sealtrain.sealing.tabular.batches import BATCH_BYTES, evenly, open_records
from sealtrain.sealing.tabular.conversion import Conversion
from sealtrain.sealing.tabular.jsonscan import LinesScan, Undecided

pytestmark = pytest.mark.long


def read(*paths: Path) -> pa.Table:
    schema, batches = open_records(paths, lambda _: None)
    return pa.Table.from_batches(batches, schema=schema)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_json_lines_keep_their_values(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "text": "a", "score": 1, "tags": ["x"], "at": "2024-05-06", "deep": {"k": None}},
        {"id": 2, "text": None, "score": 2.5, "tags": [], "at": "soon", "deep": {"k": "v"}},
    ]
    assert read(write(tmp_path, "a.jsonl", json_lines(rows))).to_pylist() == rows


def test_json_types_are_settled_over_the_whole_file_not_its_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 1000)
    rows: list[dict[str, object]] = [{"n": number, "late": None} for number in range(500)]
    rows.append({"n": 0.5, "late": "2020-01-01", "new": True})
    table = read(write(tmp_path, "a.jsonl", json_lines(rows)))
    assert table.schema.field("n").type == pa.float64()
    assert table.schema.field("late").type == pa.string()
    assert table.num_rows == 501
    assert table.column("new").to_pylist() == [None] * 500 + [True]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}{"a": 2}\n\n{"a": 3}\n',
        '{"a": 1} {"a": 2}\n',
        '{"a":\n 1}\n',
        '{"a": 1}\r\n{"a": 2}{"a": 3}\r\n \r\n',
    ],
)
def test_an_object_of_several_lines_or_several_in_one_are_refused(
    tmp_path: Path, text: str
) -> None:
    path = write(tmp_path, "a.jsonl", text)
    with pytest.raises(RecordInvalid, check=carries(check="record")):
        read(path)
    with pytest.raises(Undecided):
        list(LinesScan([path]).batches())


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n", "\n\n"])
def test_lines_may_end_as_each_system_ends_them(tmp_path: Path, end: str) -> None:
    rows = [{"a": "{[" * 200, "n": number} for number in range(3000)]
    path = write(tmp_path, "a.jsonl", end.join(map(json.dumps, rows)))
    assert read(path).to_pylist() == rows


def test_blank_lines_a_byte_order_mark_and_a_missing_last_newline_do_no_harm(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
    assert read(path).to_pylist() == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("line", "position"),
    [
        (f'{{"a": "{CANARY}"', 3),
        (f'"{CANARY}"', 3),
        (f'{{"a": "{CANARY}"}} trailing', 3),
        (f'{{"a": 1, "b": {CANARY}}}', 3),
        ('{"a": 99999999999999999999999999}', 3),
        ('{"a": {"deep": [1, -9223372036854775809]}}', 3),
    ],
)
def test_a_bad_json_record_is_named_by_position_only(
    tmp_path: Path, line: str, position: int
) -> None:
    path = write(tmp_path, "a.jsonl", f'{{"a": 1}}\n{{"a": 2}}\n{line}\n{{"a": 3}}\n')
    assert_refused(lambda: read(path), RecordInvalid, f"record {position}")


def test_the_largest_integers_and_long_digits_in_text_are_kept(tmp_path: Path) -> None:
    rows = [
        {"a": (1 << 63) - 1, "t": "x: 99999999999999999999999999, y"},
        {"a": -(1 << 63), "t": ""},
    ]
    assert read(write(tmp_path, "a.jsonl", json_lines(rows))).to_pylist() == rows


def test_a_field_that_changes_its_type_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, object]] = [{"a": 1} for _ in range(300)] + [{"a": CANARY}]
    path = write(tmp_path, "a.jsonl", json_lines(rows))
    assert_refused(lambda: read(path), RecordInvalid, "record 301")
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 100)
    assert_refused(lambda: read(path), SchemaMismatch, "record")


@pytest.mark.claim("C511")
@pytest.mark.parametrize("shape", ["plain", "list", "object"])
@pytest.mark.parametrize("split", [False, True])
def test_an_integer_that_a_float_would_round_is_refused(
    tmp_path: Path, shape: str, split: bool
) -> None:
    def within(number: float) -> object:
        return {"plain": number, "list": [number], "object": {"k": number}}[shape]

    rows = [{"id": row, "x": within(value)} for row, value in enumerate([0.5, (1 << 53) + 1])]
    parts = [rows[:1], rows[1:]] if split else [rows]
    paths = [
        write(tmp_path, f"{number}.jsonl", json_lines(part)) for number, part in enumerate(parts)
    ]
    with pytest.raises(RecordInvalid) as caught:
        read(*paths)
    assert (caught.value.check, caught.value.column) == ("record", "x")


def calling(number: float, **more: object) -> dict[str, object]:
    call = {"function": {"name": "dose", "arguments": {"mg": number}}}
    return {"messages": [{"role": "assistant", "content": None, "tool_calls": [call], **more}]}


def offering(number: float) -> dict[str, object]:
    return {"tools": [{"type": "function", "function": {"name": "dose", "most": number}}]}


@pytest.mark.claim("C640")
@pytest.mark.parametrize("made", [calling, offering])
@pytest.mark.parametrize("split", [False, True])
def test_a_whole_number_that_a_tool_call_would_write_as_a_decimal_is_refused(
    tmp_path: Path, made: Any, split: bool
) -> None:
    rows = [made(0.5), made(1)]
    parts = [rows[:1], rows[1:]] if split else [rows]
    paths = [
        write(tmp_path, f"{number}.jsonl", json_lines(part)) for number, part in enumerate(parts)
    ]
    with pytest.raises(RecordInvalid) as caught:
        read(*paths)
    assert (caught.value.check, caught.value.column) == ("record", next(iter(rows[0])))
    with pytest.raises(Undecided):
        for _ in LinesScan(paths).batches():
            pass


def test_numbers_of_one_kind_in_tool_calls_are_kept(tmp_path: Path) -> None:
    for rows in (
        [calling(1), calling(2)],
        [calling(1.0), calling(0.5)],
        # No template writes these as JSON.
        [calling(1, weight=0.5), calling(2, weight=1.0)],
        [{"tools": ["dose"], "x": 0.5}, {"tools": [], "x": 1.0}],
    ):
        path = write(tmp_path, "a.jsonl", json_lines(rows))
        assert read(path).to_pylist() == rows


def test_integers_that_a_float_holds_are_kept(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"x": 0.5, "n": (1 << 53) + 1, "t": "9007199254740993"},
        {"x": 10**17, "n": -(1 << 60) - 1, "t": "[9007199254740993]"},
    ]
    assert read(write(tmp_path, "a.jsonl", json_lines(rows))).to_pylist() == rows


@pytest.mark.claim("C511")
def test_a_csv_integer_that_a_float_would_round_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "id,x\n1,0.5\n2,9007199254740993\n")
    with pytest.raises(RecordInvalid) as caught:
        read(path)
    assert (caught.value.check, caught.value.column) == ("record", "x")


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ('{"q": 1}\n{"q": 1, "a": 1, "a": 2}\n', "a"),
        ('{"q": 1}\n{"q": 1, "a": {"k": 1, "k": 2}}\n', None),
        ('{"q": 1, "ner": [[0, 4, "Protein"]]}\n', "ner"),
        ('{"q": 1}\n{"q": "one"}\n', "q"),
        ('{"q": {"k": 1}}\n{"q": {"k": [1]}}\n', "q"),
    ],
)
def test_a_refused_record_is_named_with_its_field(
    tmp_path: Path, rows: str, column: str | None
) -> None:
    with pytest.raises(RecordInvalid) as caught:
        read(write(tmp_path, "a.jsonl", rows))
    assert (caught.value.check, caught.value.column) == ("record", column)


@pytest.mark.claim("C511")
@pytest.mark.parametrize("order", [1, -1])
def test_nulls_and_empty_lists_of_one_file_take_the_type_of_another(
    tmp_path: Path, order: int
) -> None:
    empty = {"history": [], "deep": {"k": None, "l": []}, "late": None}
    full = {"history": [["a", "b"]], "deep": {"k": 1, "l": [{"m": 0.5}]}, "late": {"z": [True]}}
    files = [[empty] * 3, [full]][::order]
    paths = [
        write(tmp_path, f"{number}.jsonl", json_lines(rows)) for number, rows in enumerate(files)
    ]
    assert read(*paths).to_pylist() == [row for rows in files for row in rows]


@pytest.mark.claim("C511")
@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_what_no_record_says_a_type_of_is_sealed_without_one(tmp_path: Path, form: str) -> None:
    rows: list[dict[str, Any]] = [
        {"a": {"k": None, "l": []}, "m": [{"calls": None, "l": [None, None]}], "t": "x"},
        {"a": {"k": None, "l": [None]}, "m": [], "t": "y"},
        {"a": None, "m": [{"calls": None, "l": []}, {"calls": None, "l": None}], "t": "z"},
    ]
    text = json_lines(rows) if form == "jsonl" else json.dumps(rows)
    path = write(tmp_path, f"a.{form}", text)
    found = read(path)
    found.validate(full=True)
    assert found.to_pylist() == rows
    nothing = pa.list_(pa.null())
    assert found.schema.field("a").type == pa.struct({"k": pa.null(), "l": nothing})
    with sealed_folder(path, tmp_path / "sealed").open() as opened:
        assert opened.batch(0).to_pylist() == rows


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (",a,b\n0,x,y\n", "no name for column 1"),
        ("a,,b,\n0,x,y,z\n", "no name for column 2, 4"),
        ("", "no row"),
    ],
)
def test_a_csv_column_without_a_name_is_refused_by_its_number(
    tmp_path: Path, text: str, got: str
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        read(write(tmp_path, "a.csv", text))
    assert caught.value.got == got


@pytest.mark.claim("C620")
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_csv_in_utf16_is_read_by_its_mark_and_named_without(
    tmp_path: Path, encoding: str
) -> None:
    text = "Größe;b\n1;naïve 😀\n2;x\n"
    plain = read(write(tmp_path, "a.csv", text))
    marked = ("\ufeff" + text).encode(encoding)
    assert read(write(tmp_path, "b.csv", marked)).equals(plain)
    packed = tmp_path / "c.csv.gz"
    packed.write_bytes(gzip.compress(marked))
    assert read(packed).equals(plain)
    for wrong in (
        text.encode(encoding),
        marked[:-1],
        marked + b"\x00\xdc"[:: 1 if "le" in encoding else -1],
    ):
        with pytest.raises(RecordInvalid) as caught:
            read(write(tmp_path, "a.csv", wrong))
        assert (caught.value.check, caught.value.got) == ("encoding", "UTF-16")


def converted(path: Path, **told: Any) -> pa.Table:
    conversion = Conversion(**told)
    schema, batches = open_records([path], lambda _: None, conversion=conversion)
    return pa.Table.from_batches(batches, schema=schema)


@pytest.mark.claim("C620")
def test_numbers_and_dates_are_read_as_declared(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.csv",
        "age;crp;in;born;free\n7; 1,5 ;05/08/2025;1/2/1970;1,5\nn/a;2;;NA;2\n"
        " 41;-3e-2;1/1/1970;29/02/2000;x\n",
    )
    table = converted(
        path,
        numbers=frozenset({"age", "crp", "in"}),
        decimals="comma",
        dates={"in": "DD/MM/YYYY", "born": "DD/MM/YYYY"},
    )
    assert [str(part.type) for part in table.schema] == [
        "int64",
        "double",
        "int64",
        "string",
        "string",
    ]
    assert table.to_pydict() == {
        "age": [7, None, 41],
        "crp": [1.5, 2.0, -0.03],
        "in": [20305, None, 0],
        "born": ["1970-02-01", "", "2000-02-29"],
        "free": ["1,5", "2", "x"],
    }
    when = write(tmp_path, "b.csv", "at,a\n1970-01-02 06:00,x\n1969-12-31 12:00,y\n")
    assert converted(when, numbers=frozenset({"at"}), dates={"at": "YYYY-MM-DD hh:mm"}).column(
        "at"
    ).to_pylist() == [1.25, -0.5]
    assert converted(when, dates={"at": "YYYY-MM-DD hh:mm"}).column("at").to_pylist() == [
        "1970-01-02T06:00:00",
        "1969-12-31T12:00:00",
    ]


@pytest.mark.claim("C620")
def test_numbers_with_zeros_before_them_are_numbers_where_the_recipe_reads_them(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "a.csv", "hour,rate,on,code\n08,00.5,true,08\n+9,1,False,+9\n")
    table = converted(path, numbers=frozenset({"hour", "rate", "on"}))
    assert table.to_pydict() == {
        "hour": [8, 9],
        "rate": [0.5, 1.0],
        "on": [True, False],
        "code": ["08", "+9"],
    }
    comma = write(tmp_path, "b.csv", "x;on\n1,5;true\n02;false\n")
    table = converted(comma, numbers=frozenset({"x", "on"}), decimals="comma")
    assert table.to_pydict() == {"x": [1.5, 2.0], "on": [True, False]}


def test_a_code_in_a_later_block_than_the_first_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    path = write(tmp_path, "a.csv", "code\n" + "1.5\n" * 100 + "007\n")
    assert read(path).column("code")[100].as_py() == "007"


@pytest.mark.claim("C620")
@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["1.5", CANARY], {}),
        (["1.5", "1,5"], {}),
        (["1,5", "1.234,5"], {"decimals": "comma"}),
        (["1,5", "1.5"], {"decimals": "comma"}),
        (["1", "inf"], {}),
        (["1", "0x10"], {}),
        (["1", "1_000"], {}),
        (["01/02/2025", "31/02/2025"], {"dates": {"x": "DD/MM/YYYY"}}),
        (["01/02/2025", "02/01/25"], {"dates": {"x": "DD/MM/YYYY"}}),
        (["01/02/2025", "01/02/2025 10:00"], {"dates": {"x": "DD/MM/YYYY"}}),
        (["01/02/2025", "00/01/2025"], {"dates": {"x": "DD/MM/YYYY"}}),
        (["20241101", "2024111"], {"dates": {"x": "YYYYMMDD"}}),
        (["01/02/2025 23:59", "01/02/2025 24:00"], {"dates": {"x": "DD/MM/YYYY hh:mm"}}),
        (["29/02/2000", "29/02/1900"], {"dates": {"x": "DD/MM/YYYY"}}),
    ],
)
def test_a_cell_that_is_not_as_declared_is_refused_by_column_and_record(
    tmp_path: Path, cells: list[str], told: dict[str, Any]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y;x\n" + "".join(f"a;{cell}\n" for cell in cells))
    with pytest.raises(RecordInvalid) as caught:
        converted(path, numbers=frozenset({"x"}), **told)
    assert (caught.value.column, caught.value.got) == ("x", "record 2")
    assert CANARY not in str(caught.value.to_dict())


@pytest.mark.parametrize(
    ("told", "check"),
    [
        ({"decimals": "dot"}, "--decimals"),
        ({"dates": {"x": "DD/MM/YY"}}, "--dates"),
        ({"dates": {"x": "DD/MM"}}, "--dates"),
        ({"dates": {"x": "YYYY-MM-DD mm"}}, "--dates"),
        ({"dates": {"x": "YYYY.*MM-DD"}}, "--dates"),
        ({"dates": {"x": "YYYY-MM-DD DD"}}, "--dates"),
    ],
)
def test_what_cannot_be_declared_is_refused(told: dict[str, Any], check: str) -> None:
    with pytest.raises(UsageError) as caught:
        Conversion(**told)
    assert caught.value.check == check


def test_decimals_and_dates_are_declared_of_columns_that_a_csv_has(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        converted(write(tmp_path, "a.csv", "a,b\n1,2\n"), dates={"c": "YYYY-MM-DD"})
    assert caught.value.column == "c"
    with pytest.raises(UsageError):
        converted(write(tmp_path, "a.jsonl", '{"a": "1,5"}\n'), decimals="comma")


@pytest.mark.claim("C640")
@pytest.mark.parametrize("form", ["plain", "packed", "utf-16"])
@pytest.mark.parametrize(
    ("text", "closed"),
    [
        pytest.param('a,b\n1,"2\n3,4\n', False, id="rows in a cell"),
        pytest.param('a,b\n1,"2', False, id="cut in the last cell"),
        pytest.param('a,b\r\n1,"2 ""x""\r\n', False, id="quotes inside"),
        pytest.param('a;b\n1;"2\n', False, id="semicolons"),
        pytest.param('a\n"2\n3\n', False, id="one column"),
        pytest.param('a,b\n1,"2"\n', True, id="quoted"),
        pytest.param('a,b\n1,"2\n3"\n', True, id="lines in a cell"),
        pytest.param('a,b\n1,"2\n"\n\n', True, id="a cell that ends with a line"),
        pytest.param('a,b\n1,"\n"\n', True, id="a cell of a line"),
        pytest.param("a,b\n1,5'10\"\n", True, id="inches"),
        pytest.param('a,b\n1,""""\n', True, id="a quote"),
        pytest.param('a,b\n1,""""', True, id="a quote at the end"),
        pytest.param('a,b\n1,"2"x\n', True, id="text behind a quote"),
        pytest.param('a,b\n1,""\n', True, id="nothing"),
    ],
)
def test_a_csv_that_ends_within_quotes_is_refused(
    text: str, closed: bool, form: str, tmp_path: Path
) -> None:
    path = tmp_path / ("a.csv.gz" if form == "packed" else "a.csv")
    data = text.encode("utf-16" if form == "utf-16" else "utf-8")
    path.write_bytes(gzip.compress(data) if form == "packed" else data)
    if closed:
        assert read(path).num_rows == 1
        return
    with pytest.raises(RecordInvalid) as refused:
        read(path)
    assert refused.value.check == "record"


def test_a_csv_column_stays_text_where_the_recipe_reads_text(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, "0.csv", "question,answer,n\nx,1.50,1\ny,true,2\nz,7,3\n"),
        write(tmp_path, "1.csv", "question,answer,n\nx,9007199254740993,4\n"),
    ]
    schema, batches = open_records(
        paths, lambda _: None, conversion=Conversion(text=frozenset({"question", "answer"}))
    )
    table = pa.Table.from_batches(batches, schema=schema)
    assert table.column("answer").to_pylist() == ["1.50", "true", "7", "9007199254740993"]
    assert table.column("n").to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"b": ["x"], "a": [1]}, "a"),
        ({"a": [1.5], "b": ["x"]}, "a"),
        ({"a": [1]}, "b"),
    ],
    ids=["order", "type", "absent"],
)
def test_files_that_disagree_are_refused_with_a_column(
    tmp_path: Path, columns: dict[str, list[object]], column: str
) -> None:
    first, second = tmp_path / "0.parquet", tmp_path / "1.parquet"
    parquet.write_table(pa.table({"a": [1], "b": ["x"]}), first)
    parquet.write_table(pa.table(columns), second)
    with pytest.raises(SchemaMismatch) as caught:
        read(first, second)
    assert caught.value.column == column


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 100)
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1000)
    path = write(tmp_path, "a.jsonl", '{"a": "' + CANARY * 1000 + '"}\n')
    assert_refused(lambda: read(path), LimitExceeded, "a.jsonl")


def test_csv_types_are_settled_over_all_rows(tmp_path: Path) -> None:
    head = "id,zip,score,flag,text,empty,when\n"
    body = "".join(f'{i},007{i},{i},true,"a, b",,2024-01-02\n' for i in range(100))
    path = write(tmp_path, "a.csv", head + body + '100,1,1.5,false,"two\nlines",,x\n')
    table = read(path)
    assert [str(field.type) for field in table.schema] == [
        "int64", "string", "double", "bool", "string", "int64", "string",
    ]  # fmt: skip
    assert table.column("zip")[3].as_py() == "0073"
    assert table.column("text")[100].as_py() == "two\nlines"
    assert table.column("empty").null_count == 101
    assert table.column("when")[0].as_py() == "2024-01-02"


def test_a_packed_header_without_an_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(SchemaMismatch):
            open_records([path], lambda _: None)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        f"a,b\n1,2\n{CANARY}\n",
        f"a,b\n1,2\n1,2,{CANARY}\n",
        f'a,b\n1,2\n"{CANARY}\n',
    ],
)
def test_a_bad_csv_row_is_named_without_its_content(tmp_path: Path, text: str | bytes) -> None:
    assert_refused(lambda: read(write(tmp_path, "a.csv", text)), RecordInvalid, "row")


@pytest.mark.parametrize(
    "text",
    [
        f"a,b\n1,2\n{CANARY},\xff\n".encode("latin-1"),  # as a spreadsheet exports it
        f"a;b\n1;2\n{CANARY};\xe4\n".encode("cp1252"),
        f"\xe4,b\n{CANARY},2\n".encode("cp1252"),
        f"a,b\n{CANARY},2\n".encode("utf-16-le"),  # without its mark
    ],
)
def test_a_csv_in_another_encoding_is_named_as_that(tmp_path: Path, text: bytes) -> None:
    path = write(tmp_path, "a.csv", text)
    with pytest.raises(RecordInvalid, check=carries(check="encoding")):
        read(path)
    assert_refused(lambda: read(path), RecordInvalid, "UTF-8")


@pytest.mark.claim("C623")
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_row_before_blocks_that_are_read_ahead_is_refused(
    tmp_path: Path, packed: bool
) -> None:
    text = b"a,b\n1\n" + b"1,2\n" * (5 << 20)
    path = write(
        tmp_path, "a.csv.gz" if packed else "a.csv", gzip.compress(text, 1) if packed else text
    )
    assert_refused(lambda: read(path), RecordInvalid, "row")


def test_long_text_in_utf16_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "MAX_RECODED_BYTES", 8)
    read(write(tmp_path, "a.csv", "a,b\n1,2\n".encode("utf-16")))
    with pytest.raises(LimitExceeded):
        read(write(tmp_path, "b.csv", "a,b\n11,2\n".encode("utf-16")))


@pytest.mark.parametrize("text", ["", "\n", "a,a\n1,2\n", "a,,b\n1,2,3\n"])
def test_a_csv_header_names_every_column_once(tmp_path: Path, text: str) -> None:
    with pytest.raises((SchemaMismatch, RecordInvalid)):
        read(write(tmp_path, "a.csv", text))


def test_parquet_and_arrow_lose_dictionaries_and_metadata_only(tmp_path: Path) -> None:
    kind = pa.array(["x", "y", "x"]).dictionary_encode()
    table = pa.table({"kind": kind, "blob": [b"\x00", None, b"\xff"]}, metadata={"a": "b"})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        back = read(tmp_path / name)
        assert back.schema == pa.schema([("kind", pa.string()), ("blob", pa.binary())])
        assert back.schema.metadata is None
        assert back.to_pylist() == table.to_pylist()


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_columnar_file_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, CANARY * 10)
    assert_refused(lambda: read(path), RecordInvalid, "not a readable")


def test_an_arrow_file_with_offsets_outside_its_memory_is_refused(tmp_path: Path) -> None:
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("t", pa.string())])) as writer:
        writer.write_batch(pa.record_batch([["x" * 1_234_567]], names=["t"]))
    data = (tmp_path / "a.arrow").read_bytes()
    offset = (1_234_567).to_bytes(4, "little")
    place = data.index(bytes(4) + offset + b"\0")
    (tmp_path / "a.arrow").write_bytes(
        data[: place + 4] + (1 << 30).to_bytes(4, "little") + data[place + 8 :]
    )
    assert_refused(lambda: read(tmp_path / "a.arrow"), RecordInvalid, "not a readable")


def test_several_files_must_agree(tmp_path: Path) -> None:
    one = write(tmp_path, "1.jsonl", json_lines([{"a": 1}]))
    two = write(tmp_path, "2.jsonl", json_lines([{"a": 2.5, "b": "x"}]))
    assert read(one, two).to_pylist() == [{"a": 1.0, "b": None}, {"a": 2.5, "b": "x"}]
    three = write(tmp_path, "3.jsonl", json_lines([{"a": "text"}]))
    with pytest.raises(SchemaMismatch):
        read(one, three)
    with pytest.raises(SchemaMismatch):
        read(write(tmp_path, "1.csv", "a\n1\n"), write(tmp_path, "2.csv", "b\n1\n"))


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown):
        read(write(tmp_path, "a.docx", "x"))


def test_batches_come_out_evenly_whatever_came_in() -> None:
    schema = pa.schema([("t", pa.string())])
    rows = [f"{number:05d}" * (number % 300) for number in range(20_000)]
    small = [pa.record_batch([rows[i : i + 7]], schema=schema) for i in range(0, 20_000, 7)]
    large = [pa.record_batch([rows], schema=schema)]
    for source in (small, large):
        batches = list(evenly(source, schema))
        assert [value for batch in batches for value in batch.column(0).to_pylist()] == rows
        assert all(batch.nbytes < 2 * BATCH_BYTES for batch in batches)
        assert all(batch.nbytes > BATCH_BYTES / 3 for batch in batches[:-1])
    assert list(evenly([], schema)) == []


def assert_refused(work: Callable[[], object], error: type[DataInvalid], text: str) -> None:
    """``work`` raises ``error`` naming ``text``; no part of its trace holds the canary."""
    with pytest.raises(error) as caught:
        work()
    assert text in str(caught.value)
    trace = "".join(traceback.format_exception(caught.value))
    shown = [line for line in trace.splitlines() if not line.lstrip().startswith(("f'", 'f"'))]
    assert CANARY not in "\n".join(shown)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 4096])
def test_a_json_array_gives_what_the_same_records_as_lines_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(jsonarray, "CHUNK_CHARACTERS", chunk)
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 256)
    rows = [
        {"n": 9007199254740993, "x": 0.1, "text": 'a "[{]},\\ \n é \u2028', "in": {"k": [1, 2]}},
        {"n": -1, "x": 1e-300, "text": None, "in": {"k": []}},
        *({"n": number, "x": 0.5, "text": "x" * number, "in": None} for number in range(20)),
    ]
    lines = read(write(tmp_path, "a.jsonl", json_lines(rows)))
    for indent in (None, 2):
        for mark in ("", "\ufeff"):
            array = mark + json.dumps(rows, indent=indent, ensure_ascii=False) + "\n "
            assert read(write(tmp_path, "a.json", array)).equals(lines)
    assert read(write(tmp_path, "b.json", json_lines(rows))).equals(lines)
    assert read(write(tmp_path, "none.json", " [ ] ")).num_rows == 0


@pytest.mark.parametrize(
    "text",
    [
        f'[{{"a": "{CANARY}"}}, {CANARY}]',
        f'[{{"a": "{CANARY}"}} {{"a": 1}}]',
        f'[{{"a": "{CANARY}"}}, ]',
        f'[{{"a": "{CANARY}"',
        f'[{{"a": "{CANARY}"}}] {CANARY}',
        f'[["{CANARY}"]]',
        f'{{\n"a": "{CANARY}"}}',
        '[{"a": ' + "[" * 100_000,
        b"[\xff]",
        b'[{"a": "\xff"}]',
    ],
)
def test_a_broken_json_array_is_refused_without_its_content(
    tmp_path: Path, text: str | bytes
) -> None:
    with pytest.raises(RecordInvalid) as caught:
        read(write(tmp_path, "a.json", text))
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("chunk", [1, 5, 64, 256])
@pytest.mark.parametrize(
    ("second", "column"),
    [
        ('{"a": tru, "b": 1}', 8),
        ('{"a": "x" "b": 1}', 12),
        ('{"a": 1,, "b": 2}', 10),
        ('{"a": "x\\q"}', 10),
        ('{"a": NaNo, "b": "abcdefghijklmnop"}', 11),
        ('{a: 1, "b": "abcdefghijklmnop"}', 3),
        ("[1]", 2),
    ],
)
def test_a_broken_record_in_a_long_array_is_refused_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, second: str, column: int
) -> None:
    """However much follows: the array is longer than a record may be."""
    monkeypatch.setattr(jsonarray, "CHUNK_CHARACTERS", chunk)
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1000)
    rest = ",\n".join([json.dumps({"a": CANARY})] * 200)
    path = write(tmp_path, "a.json", f'[\n{{"a": "{CANARY}"}},\n {second},\n{rest}]')
    with pytest.raises(
        RecordInvalid, check=carries(check="record", got=f"line 3, column {column}")
    ):
        read(path)


def test_an_endless_record_of_an_array_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonarray, "CHUNK_CHARACTERS", 64)
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1000)
    path = write(tmp_path, "a.json", '[{"a": 1},\n{"a": "' + CANARY * 1000 + '"}]')
    assert_refused(lambda: read(path), LimitExceeded, "record 2")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "a;b\n1;x, y\n2;z\n"),
        ("a.csv", "a\tb\n1\tx, y\n2\tz\n"),
        ("a.tsv", "a\tb\n1\tx, y\n2\tz\n"),
        ("a.csv", '\ufeff"a";"b"\n1;"x, y"\n2;z\n'),
        ("a.CSV", 'a,b\n1,"x, y"\n2,z\n'),
    ],
)
def test_what_separates_columns_is_read_from_the_first_row(
    tmp_path: Path, name: str, text: str
) -> None:
    expected = [{"a": 1, "b": "x, y"}, {"a": 2, "b": "z"}]
    assert read(write(tmp_path, name, text)).to_pylist() == expected
    packed = write(tmp_path, f"{name}.gz", gzip.compress(text.encode()))
    assert read(packed).to_pylist() == expected


def test_one_column_and_names_with_other_marks_stay_as_they_are(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.csv", "text\na;b\n")).to_pylist() == [{"text": "a;b"}]
    both = read(write(tmp_path, "b.csv", "a;b,c\n1;2,3\n"))
    assert both.to_pylist() == [{"a;b": "1;2", "c": 3}]
    quoted = read(write(tmp_path, "d.csv", 'z;"x,y"\n1;2\n'))
    assert quoted.to_pylist() == [{"z": 1, "x,y": 2}]
    doubled = read(write(tmp_path, "e.csv", '"say ""a""",b\n1,2\n'))
    assert doubled.to_pylist() == [{'say "a"': 1, "b": 2}]
    header = read(write(tmp_path, "c.csv", '"a;\nb",c\n1,2\n'))
    assert header.column_names == ["a;\nb", "c"]


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: data[:20] + b"\x00" * 40])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    data = gzip.compress(json_lines([{"a": number} for number in range(500)]).encode())
    with pytest.raises(RecordInvalid):
        read(write(tmp_path, "a.jsonl.gz", spoil(data)))


def test_half_of_a_surrogate_pair_is_refused_with_its_record(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"a": "x", "b": ["y"]}\n{"a": "x", "b": ["\\ud83d\\ude00", "\\ud800"]}\n')
    with pytest.raises(RecordInvalid, match=r"record 2 .* field b") as refused:
        open_records([path], lambda _: None)
    assert (refused.value.check, refused.value.column) == ("record", "b")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "' + 'say \\"x\\" ' * 50_000,
        '{"a": "' + "[]" * 100 + 'say \\"x\\" ' * 50_000,
        '{"a":' + "[\n" * 20_000 + "]" * 20_000 + "}",
        '{"a":' + "[\r\n" * 20_000 + "]" * 20_000 + "}",
    ],
    ids=["cut", "cut behind brackets", "deep over lines", "deep over lines of Windows"],
)
def test_what_is_broken_is_refused_in_time_that_grows_with_it(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, "a.jsonl", '{"a": "x"}\n' + text)
    began = time.process_time()
    with pytest.raises(RecordInvalid) as caught:
        read(path)
    assert caught.value.check == "record"
    assert time.process_time() - began < 5


def test_brackets_in_texts_and_many_records_are_not_deep(tmp_path: Path) -> None:
    rows = [{"a": "[{" * 5000, "b": [{"c": ["x"] * 200}] * 200} for _ in range(3)]
    text = json_lines(rows)
    for name, lines in (("a", text), ("b", text.replace("\n", "\r\n")), ("c", f" {text}\n\n")):
        assert read(write(tmp_path, f"{name}.jsonl", lines)).to_pylist() == rows
