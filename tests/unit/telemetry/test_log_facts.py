"""What log lines say of where they come from."""

from __future__ import annotations

from contextvars import copy_context

from headwater.telemetry.log_facts import source_name, thread_beside


def test_lines_of_a_thread_name_the_source_of_the_one_that_made_it() -> None:
    said: list[str] = []

    def follow(source: str) -> None:
        source_name.set(source)
        thread = thread_beside(lambda: said.append(source_name.get()), "lease")
        thread.start()
        thread.join()

    for source in ("orders", "catalogue"):
        copy_context().run(follow, source)
    assert said == ["orders", "catalogue"]
