package keys

import (
	"crypto/md5"
	"encoding/hex"
	"strconv"
)

// VLLM has the settings of vLLM's 3FS connector.
type VLLM struct {
	// Salted puts the cache salt, Namespace.Salt, into the text of the first block, and an
	// empty one into all others. That is how we read the fix proposed for
	// GHSA-qj2w-6f36-hc5w; released connectors have no salt.
	Salted bool
}

// NewVLLMChain returns a chain with the ids of vLLM's 3FS connector: the MD5 of the id
// before, an underscore and the token ids as Python prints a list of them.
func NewVLLMChain(ns Namespace, o VLLM) (*Chain, error) {
	if err := ns.Check(); err != nil {
		return nil, err
	}
	return newChain(ns, vllm{ns.Fingerprint(), ns.Salt, o.Salted}), nil
}

type vllm struct {
	fingerprint Fingerprint
	salt        string
	salted      bool
}

func (v vllm) root() ID { return ID{} }

func (v vllm) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	text := hex.AppendEncode(scratch, previous.Bytes())
	text = append(text, '_')
	if v.salted {
		if previous == v.root() {
			text = append(text, v.salt...)
		}
		text = append(text, '_')
	}
	text = append(text, '[')
	for i, token := range tokens {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = strconv.AppendUint(text, uint64(token), 10)
	}
	text = append(text, ']')
	sum := md5.Sum(text)
	return digestID(sum[:]), text
}

func (v vllm) name(link ID) Block { return Block{mix(v.fingerprint, link.Bytes()), link} }
