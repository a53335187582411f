#!/usr/bin/env python3
"""Prints the parts of the program as CycloneDX 1.5: every package that is linked into it, with version, licence and
checksum. Read from Cargo's own graph, so that it names neither test nor build dependencies. The output depends on Cargo.lock
and the arguments alone.

usage: sbom.py --target TRIPLE --epoch SECONDS
"""
import argparse
import datetime
import json
import subprocess
import tomllib
import uuid


def reachable(graph, start):
    """Ids of the packages that `start` links, itself included."""
    edges = {node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
             for node in graph["resolve"]["nodes"]}
    found, todo = {start}, [start]
    while todo:
        for package in edges[todo.pop()]:
            if package not in found:
                found.add(package)
                todo.append(package)
    return found, edges


def component(package, checksums):
    name, version = package["name"], package["version"]
    purl = f"pkg:cargo/{name}@{version}"
    out = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "scope": "required"}
    if package.get("license"):
        # Old packages write a slash for "or".
        out["licenses"] = [{"expression": package["license"].replace("/", " OR ").replace("  ", " ")}]
    if (name, version) in checksums:
        out["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--epoch", required=True, type=int)
    args = parser.parse_args()
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", args.target]
    graph = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    with open("Cargo.lock", "rb") as file:
        lock = tomllib.load(file)
    checksums = {(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p}
    packages = {package["id"]: package for package in graph["packages"]}
    program = next(id for id in graph["workspace_members"] if packages[id]["name"] == "adit")
    found, edges = reachable(graph, program)
    parts = {id: component(packages[id], checksums) for id in found}
    main_part = {**parts.pop(program), "type": "application"}
    dependencies = [{"ref": component(packages[id], {})["bom-ref"],
                     "dependsOn": sorted({component(packages[to], {})["bom-ref"] for to in edges[id] if to in found})}
                    for id in found]
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(args.epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": main_part},
        "components": sorted(parts.values(), key=lambda part: part["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda part: part["ref"]),
    }
    text = json.dumps(bom, sort_keys=True)
    bom["serialNumber"] = "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_URL, text))
    print(json.dumps(bom, indent=1, sort_keys=True))


main()
