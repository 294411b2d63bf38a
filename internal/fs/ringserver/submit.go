package ringserver

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
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
// rings, which pin it. Clients open semaphores by name in their own /dev/shm, so a user has a set in each
// in which it has clients (see submitelsewhere.go).
type submitSems struct {
	log      *slog.Logger
	legacy   *legacy
	maxUsers int
	run      string // part of all names: see newRunName
	waiters  [3]*submitWaiter

	repairs sync.WaitGroup
	quit    chan struct{} // ends the pauses before repairs
	tidiers *tidiers

	mu        sync.Mutex
	users     map[semsKey]*submitUser
	sets      int          // users with semaphores in the daemon's own /dev/shm
	elsewhere *quota.Quota // sets in others
	reads     uint64
	ended     bool
}

// semsKey says whose semaphores are meant, and in which /dev/shm.
type semsKey struct {
	uid uint32
	shm *devShm
}

// submitUser is a user with semaphores, with rings, or with both, in one /dev/shm.
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
	s := &submitSems{log: log, maxUsers: maxUsers, run: newRunName(), quit: make(chan struct{}), tidiers: newTidiers(), users: map[semsKey]*submitUser{}, elsewhere: quota.New(int64(maxUsers))}
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
	k := semsKey{uid: uid}
	u := s.users[k]
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
		s.replace(k, u, i, again)
	}
	return u.sems[i].Path(), nil
}

