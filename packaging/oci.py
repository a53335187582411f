#!/usr/bin/env python3
"""Writes an OCI image as an archive (image layout in a tar), without a daemon: one layer per machine, with nothing in it but
the static program and the folders that it needs. The bytes depend on the arguments alone.

usage: oci.py --version V --epoch SECONDS --out FILE.tar ARCH=PROGRAM...
"""
import argparse
import datetime
import gzip
import hashlib
import io
import json
import sys
import tarfile

# A number that no distribution gives away, as distroless images have it.
USER = 65532
# The usual ports of Shadowsocks and Snell, for tools that read them; any port works.
PORTS = [8388, 6160]
MEDIA = "application/vnd.oci.image."
SOURCE = "https://github.com/adit-proxy/adit"


def entry(name, mode, epoch, uid=0, data=None):
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.uid, info.gid = mode, epoch, uid, uid
    info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    info.size = len(data or b"")
    return info, io.BytesIO(data or b"")


def archive(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, data)
    return out.getvalue()


def layer(program, epoch):
    """The only layer, as a tar."""
    passwd = f"root:x:0:0:root:/:/sbin/nologin\nadit:x:{USER}:{USER}:adit:/var/lib/adit:/sbin/nologin\n".encode()
    group = f"root:x:0:\nadit:x:{USER}:\n".encode()
    folders = [("etc", 0o755, 0), ("etc/adit", 0o755, 0), ("run", 0o755, 0), ("run/adit", 0o750, USER), ("tmp", 0o1777, 0),
               ("usr", 0o755, 0), ("usr/bin", 0o755, 0), ("var", 0o755, 0), ("var/lib", 0o755, 0),
               ("var/lib/adit", 0o700, USER)]
    files = [("etc/group", 0o644, group), ("etc/passwd", 0o644, passwd), ("usr/bin/adit", 0o755, program)]
    entries = [entry(name + "/", mode, epoch, uid) for name, mode, uid in folders]
    return archive(entries + [entry(name, mode, epoch, data=data) for name, mode, data in files])


class Layout:
    """The blobs of an image layout."""

    def __init__(self):
        self.blobs = {}

    def add(self, media, data, **more):
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"mediaType": MEDIA + media, "digest": "sha256:" + digest, "size": len(data), **more}

    def add_json(self, media, value, **more):
        return self.add(media, json.dumps(value, sort_keys=True).encode(), **more)


def image(layout, arch, program, version, epoch):
    """The manifest of one machine's image."""
    made = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    tar = layer(program, epoch)
    blob = layout.add("layer.v1.tar+gzip", gzip.compress(tar, 9, mtime=0))
    arch, _, variant = arch.partition("/")
    machine = {"architecture": arch, "os": "linux", **({"variant": variant} if variant else {})}
    labels = {"org.opencontainers.image.source": SOURCE, "org.opencontainers.image.version": version,
              "org.opencontainers.image.licenses": "MIT OR Apache-2.0", "org.opencontainers.image.title": "adit"}
    config = layout.add_json("config.v1+json", {
        **machine, "created": made,
        "config": {
            "User": f"{USER}:{USER}", "Entrypoint": ["/usr/bin/adit"], "Cmd": ["run", "-c", "/etc/adit/adit.toml"],
            "Env": ["PATH=/usr/bin", "STATE_DIRECTORY=/var/lib/adit"], "WorkingDir": "/", "StopSignal": "SIGTERM",
            "Volumes": {"/var/lib/adit": {}}, "Labels": labels,
            "ExposedPorts": {f"{port}/{transport}": {} for port in PORTS for transport in ("tcp", "udp")}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar).hexdigest()]},
        "history": [{"created": made, "created_by": "packaging/oci.py"}]})
    manifest = {"schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json", "config": config, "layers": [blob],
                "annotations": labels}
    return layout.add_json("manifest.v1+json", manifest, platform=machine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", required=True)
    parser.add_argument("--epoch", required=True, type=int)
    parser.add_argument("--out", required=True)
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()
    layout = Layout()
    manifests = []
    for pair in args.programs:
        arch, _, path = pair.partition("=")
        with open(path, "rb") as file:
            manifests.append(image(layout, arch, file.read(), args.version, args.epoch))
    name = {"org.opencontainers.image.ref.name": args.version}
    if len(manifests) > 1:
        index = {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": manifests}
        manifests = [layout.add_json("index.v1+json", index)]
    top = {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [{**manifests[0], "annotations": name}]}
    entries = [entry("oci-layout", 0o644, args.epoch, data=b'{"imageLayoutVersion":"1.0.0"}'),
               entry("index.json", 0o644, args.epoch, data=json.dumps(top, sort_keys=True).encode()),
               entry("blobs/", 0o755, args.epoch), entry("blobs/sha256/", 0o755, args.epoch)]
    entries += [entry("blobs/sha256/" + digest, 0o644, args.epoch, data=data) for digest, data in sorted(layout.blobs.items())]
    with open(args.out, "wb") as file:
        file.write(archive(entries))
    print(f"-- OCI image: {args.out}", file=sys.stderr)


main()
