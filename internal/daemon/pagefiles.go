package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
	"github.com/kv3fs/kv3fs/internal/logpace"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// PageDir says that the page files in a directory belong to a namespace of the page service. Neither
// protocol tells: engines send a rank and a number of pages, but no file.
type PageDir struct {
	Namespace string
	Dir       string // below the data directory or the mount, or relative to them
}

// pageFiles are the page files of Pages.Files. It implements keeper.PageFiles.
type pageFiles struct {
	data       string
	namespaces map[string]string // by directory
	dirs       []string
	log        *slog.Logger
	leases     func() bool // the file system tells who has a file open

	index atomic.Pointer[index.Index] // nil: there is no page service

	pace logpace.Pace

	mu       sync.Mutex
	vanished []string // paths whose keys are to be forgotten
	wake     chan struct{}
}

// newPageFiles returns nil if no directory is given. tops are paths of the data directory and the mount.
func newPageFiles(data string, tops []string, dirs []PageDir, log *slog.Logger) (*pageFiles, error) {
	if len(dirs) == 0 {
		return nil, nil
	}
	p := &pageFiles{data: data, namespaces: map[string]string{}, log: log, wake: make(chan struct{}, 1), leases: func() bool { return false }}
	for _, d := range dirs {
		dir := filepath.Clean(d.Dir)
		for _, top := range tops {
			if abs, err := filepath.Abs(top); err == nil && filepath.IsAbs(dir) && host.Within(dir, abs) {
				dir, _ = filepath.Rel(abs, dir) // both are absolute
			}
		}
		if !filepath.IsLocal(dir) {
			return nil, fmt.Errorf("directory of page files %s is neither below the mount nor below the data directory: give one that is", d.Dir)
		}
		if _, twice := p.namespaces[dir]; twice {
			return nil, fmt.Errorf("directory of page files %s is given twice: its files belong to one namespace", d.Dir)
		}
		p.namespaces[dir] = d.Namespace
		p.dirs = append(p.dirs, dir)
	}
	return p, nil
}

// Dirs returns the directories.
func (p *pageFiles) Dirs() []string { return p.dirs }

// Forget has the index forget what is in a page file.
func (p *pageFiles) Forget(ctx context.Context, at string) error {
	x := p.index.Load()
	switch {
	case x == nil:
		return errors.New("the page service does not run, so its keys cannot be forgotten")
	case !p.leases():
		return errors.New("the file system of the data directory has no leases, so nobody can tell who uses it")
	}
	namespace, file, ok := p.fileOf(at)
	spaces := spacesOf(x, namespace, &file)
	if !ok || len(spaces) == 0 {
		return fmt.Errorf("the page service knows no rank %d of %v in namespace %q, so it may be another service's", file.Rank, file.Owner, namespace)
	}
	for _, s := range spaces {
		if err := x.GiveUp(ctx, s, file.Rank); err != nil {
			return fmt.Errorf("keys of namespace %q, set %s: %w", s.Namespace, s.Set, err)
		}
	}
	return nil
}

// fileOf returns what a path below the data directory names, and whose it is.
func (p *pageFiles) fileOf(at string) (namespace string, file classify.File, ok bool) {
	namespace, ok = p.namespaces[path.Dir(at)]
	file = classify.Classify(at, classify.Context{})
	return namespace, file, ok && (file.Owner == classify.VLLM || file.Owner == classify.SGLang)
}

// spacesOf returns the spaces with pages in a file, as far as the index knows its rank. Of SGLang all pools of the rank: how a
// pool's file is named does not tell how its requests name it.
func spacesOf(x *index.Index, namespace string, file *classify.File) (spaces []pageservice.Space) {
	for s, ranks := range x.Ranks() {
		if owner, rank := ownerOf(s); s.Namespace == namespace && owner == file.Owner && slices.Contains(ranks, file.Rank) && (rank < 0 || rank == file.Rank) {
			spaces = append(spaces, s)
		}
	}
	return spaces
}

// storePool begins the names of the pools of kv3fs's own store, whose files have any name.
const storePool = "file-"

// ownerOf returns whose page files a space's are, and of which rank; negative: any.
func ownerOf(s pageservice.Space) (owner classify.Owner, rank int) {
	if s.Set == pageservice.VLLM {
		return classify.VLLM, -1
	}
	pool, ok := strings.CutPrefix(s.Set, "sglang/")
	at := strings.LastIndexByte(pool, '/')
	if !ok || at < 0 || strings.HasPrefix(pool, storePool) {
		return classify.Unknown, 0
	}
	rank, err := strconv.Atoi(pool[at+1:])
	if err != nil {
		return classify.Unknown, 0
	}
	return classify.SGLang, rank
}

