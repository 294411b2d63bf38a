package enginebench

// stream is an endless row of token ids that a number names: the same everywhere,
// and like no other's.
type stream uint64

// streamOf is the one that the numbers name.
func streamOf(names ...uint64) stream {
	var s uint64
	for _, n := range names {
		s = mix(s ^ mix(n))
	}
	return stream(s)
}

// vocabulary is about that of the models.
const vocabulary = 150_000

// appendTo appends the stream's tokens from the from-th on, n of them.
func (s stream) appendTo(tokens []uint32, from, n int) []uint32 {
	for i := range uint64(n) {
		tokens = append(tokens, uint32(mix(uint64(s)+uint64(from)+i)%vocabulary))
	}
	return tokens
}

// mix is the step and finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Prompts of different workloads have nothing in common.
const (
	ofTable = iota + 1
	ofTableTails
	ofTwice
	ofGroups
	ofQueries
	ofTrace
)
