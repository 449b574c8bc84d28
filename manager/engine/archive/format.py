"""Saved experiments: zips that `proctor experiment save` has made, read, checked and unpacked.

manager/cli/archive.py writes them and says what is in them. They may come from anywhere, so nothing in one is trusted:
every record is checked, and no member can write outside of its folder or bring what must not travel.
"""

import errno
import itertools
import math
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from proctor.manager.config.fields import LONGEST_SECONDS, MOST_CONCURRENT_TRIALS, MOST_HOURS, MOST_PRIORITY, Label
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.engine.saved_views import MOST_VIEWS, ViewName, ViewPage, ViewQuery
from proctor.manager.errors import BadRequest, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.rows import MetricRow
from proctor.sdk.json_input import LATEST_TIME, parse_json
from proctor.sdk.protocol import KIND_FINAL, KIND_INTERMEDIATE, KIND_LOST
from proctor.sdk.scheduler import MOST_COLUMNS, MOST_ROWS, MOST_TABLES
from proctor.training_services.base import EndReason, TrialJobStatus
from proctor.trial_keeper.protocol import GpuSlot

FORMATS = (1, 2)
"""Those that can be read; `save` writes the last one. The first one has no checkpoints, no imported results and
no version of the rules."""
_LONGEST_SHOWN = 200
MAX_HEAD_BYTES = 16 * 1024 * 1024
MAX_RECORD_BYTES = 4 * 1024 * 1024
"""More than a trial's parameters or a report may take."""
MAX_TABLE_BYTES = 256 * 1024 * 1024
"""All trials, or all jobs: they are held in memory."""
SPARE_BYTES = 256 * 1024 * 1024
"""What loading an archive leaves free on the disk, for the experiments that run."""
FOLDER = "experiment"
CODE = "code"
HEAD = "proctor.json"
RECORDS = ("trials.jsonl", "jobs.jsonl", "metrics.jsonl")
LATER_RECORDS = ("checkpoints.jsonl", "imported.jsonl")
"""Since format 2."""
NEVER_SAVED = re.compile(r"(environment|secrets|\.proctor-owner)\.json|.*\.db(-wal|-shm)?")

DAMAGES = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)
"""What reading a damaged zip raises: a name that is not the UTF-8 that it is said to be is a ValueError."""
ARCHIVES_FAULTS = frozenset(
    {errno.EINVAL, errno.EOVERFLOW}  # a place before the beginning of the file, or beyond any
    | {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ}  # a name that no file can have
)
"""Errors of the system that an archive causes, however healthy the disk."""
COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Those that `save` uses. Other ones have modules that fail in their own ways."""


def _storable(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not 0.0 <= (moment - datetime.fromtimestamp(0, UTC)).total_seconds() < LATEST_TIME:
        latest = datetime.fromtimestamp(LATEST_TIME, UTC)
        raise ValueError(f"a time must be from 1970-01-01 to before {latest:%Y-%m-%d} (UTC)")
    return moment


TrialId = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,32}$")]
TrialJobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,32}\.[1-9][0-9]{0,14}$")]
StoredCount = Annotated[int, Field(ge=0, lt=2**53)]
"""Of numbers that are counted on from. SQLite's integers end at 2**63; those that other programs read exactly, here."""
StoredInteger = Annotated[int, Field(ge=-(2**63), lt=2**63)]
StoredSeconds = Annotated[float, Field(ge=0, lt=LATEST_TIME)]
Duration = Annotated[float, Field(gt=0, le=LONGEST_SECONDS)]
Moment = Annotated[datetime, AfterValidator(_storable)]
ShownText = Annotated[str, Field(max_length=1000)]
R = TypeVar("R", bound=BaseModel)


