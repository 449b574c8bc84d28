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

    def __init__(self, message: str, *, volume: str = "") -> None:
        super().__init__(message)
        self.volume = volume


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
                text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
                raise Missing(text, volume=volume["name"]) from error
        return made

    async def _make(self, volume: Object) -> Volume:
        folder = self._folder / "volumes" / volume["name"]
        if "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            if "Create" in volume["hostPath"].get("type", "DirectoryOrCreate"):
                path.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                raise Missing(f"hostPath type check failed: {path} is not a directory")
            return Volume(path)
        if "persistentVolumeClaim" in volume:
            source = volume["persistentVolumeClaim"]
            return Volume(await self._find_claim(source["claimName"]), source.get("readOnly", False))
        if "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            return Volume(folder)
        files = await self._read_files(volume, str(volume["name"]))
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

    async def _read_files(self, volume: Object, name: str) -> dict[str, tuple[bytes, int]]:
        """The content and mode of what lies in a volume, by path."""
        if "projected" in volume:
            found: dict[str, tuple[bytes, int]] = {}
            mode = volume["projected"].get("defaultMode", 0o644)
            for source in volume["projected"]["sources"]:
                ((kind, details),) = source.items()
                found |= await self._read_files({kind: {"defaultMode": mode, **details}}, name)
            return found
        ((kind, source),) = [(key, value) for key, value in volume.items() if key != "name"]
        mode = source.get("defaultMode", 0o644)
        if kind == "downwardAPI":
            return {
                item["path"]: (read_field(self._pod, item["fieldRef"]["fieldPath"]).encode(), item.get("mode", mode))
                for item in source["items"]
            }
        if kind == "serviceAccountToken":
            return {source["path"]: (await self._make_token(source), mode)}
        assert kind in ("configMap", "secret"), f"volumes of kind {kind} are not played"
        object_name = source.get("secretName") or source["name"]
        data = await self._read_data(kind, object_name, is_optional=source.get("optional", False))
        if "items" not in source:
            return {key: (value, mode) for key, value in data.items()}
        for item in source["items"]:
            if item["key"] not in data and not source.get("optional"):
                what = "configmap" if kind == "configMap" else "secret"
                raise Missing(f"{what} references non-existent {what} key: {item['key']}")
        return {
            item["path"]: (data[item["key"]], item.get("mode", mode)) for item in source["items"] if item["key"] in data
        }

    async def _make_token(self, source: Object) -> bytes:
        account = self._pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        spec = {"expirationSeconds": source.get("expirationSeconds", 3600), "audiences": []}
        if source.get("audience"):
            spec["audiences"] = [source["audience"]]
        made = await self._api.create(path, {"spec": spec})
        return str(made["status"]["token"]).encode()

    async def _read_data(self, kind: str, name: str, *, is_optional: bool = False) -> dict[str, bytes]:
        plural = "configmaps" if kind == "configMap" else "secrets"
        try:
            found = await self._api.get(f"/api/v1/namespaces/{self._namespace}/{plural}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            if is_optional:
                return {}
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
            kind = kind.removesuffix("Ref")
            data = await self._read_data(kind, details["name"], is_optional=details.get("optional", False))
            found |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
        for variable in container.get("env", []):
            if "valueFrom" not in variable:
                found[variable["name"]] = expand(variable.get("value", ""), found)
            elif (value := await self._read_value(variable["valueFrom"])) is not None:
                found[variable["name"]] = value
        return found

    async def _read_value(self, source: Object) -> str | None:
        if "fieldRef" in source:
            return read_field(self._pod, source["fieldRef"]["fieldPath"])
        kind, reference = next(
            (key.removesuffix("KeyRef"), value) for key, value in source.items() if key.endswith("KeyRef")
        )
        is_optional = reference.get("optional", False)
        data = await self._read_data(kind, reference["name"], is_optional=is_optional)
        if reference["key"] in data:
            return data[reference["key"]].decode()
        if is_optional:
            return None
        what = "ConfigMap" if kind == "configMap" else "Secret"
        raise Missing(f"couldn't find key {reference['key']} in {what} {self._namespace}/{reference['name']}")


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
    """A field of a pod by its path, such as `metadata.labels['app']`."""
    metadata: Any = pod["metadata"]
    if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(metadata.get(keyed[1], {}).get(keyed[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = metadata.get(path.rpartition(".")[2], {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    if path in ("status.podIP", "status.hostIP", "status.podIPs"):
        return "127.0.0.1"
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
