package embedded

// hashKey is FNV-1a, 64 bits. A reservation remembers this much of its key: enough
// to refuse a confirmation that mixes pages up. It is part of the log's format.
func hashKey[T string | []byte](key T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}
