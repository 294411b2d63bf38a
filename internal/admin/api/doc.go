// Package api is what a daemon tells of itself, as JSON over HTTP below /api/v1: to the dashboard, to kv3fs status and kv3fs
// top, and to whoever else asks. openapi.yaml describes it, and a daemon serves that, too.
//
// An answer is one object. Its texts are UTF-8; where a name is not, U+FFFD stands for what is not, and not_utf8 has the exact
// bytes by the JSON pointer of the text, see package exactjson. A part that a daemon lacks is null, or says so.
//
// What asking costs is bounded: requests at once, the time of each, and the size of an answer. An answer is made
// before it is sent, so a client that reads slowly holds nothing but memory.
package api
