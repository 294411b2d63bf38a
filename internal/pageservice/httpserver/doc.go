// Package httpserver serves the page service over HTTP: vLLM's and SGLang's protocols on
// one port, with health, metrics and the routes of the command line. The state is that
// of an index.Index.
//
// A request passes server.go (token, namespace, limits), request.go and parser.go (from
// bytes to checked values), vllm.go or sglang.go (the meaning), and answer.go (from
// values to bytes). Nothing changes before the whole body was parsed.
//
// Status codes are those of the reference servers where a client could meet them
// (docs/pages.md): 500 for a malformed body, 404 or 500 for a rank that was never
// initialised. The others are 400 for a value out of range, 401 without the token, 408
// for a body that does not arrive, 413 for too much, and 503 when the client should try
// again, which both clients do by themselves.
package httpserver
