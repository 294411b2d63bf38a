package lmcache_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

const repository = "../../.."

// replay is a key of LMCache's, as testdata/connector.py takes it.
type replay struct {
	Model     string         `json:"model"`
	WorldSize int            `json:"world_size"`
	WorkerID  int            `json:"worker_id"`
	ChunkHash json.Number    `json:"chunk_hash"`
	DType     string         `json:"dtype"`
	Layer     *int           `json:"layer,omitempty"`
	Tags      [][2]string    `json:"tags,omitempty"`
	Slash     string         `json:"slash,omitempty"`
	Format    string         `json:"format,omitempty"`
	Untyped   bool           `json:"untyped,omitempty"`
	Header    map[string]any `json:"header,omitempty"`
}

type command struct {
	Op   string  `json:"op"`
	Key  *replay `json:"key,omitempty"`
	Seed *int    `json:"seed,omitempty"`
	Size *int64  `json:"size,omitempty"`
}

// connector is LMCache's, in a process of its own.
type connector struct {
	*testing.T
	to   *json.Encoder
	from *json.Decoder
}

// newConnector starts connector.py. With a mount it uses the Python client of this tree.
func newConnector(t *testing.T, bases []string, mount string) connector {
	t.Helper()
	bound, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // t's own ends before the process
	t.Cleanup(cancel)
	cmd := exec.CommandContext(bound, "python3", "testdata/connector.py", strings.Join(bases, ","))
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if mount != "" {
		source, err := filepath.Abs(repository + "/clients/python/src")
		must(t, err)
		cmd.Args = append(cmd.Args, mount)
		cmd.Env = append(cmd.Env, "PYTHONPATH="+source, "HF3FS_USRBIO_LIBRARY="+library(t))
	}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		daemontest.NotTested(t, "it takes python3, 3.9 or later: "+err.Error())
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, said.String())
		}
	})
	return connector{t, json.NewEncoder(in), json.NewDecoder(out)}
}

// do returns the answers to commands.
func (c connector) do(commands ...command) (answers []any) {
	c.Helper()
	for _, one := range commands {
		must(c, c.to.Encode(one))
		var answer any
		must(c, c.from.Decode(&answer))
		answers = append(answers, answer)
	}
	return answers
}

// library builds the C library of this tree.
func library(t *testing.T) string {
	t.Helper()
	build := t.TempDir()
	if out, err := exec.Command("make", "-s", "-C", repository+"/clients/c", "BUILD="+build, "tools").CombinedOutput(); err != nil {
		daemontest.NotTested(t, fmt.Sprintf("the C library cannot be built: %v\n%s", err, out))
	}
	return filepath.Join(build, "libhf3fs_api_shared.so")
}

// seeded returns the block that connector.py makes of a seed.
func seeded(seed int, size int64) []byte {
	buf := make([]byte, size)
	for i := range buf {
		buf[i] = byte(seed*7 + i*i*3 + i>>8)
	}
	return buf
}

