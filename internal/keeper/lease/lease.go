package lease

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// ErrLost says that somebody else has the lease, or may take it: its former holder changes nothing
// more. ErrStale says that it was not renewed for half of its period: Renew takes it again if nobody has.
var (
	ErrLost  = errors.New("the lease is lost")
	ErrStale = errors.New("the lease was not renewed in time")
)

// checkHolds is for how long a Check holds, so that a holder that removes many small files does
// not ask the server twice for each.
const checkHolds = 100 * time.Millisecond

// Options of New.
type Options struct {
	// Period is how long a lease must not change before another host takes it. Renew it at least every
	// sixth of it. From a second to an hour.
	Period time.Duration

	// Local: what is written to the directory is seen by all who look, without an fsync: it is a local file system. That
	// may take long on a busy disk, and nothing has to survive the machine.
	Local bool

	// Dead reports that a holder is known to have ended, so that its lease may be taken at once. nil: nobody is.
	Dead func(Holder) bool

	// Me says who wants the lease. New sets its PID, if it is 0, and its Nonce.
	Me Holder

	// Now is a clock that never goes back, and goes on while the machine is suspended. nil: the kernel's.
	Now func() time.Duration
}

// Lease is one process's view of the lease of a directory: a watcher's, or the holder's. Its methods may be
// called concurrently.
type Lease struct {
	dir *os.Root
	Options

	mu   sync.Mutex
	seen sight // what a watcher saw last

	// Of the holder:
	token     uint64 // 0: not held
	file      fileID
	wrote     []byte // what the file has; nil where a full disk took nothing
	renewals  uint64
	renewedAt time.Duration // when the last renewal began that succeeded
	checkedAt time.Duration
	unchecked bool // no Check yet
	behind    time.Duration
}

// fileID tells a file from others that had its name.
type fileID struct{ dev, ino uint64 }

// sight is a lease's file as a watcher saw it.
type sight struct {
	token   uint64
	file    fileID
	mtimeNs int64
	content string
	since   time.Duration // for how long it has been like this
}

