"""Makes the files and the calls of LMCache's connectors, for the tests of the store.

usage: connector.py BASE[,BASE...] [mount] < commands

Each line of the input is a JSON object with op (put, get, exists, remove, list) and key:
model, world_size, worker_id, chunk_hash, dtype, and optionally layer, tags, slash (what
stands for a slash), format (the first field of older names), untyped (names without dtype) and
header, which has fmt and groups of [dtype code, shape]. An object of the multi-process server
has model, kv_rank, digest, and optionally group, salt and levels (hash_subdir_levels) instead.
Each line of the output is the answer. With a mount the bytes go through rings, as in LMCache's 3FS
connector; without one through files, as in its FS connector. A block is made of its seed.
"""

import json
import os
import pathlib
import struct
import sys


def content(seed, size):
    return bytes((seed * 7 + i * i * 3 + (i >> 8)) & 0xFF for i in range(size))


class Files:
    """Plain files."""

    def write(self, path, parts):
        with open(path, "wb") as file:
            for part in parts:
                file.write(part)

    def read(self, path, sizes):
        parts = []
        with open(path, "rb") as file:
            for size in sizes:
                part = bytearray(size)
                parts.append(bytes(part[: file.readinto(part)]))
        return parts

    def close(self):
        pass


class Rings:
    """One request in flight in each direction, through memory of the client's own."""

    BYTES = 1 << 20

    def __init__(self, mount):
        from multiprocessing.shared_memory import SharedMemory

        from hf3fs_fuse import io

        self.io = io
        self.shm, self.iov, self.ring = {}, {}, {}
        for reads in (True, False):
            self.shm[reads] = SharedMemory(create=True, size=self.BYTES)
            self.iov[reads] = io.make_iovec(self.shm[reads], mount, block_size=0, numa=-1)
            self.ring[reads] = io.make_ioring(mount, 256, for_read=reads, timeout=200, numa=-1)

    def move(self, reads, fd, size, at):
        ring = self.ring[reads]
        ring.prepare(self.iov[reads][:size], reads, fd, at)
        ring.submit()
        return ring.wait(min_results=1)[0].result

    def write(self, path, parts, renamed=None):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.io.register_fd(fd)
            at = 0
            for part in parts:
                self.shm[False].buf[: len(part)] = part
                moved = self.move(False, fd, len(part), at)
                if moved != len(part):
                    raise RuntimeError(f"requested {len(part)}, got {moved}")
                at += len(part)
            if renamed:  # while the file is open and registered
                os.rename(path, renamed)
            self.io.deregister_fd(fd)
        finally:
            os.close(fd)

    def read(self, path, sizes):
        fd = os.open(path, os.O_RDONLY)
        parts, at = [], 0
        try:
            self.io.register_fd(fd)
            for size in sizes:
                moved = self.move(True, fd, size, at)
                if moved < 0:
                    raise OSError(-moved, path)
                parts.append(bytes(self.shm[True].buf[:moved]))
                at += moved
            self.io.deregister_fd(fd)
        finally:
            os.close(fd)
        return parts

    def close(self):
        self.ring.clear()
        self.iov.clear()
        for shm in self.shm.values():
            shm.close()
            shm.unlink()


class Connector:
    def __init__(self, bases, data):
        self.bases, self.data = [pathlib.Path(base) for base in bases], data
        for base in self.bases:
            base.mkdir(parents=True, exist_ok=True)

    def object_path(self, key):
        digest = key["digest"]
        fields = [key["model"].replace("/", "-SEP-"), f"{key['kv_rank']:#010x}"]
        if "group" in key:
            fields.append(f"{key['group']:x}")
        fields.append(digest)
        if key.get("salt"):
            fields.append(key["salt"])
        base = self.bases[int(digest[-16:], 16) % len(self.bases)]
        for level in range(key.get("levels", 0)):
            base /= digest[2 * level : 2 * level + 2]
        base.mkdir(parents=True, exist_ok=True)
        return base / ("@".join(fields) + ".data")

    def path(self, key):
        if "digest" in key:
            return self.object_path(key)
        chunk_hash = key["chunk_hash"]
        fields = [key["model"], key["world_size"], key["worker_id"], f"{chunk_hash:x}"]
        if "format" in key:
            fields.insert(0, key["format"])
        if not key.get("untyped"):
            fields.append(key["dtype"])
        if "layer" in key:
            fields.append(key["layer"])
        fields += [f"{name}%{value}" for name, value in key.get("tags", [])]
        name = "@".join(str(field) for field in fields).replace("/", key.get("slash", "-SEP-"))
        base = self.bases[abs(chunk_hash) % len(self.bases)]
        return base / (name + ".data")

    @staticmethod
    def header(key, size):
        if "header" not in key:
            return b""
        numbers = [size, key["header"]["fmt"]]
        for code, shape in key["header"]["groups"]:
            numbers += [code, *shape]
        return struct.pack("i" * len(numbers), *numbers)

    def put(self, key, seed, size):
        path = self.path(key)
        temporary = path.with_suffix(".tmp")
        parts = [part for part in (self.header(key, size), content(seed, size)) if part]
        if isinstance(self.data, Rings):
            self.data.write(temporary, parts, path)
        else:
            self.data.write(temporary, parts)
            os.replace(temporary, path)
        return True

    def get(self, key, seed, size):
        """Whether the file has exactly this chunk; None without a file."""
        header = self.header(key, size)
        try:
            parts = self.data.read(self.path(key), [len(header), size] if header else [size])
        except FileNotFoundError:
            return None
        if header:
            length = struct.unpack_from("i", parts[0])[0]
            if parts.pop(0) != header or length != size:
                return False
        return parts[0] == content(seed, size)

    def exists(self, key):
        return self.path(key).exists()

    def remove(self, key):
        os.remove(self.path(key))
        return True

    def list(self):
        return sorted(file.stem for base in self.bases for file in base.rglob("*.data") if ".kv3fs" not in str(file))


def main():
    data = Rings(sys.argv[2]) if len(sys.argv) > 2 else Files()
    connector = Connector(sys.argv[1].split(","), data)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(connector, command.pop("op"))(**command)
        print(json.dumps(answer), flush=True)
    data.close()


if __name__ == "__main__":
    main()
