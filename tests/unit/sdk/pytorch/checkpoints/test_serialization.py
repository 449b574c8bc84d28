"""What may be in a checkpoint, and that nothing else is loaded (rows C11 and C12)."""

import errno
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from fakes.checkpoint_writer import write_checkpoint
from fakes.full_disk import refuse

from proctor.sdk.pytorch.checkpoints.serialization import _relocate, copy_content, load, prove, write_content
from proctor.sdk.pytorch.errors import ConfigurationError, UnreadableCheckpointError


class Extra:
    def __init__(self, value: int = 0) -> None:
        self.value = value


class Pair(NamedTuple):
    first: int
    second: int


class Tagged(torch.Tensor):
    """A tensor class of the user."""


def make_tagged_parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.tag = Extra()  # type: ignore[attr-defined]
    return parameter


class Attack:
    def __reduce__(self) -> "tuple[Any, tuple[str]]":
        return os.system, ("touch attacked",)


def store(path: Path, content: "dict[str, Any]", *types: type) -> Path:
    write_checkpoint(path, content, types)
    prove(path, content, types)
    return path


def test_C11_plain_values_and_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    content = {
        "plain": [None, True, 1, 2**100, 1.5, 1j, "text", b"bytes", (1, (2, 3)), {"set"}],
        "ordered": OrderedDict(a=1),
        "kinds": [torch.float16, torch.device("cpu"), torch.Size([1, 2])],
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    found = load(store(tmp_path / "a.pth", content))
    assert torch.equal(found.pop("parameter"), content.pop("parameter"))
    assert found == content


def test_C11_an_arbitrary_pickle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": 1, "model": Attack()}, tmp_path / "a.pth")
    (tmp_path / "b.pth").write_bytes(pickle.dumps(Attack(), protocol=2))
    for name in ("a.pth", "b.pth"):
        with pytest.raises(UnreadableCheckpointError, match="without running code"):
            load(tmp_path / name)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    "value",
    [
        Extra(),
        Pair(1, 2),
        lambda: 0,
        Extra,
        {1: {"deep": [Extra()]}},
        torch.ones(2).as_subclass(Tagged),
        torch.nn.Parameter(torch.ones(2).as_subclass(Tagged)),
        make_tagged_parameter(),
    ],
)
def test_C11_what_could_not_be_loaded_again_is_refused_when_it_is_saved(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"checkpoint\['model'\].*types_for_safe_load"):
        copy_content({"model": value})


def test_C11_the_users_own_types_are_loaded_when_they_are_named_and_named_when_they_are_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "a.pth", {"extra": Extra(7)}, Extra)
    assert load(path, safe_types=[Extra])["extra"].value == 7
    with pytest.raises(UnreadableCheckpointError) as refused:
        load(path)
    text = str(refused.value)
    assert "test_serialization.Extra was not an allowed global by default. Only plain values" in text
    assert "weights_only" not in text  # torch's advice to run the code
    assert "\x1b" not in text


def test_C11_a_tensor_class_is_loaded_when_it_is_named_or_registered_with_torch(tmp_path: Path) -> None:
    value = torch.ones(2).as_subclass(Tagged)
    path = store(tmp_path / "a.pth", {"value": value}, Tagged)
    assert type(load(path, safe_types=[Tagged])["value"]) is Tagged
    with torch.serialization.safe_globals([Tagged]):
        assert type(load(store(tmp_path / "b.pth", {"value": value}))["value"]) is Tagged


def test_C11_plain_attributes_of_a_tensor_come_back_with_it(tmp_path: Path) -> None:
    value = torch.ones(2)
    value.tag = "text"  # type: ignore[attr-defined]
    content = {"value": value, "buffer": torch.nn.Buffer(torch.ones(2))}
    found = load(store(tmp_path / "a.pth", content))
    assert found["value"].tag == "text"
    assert torch.equal(found["buffer"], torch.ones(2))


class Forgetful(dict[str, int]):
    """Comes back as a plain dictionary."""

    def __reduce__(self) -> "tuple[Any, ...]":
        return OrderedDict, (list(self.items()),)


def test_what_comes_back_as_something_else_than_was_saved_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpointError, match=r"checkpoint\['value'\] was .*Forgetful, and is .*OrderedDict"):
        store(tmp_path / "a.pth", {"value": Forgetful(a=1)}, Forgetful)


