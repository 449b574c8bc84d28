"""The volumes and the environment of a pod's containers, as a kubelet makes them from the objects of the API."""

import base64
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.kubernetes.api import Api, ApiError, Object

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")


class Missing(Exception):
    """Something that the pod names is not there (yet)."""


@dataclass(frozen=True)
class Volume:
    """What is mounted."""

    path: Path
    is_read_only: bool = False


class Volumes:
    """What is mounted into the containers of one pod."""

    def __init__(self, api: Api, pod: Object, folder: Path) -> None:
        self._api = api
        self._pod = pod
        self._folder = folder
        self._namespace = pod["metadata"]["namespace"]

    async def make(self) -> dict[str, Volume]:
        """By name. Raises Missing."""
        made: dict[str, Volume] = {}
        for volume in self._pod["spec"].get("volumes", []):
            try:
                made[volume["name"]] = await self._make(volume)
            except Missing as error:
                raise Missing(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error
        return made

    async def _make(self, volume: Object) -> Volume:
        folder = self._folder / "volumes" / volume["name"]
        if "persistentVolumeClaim" in volume:
            source = volume["persistentVolumeClaim"]
            return Volume(await self._find_claim(source["claimName"]), source.get("readOnly", False))
        if "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            return Volume(folder)
        files = await self._read_files(volume)
        _write_files(folder, files)
        return Volume(folder, is_read_only=True)

    async def _find_claim(self, name: str) -> Path:
        claims = f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims"
        try:
            claim = await self._api.get(f"{claims}/{name}")
        except ApiError as error:
            raise Missing(f'persistentvolumeclaim "{name}" not found') from error
        bound = await self._api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        path = Path(bound["spec"]["hostPath"]["path"])
        path.mkdir(parents=True, exist_ok=True)
        return path

    async def _read_files(self, volume: Object) -> dict[str, tuple[bytes, int]]:
        """The content and mode of what lies in a volume, by path."""
        ((kind, source),) = [(key, value) for key, value in volume.items() if key != "name"]
        mode = source.get("defaultMode", 0o644)
        assert kind in ("configMap", "secret"), f"volumes of kind {kind} are not played"
        data = await self._read_data(kind, source.get("secretName") or source["name"])
        return {key: (value, mode) for key, value in data.items()}

    async def _read_data(self, kind: str, name: str) -> dict[str, bytes]:
        plural = "configmaps" if kind == "configMap" else "secrets"
        try:
            found = await self._api.get(f"/api/v1/namespaces/{self._namespace}/{plural}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            raise Missing(f'{plural.removesuffix("s")} "{name}" not found') from error
        binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
        if kind == "configMap":
            return {key: value.encode() for key, value in (found.get("data") or {}).items()} | binary
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}

    async def environment(self, container: Object) -> dict[str, str]:
        """The variables that a container's specification names. Raises Missing."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            ((kind, details),) = [(key, value) for key, value in source.items() if key != "prefix"]
            data = await self._read_data(kind.removesuffix("Ref"), details["name"])
            found |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
        for variable in container.get("env", []):
            if "valueFrom" not in variable:
                found[variable["name"]] = expand(variable.get("value", ""), found)
            else:
                found[variable["name"]] = await self._read_value(variable["valueFrom"])
        return found

    async def _read_value(self, source: Object) -> str:
        if "fieldRef" in source:
            return read_field(self._pod, source["fieldRef"]["fieldPath"])
        ((kind, reference),) = source.items()
        data = await self._read_data(kind.removesuffix("KeyRef"), reference["name"])
        return data[reference["key"]].decode()


def _write_files(folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Files behind two links, as a kubelet writes them to replace all of them at once."""
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / time.strftime("..%Y_%m_%d_%H_%M_%S.000000000")
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name, (content, mode) in files.items():
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        first = name.split("/")[0]
        if not os.path.lexists(folder / first):
            (folder / first).symlink_to(f"..data/{first}")


def read_field(pod: Object, path: str) -> str:
    """A field of a pod by its path, such as `metadata.uid`."""
    value: Any = pod
    for name in path.split("."):
        value = value[name]
    return str(value)


def expand(text: str, variables: dict[str, str]) -> str:
    """Replace `$(NAME)` where the variable is known; `$$` is one dollar."""

    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(put, text)
