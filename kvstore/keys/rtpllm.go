package keys

import "errors"

// NewRTPLLMChain returns a chain with RTP-LLM's ids of blocks, which KVCM uses as well: a
// number of 64 bits with a sign, into which each token is mixed. An id is the key itself,
// see Int64Key. It depends on tokens alone, and blocks with equal ids are easily made on
// purpose; RTP-LLM's directories and KVCM's instances tell models, adapters and ranks
// apart. The last block of a prompt has an id in RTP-LLM even if it is incomplete; here
// it has none.
//
// RTP-LLM salts the ids of some models (DeepSeek V4 with a state in each block), and with
// context parallelism its blocks have the tokens of several; neither is supported.
func NewRTPLLMChain(ns Namespace) (*Chain, error) {
	if err := ns.Check(); err != nil {
		return nil, err
	}
	if ns.Salt != "" {
		return nil, errors.New("kvstore: RTP-LLM's ids include no salt, so blocks of all tenants would be mixed up; leave it empty or use NewChain")
	}
	return newChain(ns, rtpllm{}), nil
}

type rtpllm struct{}

func (rtpllm) root() ID { return numberID(0, signed) }

func (rtpllm) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	h := int64(previous.number())
	for _, token := range tokens {
		h ^= int64(int32(token)) - 0x61c8864680b583eb + h<<12 + h>>32 // the golden ratio as a negative number
	}
	return numberID(uint64(h), signed), scratch
}

func (rtpllm) name(link ID) Block { return Block{link.numberKey(), link} }