// New returns a view of the lease that the files of a directory are. It holds nothing yet.
func New(dir *os.Root, opts Options) (*Lease, error) {
	if opts.Now == nil {
		opts.Now = host.SinceBoot
	}
	if opts.Me.PID == 0 {
		opts.Me.PID = os.Getpid()
	}
	opts.Me.Nonce = rand.Text()
	l := &Lease{dir: dir, Options: opts}
	if _, err := l.record(1, 0, false).encode(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Lease) record(token, renewals uint64, released bool) record {
	return record{Token: token, Holder: l.Me, PeriodMs: l.Period.Milliseconds(), Renewals: renewals, Released: released}
}

// Standing is what Try found.
type Standing struct {
	Held    bool   // by this process, from now on
	Token   uint64 // of the lease that is in force; 0: there is none
	Holder  Holder // who has it; zero if that cannot be read
	Changed bool   // it was renewed since the last Try: its holder is alive
	Wait    time.Duration
}

// Try takes the lease if it may be taken. Where another one has it, Wait says after how long without a change
// it may be taken. An error says that the directory cannot be read or written.
func (l *Lease) Try() (Standing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token != 0 {
		return Standing{Held: true, Token: l.token, Holder: l.Me}, nil
	}
	tokens, err := l.list()
	if err != nil {
		return Standing{}, err
	}
	last := highest(tokens)
	if last == 0 {
		return l.takeLocked(0)
	}
	now := l.Now()
	is, err := l.look(last)
	if errors.Is(err, fs.ErrNotExist) {
		// Somebody takes it right now, or the list is old.
		l.seen = sight{}
		return Standing{Token: last, Changed: true, Wait: l.Period}, nil
	}
	if err != nil {
		return Standing{}, err
	}
	r, bad := decode([]byte(is.content))
	s := Standing{Token: last, Holder: r.Holder}
	period := l.Period
	if bad == nil {
		period = max(period, r.period())
	}
	if bad == nil && (r.Released || l.Dead != nil && l.Dead(r.Holder)) {
		return l.takeLocked(last)
	}
	is.since = l.seen.since
	if is != l.seen {
		s.Changed = l.seen.token == last
		is.since = now
		l.seen = is
	}
	if s.Wait = period - (now - is.since); s.Wait > 0 {
		return s, nil
	}
	return l.takeLocked(last)
}

// takeLocked takes the lease whose last token was so. Who was faster has it.
func (l *Lease) takeLocked(last uint64) (Standing, error) {
	token := last + 1
	if token > mostToken {
		return Standing{}, fmt.Errorf("%s/%s is the last name there is for a lease: stop all keepers of this directory and remove it", l.dir.Name(), nameOf(last))
	}
	content, err := l.record(token, 0, false).encode()
	if err != nil {
		return Standing{}, err
	}
	began := l.Now()
	f, err := l.dir.OpenFile(nameOf(token), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		l.seen = sight{}
		return Standing{Token: token, Changed: true, Wait: l.Period}, nil
	}
	if err != nil {
		return Standing{}, fmt.Errorf("take the lease: %w", err)
	}
	id, _, err := idOf(f)
	if err == nil {
		err = l.write(f, content)
	}
	if full(err) {
		// Its name says what matters.
		content, err = nil, errors.Join(f.Truncate(0), touch(f))
	}
	var behind time.Duration
	if err == nil {
		behind, err = age(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return Standing{}, errors.Join(fmt.Errorf("take the lease: %w", err), l.dir.Remove(nameOf(token)))
	}
	tokens, err := l.list()
	if err != nil {
		return Standing{}, errors.Join(err, l.dir.Remove(nameOf(token)))
	}
	if other := highest(tokens); other > token {
		l.seen = sight{}
		return Standing{Token: other, Changed: true, Wait: l.Period}, l.dir.Remove(nameOf(token))
	}
	// Only once its file is gone has the former holder lost the lease.
	if err := l.removeLower(tokens, token); err != nil {
		return Standing{}, errors.Join(err, l.dir.Remove(nameOf(token)))
	}
	l.token, l.file, l.wrote, l.renewals, l.renewedAt, l.unchecked = token, id, content, 0, began, true
	l.behind = behind
	return Standing{Held: true, Token: token, Holder: l.Me}, nil
}

func (l *Lease) removeLower(tokens []uint64, than uint64) error {
	for _, t := range tokens {
		if t >= than {
			continue
		}
		if err := l.dir.Remove(nameOf(t)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the lease of the former holder: %w", err)
		}
	}
	return nil
}

// Token returns the fencing token of the lease while this process holds it, 0 otherwise.
func (l *Lease) Token() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// Renew tells others that the holder is alive. A lease that has become stale it takes anew, with the next
// token, if nobody was faster. ErrLost: the process does not hold the lease. After another error it
// does, until the lease is stale, and should try again soon.
func (l *Lease) Renew() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == 0 {
		return ErrLost
	}
	began := l.Now()
	tokens, err := l.list()
	if err != nil {
		return err
	}
	if other := highest(tokens); other > l.token {
		return l.loseLocked("token %d has been given since", other)
	}
	if began-l.renewedAt > l.Period/2 {
		return l.retakeLocked()
	}
	if err := l.overwriteLocked(false); err != nil {
		return err
	}
	l.renewedAt = began
	return l.removeLower(tokens, l.token)
}

// retakeLocked takes a stale lease anew. Somebody may just be taking it, having seen it unchanged: a renewal
// would come too late, but the next file only one of them can make.
func (l *Lease) retakeLocked() error {
	f, err := l.openLocked(os.O_RDONLY)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return err
	}
	was := l.token
	s, err := l.takeLocked(was)
	if err == nil && !s.Held {
		err = l.loseLocked("token %d has been given since", s.Token)
	}
	return err
}

