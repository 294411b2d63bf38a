package ringserver

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// SemPrefix begins the names of the submit semaphores (4.4), in /dev/shm after
// "sem.".
const SemPrefix = "hf3fs-submit-ios."

// submitSems holds the submit semaphores. Each user has three of its own, one for each
// priority, which nobody else can open: whatever a process writes into a semaphore, it
// harms only its own user.
//
// A set is made when its user first reads a submit link. It is awaited while the user has
// rings, which pin it.
type submitSems struct {
	log      *slog.Logger
	legacy   *legacy
	maxUsers int
	run      string // part of all names: see newRunName
	waiters  [3]*submitWaiter

	repairs sync.WaitGroup
	quit    chan struct{} // ends the pauses before repairs

	mu    sync.Mutex
	users map[uint32]*submitUser
	sets  int // users with semaphores
	reads uint64
	ended bool
}

// submitUser is a user with semaphores, with rings, or with both.
type submitUser struct {
	sems [3]*submitSem // all nil, or none
	pins int           // registered rings
	read uint64        // when a link was last read, in reads of links
}

// defaultMaxRingUsers is the default of Options.MaxRingUsers: each user takes three
// descriptors and three mappings.
func defaultMaxRingUsers() int {
	const most, least, part = 4096, 64, 16
	n := most
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur/part < most {
		n = int(files.Cur / part)
	}
	return max(n, least)
}

// newSubmitSems returns a submitSems for at most maxUsers users, root not counted.
func newSubmitSems(log *slog.Logger, maxUsers int) *submitSems {
	return newSubmitSemsFor(log, maxUsers, shm.CanWaitForMany())
}

func newSubmitSemsFor(log *slog.Logger, maxUsers int, waitForMany bool) *submitSems {
	s := &submitSems{log: log, maxUsers: maxUsers, run: newRunName(), quit: make(chan struct{}), users: map[uint32]*submitUser{}}
	for i := range s.waiters {
		s.waiters[i] = newSubmitWaiter(waitForMany, s.repair)
	}
	return s
}

// newRunName returns the first part of a random UUID. All semaphores of a daemon have it
// in their names, so that the next daemon can remove them if this one is killed.
func newRunName() string {
	const groups = len("01234567-0123-0123-")
	return wire.NewUUID().String()[:groups]
}

// namePrefix begins the names of the objects in /dev/shm.
func (s *submitSems) namePrefix() string { return "sem." + SemPrefix + s.run }

func (s *submitSems) waiter(p wire.Priority) *submitWaiter { return s.waiters[int(p)+1] }

// link returns the path of a user's semaphore. It creates the user's set if there is none,
// and replaces a semaphore that its user has spoilt in a way that new clients would meet.
//
// EMFILE: too many users have rings. EPERM: a daemon without privileges serves its own
// user only. ENOSPC: /dev/shm is full. ESHUTDOWN: the daemon is stopping.
func (s *submitSems) link(uid uint32, p wire.Priority) (string, error) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return "", syscall.ESHUTDOWN
	}
	u := s.users[uid]
	if u == nil || u.sems[0] == nil {
		var err error
		if u, err = s.createSet(uid); err != nil {
			return "", errnoOf(err)
		}
	}
	s.reads++
	u.read = s.reads
	i := int(p) + 1
	if !u.sems[i].Usable() {
		again, err := s.create(uid)
		if err != nil {
			return "", errnoOf(err)
		}
		before := u.sems[i]
		u.sems[i] = again
		s.keepSet(uid, u.sems)
		if u.pins > 0 {
			s.waiters[i].remove(before)
			s.waiters[i].add(again)
		}
		before.close()
		s.say(before, "submit semaphore replaced: its user had removed or damaged it")
		again.told = before.told
	}
	return u.sems[i].Path(), nil
}

func errnoOf(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return syscall.EIO
	}
	return errno
}

