package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/engines"
	"github.com/kv3fs/kv3fs/internal/model"
	"github.com/kv3fs/kv3fs/internal/wire"
)

type engineConfigCmd struct {
	Engine string `arg:"" help:"lmcache, lmcache-gds, vllm, sglang, ucm, rtp-llm, mooncake or nixl."`
	Form   string `placeholder:"FORM" help:"Kind of configuration: remote or mp for lmcache (in the engine, or a server for several), kvcm or direct for rtp-llm. Default: the first."`

	Mount string   `type:"path" placeholder:"DIR" help:"Where the 3FS is mounted, or will be. Default: the only fuse.hf3fs mount of this host."`
	Dir   []string `type:"path" sep:"none" placeholder:"DIR" help:"Directory below the mount to store in; lmcache and lmcache-gds take several. Default: one named after the engine."`

	Model   string `placeholder:"NAME" help:"Model, as on Hugging Face; it decides the sizes. A wrong name lists those near it."`
	Layers  int    `placeholder:"N" help:"For any other model: its layers that keep KV, with --kv-heads and --head-dim or with --mla-dim."`
	KVHeads int    `name:"kv-heads" placeholder:"N" help:"KV heads of a layer."`
	HeadDim int    `placeholder:"N" help:"Dimension of a head."`
	MLADim  int    `name:"mla-dim" placeholder:"N" help:"For MLA: dimension of the latent vector with its rotary part, 576 for DeepSeek-V3."`
	DType   string `name:"dtype" default:"bf16" enum:"bf16,fp16,fp8,fp32" help:"Element type of the KV cache, not of the weights. Default: ${default}."`
	TP      int    `name:"tp" default:"1" help:"Tensor-parallel ranks on this host."`

	BlockTokens int      `placeholder:"N" help:"Tokens of a chunk, page or block. Default: the engine's (LMCache 256, vLLM 16, SGLang 64, UCM 128)."`
	Shm         byteSize `placeholder:"SIZE" help:"What /dev/shm can give the engine, such as 64GiB. Default: what it has free here."`
	FileSize    byteSize `placeholder:"SIZE" help:"vLLM, SGLang: size of the file that each rank keeps its pages in. Default: 100GiB."`
	PageService string   `placeholder:"URL" help:"SGLang: where the page service is. Default: http://localhost:18000."`

	Out   string `placeholder:"DIR" help:"Write the files there, and print only the rest."`
	Force bool   `help:"Overwrite files in --out."`
}

// Help is what "kv3fs engine-config --help" adds to the flags.
func (*engineConfigCmd) Help() string {
	return `For example:

  kv3fs engine-config lmcache --model meta-llama/Llama-3.1-8B-Instruct
  kv3fs engine-config vllm --model Qwen/Qwen3-32B --tp 2 --out .

prints files, environment and command lines that fit the mount, /dev/shm and the
model, what upstream ignores or calls by another name, and a list of what must be
installed. Each part after a line ==> NAME <== can be copied as it is.`
}

// Validate finds what was asked wrongly.
func (c *engineConfigCmd) Validate() error {
	if _, err := engines.NeedOf(c.Engine, engines.Params{}); err != nil {
		return err
	}
	shape, err := c.shape()
	if err == nil && shape != (model.Shape{}) {
		_, err = shape.BytesPerToken(c.TP)
	}
	if c.TP < 1 {
		err = fmt.Errorf("--tp must be at least 1, not %d", c.TP)
	}
	if c.Force && c.Out == "" {
		err = errors.New("--force is for --out")
	}
	return err
}

// shape is the model's, the zero one if none was named.
func (c *engineConfigCmd) shape() (model.Shape, error) {
	s := model.Shape{Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim, LatentDim: c.MLADim}
	if s == (model.Shape{}) && c.Model == "" {
		return s, nil
	}
	if s == (model.Shape{}) {
		var err error
		if s, err = model.Lookup(c.Model); err != nil {
			return s, fmt.Errorf("%w; or give --layers with --kv-heads and --head-dim, or with --mla-dim", err)
		}
	}
	s.DType = model.DType(c.DType)
	return s, s.Check()
}

