package index

// Policy decides which complete key is evicted first: the one of least worth.
type Policy interface {
	// Worth is asked under the lock of the space. The worth of a key may change only
	// because it was used, and then does not fall. It is not negative.
	Worth(key string, lastUse int64) int64
}

// LRU evicts the least recently used key.
type LRU struct{}

// Worth implements Policy.
func (LRU) Worth(_ string, lastUse int64) int64 { return lastUse }
