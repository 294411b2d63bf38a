package httpserver

import (
	"strconv"
	"strings"
)

// route is one kind of request.
type route struct {
	name   string // in metrics and logs
	form   form
	do     func(*call) error // an empty answer becomes 204
	ranked bool              // the path contains a rank
	noBody bool              // the body is ignored
	gives  gives             // what the answer promises
	writes bool              // it says that pages were written
	proves bool              // it succeeds only in a namespace that has a rank
	once   bool              // not to be executed twice, where nobody knows whether it was once
}

// routes holds the routes of both protocols.
type routes struct {
	vllm           map[string]*route // below /keys
	vllmInitialize *route            // /rank/R/initialize
	vllmClear      *route            // /clear
	sglang         map[string]*route // below /R
	admin          map[string]*adminRoute
}

func newRoutes() routes {
	var r routes
	r.vllm, r.vllmInitialize, r.vllmClear = vllmRoutes()
	r.sglang = sglangRoutes()
	r.admin = adminRoutes()
	return r
}

// find returns the route of a path without its namespace. A literal first segment takes
// precedence over a rank (R42): /keys/confirm_write is vLLM's.
func (r *routes) find(path string) (found *route, rank string) {
	first, rest, more := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case first == "clear" && !more:
		return r.vllmClear, ""
	case first == "keys":
		return r.vllm[rest], ""
	case first == "rank":
		if rank, last, _ := strings.Cut(rest, "/"); last == "initialize" && rank != "" {
			return r.vllmInitialize, rank
		}
		return nil, ""
	case first == "" || first == "ns" || first == "admin":
		return nil, ""
	}
	return r.sglang[rest], first
}

// splitNamespace removes /ns/NAME from a path.
func splitNamespace(path string) (name, rest string, ok bool) {
	after, ok := strings.CutPrefix(path, "/ns/")
	if !ok {
		return "", path, true
	}
	name, rest, ok = strings.Cut(after, "/")
	return name, rest, ok && ValidNamespace(name)
}

// maxNamespaceBytes bounds the name of a namespace.
const maxNamespaceBytes = 64

// ValidNamespace reports whether a namespace may have this name.
func ValidNamespace(name string) bool {
	if name == "" || len(name) > maxNamespaceBytes {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// parseRank parses a rank in a path: decimal digits, optionally with a sign. A rank that
// is too large is unknown, like any other that was never initialised.
func parseRank(s string) (rank int, ok bool) {
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	rank, _ = strconv.Atoi(s) // out of range: the largest or the smallest number
	return rank, true
}
