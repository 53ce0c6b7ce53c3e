"""What may go of a bucket's history: whatever a device has of it, what it gets afterwards leaves it right."""

from __future__ import annotations

import random
from dataclasses import replace
from zlib import crc32

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.oplog.op import CLEAR_BODY, finished_op, put_body, remove_body
from headwater.storage.shared import compaction
from headwater.storage.shared.compaction import CompactionPolicy, Cut, HistoryScan, Sealer
from tests.support.examples import examples
from tests.support.model_device import ModelBucket, parse_ops

NO_LIMIT = CompactionPolicy(spare=0, budget=1 << 40, price=1e9, least=1)

# ops of few rows, in few bodies, some of them hard to read
_ROWS = st.sampled_from(['a"b', "b\\", ',"checksum":7', "d\n", "", "e"])
_STEPS = st.lists(st.tuples(_ROWS, st.sampled_from(["PUT", "PUT", "REMOVE"]), st.integers(0, 3)), max_size=40)


def put(op_id: int, row: str, text: str = "x") -> bytes:
    return finished_op(op_id, put_body("todos", row, "1", text, crc32(f"{row} {text}".encode()))).encode()


def remove(op_id: int, row: str) -> bytes:
    return finished_op(op_id, remove_body("todos", row, "1", crc32(row.encode()))).encode()


def clear(op_id: int) -> bytes:
    return finished_op(op_id, CLEAR_BODY).encode()


def history_of(steps: list[tuple[str, str, int]]) -> list[bytes]:
    ops = [clear(10)]
    for op_id, (row, kind, text) in enumerate(steps, 1):
        ops.append(put(10 + 3 * op_id, row, f'{{"t":"{text}"}}') if kind == "PUT" else remove(10 + 3 * op_id, row))
    return ops


def runs_of(ops: list[bytes], sizes: list[int]) -> list[list[bytes]]:
    """The ops in runs of about these sizes."""
    runs, start = [], 0
    for size in [*sizes, len(ops)]:
        runs.append(ops[start : start + size])
        start += size
    return [run for run in runs if run]


def device(*parts: list[bytes]) -> ModelBucket:
    model = ModelBucket()
    for op in parse_ops(b",".join(line for part in parts for line in part)):
        model.apply(op)
    return model


def state(model: ModelBucket) -> tuple[object, int]:
    rows = {key: (data, checksum) for key, (_, data, checksum) in model.rows.items()}
    return rows, model.checksum


def scan(runs: list[list[bytes]], partitions: int = 1) -> HistoryScan:
    return compaction.scan([len(run) for run in runs], lambda n: b"\n".join(runs[n]), partitions=partitions)


def reput(runs: list[list[bytes]], history: HistoryScan, cut: Cut, first: int) -> list[bytes]:
    rows = [row for rows in compaction.live_before(cut, history, lambda n: b"\n".join(runs[n])) for row in rows]
    return [finished_op(op_id, row.body).encode() for op_id, row in enumerate(rows, first)]


def compact(runs: list[list[bytes]], *, clears: bool = True) -> list[bytes]:
    """What compaction leaves of a history."""
    history = scan(runs)
    kept = [compaction.shortened(b"\n".join(run), found.roles) for run, found in zip(runs, history.pieces, strict=True)]
    ops = [line for run in kept for line in run]
    cut = compaction.free_cut(history)
    number = sum(len(run) for run in runs[: cut.piece]) + cut.offset
    if not clears or not cut.gain:
        return ops
    last = compaction.op_head(ops[number - 1]).op_id
    return [compaction.clear_line(last, compaction.checksum_of(ops[:number])).encode(), *ops[number:]]


def assert_every_device_ends_as(whole: list[bytes], compacted: list[bytes]) -> None:
    """Whatever part of `whole` a device has, and then all of `compacted` that is beyond."""
    expected = state(device(whole))
    positions = [compaction.op_head(line).op_id for line in whole]
    for position in [0, *positions]:
        had = [line for line in whole if compaction.op_head(line).op_id <= position]
        gets = [line for line in compacted if compaction.op_head(line).op_id > position]
        assert state(device(had, gets)) == expected, position


@settings(max_examples=examples(300), deadline=None)
@given(steps=_STEPS, sizes=st.lists(st.integers(1, 7), max_size=12))
def test_device_at_any_position_converges(steps: list[tuple[str, str, int]], sizes: list[int]) -> None:
    whole = history_of(steps)
    runs = runs_of(whole, sizes)
    assert_every_device_ends_as(whole, compact(runs))
    assert_every_device_ends_as(whole, compact(runs, clears=False))


@settings(max_examples=examples(200), deadline=None)
@given(steps=_STEPS, more=_STEPS, sizes=st.lists(st.integers(1, 7), max_size=12))
def test_compacted_again(steps: list[tuple[str, str, int]], more: list[tuple[str, str, int]], sizes: list[int]) -> None:
    whole = history_of([*steps, *more])
    first, later = whole[: 1 + len(steps)], whole[1 + len(steps) :]
    once = compact(runs_of(first, sizes)) + later
    assert_every_device_ends_as(whole, once)
    twice = compact(runs_of(once, sizes))
    assert_every_device_ends_as(whole, twice)
    assert_every_device_ends_as(once, twice)
    assert compact(runs_of(twice, sizes)) == twice