// Vanished has the index forget what was in a page file, or in those of a directory, soon.
func (p *pageFiles) Vanished(at string) {
	if _, _, isOne := p.fileOf(at); !isOne && !slices.ContainsFunc(p.dirs, func(dir string) bool { return host.Within(dir, at) }) {
		return
	}
	p.mu.Lock()
	p.vanished = append(p.vanished, at)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// serve begins to forget what vanishes from an index, after what has vanished before. The caller ends it before it closes the index.
func (p *pageFiles) serve(x *index.Index) (end func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	if err := p.check(x); err != nil {
		return nil, err
	}
	p.index.Store(x)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ended := false; !ended; {
			var again <-chan time.Time
			if p.forgetVanished(x) {
				again = time.After(tryAgain)
			}
			select {
			case <-stop:
				ended = true
			case <-again:
			case <-p.wake:
			}
		}
		p.forgetVanished(x)
	}()
	return func() {
		close(stop)
		<-done
		p.index.Store(nil)
	}, nil
}

// tryAgain is how long after a failure to forget keys it is tried again.
const tryAgain = time.Second

// forgetVanished forgets the keys of what has vanished, and reports whether some are left.
func (p *pageFiles) forgetVanished(x *index.Index) (again bool) {
	p.mu.Lock()
	all := p.vanished
	p.vanished = nil
	p.mu.Unlock()
	for i, at := range all {
		if err := p.forgetPath(x, at); err != nil {
			if more, now := p.pace.Log("vanished"); now {
				p.log.Error("a page file was removed or renamed, and its keys cannot be forgotten yet: they are found in what takes its place", "path", at, "err", err, "more", more)
			}
			p.mu.Lock()
			p.vanished = append(p.vanished, all[i:]...)
			p.mu.Unlock()
			return true
		}
	}
	return false
}

// forgetPath forgets the keys of a page file that has gone, or of those below a directory.
func (p *pageFiles) forgetPath(x *index.Index, at string) error {
	var spaces []pageservice.Space
	if namespace, file, isOne := p.fileOf(at); isOne {
		spaces = spacesOf(x, namespace, &file)
	} else {
		for s := range x.Ranks() {
			owner, _ := ownerOf(s)
			if owner != classify.Unknown && slices.ContainsFunc(p.dirs, func(dir string) bool { return p.namespaces[dir] == s.Namespace && host.Within(dir, at) }) {
				spaces = append(spaces, s)
			}
		}
	}
	return p.clear(x, spaces, "its page file was removed or renamed", at)
}

func (p *pageFiles) clear(x *index.Index, spaces []pageservice.Space, why, at string) error {
	for _, s := range spaces {
		if err := x.Clear(context.Background(), s); err != nil {
			return err
		}
		p.log.Warn("forgot the keys of a set: "+why, "namespace", s.Namespace, "set", s.Set, "path", at)
	}
	return nil
}

// check forgets the keys of ranks whose files are gone, or have no bytes, when the service starts.
func (p *pageFiles) check(x *index.Index) error {
	states, err := x.Stat(context.Background())
	if err != nil {
		return err
	}
	for _, s := range states {
		owner, _ := ownerOf(s.Space)
		if owner == classify.Unknown || !slices.ContainsFunc(p.dirs, func(dir string) bool { return p.namespaces[dir] == s.Space.Namespace }) {
			continue
		}
		for _, r := range s.Ranks {
			if r.Keyed == 0 {
				continue
			}
			there, err := p.hasFile(s.Space.Namespace, owner, r.Rank)
			if err == nil && !there {
				err = p.clear(x, []pageservice.Space{s.Space}, "the page file of a rank is gone or empty", fmt.Sprintf("rank %d", r.Rank))
			}
			if err != nil {
				return fmt.Errorf("page files of namespace %q: %w", s.Space.Namespace, err)
			}
		}
	}
	return nil
}

// hasFile reports whether a rank has a page file with bytes in it.
func (p *pageFiles) hasFile(namespace string, owner classify.Owner, rank int) (bool, error) {
	for dir, of := range p.namespaces {
		if of != namespace {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(p.data, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		for _, e := range entries {
			_, file, ok := p.fileOf(path.Join(dir, e.Name()))
			if !ok || file.Owner != owner || file.Rank != rank {
				continue
			}
			if has, err := hasBytes(filepath.Join(p.data, dir, e.Name())); err != nil || has {
				return has, err
			}
		}
	}
	return false, nil
}

// hasBytes reports whether a file takes any blocks.
func hasBytes(path string) (bool, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Blocks > 0, err
}
