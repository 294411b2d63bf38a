package keys

import (
	"crypto/sha256"
)

// NewSGLangChain returns a chain with the ids that SGLang's HiCache gives to pages: the
// SHA-256 of the digest before and the token ids, 4 little-endian bytes each. Where a
// page's parts have names of their own, as -k and -v of the page_first layout, SGLang
// appends those to the id. Pages of token pairs, which EAGLE makes, are not supported.
func NewSGLangChain(ns Namespace) (*Chain, error) {
	if err := ns.Check(); err != nil {
		return nil, err
	}
	return newChain(ns, sglang{ns.Fingerprint()}), nil
}

type sglang struct{ fingerprint Fingerprint }

func (s sglang) root() ID { return ID{} }

func (s sglang) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	scratch = appendTokens(append(scratch, previous.Bytes()...), tokens)
	sum := sha256.Sum256(scratch)
	return digestID(sum[:]), scratch
}

func (s sglang) name(link ID) Block { return Block{mix(s.fingerprint, link.Bytes()), link} }