@settings(max_examples=examples(200), deadline=None)
@given(steps=_STEPS, sizes=st.lists(st.integers(1, 7), max_size=12))
def test_reput_frees_what_is_before(steps: list[tuple[str, str, int]], sizes: list[int]) -> None:
    whole = history_of(steps)
    runs = runs_of(whole, sizes)
    history = scan(runs)
    cut = compaction.choose_cut(history, NO_LIMIT)
    grown = whole + reput(runs, history, cut, 1000)
    assert state(device(grown))[0] == state(device(whole))[0]
    short = compact(runs_of(grown, sizes))
    assert_every_device_ends_as(grown, short)
    assert len(short) <= history.live + 1
    assert len(short) == history.ops - cut.gain


@settings(max_examples=examples(100), deadline=None)
@given(steps=_STEPS, sizes=st.lists(st.integers(1, 7), max_size=12), partitions=st.integers(2, 4))
def test_scan_in_partitions(steps: list[tuple[str, str, int]], sizes: list[int], partitions: int) -> None:
    runs = runs_of(history_of(steps), sizes)
    assert scan(runs, partitions) == scan(runs)


def test_move() -> None:
    whole = [clear(1), put(2, "a", "old"), put(3, "b"), put(4, "a", "new")]
    moved = parse_ops(compact([whole], clears=False)[1])[0]
    assert moved == {"op_id": "2", "op": "MOVE", "checksum": parse_ops(whole[1])[0]["checksum"]}


def test_remove() -> None:
    short = compact([[clear(1), put(2, "stays"), put(3, "a"), remove(4, "a")]])
    assert [op["op"] for op in parse_ops(b",".join(short))] == ["CLEAR", "PUT", "MOVE", "REMOVE"]
    short = compact([[clear(1), put(3, "a"), remove(4, "a"), put(5, "stays")]])
    assert [op["op"] for op in parse_ops(b",".join(short))] == ["CLEAR", "PUT"]


def one_row_behind(dead: int) -> list[list[bytes]]:
    whole = [
        clear(1),
        put(2, "lives"),
        *(put(n, "changes", str(n)) for n in range(3, dead + 3)),
        remove(dead + 3, "changes"),
    ]
    return [whole[start : start + 1000] for start in range(0, len(whole), 1000)]


def test_one_row_behind_many_dead_ops() -> None:
    runs = one_row_behind(20_000)
    history = scan(runs)
    cut = compaction.choose_cut(history, CompactionPolicy())
    again = reput(runs, history, cut, 100_000)
    assert len(again) == 1
    assert len(compact([*runs, again])) == 2


def test_budget() -> None:
    history = scan(one_row_behind(2_000))
    assert compaction.choose_cut(history, CompactionPolicy(budget=10)).rows == 0
    assert compaction.choose_cut(history, CompactionPolicy(budget=10_000)).rows == 1


def test_cut_saves_most() -> None:
    """Ten rows in the way of 1,000 ops, then ten in the way of 20: the second ten stay."""
    ops = [clear(1)]
    for row, dead in (("cheap", 1_000), ("dear", 20)):
        ops += [put(len(ops) + 1, f"{row} {n}") for n in range(10)]
        ops += [put(len(ops) + 1 + n, f"{row} dead", str(n)) for n in range(dead)]
    ops += [put(len(ops) + 1 + n, f"end {n}") for n in range(300)]
    cut = compaction.choose_cut(scan([ops]), CompactionPolicy())
    assert (cut.rows, cut.gain) == (10, 999)


def test_history_with_few_useless_ops() -> None:
    ops = [clear(1), *(put(2 + n, str(n)) for n in range(1_000)), *(put(2_000 + n, str(n)) for n in range(100, 250))]
    assert compaction.choose_cut(scan([ops]), CompactionPolicy()).rows == 0
    assert compaction.choose_cut(scan([ops]), replace(CompactionPolicy(), spare=0.0, price=10.0)).rows > 0


def test_day_of_changes() -> None:
    """As many changes as there are rows, and half as many again, each of a row taken by chance."""
    chance = random.Random(7)
    rows = 4_000
    ops = [clear(1), *(put(2 + n, str(n)) for n in range(rows))]
    ops += [put(rows + 2 + n, str(chance.randrange(rows)), str(n)) for n in range(rows * 3 // 2)]
    runs = [ops[start : start + 1000] for start in range(0, len(ops), 1000)]
    history = scan(runs)
    cut = compaction.choose_cut(history, CompactionPolicy())
    again = reput(runs, history, cut, 1_000_000)
    assert len(compact([*runs, again])) <= 1.2 * rows + 1
    assert len(again) < rows * 3 // 2 * 0.6


def test_sealer() -> None:
    ops = [put(n, str(n)) for n in range(1, 2_501)] + [put(5_000 + n, str(n), "y" * 600_000) for n in range(3)]
    ops += [put(6_000, "large", "z" * 3_000_000), put(6_001, "last")]
    sealer = Sealer()
    sealer.add(ops[:700])
    sealer.add(ops[700:])
    runs = sealer.take()
    assert sealer.take() == []
    contents = [zstandard.decompress(run.bodies).split(b"\n") for run in runs]
    assert [line for lines in contents for line in lines] == ops
    assert [run.size for run in runs] == [999, 999, 503, 1, 1, 1, 1]
    for run, lines in zip(runs, contents, strict=True):
        assert (run.first, run.last) == (compaction.op_head(lines[0]).op_id, compaction.op_head(lines[-1]).op_id)
        assert run.checksum == compaction.checksum_of(lines)
