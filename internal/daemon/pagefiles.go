package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

	mu   sync.Mutex
	lost map[pageservice.Space]loss // whose keys are hidden, and to be forgotten
	wake chan struct{}
}

// loss is how a page file was lost.
type loss struct{ why, at string }

// newPageFiles returns nil if no directory is given. tops are paths of the data directory and the mount.
func newPageFiles(data string, tops []string, dirs []PageDir, log *slog.Logger) (*pageFiles, error) {
	if len(dirs) == 0 {
		return nil, nil
	}
	p := &pageFiles{data: data, namespaces: map[string]string{}, log: log, lost: map[pageservice.Space]loss{}, wake: make(chan struct{}, 1), leases: func() bool { return false }}
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

// Vanished has nobody find the keys of what was in a page file, or in those of a directory, any more, and the index
// forget them soon. Where no page service runs, the next one that starts looks for the files.
func (p *pageFiles) Vanished(at string) {
	if x := p.index.Load(); x != nil {
		p.hide(x, p.spacesAt(x, at), loss{"its page file was removed or renamed", at})
	}
}

// spacesAt returns the spaces with pages in a file, or in those of a directory.
func (p *pageFiles) spacesAt(x *index.Index, at string) (spaces []pageservice.Space) {
	if namespace, file, isOne := p.fileOf(at); isOne {
		return spacesOf(x, namespace, &file)
	}
	namespaces := map[string]bool{}
	for _, dir := range p.dirs {
		if host.Within(dir, at) {
			namespaces[p.namespaces[dir]] = true
		}
	}
	if len(namespaces) == 0 {
		return nil
	}
	for s := range x.Ranks() {
		if owner, _ := ownerOf(s); owner != classify.Unknown && namespaces[s.Namespace] {
			spaces = append(spaces, s)
		}
	}
	return spaces
}

// hide has nobody find the keys of spaces until they are forgotten.
func (p *pageFiles) hide(x *index.Index, spaces []pageservice.Space, how loss) {
	if len(spaces) == 0 {
		return
	}
	for _, s := range spaces {
		x.Hide(s)
	}
	p.mu.Lock()
	for _, s := range spaces {
		p.lost[s] = how
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// serve has nobody find the keys of files that went while no service ran, and begins to forget those and what vanishes from
// then on. The caller ends it before it closes the index.
func (p *pageFiles) serve(x *index.Index) (end func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	if err := p.check(x); err != nil {
		return nil, err
	}
	p.forgetLost(x)
	p.index.Store(x)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ended := false; !ended; {
			var again <-chan time.Time
			if p.forgetLost(x) {
				again = time.After(tryAgain)
			}
			select {
			case <-stop:
				ended = true
			case <-again:
			case <-p.wake:
			}
		}
		p.forgetLost(x)
	}()
	return func() {
		close(stop)
		<-done
		p.index.Store(nil)
	}, nil
}

// tryAgain is how long after a failure to forget keys it is tried again.
const tryAgain = time.Second

// forgetLost forgets the keys of what was lost, durably, and reports whether some are left.
func (p *pageFiles) forgetLost(x *index.Index) (again bool) {
	p.mu.Lock()
	all := maps.Clone(p.lost)
	clear(p.lost)
	p.mu.Unlock()
	for s, how := range all {
		if err := x.Clear(context.Background(), s); err != nil {
			if more, now := p.pace.Log("kept"); now {
				p.log.Error("keys cannot be forgotten yet: nobody finds them until a restart, but then they would be found in what takes the place of their page file", "namespace", s.Namespace, "set", s.Set, "why", how.why, "path", how.at, "err", err, "more", more)
			}
			p.mu.Lock()
			p.lost[s] = how
			p.mu.Unlock()
			again = true
		} else if more, now := p.pace.Log("forgot"); now {
			p.log.Warn("forgot the keys of a set: "+how.why, "namespace", s.Namespace, "set", s.Set, "path", how.at, "more", more)
		}
	}
	return again
}

// check hides the keys of ranks whose files are gone, or have no bytes, or cannot be looked at, when the service starts.
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
			if err != nil {
				if more, now := p.pace.Log("look"); now {
					p.log.Error("cannot look for a page file: its keys are forgotten", "namespace", s.Space.Namespace, "rank", r.Rank, "err", err, "more", more)
				}
			}
			if err != nil || !there {
				p.hide(x, []pageservice.Space{s.Space}, loss{"the page file of a rank is gone or empty", fmt.Sprintf("rank %d", r.Rank)})
				break
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
		if has, err := p.hasFileIn(dir, owner, rank); err != nil || has {
			return has, err
		}
	}
	return false, nil
}

func (p *pageFiles) hasFileIn(dir string, owner classify.Owner, rank int) (bool, error) {
	d, err := p.open(dir)
	if err != nil || d == nil {
		return false, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		_, file, ok := p.fileOf(path.Join(dir, name))
		if !ok || file.Owner != owner || file.Rank != rank {
			continue
		}
		if has, err := hasBytes(int(d.Fd()), name); err != nil || has {
			return has, err
		}
	}
	return false, nil
}

// open opens one of the directories, or returns nil if there is none. Who owns the one above may have put anything
// in its place, also a link to a file system that never answers.
func (p *pageFiles) open(dir string) (*os.File, error) {
	data, err := unix.Open(p.data, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", p.data, err)
	}
	defer unix.Close(data)
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(data, dir, &how)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), dir), nil
		case unix.EINTR:
		case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV:
			return nil, nil
		default:
			return nil, fmt.Errorf("directory of page files %s: %w", dir, err)
		}
	}
}

// hasBytes reports whether a file takes any blocks.
func hasBytes(dir int, name string) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Blocks > 0, err
}
