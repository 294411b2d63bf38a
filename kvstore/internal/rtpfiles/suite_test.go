package rtpfiles

import (
	"testing"

	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

// testDir is whose blocks the tests have.
var testDir = rtpllm.Dir{Biz: "chat", Checkpoint: rtpllm.Hash("/models/m"), LoRA: rtpllm.NoLoRA, BlockTokens: 64, DType: 14, TPSize: 2, TPRank: 1}

const (
	testInstance = "1234567890"
	testSpec     = "tp1_F0"
)

// openers open the stores, each over the same root.
var openers = map[string]func(Options) (*Store, error){
	"RtpLlm": func(o Options) (*Store, error) { return OpenRTPLLM(o, testDir) },
	"Kvcm":   func(o Options) (*Store, error) { return OpenKVCM(o, testInstance, testSpec) },
}

func TestSuite(t *testing.T) {
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			storesuite.Run(t, storesuite.Subject{
				Versions: true,
				Open: func(t testing.TB, dir string, so storesuite.Options) kv.Store {
					s, err := open(Options{Root: dir, Layout: so.Layout, Namespace: so.Namespace, Transfers: 4})
					if err != nil {
						t.Fatal(err)
					}
					return s
				},
				Durable:  true,
				Damage:   ucmtest.Damage,
				Verified: true,
			})
		})
	}
}
