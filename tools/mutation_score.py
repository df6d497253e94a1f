"""Mutation score of the formulas: small faults are planted, and each should make a test fail.

    python tools/mutation_score.py [--mutants 420] [--workers 2] [--seconds 3600] [--seed 0] [--output FILE]
                                   [--coverage FILE] [--resume FILE] [--again FILE] [--source PATH ...]
                                   [--tests PATH ...] [--slow PATH ...] [--exclude TEXT ...]

First every test file runs once as it is: a trace says which tests execute which lines, and tests that fail or cannot
run here are left out. Then the slow tests of `--slow` (not the nightly ones) run in the same way. A mutant is one small
change of one expression of `src/unlazy/theory` or `src/unlazy/kernels` (`mutations`), drawn with the seed from all
sites, each equally likely. For a mutant the tests of those files run that execute its line: the module's own file and
the quickest tests first, `--cpu` seconds of them as measured in the first run, until one fails. A constant of the
module counts as executed where a line reads its name. Each mutant runs in a process forked from one that has imported
JAX and pytest, on a copy of the tree.

killed     a test failed, or the module could not be imported
survived   all chosen tests passed, or no test executes the line
timeout    over `--cpu` and four times what the tests took before: counted as not killed, as a slow test is no proof
not run    the time was up (not part of the score)

The output is written after each verdict; `--resume` continues from it.

`--again` takes the mutants of an earlier output instead of new draws and finds them by their text: tests written since
are then judged by the same mutants, though other lines of the file moved. A survivor is a gap in the tests, a change
that no result shows (thresholds of speed and memory, a guard against what other code excludes), or code that only runs
where this run did not (a GPU, several devices, a package that is missing).

Annotations, decorators, strings, assertions and the text of exceptions are not mutated, nor constants that are sizes
(integers from 32 on) or rounding tolerances (below 1e-3 in magnitude).
"""

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src/unlazy/theory", "src/unlazy/kernels")
TESTS = tuple(
    f"tests/{name}" for name in ("theory", "kernels", "networks", "products", "measures", "solvers", "training")
)
SLOW = ("tests/theory", "tests/kernels")
COPIED = ("src", "tests", "pyproject.toml")
PRELOADED = ("jax", "jax.numpy", "jax.scipy.special", "scipy.special", "scipy.linalg", "scipy.stats", "scipy.integrate",
             "hypothesis", "pytest", "equinox", "optax", "jaxtyping", "beartype", "mpmath", "sklearn.base",
             "jax.experimental.pallas")  # fmt: skip

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
FLIPS = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_PAIRS = ("sin cos", "sinh cosh", "arcsin arccos", "log log1p", "exp expm1", "maximum minimum", "max min", "sum mean",
          "argmax argmin", "any all", "floor ceil", "tril triu", "ones zeros", "ones_like zeros_like",
          "cumsum cumprod", "norm_pdf norm_cdf", "pdf cdf", "ndtr log_ndtr", "erf erfc")  # fmt: skip
SWAPS = {a: b for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1])}
REMOVED = {"sqrt", "abs", "square", "exp", "log", "cbrt", "conj", "sign"}
"""Functions of one argument that a mutant leaves out."""
NOT_SWAPPED = {
    "isinstance", "issubclass", "getattr", "hasattr", "setattr", "range", "zip", "partial", "jit", "maximum", "minimum",
    "max", "min", "hypot", "logaddexp", "add", "multiply", "vdot", "allclose", "isclose", "where", "enumerate", "map",
    "filter", "field", "replace", "cast", "super", "asarray", "array", "full", "broadcast_to", "reshape", "result_type",
}  # fmt: skip
"""Functions whose first two arguments are interchangeable, or exchanged break at once."""


