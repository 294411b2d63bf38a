package settings

import (
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Options are the daemon's configuration of the settings. Start from Defaults:
// several zero values are meaningful and rarely wanted.
type Options struct {
	// DaemonUID may set sys keys, as root may.
	DaemonUID uint32
	// MaxUID is the highest uid that may set usr keys.
	MaxUID uint32
	// CheckRmRf turns on the guard against mistyped ln commands at rm-rf.
	CheckRmRf bool

	// MaxConcurrentTransmission is reported to clients; they may raise it up to
	// twice this.
	MaxConcurrentTransmission int
	PeriodicSync              bool
	PeriodicSyncInterval      time.Duration
	PeriodicSyncFlush         bool
	IOWorkersHigh             int
	IOWorkersLow              int
	MaxJobsPerRing            int
	IOJobDequeueTimeout       time.Duration

	ReadCache    bool
	Readonly     bool // for all users; no user can turn it off
	DryRunBench  bool
	FlushOnStat  bool
	SyncOnStat   bool
	AttrTimeout  time.Duration // this and the next three: 0 means no caching, 1 h is the maximum
	EntryTimeout time.Duration
	// NegativeTimeout delays when files created by another host become visible.
	NegativeTimeout time.Duration
	// SymlinkTimeout is how long a setting that was just set cannot be set again,
	// because the kernel keeps the name.
	SymlinkTimeout time.Duration
}

// longestTimeout bounds how long any setting lets the kernel keep something.
const longestTimeout = time.Hour

// Defaults returns the defaults of 3FS (8.2).
func Defaults() Options {
	return Options{
		DaemonUID: uint32(os.Geteuid()),
		MaxUID:    1_000_000,
		CheckRmRf: true,

		MaxConcurrentTransmission: 64,
		PeriodicSync:              true,
		PeriodicSyncInterval:      30 * time.Second,
		PeriodicSyncFlush:         true,
		IOWorkersHigh:             8,
		IOWorkersLow:              8,
		MaxJobsPerRing:            32,
		IOJobDequeueTimeout:       time.Millisecond,

		ReadCache:       true,
		FlushOnStat:     true,
		SyncOnStat:      true,
		AttrTimeout:     30 * time.Second,
		EntryTimeout:    30 * time.Second,
		NegativeTimeout: 5 * time.Second,
		SymlinkTimeout:  5 * time.Second,
	}
}

func (o Options) values() [keyCount]value {
	return [keyCount]value{
		maxConcurrentTransmission: value(max(o.MaxConcurrentTransmission, 1)),
		periodicSyncEnable:        fromBool(o.PeriodicSync),
		periodicSyncInterval:      value(max(o.PeriodicSyncInterval, 0)),
		periodicSyncFlush:         fromBool(o.PeriodicSyncFlush),
		ioWorkersHigh:             value(max(o.IOWorkersHigh, 0)),
		ioWorkersLow:              value(max(o.IOWorkersLow, 0)),
		maxJobsPerRing:            value(max(o.MaxJobsPerRing, 1)),
		ioJobDequeueTimeout:       value(max(o.IOJobDequeueTimeout, 0)),
		enableReadCache:           fromBool(o.ReadCache),
		readonly:                  fromBool(o.Readonly),
		dryrunBenchMode:           fromBool(o.DryRunBench),
		flushOnStat:               fromBool(o.FlushOnStat),
		syncOnStat:                fromBool(o.SyncOnStat),
		attrTimeout:               fromSeconds(min(o.AttrTimeout, longestTimeout)),
		entryTimeout:              fromSeconds(min(o.EntryTimeout, longestTimeout)),
		negativeTimeout:           fromSeconds(min(o.NegativeTimeout, longestTimeout)),
		symlinkTimeout:            fromSeconds(min(o.SymlinkTimeout, longestTimeout)),
	}
}

// Settings are the current values. All methods may be called concurrently;
// reading takes one atomic load and no lock.
type Settings struct {
	opts Options

	mu   sync.Mutex // held by writers, which replace now
	now  atomic.Pointer[state]
	keep func([]byte) error // see Keep
	// everybody are the keys that were set for all, with their texts. Guarded by mu.
	everybody map[string]string
}

// state is not changed once it is published. A change copies the map of users, which is
// cheap: few uids ever set something on one host.
type state struct {
	everybody [keyCount]value
	users     map[uint32]*own
}

// own holds the values that one uid has set for itself.
type own struct {
	set    [keyCount]bool
	values [keyCount]value // meaningful where set
}

// New returns settings with the values of o. Negative times and counts that are too
// small are raised to the smallest valid value.
func New(o Options) *Settings {
	s := &Settings{opts: o}
	s.now.Store(&state{everybody: o.values()})
	return s
}

// Get returns the value that applies to uid, as a TOML value. EINVAL: no such
// key.
func (s *Settings) Get(uid uint32, name string) (string, error) {
	k, ok := keyNamed(name)
	if !ok {
		return "", syscall.EINVAL
	}
	return format(k.kind(), s.effective(uid, k)), nil
}

// Set changes a usr key for the caller's uid or a sys key for the daemon.
//
// EINVAL: no such key, or a value out of its range. EPERM: the uid has no settings of its
// own, or may not set sys keys. EIO: the text is not a value of the key's type. After an
// error nothing has changed.
func (s *Settings) Set(caller uint32, name, text string) error {
	k, ok := keyNamed(name)
	switch {
	case !ok:
		return syscall.EINVAL
	case k.perUser() && caller > s.opts.MaxUID:
		return syscall.EPERM
	case !k.perUser() && caller != 0 && caller != s.opts.DaemonUID:
		return syscall.EPERM
	}
	v, err := s.check(k, text)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.now.Load()
	if !k.perUser() {
		next.everybody[k] = v
		if s.everybody == nil {
			s.everybody = map[string]string{}
		}
		s.everybody[name] = format(k.kind(), v)
		return s.publish(&next)
	}
	if k == readonly && v == 0 && next.everybody[readonly] != 0 {
		return syscall.EINVAL
	}
	mine := &own{}
	if before := next.users[caller]; before != nil {
		*mine = *before
	}
	mine.set[k], mine.values[k] = true, v
	next.users = maps.Clone(next.users)
	if next.users == nil {
		next.users = map[uint32]*own{}
	}
	next.users[caller] = mine
	return s.publish(&next)
}

// check parses text and checks it against the range of k.
func (s *Settings) check(k key, text string) (value, error) {
	v, err := parse(k.kind(), text)
	if err != nil {
		return 0, err
	}
	switch k {
	case maxConcurrentTransmission:
		if v < 1 || v > 2*value(max(s.opts.MaxConcurrentTransmission, 1)) {
			return 0, syscall.EINVAL
		}
	case maxJobsPerRing:
		if v < 1 {
			return 0, syscall.EINVAL
		}
	case attrTimeout, entryTimeout, negativeTimeout, symlinkTimeout:
		if v.asTimeout() > longestTimeout {
			return 0, syscall.EINVAL
		}
	}
	return v, nil
}

func (s *Settings) effective(uid uint32, k key) value {
	now := s.now.Load()
	v := now.everybody[k]
	if k == readonly && v != 0 {
		return v // also for a uid that turned it off before it was turned on for all
	}
	if mine := now.users[uid]; mine != nil && mine.set[k] {
		return mine.values[k]
	}
	return v
}

func (s *Settings) on(uid uint32, k key) bool { return s.effective(uid, k) != 0 }

// Readonly reports whether uid may not change files.
func (s *Settings) Readonly(uid uint32) bool { return s.on(uid, readonly) }

// AttrTimeout returns how long the kernel may keep attributes that uid requested.
func (s *Settings) AttrTimeout(uid uint32) time.Duration { return s.timeout(uid, attrTimeout) }

// EntryTimeout returns how long the kernel may keep a name that uid looked up.
func (s *Settings) EntryTimeout(uid uint32) time.Duration { return s.timeout(uid, entryTimeout) }

// NegativeTimeout returns how long the kernel may remember that a name is absent.
func (s *Settings) NegativeTimeout(uid uint32) time.Duration { return s.timeout(uid, negativeTimeout) }

// SymlinkTimeout returns how long the kernel may keep the reply to a symlink made in
// 3fs-virt.
func (s *Settings) SymlinkTimeout(uid uint32) time.Duration { return s.timeout(uid, symlinkTimeout) }

// timeout returns uid's own value, but at most the daemon-wide one: the kernel's caches
// are shared, so a longer value of one uid would apply to others.
func (s *Settings) timeout(uid uint32, k key) time.Duration {
	return min(s.effective(uid, k).asTimeout(), s.now.Load().everybody[k].asTimeout())
}

// CheckRmRf reports whether rm-rf checks the arguments of ln.
func (s *Settings) CheckRmRf() bool { return s.opts.CheckRmRf }
