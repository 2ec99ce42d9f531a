"""How much memory there is, by the machine and by a control group."""

from __future__ import annotations

from pathlib import Path

from shoal.engine.host_memory import host_memory_bytes


def test_a_control_group_bounds_what_the_machine_has(tmp_path: Path) -> None:
    limit, free, absent = tmp_path / "limit", tmp_path / "free", tmp_path / "absent"
    limit.write_text("12345678\n")
    free.write_text("max\n")
    machine = host_memory_bytes((free, absent))
    assert machine > 64 << 20
    assert host_memory_bytes((absent, limit)) == 12345678
    assert host_memory_bytes() <= machine
