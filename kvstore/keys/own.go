package keys

import (
	"crypto/sha256"
	"encoding/binary"
)

// NewChain returns a chain with kv3fs's own keys. Each link is the SHA-256 of the link
// before and the block's tokens, 4 little-endian bytes each. The first is chained to the
// SHA-256 of "kv3fs chain 1" and the fingerprint. A key is the first 16 bytes of a link.
func NewChain(ns Namespace) (*Chain, error) {
	if err := ns.Check(); err != nil {
		return nil, err
	}
	return newChain(ns, own{ns.Fingerprint()}), nil
}

type own struct{ fingerprint Fingerprint }

// root hashes 29 bytes. next hashes a multiple of 4, so the two cannot be confused.
func (o own) root() ID {
	sum := sha256.Sum256(append([]byte("kv3fs chain 1"), o.fingerprint[:]...))
	return digestID(sum[:])
}

func (o own) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	scratch = appendTokens(append(scratch, previous.Bytes()...), tokens)
	sum := sha256.Sum256(scratch)
	return digestID(sum[:]), scratch
}

func (o own) name(link ID) Block {
	key := Key(link.raw[:])
	return Block{key, digestID(key[:])}
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	for _, token := range tokens {
		dst = binary.LittleEndian.AppendUint32(dst, token)
	}
	return dst
}
