"""Every device ends with the rows that there are, whatever was written, compacted and cut off in between."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.compaction.compactor import CompactionStoppedError
from headwater.storage.address import StoreAddress
from headwater.storage.shared import segments
from tests.contract.compaction.compaction_setup import LAVISH, A, B, CompactionSetup
from tests.support.examples import examples
from tests.support.model_device import ModelBucket

_ROWS = st.sampled_from([str(n) for n in range(10)])
_TARGET = st.one_of(st.none(), st.tuples(st.sampled_from([A, B]), st.sampled_from(["x", "y", "z"])))
_STEP = st.one_of(
    st.dictionaries(_ROWS, _TARGET, min_size=1, max_size=5),
    st.sampled_from(["truncate", "publish", "compact", "compact", "lavish", "lavish", "halfway"]),
)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.dictionaries(_ROWS, _TARGET.filter(bool), max_size=8),
    steps=st.lists(_STEP, max_size=12),
    least_run=st.sampled_from([1, 2, segments.RUN_OPS]),
)
def test_devices_converge_after_compaction(
    new_address: Callable[[], StoreAddress],
    first: dict[str, tuple[str, str]],
    steps: list[dict[str, tuple[str, str] | None] | str],
    least_run: int,
) -> None:
    compacted = CompactionSetup(new_address())
    try:
        with patch.object(segments, "RUN_OPS", least_run):
            _live(compacted, first, steps)
    finally:
        compacted.close()


def _live(
    compacted: CompactionSetup, first: dict[str, tuple[str, str]], steps: list[dict[str, tuple[str, str] | None] | str]
) -> None:
    compacted.hand.publish(first)
    devices: list[dict[str, ModelBucket]] = [{A: compacted.device(A), B: compacted.device(B)}]
    for step in steps:
        match step:
            case "truncate":
                compacted.hand.truncate()
            case "publish":
                compacted.hand.publish(dict(compacted.hand.rows))
            case "compact":
                compacted.compact()
            case "lavish":
                compacted.compact(LAVISH)
            case str():
                interrupted(compacted)
            case _:
                compacted.hand.write(step)
        devices.append({A: compacted.device(A), B: compacted.device(B)})
        partial(compacted, devices)
    compacted.assert_whole({}, *devices)


def interrupted(compacted: CompactionSetup) -> None:
    """Compaction that is ended after its second transaction."""
    left = iter([False, False, True])
    try:
        compacted.compact(LAVISH, stopping=lambda _: next(left, True))
    except CompactionStoppedError:
        pass


def partial(compacted: CompactionSetup, devices: list[dict[str, ModelBucket]]) -> None:
    """Devices that were cut off after so many ops, wherever that is."""
    for bucket in (A, B):
        ops = compacted.ops(bucket)
        for had in {len(ops) // 3, len(ops) - 1}:
            model = ModelBucket()
            for op in ops[: max(0, had)]:
                model.apply(op)
            devices.append({bucket: model})
