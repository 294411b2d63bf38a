package kv

import "github.com/kv3fs/kv3fs/kvstore/keys"

// Key names a block; Fingerprint stands for the namespace that a block belongs to.
type (
	Key         = keys.Key
	Fingerprint = keys.Fingerprint
)
