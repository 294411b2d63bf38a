package index

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// hashKey is FNV-1a, 64 bits. A reservation remembers this much of its key: enough
// to refuse a confirmation that mixes pages up. It is part of the log's format.
func hashKey(key string) uint64 {
	h := uint64(fnvOffset)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * fnvPrime
	}
	return h
}

// hashKeys appends hashKey of each key. Keys are mostly of one length; four such are
// hashed at once, since each step of a hash waits for the one before.
func hashKeys(hashes []uint64, keys []string) []uint64 {
	for ; len(keys) >= 4; keys = keys[4:] {
		a, b, c, d := keys[0], keys[1], keys[2], keys[3]
		if len(b) != len(a) || len(c) != len(a) || len(d) != len(a) {
			hashes = append(hashes, hashKey(a), hashKey(b), hashKey(c), hashKey(d))
			continue
		}
		x, y, z, w := uint64(fnvOffset), uint64(fnvOffset), uint64(fnvOffset), uint64(fnvOffset)
		for i := range len(a) {
			x = (x ^ uint64(a[i])) * fnvPrime
			y = (y ^ uint64(b[i])) * fnvPrime
			z = (z ^ uint64(c[i])) * fnvPrime
			w = (w ^ uint64(d[i])) * fnvPrime
		}
		hashes = append(hashes, x, y, z, w)
	}
	for _, key := range keys {
		hashes = append(hashes, hashKey(key))
	}
	return hashes
}
