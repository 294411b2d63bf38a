package enginebench

// stream is an endless sequence of token ids that follows from a number: the same in
// every process, and unlike that of any other number.
type stream uint64

// streamOf returns the stream of the numbers.
func streamOf(names ...uint64) stream {
	var s uint64
	for _, n := range names {
		s = mix(s ^ mix(n))
	}
	return stream(s)
}

// vocabulary is about the size of the models' vocabularies.
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

// Prompts of different workloads share no blocks.
const (
	ofTable = iota + 1
	ofTableTails
	ofUsedMemory
	ofTwice
	ofGroups
	ofQueries
	ofTrace
)
