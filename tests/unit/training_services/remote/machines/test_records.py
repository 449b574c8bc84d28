"""Which machine has which node id, and how an experiment's entries become claims."""

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext
from proctor.training_services.remote.machines.provider import RemoteProvider
from proctor.training_services.remote.machines.records import (
    Claim,
    NodeDirectory,
    NodeRecord,
    choose_node_id,
    read_claims,
    read_records,
)


def make(folder: Path) -> RemoteProvider:
    pool = NodePool()
    return RemoteProvider(ProviderContext("m1", folder, folder / "socket", pool, KeeperHub(pool)))


def machines(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"machine_list": list(entries), "node_timeout_seconds": 60.0, "keep_alive_seconds": 5.0}


def test_a_machine_is_named_by_its_host_and_one_behind_the_same_host_gets_a_number(tmp_path: Path) -> None:
    provider = make(tmp_path)
    settings = machines({"host": "gpu-1"}, {"host": "gpu-1", "port": 2222}, {"host": "gpu-1", "user": "bob"})
    assert provider.node_ids_of(settings) == ("gpu-1", "gpu-1-2", "gpu-1-3")


def test_the_same_address_is_the_same_node_for_every_experiment_in_whatever_order(tmp_path: Path) -> None:
    provider = make(tmp_path)
    first = provider.node_ids_of(machines({"host": "a"}, {"host": "a", "port": 2222}))
    second = provider.node_ids_of(machines({"host": "a", "port": 2222, "gpu_indices": [0]}, {"host": "a"}))
    assert second == (first[1], first[0])


async def claim_both(provider: RemoteProvider, settings: dict[str, Any]) -> tuple[str, ...]:
    return provider.claim("E1", settings, {})


@pytest.mark.anyio
async def test_a_claimed_machine_keeps_its_id_over_a_restart(tmp_path: Path) -> None:
    settings = machines({"host": "a"}, {"host": "a", "port": 2222})
    claimed = await claim_both(make(tmp_path), settings)
    assert claimed == ("a", "a-2")
    assert make(tmp_path).node_ids_of(machines({"host": "a", "port": 2222})) == ("a-2",)


@pytest.mark.parametrize(
    ("host", "chosen"),
    [
        ("gpu-3.example.org", "gpu-3.example.org"),
        ("local", "local-2"),
        ("fe80::1%eth0", "fe80--1-eth0"),
        ("../../etc", "etc"),
        ("ünïcode", "n-code"),
        (".", "node"),
        ("a" * 100, "a" * 48),
    ],
)
def test_a_node_id_can_be_the_name_of_a_folder(host: str, chosen: str) -> None:
    assert choose_node_id(host, ()) == chosen


def test_a_number_is_added_until_the_id_is_free() -> None:
    assert choose_node_id("a", ["a", "a-2", "b"]) == "a-3"


def test_a_record_that_is_read_again_has_everything_but_a_login_that_is_gone(tmp_path: Path) -> None:
    kept = tmp_path / "secrets.json"
    secrets = {"training_service.machine_list.1.password": "p", "training_service.machine_list.1.ssh_passphrase": "q"}
    kept.write_text(json.dumps(secrets))
    settings = machines({"host": "a"}, {"host": "b", "port": 22, "gpu_indices": [1, 2], "python_path": "/opt/bin"})
    [_, claim] = read_claims("E1", settings, secrets, secrets_file=str(kept))
    assert claim.login.password == "p"
    written = NodeRecord("b", "b:22", (claim,), installed=True).released("E1", uncollected="it was away")
    NodeDirectory(tmp_path, "b").write(written)
    assert read_records(tmp_path) == [written]
    kept.unlink()
    [record] = read_records(tmp_path)
    assert record.claims[0].machine == claim.machine
    assert record.claims[0].login.password is None


def test_a_record_nobody_can_read_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "node.json").write_text("{")
    assert read_records(tmp_path) == []
    assert "node.json" in caplog.text


def test_the_secret_of_a_keeper_is_made_once(tmp_path: Path) -> None:
    secret = NodeDirectory(tmp_path, "a").secret()
    assert NodeDirectory(tmp_path, "a").secret() == secret
    assert NodeDirectory(tmp_path, "b").secret() != secret


def test_a_claim_is_written_without_its_login() -> None:
    [claim] = read_claims(
        "E1", machines({"host": "a"}), {"training_service.machine_list.0.password": "geheim"}, secrets_file="/s"
    )
    assert "geheim" not in json.dumps(claim.to_json())
    assert "geheim" not in repr(claim)
    assert Claim.from_json(claim.to_json()).machine == claim.machine


@pytest.mark.parametrize("is_used", [False, True])
def test_a_record_of_an_earlier_version_says_who_uses_the_machine_and_who_has_files_there(
    tmp_path: Path, is_used: bool
) -> None:
    claims = [read_claims(name, machines({"host": "a"}), {}, secrets_file="/s")[0] for name in ("E1", "E2", "E3")]
    bodies = [claim.to_json() for claim in claims]
    for body in bodies:
        del body["released"], body["uncollected"]
    written = {"kind": "remote", "node_id": "a", "address": "a", "entered": True}
    written |= {"released": not is_used, "claims": bodies[1:], "owed": bodies[:2]}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "node.json").write_text(json.dumps(written))
    [record] = read_records(tmp_path)
    assert record.experiments == (("E3",) if is_used else ())
    assert [claim.experiment_id for claim in record.uncollected] == ["E1", "E2"]
    assert [claim.experiment_id for claim in record.claims] == ["E1", "E2", "E3"]
    assert record.installed