def mutations(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The mutants of one expression: what was done, and the expression in its place."""
    match node:
        case ast.Constant(value=bool() | str() | bytes()):
            return
        case ast.Constant(value=int(n)) if n < 32:
            yield "constant", ast.Constant(n + 1)
        case ast.Constant(value=float(x)) if x == 0 or 1e-3 <= abs(x) < float("inf"):
            yield "constant", ast.Constant(1.1 * x if x else 1.0)
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "sign", operand
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation", operand
        case ast.BoolOp(op=op, values=values):
            yield "and/or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in FLIPS:
            yield "comparison", ast.Compare(left, [FLIPS[type(op)]()], right)
        case ast.BinOp(left=left, op=op, right=right):
            if _is_text(left) or _is_text(right) or isinstance(left, ast.List | ast.Tuple):
                return
            if type(op) in OPERATORS:
                yield "operator", ast.BinOp(left, OPERATORS[type(op)](), right)
            if isinstance(op, ast.Add | ast.Sub):
                yield "dropped term", left
                yield "dropped term", right
            if isinstance(op, ast.Div | ast.Mult) and isinstance(right, ast.Constant):
                yield "dropped factor", left
            if isinstance(op, ast.Mult) and isinstance(left, ast.Constant):
                yield "dropped factor", right
        case ast.Attribute(value=value, attr="T" | "mT"):
            yield "transpose", value
        case ast.Call(func=func, args=args, keywords=keywords):
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if name in SWAPS:
                other = SWAPS[name]
                new = ast.Attribute(func.value, other) if isinstance(func, ast.Attribute) else ast.Name(other)
                yield "function", ast.Call(new, args, keywords)
            if name in REMOVED and len(args) == 1:
                yield "removed function", args[0]
            starred = any(isinstance(a, ast.Starred) for a in args[:2])
            if len(args) >= 2 and name not in NOT_SWAPPED and not starred and ast.dump(args[0]) != ast.dump(args[1]):
                yield "swapped arguments", ast.Call(func, [args[1], args[0], *args[2:]], keywords)
            for i, keyword in enumerate(keywords):
                axis = _integer(keyword.value)
                if keyword.arg == "axis" and axis is not None:
                    new = ast.keyword("axis", ast.Constant(0 if axis else -1))
                    yield "axis", ast.Call(func, args, [*keywords[:i], new, *keywords[i + 1 :]])


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def _integer(node: ast.AST) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def sites(source: str) -> Iterator[tuple[ast.expr, list[tuple[str, ast.expr]], tuple[int, int], bool]]:
    """Each expression with its mutants, the lines of its statement, and whether it stands in a function's body."""

    def visit(node: ast.AST, lines: tuple[int, int], inside: bool) -> Iterator:
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("__all__", "__slots__"):
            return
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".warn", "lru_cache", "field")):
            return
        if isinstance(node, ast.stmt):
            header = isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.FunctionDef | ast.ClassDef)
            lines = (node.lineno, node.body[0].lineno - 1 if header else node.end_lineno or node.lineno)
            lines = (lines[0], max(lines))
        if isinstance(node, ast.expr):
            found = list(mutations(node))
            if found:
                yield node, found, lines, inside
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            within = inside or (isinstance(node, ast.FunctionDef | ast.Lambda) and name == "body")
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, lines, within)

    yield from visit(ast.parse(source), (0, 0), False)


