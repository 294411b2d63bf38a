package fuseserver

import (
	"errors"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// Recalled is what a predecessor's clients have open. Rings may use its files from Recall on.
type Recalled struct {
	tree  *tree.Tree
	state *restart.Dir
	log   *restart.Log
	err   error // why the mount cannot be taken over
	open  map[uint64]*recalledHandle
}

// recalledHandle is one of them. Without file and dir it is virtual, or what it was is gone.
type recalledHandle struct {
	record *handleRecord
	file   *tree.Handle
	dir    *tree.Dir
}

// Recall opens again what clients of a predecessor have open, as far as it is still there. state is the tree's. The caller
// passes what it returns to New, and calls Close in any case.
func Recall(t *tree.Tree, state *restart.Dir) (*Recalled, error) {
	log, records, err := readHandles(state)
	if log == nil {
		return nil, err
	}
	_, nodes := t.Recalled()
	r := &Recalled{tree: t, state: state, log: log, err: errors.Join(nodes, err), open: map[uint64]*recalledHandle{}}
	for fh, record := range records {
		h := &recalledHandle{record: record}
		switch {
		case record.File != nil:
			h.file, _ = t.Reopen(*record.File)
		case record.Dir != 0:
			h.dir, _ = t.OpenDir(record.Dir)
		}
		r.open[fh] = h
	}
	return r, nil
}

// pass prepares the files that the kernel reads and writes itself.
func (r *Recalled) pass() {
	for _, h := range r.open {
		if passes, seen := h.record.passes(); passes && h.file != nil {
			h.file.Passed(seen)
		}
	}
}

// drop is called when the mount is not taken over.
func (r *Recalled) drop() {
	r.Close()
	r.tree.ForgetPredecessors()
}

func (h *recalledHandle) close() {
	if h.file != nil {
		h.file.Close()
	}
	if h.dir != nil {
		h.dir.Close()
	}
}

// Close closes what no mount has taken over, because the daemon does not begin to serve. A successor still learns of it.
func (r *Recalled) Close() {
	if r == nil {
		return
	}
	for fh, h := range r.open {
		h.close()
		delete(r.open, fh)
	}
}

// Discard removes what a predecessor has left of its mount, which has ended.
func Discard(state *restart.Dir) error {
	return errors.Join(Forsake(state), state.Remove(handlesFile))
}

// Forsake has no successor take the mount over, because it would not know all that is open.
func Forsake(state *restart.Dir) error { return state.Remove(recordFile) }
