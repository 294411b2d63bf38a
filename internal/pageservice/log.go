package pageservice

import "context"

// Log makes the changes of an index durable, in order. It separates the index from the
// place where its state is kept; package journal keeps it in a local file.
//
// Start is called once, before anything else but SizeBytes and Close. Afterwards
// Append and the functions that it returns may be called at once, from any goroutine,
// and Close from one of them. Package indextest holds the tests that every Log passes.
type Log interface {
	// SizeBytes returns about how many bytes of records Start will read, so that the
	// index can size its tables; 0 where that is unknown.
	SizeBytes() int64

	// Start reads the log, passes it to the owner, and then accepts writes. While it
	// runs, and until Close, no other process can start the same log: the error says
	// which process has it. An error that wraps ErrCorrupt means that the log is
	// damaged; then nothing was written to it. After any error the log holds nothing,
	// and only Close may be called.
	//
	// A log that several hosts share has one leader. Start returns once this host leads and
	// has passed on everything that was written before, however long another host leads
	// until then; meanwhile it passes on records as they come. When another host has taken
	// the lead, every later Append fails with ErrDemoted.
	//
	// Close may be called while Start runs. Start then returns ErrClosed.
	Start(LogOwner) error

	// Append queues records that become durable together, and returns at once. The log
	// owns the records from then on.
	//
	// done is called exactly once, with the outcome, from a goroutine of the log or
	// from wait; calls follow the order of Append, except for writes that wait gave up.
	// done may take locks of its owner, but must not wait for the log.
	//
	// After nil, the records survive the loss of power, and Start will read them after
	// all that were appended before. After an error, Start will not read them, and later
	// writes may succeed. If a Log cannot tell which of the two holds, it reports an
	// error and fails every later write until it is started again; Start then finds
	// out. After Close, the outcome is ErrClosed.
	//
	// wait returns the outcome. A caller that needs no outcome need not call it. When
	// ctx ends first, wait returns the error of ctx: a write that was still queued is
	// given up, and one that had begun continues, and only done gets its outcome.
	// For an Append after Close, done is called by wait.
	Append(done func(error), recs ...[]byte) (wait func(ctx context.Context) error)

	// Close finishes the writes that were queued, and releases the log. Further calls
	// do nothing.
	Close() error
}

// Limited is a Log whose store may become too full for more, although it still takes what ends or completes what
// is there. Room is cheap, and may be called at once with everything else. Its error says why
// nothing new may be logged now, and wraps ErrUnavailable: no rank is made known, and no page reserved.
type Limited interface {
	Room() error
}

// LogOwner is what a Log calls back. Keep and LiveBytes are called after Start, by one goroutine
// at a time; the others during Start, in the goroutine of its caller.
type LogOwner struct {
	// Replay receives every record, oldest first; rec is valid during the call only.
	// An error means that the owner did not write this record: the log is damaged.
	Replay func(rec []byte) error

	// Snapshot, StateHash, Whole and Reset are called between calls of Replay, and before Missing
	// and Replayed. A log that keeps every record calls none of them.
	//
	// Snapshot passes to emit the records that give an empty owner the state that the replayed
	// ones gave. Equal states give equal records, in the same order. A record has at most
	// SnapshotRecordBytes, and emit keeps it if it likes. The error of emit ends it.
	Snapshot func(emit func(rec []byte) error) error

	// StateHash is equal for equal states, whether they came from a snapshot or from all
	// records, and on every host.
	StateHash func() uint64

	// Whole reports whether the owner still has everything that it was told. It is false after
	// the owner forgot some for lack of memory: then Snapshot and StateHash say nothing of the
	// log, and another host should lead. It may lead nevertheless: what it forgot are misses until
	// a host leads that has it.
	Whole func() bool

	// Reset makes the owner forget all that was replayed: the log begins again, from a snapshot.
	Reset func()

	// Missing is called after the last record if some that were acknowledged may be
	// missing; cause names the log and says why. Until the next write succeeds, the log
	// remembers that. So the owner writes what it makes of it at once and in one Append.
	Missing func(cause string)

	// Replayed is called after that. An error means that the log is damaged. What the owner
	// does not know of its last life, such as who uses a page, it bounds from this moment on.
	Replayed func() error

	// Keep returns what the owner still needs of the oldest record, as new records that
	// the log appends before it drops the old one. It is called after the outcome of all
	// earlier writes was passed to done, and before any later write is durable; rec is
	// valid during the call only. An owner that begins behind the old record, with the new ones, has
	// the StateHash of one that was passed all of them.
	Keep func(rec []byte) [][]byte

	// LiveBytes returns about how many bytes a log without waste would have.
	LiveBytes func() int64
}

// SnapshotRecordBytes is the length that no record of LogOwner.Snapshot exceeds.
const SnapshotRecordBytes = 128 << 10
