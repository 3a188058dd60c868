"""Makes the manifests of an overlay, with the few features of Kustomize that deploy/ uses; anything else is refused.

`kubectl kustomize` makes the same, which a test compares where there is a kubectl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

DEPLOY = Path(__file__).parents[3] / "deploy"

OVERLAYS = ("overlays/trial", "overlays/production", "overlays/cluster")
"""What is applied to an empty cluster."""

ADDITIONS = ("job", "restore")
"""What is applied beside the trial."""

Manifest = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "resources", "components", "namespace", "images", "patches", "configMapGenerator"}


def render(folder: Path) -> list[Manifest]:
    """Return the manifests of a folder with a `kustomization.yaml`."""
    (settings,) = documents(folder / "kustomization.yaml")
    assert settings.keys() <= _KNOWN, f"{folder} uses {settings.keys() - _KNOWN}"
    manifests: list[Manifest] = []
    for name in [*settings.get("resources", ()), *settings.get("components", ())]:
        path = (folder / name).resolve()
        manifests += render(path) if path.is_dir() else documents(path)
    for generator in settings.get("configMapGenerator", ()):
        assert generator["behavior"] == "replace" and generator["options"]["disableNameSuffixHash"], folder
        files = {name: (folder / name).read_text(encoding="utf-8") for name in generator["files"]}
        find(manifests, "ConfigMap", generator["name"])["data"] = files
    for patch in settings.get("patches", ()):
        _patch(manifests, **patch)
    for manifest in manifests:
        if "namespace" in settings and manifest["kind"] != "Namespace":
            manifest["metadata"]["namespace"] = settings["namespace"]
        for container in containers_of(manifest):
            for image in settings.get("images", ()):
                if container["image"] == image["name"]:
                    container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    return manifests


def documents(path: Path) -> list[Manifest]:
    # Through a text, so that no two parts of a document are one object, as aliases of YAML are.
    return [yaml.safe_load(_plain(document)) for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def find(manifests: list[Manifest], kind: str, name: str = "turnwise") -> Manifest:
    (manifest,) = (one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return manifest


def containers_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all containers of pods, wherever they are in a manifest."""
    if isinstance(part, Mapping):
        for name, value in part.items():
            if name in ("containers", "initContainers"):
                yield from value
            else:
                yield from containers_of(value)
    elif isinstance(part, list):
        for value in part:
            yield from containers_of(value)


def _patch(manifests: list[Manifest], target: Mapping[str, str], patch: str) -> None:
    """Carry the operations `add` and `replace` of a JSON patch out."""
    (manifest,) = (
        one for one in manifests if one["kind"] == target["kind"] and one["metadata"]["name"] == target["name"]
    )
    for operation in yaml.safe_load(patch):
        *parents, last = operation["path"].strip("/").replace("~1", "/").split("/")
        place: Any = manifest
        for name in parents:
            place = place[int(name) if isinstance(place, list) else name]
        if operation["op"] == "add" and last == "-":
            place.append(operation["value"])
        else:
            assert operation["op"] == "replace" and last in place, operation
            place[last] = operation["value"]


def _plain(document: Any) -> str:
    dumper = yaml.SafeDumper
    dumper.ignore_aliases = lambda *_: True
    text: str = yaml.dump(document, Dumper=dumper)
    return text