// createSet creates the semaphores of a user, in the place of another's if there are too
// many.
func (s *submitSems) createSet(uid uint32) (*submitUser, error) {
	if s.sets >= s.maxUsers && uid != 0 && !s.evict() {
		return nil, syscall.EMFILE
	}
	var sems [3]*submitSem
	for i := range sems {
		var err error
		if sems[i], err = s.create(uid); err != nil {
			for _, created := range sems[:i] {
				created.close()
			}
			return nil, err
		}
	}
	s.keepSet(uid, sems)
	u := s.user(uid)
	u.sems = sems
	s.sets++
	if u.pins > 0 {
		s.awaitSet(u)
	}
	return u, nil
}

// keepSet notes a user's semaphores for a successor.
func (s *submitSems) keepSet(uid uint32, sems [3]*submitSem) {
	if err := s.legacy.keepSemaphores(uid, sems); err != nil {
		s.log.Warn("a successor of this daemon will not know a user's submit semaphores: its requests are found some 50 ms late then", "uid", uid, "err", err, "cure", "make room in the directory of --restart-state")
	}
}

func (s *submitSems) create(uid uint32) (*submitSem, error) {
	sem, err := shm.CreateSem(SemPrefix+s.run+wire.NewUUID().String()[len(s.run):], uid)
	if err != nil {
		return nil, err
	}
	return &submitSem{NamedSem: sem, uid: uid}, nil
}

// evict removes the set without rings whose links were read the longest ago. A client that
// has opened one of its semaphores can still use the rings that it makes: the leader finds
// their requests without a post, only later.
func (s *submitSems) evict() bool {
	var oldest *submitUser
	var owner uint32
	for uid, u := range s.users {
		if u.pins == 0 && u.sems[0] != nil && (oldest == nil || u.read < oldest.read) {
			oldest, owner = u, uid
		}
	}
	if oldest == nil {
		return false
	}
	for _, sem := range oldest.sems {
		sem.close()
	}
	s.legacy.forgetSemaphores(owner)
	delete(s.users, owner)
	s.sets--
	return true
}

// pin has a user's semaphores awaited and kept, once for each ring of the user.
func (s *submitSems) pin(uid uint32) {
	s.mu.Lock()
	defer s.unlock()
	u := s.user(uid)
	if u.pins++; u.pins == 1 {
		s.awaitSet(u)
	}
}

func (s *submitSems) user(uid uint32) *submitUser {
	u := s.users[uid]
	if u == nil {
		u = &submitUser{}
		s.users[uid] = u
	}
	return u
}

func (s *submitSems) awaitSet(u *submitUser) {
	for i, sem := range u.sems {
		if sem != nil {
			s.waiters[i].add(sem)
		}
	}
}

// unpin undoes pin.
func (s *submitSems) unpin(uid uint32) {
	s.mu.Lock()
	defer s.unlock()
	u := s.users[uid]
	if u.pins--; u.pins > 0 {
		return
	}
	for i, sem := range u.sems {
		if sem != nil {
			s.waiters[i].remove(sem)
		}
	}
	if u.sems[0] == nil {
		delete(s.users, uid)
	}
}

// closeNames removes all names from /dev/shm and no mapping, for a daemon that is about to
// exit with stuck workers.
func (s *submitSems) closeNames() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, u := range s.users {
		for _, sem := range u.sems {
			if sem != nil {
				sem.RemoveName()
			}
		}
	}
}

// close removes mappings, and names unless they are left to a successor. Call it once no worker uses a waiter any more. It waits
// for repairs, though not for long: the user of a semaphore can make one last.
func (s *submitSems) close(leave bool) {
	s.mu.Lock()
	s.ended = true
	for uid, u := range s.users {
		if !leave && u.sems[0] != nil {
			s.legacy.forgetSemaphores(uid)
		}
		for i, sem := range u.sems {
			if sem == nil {
				continue
			}
			if u.pins > 0 {
				s.waiters[i].remove(sem)
			}
			sem.end(!leave)
		}
	}
	clear(s.users)
	s.sets = 0
	s.mu.Unlock()
	close(s.quit)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, w := range s.waiters {
			w.join()
		}
		s.repairs.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
		s.log.Warn("the repair of a submit semaphore does not end: its user holds it up")
	}
}

// unlock ends a change that began with mu.Lock.
func (s *submitSems) unlock() {
	defer s.mu.Unlock()
	if invariants.Enabled {
		s.checkInvariants()
	}
}

