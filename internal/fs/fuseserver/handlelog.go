package fuseserver

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// What clients have open is written to a log, before they learn that it is open, so that a successor can open it
// again under the same numbers.
const (
	handlesFile    = "mounthandles"
	handlesVersion = 1
	// leastHandleLog is the size from which the log is worth compacting, when it has trebled.
	leastHandleLog = 1 << 20
	// handleShift is above the handle numbers of one daemon; none is used twice in the life of a mount.
	handleShift = 40
	// handleRoom is what a byte of a record takes: the log may treble, and is written anew beside it.
	handleRoom = 4
)

// handleRecord says what a handle is. One with Closed has its number only.
type handleRecord struct {
	FH     uint64 `json:"fh"`
	Closed bool   `json:"closed,omitempty"`

	Unique uint64 `json:"unique,omitempty"` // of the request that opened it
	UID    uint32 `json:"uid,omitempty"`    // whom it is charged to
	// One of these.
	File    *tree.HandleState `json:"file,omitempty"`
	Dir     uint64            `json:"dir,omitempty"`
	Virtual *virtualRecord    `json:"virtual,omitempty"`
	// Or it is no handle, but the node that a request is about to exchange with another one, see handles.exchange.
	Exchange uint64 `json:"exchange,omitempty"`
	// How a file's bytes travel: the reply's flags and backing id, and with whose rights.
	Flags   uint32  `json:"flags,omitempty"`
	Backing int32   `json:"backing,omitempty"`
	Rights  backing `json:"rights,omitempty"`

	room int64 // taken from the user's share
}

type virtualRecord struct {
	Ino    uint64      `json:"ino"`
	Caller cred.Caller `json:"caller"`
	Handle uint64      `json:"handle,omitempty"` // from ControlDir.OpenDir
}

// passes reports whether the kernel reads and writes the file itself, and seen whether it sends
// this handle's writes to the daemon nevertheless.
func (r *handleRecord) passes() (passes, seen bool) {
	return r.Flags&fuse.FOPEN_PASSTHROUGH != 0, r.Flags&fuse.FOPEN_DIRECT_IO != 0
}

func (r *handleRecord) check() error {
	kinds := 0
	for _, is := range []bool{r.File != nil, r.Dir != 0, r.Virtual != nil, r.Exchange != 0} {
		if is {
			kinds++
		}
	}
	if kinds != 1 || r.FH == 0 {
		return fmt.Errorf("%w: no record of a handle", restart.ErrDamaged)
	}
	return nil
}

// handleLog is the log. A nil one keeps nothing.
type handleLog struct {
	log     *restart.Log
	state   *restart.Dir // has the room for it
	lost    func(error)
	failed  bool
	compact int64
}

// readHandles reads the log of a predecessor. After an error there is nothing in it.
func readHandles(state *restart.Dir) (*restart.Log, map[uint64]*handleRecord, error) {
	open := map[uint64]*handleRecord{}
	log, err := state.OpenLog(handlesFile, handlesVersion, func(b []byte) error { return readHandle(open, b) })
	if err != nil {
		clear(open)
	}
	return log, open, err
}

func readHandle(open map[uint64]*handleRecord, b []byte) error {
	var r handleRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%w: %w", restart.ErrDamaged, err)
	}
	if r.Closed {
		delete(open, r.FH)
		return nil
	}
	open[r.FH] = &r
	return r.check()
}

// take takes room for a handle's record, and reports whether there is any. Without, the handle ends with this daemon.
func (l *handleLog) take(r *handleRecord) bool {
	b, err := json.Marshal(r)
	if err != nil || !l.state.Take(r.UID, handleRoom*int64(len(b))) {
		return false
	}
	r.room = handleRoom * int64(len(b))
	return true
}

// append writes a record. The caller holds handles.mu.
func (l *handleLog) append(r *handleRecord, all func(yield func(*handleRecord) bool)) {
	if l == nil || l.failed {
		return
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = l.log.Append(b)
	}
	if err == nil && l.log.Bytes() > l.compact {
		err = l.rewrite(all)
	}
	if err != nil {
		l.failed = true
		l.lost(err)
	}
}

// rewrite leaves only what is open.
func (l *handleLog) rewrite(all func(yield func(*handleRecord) bool)) error {
	err := l.log.Compact(func(add func([]byte) error) error {
		for r := range all {
			b, err := json.Marshal(r)
			if err := errors.Join(err, add(b)); err != nil {
				return err
			}
		}
		return nil
	})
	l.compact = max(l.state.Small(leastHandleLog), 3*l.log.Bytes())
	return err
}