def mutate(source: str, old: ast.expr, new: ast.expr) -> str:
    """The source with one expression replaced, all other text as it was."""
    lines = source.encode().splitlines(keepends=True)  # offsets of ast count bytes
    before = b"".join(lines[: old.lineno - 1]) + lines[old.lineno - 1][: old.col_offset]
    after = lines[old.end_lineno - 1][old.end_col_offset :] + b"".join(lines[old.end_lineno :])  # type: ignore[operator]
    text = ast.unparse(ast.fix_missing_locations(new))
    bare = isinstance(new, ast.Constant | ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return (before + (text if bare else f"({text})").encode() + after).decode()


def draw(sources: list[Path], number: int, seed: int, exclude: list[str]) -> list[dict]:
    """Mutants of sites drawn without replacement, each site with one of its mutants."""
    every = []
    for folder in sources:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not any(text in name for text in exclude):
                source = path.read_text()
                every += [(name, source, *site) for site in sites(source)]
    rng = random.Random(seed)
    rng.shuffle(every)
    drawn = []
    for name, source, node, found, lines, inside in every:
        kind, new = rng.choice(found)
        mutant = _mutant(name, source, node, kind, new, lines, inside)
        try:
            same = ast.dump(ast.parse(mutant["text"])) == ast.dump(ast.parse(source))
        except SyntaxError:
            continue
        if same:
            continue
        drawn.append(mutant)
        if len(drawn) == number:
            break
    return drawn


def again(before: list[dict]) -> list[dict]:
    """Mutants of an earlier output in the present sources, each at the place nearest to where it was."""
    found = []
    for mutant in before:
        path, old = ROOT / mutant["file"], mutant["diff"].splitlines()[0].removeprefix("-")
        source = path.read_text() if path.exists() else ""
        rows = source.splitlines()
        candidates = [
            _mutant(mutant["file"], source, node, kind, new, lines, inside)
            for node, changes, lines, inside in sites(source)
            if old in rows[node.lineno - 1 : node.end_lineno]
            for kind, new in changes
            if kind == mutant["kind"]
        ]
        same = [c for c in candidates if c["diff"] == mutant["diff"]]
        if same:
            found.append(min(same, key=lambda c: abs(c["line"] - mutant["line"])))
        else:
            print(f"no longer there: {mutant['file']}:{mutant['line']} {mutant['kind']}\n{mutant['diff']}")
    return found


def _mutant(name: str, source: str, node: ast.expr, kind: str, new: ast.expr, lines: tuple, inside: bool) -> dict:
    text = mutate(source, node, new)
    diff = difflib.unified_diff(source.splitlines(), text.splitlines(), "before", "after", n=0, lineterm="")
    changed = "\n".join(line for line in diff if line[:3] not in ("---", "+++") and line[:2] != "@@")
    mutant = {"file": name, "line": node.lineno, "kind": kind, "lines": lines, "inside": inside}
    return mutant | {"uses": [] if inside else _uses(source, lines), "diff": changed, "text": text}


def _uses(source: str, lines: tuple[int, int]) -> list[int]:
    """Lines of the file that read a name which this statement of the module assigns."""
    every = list(ast.walk(ast.parse(source)))
    names = [n for n in every if isinstance(n, ast.Name)]
    made = {n.id for n in names if isinstance(n.ctx, ast.Store) and lines[0] <= n.lineno <= lines[1]}
    return sorted({n.lineno for n in names if isinstance(n.ctx, ast.Load) and n.id in made})


class Recorder:
    """A pytest plugin: seconds and verdict of each test, and the lines of `prefixes` that it executes."""

    def __init__(self, root: Path, prefixes: tuple[str, ...]):
        self.root, self.prefixes = f"{root}/", tuple(f"{root}/{p}/" for p in prefixes)
        self.tests: dict[str, dict] = {}
        self.now: set[tuple[str, int]] = set()
        self.codes: dict[object, bool] = {}

    def trace(self, frame, event, argument):
        code = frame.f_code
        ours = self.codes.get(code)
        if ours is None:
            ours = self.codes[code] = code.co_filename.startswith(self.prefixes) and code.co_name != "<module>"
        return self.line(frame, event, argument) if ours else None

    def line(self, frame, event, argument):
        self.now.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line

    def pytest_runtest_logstart(self, nodeid):
        self.now = set()
        sys.settrace(self.trace)

    def pytest_runtest_logreport(self, report):
        test = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "passed": True, "lines": {}})
        test["seconds"] += report.duration
        test["passed"] &= report.outcome == "passed"

    def pytest_runtest_logfinish(self, nodeid):
        sys.settrace(None)
        lines: dict[str, list[int]] = {}
        for name, number in sorted(self.now):
            lines.setdefault(name.removeprefix(self.root), []).append(number)
        self.tests.setdefault(nodeid, {"seconds": 0.0, "passed": False})["lines"] = lines