def shown(value: str | float) -> str:
    """A value of an archive, for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


class ArchivedView(BaseModel):
    """What is taken over of a saved view."""

    name: ViewName
    page: ViewPage
    query: ViewQuery = ""
    saved_at: Moment


class ArchivedTable(BaseModel):
    """What is taken over of a table of a trial scheduler."""

    title: ShownText
    columns: Annotated[list[ShownText], Field(max_length=MOST_COLUMNS)]
    rows: Annotated[list[list[ShownText | bool | int | float | None]], Field(max_length=MOST_ROWS)]
    trial_columns: list[StoredCount] = []

    @model_validator(mode="after")
    def _is_rectangular(self) -> Self:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("every row must be as wide as the head")
        if not set(self.trial_columns) <= set(range(len(self.columns))):
            raise ValueError("trial_columns must hold numbers of its columns, from 0")
        if len(set(self.trial_columns)) != len(self.trial_columns):
            raise ValueError("trial_columns must name each column once")
        return self


class SavedExperiment(BaseModel):
    """What is taken over of an experiment's resource."""

    id: str
    name: Label
    status: ExperimentStatus
    reason: str = ""
    config: dict[str, Any]
    search_space: Any
    trial_concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENT_TRIALS)]
    max_trial_number: Annotated[int, Field(ge=1, lt=2**63)] | None
    max_experiment_duration_seconds: Duration | None
    max_trial_duration_seconds: Duration | None
    max_gpu_hours: Annotated[float, Field(gt=0, le=MOST_HOURS)] | None = None
    priority: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    tags: Annotated[list[Label], Field(max_length=50)] = []
    rules: Annotated[int, Field(ge=1)] = 1
    views: Annotated[list[ArchivedView], Field(max_length=MOST_VIEWS)] = []
    scheduler_tables: Annotated[list[ArchivedTable], Field(max_length=MOST_TABLES)] = []
    directory: str = ""
    """Where it was."""
    created_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None
    active_seconds: Annotated[float, Field(ge=0, lt=math.inf)] = 0.0


class SavedTrial(BaseModel):
    """What is taken over of a trial's resource."""

    id: TrialId
    sequence_id: StoredCount
    status: TrialStatus
    reason: str = ""
    parameters: Any
    parameter_id: StoredCount
    source: str
    origin_trial_id: TrialId | None = None
    origin_job_id: TrialJobId | None = None
    origin_checkpoint: str | None = None
    jobs: StoredCount
    final_value: float | str | None = None
    final_data: Any = None
    latest_value: float | str | None = None
    intermediate_count: StoredCount = 0
    created_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None
    paused_by: PausedBy | None = None
    """None of a PAUSED trial: an earlier version has saved it, which did not know."""


class SavedJob(BaseModel):
    """What is taken over of a job's resource."""

    trial_id: TrialId
    number: Annotated[int, Field(ge=1, lt=2**53)]
    status: TrialJobStatus
    stop_reason: EndReason | None = None
    end_reason: EndReason | None = None
    detail: str = ""
    parameter_id: StoredCount
    parameters: Any
    parent_job: str | None = None
    resumed_from_job: TrialJobId | None = None
    resumed_from_step: StoredCount | None = None
    resume_checkpoint: str | None = None
    start_reason: str = ""
    node_id: str | None = None
    gpus: list[GpuSlot] | None = None
    counted_gpus: Annotated[float, Field(ge=0, le=MOST_HOURS)] | None = None
    cpu_seconds: StoredSeconds | None = None
    run_seconds: StoredSeconds | None = None
    verdict_seconds: StoredSeconds = 0.0
    pid: StoredInteger | None = None
    exit_code: StoredInteger | None = None
    signal: StoredInteger | None = None
    code_fingerprint: str | None = None
    submitted_at: Moment | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None


