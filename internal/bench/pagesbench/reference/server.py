"""The metadata servers of vLLM and SGLang as one plain Python program, written
for comparison from what docs/spec/clients.md, 6.6 and 7.6, says about them.

What they have in common is kept: one process, state in dictionaries, one lock
around each access to it, and the JSON and HTTP of the standard library. Nothing is
slow on purpose: connections stay open, an answer is one write, Nagle's
algorithm is off, JSON is read and written outside the lock, and both free lists
give a page in constant time. One cost of vLLM's server is kept because it shows
in its behaviour: the whole free list is searched for a released page, so that
it is not listed twice. Faults of the state machines (pages that leak, eviction
under a reader, a store that stays full) are kept, too.
"""

import argparse
import json
import signal
import sys
import threading
from collections import OrderedDict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Refused(Exception):
    """A request that gets a status of its own instead of 500."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status = status


class Vllm:
    """A key is visible once as many ranks have confirmed it as were initialised
    when the first of them did."""

    def __init__(self):
        self.free = {}  # rank -> pages
        self.pages = {}  # key -> {rank: page}
        self.expected = {}  # key -> ranks that make it complete

    def initialize(self, rank, body):
        role, num_pages = body.get("role", "worker"), body.get("num_pages", 0)
        if role not in ("worker", "scheduler"):
            raise Refused(400, f"unknown role {role}")
        if role == "worker":
            if num_pages <= 0:
                raise Refused(400, "num_pages must be positive")
            if rank not in self.free:
                self.free[rank] = deque(range(num_pages))
        return {"message": f"rank {rank} is initialised"}

    def _complete(self, key):
        pages = self.pages.get(key)
        return pages is not None and len(pages) == self.expected[key]

    def batch_allocate(self, body):
        rank, keys = need_rank(body), need_list(body, "keys")
        free = self.free[rank]
        found = [free.popleft() for _ in keys] if len(free) >= len(keys) else None
        results = {}
        for i, (key, _prefix) in enumerate(keys):
            page = found[i] if found else -1
            if self._complete(key) and rank in self.pages[key]:
                results[key] = self.pages[key][rank]
                if found:
                    free.append(page)
            else:
                results[key] = page
        return {"rank": rank, "results": list(results.items())}

    def confirm_write(self, body):
        rank = need_rank(body)
        for key, page in need_list(body, "confirmations"):
            if key not in self.pages:
                self.pages[key] = {}
                self.expected[key] = len(self.free)
            self.pages[key][rank] = page
        for page in body.get("pages_to_release", ()):
            if page not in self.free[rank]:
                self.free[rank].append(page)

    def batch_exists(self, body):
        return {"exists": [self._complete(key) for key in need_list(body, "keys")]}

    def get_locations(self, body):
        rank, keys = need_rank(body), need_list(body, "keys")
        if rank not in self.free:
            raise KeyError(rank)
        return {"locations": [self.pages[key].get(rank) if self._complete(key) else None for key in keys]}

    def clear(self, _body):
        self.__init__()


class Sglang:
    """The pages of one rank and namespace, in the order of use."""

    def __init__(self, num_pages):
        self.num_pages = num_pages
        self.clear({})

    def clear(self, _body):
        self.free = list(range(self.num_pages))
        self.pages = OrderedDict()

    def exists(self, body):
        return {"exists": [key in self.pages for key in body["keys"]]}

    def reserve_and_allocate_page_indices(self, body):
        indices = []
        for key, _prefix in body["keys"]:
            if key in self.pages:
                self.pages.move_to_end(key)
                indices.append((True, self.pages[key]))
            elif self.free:
                indices.append((False, self.free.pop()))
            else:
                indices.append((False, self.pages.popitem(last=False)[1]))
        return {"indices": indices}

    def confirm_write(self, body):
        for key, page in body["written_keys_to_confirm"]:
            self.pages[key] = page
            self.pages.move_to_end(key)
        self.free.extend(body["pages_to_release"])

    def delete_keys(self, body):
        for key in body["keys"]:
            page = self.pages.pop(key, None)
            if page is not None:
                self.free.append(page)

    def get_page_indices(self, body):
        indices = []
        for key in body["keys"]:
            if key in self.pages:
                self.pages.move_to_end(key)
            indices.append(self.pages.get(key))
        return {"indices": indices}


def need_rank(body):
    if "rank" not in body:
        raise Refused(400, "rank is missing")
    return body["rank"]


def need_list(body, name):
    values = body.get(name)
    if not isinstance(values, list):
        raise Refused(400, f"{name} must be a list")
    return values


class Service:
    """Both protocols behind one lock."""

    def __init__(self):
        self.lock = threading.Lock()
        self.vllm = Vllm()
        self.sglang = {}  # (rank, namespace) -> Sglang
        self.vllm_routes = {
            "/keys/batch_allocate": self.vllm.batch_allocate,
            "/keys/confirm_write": self.vllm.confirm_write,
            "/keys/batch_exists": self.vllm.batch_exists,
            "/keys/get_locations": self.vllm.get_locations,
            "/clear": self.vllm.clear,
        }
        self.sglang_routes = {
            name: getattr(Sglang, name)
            for name in (
                "exists",
                "reserve_and_allocate_page_indices",
                "confirm_write",
                "delete_keys",
                "clear",
                "get_page_indices",
            )
        }

    def answer(self, path, body):
        """What the client gets, or None for nothing to say."""
        route = self.vllm_routes.get(path)
        if route is not None:
            with self.lock:
                return route(body)
        parts = path.strip("/").split("/")
        if len(parts) == 3 and parts[0] == "rank" and parts[2] == "initialize":
            with self.lock:
                return self.vllm.initialize(number(parts[1]), body)
        if len(parts) != 2:
            raise Refused(404, "Not Found")
        at = (number(parts[0]), body.get("namespace", "kv"))
        if parts[1] == "initialize":
            with self.lock:
                if at not in self.sglang:
                    self.sglang[at] = Sglang(body["num_pages"])
            return None
        operation = self.sglang_routes.get(parts[1])
        if operation is None:
            raise Refused(404, "Not Found")
        with self.lock:
            state = self.sglang.get(at)
            if state is None:
                raise Refused(404, f"rank {at[0]} is not initialised")
            return operation(state, body)


def number(text):
    try:
        return int(text)
    except ValueError:
        raise Refused(422, "rank must be an integer") from None


def make_handler(service):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16

        def do_POST(self):
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                answer, status = service.answer(self.path, json.loads(raw or b"{}")), 200
            except Refused as e:
                answer, status = {"detail": str(e)}, e.status
            except Exception as e:
                answer, status = {"detail": repr(e)}, 500
            if answer is None:
                self.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                return
            text = json.dumps(answer, separators=(",", ":")).encode()
            head = f"HTTP/1.1 {status} {self.responses[status][0]}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
            self.wfile.write(head.encode() + text)

        def log_message(self, *_):
            pass

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of connections; with the default of 5 clients that come together are turned away


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    args = parser.parse_args()
    server = Server((args.host, args.port), make_handler(Service()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on {server.server_address[0]}:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
