package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/shm"
)

type engineConfigCmd struct {
	Engine string `arg:"" help:"lmcache, lmcache-gds, vllm, sglang, ucm, rtp-llm, mooncake or nixl."`
	Form   string `placeholder:"FORM" help:"Kind of configuration. lmcache: remote (in the engine) or mp (a server for several engines). rtp-llm: kvcm or direct. Default: the first."`

	Mount givenPath   `placeholder:"DIR" help:"Where the 3FS is mounted, or will be. Default: the only fuse.hf3fs mount of this host."`
	Dir   []givenPath `sep:"none" placeholder:"DIR" help:"Directory to store in, below the mount. With lmcache and lmcache-gds, repeat the flag for several. Default: one named after the engine."`

	Model   string `placeholder:"NAME" help:"Model, as named on Hugging Face; it determines the sizes. For an unknown name, similar ones are listed."`
	Layers  int    `placeholder:"N" range:"1..100000" help:"For a model that is not known by name: the number of layers that keep KV. Also give --kv-heads and --head-dim, or --mla-dim."`
	KVHeads int    `name:"kv-heads" placeholder:"N" range:"1..1000000" help:"KV heads per layer."`
	HeadDim int    `placeholder:"N" range:"1..1000000" help:"Dimension of a head."`
	MLADim  int    `name:"mla-dim" placeholder:"N" range:"1..1000000" help:"For MLA: dimension of the latent vector with its rotary part, 576 for DeepSeek-V3."`
	DType   string `name:"dtype" default:"bf16" enum:"bf16,fp16,fp8,fp32" help:"Element type of the KV cache, not of the weights. Default: ${default}."`
	TP      int    `name:"tp" default:"1" range:"1..4096" help:"Tensor-parallel ranks on this host."`

	BlockTokens int      `placeholder:"N" range:"1..1048576" help:"Tokens per chunk, page or block. Default: the engine's (LMCache 256, vLLM 16, SGLang 64, UCM 128)."`
	Shm         byteSize `placeholder:"SIZE" range:"1..1024TiB" help:"How much of /dev/shm the engine may use, such as 64GiB. Default: what is free here."`
	FileSize    byteSize `placeholder:"SIZE" range:"1..1024TiB" help:"vLLM, SGLang: size of the file in which each rank keeps its pages. Default: 100GiB."`
	ExtraPools  int      `placeholder:"N" range:"1..64" help:"SGLang with a hybrid model: its pools besides the KV cache (mamba, swa, indexer, draft). Each has a file and clients of its own. SGLang logs them as \"Registered hybrid pool\"."`
	PageService string   `placeholder:"URL" help:"SGLang: address of the page service. Default: http://localhost:18000."`

	Out   givenPath `placeholder:"DIR" help:"Write the files to this directory, and print only the rest."`
	Force bool      `help:"Overwrite files in --out."`
}

// Help is what "kv3fs engine-config --help" adds to the flags.
func (*engineConfigCmd) Help() string {
	return `For example:

  kv3fs engine-config lmcache --model meta-llama/Llama-3.1-8B-Instruct
  kv3fs engine-config vllm --model Qwen/Qwen3-32B --tp 2 --out .

The output has three parts: files, environment variables and command lines, with sizes
that fit the mount, /dev/shm and the model; notes on settings that the engine ignores or
calls by another name; and a list of requirements. Each section below a line ==> NAME <==
can be copied unchanged.`
}

// Validate reports invalid flags.
func (c *engineConfigCmd) Validate() error {
	if _, err := engineconfig.NeedOf(c.Engine, engineconfig.Params{}); err != nil {
		return err
	}
	shape, err := c.shape()
	if err == nil && shape != (model.Shape{}) {
		_, err = shape.BytesPerToken(c.TP)
	}
	if c.Force && c.Out == "" {
		err = errors.New("--force needs --out")
	}
	return err
}

// shape returns the model's shape, or the zero Shape if no model was given.
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
	d := engineconfig.Deployment{
		Form: c.Form, ModelName: c.Model, TP: c.TP, BlockTokens: c.BlockTokens,
		ShmFreeBytes: int64(c.Shm), FileBytes: int64(c.FileSize), PageService: c.PageService, ExtraPools: c.ExtraPools,
	}
	var err error
	if d.Model, err = c.shape(); err != nil {
		return mistake{err}
	}
	mounts, err := host.Local().Mounts()
	if err != nil {
		return fmt.Errorf("engine-config: %w", err)
	}
	mounted := host.HF3FS(mounts)
	if d.Mount, err = c.chooseMount(mounted); err != nil {
		return err
	}
	d.Unmounted = !slices.Contains(mounted, d.Mount)
	if d.Dirs, err = c.dirs(d.Mount); err != nil {
		return err
	}
	if d.ShmFreeBytes == 0 {
		d.ShmFreeBytes, d.ShmUsedBytes = shmUsage()
	}
	w, err := engineconfig.Write(c.Engine, d)
	if err != nil {
		return mistake{err}
	}
	if c.Out != "" {
		_, err := bounded(string(c.Out), pathTimeout, func() (struct{}, error) { return struct{}{}, c.writeFiles(w) })
		if err != nil {
			return fmt.Errorf("engine-config: %w", err)
		}
	}
	return c.print(out, w)
}

