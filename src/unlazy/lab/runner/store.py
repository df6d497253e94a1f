"""One SQLite file of finished trials (WAL): written chunk by chunk, safe against being killed, never overwritten."""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unlazy.core.errors import UnlazyError
from unlazy.lab.experiment import Experiment, Failure, Params, Record, Records
from unlazy.lab.runner.serialization import canonical, pack, unpack
from unlazy.lab.runner.sweep import Environment, Outcome

SCHEMA = 1
FILE = "trials.sqlite"
_APPLICATION = 0x756E6C7A  # "unlz": tells our file from any other SQLite file

_TABLES = """
CREATE TABLE IF NOT EXISTS environment (
    id INTEGER PRIMARY KEY, unlazy TEXT NOT NULL, jax TEXT NOT NULL, python TEXT NOT NULL, device TEXT NOT NULL,
    git_commit TEXT NOT NULL, UNIQUE (unlazy, jax, python, device, git_commit));
CREATE TABLE IF NOT EXISTS trial (
    experiment TEXT NOT NULL, version INTEGER NOT NULL, params TEXT NOT NULL, seed INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('done', 'failed')), measures TEXT, arrays BLOB, seconds REAL,
    traceback TEXT, environment INTEGER NOT NULL REFERENCES environment (id), finished TEXT NOT NULL,
    PRIMARY KEY (experiment, version, params, seed));
"""
_INSERT = """
INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    status = excluded.status, measures = excluded.measures, arrays = excluded.arrays, seconds = excluded.seconds,
    traceback = excluded.traceback, environment = excluded.environment, finished = excluded.finished
WHERE trial.status = 'failed'
"""  # a finished trial is never overwritten, whoever else writes here


