"""The memory budget: overrides, bound by free memory, invalid values."""

import pytest

from unlazy.core.devices import block_rows, free_memory, memory_budget, parse_bytes


def test_memory_sizes_as_text():
    assert parse_bytes("4GiB") == 4 * 2**30 and parse_bytes("500 MB") == 500 * 2**20 and parse_bytes("12") == 12
    for nonsense in ("", "much", "-3G", "0"):
        with pytest.raises(ValueError, match="memory size"):
            parse_bytes(nonsense)


def test_override_beats_environment_beats_free_memory(monkeypatch):
    monkeypatch.delenv("UNLAZY_MEMORY", raising=False)
    assert 0 < memory_budget() < free_memory() * 1.1
    monkeypatch.setenv("UNLAZY_MEMORY", "1MiB")
    assert memory_budget() == 2**20 and memory_budget(77) == 77 and memory_budget("1KiB") == 1024


def test_blocks_fill_the_budget_and_no_more():
    assert block_rows(1000, 10**6, budget=10_500) == 10
    assert block_rows(1000, 5, budget=10**9) == 5
    assert block_rows(10**9, 100, budget=1) == 1
