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
	Form   string `placeholder:"FORM" help:"Kind of configuration: remote or mp for lmcache (in the engine, or a server for several), kvcm or direct for rtp-llm. Default: the first."`

	Mount givenDir `placeholder:"DIR" help:"Where the 3FS is mounted, or will be. Default: the only fuse.hf3fs mount of this host."`
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

	Out   givenDir `placeholder:"DIR" help:"Write the files there, and print only the rest."`
	Force bool     `help:"Overwrite files in --out."`
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
	if _, err := engineconfig.NeedOf(c.Engine, engineconfig.Params{}); err != nil {
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
	d := engineconfig.Deployment{
		Form: c.Form, Dirs: c.Dir, ModelName: c.Model, TP: c.TP, BlockTokens: c.BlockTokens,
		ShmBytes: int64(c.Shm), FileBytes: int64(c.FileSize), PageService: c.PageService,
	}
	var err error
	if d.Model, err = c.shape(); err != nil {
		return err
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
	if d.ShmBytes == 0 {
		d.ShmBytes, d.ShmTaken = shmRoom()
	}
	w, err := engineconfig.Write(c.Engine, d)
	if err != nil {
		return err
	}
	if c.Out != "" {
		_, err := answer(string(c.Out), patience, func() (struct{}, error) { return struct{}{}, c.writeFiles(w) })
		if err != nil {
			return fmt.Errorf("engine-config: %w", err)
		}
	}
	return c.print(out, w)
}

// chooseMount finds the mount point to write down. A mount is known by its name:
// to look at it would be to wait for its daemon.
func (c *engineConfigCmd) chooseMount(mounted []string) (string, error) {
	fixed := engineconfig.FixedMount(c.Engine)
	switch {
	case slices.Contains(mounted, string(c.Mount)):
		return string(c.Mount), nil
	case c.Mount != "":
		return withoutLinks(string(c.Mount)) // the library knows it by no other name
	case fixed != "" && (slices.Contains(mounted, fixed) || len(mounted) != 1):
		return fixed, nil
	case len(mounted) == 1:
		return mounted[0], nil
	case c.Engine == engineconfig.LMCacheGDS && len(c.Dir) > 0:
		return "", nil
	case len(mounted) == 0:
		return "", errors.New("engine-config: no 3FS is mounted here; start one (kv3fs serve --data DIR --mount /mnt/3fs) or say with --mount where it will be")
	}
	return "", fmt.Errorf("engine-config: several 3FS are mounted: %s; choose one with --mount", strings.Join(mounted, ", "))
}

// dirs are the directories below the mount as they are called by its real name.
func (c *engineConfigCmd) dirs(mount string) (dirs []string, err error) {
	for _, dir := range c.Dir {
		dir = filepath.Clean(dir)
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

// withoutLinks is the real name of a path, whose end need not exist.
func withoutLinks(path string) (string, error) {
	found, err := answer(path, patience, func() (string, error) { return resolved(path), nil })
	if err != nil {
		return "", fmt.Errorf("engine-config: %w", err)
	}
	return found, nil
}

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

// patience is how long a file system may take, which hangs for good if its daemon
// is stopped.
const patience = 5 * time.Second

// answer does what may hang at a path. What has not ended by then is left behind:
// the command is about to end.
func answer[T any](path string, limit time.Duration, do func() (T, error)) (T, error) {
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
		return none, fmt.Errorf("%s did not answer within %v; look what hangs there (kv3fs doctor does so for a 3FS) or name another path", path, limit)
	}
}

// shmRoom is what /dev/shm has left and what is in it; both are 0 when that cannot
// be told, or has no limit.
func shmRoom() (freeBytes, takenBytes int64) {
	var st unix.Statfs_t
	if unix.Statfs(shm.Dir, &st) != nil {
		return 0, 0
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks-st.Bfree) * st.Bsize
}

// writeFiles writes the parts that have a name. None has its name before all are
// written, so that a full disk changes nothing; a name that is a symbolic link
// becomes a file, and what it led to stays as it was.
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

// writeNew writes a file that was not there.
func writeNew(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// givenDir is a directory that is named on a command line, made absolute.
type givenDir string

// UnmarshalText refuses the empty name: whoever gives one has a variable unset.
func (d *givenDir) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("names no directory")
	}
	*d = givenDir(filepath.Clean(kong.ExpandPath(string(text))))
	return nil
}

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