class Store:
    """Finished trials under `folder`; `None` keeps them in memory. `create=False` only reads, also where nothing may be
    written."""

    def __init__(self, folder: str | Path | None, create: bool = True):
        self.folder = None if folder is None else Path(folder)
        self._where = "memory" if self.folder is None else str(self.folder / FILE)
        self._copy: tempfile.TemporaryDirectory | None = None
        with self._sentence("open"):
            self._db = self._connect(create)
        try:
            with self._sentence("open"):
                self._check_or_create(create)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; SQLite folds its log back in."""
        self._db.close()
        if self._copy is not None:
            self._copy.cleanup()

    def finished(self, experiment: Experiment) -> set[tuple[str, int]]:
        """(canonical parameters, seed) of every trial that needs no running."""
        query = "SELECT params, seed FROM trial WHERE experiment = ? AND version = ? AND status = 'done'"
        with self._sentence("read"):
            return set(self._db.execute(query, (experiment.identity, experiment.version)))

    def add(self, experiment: Experiment, outcome: Outcome) -> None:
        """Store the trials of one chunk, all or none."""
        with self._sentence("write to"), self._db:
            environment = self._environment(astuple(outcome.environment))
            now = datetime.now(UTC).isoformat(timespec="seconds")
            for trial in outcome.trials:
                numbers, arrays = (None, None) if trial.measures is None else pack(trial.measures)
                status = "failed" if trial.measures is None else "done"
                self._db.execute(_INSERT, (
                    experiment.identity, experiment.version, canonical(outcome.params), trial.seed, status, numbers,
                    arrays, trial.seconds, trial.traceback, environment, now,
                ))  # fmt: skip

    def records(self, experiment: Experiment, points: Sequence[Params], seeds: int) -> Records:
        """What is stored of these points and seeds, in their order, with the parameters as given."""
        query = (
            "SELECT seed, status, measures, arrays, seconds, traceback FROM trial "
            "WHERE experiment = ? AND version = ? AND params = ? AND seed < ? ORDER BY seed"
        )
        done, failed = [], []
        with self._sentence("read"):
            for params in points:
                key = (experiment.identity, experiment.version, canonical(params), seeds)
                for seed, status, numbers, arrays, seconds, traceback in self._db.execute(query, key):
                    if status == "done":
                        done.append(Record(params, seed, self._measures(experiment, seed, numbers, arrays), seconds))
                    else:
                        failed.append(Failure(params, seed, traceback))
        return Records(done, failed)

    def everything(self, experiment: Experiment) -> Records:
        """All that is stored of this version of an experiment, whatever configuration asked for it."""
        query = "SELECT DISTINCT params FROM trial WHERE experiment = ? AND version = ? ORDER BY params"
        with self._sentence("read"):
            texts = [text for (text,) in self._db.execute(query, (experiment.identity, experiment.version))]
        points = []
        for text in texts:
            try:
                points.append(dict(json.loads(text)))
            except (ValueError, TypeError) as error:
                raise self._damaged(experiment, f"its parameters read {str(text)[:80]!r}") from error
        return self.records(experiment, points, seeds=2**62)

    def identities(self) -> list[str]:
        """Every experiment that has trials here, by `Experiment.identity`."""
        with self._sentence("read"):
            return [name for (name,) in self._db.execute("SELECT DISTINCT experiment FROM trial ORDER BY 1")]

    def environments(self, experiment: Experiment) -> list[Environment]:
        """Where the stored trials of an experiment ran."""
        query = (
            "SELECT DISTINCT unlazy, jax, python, device, git_commit FROM trial JOIN environment ON environment = id "
            "WHERE experiment = ? AND version = ? ORDER BY id"
        )
        with self._sentence("read"):
            return [Environment(*row) for row in self._db.execute(query, (experiment.identity, experiment.version))]

    def _connect(self, create: bool) -> sqlite3.Connection:
        if self.folder is None:
            return sqlite3.connect(":memory:")
        path = self.folder / FILE
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise UnlazyError(f"nothing is stored in {self.folder}; run an experiment first, or name another --store")
        return sqlite3.connect(path, timeout=30.0) if create else self._reading(path)

    def _reading(self, path: Path) -> sqlite3.Connection:
        """A connection that writes nothing. SQLite wants to write beside a file with a log, even to read it: where the
        folder forbids that, the file is read as it is, or with its log from a copy elsewhere."""
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)
        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return db
        except sqlite3.OperationalError:
            db.close()
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            self._copy = tempfile.TemporaryDirectory(prefix="unlazy-")
            for part in (path, log):
                shutil.copyfile(part, Path(self._copy.name) / part.name)
            return sqlite3.connect(Path(self._copy.name) / path.name)
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)

    def _check_or_create(self, create: bool) -> None:
        version, application, tables = (
            self._db.execute(query).fetchone()[0]
            for query in ("PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
        )
        if tables and application != _APPLICATION:
            raise UnlazyError(f"{self._where} is not a store of unlazy; name another --store")
        if version > SCHEMA:
            raise UnlazyError(
                f"{self._where} was written by a newer unlazy (format {version}, this one reads up to {SCHEMA}); "
                "upgrade unlazy or name another --store"
            )
        # NORMAL: a commit survives the death of the process; a power cut may lose the last ones, never the file.
        self._db.execute("PRAGMA synchronous = NORMAL")
        if not tables and not create:
            raise UnlazyError(f"nothing is stored in {self.folder}; run an experiment first, or name another --store")
        if not tables:
            self._db.execute("PRAGMA journal_mode = WAL")
            head = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA};"
            self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} {head} COMMIT;")

    def _measures(self, experiment: Experiment, seed: int, numbers: Any, arrays: Any) -> dict:
        try:
            return unpack(numbers, arrays)
        except Exception as error:  # whatever the bytes lead to: JSON, safetensors and NumPy each have their own
            raise self._damaged(experiment, f"what seed {seed} measured cannot be read ({error})") from error

    def _damaged(self, experiment: Experiment, what: str) -> UnlazyError:
        return UnlazyError(
            f"the store {self._where} holds a damaged trial of {experiment.name}: {what}; name another --store, or run "
            "with --fresh"
        )

    def _environment(self, row: tuple[str, ...]) -> int:
        self._db.execute(
            "INSERT OR IGNORE INTO environment (unlazy, jax, python, device, git_commit) VALUES (?, ?, ?, ?, ?)", row
        )
        query = "SELECT id FROM environment WHERE (unlazy, jax, python, device, git_commit) = (?, ?, ?, ?, ?)"
        return self._db.execute(query, row).fetchone()[0]

    @contextmanager
    def _sentence(self, verb: str) -> Iterator[None]:
        """Failures of the disk, the folder or the file as one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            advice = "it is damaged or not a store" if "malformed" in str(error) or "not a" in str(error) else _ADVICE
            raise UnlazyError(f"cannot {verb} the store {self._where}: {error}; {advice}") from error
        except OSError as error:
            raise UnlazyError(f"cannot {verb} the store {self._where}: {error.strerror or error}; {_ADVICE}") from error


_ADVICE = "what is stored is safe; make room or name another folder with --store, then run the same command again"
