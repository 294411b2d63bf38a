package keys

import "math/bits"

// This file has CPython's hash() on 64-bit machines, for ints and tuples of ints, since
// version 3.8. It is the same in every process: PYTHONHASHSEED affects text only.
const (
	pyModulus = 1<<61 - 1

	pyPrime1 = 11400714785074694791
	pyPrime2 = 14029467366897019727
	pyPrime5 = 2870177450012600261

	// pyNone is hash(None) since 3.12; before, it was an address.
	pyNone = 0xfca86420
)

// pyHash returns the hash of an int: its remainder with its sign, and never -1, which
// CPython reserves for errors.
func pyHash(n int64) int64 {
	if n >= 0 {
		return n % pyModulus
	}
	if h := -int64(uint64(-n) % pyModulus); h != -1 {
		return h
	}
	return -2
}

// pyTuple computes the hash of a tuple. The hashes of its items are added one by one.
type pyTuple struct {
	acc   uint64
	items uint64
}

func newPyTuple() pyTuple { return pyTuple{acc: pyPrime5} }

func (t *pyTuple) add(hash int64) {
	t.acc = bits.RotateLeft64(t.acc+uint64(hash)*pyPrime2, 31) * pyPrime1
	t.items++
}

func (t *pyTuple) sum() int64 {
	acc := t.acc + (t.items ^ (pyPrime5 ^ 3527539))
	if acc == 1<<64-1 {
		return 1546275796
	}
	return int64(acc)
}
