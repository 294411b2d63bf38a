package keys

import (
	"fmt"
	"math"
)

// Tokens converts token ids for chains. Every algorithm here hashes 32 bits; an id that
// does not fit is an error, since its meaning could only be guessed.
func Tokens[T ~int | ~int32 | ~int64 | ~uint64](ids []T) ([]uint32, error) {
	tokens := make([]uint32, len(ids))
	for i, id := range ids {
		if id < 0 || uint64(id) > math.MaxUint32 {
			return nil, fmt.Errorf("kvstore: token %d of the sequence is %d; token ids are from 0 to %d", i, id, uint32(math.MaxUint32))
		}
		tokens[i] = uint32(id)
	}
	return tokens, nil
}
