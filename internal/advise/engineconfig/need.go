package engineconfig

import (
	"fmt"
	"math"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// Need describes what an engine needs from a host.
type Need struct {
	ShmBytesPerRank int64  // buffers that one rank creates in /dev/shm; its rings add some KiB each
	ShmBytesShared  int64  // further memory in /dev/shm, once per host
	OpenFiles       int    // descriptors that one rank keeps open for storage; a registered file takes two
	Rings, Iovs     int    // that one rank has registered at once
	PageService     string // URL that the engine will contact, "" if none
	HashSeed        bool   // PYTHONHASHSEED must be set, to the same value in every process that shares files
	GDS             bool   // uses cuFile
	GPUBufferBytes  int64  // of each GPU's memory, which the storage registers and keeps
	DiskBytes       int64  // maximum size of one rank's files, which are sparse and fill as pages are written; 0 if they grow without limit
	DiskReserved    bool   // DiskBytes are reserved in full at the start, once for all ranks
	DiskShared      bool   // all ranks use the files of the first, so that DiskBytes count once
	DiskFiles       string // pattern for the names of the reserved files in the first base path
	Rings3FS        bool   // needs a fuse.hf3fs mount; otherwise any file system will do
	Packages        []Package
	Assumed         string // completes "the sizes assume ..."; "" if everything was given
}

// ShmBytes returns how much all ranks of a host together create in /dev/shm.
func (n Need) ShmBytes(ranks int) int64 {
	if ranks < 1 {
		ranks = 1
	}
	total := product(n.ShmBytesPerRank, int64(ranks))
	if total > math.MaxInt64-n.ShmBytesShared {
		return math.MaxInt64
	}
	return total + n.ShmBytesShared
}

// Params describe a deployment. A zero field means the engine's default.
type Params struct {
	Model       model.Shape // zero means a model of the 8B class, and Need.Assumed says so
	TP          int         // tensor-parallel ranks; zero is 1
	BlockTokens int         // tokens of a chunk, page or block
	Clients     int         // threads, jobs or streams: each has its own rings
	Entries     int         // of a ring
	BufferBytes int64       // of one buffer, if it is configurable: LMCache's and RTP-LLM's iov
	FileBytes   int64       // of one file of fixed size: a rank's with vLLM and SGLang, a shard with Mooncake
	ExtraPools  int         // SGLang: pools of a hybrid model besides the KV cache, each with its own file and clients
}

// NeedOf returns what an engine needs from a host. The engine must be one of Names.
func NeedOf(engine string, p Params) (Need, error) {
	if err := known(engine); err != nil {
		return Need{}, err
	}
	if err := p.check(); err != nil {
		return Need{}, err
	}
	switch engine {
	case LMCache:
		return lmcacheNeed(p), nil
	case LMCacheGDS:
		return gdsNeed(p), nil
	case VLLM:
		return vllmNeed(p)
	case SGLang:
		return sglangNeed(p)
	case UCM:
		return ucmNeed(p)
	case RTPLLM:
		return kvcmNeed(), nil
	case Mooncake:
		return mooncakeNeed(p), nil
	default:
		return nixlNeed(), nil
	}
}

func (p Params) check() error {
	for _, n := range []int{p.TP, p.BlockTokens, p.Clients, p.Entries, p.ExtraPools} {
		if n < 0 || n > maxCount {
			return fmt.Errorf("sizes and counts must be 0 to %d, not %d", maxCount, n)
		}
	}
	if p.BufferBytes < 0 || p.FileBytes < 0 {
		return fmt.Errorf("a buffer of %d bytes or a file of %d bytes is negative", p.BufferBytes, p.FileBytes)
	}
	return nil
}

// maxCount is far above any sensible number of threads, entries or tokens.
const maxCount = 1 << 20

// DefaultBlockTokens returns how many tokens an engine stores as one block by default,
// 0 if the application decides.
func DefaultBlockTokens(engine string) int {
	switch engine {
	case LMCache, LMCacheGDS:
		return 256
	case VLLM:
		return 16
	case SGLang:
		return 64
	case UCM:
		return 128
	}
	return 0
}

// blockBytes returns how many bytes one rank stores for a chunk, page or block.
func (p Params) blockBytes(engine string) (bytes int64, assumed string, err error) {
	tokens, ranks := or(p.BlockTokens, DefaultBlockTokens(engine)), or(p.TP, 1)
	shape, assume := p.Model, p.Model == (model.Shape{})
	if assume {
		// The model is our choice, so it must fit any number of ranks: round its eight
		// heads up to a multiple of the ranks.
		shape = model.Shape{Layers: 32, KVHeads: (8 + ranks - 1) / ranks * ranks, HeadDim: 128}
	}
	perToken, err := shape.BytesPerToken(ranks)
	if err != nil {
		return 0, "", err
	}
	if assume {
		assumed = fmt.Sprintf("a model of the 8B class (%d bytes of KV per token over all ranks)", perToken*int64(ranks))
	}
	return product(perToken, int64(tokens)), assumed, nil
}

// product multiplies numbers that are not negative. It saturates at the largest int64,
// which no host can provide.
func product(factors ...int64) int64 {
	total := int64(1)
	for _, f := range factors {
		if f == 0 {
			return 0
		}
		if total > math.MaxInt64/f {
			return math.MaxInt64
		}
		total *= f
	}
	return total
}

// or returns n, or fallback if n is zero.
func or[N int | int64](n, fallback N) N {
	if n == 0 {
		return fallback
	}
	return n
}
