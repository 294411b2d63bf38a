package ringserver

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// submitWaiter waits for the semaphores of one priority, of all users with rings.
//
// The leader itself awaits the first ones, and no thread does while the leader works, so
// that a client's post is mostly a memory access. One call to the kernel takes a limited
// number of semaphores. The others are awaited by helpers, all the time: a helper passes
// on who has posted and wakes the leader. So neither a look of the leader nor its wait
// costs more than a bounded number of semaphores.
type submitWaiter struct {
	own       *semGroup // what the leader awaits
	perHelper int
	shares    *quota.Quota // of the helpers for semaphores in containers' /dev/shm, of which a user may have many; nil: a helper awaits many
	repair    func(*semGroup, *submitSem)
	helping   sync.WaitGroup

	mu      sync.Mutex
	helpers []*semGroup
	news    map[uint32]struct{} // users whose posts a helper has taken
	hasNews atomic.Bool         // whether news has any, without the lock
}

// mostHelpers bounds the threads that wait. Users beyond them are served as if all their
// posts were lost.
const mostHelpers = 128

// newSubmitWaiter returns a waiter for no semaphores. Where the kernel cannot wait for many
// at once, the leader awaits those of one user, and every other has a helper of its own.
func newSubmitWaiter(waitForMany bool, repair func(*semGroup, *submitSem)) *submitWaiter {
	w := &submitWaiter{perHelper: shm.MaxWaited, repair: repair, news: map[uint32]struct{}{}}
	own := shm.MaxWaited
	if !waitForMany {
		own, w.perHelper = 1, 1
		w.shares = quota.New(mostHelpers)
	}
	w.own = newSemGroup(own, waitForMany, repair)
	return w
}

// wake ends the current wait, or the next. No client can lose it, except where the kernel
// cannot wait for many words: there a client may delay it by pollEvery.
func (w *submitWaiter) wake() {
	w.own.waiter.Wake()
	if !w.own.waitForMany {
		w.own.postFirst()
	}
}

// wait waits until a user posts, wake is called, or bound has passed; it may return early.
// One goroutine at a time calls it.
func (w *submitWaiter) wait(bound time.Duration) { w.own.wait(bound) }

// posted takes all posts and appends the users who have posted since.
func (w *submitWaiter) posted(uids []uint32) []uint32 {
	uids = w.own.posted(uids)
	if w.hasNews.Load() {
		w.mu.Lock()
		for uid := range w.news {
			uids = append(uids, uid)
		}
		clear(w.news)
		w.hasNews.Store(false)
		w.mu.Unlock()
	}
	return uids
}

// add has sem awaited.
func (w *submitWaiter) add(sem *submitSem) {
	if w.own.add(sem) {
		return
	}
	if w.shares != nil && sem.elsewhere {
		if !w.shares.Take(sem.uid, 1) {
			sem.unwatched = true
			return
		}
		sem.charged = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.helpers {
		if g.add(sem) {
			return
		}
	}
	if sem.unwatched = len(w.helpers) == mostHelpers; sem.unwatched {
		return
	}
	g := newSemGroup(w.perHelper, w.perHelper > 1, w.repair)
	g.add(sem)
	w.helpers = append(w.helpers, g)
	w.helping.Go(func() { w.help(g) })
}

// remove undoes add.
func (w *submitWaiter) remove(sem *submitSem) {
	sem.unwatched = false
	if sem.charged {
		sem.charged = false
		w.shares.Return(sem.uid, 1)
	}
	if sem.group != nil {
		sem.group.remove(sem)
	}
}

// join waits for the helpers, which end when their semaphores are removed.
func (w *submitWaiter) join() { w.helping.Wait() }

// help passes on the posts of a group until it is empty.
func (w *submitWaiter) help(g *semGroup) {
	var uids []uint32
	for !w.dismiss(g) {
		g.wait(pollEvery)
		if uids = g.posted(uids[:0]); len(uids) == 0 {
			continue
		}
		w.mu.Lock()
		for _, uid := range uids {
			w.news[uid] = struct{}{}
		}
		w.hasNews.Store(true)
		w.mu.Unlock()
		w.wake()
	}
}

// dismiss removes an empty group. Nobody adds to it afterwards.
func (w *submitWaiter) dismiss(g *semGroup) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !g.empty() {
		return false
	}
	w.helpers = slices.DeleteFunc(w.helpers, func(x *semGroup) bool { return x == g })
	return true
}

