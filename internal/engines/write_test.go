package engines

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/model"
)

var update = flag.Bool("update", false, "write the golden files anew")

func shape(t *testing.T, name string) model.Shape {
	t.Helper()
	if name == "" {
		return model.Shape{}
	}
	s, err := model.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Whatever the deployment, what is written reads back without a problem, and is
// sized as it was counted.
func TestWrittenReadsBack(t *testing.T) {
	for _, engine := range Names() {
		for _, form := range Forms(engine) {
			for _, name := range []string{"", "Llama-3.1-8B", "Llama-3.1-405B", "Qwen3-30B-A3B", "DeepSeek-R1", "gpt-oss-20b"} {
				for _, tp := range []int{1, 8} {
					for _, shm := range []int64{0, 64 * mib, 2 * gib, 64 * gib, 1 << 45} {
						d := Deployment{Form: form, Mount: "/mnt/3fs", Model: shape(t, name), ModelName: name, TP: tp, ShmBytes: shm}
						if fixed := FixedMount(engine); fixed != "" {
							d.Mount = fixed
						}
						what := fmt.Sprintf("%s %s %s tp %d shm %d", engine, form, name, tp, shm)
						w, err := Write(engine, d)
						if err != nil {
							t.Errorf("%s: %v", what, err)
							continue
						}
						checkWritten(t, what, engine, d, w)
					}
				}
			}
		}
	}
}

func checkWritten(t *testing.T, what, engine string, d Deployment, w *Written) {
	t.Helper()
	fits := d.ShmBytes == 0 || w.Need.ShmBytes(d.TP) <= d.ShmBytes/10*9
	if fits == (len(w.Warnings) > 0) {
		t.Errorf("%s: needs %d, warnings %q", what, w.Need.ShmBytes(d.TP), w.Warnings)
	}
	configs := 0
	for _, s := range w.Sections {
		if strings.Contains(s.Text, "<no value>") || s.Text == "" || !strings.HasSuffix(s.Text, "\n") {
			t.Errorf("%s: section %s is not whole:\n%s", what, s.Title, s.Text)
		}
		for _, p := range sections(engine, cmpForm(engine, d.Form)) {
			if !p.config || p.template != s.Name {
				continue
			}
			configs++
			c, err := Read(engine, s.Name, []byte(s.Text), Params{Model: d.Model, TP: d.TP}, nil)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			for _, problem := range c.Problems {
				if problem.Severity != Note {
					t.Errorf("%s: %+v", what, problem)
				}
			}
			if got, want := c.Need.ShmBytes(d.TP), w.Need.ShmBytes(d.TP); got != want || c.Need.DiskBytes != w.Need.DiskBytes {
				t.Errorf("%s: read back needs %d of shared memory and %d of disk, written %d and %d", what, got, c.Need.DiskBytes, want, w.Need.DiskBytes)
			}
		}
	}
	if configs == 0 {
		t.Errorf("%s: no configuration in it", what)
	}
}

func cmpForm(engine, form string) string {
	if form == "" {
		return Forms(engine)[0]
	}
	return form
}

// A few outputs in full. After a deliberate change: go test -update.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		file, engine string
		d            Deployment
	}{
		{"lmcache", LMCache, Deployment{ModelName: "meta-llama/Llama-3.1-8B-Instruct", Model: shape(t, "Llama-3.1-8B"), TP: 1, ShmBytes: 64 * gib}},
		{"lmcache-small-shm", LMCache, Deployment{ModelName: "meta-llama/Llama-3.1-8B-Instruct", Model: shape(t, "Llama-3.1-8B"), TP: 1, ShmBytes: 64 * mib}},
		{"lmcache-mp", LMCache, Deployment{Form: "mp", ShmBytes: 64 * gib, Dirs: []string{"/mnt/3fs/it's a", "/mnt/3fs/b"}}},
		{"lmcache-gds", LMCacheGDS, Deployment{Model: shape(t, "QwQ-32B"), TP: 2, Dirs: []string{"/nvme0/kv", "/nvme1/kv"}}},
		{"vllm", VLLM, Deployment{ModelName: "Qwen/Qwen3-32B", Model: shape(t, "Qwen3-32B"), TP: 2, ShmBytes: gib}},
		{"sglang", SGLang, Deployment{ModelName: "deepseek-ai/DeepSeek-R1", Model: shape(t, "DeepSeek-R1"), TP: 8, ShmBytes: 64 * gib}},
		{"ucm", UCM, Deployment{ModelName: "deepseek-ai/DeepSeek-R1", Model: shape(t, "DeepSeek-R1"), TP: 8, ShmBytes: 64 * gib}},
		{"rtp-llm", RTPLLM, Deployment{TP: 4, ShmBytes: 64 * gib}},
		{"mooncake", Mooncake, Deployment{ShmBytes: 64 * gib}},
		{"nixl", NIXL, Deployment{}},
	} {
		c.d.Mount = "/mnt/3fs"
		w, err := Write(c.engine, c.d)
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		var b strings.Builder
		for _, s := range w.Sections {
			fmt.Fprintf(&b, "==> %s: %s <==\n%s\n", s.Name, s.Title, s.Text)
		}
		fmt.Fprintf(&b, "notes: %s\nwarnings: %s\n", strings.Join(w.Notes, "\n"), strings.Join(w.Warnings, "\n"))
		file := filepath.Join("testdata", "golden", c.file+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s differs from %s:\n%s", c.file, file, b.String())
		}
	}
}

// What no configuration can hold is refused, with the reason.
func TestWriteRefuses(t *testing.T) {
	for _, c := range []struct {
		engine string
		d      Deployment
		want   string
	}{
		{"vlm", Deployment{Mount: "/mnt/3fs"}, "did you mean vllm?"},
		{LMCache, Deployment{}, "no mount point"},
		{LMCache, Deployment{Mount: "mnt"}, "absolute path"},
		{LMCache, Deployment{Mount: "/mnt/3fs/"}, "without a slash at the end"},
		{LMCache, Deployment{Mount: "/mnt/3 fs"}, "blank"},
		{LMCache, Deployment{Mount: "/mnt/3fs", Form: "url"}, "known: remote, mp"},
		{LMCache, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fsx"}}, "not below"},
		{LMCache, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fs/a,b"}}, "without commas"},
		{LMCache, Deployment{Mount: "/" + strings.Repeat("m", 255)}, "255 bytes"},
		{VLLM, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fs/a", "/mnt/3fs/b"}}, "one directory"},
		{UCM, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fs/a"}}, "does not let"},
		{UCM, Deployment{Mount: "/mnt/a:b"}, "storage_backends"},
		{VLLM, Deployment{Mount: "/mnt/3fs", FileBytes: 1 << 20}, "no page"},
		{VLLM, Deployment{Mount: "/mnt/3fs", BlockTokens: 1 << 30}, "must be 0 to"},
		{VLLM, Deployment{Mount: "/mnt/3fs", TP: 3, Model: shape(t, "Llama-3.1-8B")}, "cannot be divided"},
		{VLLM, Deployment{Mount: "/mnt/3fs", TP: -1}, "negative"},
		{SGLang, Deployment{Mount: "/mnt/3fs", PageService: "localhost:18000"}, "no URL"},
		{SGLang, Deployment{Mount: "/mnt/3fs", ModelName: "a\nb"}, "control characters"},
	} {
		if w, err := Write(c.engine, c.d); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: %+v, %v; want an error with %q", c.engine, c.d, w, err, c.want)
		}
	}
}