class Chosen:
    """A pytest plugin: runs the named tests in the order of their names' list, and keeps the first failure."""

    def __init__(self, names: list[str]):
        self.order = {name: i for i, name in enumerate(names)}
        self.failure = ""

    def pytest_collection_modifyitems(self, config, items):
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.failure:
            self.failure = report.nodeid

    def pytest_collectreport(self, report):
        if report.failed and not self.failure:
            self.failure = f"{report.nodeid} (collection)"


def choose(mutant: dict, tests: dict[str, dict], cpu: float) -> list[str]:
    """Tests for a mutant, those that execute its statement first, `cpu` seconds of them at most (one at least)."""
    name, (first, last) = mutant["file"], mutant["lines"]
    stem = Path(name).stem

    def runs(test: dict) -> int:
        lines = test["lines"].get(name, ())
        if mutant["inside"]:
            return sum(1 for n in lines if first <= n <= last)
        return len(lines) if everything else sum(1 for n in lines if n in uses)

    passed, uses, everything = {k: t for k, t in tests.items() if t["passed"]}, set(mutant["uses"]), False
    everything = not any(runs(t) for t in passed.values())
    files = {k.split("::")[0] for k, t in passed.items() if runs(t)}

    def rank(key: str) -> tuple:
        own = stem in Path(key.split("::")[0]).stem
        return not runs(passed[key]), not own, passed[key]["seconds"]

    chosen, spent = [], 0.0
    for key in sorted((k for k in passed if k.split("::")[0] in files), key=rank):
        if chosen and spent + passed[key]["seconds"] > cpu:
            continue
        chosen.append(key)
        spent += passed[key]["seconds"]
    return chosen


