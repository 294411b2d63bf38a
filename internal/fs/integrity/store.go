package integrity

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/logpace"
)

// Options of Open.
type Options struct {
	// Files is a directory of the files: those of its device have sums.
	Files string
	// Dir is the store's own directory. Its parent exists, unless nothing is written.
	Dir string
	// Readonly: sums are compared, and none are written.
	Readonly bool
	Log      *slog.Logger
}

// Store has the sums of the files of one file system.
type Store struct {
	log  *log
	opts Options
	dev  uint64 // of the files
	pace logpace.Pace
	// Any client can make doubtful files, of as many names as it likes, so these have no part in pace.
	damaged, doubtful logpace.Pace
	fine              bool // see FineTimes
	memory            bool // tmpfs
	births            bool // inodes have times of birth; those of ext4 that have none have times of a second
	boot              uint64
	counters          counters
	watch             *watch
	deaf              atomic.Bool  // it was logged that the kernel does not tell of a file
	chunks            *quota.Quota // of all tables, charged to the files' owners

	mu     sync.Mutex
	active map[uint64]*File // by inode
	// idle counts those of them that nobody uses. A ring that is used without a
	// handle of the mount takes and leaves its file for each batch, so a file stays for a while.
	idle int
}

const (
	// mostChunks are in memory: 256 MiB and the maps' own, the sums of 4 TiB that were written in a row. What finds
	// no room is unknown.
	mostChunks = 1 << 20
	// mostIdle files that nobody uses stay until they are saved. Beyond, those are saved at once whose tables have no more
	// chunks than mostAtOnce. Larger ones stay, as many as mostChunks lets there be: clients that open and close many files
	// must not have a large table written for each time, nor make those of others unknown.
	mostIdle   = 4096
	mostAtOnce = 64
)

// mostSaved is how many chunks a file in use may have to be saved from time to time: saving takes a while, for which
// nobody else can use it. Larger ones, of 16 GiB and more, are saved once nobody uses them any more.
const mostSaved = 256 * 16

type counters struct {
	verified, changed, damaged, doubtful, unsure, aside, forgotten atomic.Int64
}

// Counters are what happened since Open.
type Counters struct {
	Files         int   // with sums in the log
	VerifiedBytes int64 // that were compared when they were read
	Changed       int64 // files whose sums were dropped, because others had changed them
	Damaged       int64 // ranges found damaged
	Aside         int64 // damaged files that were renamed
	Doubtful      int64 // ranges that never were what was written, for which see Damage.Certain
	Unsure        int64 // ranges whose sums were dropped, because they did not match and somebody else may have changed the bytes
	Forgotten     int64 // times that sums of a range, or of a file, found no room in memory and were dropped
	InUse         int64 // files that are in use now
	Watched       int64 // those of them of which the kernel tells who else changes them
}

// Counters may be called at any time.
func (s *Store) Counters() Counters {
	c := &s.counters
	return Counters{
		Files: s.log.files(), VerifiedBytes: c.verified.Load(), Changed: c.changed.Load(),
		Damaged: c.damaged.Load(), Aside: c.aside.Load(), Doubtful: c.doubtful.Load(),
		Unsure: c.unsure.Load(), Forgotten: c.forgotten.Load(), InUse: s.inUse(), Watched: int64(s.watch.watches()),
	}
}

func (s *Store) inUse() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.active {
		if f.uses.Load() > 0 {
			n++
		}
	}
	return n
}

