"""No import circle anywhere: imports inside functions and for types alone are counted like the others."""

import grimp

ALLOWED = {frozenset({"unlazy.kernels.base", "unlazy.kernels.algebra"})}
"""Kernels add and multiply, and sums and products are kernels."""


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules that reach each other (strongly connected components of more than one), by Tarjan (1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imports[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            at = stack.index(module)
            group, stack[at:] = frozenset(stack[at:]), []
            if len(group) > 1:
                found.add(group)

    for module in imports:
        if module not in index:
            visit(module)
    return found


def test_an_import_cycle_is_found():
    line = {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a", "c"}}
    assert circles(line) == set()
    assert circles({**line, "c": {"a"}}) == {frozenset("abc")}
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c", "a"}}) == {frozenset("ab"), frozenset("cd")}


def test_only_kernels_and_their_sums_import_each_other():
    graph = grimp.build_graph("unlazy", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200 and "unlazy.kernels.algebra" in imports["unlazy.kernels.base"]  # a lazy import is seen
    assert circles(imports) == ALLOWED