// replace puts a new semaphore in the place of one that its user has spoilt.
func (s *submitSems) replace(k semsKey, u *submitUser, i int, again *submitSem) {
	before := u.sems[i]
	u.sems[i] = again
	s.keepSet(k, u.sems)
	if u.pins > 0 {
		s.waiters[i].remove(before)
		s.waiters[i].add(again)
	}
	s.endSems(k, true, before)
	s.say(before, "submit semaphore replaced: its user had removed or damaged it")
	again.told = before.told
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
	if s.sets >= s.maxUsers && uid != 0 && !s.evict(func(k semsKey) bool { return k.shm == nil }) {
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
	k := semsKey{uid: uid}
	s.keepSet(k, sems)
	s.sets++
	return s.putSet(k, sems), nil
}

// putSet gives a user its semaphores, which are counted already.
func (s *submitSems) putSet(k semsKey, sems [3]*submitSem) *submitUser {
	u := s.user(k)
	u.sems = sems
	if u.pins > 0 {
		s.awaitSet(u)
	}
	return u
}

// keepSet notes a user's semaphores for a successor.
func (s *submitSems) keepSet(k semsKey, sems [3]*submitSem) {
	if err := s.legacy.keepSemaphores(k, sems); err != nil {
		s.log.Warn("a successor of this daemon will not know a user's submit semaphores: its requests are found some 50 ms late then", "uid", k.uid, "err", err, "cure", "make room in the directory of --restart-state")
	}
}

// newName returns the name of a new semaphore.
func (s *submitSems) newName() string {
	return SemPrefix + s.run + wire.NewUUID().String()[len(s.run):]
}

func (s *submitSems) create(uid uint32) (*submitSem, error) {
	sem, err := shm.CreateSem(s.newName(), uid)
	if err != nil {
		return nil, err
	}
	return &submitSem{NamedSem: sem, uid: uid}, nil
}

// evict removes the set without rings, of those that may go, whose links were read the longest ago. A client that
// has opened one of its semaphores can still use the rings that it makes: the leader finds
// their requests without a post, only later.
func (s *submitSems) evict(mayGo func(semsKey) bool) bool {
	var oldest *submitUser
	var of semsKey
	for k, u := range s.users {
		if u.pins == 0 && u.sems[0] != nil && mayGo(k) && (oldest == nil || u.read < oldest.read) {
			oldest, of = u, k
		}
	}
	if oldest == nil {
		return false
	}
	s.endSet(of, oldest)
	return true
}

// endSet removes the semaphores of a user without rings.
func (s *submitSems) endSet(k semsKey, u *submitUser) {
	s.endSems(k, true, u.sems[:]...)
	s.legacy.forgetSemaphores(k)
	delete(s.users, k)
	s.uncount(k)
}

// endSems ends semaphores of a user that no group awaits any more, and with remove removes their names. It waits for no client.
func (s *submitSems) endSems(k semsKey, remove bool, sems ...*submitSem) {
	if remove && k.shm != nil {
		s.removeNames(k, sems)
		remove = false
	}
	for _, sem := range sems {
		if sem != nil {
			sem.end(remove)
		}
	}
}

// uncount says that a set is not there any more.
func (s *submitSems) uncount(k semsKey) {
	if k.shm == nil {
		s.sets--
	} else {
		s.elsewhere.Return(k.uid, 1)
	}
}

// pin has a user's semaphores awaited and kept, once for each ring of the user.
func (s *submitSems) pin(k semsKey) {
	s.mu.Lock()
	defer s.unlock()
	u := s.user(k)
	if u.pins++; u.pins == 1 {
		s.awaitSet(u)
	}
}

func (s *submitSems) user(k semsKey) *submitUser {
	u := s.users[k]
	if u == nil {
		u = &submitUser{}
		s.users[k] = u
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
func (s *submitSems) unpin(k semsKey) {
	s.mu.Lock()
	defer s.unlock()
	u := s.users[k]
	if u.pins--; u.pins > 0 {
		return
	}
	for i, sem := range u.sems {
		if sem != nil {
			s.waiters[i].remove(sem)
		}
	}
	if u.sems[0] == nil {
		delete(s.users, k)
	}
}

// closeNames removes all names from /dev/shm and no mapping, for a daemon that is about to
// exit with stuck workers.
func (s *submitSems) closeNames() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for k, u := range s.users {
		if k.shm != nil {
			s.removeNames(k, u.sems[:])
			continue
		}
		for _, sem := range u.sems {
			if sem != nil {
				sem.RemoveName()
			}
		}
	}
	s.tidiers.wait()
}

// close removes mappings, and names unless they are left to a successor. Call it once no worker uses a waiter any more. It waits
// for repairs, though not for long: the user of a semaphore can make one last.
func (s *submitSems) close(leave bool) {
	s.mu.Lock()
	s.ended = true
	for k, u := range s.users {
		if u.sems[0] != nil {
			s.uncount(k)
			if !leave {
				s.legacy.forgetSemaphores(k)
			}
		}
		for i, sem := range u.sems {
			if sem != nil && u.pins > 0 {
				s.waiters[i].remove(sem)
			}
		}
		s.endSems(k, !leave, u.sems[:]...)
	}
	clear(s.users)
	s.mu.Unlock()
	close(s.quit)
	s.tidiers.wait()
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
	sets, elsewhere := 0, 0
	for k, u := range s.users {
		uid := k.uid
		invariants.Check(u.pins >= 0, "submit semaphores of user %d: %d pins", uid, u.pins)
		invariants.Check(u.pins > 0 || u.sems[0] != nil, "user %d: kept without rings and semaphores", uid)
		switch {
		case u.sems[0] == nil:
		case k.shm == nil:
			sets++
		default:
			elsewhere++
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
	invariants.Check(elsewhere == int(s.elsewhere.Total()), "submit semaphores: %d sets in other /dev/shm, %d counted", elsewhere, s.elsewhere.Total())
}

// submitSem is one user's submit semaphore of one priority.
type submitSem struct {
	*shm.NamedSem
	uid       uint32
	elsewhere bool // not in the daemon's own /dev/shm

	group     *semGroup // that awaits it; nil: none. Guarded by submitSems.mu.
	unwatched bool      // there was no group with room: found by looking at the rings only. Guarded likewise.
	charged   bool      // takes a share of the helpers. Guarded likewise.

	damaged bool // not touched until it is repaired. Guarded by the lock of its group.

	mu        sync.Mutex
	repairing bool
	uses      int // between begin and finish: it stays mapped
	closed    bool
	told      time.Time // when its user was last mentioned in the log
}

// begin has the semaphore stay mapped until finish. False: it is closed.
func (sem *submitSem) begin() bool {
	sem.mu.Lock()
	defer sem.mu.Unlock()
	if !sem.closed {
		sem.uses++
	}
	return !sem.closed
}

func (sem *submitSem) finish() {
	sem.mu.Lock()
	defer sem.mu.Unlock()
	if sem.uses--; sem.uses == 0 && sem.closed {
		sem.Close(false)
	}
}

// close removes the semaphore, at once or when nothing uses it any more. No group awaits it
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
	if sem.uses == 0 {
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
	sem.uses++
	s.repairs.Go(func() {
		select {
		case <-time.After(repairEvery):
			s.say(sem, "submit semaphore repaired: its user had damaged it")
			_ = sem.Repair() // if it fails, the next access finds it damaged again
		case <-s.quit:
		}
		sem.mu.Lock()
		sem.repairing = false
		sem.mu.Unlock()
		sem.finish()
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