// Run writes the configuration.
func (c *engineConfigCmd) Run(out io.Writer) error {
	d := engines.Deployment{
		Form: c.Form, Dirs: c.Dir, ModelName: c.Model, TP: c.TP, BlockTokens: c.BlockTokens,
		ShmBytes: int64(c.Shm), FileBytes: int64(c.FileSize), PageService: c.PageService,
	}
	var err error
	if d.Model, err = c.shape(); err != nil {
		return err
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var remark string
	if d.Mount, remark, err = c.chooseMount(hf3fsMounts(string(mountinfo))); err != nil {
		return err
	}
	if d.ShmBytes == 0 {
		d.ShmBytes = freeShmBytes()
	}
	w, err := engines.Write(c.Engine, d)
	if err != nil {
		return err
	}
	if remark != "" {
		w.Warnings = append(w.Warnings, remark)
	}
	if c.Out != "" {
		if err := c.writeFiles(w); err != nil {
			return err
		}
	}
	return c.print(out, w)
}

// chooseMount finds the mount point to write down; remark says what is odd
// about it.
func (c *engineConfigCmd) chooseMount(mounted []string) (mount, remark string, err error) {
	fixed := engines.FixedMount(c.Engine)
	switch {
	case c.Mount != "":
		mount = filepath.Clean(c.Mount)
		if real, err := filepath.EvalSymlinks(mount); err == nil && slices.Contains(mounted, real) {
			mount = real // the library knows it by no other name
		}
		if !slices.Contains(mounted, mount) && c.Engine != engines.LMCacheGDS {
			remark = "no 3FS is mounted at " + mount + " yet; start it before the engine: kv3fs serve --data DIR --mount " + mount
		}
		return mount, remark, nil
	case fixed != "" && (slices.Contains(mounted, fixed) || len(mounted) != 1):
		if !slices.Contains(mounted, fixed) {
			remark = "no 3FS is mounted at " + fixed + " yet; start it before the engine: kv3fs serve --data DIR --mount " + fixed
		}
		return fixed, remark, nil
	case len(mounted) == 1:
		return mounted[0], "", nil
	case c.Engine == engines.LMCacheGDS && len(c.Dir) > 0:
		return "", "", nil
	case len(mounted) == 0:
		return "", "", errors.New("engine-config: no 3FS is mounted here; start one (kv3fs serve --data DIR --mount /mnt/3fs) or say with --mount where it will be")
	}
	return "", "", fmt.Errorf("engine-config: several 3FS are mounted: %s; choose one with --mount", strings.Join(mounted, ", "))
}

// hf3fsMounts lists the mount points of 3FS file systems, each once.
func hf3fsMounts(mountinfo string) []string {
	var points []string
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) > 4 && len(right) > 0 && right[0] == "fuse.hf3fs" {
			points = append(points, wire.UnescapeMountinfo(left[4]))
		}
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// freeShmBytes is what /dev/shm has left, 0 when that cannot be told.
func freeShmBytes() int64 {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// writeFiles writes the parts that have a name, or none of them.
func (c *engineConfigCmd) writeFiles(w *engines.Written) error {
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return fmt.Errorf("engine-config: %w", err)
	}
	var named []engines.Section
	for _, s := range w.Sections {
		if s.Name == "" {
			continue
		}
		named = append(named, s)
		if _, err := os.Lstat(filepath.Join(c.Out, s.Name)); err == nil && !c.Force {
			return fmt.Errorf("engine-config: %s exists; --force overwrites it", filepath.Join(c.Out, s.Name))
		}
	}
	for _, s := range named {
		if err := os.WriteFile(filepath.Join(c.Out, s.Name), []byte(s.Text), 0o644); err != nil {
			return fmt.Errorf("engine-config: %w", err)
		}
	}
	return nil
}

func (c *engineConfigCmd) print(out io.Writer, w *engines.Written) error {
	var b strings.Builder
	for _, warning := range w.Warnings {
		fmt.Fprintf(&b, "# WARNING: %s\n", warning)
	}
	for _, note := range w.Notes {
		fmt.Fprintf(&b, "# note: %s\n", note)
	}
	for _, s := range w.Sections {
		switch {
		case s.Name != "" && c.Out != "":
			fmt.Fprintf(&b, "wrote %s: %s\n", filepath.Join(c.Out, s.Name), s.Title)
			continue
		case s.Name != "":
			fmt.Fprintf(&b, "\n==> %s: %s <==\n", s.Name, s.Title)
		default:
			fmt.Fprintf(&b, "\n==> %s <==\n", s.Title)
		}
		b.WriteString(s.Text)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
