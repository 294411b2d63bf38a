package keys

import (
	"crypto/md5"
	"errors"
	"fmt"
	"path"
)

// UCM has the settings of UCM's connector for vLLM and says which of its variants is
// meant.
type UCM struct {
	// Model is the model as given to vLLM, possibly a path; "" means Namespace.Model.
	Model string

	// MLA means that every tensor-parallel rank loads rank 0's blocks.
	MLA bool

	// RequestAware means a UCM whose ids depend on more of a request than its tokens: the
	// metadata has only the last element of the model's name, and Suffix, and a third
	// value is hashed, which is None for plain text.
	RequestAware bool

	// Suffix ends the metadata of a RequestAware UCM. "" is ":sfa_c8=0:li_c8=0";
	// speculative decoding puts :method:tokens before that.
	Suffix string
}

// NewUCMChain returns a chain with the ids of UCM's connector: the MD5 of a metadata
// text, "model:tp_size:dtype:rank", and the pickle of the id before and the tuple of
// tokens. All ranks use rank 0's metadata for that; another rank then hashes rank 0's id
// once more with its own. The ids are those of the namespace's rank.
//
// The ids are used as keys without a change, for files that UCM reads and writes, too.
// They do not depend on the model's revision, the KV dtype, block_tokens or pipeline
// ranks: use a directory of its own for each such deployment, as with UCM itself. UCMs
// that write a group and the rank into the last bytes of an id are not supported.
func NewUCMChain(ns Namespace, o UCM) (*Chain, error) {
	if err := ns.Check(); err != nil {
		return nil, err
	}
	if ns.LoRA != "" || ns.Salt != "" {
		return nil, errors.New("kvstore: UCM's ids do not include lora and salt, so blocks of all adapters and tenants would be mixed up; leave both empty or use NewChain")
	}
	ns = ns.normal()
	if ns.DType == "" {
		return nil, errors.New("kvstore: UCM's ids include the model's dtype, and the namespace has none; set dtype to torch's name, bfloat16 for example")
	}
	if o.Suffix != "" && !o.RequestAware {
		return nil, fmt.Errorf("kvstore: the suffix %.40q of UCM's metadata is for RequestAware only; set that too, or remove the suffix", o.Suffix)
	}
	model := o.Model
	if model == "" {
		model = ns.Model
	}
	if o.RequestAware {
		model = path.Base(model)
		if o.Suffix == "" {
			o.Suffix = ":sfa_c8=0:li_c8=0"
		}
	}
	meta := func(rank int) string {
		return fmt.Sprintf("%s:%d:torch.%s:%d%s", model, ns.TPSize, ns.DType, rank, o.Suffix)
	}
	u := ucm{meta: meta(0), requestAware: o.RequestAware}
	if ns.TPRank > 0 && !o.MLA {
		u.rankMeta = meta(ns.TPRank)
	}
	return newChain(ns, u), nil
}

type ucm struct {
	meta         string
	rankMeta     string // "" where rank 0's ids are used
	requestAware bool
}

func (u ucm) root() ID {
	sum := md5.Sum(pickledText([]byte(u.meta), "UCM_HASH_SEED"))
	return digestID(sum[:])
}

func (u ucm) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	var p pickler
	p.begin(append(scratch, u.meta...))
	p.bytes(previous.Bytes())
	p.numbers(tokens)
	if u.requestAware {
		p.none()
		p.tuple(3)
	} else {
		p.tuple(2)
	}
	text := p.end()
	sum := md5.Sum(text)
	return digestID(sum[:]), text
}

func (u ucm) name(link ID) Block {
	if u.rankMeta != "" {
		text := append(make([]byte, 0, 256), u.rankMeta...)
		sum := md5.Sum(append(text, link.Bytes()...))
		link = digestID(sum[:])
	}
	return Block{Key(link.raw[:]), link}
}
