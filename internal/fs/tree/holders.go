package tree

import "github.com/kv3fs/kv3fs/internal/invariants"

// A node is kept for as long as the kernel knows the file, which is the doing of those who
// look at files. So each node is charged to the user that made the kernel look first.

// Charge charges a node that an Entry said is new to a user.
func (t *Tree) Charge(id uint64, uid uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.byID.get(id); ok && n != t.root && t.chargeLocked(n, uid) {
		t.keepAboveLocked(n)
	}
}

// Uses is for a user that opens a file or directory which was charged to another: if that one had no room for it, this one may.
func (t *Tree) Uses(id uint64, uid uint32) {
	t.mu.RLock()
	n, ok := t.byID.get(id)
	unkept := ok && n.unkept
	t.mu.RUnlock()
	if unkept {
		t.Charge(id, uid)
	}
}

// heldLocked counts nodes that are charged to a user.
func (t *Tree) heldLocked(uid uint32, by int) {
	t.held[uid] += by
	invariants.Check(t.held[uid] >= 0, "user %d holds %d nodes", uid, t.held[uid])
	if t.held[uid] == 0 {
		delete(t.held, uid)
	}
}

// dischargeLocked takes back Charge when a node is dropped.
func (t *Tree) dischargeLocked(n *node) {
	t.nodes.Add(-1)
	t.dropped.Add(1)
	if n.charged {
		t.returnRoomLocked(n)
		t.heldLocked(n.uid, -1)
	}
}

// Held returns how many nodes are charged to a user.
func (t *Tree) Held(uid uint32) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.held[uid]
}

// Dropped returns how many nodes the kernel has forgotten so far.
func (t *Tree) Dropped() uint64 { return t.dropped.Load() }

// Idle is a node that nobody but the kernel's cache may be using.
type Idle struct {
	ID   uint64
	Name Name // one of its names
	File bool // a regular file
}

// Idle returns up to most nodes that no place is in and whose bytes are not in use. If one
// user holds more than share nodes, they are of the user that holds most. from is where the
// last call has ended, at first 0; the walk goes round.
func (t *Tree) Idle(most, share int, from uint64) (idle []Idle, next uint64) {
	uid, only := t.greediest(share)
	for range indexShards {
		idle = t.idleOf(idle, most, &t.byID.shards[from%indexShards], uid, only)
		from++
		if len(idle) == most {
			break
		}
	}
	return idle, from
}

// greediest returns the user that holds most nodes, if there are more than share.
func (t *Tree) greediest(share int) (uid uint32, found bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for u, n := range t.held {
		if n > share {
			uid, share, found = u, n, true
		}
	}
	return uid, found
}

// idleOf appends the idle nodes of one shard.
func (t *Tree) idleOf(idle []Idle, most int, s *indexShard[uint64, *node], uid uint32, only bool) []Idle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.m {
		if len(idle) == most {
			break
		}
		if n == t.root || n.children > 0 || only && n.uid != uid || n.open.Load() != nil {
			continue
		}
		idle = append(idle, Idle{ID: n.id, Name: nameOf(n.parent, n.name), File: n.regular()})
	}
	return idle
}
