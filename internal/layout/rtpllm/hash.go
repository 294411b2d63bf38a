package rtpllm

import (
	"encoding/binary"
)

// Hash is std::hash<std::string> of libstdc++ on a little-endian machine with 64 bits,
// with which RTP-LLM names the directories of checkpoints and adapters: MurmurHash64A
// with the seed 0xc70f6907, but for a shift of 47 in the place of each.
func Hash(s string) uint64 {
	const (
		seed = 0xc70f6907
		mul  = 0xc6a4a7935bd1e995
	)
	mix := func(v uint64) uint64 { return v ^ v>>47 }
	h := seed ^ uint64(len(s))*mul
	for ; len(s) >= 8; s = s[8:] {
		h ^= mix(binary.LittleEndian.Uint64([]byte(s[:8]))*mul) * mul
		h *= mul
	}
	if len(s) > 0 {
		var tail uint64
		for i := len(s) - 1; i >= 0; i-- {
			tail = tail<<8 + uint64(s[i])
		}
		h ^= tail
		h *= mul
	}
	h = mix(h) * mul
	return mix(h)
}
