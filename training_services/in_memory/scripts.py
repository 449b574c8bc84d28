"""What the jobs of the in-memory training service do: a script makes a job's steps from its form.

    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Report(1.0, 0.5)              # one second after its start, an intermediate metric
        yield Final(1.0, {"default": 0.7})
        yield Exit(0.5)

Delays are seconds from the step before. A script that comes to its end exits with code 0. A script may raise
`SubmissionRefused` or `ServiceUnavailable` before its first step: submitting the job then raises it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from proctor.sdk.quick_json import loads
from proctor.training_services.base import EndReason, JobStart, TrialJobForm


@dataclass(frozen=True, slots=True)
class Wait:
    """The platform has no place for the job yet and says why; it does not start before the next step. It may know
    already where the job will begin, as in `StatusChange`."""

    delay: float
    reason: str
    start: JobStart | None = None


@dataclass(frozen=True, slots=True)
class ScriptedStart:
    """The job's process starts. Left out, it starts with the first step that needs it."""

    delay: float = 0.0
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedReport:
    """A process of the job, by default its first one, reports an intermediate metric."""

    delay: float
    value: Any
    member: int = 0
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """A process of the job, by default its first one, reports its final metric."""

    delay: float
    value: Any
    member: int = 0


@dataclass(frozen=True, slots=True)
class Raw:
    """A process of the job, by default its first one, writes these bytes into its journal, whatever they are; they
    should end with a newline."""

    delay: float
    data: bytes
    member: int = 0


@dataclass(frozen=True, slots=True)
class ScriptedExit:
    """The job ends: by itself (EXITED_OK, EXITED_ERROR) or by what befalls it (NODE_LOST, UNPLACEABLE, …). `lost`,
    `lost_finals` and `cpu_seconds` as in `trial_keeper.protocol.Exit`."""

    delay: float = 0.0
    reason: EndReason = EndReason.EXITED_OK
    code: int | None = 0
    signal: int | None = None
    detail: str = ""
    lost: int = 0
    lost_finals: tuple[int, ...] = ()
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Vanish:
    """The platform forgets the job silently, as if it had never been submitted."""

    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Hang:
    """The job runs until it is stopped."""


Step = Wait | ScriptedStart | ScriptedReport | Final | Raw | ScriptedExit | Vanish | Hang
Script = Callable[[TrialJobForm], Iterable[Step]]


def first_step_made(steps: Iterable[Step]) -> Iterator[Step]:
    """The same steps, the first one made already: what the script raises at once is raised here."""
    iterator = iter(steps)
    for step in iterator:
        return chain((step,), iterator)
    return iterator


def sum_of_numbers(form: TrialJobForm) -> float:
    """The default metric: the sum of the numbers among the job's parameters."""
    parameters = loads(form.parameter_file).get("parameters") or {}
    values = parameters.values() if isinstance(parameters, dict) else ()
    return float(sum(value for value in values if isinstance(value, int | float)))


def one_report(form: TrialJobForm, delay: float = 0.0) -> Iterator[Step]:
    """The default script: one final metric, `sum_of_numbers`, and exit code 0, all of it `delay` seconds after the
    start."""
    yield Final(delay, sum_of_numbers(form))
    yield ScriptedExit()


def hang(form: TrialJobForm) -> Iterator[Step]:
    """Run until stopped."""
    yield Hang()
