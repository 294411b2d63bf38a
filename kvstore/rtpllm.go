package kvstore

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/internal/rtpkeys"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/rtpfiles"
)

// The root directories that are built into RTP-LLM and into KVCM's SDK.
const (
	rtpLlmRoot = rtpkeys.DirectRoot
	kvcmRoot   = rtpkeys.Root
)

// RtpLlmOptions configure RtpLlm, which keeps blocks in the files of RTP-LLM's own 3FS
// tier (August 2025 to April 2026). Keys are those of [keys.NewRTPLLMChain]; the store
// keeps blocks with other keys, too, and no RTP-LLM finds them.
//
// LookupPrefix takes keys for consecutive blocks of one prompt, from its first one on, and
// learns their order. Of an item that RTP-LLM has written, a Load or Lookup finds a block after
// LookupPrefix has counted it; the block's own key does not tell the file. For the same
// reason Keys does not yield these blocks.
//
// What is saved becomes the items that RTP-LLM would write. Blocks that do not fill an item
// yet have files of their own until it is complete, or until Flush or Close, which end a
// prompt. Without LookupPrefix, a Save begins a prompt with its first block.
type RtpLlmOptions struct {
	// Root is RTP-LLM's root directory, which must exist: THREEFS_ROOT_DIR below the mount.
	// Default /3fs/stage/3fs/rtp_llm. If it is on a 3FS, data moves through rings.
	Root string

	// Biz is BIZ_NAME, Checkpoint is CHECKPOINT_PATH. Both are required.
	Biz, Checkpoint string
	// LoRA is the path of the adapter. Default: none.
	LoRA string
	// DType is RTP-LLM's number of the cache's element type. Default: that of the
	// namespace's KVDType.
	DType int
	// MLA is whether the model has multi-head latent attention.
	MLA bool

	// ItemBlocks is RTP-LLM's MAX_BLOCK_SIZE_PER_ITEM, for reading and writing. Default 16.
	ItemBlocks int

	EngineFileOptions
}

// KvcmOptions configure Kvcm, which keeps blocks in the files of Tair KVCM, through which
// RTP-LLM stores. Keys are those of [keys.NewRTPLLMChain], as for RtpLlm.
//
// KVCM's manager says which blocks there are and decides on files: what this store saves,
// KVCM loads once it was registered with the manager (startWriteCache and finishWriteCache
// of the same blocks as one Save, which leads to the same files). Delete removes only
// blocks of the store's own: the manager goes on naming a file that it has not removed.
// Files of several blocks are read as in RtpLlm. Here a prompt may begin anywhere in a file's
// blocks only if LookupPrefix has seen the file whole before, as its name is a hash of all
// their keys.
type KvcmOptions struct {
	// Root is the root directory of KVCM's storage, below the mount, which must exist.
	// Default /3fs/stage/3fs/kv_manager. If it is on a 3FS, data moves through rings.
	Root string

	// Instance is the instance's id, Spec the location spec's name: tp0_F0, for example.
	// Both are required.
	Instance, Spec string

	// FileBlocks is the storage's key_count_per_file, for reading and writing. Default 1.
	FileBlocks int

	EngineFileOptions
}

// EngineFileOptions are what RtpLlm and Kvcm have in common.
type EngineFileOptions struct {
	// Rings is how many rings there are in each direction on a 3FS. Default 2.
	Rings int
	// Transfers is how many reads and writes run at once elsewhere. Default 32.
	Transfers int
	// WaitingTransfers is how many more may wait. Default 8192 on a 3FS, else 1024.
	WaitingTransfers int
	// AcceptedShards is how many shards may be under way before Load and Save wait.
	// Default 32768.
	AcceptedShards int
	// OpenFiles is how many files stay open and registered. Default 1024.
	OpenFiles int

	RingOptions
}

func (b *builder) rtpLlm() (kv.Store, error) {
	given := b.RtpLlm
	switch {
	case given == nil || given.Biz == "":
		return nil, errors.New("kvstore: Config.RtpLlm.Biz is empty; write RTP-LLM's BIZ_NAME")
	case given.Checkpoint == "":
		return nil, errors.New("kvstore: Config.RtpLlm.Checkpoint is empty; write RTP-LLM's CHECKPOINT_PATH, letter for letter")
	}
	dtype := given.DType
	if dtype == 0 {
		name := cmp.Or(b.Namespace.KVDType, b.Namespace.DType)
		if name == "auto" {
			name = b.Namespace.DType
		}
		var ok bool
		if dtype, ok = rtpllm.DType(name); !ok {
			return nil, fmt.Errorf("kvstore: RTP-LLM has no number for the namespace's kv_dtype %.40q; use bfloat16, float16, float32, int8 or fp8_e4m3, or set Config.RtpLlm.DType", name)
		}
	}
	lora := rtpllm.NoLoRA
	if given.LoRA != "" {
		lora = strconv.FormatUint(rtpllm.Hash(given.LoRA), 10)
	}
	o := b.engineFiles(cmp.Or(given.Root, rtpLlmRoot), given.EngineFileOptions)
	o.PackBlocks = given.ItemBlocks
	return b.ringStore(rtpfiles.OpenRTPLLM(o, rtpllm.Dir{
		Biz:         given.Biz,
		Checkpoint:  rtpllm.Hash(given.Checkpoint),
		LoRA:        lora,
		BlockTokens: b.Namespace.BlockTokens,
		DType:       dtype,
		MLA:         given.MLA,
		TPSize:      max(b.Namespace.TPSize, 1),
		TPRank:      b.Namespace.TPRank,
	}))
}

func (b *builder) kvcm() (kv.Store, error) {
	given := b.Kvcm
	if given == nil || given.Instance == "" || given.Spec == "" {
		return nil, errors.New("kvstore: Config.Kvcm needs an Instance and a Spec; write the instance's id, and the name of its location spec")
	}
	o := b.engineFiles(cmp.Or(given.Root, kvcmRoot), given.EngineFileOptions)
	o.PackBlocks = given.FileBlocks
	return b.ringStore(rtpfiles.OpenKVCM(o, given.Instance, given.Spec))
}

func (b *builder) engineFiles(root string, o EngineFileOptions) rtpfiles.Options {
	return rtpfiles.Options{
		Root: root, Layout: b.layout(), Namespace: b.namespace, Checksums: b.checksums(),
		Rings: o.Rings, RingEntries: o.RingEntries, BufferBytes: o.BufferBytes, NUMANode: o.NUMANode,
		Transfers: o.Transfers, Waiting: o.WaitingTransfers, Accepted: o.AcceptedShards, OpenFiles: o.OpenFiles,
		Timeout: b.Timeout,
	}
}

// ringStore notes whether a store moves data through rings.
func (b *builder) ringStore(s *rtpfiles.Store, err error) (kv.Store, error) {
	if err != nil {
		return nil, err
	}
	b.rings = s.Rings()
	return s, nil
}
