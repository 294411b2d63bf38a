// Package keys names blocks of KV cache.
//
// A block's bytes follow from its tokens, from every token before them, and from the
// model, its precision and how it is split over ranks. A Namespace is all of the last
// kind, and its Fingerprint is what stores compare. A Chain turns the tokens of one
// sequence into the keys of its whole blocks, each hashed onto the one before: equal
// keys mean equal namespaces and equal histories. Tokens that don't fill a block have
// no key yet.
//
// NewChain makes kv3fs's own keys. The other chains make the ids of an engine's
// connector as they appear in its files and services, and keys from them:
//
//	NewVLLMChain     vLLM's 3FS connector    MD5 of printed token lists
//	NewSGLangChain   SGLang's HiCache        SHA-256 of little-endian tokens
//	NewLMCacheChain  LMCache                 CPython's hash(), or SHA-256 of pickle or CBOR
//	NewUCMChain      UCM                     MD5 of metadata and pickle
//
// UCM's ids have 16 bytes and name model and rank, so they are keys as they are. The
// others know tokens only; Namespace.Key hashes the fingerprint into them. A key is
// never better than the id below it: MD5 collisions can be made on purpose, and
// LMCache's builtin ids are 64 bits that anyone can aim at. Between tenants who do not
// trust each other use NewChain or a SHA-256 chain, and a Salt each.
//
// Nothing here depends on the process, the machine or the version of Go; testdata has
// keys that must never change.
package keys