def test_a_checkpoint_of_an_earlier_version_with_the_shards_of_one_rank_is_refused(tmp_path: Path) -> None:
    from torch.distributed.tensor import DeviceMesh, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        split = distribute_tensor(torch.ones(2), DeviceMesh("cpu", [0]))
        torch.save({"format": 1, "model": {"weight": split}}, tmp_path / "a.pth")
        with pytest.raises(UnreadableCheckpointError, match=r"a\.pth holds .* the other ranks' shards are lost"):
            load(tmp_path / "a.pth")
    finally:
        dist.destroy_process_group()


def test_a_file_with_something_else_than_a_dictionary_says_so(tmp_path: Path) -> None:
    torch.save([1], tmp_path / "a.pth")
    with pytest.raises(UnreadableCheckpointError, match="contains a list"):
        load(tmp_path / "a.pth")


@pytest.mark.parametrize(
    "content", [b"", b"no checkpoint", b"torn", b"\x80\x02G1", b"\x80\x02M", b"PK\x03\x04 half a zip archive"]
)
def test_a_file_that_is_no_checkpoint_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(content)
    with pytest.raises(UnreadableCheckpointError, match=r"a\.pth") as refused:
        load(path)
    assert "weights_only" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_C9_a_copy_stays_as_it_is_and_shares_what_was_shared(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    lists = [1]
    content = {
        "whole": whole,
        "part": whole[2:4],
        "same": whole,
        "column": whole.reshape(2, 3).T,
        "a": lists,
        "b": lists,
    }
    copied = copy_content(content)
    whole.zero_()
    lists.append(2)
    assert copied["same"] is copied["whole"]
    assert copied["a"] is copied["b"]
    assert copied["a"] == [1]
    assert torch.equal(copied["part"], torch.tensor([2.0, 3.0]))
    assert torch.equal(copied["column"], torch.arange(6.0).reshape(2, 3).T)
    copied["whole"][2] = 7.0
    assert copied["part"][0] == copied["column"][2, 0] == 7.0


def test_C9_tensors_of_all_kinds_are_copied_and_can_be_read_back(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    content = {
        "network": network.state_dict(),
        "sparse": torch.eye(2).to_sparse(),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "unfinished": torch.ones(2, requires_grad=True) * 2,
        "empty": torch.empty(0, 3),
        "expanded": torch.ones(1).expand(3),
        "meta": torch.ones(2, device="meta"),
    }
    store(tmp_path / "a.pth", content)
    copied = copy_content(content)
    for name in ("sparse", "conjugate", "parameter", "unfinished", "empty", "expanded"):
        assert torch.equal(copied[name].to_dense(), content[name].to_dense()), name
        assert type(copied[name]) is type(content[name])
        assert copied[name].requires_grad == content[name].requires_grad
    assert copied["meta"].is_meta
    assert copied["network"]._metadata == content["network"]._metadata


def test_C9_a_problem_of_the_disk_is_raised_as_it_is_and_not_as_one_of_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", refuse(errno.ENOSPC))
    with open(tmp_path / "a.pth", "wb") as file, pytest.raises(OSError, match="No space left"):
        write_content(copy_content({"weight": torch.ones(1 << 20)}), file.fileno())


def test_C12_a_copy_of_a_tensor_of_a_gpu_is_saved_as_one(tmp_path: Path) -> None:
    copied = copy_content({"weight": torch.ones(2), "step": torch.ones(1)})
    copied["weight"].untyped_storage().copied_from = "cuda:3"
    with open(tmp_path / "a.pth", "wb") as file:
        write_content(copied, file.fileno())
    found: list[str] = []
    torch.load(tmp_path / "a.pth", map_location=lambda storage, location: found.append(location) or storage)
    assert sorted(found) == ["cpu", "cuda:3"]


def test_C12_a_checkpoint_of_one_gpu_is_placed_on_another_and_cpu_tensors_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(
        "proctor.sdk.pytorch.checkpoints.serialization.default_restore_location",
        lambda storage, location: asked.append(location) or storage,
    )
    place = _relocate(torch.device("cuda", 1))
    storage = torch.ones(1).untyped_storage()
    for saved_on in ("cuda:3", "cuda:0", "cpu"):
        assert place(storage, saved_on) is storage
    assert asked == ["cuda:1", "cuda:1"]
