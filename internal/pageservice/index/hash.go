package index

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// hashKey returns the 64-bit FNV-1a hash of a key. A reservation stores this hash instead
// of the key, which is enough to refuse a confirmation that mixes up pages. It is part of the log's format.
func hashKey(key string) uint64 {
	h := uint64(fnvOffset)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * fnvPrime
	}
	return h
}

// hashKeys appends the hashKey of each key. Keys mostly have one length; it hashes four
// such keys at once, because each step of a hash depends on the one before.
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
