"""Does with files what LMCache's GDS backend does, for tests of what kv3fs does.

Reads requests in JSON, one a line, and prints an answer to each:

    {"do": "write", "root", CHUNK, "payload"}   null. The payload is in base64.
    {"do": "read", "roots", CHUNK}              what a load of the chunk returns, or null
    {"do": "scan", "root"}                      the keys that a start finds

CHUNK is "model", "world", "worker", "hash" (the number) or "digest" (of bytes, in hexadecimal), "dtype" (torch's), "shape", "fmt", and perhaps
"layer", "tags" (pairs), "groups" (pairs of a shape and a type) and "header" (a first tensor's type that is
not the key's). A request may have "weka": true, and
"older": true for headers and scans as in releases of 2025. "cufile": true writes the payload by a write
call instead of through a shared mapping.

The facts are LMCache's; the code is not.
"""
import base64
import json
import mmap
import os
import struct
import sys
import urllib.parse
import uuid

HEADER = 4096
WORDS = {  # torch's type: (word in headers, bytes, word in keys)
    "float16": ("F16", 2, "half"), "bfloat16": ("BF16", 2, "bfloat16"), "float32": ("F32", 4, "float"),
    "float64": ("F64", 8, "double"), "uint8": ("U8", 1, "uint8"), "int8": ("I8", 1, "int8"), "int16": ("I16", 2, "int16"),
    "int32": ("I32", 4, "int32"), "int64": ("I64", 8, "int64"),
    "float8_e4m3fn": ("F8E4M3FN", 1, "fp8_e4m3fn"), "float8_e5m2": ("F8E5M2", 1, "fp8_e5m2"),
}
OF_HEADER = {word: size for word, size, _ in WORDS.values()}
OF_KEY = {word for _, _, word in WORDS.values()} | {"bool", "fp8_e4m3fnuz", "fp8_e5m2fnuz"}


def elements(shape):
    count = 1
    for dim in shape:
        count *= dim
    return count


def hash_of(chunk):
    return bytes.fromhex(chunk["digest"]) if "digest" in chunk else chunk["hash"]


def key_of(chunk):
    value = hash_of(chunk)
    digits = value.hex() if isinstance(value, bytes) else "%x" % value
    key = "%s@%d@%d@%s@%s" % (chunk["model"], chunk["world"], chunk["worker"], digits, WORDS[chunk["dtype"]][2])
    if chunk.get("layer") is not None:
        key += "@%d" % chunk["layer"]
    for name, value in chunk.get("tags") or []:
        key += "@%s%%%s" % (name, value)
    return key


def place(root, chunk, suffix):
    text = str(hash_of(chunk))
    return os.path.join(root, text[:2], text[2:4], urllib.parse.quote(key_of(chunk), safe="") + suffix)


def pack(chunk, older):
    word, size, _ = WORDS[chunk.get("header", chunk["dtype"])]
    groups = chunk.get("groups")
    total = elements(chunk["shape"]) * size
    if groups and not older:
        total = sum(elements(shape) * WORDS[dtype][1] for shape, dtype in groups)
    tensor = {"dtype": word, "shape": chunk["shape"], "data_offsets": [0, total], "fmt": chunk["fmt"],
              "__metadata__": {"lmcache_version": "1"}}
    if groups and not older:
        tensor["shapes"] = [shape for shape, _ in groups]
        tensor["dtypes"] = [WORDS[dtype][0] for _, dtype in groups]
    text = json.dumps({"kvcache": tensor}).encode()
    assert len(text) <= HEADER - 8
    return struct.pack("<Q", HEADER - 8) + text.ljust(HEADER - 8)


def unpack(raw):
    length, = struct.unpack("<Q", raw[:8])
    tensor = json.loads(raw[8:8 + length].rstrip(b" ").decode())["kvcache"]
    if tensor["__metadata__"]["lmcache_version"] != "1":
        raise KeyError("version")
    groups = list(zip(tensor.get("shapes") or [], tensor.get("dtypes") or []))
    groups = groups or [(tensor["shape"], tensor["dtype"])]
    return tensor, sum(elements(shape) * OF_HEADER[dtype] for shape, dtype in groups)


def save(root, chunk, suffix, older, cufile):
    path = place(root, chunk, suffix)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = ".tmp" + uuid.uuid4().hex[:8]
    header, payload = pack(chunk, older), base64.b64decode(chunk["payload"])
    with open(path + temporary, "wb") as file:
        file.write(header)
    fd = os.open(path + temporary, os.O_RDWR)
    if cufile:
        os.pwrite(fd, payload, HEADER)
    else:
        os.ftruncate(fd, HEADER + len(payload))
        with mmap.mmap(fd, HEADER + len(payload), prot=mmap.PROT_WRITE, flags=mmap.MAP_SHARED) as memory:
            memory[HEADER:] = payload
    os.close(fd)
    os.rename(path + temporary, path)
    with open(path + ".metadata" + temporary, "wb") as file:
        file.write(header)
    os.rename(path + ".metadata" + temporary, path + ".metadata")


def load(roots, chunk, suffix):
    for root in roots:
        path = place(root, chunk, suffix)
        if not os.path.exists(path + ".metadata"):
            continue
        with open(path + ".metadata", "rb") as file:
            tensor, size = unpack(file.read(HEADER))
        fd = os.open(path, os.O_RDONLY)
        try:
            if os.fstat(fd).st_size < HEADER + size:
                return None
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as memory:
                payload = memory[HEADER:HEADER + size]
        finally:
            os.close(fd)
        return {"tensor": tensor, "payload": base64.b64encode(payload).decode()}
    return None


def readable(key, older):
    """Whether the start-up scan can make a key of a name. Releases of 2025 know no layers there."""
    parts = key.strip().split("@")
    try:
        int(parts[1]), int(parts[2]), int(parts[3], 16)
        tags = parts[5:]
        if tags and tags[0].isdigit() and not older:
            tags = tags[1:]
        return parts[4] in OF_KEY and all("%" in tag for tag in tags)
    except (IndexError, ValueError):
        return False


def scan(root, suffix, older):
    for first in sorted(os.scandir(root), key=lambda entry: entry.name):
        if not first.is_dir() or len(first.name) != 2:
            continue
        for second in sorted(os.scandir(first.path), key=lambda entry: entry.name):
            if not second.is_dir() or len(second.name) != 2:
                continue
            for file in sorted(os.scandir(second.path), key=lambda entry: entry.name):
                if not file.is_file() or not file.name.endswith(suffix + ".metadata"):
                    continue
                key = urllib.parse.unquote(file.name[:-len(suffix + ".metadata")])
                if not readable(key, older):
                    continue
                with open(file.path, "rb") as raw:
                    try:
                        unpack(raw.read(HEADER))
                    except KeyError:  # another version
                        continue
                yield key


for line in sys.stdin:
    request = json.loads(line)
    data = ".weka1" if request.get("weka") else ".kvcache.safetensors"
    before = bool(request.get("older"))
    if request["do"] == "write":
        answer = save(request["root"], request, data, before, request.get("cufile"))
    elif request["do"] == "read":
        answer = load(request["roots"], request, data)
    else:
        answer = list(scan(request["root"], data, before))
    print(json.dumps(answer), flush=True)