// overwriteLocked writes the file of the lease anew.
func (l *Lease) overwriteLocked(released bool) error {
	content, err := l.record(l.token, l.renewals+1, released).encode()
	if err != nil {
		return err
	}
	f, err := l.openLocked(os.O_RDWR)
	if err != nil {
		return err
	}
	err = l.write(f, content)
	switch {
	case err == nil:
		l.wrote = content
	case full(err):
		// On a file system that never overwrites, such as Btrfs. What it has is what it had.
		err = touch(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	l.renewals++
	return nil
}

// Check returns nil if this process holds the lease, as far as can be told: call it right before
// each change. ErrLost, ErrStale, or an error of the directory: change nothing.
func (l *Lease) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == 0 {
		return ErrLost
	}
	now := l.Now()
	if now-l.renewedAt > l.Period/2 {
		return ErrStale
	}
	if !l.unchecked && now-l.checkedAt < checkHolds {
		return nil
	}
	f, err := l.openLocked(os.O_RDONLY)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	l.checkedAt, l.unchecked = now, false
	return nil
}

// openLocked opens the file of the lease and sees whether it is still this process's.
func (l *Lease) openLocked(how int) (*os.File, error) {
	f, err := l.dir.OpenFile(nameOf(l.token), how, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESTALE):
		return nil, l.loseLocked("its file is gone")
	case err != nil:
		return nil, err
	}
	id, st, err := idOf(f)
	var content []byte
	if err == nil {
		content, err = read(f)
	}
	switch {
	case errors.Is(err, unix.ESTALE):
		err = l.loseLocked("its file is gone")
	case err == nil && (id != l.file || st.Nlink == 0):
		err = l.loseLocked("its file was replaced")
	case err == nil && !l.mine(content):
		err = l.loseLocked("its file was overwritten")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// mine reports whether content is this process's, be it that of a renewal that was not acknowledged.
func (l *Lease) mine(content []byte) bool {
	if len(content) == 0 {
		return l.wrote == nil
	}
	r, err := decode(content)
	return err == nil && r.Holder.Nonce == l.Me.Nonce && r.Token == l.token
}

func (l *Lease) loseLocked(why string, args ...any) error {
	err := fmt.Errorf("%w: token %d: %s", ErrLost, l.token, fmt.Sprintf(why, args...))
	l.token, l.seen = 0, sight{}
	return err
}

// Release gives the lease back, so that nobody has to wait for its period. It may be called
// without one.
func (l *Lease) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == 0 {
		return nil
	}
	err := l.overwriteLocked(true)
	l.token, l.seen = 0, sight{}
	if errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// list returns the tokens of all lease files.
func (l *Lease) list() (tokens []uint64, err error) {
	d, err := l.dir.Open(".")
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if t, ok := parseName(name); ok {
				tokens = append(tokens, t)
			}
		}
		if err == io.EOF {
			return tokens, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list leases: %w", err)
		}
	}
}

func highest(tokens []uint64) (top uint64) {
	for _, t := range tokens {
		top = max(top, t)
	}
	return top
}

// look returns the file with a token as it is now.
func (l *Lease) look(token uint64) (sight, error) {
	f, err := l.dir.Open(nameOf(token))
	if err != nil {
		return sight{}, stale(err)
	}
	defer f.Close()
	id, _, err := idOf(f)
	if err != nil {
		return sight{}, stale(err)
	}
	fi, err := f.Stat()
	if err != nil {
		return sight{}, stale(err)
	}
	content, err := read(f)
	if err != nil {
		return sight{}, stale(err)
	}
	return sight{token: token, file: id, mtimeNs: fi.ModTime().UnixNano(), content: string(content)}, nil
}

// stale says of a file that another host has removed that it does not exist.
func stale(err error) error {
	if errors.Is(err, unix.ESTALE) {
		return errors.Join(err, fs.ErrNotExist)
	}
	return err
}

func idOf(f *os.File) (id fileID, st unix.Stat_t, err error) {
	for {
		if err = unix.Fstat(int(f.Fd()), &st); err != unix.EINTR {
			break
		}
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%s is no regular file: remove it", f.Name())
	}
	return fileID{st.Dev, st.Ino}, st, err
}

// read returns the content of a lease's file, and a byte more of one that is too long.
func read(f *os.File) ([]byte, error) { return io.ReadAll(io.LimitReader(f, recordBytes+1)) }

// write puts content into a file in place, for others to see.
func (l *Lease) write(f *os.File, content []byte) error {
	_, err := f.WriteAt(content, 0)
	if err == nil && !l.Local {
		err = f.Sync()
	}
	return err
}

// touch sets a file's mtime, by the server's clock where the server has one.
func touch(f *os.File) error {
	return unix.UtimesNanoAt(int(f.Fd()), "", nil, unix.AT_EMPTY_PATH)
}

// age returns how old a file looks that has just been written.
func age(f *os.File) (time.Duration, error) {
	now := time.Now()
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return now.Sub(fi.ModTime()), nil
}

// Behind returns by how much the clock that gives files their mtimes was behind this host's when the lease
// was taken; negative: ahead. It is at most too large by what writing took.
func (l *Lease) Behind() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.behind
}

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
