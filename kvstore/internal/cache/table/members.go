package table

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// members returns a bit for each process that has joined.
func (t *Table) members() uint64 { return t.m.LoadUint64(membersAt) }

// join makes this process a member, with the table's lock held.
func (t *Table) join() (err error) {
	broken := t.guard(func() {
		if t.m.LoadUint64(changingAt) != 0 {
			t.rebuild()
		}
		t.m.StoreUint64(changingAt, 1)
		for t.me = range mostMembers {
			var ok bool
			if ok, err = tryLock(t.fd, memberLock+int64(t.me)); ok || err != nil {
				break
			}
			if t.me == mostMembers-1 {
				err = fmt.Errorf("is used by %d processes already", mostMembers)
			}
		}
		if err == nil {
			if t.members()>>t.me&1 == 1 {
				t.takeOver(t.me, Now())
			}
			t.m.OrUint64(membersAt, 1<<t.me)
		}
		t.m.StoreUint64(changingAt, 0)
	})
	return errors.Join(broken, err)
}

// takeOver takes over the slots of a dead member. Its dirty blocks become this
// process's.
func (t *Table) takeOver(member int, now int64) {
	t.m.AndUint64(membersAt, ^(1 << member))
	for slot := range int32(t.p.slots) {
		t.m.AndUint64(t.headAt(slot)+pinsAt, ^(1 << member))
		m := t.mode(slot)
		if m.owner() != member+1 {
			continue
		}
		switch m.state() {
		case Loading, Lost:
			// A read that the dead process began may still write into this memory.
			if m.state() == Loading {
				t.remove(slot)
			}
			t.m.StoreUint64(t.headAt(slot)+sinceAt, uint64(now))
			t.setMode(slot, newMode(Lost, 0, 0, m.gen()))
		case Saving:
			t.Become(slot, Free)
		case Dirty:
			if m.doomed() {
				t.Become(slot, Free)
			} else {
				t.Become(slot, Dirty)
			}
		}
	}
}

// Reclaim looks for members that died, takes over what they had, and reports whether there
// were any. Mine then has blocks that are to be written. Inside Do.
func (t *Table) Reclaim(now int64) (died bool) {
	if !t.shared {
		return false
	}
	for member := range mostMembers {
		if member == t.me || t.members()>>member&1 == 0 {
			continue
		}
		if ok, err := tryLock(t.fd, memberLock+int64(member)); !ok || err != nil {
			continue
		}
		t.takeOver(member, now)
		unlock(t.fd, memberLock+int64(member))
		died = true
	}
	t.release(now)
	return died
}

// release frees the slots of dead members whose grace period is over.
func (t *Table) release(now int64) {
	for slot := range int32(t.p.slots) {
		m := t.mode(slot)
		if m.state() != Lost || m.owner() != 0 {
			continue
		}
		if since := int64(t.m.LoadUint64(t.headAt(slot) + sinceAt)); now-since >= int64(t.c.Grace) || now < since {
			t.setMode(slot, newMode(Free, 0, 0, m.gen()))
		}
	}
}

// Mine returns the dirty slots that this process owns, and their generations. Inside Do.
func (t *Table) Mine() map[int32]uint32 { return t.dirty(true) }

// Others reports whether another process has the table open. Inside Do.
func (t *Table) Others() bool { return t.shared && t.members()&^(1<<t.me) != 0 }

// Leave gives up everything that this process has, when nothing uses the memory any more.
// The last member to leave removes the object.
func (t *Table) Leave() error {
	if !t.shared {
		if t.name != "" {
			return shm.Remove(t.name)
		}
		return nil
	}
	err := t.Do(func() {
		t.Reclaim(Now())
		t.m.AndUint64(membersAt, ^(1 << t.me))
		for slot := range int32(t.p.slots) {
			t.Unpin(slot)
			m := t.mode(slot)
			if m.owner() != t.me+1 {
				continue
			}
			if m.state() == Dirty && !m.doomed() {
				t.Become(slot, Unsaved)
			} else {
				t.Become(slot, Free)
			}
		}
		if t.members() == 0 {
			shm.Remove(t.name)
		}
	})
	if errors.Is(err, ErrBroken) {
		return t.removeBroken()
	}
	return err
}

// removeBroken removes the name of a broken object, unless it names another object by now.
func (t *Table) removeBroken() error {
	var ours, named unix.Stat_t
	path := filepath.Join(shm.Dir, t.name)
	if unix.Fstat(t.fd, &ours) != nil || unix.Stat(path, &named) != nil || ours.Ino != named.Ino {
		return nil
	}
	return shm.Remove(t.name)
}