// semGroup is a set of semaphores that one thread awaits.
type semGroup struct {
	most        int
	waitForMany bool
	repair      func(*semGroup, *submitSem)
	waiter      shm.Waiter
	awaited     []shm.Sem // used by wait only

	mu   sync.Mutex // held while a semaphore is touched, so that none is unmapped meanwhile
	sems []*submitSem
	// mended are users of repaired semaphores: their posts may have been lost.
	mended  []uint32
	checked time.Time // when the semaphores were last found not to have grown
}

// checkEvery bounds the time in which a user can give its semaphore memory unseen. What can
// be added meanwhile is punched out again in a few milliseconds.
const checkEvery = time.Millisecond

func newSemGroup(most int, waitForMany bool, repair func(*semGroup, *submitSem)) *semGroup {
	return &semGroup{most: most, waitForMany: waitForMany, repair: repair}
}

// add adds sem unless the group is full.
func (g *semGroup) add(sem *submitSem) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.sems) >= g.most {
		return false
	}
	g.sems = append(g.sems, sem)
	sem.group = g
	g.takeUp(sem)
	return true
}

// remove removes sem. Once it returns, the group does not touch sem any more.
func (g *semGroup) remove(sem *submitSem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.sems, sem)
	g.sems = slices.Delete(g.sems, i, i+1)
	sem.group = nil
	if !sem.Grown() {
		_ = shm.Guard(sem.Leave) // a damaged one counts no waiters anyway
	}
	g.waiter.Wake()
}

func (g *semGroup) empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sems) == 0
}

// wait waits as submitWaiter.wait does, for the group's semaphores.
func (g *semGroup) wait(bound time.Duration) {
	g.awaited = g.awaited[:0]
	g.mu.Lock()
	g.each(func(sem *submitSem) {
		sem.Await()
		g.awaited = append(g.awaited, sem.Sem)
	})
	g.mu.Unlock()
	if g.waitForMany {
		// An object that was shrunk is found by the accesses below.
		_ = g.waiter.Wait(g.awaited, bound)
	} else {
		g.waitForOne(bound)
	}
	g.mu.Lock()
	g.each(func(sem *submitSem) { sem.Leave() })
	g.mu.Unlock()
}

// postFirst posts the semaphore in which waitForOne may be waiting, where Wake does not reach
// it.
func (g *semGroup) postFirst() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.check()
	if len(g.sems) > 0 && !g.sems[0].damaged {
		_ = shm.Guard(g.sems[0].Post) // if it faults, the wait finds it damaged
	}
}

// waitForOne waits for at most one semaphore, for pollEvery at most, or for none.
func (g *semGroup) waitForOne(bound time.Duration) {
	if len(g.awaited) == 0 {
		_ = g.waiter.Wait(nil, bound)
		return
	}
	g.awaited[0].AwaitPost(min(bound, pollEvery))
}

// posted takes the group's posts, as submitWaiter.posted does.
func (g *semGroup) posted(uids []uint32) []uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.each(func(sem *submitSem) {
		if sem.TakeAll() {
			uids = append(uids, sem.uid)
		}
	})
	if len(g.mended) > 0 {
		uids = append(uids, g.mended...)
		g.mended = g.mended[:0]
	}
	return uids
}

// each calls fn for all semaphores that are not damaged. One that faults is damaged from
// then on, until repaired. The caller holds mu.
func (g *semGroup) each(fn func(*submitSem)) {
	g.check()
	for i := 0; i < len(g.sems); i++ {
		err := shm.Guard(func() {
			for ; i < len(g.sems); i++ {
				if sem := g.sems[i]; !sem.damaged {
					fn(sem)
				}
			}
		})
		if err != nil {
			g.putDown(g.sems[i])
		}
	}
}

// check looks for semaphores that must not be touched because they have grown. The caller
// holds mu.
func (g *semGroup) check() {
	now := time.Now()
	if now.Sub(g.checked) < checkEvery {
		return
	}
	g.checked = now
	for _, sem := range g.sems {
		if !sem.damaged && sem.Grown() {
			g.putDown(sem)
		}
	}
}

// putDown has nobody touch a semaphore until it is repaired. The caller holds mu.
func (g *semGroup) putDown(sem *submitSem) {
	sem.damaged = true
	g.repair(g, sem)
}

// takeUp has a semaphore awaited, unless it is found to be damaged again. The caller holds
// mu.
func (g *semGroup) takeUp(sem *submitSem) {
	sem.damaged = false
	g.checked = time.Time{}
	g.waiter.Wake()
}

// repaired takes a semaphore up again, if it still belongs to the group.
func (g *semGroup) repaired(sem *submitSem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.Contains(g.sems, sem) {
		g.takeUp(sem)
		if !slices.Contains(g.mended, sem.uid) {
			g.mended = append(g.mended, sem.uid)
		}
	}
}
