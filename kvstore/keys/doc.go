// Package keys names blocks of KV cache.
//
// The bytes of a block are decided by its tokens, by every token before them, and by the
// model, its precision and its distribution over ranks. A Namespace describes the model
// and the rest, and stores compare its Fingerprint. A Chain turns the tokens of one
// sequence into the keys of its whole blocks. Each key is a hash of the key before it
// and of the block's tokens, so equal keys mean equal namespaces and equal histories.
// Tokens that do not fill a block have no key yet.
//
// NewChain makes kv3fs's own keys. The other chains make the ids that an engine's
// connector uses in its files and services, and keys from those ids:
//
//	NewVLLMChain     vLLM's 3FS connector    MD5 of printed token lists
//	NewSGLangChain   SGLang's HiCache        SHA-256 of little-endian tokens
//	NewLMCacheChain  LMCache                 CPython's hash(), or SHA-256 of pickle or CBOR
//	NewUCMChain      UCM                     MD5 of metadata and pickle
//	NewRTPLLMChain   RTP-LLM and KVCM        a number into which tokens are mixed
//
// UCM's ids have 16 bytes and include model and rank, so they are used as keys without a
// change. The other ids depend on tokens alone; Namespace.Key hashes the fingerprint
// into them. Stores that keep their blocks in an engine's own files need the engine's id
// of a key: Uint64Key and Int64Key make keys of ids that are numbers of 64 bits, and the
// number can be read from the key; IDs remembers longer ids. There, the names of the
// files tell models and ranks apart.
//
// A key is not safer than its id: MD5 collisions can be made on purpose, and so can
// those of LMCache's builtin ids and of RTP-LLM's, which have 64 bits. Between tenants
// that do not trust each other, use NewChain or a SHA-256 chain, and a Salt for each.
//
// Keys do not depend on the process, the machine or the version of Go. testdata has keys
// that must never change.
package keys