// What LMCache's connector writes is read, and the other way round, byte for byte.
func TestReplay(t *testing.T) {
	layer := 3
	header := headerOf(shape)
	headerJSON := map[string]any{"fmt": 1, "groups": []any{[]any{6, []int{1, 1, 1, int(shape.BlockBytes)}}}}
	for name, c := range map[string]struct {
		o     lmcache.Options
		key   replay
		mount bool
	}{
		"files":                 {lmcache.Options{Chunk: chunk(), Header: header}, replay{Header: headerJSON}, false},
		"files without headers": {lmcache.Options{Chunk: chunk()}, replay{}, false},
		"layers and tags and older slashes": {lmcache.Options{
			Chunk: &layout.Name{Model: "meta-llama/Llama-3-8B", WorldSize: 2, WorkerID: 1, DType: "bfloat16", Layer: layer,
				Tags: []layout.Tag{{Key: "user", Value: "a%b"}, {Key: "x", Value: "1"}}, OldSlashes: true},
		}, replay{Layer: &layer, Tags: [][2]string{{"user", "a%b"}, {"x", "1"}}, Slash: "-"}, false},
		"two groups with ones before the shape": {lmcache.Options{Chunk: chunk(), Header: &layout.Header{
			PayloadBytes: shape.BlockBytes, Format: layout.FormatMLA, Groups: []layout.Group{
				{DType: layout.DTypeBFloat16, Shape: [4]int{1, 8, 16, 16}}, {DType: layout.DTypeHalf, Shape: [4]int{1, 1, 4, 512}},
			},
		}}, replay{Header: map[string]any{"fmt": 6, "groups": []any{[]any{3, []int{1, 8, 16, 16}}, []any{2, []int{1, 1, 4, 512}}}}}, false},
		"names with a format": {lmcache.Options{Chunk: older("vllm", "bfloat16"), AlsoChunks: []layout.Name{*chunk()}}, replay{Format: "vllm"}, false},
		"names without a type": {lmcache.Options{Chunk: older("vllm", ""), AlsoChunks: []layout.Name{*chunk(), *older("vllm", "bfloat16")}, Header: header},
			replay{Format: "vllm", Untyped: true, Header: headerJSON}, false},
		"rings": {lmcache.Options{Chunk: chunk(), Header: header, TempDir: "tmp"}, replay{Header: headerJSON}, true},
	} {
		t.Run(name, func(t *testing.T) {
			o, parent := c.o, t.TempDir()
			if c.mount {
				o.Mount = daemontest.Serve(t).Mount
				parent = o.Mount
				var err error
				o.Engine, err = ringio.New(ringio.Options{Mount: o.Mount, Entries: 16, BufferBytes: 4 << 20})
				must(t, err)
			}
			o.BasePaths, o.Layout = []string{parent + "/a", parent + "/b", parent + "/c"}, shape
			s := open(t, o)
			theirsDo := newConnector(t, o.BasePaths, o.Mount).do

			var all []kv.Key
			var theirs []command
			for i, n := range []string{"0", "1", "-1", "4660", "-9223372036854775808", "9223372036854775807", "18446744073709551615"} {
				key := c.key
				key.Model, key.WorldSize, key.WorkerID, key.DType = "meta-llama/Llama-3-8B", 2, 1, "bfloat16"
				key.ChunkHash = json.Number(n)
				size := shape.BlockBytes
				theirs = append(theirs, command{Key: &key, Seed: &i, Size: &size})
				all = append(all, keyOf(t, n))
			}
			ops := func(op string) (to []command) {
				for _, c := range theirs {
					c.Op = op
					if op == "exists" || op == "remove" {
						c.Seed, c.Size = nil, nil
					}
					to = append(to, c)
				}
				return to
			}
			run := func(op string, want any) {
				t.Helper()
				for i, got := range theirsDo(ops(op)...) {
					if got != want {
						t.Errorf("%s of chunk %s: %v, want %v", op, theirs[i].Key.ChunkHash, got, want)
					}
				}
			}

			// LMCache writes, the store reads.
			run("put", true)
			for i, key := range all {
				if got, err := loaded(t, s, key); err != nil || !bytes.Equal(got, seeded(i, shape.BlockBytes)) {
					t.Errorf("chunk %s: %v", theirs[i].Key.ChunkHash, err)
				}
			}
			if have := list(t, s); len(have) != len(all) {
				t.Errorf("%d chunks are listed: %v", len(have), have)
			}
			raw := map[string][]byte{}
			for _, path := range files(t, parent) {
				var err error
				raw[path], err = os.ReadFile(path)
				must(t, err)
			}
			if len(raw) != len(all) {
				t.Fatalf("%d files", len(raw))
			}

			// The store removes them, and LMCache has none.
			must(t, s.Delete(t.Context(), all))
			run("exists", false)
			if left := theirsDo(command{Op: "list"})[0].([]any); len(left) > 0 {
				t.Errorf("LMCache lists %v", left)
			}

			// The store writes, LMCache reads: the same bytes in the same files.
			var bufs [][]byte
			for i := range all {
				bufs = append(bufs, seeded(i, shape.BlockBytes))
			}
			task, err := s.Save(t.Context(), shape.ByBlock(all, bufs))
			must(t, err)
			must(t, task.Wait(t.Context()))
			run("get", true)
			again := files(t, parent)
			for _, path := range again {
				if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, raw[path]) {
					t.Errorf("%s is not what LMCache writes: %v", path, err)
				}
			}
			if len(again) != len(all) {
				t.Errorf("%d files", len(again))
			}

			// LMCache removes them, and the store has none.
			run("remove", true)
			fresh := o
			fresh.Engine = nil // s may have them open
			fresh.Mount = ""
			later := open(t, fresh)
			for i, key := range all {
				if _, err := loaded(t, later, key); err != kv.ErrMiss || has(t, later, key) {
					t.Errorf("chunk %s: %v", theirs[i].Key.ChunkHash, err)
				}
			}
		})
	}
}

func loaded(t testing.TB, s kv.Store, key kv.Key) ([]byte, error) {
	t.Helper()
	buf := make([]byte, shape.BlockBytes)
	task, err := s.Load(t.Context(), s.Layout().ByBlock([]kv.Key{key}, [][]byte{buf}))
	must(t, err)
	return buf, task.Wait(t.Context())
}

func keyOf(t testing.TB, n string) kv.Key {
	t.Helper()
	var signed int64
	var unsigned uint64
	if _, err := fmt.Sscan(n, &signed); err == nil {
		return keys.Int64Key(signed)
	}
	_, err := fmt.Sscan(n, &unsigned)
	must(t, err)
	return keys.Uint64Key(unsigned)
}
