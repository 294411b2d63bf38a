package keys

import (
	"crypto/sha256"
	"encoding/binary"
)

// canonical returns the text of a normal namespace whose hash is the fingerprint:
//
//	"kv3fs namespace 1"
//	Model, Revision, DType, KVDType, Format, LoRA, Salt: 4 bytes of length, then the text
//	BlockTokens, Layers, TPSize, TPRank, PPSize, PPRank, CPSize, CPRank: 8 bytes each
//
// Numbers are little-endian. Every field has a known end, so no two namespaces have the
// same text. Stored blocks depend on the text: a new field needs a new version.
func canonical(ns Namespace) []byte {
	ns = ns.normal()
	text := append(make([]byte, 0, 256), "kv3fs namespace 1"...)
	for _, s := range []string{ns.Model, ns.Revision, ns.DType, ns.KVDType, ns.Format, ns.LoRA, ns.Salt} {
		text = binary.LittleEndian.AppendUint32(text, uint32(len(s)))
		text = append(text, s...)
	}
	for _, n := range []int{ns.BlockTokens, ns.Layers, ns.TPSize, ns.TPRank, ns.PPSize, ns.PPRank, ns.CPSize, ns.CPRank} {
		text = binary.LittleEndian.AppendUint64(text, uint64(n))
	}
	return text
}

// Fingerprint returns the first 16 bytes of the SHA-256 of the namespace's canonical text.
func (ns Namespace) Fingerprint() Fingerprint {
	sum := sha256.Sum256(canonical(ns))
	return Fingerprint(sum[:])
}

// mix returns the key of a namespace for an id that depends on tokens alone.
func mix(f Fingerprint, id []byte) Key {
	text := append(make([]byte, 0, 64), "kv3fs id 1"...)
	text = append(text, f[:]...)
	text = append(text, id...)
	sum := sha256.Sum256(text)
	return Key(sum[:])
}
