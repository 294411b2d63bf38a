// Package httpserver is the HTTP side of the page service: vLLM's and SGLang's protocols
// on one port, with its health, its metrics and the routes of the command line.
// The state is a pages.Book's.
//
// A request passes door.go (who, which namespace, how many at once), request.go and
// scan.go (bytes in, checked values out), vllm.go or sglang.go (the meaning), and answer.go
// (values in, bytes out). Nothing is changed before all of a body was understood.
//
// Status codes are those of the reference servers where a client could meet them
// (docs/pages.md): 500 for a malformed body, 404 or 500 for a rank that was never
// initialised. Codes of our own are 400 for a value out of range, 401 without the
// token, 408 for a body that does not come, 413 for too much, and 503 when the
// client should try again, which both clients do by themselves.
package httpserver