def _in_child(tree: Path, log: Path, work) -> int:
    """Fork a process in its own group that runs `work` in the copied tree and writes what it returns as JSON."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        os.chdir(tree)
        out = os.open(log.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        paths = f"{tree}/src{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        os.environ["PYTHONPATH"] = paths
        sys.path[:0] = [f"{tree}/src"]
        log.write_text(json.dumps(work()))
    except BaseException as error:
        log.write_text(json.dumps({"error": repr(error)}))
    finally:
        os._exit(0)


def _pytest(files: list[str], marks: str, plugin) -> int:
    import hypothesis
    import pytest

    health = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, suppress_health_check=health
    )
    hypothesis.settings.load_profile("mutants")
    # one process, so that xdist's own fork server is not started
    return int(pytest.main(["-x", "-m", marks, "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[plugin]))


def first_run(tree: Path, file: str, marks: str, sources: tuple[str, ...]):
    def work():
        import pytest

        recorder = Recorder(tree, sources)
        pytest.main(["-m", marks, "-p", "no:cacheprovider", "-p", "no:xdist", file], plugins=[recorder])
        return recorder.tests

    return work


def mutant_run(names: list[str]):
    def work():
        plugin = Chosen(names)
        status = _pytest(list(dict.fromkeys(name.split("::")[0] for name in names)), "not nightly", plugin)
        return {"status": status, "failure": plugin.failure}

    return work


class Workers:
    """Copies of the tree, each with at most one process at a time."""

    def __init__(self, number: int, folder: Path):
        self.free, self.running = [], {}
        for i in range(number):
            tree = folder / f"tree{i}"
            tree.mkdir()
            for entry in ROOT.iterdir():
                if entry.name in COPIED:
                    copy = shutil.copytree if entry.is_dir() else shutil.copy2
                    copy(entry, tree / entry.name)
                elif not entry.name.startswith("."):
                    (tree / entry.name).symlink_to(entry)
            self.free.append(tree)

    def run(self, jobs: list[tuple], until: float) -> Iterator[tuple[object, object, float]]:
        """Jobs (key, work of a tree, seconds allowed, (file, text) or None): yields key, result or None, seconds."""
        waiting = jobs[::-1]
        while waiting or self.running:
            while waiting and self.free and time.time() < until:
                key, work, allowed, change = waiting.pop()
                tree = self.free.pop()
                log = tree / "result.json"
                log.unlink(missing_ok=True)
                if change:
                    _write(tree / change[0], change[1])
                pid = _in_child(tree, log, work(tree))
                self.running[pid] = (key, tree, log, time.time(), allowed, change)
            if not self.running:
                return
            for pid, (key, tree, log, began, allowed, change) in list(self.running.items()):
                seconds = time.time() - began
                over = seconds > allowed or time.time() > until + 5
                if over:
                    try:
                        os.killpg(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        os.kill(pid, signal.SIGKILL)
                if os.waitpid(pid, 0 if over else os.WNOHANG)[0]:
                    del self.running[pid]
                    self.free.append(tree)
                    if change:
                        _write(tree / change[0], None)
                    late = time.time() > until and over and seconds <= allowed
                    result = json.loads(log.read_text()) if log.exists() and log.stat().st_size else {}
                    yield key, "late" if late else None if over else result, seconds
            time.sleep(0.02)


def _write(path: Path, text: str | None) -> None:
    """Write a mutant, or what was there again; compiled files of it go, as they tell versions apart by the second."""
    kept = path.with_suffix(".kept")
    if text is None:
        shutil.move(kept, path)
    else:
        shutil.copy2(path, kept)
        path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def prepare() -> None:
    """Settings that JAX reads when it is imported, and the imports that every process needs."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    os.environ.setdefault("UNLAZY_TEST_COMPILER", "quick")
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if os.environ["UNLAZY_TEST_COMPILER"] == "quick":
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    import importlib
    import warnings

    warnings.filterwarnings("ignore", message="os.fork")
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"without {name}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=420)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600.0, help="time for everything")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", type=float, default=12.0, help="seconds of tests for a mutant, as first measured")
    parser.add_argument("--source", nargs="+", default=list(SOURCES))
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--slow", nargs="*", default=list(SLOW), help="whose slow tests run too")
    parser.add_argument("--exclude", nargs="+", default=[], help="leave out sources whose path contains the text")
    parser.add_argument("--output", type=Path, default=Path("mutation_score.json"))
    parser.add_argument("--coverage", type=Path, help="where the first run is kept; read if it is there")
    parser.add_argument("--resume", type=Path, help="an earlier output, whose verdicts are kept")
    parser.add_argument("--again", type=Path, help="an earlier output, whose mutants are run instead of new draws")
    options = parser.parse_args(arguments)

    began = time.time()
    until = began + options.seconds
    output = options.output.resolve()
    if options.again:
        mutants = again(json.loads(options.again.read_text())["mutants"])
    else:
        mutants = draw([ROOT / s for s in options.source], options.mutants, options.seed, options.exclude)
    runs = [(name, "not slow") for name in _files(options.tests)]
    runs += [(name, "slow and not nightly") for name in _files(options.slow)]
    before = json.loads(options.resume.read_text()) if options.resume else {"mutants": []}
    verdicts = {(m["file"], m["line"], m["diff"]): m for m in before["mutants"] if m["verdict"] != "not run"}
    prepare()
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        workers = Workers(options.workers, Path(folder))
        kept = json.loads(options.coverage.read_text()) if options.coverage and options.coverage.exists() else {}
        tests: dict[str, dict] = kept.get("tests", {})
        done = [tuple(run) for run in kept.get("runs", [])]
        jobs = [
            (run, lambda tree, run=run: first_run(tree, *run, SOURCES), 0.5 * options.seconds, None)
            for run in runs
            if run not in done
        ]
        for run, result, seconds in workers.run(jobs, until):
            found = result if isinstance(result, dict) and "error" not in result else {}
            tests |= found
            done.append(run)
            print(f"{seconds:6.1f} s  {run[0]}, {run[1]}: {len(found)} tests", flush=True)
            for key in sorted(k for k, t in found.items() if not t["passed"]):
                print(f"          left out: {key}")
            if options.coverage:
                options.coverage.write_text(json.dumps({"tests": tests, "runs": done}))
        print(f"first run: {len(tests)} tests in {time.time() - began:.0f} s", flush=True)

        jobs = []
        for i, mutant in enumerate(mutants):
            known = verdicts.get((mutant["file"], mutant["line"], mutant["diff"]))
            mutant |= {"verdict": "not run", "by": "", "seconds": 0.0, "chosen": 0}
            if known:
                mutant |= {k: known[k] for k in ("verdict", "by", "seconds", "chosen")}
                continue
            chosen = choose(mutant, tests, options.cpu)
            mutant["chosen"] = len(chosen)
            if not chosen:
                mutant |= {"verdict": "survived", "by": "no test executes the line"}
                continue
            allowed = options.cpu + 20 + 4 * sum(tests[k]["seconds"] for k in chosen)
            change = (mutant["file"], mutant["text"])
            jobs.append((i, lambda tree, c=chosen: mutant_run(c), allowed, change))
        for i, result, seconds in workers.run(jobs, until):
            mutant = mutants[i]
            if result == "late":
                continue
            mutant["seconds"] = round(seconds, 1)
            mutant["verdict"], mutant["by"] = _verdict(result)
            print(
                f"{seconds:6.1f} s  {mutant['verdict']:8} {mutant['file']}:{mutant['line']} {mutant['kind']}",
                flush=True,
            )
            _keep(output, options.seed, mutants)
    _keep(output, options.seed, mutants)
    report(mutants)
    return 0


