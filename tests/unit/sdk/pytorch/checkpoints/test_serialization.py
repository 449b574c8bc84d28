"""What may be in a checkpoint, and that nothing else is loaded (rows C11 and C12)."""

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from proctor.sdk.pytorch.checkpoints.serialization import _relocate, load, serialize
from proctor.sdk.pytorch.errors import UnreadableCheckpointError


class Extra:
    """A class of the user."""

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
    path.write_bytes(serialize(content, types))
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
    with pytest.raises(TypeError, match=r"checkpoint\['model'\].*types_for_safe_load"):
        serialize({"model": value})


def test_C11_the_users_own_types_are_loaded_when_they_are_named(tmp_path: Path) -> None:
    path = store(tmp_path / "a.pth", {"extra": Extra(7)}, Extra)
    assert load(path, safe_types=[Extra])["extra"].value == 7
    with pytest.raises(UnreadableCheckpointError):
        load(path)


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


def test_C11_a_refusal_names_the_class_and_repeats_no_advice_to_run_the_code(tmp_path: Path) -> None:
    path = store(tmp_path / "a.pth", {"extra": Extra(7)}, Extra)
    with pytest.raises(UnreadableCheckpointError) as refused:
        load(path)
    text = str(refused.value)
    assert "test_serialization.Extra was not an allowed global by default. Only plain values" in text
    assert "weights_only" not in text
    assert "\x1b" not in text


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


def test_a_file_with_something_else_than_a_dictionary_says_so(tmp_path: Path) -> None:
    torch.save([1], tmp_path / "a.pth")
    with pytest.raises(UnreadableCheckpointError, match="holds a list"):
        load(tmp_path / "a.pth")


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
