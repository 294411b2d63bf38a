package keys

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// The hash functions of LMCache, by their names in its pre_caching_hash_algorithm.
const (
	LMCacheBuiltin    = "builtin"     // CPython's hash(), the default
	LMCacheSHA256     = "sha256"      // of a pickle
	LMCacheSHA256CBOR = "sha256_cbor" // of canonical CBOR
)

// LMCacheExtra is the third value that LMCache hashes, after the previous hash and the
// tuple of tokens. It depends on LMCache's release; no release has used it yet.
type LMCacheExtra string

const (
	LMCacheExtraEmpty  LMCacheExtra = ""       // (), in newer releases
	LMCacheExtraNone   LMCacheExtra = "none"   // None, in older ones and in multi-process mode
	LMCacheExtraAbsent LMCacheExtra = "absent" // the tuple is a pair
)

// LMCache has LMCache's settings and says which of its variants is meant.
// Namespace.BlockTokens is its chunk_size.
type LMCache struct {
	Algorithm string // pre_caching_hash_algorithm; "" is builtin

	// Root is, for builtin, the hash to which the first chunk is chained: the NONE_HASH
	// that LMCache logs when it starts. Without vLLM it is 0. With vLLM it is Python's
	// hash() of the text in PYTHONHASHSEED, and differs between processes where that is
	// not set. hash("0") with PYTHONHASHSEED=0 is 5313149338359954478 since
	// Python 3.11.
	Root int64

	// HashSeed is, for the other functions, PYTHONHASHSEED: a number that is the same in
	// every process that shares blocks.
	HashSeed string

	Extra LMCacheExtra

	// WholeDigests means that an id is the whole SHA-256, as in older releases and in
	// multi-process mode. In newer ones it is the first 8 bytes, as a number.
	WholeDigests bool

	// NumberKeys makes each id itself the key, see Uint64Key, as stores need that keep
	// their blocks in LMCache's own files. Whole digests are no numbers: for these, IDs
	// remembers which id a key has.
	NumberKeys bool
}

// NewLMCacheChain returns a chain with LMCache's ids of chunks. builtin with
// LMCacheExtraNone needs Python 3.12 or later in LMCache: before, None has another hash
// in every process. An incomplete last chunk has no key, though LMCache may store it.
// BLAKE3, the default of multi-process mode, is not supported.
func NewLMCacheChain(ns Namespace, o LMCache) (*Chain, error) {
	if err := ns.Check(); err != nil {
		return nil, err
	}
	switch o.Extra {
	case LMCacheExtraEmpty, LMCacheExtraNone, LMCacheExtraAbsent:
	default:
		return nil, fmt.Errorf("kvstore: LMCache's third value to hash cannot be %q; use %q, %q or %q",
			o.Extra, LMCacheExtraEmpty, LMCacheExtraNone, LMCacheExtraAbsent)
	}
	if o.NumberKeys && o.WholeDigests {
		return nil, errors.New("kvstore: LMCache's whole digests do not fit into keys; leave NumberKeys out, and give the store an IDs")
	}
	namer := lmcacheNamer{ns.Fingerprint(), o.NumberKeys}
	switch o.Algorithm {
	case "", LMCacheBuiltin:
		if o.HashSeed != "" {
			return nil, fmt.Errorf("kvstore: LMCache's builtin hash takes the NONE_HASH of its log as Root, not the hash seed %.20q", o.HashSeed)
		}
		return newChain(ns, lmcacheBuiltin{namer, o.Root, o.Extra}), nil
	case LMCacheSHA256, LMCacheSHA256CBOR:
	default:
		return nil, fmt.Errorf("kvstore: LMCache's hash algorithm %.40q is unknown; use %s, %s or %s",
			o.Algorithm, LMCacheBuiltin, LMCacheSHA256, LMCacheSHA256CBOR)
	}
	if _, err := strconv.ParseUint(o.HashSeed, 10, 32); err != nil {
		return nil, fmt.Errorf("kvstore: LMCache's %s needs PYTHONHASHSEED, a number up to 4294967295; it is %.20q", o.Algorithm, o.HashSeed)
	}
	if o.Root != 0 {
		return nil, fmt.Errorf("kvstore: LMCache's %s has no number as Root; its HashSeed decides", o.Algorithm)
	}
	digests := lmcacheDigests{lmcacheNamer: namer, seed: o.HashSeed, extra: o.Extra, whole: o.WholeDigests}
	if o.Algorithm == LMCacheSHA256 {
		return newChain(ns, lmcachePickle{digests}), nil
	}
	return newChain(ns, lmcacheCBOR{digests}), nil
}