class SavedMetric(BaseModel):
    """What is taken over of a report."""

    id: Annotated[int, Field(ge=1, lt=2**53)]
    trial_id: TrialId
    job: Annotated[int, Field(ge=1, lt=2**53)]
    member: StoredCount = 0
    kind: Annotated[str, Field(pattern=f"^({KIND_INTERMEDIATE}|{KIND_FINAL}|{KIND_LOST}|unreadable)$")]
    sequence: StoredCount
    step: StoredInteger | None = None
    data: Any = None
    time: Moment
    seconds: StoredSeconds | None = None

    def row(self) -> MetricRow:
        """As the store has it; `data` is what was reported. Its place in the journal is not kept."""
        return MetricRow(
            self.id, self.trial_id, self.job, self.member, 0, self.kind, self.sequence, self.step, None, self.data,
            self.time.timestamp(), self.seconds,
        )  # fmt: skip


class SavedCheckpoint(BaseModel):
    """What is taken over of a registered checkpoint."""

    id: Annotated[int, Field(ge=1, lt=2**53)]
    trial_id: TrialId
    job: Annotated[int, Field(ge=1, lt=2**53)]
    member: StoredCount = 0
    step: StoredInteger | None = None
    sequence: StoredCount
    path: str
    size_bytes: StoredCount | None = None
    manifest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    value: float | str | None = None
    deleted_at: Moment | None = None
    time: Moment


class SavedImport(BaseModel):
    """A result from elsewhere that its tuner was given."""

    parameter: Any
    value: Any


