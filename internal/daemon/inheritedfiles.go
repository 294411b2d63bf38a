package daemon

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/logpace"
)

// grants keeps, in a log, which files clients have open through the mount, since rings may use these without asking again. After
// a restart without the mount it makes such a grant of the last daemon hold when a ring first needs it, and for as long as
// the user has registrations that the last daemon has left. nil keeps nothing.
type grants struct {
	log  *slog.Logger
	pace logpace.Pace

	dir *restart.Dir // has the room for them

	mu    sync.Mutex
	kept  *restart.Log
	live  map[uint64][]byte // records by id
	bytes int64             // of live
	last  uint64
	left  bool // to a successor
	// inherited are the last daemon's, by inode number.
	inherited map[uint64][]*inheritedGrant
}

type inheritedGrant struct {
	id      uint64
	grant   tree.Grant
	tried   chan struct{} // closed once it was tried; nil: nobody has begun
	release func()        // nil: it does not hold
	ended   bool          // it is not to hold any more
}

const (
	grantsFile    = "files"
	grantsVersion = 1

	grantBegins = 'G'
	grantEnds   = 'E'

	// The log is written anew when it is larger than this, and twice as large as what holds.
	compactGrantsBytes = 1 << 20
	// grantRoom is what a byte of a record takes: once, as garbage, and once more while the log is written anew.
	grantRoom = 3
)

// newGrants reads what the last daemon has left, which counts only if its mount has ended: the open files of one that goes on
// are known otherwise.
func newGrants(dir *restart.Dir, sameMount bool, log *slog.Logger) (*grants, error) {
	if dir == nil {
		return nil, nil
	}
	g := &grants{log: log, dir: dir, live: map[uint64][]byte{}, inherited: map[uint64][]*inheritedGrant{}}
	var err error
	g.kept, err = dir.OpenLog(grantsFile, grantsVersion, g.replay)
	if g.kept == nil {
		g.said(errors.Join(err, dir.Remove(grantsFile)))
		return nil, nil
	}
	if err != nil {
		log.Warn("which files clients had open was given up: requests of rings for them fail with EBADF until they are opened again", "err", err)
	}
	if err != nil || sameMount {
		g.live, g.bytes, g.inherited = map[uint64][]byte{}, 0, map[uint64][]*inheritedGrant{}
	}
	for id, record := range g.live {
		grant, err := decodeGrant(record)
		if err != nil {
			return nil, errors.Join(err, g.kept.Close()) // it was decoded before
		}
		g.inherited[grant.Ino] = append(g.inherited[grant.Ino], &inheritedGrant{id: id, grant: grant})
	}
	for id, record := range g.live {
		if uid, ok := userOf(record); !ok || !dir.Take(uid, grantRoom*int64(len(record))) {
			g.bytes -= int64(len(record))
			delete(g.live, id) // it holds for this daemon
		}
	}
	g.said(g.compact()) // in vain it is the log of before, which says the same
	return g, nil
}

// replay applies a record.
func (g *grants) replay(record []byte) error {
	const head = 9
	if len(record) < head {
		return fmt.Errorf("%d bytes: %w", len(record), restart.ErrDamaged)
	}
	id := binary.LittleEndian.Uint64(record[1:])
	g.last = max(g.last, id)
	switch record[0] {
	case grantBegins:
		record = append([]byte(nil), record...)
		if _, err := decodeGrant(record); err != nil {
			return err
		}
		g.drop(id)
		g.live[id] = record
		g.bytes += int64(len(record))
	case grantEnds:
		g.drop(id)
	default:
		return fmt.Errorf("a record of kind %d: %w", record[0], restart.ErrDamaged)
	}
	return nil
}

func (g *grants) drop(id uint64) {
	g.bytes -= int64(len(g.live[id]))
	delete(g.live, id)
}

func recordOf(kind byte, id uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{kind}, id)
}

func decodeGrant(record []byte) (grant tree.Grant, err error) {
	const head = 9
	if err = json.Unmarshal(record[head:], &grant); err != nil {
		err = fmt.Errorf("%w: %w", err, restart.ErrDamaged)
	}
	return grant, err
}

// userOf returns the user of a record that was decoded before.
func userOf(record []byte) (uid uint32, ok bool) {
	grant, err := decodeGrant(record)
	return grant.UID, err == nil
}