func (s *submitSems) checkInvariants() {
	sets := 0
	for uid, u := range s.users {
		invariants.Check(u.pins >= 0, "submit semaphores of user %d: %d pins", uid, u.pins)
		invariants.Check(u.pins > 0 || u.sems[0] != nil, "user %d: kept without rings and semaphores", uid)
		if u.sems[0] != nil {
			sets++
		}
		if len(s.users) > deepCheck {
			continue
		}
		for _, sem := range u.sems {
			if sem == nil {
				continue
			}
			awaited := sem.group != nil
			invariants.Check(awaited == (u.pins > 0 && !sem.unwatched), "a semaphore of user %d with %d pins: awaited: %v", uid, u.pins, awaited)
		}
	}
	invariants.Check(sets == s.sets && sets <= s.maxUsers+1, "submit semaphores: %d sets, %d counted, at most %d", sets, s.sets, s.maxUsers)
}

// submitSem is one user's submit semaphore of one priority.
type submitSem struct {
	*shm.NamedSem
	uid uint32

	group     *semGroup // that awaits it; nil: none. Guarded by submitSems.mu.
	unwatched bool      // there was no group with room: found by looking at the rings only. Guarded likewise.

	damaged bool // not touched until it is repaired. Guarded by the lock of its group.

	mu        sync.Mutex
	repairing bool
	closed    bool
	told      time.Time // when its user was last mentioned in the log
}

// close removes the semaphore, at once or when its repair has ended. No group awaits it
// any more.
func (sem *submitSem) close() { sem.end(true) }

// end is close; without remove it leaves the name.
func (sem *submitSem) end(remove bool) {
	sem.mu.Lock()
	defer sem.mu.Unlock()
	if sem.closed {
		return
	}
	sem.closed = true
	if remove {
		sem.RemoveName()
	}
	if !sem.repairing {
		sem.Close(false)
	}
}

// repairEvery bounds how often a semaphore is repaired, whatever its user does to it. Until
// then the user's requests are found by looking at the rings.
const repairEvery = pollEvery

// repair mends a damaged semaphore in a while. It is called by the group that awaits it.
func (s *submitSems) repair(g *semGroup, sem *submitSem) {
	sem.mu.Lock()
	defer sem.mu.Unlock()
	if sem.repairing || sem.closed {
		return
	}
	sem.repairing = true
	s.repairs.Go(func() {
		select {
		case <-time.After(repairEvery):
			s.say(sem, "submit semaphore repaired: its user had damaged it")
			_ = sem.Repair() // if it fails, the next access finds it damaged again
		case <-s.quit:
		}
		sem.mu.Lock()
		sem.repairing = false
		if sem.closed {
			sem.Close(false)
		}
		sem.mu.Unlock()
		g.repaired(sem)
	})
}

// say logs what happened to a user's semaphore, once a minute at most.
func (s *submitSems) say(sem *submitSem, what string) {
	sem.mu.Lock()
	defer sem.mu.Unlock()
	if now := time.Now(); now.Sub(sem.told) >= time.Minute {
		sem.told = now
		s.log.Warn(what, "uid", sem.uid, "path", sem.Path())
	}
}

// RemoveSemaphores removes what the submit semaphores of a killed daemon have left in
// /dev/shm and returns how many they were. prefix is that daemon's Server.SemaphoreNames;
// anything shorter, which could mean another daemon's, is ignored.
func RemoveSemaphores(prefix string) (removed int) {
	return removeSemaphores(prefix, func(string) bool { return false })
}

// removeSemaphores is RemoveSemaphores, but for the objects that are kept.
func removeSemaphores(prefix string, kept func(object string) bool) (removed int) {
	own := "sem." + SemPrefix
	if len(prefix) < len(own)+len(newRunName()) || prefix[:len(own)] != own {
		return 0
	}
	entries, _ := os.ReadDir(shm.Dir)
	for _, e := range entries {
		if len(e.Name()) >= len(prefix) && e.Name()[:len(prefix)] == prefix && !kept(e.Name()) && shm.Remove(e.Name()) == nil {
			removed++
		}
	}
	return removed
}
