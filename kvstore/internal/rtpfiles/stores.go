package rtpfiles

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/kv3fs/kv3fs/internal/layout/kvcm"
	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
)

// mostPack bounds PackBlocks: a lookup of the first block that is missing asks for so many
// files.
const mostPack = 1024

// OpenRTPLLM opens the store of RTP-LLM's own files in one of its directories.
func OpenRTPLLM(o Options, d rtpllm.Dir) (*Store, error) {
	if !d.Check() {
		return nil, fmt.Errorf("kvstore: RTP-LLM has no directory %q; the biz name is a path below the root, and there are tokens, a rank and an adapter", d.Path())
	}
	o.dir = filepath.FromSlash(d.Path())
	o.PackBlocks = cmp.Or(o.PackBlocks, rtpllm.DefaultItemBlocks)
	if err := o.checkPack(); err != nil {
		return nil, err
	}
	// The directory says whose the blocks are.
	return o.open("RtpLlm", rtpllmFormat{flat{o.Layout.BlockBytes, o.PackBlocks}}, true)
}

// OpenKVCM opens the store of the files that KVCM has for an instance and a spec.
func OpenKVCM(o Options, instance, spec string) (*Store, error) {
	if !kvcm.IsDir(instance) || !kvcm.IsDir(spec) {
		return nil, fmt.Errorf("kvstore: KVCM has no directory for the instance %q and the spec %q; write both as the manager knows them", instance, spec)
	}
	o.dir = filepath.Join(instance, spec)
	o.PackBlocks = cmp.Or(o.PackBlocks, 1)
	if err := o.checkPack(); err != nil {
		return nil, err
	}
	// The manager goes on naming a file that was removed without it.
	return o.open("Kvcm", kvcmFormat{flat{o.Layout.BlockBytes, o.PackBlocks}, instance, spec}, false)
}

func (o Options) checkPack() error {
	if o.PackBlocks < 1 || o.PackBlocks > mostPack {
		return fmt.Errorf("kvstore: a file has up to %d blocks; choose 1 to %d", o.PackBlocks, mostPack)
	}
	return nil
}
