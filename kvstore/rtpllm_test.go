package kvstore

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

func TestReadRTPLLM(t *testing.T) {
	o, notes, err := ReadRTPLLM(map[string]string{
		"BIZ_NAME": "chat", "CHECKPOINT_PATH": "/models/m", "MAX_BLOCK_SIZE_PER_ITEM": "4", "THREEFS_READ_TIMEOUT_MS": "1000",
		"THREEFS_ROOT_DIR": "debug/", "PATH": "/bin",
	})
	want := RtpLlmOptions{Root: "/3fs/stage/3fs/debug", Biz: "chat", Checkpoint: "/models/m", ItemBlocks: 4}
	if err != nil || o != want || len(notes) != 1 || !strings.HasPrefix(notes[0], "THREEFS_READ_TIMEOUT_MS has no effect") {
		t.Errorf("read %+v, %q, %v", o, notes, err)
	}
	for wrong, says := range map[string]string{
		"BIZ_NAME=":                    "BIZ_NAME is missing",
		"CHECKPOINT_PATH=":             "CHECKPOINT_PATH is missing",
		"MAX_BLOCK_SIZE_PER_ITEM=0":    "whole number, 1 to 1024",
		"MAX_BLOCK_SIZE_PER_ITEM=1025": "whole number, 1 to 1024",
		"MAX_BLOCK_SIZE_PER_ITEM=abc":  "whole number, 1 to 1024",
		"THREEFS_READ_IOV_SIZE=-1":     "THREEFS_READ_IOV_SIZE",
		"THREEFS_READ_IOV_SIZ=1":       "THREEFS_READ_IOV_SIZE",
	} {
		env := map[string]string{"BIZ_NAME": "chat", "CHECKPOINT_PATH": "/models/m"}
		name, value, _ := strings.Cut(wrong, "=")
		env[name] = value
		if _, _, err := ReadRTPLLM(env); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q in it", wrong, err, says)
		}
	}
}

func TestReadKVCM(t *testing.T) {
	for src, want := range map[string]KvcmOptions{
		`[]`: {Root: "/3fs/stage/3fs/kv_manager"},
		`[{"type":"3fs","sdk_log_level":"INFO","mountpoint":"/elsewhere"}]`:             {Root: "/3fs/stage/3fs/kv_manager"},
		`[{"type":"hf3fs","mountpoint":"/mnt/3fs/","root_dir":"kv/"},{"type":"local"}]`: {Root: "/mnt/3fs/kv"},
		`{"thread_num":8,"queue_size":2000,"timeout_config":{},"sdk_backend_configs":[{"type":"hf3fs","read_iov_size":1}]}`: {
			Root: "/3fs/stage/3fs/kv_manager", EngineFileOptions: EngineFileOptions{Transfers: 8, WaitingTransfers: 2000},
		},
		`{"instance_id":"17","address":["x"],"sdk_config":{"thread_num":4}}`: {
			Root: "/3fs/stage/3fs/kv_manager", Instance: "17", EngineFileOptions: EngineFileOptions{Transfers: 4},
		},
	} {
		if got, _, err := ReadKVCM([]byte(src)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", src, got, err, want)
		}
	}
	for src, says := range map[string]string{
		``: "no JSON", `1`: "neither", `[] []`: "follows", `[1]`: "[0] is no object", `[{}]`: "no type",
		`[{"type":"hf3fs","mountpont":"/x"}]`:    "did you mean",
		`[{"type":"hf3fs","mountpoint":"x"}]`:    "absolute",
		`[{"type":"hf3fs","mountpoint":""}]`:     "write a path",
		`[{"type":"hf3fs","read_iov_size":0}]`:   "from 1",
		`[{"type":"hf3fs","read_iov_size":1.5}]`: "from 1",
		`{"thread_num":0}`:                       "from 1 to",
		`{"thread_num":"8"}`:                     "from 1 to",
		`{"threads":1}`:                          "unknown",
		`{"sdk_config":[]}`:                      "no object",
		`{"instance_id":17,"sdk_config":{}}`:     "instance_id",
		`{"sdk_backend_configs":{}}`:             "no list",
	} {
		if _, _, err := ReadKVCM([]byte(src)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q in it", src, err, says)
		}
	}
}

// The keys of a prompt lead to the files that RTP-LLM and KVCM name for it.
func TestFilesOfRTPLLMKeys(t *testing.T) {
	ns := keys.Namespace{Model: "m", KVDType: "bfloat16", BlockTokens: 4, TPSize: 2, TPRank: 1}
	chain, err := keys.NewRTPLLMChain(ns)
	if err != nil {
		t.Fatal(err)
	}
	blocks := chain.Append([]uint32{1, 2, 3, 4, 5, 6, 7, 8})
	last, _ := blocks[1].Int64()
	data := bytes.Repeat([]byte{7}, 4096)
	root := t.TempDir()
	for name, c := range map[string]struct {
		config Config
		path   string
	}{
		"Cache|RtpLlm": {
			Config{RtpLlm: &RtpLlmOptions{Root: root, Biz: "chat", Checkpoint: "/models/m", LoRA: "/adapters/a"}},
			rtpllm.Dir{Biz: "chat", Checkpoint: rtpllm.Hash("/models/m"), LoRA: strconv.FormatUint(rtpllm.Hash("/adapters/a"), 10), BlockTokens: 4, DType: 14, TPSize: 2, TPRank: 1}.Path() + "/" + rtpllm.Item{First: last, Last: last}.Name(),
		},
		"Cache|Kvcm": {Config{Kvcm: &KvcmOptions{Root: root, Instance: "17", Spec: "tp1_F0"}}, "17/tp1_F0/" + strconv.FormatUint(uint64(last), 16)},
	} {
		c.config.Namespace, c.config.Layout, c.config.Cache = ns, Layout{BlockBytes: 4096}, &CacheOptions{CapacityBytes: 1 << 20}
		s, err := Open(name, c.config)
		if err != nil {
			t.Fatal(err)
		}
		task, err := s.Save(t.Context(), s.Layout().ByBlock(blocks[1:], [][]byte{data}))
		if err == nil {
			err = task.Wait(t.Context())
		}
		if err == nil {
			err = s.Flush(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if raw, err := os.ReadFile(filepath.Join(root, c.path)); err != nil || !bytes.Equal(raw, data) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
