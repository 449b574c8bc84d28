"""What keeps a resume from being exact is reported, one difference at a time, or refused (row R6)."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from proctor.sdk.pytorch import DataLoaderParams, DataModule
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import NotExactError, NotExactWarning
from proctor.sdk.pytorch.reproducibility import fingerprint as fingerprints
from proctor.sdk.pytorch.reproducibility.fingerprint import (
    describe_device,
    find_differences,
    report_gaps,
    take_fingerprint,
)

DEVICE = describe_device("cpu")


def loader(**changes: Any) -> "dict[str, Any]":
    data, dataset = DataModule(), changes.pop("dataset", [1, 2, 3])
    data.bind(0, Ranks())
    data.add_train_phase(dataset, DataLoaderParams(**{"batch_size": 4, "shuffle": True, **changes}))
    return data.describe()


def compare(saved: Any, now: Any, *, strict: bool = False) -> "list[str]":
    differences = find_differences(saved, now)
    report_gaps(differences, ranks=Ranks(), strict=strict)
    return differences


def collate(samples: "list[Any]") -> Any:
    return samples


@pytest.fixture
def saved() -> "fingerprints.Fingerprint":
    return take_fingerprint("cpu", settings={"seed": 6691}, loaders=loader())


def test_R6_the_same_run_in_the_same_place_has_no_differences(saved: "fingerprints.Fingerprint") -> None:
    now = take_fingerprint("cpu", settings={"seed": 6691}, loaders=loader())
    assert compare(saved, now, strict=True) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"world_size": 3}, "world size was 1, is 3"),
        ({"settings": {"seed": 1}}, "seed was 6691, is 1"),
        ({"loaders": loader(batch_size=8)}, "batch size of training 0 was 4, is 8"),
        ({"loaders": loader(num_workers=2)}, "workers of training 0 was 0, is 1"),
        ({"loaders": loader(dataset=[1])}, "dataset length of training 0 was 3, is 1"),
        ({"loaders": loader(collate_fn=collate)}, "collate function of training 0 was None, is .*collate'"),
        (
            {"loaders": loader(collate_fn=partial(collate))},
            "collate function of training 0 was None, is 'functools.partial'",
        ),
        (
            {"loaders": loader(sampler=SequentialSampler(range(3)))},
            "sampler of training 0 was None, is '.*SequentialSampler'",
        ),
        ({"loaders": loader(random_seed=7)}, "random_seed of training 0 was None, is 7"),
        ({"loaders": loader(is_distributed=False)}, "is_distributed of training 0 was None, is False"),
        ({"devices": [DEVICE, {**DEVICE, "threads": 9}]}, "threads was .*, is '.* / 9'"),
        ({"loaders": loader(shuffle=False)}, "shuffle of training 0 was True, is False"),
        ({"loaders": loader(drop_last=True)}, "drop_last of training 0 was False, is True"),
        ({"settings": {}}, "seed was 6691, is not there"),
        ({"settings": {"seed": 6691, "new": 1}}, "new was not there, is 1"),
    ],
)
def test_R6_a_change_of_the_run_is_told(
    saved: "fingerprints.Fingerprint", changes: "dict[str, Any]", told: str
) -> None:
    now = take_fingerprint("cpu", **{"settings": {"seed": 6691}, "loaders": loader(), **changes})
    with pytest.warns(NotExactWarning, match=f"not exact: {told}"):
        compare(saved, now)


@pytest.mark.parametrize(
    ("target", "value", "told"),
    [
        ("torch.__version__", "9.9", "torch was .*, is '9.9'"),
        ("torch.version.cuda", "13.7", "CUDA was .*, is '13.7'"),
        ("torch.get_num_threads", lambda: 77, "threads was .*, is 77"),
        ("torch.are_deterministic_algorithms_enabled", lambda: "?", "deterministic algorithms was"),
        ("torch.get_float32_matmul_precision", lambda: "medium", "float32 matmul precision was"),
        (
            "proctor.sdk.pytorch.reproducibility.fingerprint._cpu_model",
            lambda: "Abacus",
            "device model was .*, is 'Abacus'",
        ),
    ],
)
def test_R6_a_change_of_the_environment_is_told(
    saved: "fingerprints.Fingerprint", target: str, value: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, value)
    now = take_fingerprint("cpu", settings={"seed": 6691}, loaders=loader())
    with pytest.warns(NotExactWarning, match=told):
        differences = compare(saved, now)
    assert len(differences) == 1


def test_R6_the_model_of_a_gpu_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert take_fingerprint("cuda:1")["device model"] == "GPU 1"


def test_R6_each_difference_is_a_warning_of_its_own_and_strict_refuses_all(saved: "fingerprints.Fingerprint") -> None:
    now = {**saved, "world size": 2, "threads": 99}
    with pytest.warns(NotExactWarning) as told:
        compare(saved, now)
    assert [str(warning.message).split(" was ")[0] for warning in told] == [
        "not exact: threads",
        "not exact: world size",
    ]
    with pytest.raises(NotExactError, match=r"threads was .*world size was 1, is 2.*strict_resume=False"):
        compare(saved, now, strict=True)


def test_R6_a_checkpoint_without_a_fingerprint_is_not_accepted_in_silence(saved: "fingerprints.Fingerprint") -> None:
    with pytest.warns(NotExactWarning, match="no fingerprint"):
        compare(None, saved)
    with pytest.raises(NotExactError, match="no fingerprint"):
        compare({}, saved, strict=True)


def test_a_processor_that_tells_no_name_has_that_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert fingerprints._cpu_model.__wrapped__()
