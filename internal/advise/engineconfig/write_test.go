package engineconfig

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/model"
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

// For every deployment, Read finds no problem in Write's output, and computes the same
// sizes.
func TestWrittenReadsBack(t *testing.T) {
	for _, engine := range Names() {
		for _, form := range Forms(engine) {
			for _, name := range []string{"", "Llama-3.1-8B", "Llama-3.1-405B", "Qwen3-30B-A3B", "DeepSeek-R1", "gpt-oss-20b"} {
				for _, tp := range []int{1, 8} {
					for _, shm := range []int64{0, 64 * mib, 2 * gib, 64 * gib, 1 << 45} {
						d := Deployment{Form: form, Mount: "/mnt/3fs", Model: shape(t, name), ModelName: name, TP: tp, ShmFreeBytes: shm}
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
	fits := d.ShmFreeBytes == 0 || w.Need.ShmBytes(d.TP) <= d.ShmFreeBytes/10*9
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
		{"lmcache", LMCache, Deployment{ModelName: "meta-llama/Llama-3.1-8B-Instruct", Model: shape(t, "Llama-3.1-8B"), TP: 1, ShmFreeBytes: 64 * gib}},
		{"lmcache-small-shm", LMCache, Deployment{ModelName: "meta-llama/Llama-3.1-8B-Instruct", Model: shape(t, "Llama-3.1-8B"), TP: 1, ShmFreeBytes: 64 * mib}},
		{"lmcache-mp", LMCache, Deployment{Form: "mp", ShmFreeBytes: 64 * gib, Dirs: []string{"/mnt/3fs/it's a", "/mnt/3fs/b"}}},
		{"lmcache-gds", LMCacheGDS, Deployment{Model: shape(t, "QwQ-32B"), TP: 2, Dirs: []string{"/nvme0/kv", "/nvme1/kv"}}},
		{"vllm", VLLM, Deployment{ModelName: "Qwen/Qwen3-32B", Model: shape(t, "Qwen3-32B"), TP: 2, ShmFreeBytes: gib}},
		{"sglang", SGLang, Deployment{ModelName: "deepseek-ai/DeepSeek-R1", Model: shape(t, "DeepSeek-R1"), TP: 8, ShmFreeBytes: 64 * gib}},
		{"sglang-hybrid", SGLang, Deployment{Model: shape(t, "Llama-3.1-8B"), ShmFreeBytes: 8 * gib, ExtraPools: 2}},
		{"ucm", UCM, Deployment{ModelName: "deepseek-ai/DeepSeek-R1", Model: shape(t, "DeepSeek-R1"), TP: 8, ShmFreeBytes: 64 * gib}},
		{"rtp-llm", RTPLLM, Deployment{TP: 4, ShmFreeBytes: 64 * gib}},
		{"mooncake", Mooncake, Deployment{ShmFreeBytes: 64 * gib}},
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

// What RTP-LLM's container gets: 8 GiB of /dev/shm for each rank and a quarter more, memory for
// all of it, and a mount that appears in it.
func TestRTPContainers(t *testing.T) {
	for _, c := range []struct {
		form, root string
		tp         int
		shmGiB     string
	}{{"kvcm", "kv_manager", 1, "10"}, {"direct", "rtp_llm", 4, "40"}, {"direct", "rtp_llm", 8, "80"}} {
		w, err := Write(RTPLLM, Deployment{Form: c.form, Mount: rtpMount, TP: c.tp})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range w.Sections {
			switch s.Name {
			case "rtp-llm-pod.yaml":
				pod, err := decodeYAML([]byte(s.Text))
				if err != nil {
					t.Errorf("%s", err)
					continue
				}
				text := fmt.Sprint(pod)
				for _, want := range []string{"sizeLimit:" + c.shmGiB + "Gi", "mountPropagation:HostToContainer", "mountPropagation:Bidirectional", "mkdir -p /3fs/stage/3fs/" + c.root, fmt.Sprint("nvidia.com/gpu:", c.tp)} {
					if !strings.Contains(text, want) {
						t.Errorf("%s, tp %d: no %s in the pod: %s", c.form, c.tp, want, text)
					}
				}
			case "rtp-llm-container.json":
				values, err := decodeJSON([]byte(s.Text))
				if err != nil {
					t.Error(err)
					continue
				}
				for i, item := range values["container_configs"].([]any) { // the platform's own form: JSON in a variable
					_, inner, _ := strings.Cut(item.(string), "=")
					if _, err := decodeAny([]byte(inner)); err != nil || i == 1 && !strings.Contains(inner, `"sizeLimit":"`+c.shmGiB+`Gi"`) {
						t.Errorf("%s, %v", inner, err)
					}
				}
			case "start-rtp-llm.sh":
				if !strings.Contains(s.Text, "/3fs/stage:/3fs/stage:rslave") || !strings.Contains(s.Text, "--shm-size="+c.shmGiB+"g") || !strings.Contains(s.Text, "--env-file "+w.Sections[0].Name) {
					t.Errorf("%s", s.Text)
				}
			}
		}
		if len(w.Sections) != 6 {
			t.Errorf("%d sections", len(w.Sections))
		}
	}
}

// The checklist says how to enlarge /dev/shm if it is too small, and never shrinks it.
func TestShmAdvice(t *testing.T) {
	llama := shape(t, "Llama-3.1-8B")
	for _, c := range []struct {
		name        string
		free, taken int64
		tp          int
		want        string // "" where there is nothing to do
		warns       bool
	}{
		{"enough", 24 * gib, 0, 1, "", false},
		{"enough beside others", 24 * gib, 24 * gib, 1, "", false},
		{"not known", 0, 0, 1, fmt.Sprintf("size=%d ", 3*gib), false},
		{"full", 0, 24 * gib, 1, fmt.Sprintf("size=%d ", 25*gib), true}, // 600 MiB more, in whole gigabytes
		{"little beside much", 64 * mib, 24 * gib, 1, fmt.Sprintf("size=%d ", 25*gib), true},
		{"too small", gib, 0, 8, fmt.Sprintf("size=%d ", 6*gib), true},
	} {
		w, err := Write(LMCache, Deployment{Mount: "/mnt/3fs", Model: llama, TP: c.tp, ShmFreeBytes: c.free, ShmUsedBytes: c.taken})
		if err != nil {
			t.Fatal(err)
		}
		list := w.Sections[len(w.Sections)-1].Text
		if strings.Contains(list, "remount") != (c.want != "") || !strings.Contains(list, c.want) {
			t.Errorf("%s: want %q in\n%s", c.name, c.want, list)
		}
		if said := strings.Join(w.Warnings, "\n"); strings.Contains(said, "remount") != c.warns || c.warns && !strings.Contains(said, c.want) {
			t.Errorf("%s: warnings %q", c.name, said)
		}
	}
}

// Without a named model, every number of ranks is accepted.
func TestAnyNumberOfRanksWithoutAModel(t *testing.T) {
	for _, engine := range Names() {
		for _, tp := range []int{1, 3, 5, 12, 4096} {
			w, err := Write(engine, Deployment{Mount: "/mnt/3fs", TP: tp})
			if err != nil {
				t.Errorf("%s, tp %d: %v", engine, tp, err)
				continue
			}
			if sized := engine == VLLM || engine == SGLang || engine == UCM; sized && !strings.Contains(strings.Join(w.Notes, ""), "no model was given") {
				t.Errorf("%s, tp %d: notes %q", engine, tp, w.Notes)
			}
		}
	}
}

// A missing mount is reported once, with a line that can be pasted.
func TestUnmounted(t *testing.T) {
	for _, c := range []struct {
		engine, mount, want string
	}{
		{VLLM, "/mnt/it's", `kv3fs serve --data DIR --mount '/mnt/it'\''s'`},
		{RTPLLM, rtpMount, "no 3FS is mounted at " + rtpMount},
		{RTPLLM, "/mnt/3fs", "looks for the 3FS at " + rtpMount + " only"},
		{LMCacheGDS, "/mnt/3fs", ""},
	} {
		w, err := Write(c.engine, Deployment{Mount: c.mount, Unmounted: true})
		if err != nil {
			t.Error(err)
			continue
		}
		if said := strings.Join(w.Warnings, "\n"); !strings.Contains(said, c.want) || len(w.Warnings) > 1 || c.want == "" && said != "" {
			t.Errorf("%s at %s: warnings %q, want one with %q", c.engine, c.mount, w.Warnings, c.want)
		}
	}
}

// A fix is a line for a shell, with its explanation after a #.
func TestInstallIsALine(t *testing.T) {
	for _, engine := range Names() {
		n, err := NeedOf(engine, Params{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range append(n.Packages, lmcacheMPNeed(Params{}).Packages...) {
			if line, _, _ := strings.Cut(p.Install, "#"); strings.ContainsAny(line, "(,;:") {
				t.Errorf("%s: %s", engine, p.Install)
			}
		}
	}
}

// A deployment that no configuration can express is refused, with the reason.
func TestWriteRefuses(t *testing.T) {
	for _, c := range []struct {
		engine string
		d      Deployment
		want   string
	}{
		{"vlm", Deployment{Mount: "/mnt/3fs"}, "did you mean vllm?"},
		{LMCache, Deployment{}, "the mount point is missing"},
		{LMCache, Deployment{Mount: "mnt"}, "absolute path"},
		{LMCache, Deployment{Mount: "/mnt/3fs/"}, "without a slash at the end"},
		{LMCache, Deployment{Mount: "/mnt/3 fs"}, "whitespace"},
		{LMCache, Deployment{Mount: "/mnt/3fs", Form: "url"}, "known: remote, mp"},
		{LMCache, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fsx"}}, "not below"},
		{LMCache, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fs/a,b"}}, "without commas"},
		{LMCache, Deployment{Mount: "/" + strings.Repeat("m", 255)}, "holds only 255"},
		{VLLM, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fs/a", "/mnt/3fs/b"}}, "one directory"},
		{UCM, Deployment{Mount: "/mnt/3fs", Dirs: []string{"/mnt/3fs/a"}}, "cannot be chosen"},
		{UCM, Deployment{Mount: "/mnt/a:b"}, "storage_backends"},
		{UCM, Deployment{Mount: "/" + strings.Repeat("m", 255)}, "holds only 255"},
		{VLLM, Deployment{Mount: "/"}, "cannot be /"},
		{LMCache, Deployment{Mount: "/mnt/3fs", FileBytes: gib}, "--file-size"},
		{VLLM, Deployment{Mount: "/mnt/3fs", PageService: "http://h:1"}, "always uses"},
		{UCM, Deployment{Mount: "/mnt/3fs", PageService: "http://h:1"}, "--page-service"},
		{NIXL, Deployment{Mount: "/mnt/3fs", BlockTokens: 16}, "--block-tokens"},
		{VLLM, Deployment{Mount: "/mnt/3fs", FileBytes: 1 << 20}, "too small for a page"},
		{VLLM, Deployment{Mount: "/mnt/3fs", BlockTokens: 1 << 30}, "must be 0 to"},
		{VLLM, Deployment{Mount: "/mnt/3fs", TP: 3, Model: shape(t, "Llama-3.1-8B")}, "cannot be divided"},
		{VLLM, Deployment{Mount: "/mnt/3fs", TP: -1}, "negative"},
		{SGLang, Deployment{Mount: "/mnt/3fs", PageService: "localhost:18000"}, "not a URL"},
		{SGLang, Deployment{Mount: "/mnt/3fs", ModelName: "a\nb"}, "control characters"},
		{VLLM, Deployment{Mount: "/mnt/3fs", ExtraPools: 1}, "--extra-pools"},
		{SGLang, Deployment{Mount: "/mnt/3fs", ExtraPools: -1}, "negative"},
	} {
		if w, err := Write(c.engine, c.d); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: %+v, %v; want an error with %q", c.engine, c.d, w, err, c.want)
		}
	}
}
