package classify

import "time"

// Owner is who writes and reads a file.
type Owner uint8

// The owners. Each row of section 15 of clients.md has one, or two for two generations.
const (
	Unknown       Owner = iota
	LMCache             // a chunk of the remote connectors for 3FS and file systems
	LMCacheObject       // an object of the multi-process server: hf3fs, fs, fs_native
	GDS                 // a chunk of LMCache's GDS backend
	VLLM                // the page file of a rank of vLLM's HF3FSKVConnector
	SGLang              // the page file of a rank, or of a pool, of SGLang's HiCache
	Ds3fs               // a block of UCM's Ds3fs store
	Posix               // a block of UCM's Posix store
	RTPLLM              // an item of RTP-LLM's own tier
	RTPLLMOld           // the same in its first weeks: a whole prompt in a file
	KVCM                // one block or several of Tair KVCM
	Mooncake            // a shard of Mooncake's descriptor DFS
	Segments            // of kv3fs's segment store
	Pages               // the page file of kv3fs's store Pages, which only ByHead knows
	Checksums           // a log of checksums beside the blocks of kv3fs's stores
	BlockStore          // what else kv3fs's stores keep there: unfinished, damaged, spare blocks
	Replay              // of kv3fs replay
	Bench               // of kv3fs bench, or of a test of a store
	Daemon              // of the state directory of kv3fs serve, or kv3fs keep
	owners              // how many there are
)

var ownerNames = [owners]string{
	"unknown", "lmcache", "lmcache-object", "lmcache-gds", "vllm", "sglang", "ucm-ds3fs", "ucm-posix", "rtp-llm", "rtp-llm-old",
	"kvcm", "mooncake", "kv3fs-segments", "kv3fs-pages", "kv3fs-checksums", "kv3fs-blocks", "kv3fs-replay", "kv3fs-bench", "kv3fs-daemon",
}

// String returns the owner's name for tables and options.
func (o Owner) String() string {
	if o < owners {
		return ownerNames[o]
	}
	return ownerNames[Unknown]
}

// Owners returns all owners, Unknown first.
func Owners() []Owner {
	all := make([]Owner, owners)
	for i := range all {
		all[i] = Owner(i)
	}
	return all
}

// ParseOwner is the inverse of String.
func ParseOwner(name string) (Owner, bool) {
	for i, is := range ownerNames {
		if is == name {
			return Owner(i), true
		}
	}
	return Unknown, false
}

// Part is which file of its entry a file is.
type Part uint8

// The parts.
const (
	Data Part = iota
	Side      // says that the data is there, and is removed first: GDS
)

// Age is what the mtime of a file says. The atime says nothing: servers do not keep it.
type Age uint8

// The ages.
const (
	ByWrite Age = iota // when it was written
	ByUse              // when it was used last: its owner sets it at each hit
	NoAge              // nothing: the file holds many entries
)

// Deletion is how a file may be removed by somebody else than its owner, if at all. All that
// package classify says of every file comes first.
type Deletion uint8

const (
	// AskOperator is for unknown files.
	AskOperator Deletion = iota

	// AnyTime: whoever reads it goes on, and the next one finds nothing and computes it anew.
	AnyTime

	// SideFirst: the parts of the entry in the order of Parts.
	SideFirst

	// SuffixFirst: the owner concludes from the end of a prompt that all before it is there, so
	// what comes later in a prompt goes first. Names do not say what follows what. But who uses
	// an item uses those before it, and who writes it has written those before it: go by the
	// last use and, where that is the same, the one that was written last goes first.
	SuffixFirst

	// WhenIdle: a temporary file. Nobody finds it, so once its writer is gone it is waste.
	WhenIdle

	// ByService: the owner's service keeps an index of it and evicts by itself; what it does not
	// know to be gone is an error for its clients.
	ByService

	// Never: the file holds many entries, and which ones its owner alone knows; or it is the
	// owner's state.
	Never
)

// Evictable reports whether files of a known owner may be removed to make room, by somebody else.
func (d Deletion) Evictable() bool { return d == AnyTime || d == SideFirst || d == SuffixFirst }

// The times for which files are left alone.
const (
	// FinalGrace is for files that get their names when they are whole: twice the largest time-out
	// of a client, so that whoever has just looked one up can still read it.
	FinalGrace = time.Minute

	// DirectGrace is for files that are written under their final names.
	DirectGrace = 5 * time.Minute

	// TempGrace is for temporary files.
	TempGrace = 10 * time.Minute

	// ScratchGrace is for what a benchmark writes once and then reads for as long as it runs.
	ScratchGrace = 24 * time.Hour
)

// File is what a path says about a file.
type File struct {
	Owner  Owner
	Part   Part
	Age    Age
	Delete Deletion
	Temp   bool // it is being written, or its writer is dead

	// Forget: a checksum log of kv3fs's stores below Root, if there is one, may have a record of
	// the entry. The record may stay: it is dropped when the log is compacted, and until then it
	// makes nobody find a block that is not there.
	Forget bool

	Grace time.Duration

	// Entry is the path of the data of the entry that the file is of. It is empty for an unknown
	// file, which is of none.
	Entry string

	// Root is the directory of the owner's files, "" for the one that the path is relative to.
	// Where the owner is Unknown or the name does not tell it, it is the file's directory.
	Root string

	// What the name says of where the blocks come from. Ranks and sizes are 0 and texts empty where
	// it does not.
	Model     string // for RTP-LLM the hash of the checkpoint's path
	WorldSize int    // ranks that share a model
	Rank      int
	DType     string // the owner's own word or number

	// Key is the text of the key or hash in the name, of the first block where there are several.
	Key string

	// LastKey is that of the last block, where Blocks is not 1. RTP-LLM's keys are chained: the
	// last stands for all before it.
	LastKey string

	// Blocks says how many blocks the name promises at least: 1, or 2 where it promises several;
	// 0 where the name says nothing of blocks.
	Blocks int

	sizeBytes int64 // that the name says, 0 where it does not
}