// parts returns how many values are hashed.
func (e LMCacheExtra) parts() int {
	if e == LMCacheExtraAbsent {
		return 2
	}
	return 3
}

// lmcacheNamer makes keys of ids.
type lmcacheNamer struct {
	fingerprint Fingerprint
	numbers     bool
}

func (l lmcacheNamer) name(link ID) Block {
	if l.numbers {
		return Block{link.numberKey(), link}
	}
	return Block{mix(l.fingerprint, link.Bytes()), link}
}

// lmcacheBuiltin hashes with Python's hash().
type lmcacheBuiltin struct {
	lmcacheNamer
	start int64
	extra LMCacheExtra
}

func (l lmcacheBuiltin) root() ID { return numberID(uint64(l.start), signed) }

func (l lmcacheBuiltin) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	numbers := newPyTuple()
	for _, token := range tokens {
		numbers.add(int64(token))
	}
	all := newPyTuple()
	all.add(pyHash(int64(previous.number())))
	all.add(numbers.sum())
	switch l.extra {
	case LMCacheExtraEmpty:
		empty := newPyTuple()
		all.add(empty.sum())
	case LMCacheExtraNone:
		all.add(pyNone)
	}
	return numberID(uint64(all.sum()), signed), scratch
}

// lmcacheDigests has what the two variants of SHA-256 have in common.
type lmcacheDigests struct {
	lmcacheNamer
	seed  string
	extra LMCacheExtra
	whole bool
}

// id returns the id that LMCache makes of a digest.
func (l lmcacheDigests) id(text []byte) ID {
	sum := sha256.Sum256(text)
	if l.whole {
		return digestID(sum[:])
	}
	return numberID(binary.BigEndian.Uint64(sum[:]), unsigned)
}

type lmcachePickle struct{ lmcacheDigests }

func (l lmcachePickle) root() ID { return l.id(pickledText(nil, l.seed)) }

func (l lmcachePickle) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	var p pickler
	p.begin(scratch)
	if l.whole {
		p.bytes(previous.Bytes())
	} else {
		p.number(previous.number())
	}
	p.numbers(tokens)
	switch l.extra {
	case LMCacheExtraEmpty:
		p.emptyTuple()
	case LMCacheExtraNone:
		p.none()
	}
	p.tuple(l.extra.parts())
	text := p.end()
	return l.id(text), text
}

type lmcacheCBOR struct{ lmcacheDigests }

func (l lmcacheCBOR) root() ID {
	return l.id(append(appendCBOR(nil, cborText, uint64(len(l.seed))), l.seed...))
}

func (l lmcacheCBOR) next(previous ID, tokens []uint32, scratch []byte) (ID, []byte) {
	text := appendCBOR(scratch, cborArray, uint64(l.extra.parts()))
	if l.whole {
		text = appendCBOR(text, cborBytes, uint64(previous.size))
		text = append(text, previous.Bytes()...)
	} else {
		text = appendCBOR(text, cborNumber, previous.number())
	}
	text = appendCBOR(text, cborArray, uint64(len(tokens)))
	for _, token := range tokens {
		text = appendCBOR(text, cborNumber, uint64(token))
	}
	switch l.extra {
	case LMCacheExtraEmpty:
		text = appendCBOR(text, cborArray, 0)
	case LMCacheExtraNone:
		text = append(text, cborNull)
	}
	return l.id(text), text
}
