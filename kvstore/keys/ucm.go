package keys

import (
	"crypto/md5"
	"errors"
	"fmt"
	"path"
)

// UCM is what UCM's connector for vLLM is told, and which of its forms it has.
type UCM struct {
	// Model is the model as vLLM was given it, a path perhaps; "" is Namespace.Model.
	Model string

	// MLA: every tensor-parallel rank loads rank 0's blocks.
	MLA bool

	// RequestAware: as UCM does it since its ids know more of a request than tokens:
	// the metadata has the last element of the model's name only, and Suffix; a third
	// thing is hashed, which is None for plain text.
	RequestAware bool

	// Suffix ends the metadata of a RequestAware UCM. "" is ":sfa_c8=0:li_c8=0";
	// speculative decoding puts :method:tokens before that.
	Suffix string
}

// NewUCMChain chains blocks as UCM's connector does: the MD5 of a metadata text,
// "model:tp_size:dtype:rank", and the pickle of the id before and the tuple of tokens,
// with rank 0's metadata for all ranks; another rank hashes rank 0's id once more, with
// its own. The namespace's rank decides whose ids these are.
//
// The ids are keys as they are, for files that UCM reads and writes too. They don't
// know the model's revision, the KV dtype, block_tokens or the pipeline's ranks: give
// such deployments directories of their own, as with UCM itself. Not covered are UCMs
// that write a group and the rank into an id's last bytes.
func NewUCMChain(ns Namespace, o UCM) (*Chain, error) {
	if err := ns.Check(); err != nil {
		return nil, err
	}
	if ns.LoRA != "" || ns.Salt != "" {
		return nil, errors.New("kvstore: UCM's ids don't know lora and salt: blocks of all adapters and tenants would be mixed up; leave them empty or use NewChain")
	}
	ns = ns.normal()
	if ns.DType == "" {
		return nil, errors.New("kvstore: UCM's ids begin with the model's dtype, and the namespace has none; set dtype as torch names it, bfloat16 for example")
	}
	if o.Suffix != "" && !o.RequestAware {
		return nil, fmt.Errorf("kvstore: the suffix %.40q of UCM's metadata goes with RequestAware only", o.Suffix)
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
