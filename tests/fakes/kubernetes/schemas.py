"""The published schemas of Kubernetes, strict: a field that is not in them is an error, as by `fieldValidation=Strict`.

PyPI's `kubernetes-validate` has those of the first release of each version from 1.25 to 1.37.
"""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

VERSIONS = tuple(f"1.{minor}" for minor in range(29, 38))
"""Those that Proctor's objects are valid for."""


def check(body: dict[str, Any], version: str) -> str:
    """What a server of this version says of an object's fields that are unknown or of another type; "" if nothing."""
    error = next(iter(_validator(body["apiVersion"], body["kind"], version).iter_errors(body)), None)
    return "" if error is None else f"{'.'.join(map(str, error.path))}: {error.message}"


@cache
def _validator(api_version: str, kind: str, version: str) -> Draft202012Validator:
    group, _, name = api_version.rpartition("/")
    words = (kind.lower(), *filter(None, (group.partition(".")[0], name)))
    schema = schema_contents(f"{_folder(version)}/{'-'.join(words)}.json", version)
    registry: Registry[Any] = Resource.from_contents(schema) @ _definitions(version)
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions(version: str) -> Registry[Any]:
    found = schema_contents(f"{_folder(version)}/_definitions.json", version)
    return Resource.from_contents(found) @ Registry()


def _folder(version: str) -> str:
    assert f"{version}.0" in all_versions(), f"there are no schemas of Kubernetes {version}"
    return f"kubernetes-json-schema/v{version}.0-local-strict"
