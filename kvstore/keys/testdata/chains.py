"""Says again, in Python, what fingerprints and chains are: kv3fs's and the engines'.

Reads cases as JSON from standard input and writes them with the ids of their blocks:

    python3 chains.py < chains.json > new.json

Python 3.8 or later; a case that this version can't do gets null. chains.json was
written by the version named in it.
"""

import hashlib
import json
import pickle
import platform
import struct
import sys


def tokens_of(case):
    """The tokens, or a rule that makes them where a list would be long."""
    if "rule" not in case:
        return case["tokens"]
    r = case["rule"]
    return [(r["first"] + i * r["step"]) % r["modulus"] for i in range(r["count"])]


def whole_blocks(case):
    tokens, size = tokens_of(case), case["block_tokens"]
    for at in range(0, len(tokens) - size + 1, size):
        yield tokens[at : at + size]


def fingerprint(ns):
    """The fingerprint of a namespace that has all fields."""
    ns = dict(ns)
    for name in ("dtype", "kv_dtype"):
        if ns[name].startswith("torch."):
            ns[name] = ns[name][len("torch.") :]
    if ns["kv_dtype"] in ("", "auto"):
        ns["kv_dtype"] = ns["dtype"]
    text = b"kv3fs namespace 1"
    for name in ("model", "revision", "dtype", "kv_dtype", "format", "lora", "salt"):
        text += struct.pack("<I", len(ns[name].encode())) + ns[name].encode()
    for name in ("block_tokens", "layers", "tp_size", "tp_rank", "pp_size", "pp_rank", "cp_size", "cp_rank"):
        text += struct.pack("<Q", max(ns[name], 1) if name.endswith("_size") else ns[name])
    return hashlib.sha256(text).digest()[:16]


def own(case):
    """The fingerprint, the key of the id 1 2 3, and the keys of the blocks."""
    mark = fingerprint(case["namespace"])
    ids = [mark.hex(), hashlib.sha256(b"kv3fs id 1" + mark + b"\1\2\3").hexdigest()[:32]]
    before = hashlib.sha256(b"kv3fs chain 1" + mark).digest()
    for block in whole_blocks(case):
        before = hashlib.sha256(before + struct.pack("<%dI" % len(block), *block)).digest()
        ids.append(before.hex()[:32])
    return ids


def vllm(case):
    ids, before = [], ""
    for block in whole_blocks(case):
        middle = "_"
        if case.get("salted"):
            middle = "_" + ("" if ids else case["salt"]) + "_"
        before = hashlib.md5((before + middle + repr(block)).encode()).hexdigest()
        ids.append(before)
    return ids


def sglang(case):
    ids, before = [], b""
    for block in whole_blocks(case):
        before = hashlib.sha256(before + struct.pack("<%dI" % len(block), *block)).digest()
        ids.append(before.hex())
    return ids


def cbor(x):
    """Canonical CBOR of what chains are made of."""

    def head(major, n):
        for limit, code, form in ((24, None, None), (1 << 8, 24, ">B"), (1 << 16, 25, ">H"), (1 << 32, 26, ">I")):
            if n < limit:
                return bytes([major << 5 | n]) if code is None else bytes([major << 5 | code]) + struct.pack(form, n)
        return bytes([major << 5 | 27]) + struct.pack(">Q", n)

    if x is None:
        return b"\xf6"
    if isinstance(x, int):
        return head(0, x)
    if isinstance(x, bytes):
        return head(2, len(x)) + x
    if isinstance(x, str):
        return head(3, len(x.encode())) + x.encode()
    return head(4, len(x)) + b"".join(map(cbor, x))


def pickled(x):
    return pickle.dumps(x, protocol=pickle.HIGHEST_PROTOCOL)


def lmcache(case):
    algorithm, extra = case.get("algorithm", "builtin"), case.get("extra", "")
    if algorithm == "builtin" and extra == "none" and sys.version_info < (3, 12):
        return None

    def hashed(x):
        if algorithm == "builtin":
            return hash(x)
        digest = hashlib.sha256({"sha256": pickled, "sha256_cbor": cbor}[algorithm](x)).digest()
        return digest if case.get("whole_digests") else int.from_bytes(digest[:8], "big")

    before = case.get("root", 0) if algorithm == "builtin" else hashed(case["hash_seed"])
    third = {"": ((),), "none": (None,), "absent": ()}[extra]
    ids = []
    for block in whole_blocks(case):
        before = hashed((before, tuple(block)) + third)
        ids.append(before.hex() if isinstance(before, bytes) else "%x" % before)
    return ids


def ucm(case):
    aware = case.get("request_aware")
    model = case["model"].rstrip("/").split("/")[-1] if aware else case["model"]
    suffix = case.get("suffix") or (":sfa_c8=0:li_c8=0" if aware else "")

    def hasher(rank):
        meta = "%s:%d:%s:%d%s" % (model, case["tp_size"], "torch." + case["dtype"], rank, suffix)
        return lambda x: hashlib.md5(meta.encode() + (x if isinstance(x, bytes) else pickled(x))).digest()

    first, mine = hasher(0), hasher(case["tp_rank"])
    ids, before = [], first("UCM_HASH_SEED")
    for block in whole_blocks(case):
        before = first((before, tuple(block)) + ((None,) if aware else ()))
        ids.append((before if case["tp_rank"] == 0 or case.get("mla") else mine(before)).hex())
    return ids


def main():
    cases = json.load(sys.stdin)["cases"]
    for case in cases:
        case["ids"] = {"own": own, "vllm": vllm, "sglang": sglang, "lmcache": lmcache, "ucm": ucm}[case["engine"]](case)
    version = platform.python_implementation() + " " + platform.python_version()
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    print('{"python": %s, "cases": [\n%s\n]}' % (json.dumps(version), lines))


main()
