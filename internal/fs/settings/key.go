package settings

import "strings"

// key is a setting's place in the list. The order is part of the protocol:
// inode numbers are counted from it.
type key int

// The keys, each with what kv3fs does with it. A key that is only stored can be set and
// read back, because clients and scripts of 3FS do so, but has no effect.
const (
	// Only stored: no RDMA happens between client and daemon.
	maxConcurrentTransmission key = iota
	// Only stored, all three: a write is visible in the file's attributes when it
	// completes, so there is nothing to bring up to date periodically.
	periodicSyncEnable
	periodicSyncInterval
	periodicSyncFlush
	// Only stored, both: the ring server has a fixed number of workers.
	ioWorkersHigh
	ioWorkersLow
	// Only stored: the ring server itself bounds what one worker takes from a ring,
	// by count and by bytes.
	maxJobsPerRing
	// Only stored: no worker of the ring server waits for a queue with a timeout.
	ioJobDequeueTimeout

	// Only stored: bytes are cached once, in the page cache of the data directory.
	enableReadCache
	// The mount, rm-rf and the ring server obey it: they answer EROFS to whatever would
	// change a file. The control directory stays usable.
	readonly
	// Only stored: reads and writes always move bytes.
	dryrunBenchMode
	// Only stored, both: stat is exact without flushing or syncing anything.
	flushOnStat
	syncOnStat
	// The mount obeys all four: how long the kernel may keep attributes, names, the
	// absence of a name, and the replies to creating a symlink in 3fs-virt. A uid's
	// own value applies up to the daemon-wide one.
	attrTimeout
	entryTimeout
	negativeTimeout
	symlinkTimeout

	keyCount
)

// kind is the type of a setting's value.
type kind uint8

const (
	boolean  kind = iota
	integer       // a count
	seconds       // a floating-point number of seconds
	duration      // an integer with a unit, in quotes
)

func (k key) name() string {
	return [keyCount]string{
		maxConcurrentTransmission: "sys.storage.net_client.rdma_control.max_concurrent_transmission",
		periodicSyncEnable:        "sys.periodic_sync.enable",
		periodicSyncInterval:      "sys.periodic_sync.interval",
		periodicSyncFlush:         "sys.periodic_sync.flush_write_buf",
		ioWorkersHigh:             "sys.io_worker_coros.hi",
		ioWorkersLow:              "sys.io_worker_coros.lo",
		maxJobsPerRing:            "sys.max_jobs_per_ioring",
		ioJobDequeueTimeout:       "sys.io_job_deq_timeout",
		enableReadCache:           "usr.enable_read_cache",
		readonly:                  "usr.readonly",
		dryrunBenchMode:           "usr.dryrun_bench_mode",
		flushOnStat:               "usr.flush_on_stat",
		syncOnStat:                "usr.sync_on_stat",
		attrTimeout:               "usr.attr_timeout",
		entryTimeout:              "usr.entry_timeout",
		negativeTimeout:           "usr.negative_timeout",
		symlinkTimeout:            "usr.symlink_timeout",
	}[k]
}

func (k key) kind() kind {
	switch k {
	case maxConcurrentTransmission, ioWorkersHigh, ioWorkersLow, maxJobsPerRing:
		return integer
	case periodicSyncInterval, ioJobDequeueTimeout:
		return duration
	case attrTimeout, entryTimeout, negativeTimeout, symlinkTimeout:
		return seconds
	}
	return boolean
}

// perUser reports whether k is a usr key rather than a sys key.
func (k key) perUser() bool { return k >= enableReadCache }

// keyNamed finds a key by its full name, prefix included.
func keyNamed(name string) (key, bool) {
	for k := range keyCount {
		if k.name() == name {
			return k, true
		}
	}
	return 0, false
}

// Keys returns the names of all settings in protocol order. Inode numbers follow from a
// name's position in it.
func Keys() []string {
	names := make([]string, keyCount)
	for k := range keyCount {
		names[k] = k.name()
	}
	return names
}

// PerUser reports whether each uid has its own value of the setting name.
func PerUser(name string) bool { return strings.HasPrefix(name, "usr.") }