// Open reads the log of a store. No other process may use the same directory until Close.
func Open(o Options) (*Store, error) {
	l, err := openLog(o.Dir, !o.Readonly)
	if err != nil {
		return nil, fmt.Errorf("checksums in %s: %w", o.Dir, err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		l.close()
		return nil, fmt.Errorf("checksums: which boot of the machine this is: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(o.Files, &st); err != nil {
		l.close()
		return nil, fmt.Errorf("checksums of %s: %w", o.Files, err)
	}
	s := &Store{log: l, opts: o, dev: st.Dev, boot: xxh3.Hash(boot), active: make(map[uint64]*File), chunks: quota.New(mostChunks), memory: inMemory(o.Files)}
	if s.memory {
		// While this daemon was not there, stores through mappings may have left no trace.
		s.boot ^= uint64(time.Now().UnixNano())
	}
	s.watch = newWatch(!o.Readonly)
	s.births = keepsBirths(o.Files)
	s.fine = !o.Readonly && FineTimes(o.Files)
	return s, nil
}

// savePeriod is how often sums are saved of files that nobody uses any more, and saveTurns of those periods how
// often all are. What a crash loses is unknown.
const (
	savePeriod = 5 * time.Second
	saveTurns  = 4
)

// Run saves and tidies until ctx ends.
func (s *Store) Run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { s.watch.run(ctx) })
	tick := time.NewTicker(savePeriod)
	defer tick.Stop()
	for turn := 1; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.save(turn%saveTurns == 0)
		for again := true; again && ctx.Err() == nil; {
			var err error
			again, err = s.log.compact()
			s.failed(err)
		}
	}
}

func (s *Store) failed(err error) {
	if err == nil {
		return
	}
	if suppressed, now := s.pace.Log("write"); now {
		s.opts.Log.Warn("cannot write checksums: damage of some files will not be found", "dir", s.opts.Dir, "err", err, "suppressed", suppressed)
	}
}

// unwatched logs, once, that the kernel does not tell who else changes a file.
func (s *Store) unwatched(err error) {
	if !s.opts.Readonly && !s.deaf.Swap(true) {
		s.opts.Log.Warn("the kernel does not tell who else changes a file (fanotify), nor perhaps others: their checksums count only once they were read while nobody had them open for writing; see kv3fs_checksums_unwatched_files and fs.fanotify in sysctl", "err", err)
	}
}

// Report logs damage of a file that was found by reading it.
func (s *Store) Report(path string, bad Damage) {
	pace, what := &s.doubtful, "what was stored is not what was to be written, so reading it through rings fails: a client has changed its memory meanwhile, another process the file, or it was damaged before anybody read it; write it again or remove it"
	if bad.Certain {
		pace, what = &s.damaged, "stored bytes have changed without being written: reading them through rings fails; check the disk and the memory, and write the file again or remove it"
	}
	if suppressed, now := pace.Log(path); now {
		s.opts.Log.Error(what, "file", path, "offset", bad.Off, "bytes", bad.Bytes, "suppressed", suppressed)
	}
}

// ReportAside logs that a damaged file has got another name, or could not.
func (s *Store) ReportAside(path, name string, err error) {
	if err != nil {
		if suppressed, now := s.pace.Log("aside"); now {
			s.opts.Log.Warn("cannot rename a damaged file; reading it through rings fails, and only writing it again or removing it helps", "file", path, "err", err, "suppressed", suppressed)
		}
		return
	}
	s.counters.aside.Add(1)
	s.opts.Log.Warn("renamed a damaged file, so that its engine finds nothing and computes the entry again; look at it, or remove it", "file", path, "name", name)
}

// ReportAsideEnd logs that so many damaged files were renamed that no more are.
func (s *Store) ReportAsideEnd(n int) {
	s.opts.Log.Error("no more damaged files are renamed until a restart: the disk or the memory is failing, check them; damaged files keep their names, and reading them through rings fails", "renamed", n)
}

// Close saves what is known. Files must have been released, except where calls hang. A nil Store ignores it.
func (s *Store) Close() {
	if s == nil {
		return
	}
	s.save(true)
	s.log.close()
	s.watch.close()
}

// save saves the sums of files that nobody uses, and lets them go, or of all.
func (s *Store) save(all bool) {
	s.mu.Lock()
	var files []*File
	for _, f := range s.active {
		if f.refs == 0 {
			s.idle--
		} else if !all {
			continue
		}
		f.refs++
		files = append(files, f)
	}
	s.mu.Unlock()
	for _, f := range files {
		s.put(f)
	}
}