// Granted implements tree.Grants.
func (g *grants) Granted(grant tree.Grant) (id uint64) {
	text, err := json.Marshal(grant)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	if err == nil {
		record := append(recordOf(grantBegins, g.last), text...)
		if !g.dir.Take(grant.UID, grantRoom*int64(len(record))) {
			return g.last
		}
		g.live[g.last] = record
		g.bytes += int64(len(record))
		err = g.kept.Append(record)
	}
	g.said(err)
	return g.last
}

// Ended implements tree.Grants.
func (g *grants) Ended(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endLocked(id)
}

func (g *grants) endLocked(id uint64) {
	record := g.live[id]
	if g.left || record == nil {
		return
	}
	if uid, ok := userOf(record); ok {
		g.dir.Return(uid, grantRoom*int64(len(record)))
	}
	g.drop(id)
	err := g.kept.Append(recordOf(grantEnds, id))
	if size := g.kept.Bytes(); err == nil && size > g.dir.Small(compactGrantsBytes) && size > 2*g.bytes {
		err = g.compact()
	}
	g.said(err)
}

func (g *grants) said(err error) {
	if err == nil {
		return
	}
	if more, now := g.pace.Log("grants"); now {
		g.log.Warn("after a restart, rings may not be able to use files that are opened now", "err", err, "cure", "make room in the directory of --restart-state", "more", more)
	}
}

func (g *grants) compact() error {
	return g.kept.Compact(func(add func([]byte) error) error {
		for _, record := range g.live {
			if err := add(record); err != nil {
				return err
			}
		}
		return nil
	})
}

// regrant makes the grants of a file hold that the last daemon has left, and reports whether any does: then the file may be lent now.
// hold is tree.Regrant. It may hang with the data directory, so nobody who opens or closes another file waits for it.
func (g *grants) regrant(ino uint64, hold func(tree.Grant) (release func(), err error)) (again bool) {
	if g == nil {
		return false
	}
	g.mu.Lock()
	all := slices.Clone(g.inherited[ino])
	g.mu.Unlock()
	for _, i := range all {
		if g.holds(i, hold) {
			again = true
		}
	}
	return again
}

// holds has a grant hold, once, and reports whether it does. It returns when whoever tries it has an answer.
func (g *grants) holds(i *inheritedGrant, hold func(tree.Grant) (release func(), err error)) bool {
	g.mu.Lock()
	if tried := i.tried; tried != nil {
		g.mu.Unlock()
		<-tried
		g.mu.Lock()
		defer g.mu.Unlock()
		return i.release != nil
	}
	i.tried = make(chan struct{})
	g.mu.Unlock()
	defer close(i.tried)
	release, err := hold(i.grant)
	if err != nil {
		g.log.Info("a file that a client had open before the restart is not there any more", "path", string(i.grant.Path), "uid", i.grant.UID, "err", err)
		return false
	}
	g.mu.Lock()
	ended := i.ended
	if !ended {
		i.release = release
	}
	g.mu.Unlock()
	if ended {
		release()
	}
	return !ended
}

// forgetInherited ends the grants of the last daemon, whose mount goes on: what is open there is known otherwise.
func (g *grants) forgetInherited() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, all := range g.inherited {
		for _, i := range all {
			i.ended = true
			g.endLocked(i.id)
		}
	}
	clear(g.inherited)
}

// leave leaves what holds to a successor: it does not end with this mount.
func (g *grants) leave() {
	if g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.left = true
	}
}

// keepOnly ends the inherited grants of users who inherit nothing.
func (g *grants) keepOnly(inherits func(uid uint32) bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	var releases []func()
	for ino, all := range g.inherited {
		kept := all[:0]
		for _, i := range all {
			if inherits(i.grant.UID) {
				kept = append(kept, i)
				continue
			}
			i.ended = true
			g.endLocked(i.id)
			if i.release != nil {
				releases = append(releases, i.release)
			}
		}
		if g.inherited[ino] = kept; len(kept) == 0 {
			delete(g.inherited, ino)
		}
	}
	g.mu.Unlock()
	for _, release := range releases {
		release()
	}
}

// close releases what holds, and leaves the log.
func (g *grants) close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, all := range g.inherited {
		for _, i := range all {
			i.ended = true
			if i.release != nil {
				i.release()
			}
		}
	}
	return g.kept.Close()
}

// mayBeInherited reports whether a file could not be lent because this daemon does not know who has it open.
func mayBeInherited(err error) bool { return err == unix.EBADF || err == unix.EACCES }
