"""Training services by the name of their platform."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from proctor.training_services import registry
from proctor.training_services.base import TrainingService
from proctor.training_services.errors import BrokenPlatform, SubmissionRefused, UnknownPlatform
from proctor.training_services.in_memory.service import InMemoryTrainingService
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.local.service import LocalTrainingService
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.registry import ServiceContext, create, known_platforms


@pytest.fixture
def context() -> ServiceContext:
    pool = NodePool()
    return ServiceContext("e1", Path("/home/x/experiments/e1"), pool, KeeperHub(pool), {"gpu_indices": [0]})


def install(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """Entry points as packages would bring them."""
    found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in entries]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found)


def plug_in(context: ServiceContext) -> InMemoryTrainingService:
    return InMemoryTrainingService()


def broken(context: ServiceContext) -> InMemoryTrainingService:
    raise ValueError("bad settings")


def refusing(context: ServiceContext) -> InMemoryTrainingService:
    raise SubmissionRefused("no license")


def wrong(context: ServiceContext) -> str:
    return "a string"


def test_built_in_services_are_made_by_name(context: ServiceContext) -> None:
    assert isinstance(create("local", context), LocalTrainingService)
    assert isinstance(create("in_memory", context), InMemoryTrainingService)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    context: ServiceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, ("slurm", "nowhere:Nothing"))
    with pytest.raises(UnknownPlatform, match=r"'lokal'.*known: local, in_memory, remote, kubernetes, slurm"):
        create("lokal", context)


def test_a_plug_in_is_made_by_its_entry_point(context: ServiceContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda entry: plug_in)
    install(monkeypatch, ("slurm", "somewhere:plug_in"))
    assert known_platforms() == ["local", "in_memory", "remote", "kubernetes", "slurm"]
    assert isinstance(create("slurm", context), InMemoryTrainingService)


def test_a_plug_in_that_cannot_be_imported_is_loud(context: ServiceContext, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("slurm", "no_such_module_at_all:Service"))
    with pytest.raises(BrokenPlatform, match=r"'slurm'.*no_such_module_at_all.*Known platforms: local"):
        create("slurm", context)


class Mute(TrainingService):
    """A service that is complete but for status events."""

    list_trial_jobs = get_trial_job = submit_trial_job = update_trial_job = cancel_trial_job = None
    add_trial_job_metric_listener = remove_trial_job_metric_listener = None
    set_cluster_metadata = get_cluster_metadata = clean_up = run = None
    is_multi_phase_job_supported = False

    def __init__(self, context: ServiceContext) -> None:
        pass


@pytest.mark.parametrize(
    ("factory", "error", "sentence"),
    [
        (broken, BrokenPlatform, "bad settings"),
        (wrong, BrokenPlatform, "returned a str"),
        ("not callable", BrokenPlatform, "is not callable"),
        (Mute, BrokenPlatform, r"'slurm'.*Mute.*not a .*SupportsEvents.*no job would ever"),
        (refusing, SubmissionRefused, "no license"),
    ],
    ids=["fails", "something else", "no factory", "pushes no status changes", "an error of ours passes as it is"],
)
def test_a_plug_in_that_makes_no_service_is_loud(
    context: ServiceContext, monkeypatch: pytest.MonkeyPatch, factory: object, error: type[Exception], sentence: str
) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda entry: factory)
    install(monkeypatch, ("slurm", "somewhere:factory"))
    with pytest.raises(error, match=sentence):
        create("slurm", context)


def test_two_packages_that_claim_one_name_are_an_error(
    context: ServiceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, ("slurm", "one:Service"), ("slurm", "two:Service"))
    with pytest.raises(BrokenPlatform, match=r"one:Service and two:Service"):
        create("slurm", context)