class ExperimentArchive:
    """One archive. Everything raises BadRequest, with a sentence, where the archive is not what it should be."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def experiment(self) -> SavedExperiment:
        """The experiment, once every member's name is known to be harmless."""
        with self._open() as file:
            self._check_names(file)
            try:
                if file.getinfo(HEAD).file_size > MAX_HEAD_BYTES:
                    raise self._bad(f"its {HEAD} is larger than {MAX_HEAD_BYTES} bytes")
                head = parse_json(file.read(HEAD))
                found, saved = head["format"], head["experiment"]
            except (KeyError, TypeError, ValueError) as error:
                raise self._bad(f"its {HEAD} cannot be read") from error
            if found not in FORMATS:
                raise self._bad(f"it has format {shown(found)}, and this version reads formats up to {FORMATS[-1]}")
            if found > 1 and (missing := set(LATER_RECORDS).difference(file.namelist())):
                raise self._bad(f"it contains no {min(missing)}")
            experiment = self._parse(SavedExperiment, saved, HEAD)
            if experiment.rules > CURRENT_RULES:
                known = f"this version knows them up to version {CURRENT_RULES}; update Proctor"
                raise self._bad(f"its experiment decides by rules of version {experiment.rules}, and {known}")
            return experiment

    def trials(self) -> list[SavedTrial]:
        """Its trials."""
        return list(self._records("trials.jsonl", SavedTrial))

    def jobs(self) -> list[SavedJob]:
        """Their jobs."""
        return list(self._records("jobs.jsonl", SavedJob))

    def metrics(self) -> Iterator[SavedMetric]:
        """What they have reported, one after the other: there may be millions."""
        return self._records("metrics.jsonl", SavedMetric)

    def checkpoints(self) -> Iterator[SavedCheckpoint]:
        """Those that they have registered; none in an archive of an earlier version."""
        return self._records("checkpoints.jsonl", SavedCheckpoint)

    def imported(self) -> list[SavedImport]:
        """The results from elsewhere that the tuner was given; none in an archive of an earlier version."""
        return list(self._records("imported.jsonl", SavedImport))

    def unpack(self, folder: Path, *, but: frozenset[str]) -> None:
        """Write the experiment's files into a folder, `but` these files and folders at its top. Raises OSError."""
        with self._open() as file:
            for member in file.infolist():
                inside = PurePosixPath(member.filename)
                if member.is_dir() or inside.parts[0] != FOLDER or inside.parts[1] in but:
                    continue
                target = folder.joinpath(*inside.parts[1:])
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with file.open(member) as source, target.open("xb") as copy:
                        shutil.copyfileobj(source, copy)
                except OSError as error:
                    if error.errno in ARCHIVES_FAULTS:
                        problem = f"its member {shown(member.filename)} cannot be unpacked: {error.strerror}"
                        raise self._bad(problem) from error
                    raise

    def check_room(self, folder: Path) -> None:
        """Raises Unavailable if the disk of `folder` has not the room that the unpacked archive takes."""
        with self._open() as file:
            needed = sum(member.file_size for member in file.infolist())
        free = shutil.disk_usage(folder).free
        if needed > free - SPARE_BYTES:
            raise Unavailable(
                f"the archive {self._path.name} takes {needed >> 20} MiB unpacked, but the disk of {folder} has "
                f"{free >> 20} MiB left, of which {SPARE_BYTES >> 20} are kept free; free some space and load it again"
            )

    @contextmanager
    def _open(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self._path) as file:
                yield file
        except DAMAGES as error:
            raise self._bad(f"it is damaged or not a zip ({error})") from error
        except OSError as error:
            if error.errno not in ARCHIVES_FAULTS:
                raise
            raise self._bad(f"it is damaged or not a zip ({error.strerror})") from error

    def _check_names(self, file: zipfile.ZipFile) -> None:
        seen: set[str] = set()
        for member in file.infolist():
            name, inside = member.filename, PurePosixPath(member.filename)
            parts = inside.parts
            if not parts or name.startswith("/") or {"..", "\\", "\0"} & {*parts, *name}:
                raise self._bad(f"the name of its member {shown(name)} leads out of its folder")
            if str(inside) != name.removesuffix("/"):
                raise self._bad(f"the name of its member {shown(name)} is not in its shortest form")
            if member.compress_type not in COMPRESSIONS:
                raise self._bad(f"its member {shown(name)} is compressed in another way than `save` does")
            if stat.S_ISLNK(member.external_attr >> 16):
                raise self._bad(f"its member {shown(name)} is a link")
            if name == FOLDER:
                raise self._bad(f"its member {shown(name)} is not a folder")
            is_reserved = any(NEVER_SAVED.fullmatch(part) for part in (*parts[1:2], parts[-1]))
            if parts[0] == FOLDER and is_reserved:
                raise self._bad(f"it contains {shown(name)}, which is never saved")
            if name in seen:
                raise self._bad(f"it contains {shown(name)} twice")
            seen.add(name)
        if missing := {HEAD, *RECORDS} - seen:
            raise self._bad(f"it contains no {min(missing)}")
        for name in seen & {"trials.jsonl", "jobs.jsonl", "imported.jsonl"}:
            if (size := file.getinfo(name).file_size) > MAX_TABLE_BYTES:
                raise self._bad(f"its {name} takes {size} bytes unpacked, and {MAX_TABLE_BYTES} at most are read")

    def _records(self, name: str, kind: type[R]) -> Iterator[R]:
        with self._open() as file:
            if name in LATER_RECORDS and name not in file.namelist():
                return
            with file.open(name) as lines:
                for number in itertools.count(1):
                    line = lines.readline(MAX_RECORD_BYTES + 1)
                    if not line:
                        return
                    if len(line) > MAX_RECORD_BYTES:
                        raise self._bad(f"{name}:{number}: the line is longer than {MAX_RECORD_BYTES} bytes")
                    try:
                        body = parse_json(line)
                    except ValueError as error:
                        raise self._bad(f"{name}:{number}: {error}") from error
                    yield self._parse(kind, body, f"{name}:{number}")

    def _parse(self, kind: type[R], body: Any, where: str) -> R:
        try:
            return kind.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(step) for step in first["loc"])
            given = first["input"]
            found = f", found {shown(given)}" if isinstance(given, str | int | float) else ""
            raise self._bad(f"{where}: {key}: {first['msg']}{found}") from error

    def _bad(self, what: str) -> BadRequest:
        return BadRequest(f"the archive {self._path.name} cannot be loaded: {what}; save the experiment again")