def _keep(output: Path, seed: int, mutants: list[dict]) -> None:
    """Write the verdicts so far, never half a file: `--resume` reads it after an interruption."""
    kept = [{k: v for k, v in m.items() if k != "text"} for m in mutants]
    new = output.with_name(output.name + ".new")
    new.write_text(json.dumps({"seed": seed, "score": score(mutants), "mutants": kept}, indent=1))
    new.replace(output)


def _files(paths: list[str]) -> list[str]:
    """Test files of the paths, the longest first."""
    files = {f for p in paths for f in ([ROOT / p] if p.endswith(".py") else (ROOT / p).rglob("test_*.py"))}
    return [f.relative_to(ROOT).as_posix() for f in sorted(files, key=lambda f: (-f.stat().st_size, f))]


def _verdict(result: dict | None) -> tuple[str, str]:
    if result is None:
        return "timeout", ""
    if "status" not in result:
        return "killed", result.get("error", "the process ended")
    if result["status"] == 0:
        return "survived", ""
    return ("survived", "no test ran") if result["status"] == 5 else ("killed", result["failure"])


def score(mutants: list[dict]) -> dict:
    """Counts of the verdicts, and the killed share of those that ran."""
    counts = {v: sum(m["verdict"] == v for m in mutants) for v in ("killed", "survived", "timeout", "not run")}
    ran = len(mutants) - counts["not run"]
    return counts | {"score": counts["killed"] / ran if ran else 0.0}


def report(mutants: list[dict]) -> None:
    for mutant in sorted(mutants, key=lambda m: (m["file"], m["line"])):
        if mutant["verdict"] in ("survived", "timeout"):
            note = f" ({mutant['by']})" if mutant["by"] else f" ({mutant['chosen']} tests)"
            print(f"\n{mutant['verdict']}{note} {mutant['file']}:{mutant['line']} {mutant['kind']}\n{mutant['diff']}")
    total = score(mutants)
    ran = len(mutants) - total["not run"]
    print(f"\nscore {total['score']:.1%}: {total['killed']} of {ran} killed, {total['survived']} survived, "
          f"{total['timeout']} timed out, {total['not run']} not run")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
