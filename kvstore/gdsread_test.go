package kvstore

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// LMCache's own files for its GDS backend are read, with the names of older releases, too.
func TestReadConfigOfGDS(t *testing.T) {
	for name, c := range map[string]struct {
		yaml  string
		want  GdsOptions
		notes []string
	}{
		"LMCache's example": {"chunk_size: 512\ngds_path: \"/tmp/gds/test-cache\"\nlocal_cpu: False\nsave_decode_cache: True\ncufile_buffer_size: 128\n",
			GdsOptions{Dirs: []string{"/tmp/gds/test-cache"}, BufferBytes: 128 << 20}, []string{"local_cpu", "save_decode_cache"}},
		"newer": {"gds_path: /nvme/a, /nvme/b/\ngds_path_sharding: by_gpu\ngds_buffer_size: 8192\nuse_gds: false\ngds_backend: cufile\n" +
			"extra_config: {use_direct_io: true, disk_io_threads: 16, max_alloc_attempts: 3}\n",
			GdsOptions{Dirs: []string{"/nvme/a", "/nvme/b"}, BufferBytes: 8192 << 20, NoDirect: true, DirectIO: true, Transfers: 16}, []string{"max_alloc_attempts"}},
		"older": {"gds_path: [/nvme/a]\nextra_config:\n  use_cufile: \"False\"\n  gds_io_threads: 2\n",
			GdsOptions{Dirs: []string{"/nvme/a"}, NoDirect: true, Transfers: 2}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c2, notes, err := ReadConfig([]byte(c.yaml))
			if err != nil || c2.Gds == nil || !reflect.DeepEqual(*c2.Gds, c.want) || c2.StorePipeline != "Gds" {
				t.Fatalf("%+v, %v", c2.Gds, err)
			}
			if len(notes) != len(c.notes) {
				t.Errorf("%q", notes)
			}
			for _, key := range c.notes {
				if !strings.Contains(strings.Join(notes, "\n"), key) {
					t.Errorf("no note about %s: %q", key, notes)
				}
			}
			c2.Namespace, c2.BlockSize = namespace, 4096
			to, err := c2.Config("Cache|Gds")
			if err != nil || to.Gds == nil || !reflect.DeepEqual(*to.Gds, c.want) || to.Cache == nil {
				t.Errorf("%+v, %v", to.Gds, err)
			}
		})
	}
	for yaml, want := range map[string]string{
		"gds_buffer_size: 8":                                  "gds_path is missing",
		"gds_path: kv":                                        "line 1: gds_path has the directory",
		"gds_path: /a\ngds_buffer_size: 0":                    "line 2: gds_buffer_size is 0; write a whole number, 1 to 1048576",
		"gds_path: /a\ngds_buffer_size: 8GB":                  "write a whole number",
		"gds_path: /a\ngds_backend: cuda":                     "write cufile or hipfile",
		"gds_path: /a\ngds_path_sharding: by_host":            "write by_gpu",
		"gds_path: /a\nuse_gds: perhaps":                      "write true or false",
		"gds_path: /a\ngds_bufer_size: 8":                     "did you mean gds_buffer_size?",
		"gds_path: /a\nextra_config: {use_cufiles: true}":     "did you mean use_cufile?",
		"gds_path: /a\nextra_config: {disk_io_threads: 5000}": "write a whole number, 1 to 1024",
		"gds_path: /a\nchunk_size: none":                      "line 2: chunk_size",
		"gds_path: /a\nextra_config: none":                    "has no keys",
	} {
		if c, _, err := ReadConfig([]byte(yaml)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %+v; want %q", yaml, err, c.Gds, want)
		}
	}
}

// What GdsOptions say of chunks reaches the names of their files.
func TestGdsOptions(t *testing.T) {
	layer := 3
	ids := keys.NewIDs(namespace, 4)
	digest, _ := keys.DigestID(bytes.Repeat([]byte("ab"), 16))
	block := keys.Block{Key: ids.Key(digest), ID: digest}
	for name, c := range map[string]struct {
		o    GdsOptions
		key  Key
		path string
	}{
		"a layer and a tag": {GdsOptions{Layer: &layer, Tags: []LMCacheTag{{"a", "b"}}, Shape: []int64{16, 2, 64}, MemoryFormat: 2}, keys.Uint64Key(0x1234), "46/60/kv3fs%2Ftest%401%400%401234%40bfloat16%403%40a%25b"},
		"several tensors":   {GdsOptions{Tensors: []LMCacheTensor{{"bfloat16", []int{1024}}, {"uint8", []int{2, 1024}}}, MemoryFormat: 6}, keys.Uint64Key(0x1234), "46/60/kv3fs%2Ftest%401%400%401234%40bfloat16"},
		"a digest":          {GdsOptions{IDs: ids, Shape: []int64{2048}}, block.Key, "b'/ab/kv3fs%2Ftest%401%400%40" + digest.String() + "%40bfloat16"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Dirs = []string{t.TempDir()}
			config := Config{Namespace: namespace, Layout: Layout{BlockBytes: 4096}, Gds: &c.o}
			config.Namespace.DType = "bfloat16"
			s, err := Open("Gds", config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			task, err := s.Save(t.Context(), s.Layout().ByBlock([]Key{c.key}, [][]byte{make([]byte, 4096)}))
			if err == nil {
				err = task.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(c.o.Dirs[0], c.path+".kvcache.safetensors")); err != nil {
				t.Error(err)
			}
		})
	}
}