// Acquire returns the sums of an open file, until Release. created says that the daemon has
// just made it, so that nobody else has it open. On a nil Store, and for a file of another device, it returns nil.
func (s *Store) Acquire(fd int, created bool) *File {
	if s == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != s.dev {
		return nil // its inode number may be that of one of ours
	}
	now, err := look(fd)
	if err != nil || s.births && now.birthNs == 0 {
		return nil
	}
	s.mu.Lock()
	f := s.active[now.ino]
	if f != nil && f.birthNs == now.birthNs && !(f.refs == 0 && f.gone.Load()) {
		if f.refs == 0 {
			s.idle--
		}
		f.refs++
		f.uses.Add(1)
		s.mu.Unlock()
		f.mu.Lock()
		f.watchFrom(fd)
		f.mu.Unlock()
		return f
	}
	if f != nil && f.refs == 0 { // it belongs to a file that is gone
		s.idle--
		f.giveBack()
	}
	f = &File{store: s, key: now.ino, birthNs: now.birthNs, uid: st.Uid, refs: 1, words: make(table)}
	f.uses.Store(1)
	s.active[now.ino] = f
	f.mu.Lock()
	defer f.mu.Unlock()
	s.mu.Unlock()
	f.load(fd, created)
	return f
}

// watchFrom begins to watch the file, if nobody does yet. f.mu is held.
func (f *File) watchFrom(fd int) {
	if f.handle != "" {
		return
	}
	// EBADF: an O_PATH descriptor, through which nothing is written and nothing can be watched. Who opens the file begins to.
	if err := f.store.watch.add(f, fd); err != nil && err != unix.EBADF {
		f.store.unwatched(err)
	}
	if !f.alone(fd) {
		f.others.Add(1) // who had it open before
	}
}

// load begins with what the log has. f.mu is held.
func (f *File) load(fd int, created bool) {
	s := f.store
	f.watchFrom(fd)
	now, err := look(fd)
	f.stamp, f.known = now, err == nil
	if created || err != nil {
		return
	}
	f.sealed = !f.disturbed() && (s.fine || now.old())
	r := s.log.get(f.key)
	if r == nil || !now.sameBytes(r.stamp) {
		return
	}
	if !s.chunks.Take(f.uid, int64(len(r.words))) {
		s.counters.forgotten.Add(1)
		return
	}
	f.words, f.tail, f.top = r.words, r.tail, confirmed
	f.has.Store(len(f.words) > 0 || f.tail.word != 0)
	if r.boot != s.boot || r.stamp != now {
		// Of another boot, or in memory of another daemon's life. A power cut may have kept the sums and lost the bytes, or kept bytes that others wrote and lost
		// the time at which they did.
		f.limit(soft)
	}
}

// Release ends a use of f, which may be nil. fd is a descriptor of its file.
func (s *Store) Release(f *File, fd int) {
	if f == nil {
		return
	}
	if f.uses.Add(-1) == 0 {
		f.mu.Lock()
		if f.uses.Load() == 0 { // who uses it from now on begins to watch it
			s.watch.remove(f, fd)
		}
		f.mu.Unlock()
	}
	s.mu.Lock()
	// Where this use is the last, nobody else looks at its table.
	if f.refs == 1 && s.active[f.key] == f && (s.idle < mostIdle || len(f.words) > mostAtOnce) {
		f.refs = 0
		s.idle++
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.put(f)
}

// put saves a file's sums if they have changed, and drops one reference.
func (s *Store) put(f *File) {
	s.mu.Lock()
	last := f.refs == 1
	s.mu.Unlock()
	f.mu.Lock()
	if f.dirty && f.inFlux == 0 && !s.opts.Readonly && (last || len(f.words) <= mostSaved) {
		f.log()
	}
	f.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.refs--; f.refs > 0 {
		return
	}
	if s.active[f.key] == f {
		delete(s.active, f.key)
	}
	f.giveBack() // nobody else has it
}

// log appends the sums to the log. f.mu is held.
func (f *File) log() {
	s := f.store
	f.dirty = false
	if f.gone.Load() || !f.known || !f.has.Load() {
		s.failed(s.log.remove(f.key))
		return
	}
	s.failed(s.log.put(&record{f.stamp, s.boot, f.tail, f.words}))
}

// Removed says that an inode has lost its last name. A nil Store ignores it.
func (s *Store) Removed(ino uint64) {
	if s == nil || s.opts.Readonly {
		return
	}
	s.mu.Lock()
	f := s.active[ino]
	s.mu.Unlock()
	if f != nil {
		f.gone.Store(true)
	}
	s.failed(s.log.remove(ino))
}