// chooseMount returns the mount point for the configuration. It only compares names,
// because any access to a mount waits for its daemon.
func (c *engineConfigCmd) chooseMount(mounted []string) (string, error) {
	fixed := engineconfig.FixedMount(c.Engine)
	switch {
	case slices.Contains(mounted, string(c.Mount)):
		return string(c.Mount), nil
	case c.Mount != "":
		return withoutLinks(string(c.Mount)) // the only name that the clients' library accepts
	case fixed != "" && (slices.Contains(mounted, fixed) || len(mounted) != 1):
		return fixed, nil
	case len(mounted) == 1:
		return mounted[0], nil
	case c.Engine == engineconfig.LMCacheGDS && len(c.Dir) > 0:
		return "", nil
	case len(mounted) == 0:
		return "", errors.New("engine-config: no 3FS is mounted here; start one (kv3fs serve --data DIR --mount /mnt/3fs), or name its future mount point with --mount")
	}
	return "", fmt.Errorf("engine-config: several 3FS are mounted: %s; choose one with --mount", strings.Join(mounted, ", "))
}

// dirs returns the directories to store in, below the mount's real name.
func (c *engineConfigCmd) dirs(mount string) (dirs []string, err error) {
	for _, given := range c.Dir {
		dir := filepath.Clean(string(given))
		switch {
		case c.Engine == engineconfig.LMCacheGDS || host.Within(dir, mount):
		case c.Mount != "" && host.Within(dir, string(c.Mount)):
			dir = filepath.Join(mount, strings.TrimPrefix(dir, string(c.Mount)))
		default:
			if dir, err = withoutLinks(dir); err != nil {
				return nil, err
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// withoutLinks returns a path without symbolic links. The end of the path need not
// exist.
func withoutLinks(path string) (string, error) {
	found, err := bounded(path, pathTimeout, func() (string, error) { return resolved(path), nil })
	if err != nil {
		return "", fmt.Errorf("engine-config: %w", err)
	}
	return found, nil
}

// resolved resolves the links of the part of a path that exists.
func resolved(path string) string {
	found, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		return found
	case path == filepath.Dir(path):
		return path
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}

// pathTimeout bounds calls to a file system, which hang forever if its daemon is
// stopped.
const pathTimeout = 5 * time.Second

// bounded calls do, which may hang at a path, and waits at most limit for it. After
// that it leaves do's goroutine behind: the process is about to exit.
func bounded[T any](path string, limit time.Duration, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		value, err := do()
		ended <- result{value, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-ended:
		return r.value, r.err
	case <-timer.C:
		var none T
		return none, fmt.Errorf("%s did not answer within %v: its file system hangs; find out why (for a 3FS, with kv3fs doctor), or give another path", path, limit)
	}
}

// shmUsage returns how much of /dev/shm is free and how much is used. Both are 0 if that
// is unknown or /dev/shm has no limit.
func shmUsage() (freeBytes, usedBytes int64) {
	var st unix.Statfs_t
	if unix.Statfs(shm.Dir, &st) != nil {
		return 0, 0
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks-st.Bfree) * st.Bsize
}

// writeFiles writes the sections that have a name. It renames the files into place after
// all are written, so that a full disk changes nothing. A file replaces a symbolic link
// of its name; the link's target stays unchanged.
func (c *engineConfigCmd) writeFiles(w *engineconfig.Written) (err error) {
	dir := string(c.Out)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	named := slices.DeleteFunc(slices.Clone(w.Sections), func(s engineconfig.Section) bool { return s.Name == "" })
	for _, s := range named {
		name := filepath.Join(dir, s.Name)
		switch info, err := os.Lstat(name); {
		case err != nil:
		case info.IsDir():
			return fmt.Errorf("%s is a directory; name another one with --out", name)
		case !c.Force:
			return fmt.Errorf("%s exists; --force overwrites it", name)
		}
	}
	temporary := func(s engineconfig.Section) string {
		return filepath.Join(dir, fmt.Sprintf(".%s.%d", s.Name, os.Getpid()))
	}
	for i, s := range named {
		if err := writeNew(temporary(s), s.Text); err != nil {
			for _, done := range named[:i+1] {
				os.Remove(temporary(done))
			}
			return err
		}
	}
	for _, s := range named {
		err = errors.Join(err, os.Rename(temporary(s), filepath.Join(dir, s.Name)))
	}
	return err
}

// writeNew creates and writes a file, which must not exist.
func writeNew(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// givenPath is the absolute path of a file or directory.
type givenPath string

// UnmarshalText rejects an empty name, which usually comes from an unset variable.
func (d *givenPath) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("is empty; it must name a file or directory")
	}
	*d = givenPath(filepath.Clean(kong.ExpandPath(string(text))))
	return nil
}

// print writes the configuration as text, without the sections that went to files.
func (c *engineConfigCmd) print(out io.Writer, w *engineconfig.Written) error {
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
			fmt.Fprintf(&b, "wrote %s: %s\n", filepath.Join(string(c.Out), s.Name), s.Title)
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
