"""SQLite store of finished trials (WAL): written chunk by chunk, survives being killed, never overwrites a trial."""

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
from unlazy.lab.runner.former_names import current_experiment, current_names
from unlazy.lab.runner.serialization import canonical_json, pack, unpack
from unlazy.lab.runner.sweep import Environment, Outcome

SCHEMA = 2
"""Format number. Stores of format 1 are translated when they are opened (`former_names`)."""
FILE = "trials.sqlite"
_APPLICATION = 0x756E6C7A  # "unlz": identifies the file as a store

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
"""  # a finished trial is never overwritten, even by another process


class Store:
    """Store of finished trials.

    Parameters
    ----------
    folder : str, Path or None
        Folder of the store; None keeps the trials in memory.
    create : bool, default True
        Whether to create the store if it does not exist. With False the store is only read, which also works in a
        read-only folder.

    Raises
    ------
    UnlazyError
        If the store cannot be opened, is not a store, or was written by a newer version.

    Examples
    --------
    >>> from unlazy import lab
    >>> with lab.Store(None) as store:
    ...     finished = store.finished(lab.find("information_exponent"))
    >>> finished
    set()
    """

    def __init__(self, folder: str | Path | None, create: bool = True):
        self.folder = None if folder is None else Path(folder)
        self._where = "memory" if self.folder is None else str(self.folder / FILE)
        self._copy: tempfile.TemporaryDirectory | None = None
        with self._errors("open"):
            self._db = self._connect(create)
        try:
            with self._errors("open"):
                self._check_or_create(create)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._db.close()
        if self._copy is not None:
            self._copy.cleanup()

    def finished(self, experiment: Experiment) -> set[tuple[str, int]]:
        """(canonical parameters, seed) of every finished trial."""
        query = "SELECT params, seed FROM trial WHERE experiment = ? AND version = ? AND status = 'done'"
        with self._errors("read"):
            return set(self._db.execute(query, (experiment.identity, experiment.version)))

    def add(self, experiment: Experiment, outcome: Outcome) -> None:
        """Store the trials of one chunk in one transaction."""
        with self._errors("write to"), self._db:
            environment = self._environment(astuple(outcome.environment))
            now = datetime.now(UTC).isoformat(timespec="seconds")
            for trial in outcome.trials:
                numbers, arrays = (None, None) if trial.measures is None else pack(trial.measures)
                status = "failed" if trial.measures is None else "done"
                self._db.execute(_INSERT, (
                    experiment.identity, experiment.version, canonical_json(outcome.params), trial.seed, status,
                    numbers, arrays, trial.seconds, trial.traceback, environment, now,
                ))  # fmt: skip

    def records(self, experiment: Experiment, points: Sequence[Params], seeds: int) -> Records:
        """Stored records of the given points and seeds.

        Parameters
        ----------
        experiment : Experiment
            The experiment.
        points : sequence of dict
            Parameters of the points.
        seeds : int
            Number of seeds per point.

        Returns
        -------
        Records
            The records in the order of the points, then of the seeds, with the parameters as given.
        """
        query = (
            "SELECT seed, status, measures, arrays, seconds, traceback FROM trial "
            "WHERE experiment = ? AND version = ? AND params = ? AND seed < ? ORDER BY seed"
        )
        done, failed = [], []
        with self._errors("read"):
            for params in points:
                key = (experiment.identity, experiment.version, canonical_json(params), seeds)
                for seed, status, numbers, arrays, seconds, traceback in self._db.execute(query, key):
                    if status == "done":
                        done.append(Record(params, seed, self._measures(experiment, seed, numbers, arrays), seconds))
                    else:
                        failed.append(Failure(params, seed, traceback))
        return Records(done, failed)

    def everything(self, experiment: Experiment) -> Records:
        """All stored records of this version of an experiment, of any configuration."""
        query = "SELECT DISTINCT params FROM trial WHERE experiment = ? AND version = ? ORDER BY params"
        with self._errors("read"):
            texts = [text for (text,) in self._db.execute(query, (experiment.identity, experiment.version))]
        points = []
        for text in texts:
            try:
                points.append(dict(json.loads(text)))
            except (ValueError, TypeError) as error:
                raise self._damaged(experiment, f"its parameters are {str(text)[:80]!r}") from error
        return self.records(experiment, points, seeds=2**62)

    def identities(self) -> list[str]:
        """Identities (`Experiment.identity`) of all experiments with stored trials."""
        with self._errors("read"):
            return [name for (name,) in self._db.execute("SELECT DISTINCT experiment FROM trial ORDER BY 1")]

    def environments(self, experiment: Experiment) -> list[Environment]:
        """Environments in which the stored trials of an experiment ran."""
        query = (
            "SELECT DISTINCT unlazy, jax, python, device, git_commit FROM trial JOIN environment ON environment = id "
            "WHERE experiment = ? AND version = ? ORDER BY id"
        )
        with self._errors("read"):
            return [Environment(*row) for row in self._db.execute(query, (experiment.identity, experiment.version))]

    def _connect(self, create: bool) -> sqlite3.Connection:
        """Open the database."""
        if self.folder is None:
            return sqlite3.connect(":memory:")
        path = self.folder / FILE
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise UnlazyError(f"nothing is stored in {self.folder}; run an experiment first, or choose another --store")
        return sqlite3.connect(path, timeout=30.0) if create else self._reading(path)

    def _reading(self, path: Path) -> sqlite3.Connection:
        """Open a read-only connection.

        SQLite needs to write next to a file in WAL mode, even to read it. If the folder is read-only, the file is
        opened as immutable, or copied together with its log to a temporary folder.
        """
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
        """Check the format of the file, or create the tables if it is empty."""
        version, application, tables = (
            self._db.execute(query).fetchone()[0]
            for query in ("PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
        )
        if tables and application != _APPLICATION:
            raise UnlazyError(f"{self._where} is not an unlazy store; choose another folder")
        if version > SCHEMA:
            raise UnlazyError(
                f"{self._where} was written by a newer version of unlazy (format {version}, this version reads up to "
                f"{SCHEMA}); upgrade unlazy or choose another folder"
            )
        # NORMAL: commits survive a crash of the process; a power failure may lose the last ones but not the file.
        self._db.execute("PRAGMA synchronous = NORMAL")
        if not tables and not create:
            raise UnlazyError(f"nothing is stored in {self.folder}; run an experiment first, or choose another --store")
        if tables and version < SCHEMA:
            self._translate(create)
        if not tables:
            self._db.execute("PRAGMA journal_mode = WAL")
            head = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA};"
            self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} {head} COMMIT;")

    def _translate(self, create: bool) -> None:
        """Give experiments and parameters of an older store their current names; a copy of it if only reading."""
        if not create:
            older, self._db = self._db, sqlite3.connect(":memory:")
            older.backup(self._db)
            older.close()
        with self._db:
            for name, text in self._db.execute("SELECT DISTINCT experiment, params FROM trial").fetchall():
                now = current_experiment(name), canonical_json(current_names(json.loads(text)))
                if now != (name, text):
                    query = "UPDATE OR IGNORE trial SET experiment = ?, params = ? WHERE experiment = ? AND params = ?"
                    self._db.execute(query, (*now, name, text))
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _measures(self, experiment: Experiment, seed: int, numbers: Any, arrays: Any) -> dict:
        """Deserialize the measures of one trial."""
        try:
            return current_names(unpack(numbers, arrays))
        except Exception as error:  # damaged bytes can raise anything in JSON, safetensors or NumPy
            raise self._damaged(experiment, f"the measures of seed {seed} cannot be read ({error})") from error

    def _damaged(self, experiment: Experiment, what: str) -> UnlazyError:
        return UnlazyError(
            f"the store {self._where} contains a damaged trial of {experiment.name}: {what}; choose another folder, "
            "or run with --fresh"
        )

    def _environment(self, row: tuple[str, ...]) -> int:
        """Id of an environment, inserted if it is new."""
        self._db.execute(
            "INSERT OR IGNORE INTO environment (unlazy, jax, python, device, git_commit) VALUES (?, ?, ?, ?, ?)", row
        )
        query = "SELECT id FROM environment WHERE (unlazy, jax, python, device, git_commit) = (?, ?, ?, ?, ?)"
        return self._db.execute(query, row).fetchone()[0]

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Convert failures of the disk, the folder or the file to UnlazyError."""
        try:
            yield
        except sqlite3.Error as error:
            advice = "it is damaged or not a store" if "malformed" in str(error) or "not a" in str(error) else _ADVICE
            raise UnlazyError(f"cannot {verb} the store {self._where}: {error}; {advice}") from error
        except OSError as error:
            raise UnlazyError(f"cannot {verb} the store {self._where}: {error.strerror or error}; {_ADVICE}") from error


_ADVICE = "stored trials are safe; free some space or choose another folder, then run the command again"
