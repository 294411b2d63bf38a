package keys

import (
	"errors"
	"fmt"
	"strings"
)

// maxBlockTokens bounds what a chain keeps of an incomplete block.
const maxBlockTokens = 1 << 20

// Namespace is what decides the bytes of a block besides its tokens. Two engines share
// blocks if their namespaces are equal.
//
// Few spellings are equal: a size of 0 is 1, a KVDType of "" or "auto" is the DType, and
// a leading "torch." of either is dropped. Everything else is compared byte by byte:
// "half" is not "float16", and an empty text means that the field is unknown, not that
// it matches anything.
type Namespace struct {
	Model    string `json:"model"`    // the same in all engines that share blocks; required
	Revision string `json:"revision"` // of the weights: a commit, a checksum
	DType    string `json:"dtype"`    // of the model, as torch names it: bfloat16
	KVDType  string `json:"kv_dtype"` // of cached keys and values: fp8_e4m3
	Format   string `json:"format"`   // how the engine arranges a block's bytes where it has several ways

	BlockTokens int `json:"block_tokens"` // required
	Layers      int `json:"layers"`       // in a block

	// How many ranks there are of each kind, and which of them has the block. If ranks
	// hold the same bytes, as tensor-parallel ones do with MLA, leave these fields empty,
	// and the ranks share.
	TPSize int `json:"tp_size"`
	TPRank int `json:"tp_rank"`
	PPSize int `json:"pp_size"`
	PPRank int `json:"pp_rank"`
	CPSize int `json:"cp_size"`
	CPRank int `json:"cp_rank"`

	LoRA string `json:"lora"` // the adapter's unique name
	Salt string `json:"salt"` // engines with different salts share nothing
}

// Check returns an error that says what is wrong with a namespace.
func (ns Namespace) Check() error {
	switch {
	case ns.Model == "":
		return errors.New("kvstore: the namespace has no model, so blocks of all models would be mixed up; set model")
	case ns.BlockTokens <= 0:
		return fmt.Errorf("kvstore: block_tokens is %d; it must be positive", ns.BlockTokens)
	case ns.BlockTokens > maxBlockTokens:
		return fmt.Errorf("kvstore: block_tokens is %d; at most %d are possible", ns.BlockTokens, maxBlockTokens)
	case ns.Layers < 0:
		return fmt.Errorf("kvstore: layers is %d; it must not be negative", ns.Layers)
	}
	for _, p := range []struct {
		kind       string
		size, rank int
	}{{"tp", ns.TPSize, ns.TPRank}, {"pp", ns.PPSize, ns.PPRank}, {"cp", ns.CPSize, ns.CPRank}} {
		if p.size < 0 {
			return fmt.Errorf("kvstore: %s_size is %d; it must not be negative", p.kind, p.size)
		}
		if size := max(p.size, 1); p.rank < 0 || p.rank >= size {
			return fmt.Errorf("kvstore: %s_rank is %d; with a %s_size of %d it must be from 0 to %d",
				p.kind, p.rank, p.kind, p.size, size-1)
		}
	}
	return nil
}

// normal returns the one spelling of all that are equal.
func (ns Namespace) normal() Namespace {
	ns.DType = strings.TrimPrefix(ns.DType, "torch.")
	ns.KVDType = strings.TrimPrefix(ns.KVDType, "torch.")
	if ns.KVDType == "" || ns.KVDType == "auto" {
		ns.KVDType = ns.DType
	}
	ns.TPSize, ns.PPSize, ns.CPSize = max(ns.TPSize, 1), max(ns.PPSize, 1), max(ns.CPSize, 1)
	return ns
}

// Key returns the key of a block whose id in an engine is id: the first 16 bytes of the
// SHA-256 of "kv3fs id 1", the fingerprint and the id.
func (ns Namespace) Key(id []byte) Key { return mix(ns.Fingerprint(), id) }
