package ringserver

import (
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Submit semaphores in a /dev/shm that is not the daemon's own. They are made with the rights of the client that reads
// the link, which can hold that up, so not under the lock. They are there until no process that has read a link and no
// registration needs that /dev/shm any more.

// linkIn is link for a client with a /dev/shm of its own. EMFILE: the user has clients in too many. EACCES, EROFS:
// it may not make anything there.
func (s *submitSems) linkIn(c cred.Caller, x *devShm, p wire.Priority) (string, error) {
	if path, ok := s.linked(semsKey{c.UID, x}, p); ok {
		return path, nil
	}
	x.sweep.Do(func() { x.removeAbandoned() })
	var sems [3]*submitSem
	err := cred.RunAs(c, func() error {
		for i := range sems {
			sem, err := shm.CreateSemIn(x.dir, s.newName())
			if err != nil {
				return err
			}
			sems[i] = &submitSem{NamedSem: sem, uid: c.UID, elsewhere: true}
		}
		return nil
	})
	path := ""
	if err == nil {
		path, err = s.put(semsKey{c.UID, x}, p, &sems)
	}
	for _, unused := range sems {
		if unused != nil {
			unused.close()
		}
	}
	if err != nil {
		return "", errnoOf(err)
	}
	return path, nil
}

// linked returns the path of a semaphore that is there and usable.
func (s *submitSems) linked(k semsKey, p wire.Priority) (path string, ok bool) {
	s.mu.Lock()
	defer s.unlock()
	u := s.users[k]
	if s.ended || u == nil || u.sems[0] == nil || !u.sems[int(p)+1].Usable() {
		return "", false
	}
	s.reads++
	u.read = s.reads
	return u.sems[int(p)+1].Path(), true
}

// put gives a user new semaphores, all or the one that is not usable, and takes those that it needs out of sems.
func (s *submitSems) put(k semsKey, p wire.Priority, sems *[3]*submitSem) (path string, err error) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return "", syscall.ESHUTDOWN
	}
	i := int(p) + 1
	u := s.users[k]
	switch {
	case u == nil || u.sems[0] == nil:
		if !s.elsewhere.Take(k.uid, 1) && !(s.evict(func(of semsKey) bool { return of.shm != nil && of.uid == k.uid }) && s.elsewhere.Take(k.uid, 1)) {
			return "", syscall.EMFILE
		}
		u = s.putSet(k, *sems)
		s.keepSet(k, u.sems)
		*sems = [3]*submitSem{}
	case !u.sems[i].Usable():
		s.replace(k, u, i, sems[i])
		sems[i] = nil
	}
	s.reads++
	u.read = s.reads
	return u.sems[i].Path(), nil
}

// removeNames removes the names of semaphores in a client's own /dev/shm, beside its caller. What is held up too often stays, a page of
// the container's memory each, until a daemon looks for what is abandoned there.
func (s *submitSems) removeNames(k semsKey, sems []*submitSem) {
	dir, err := k.shm.path() // for the call may last longer than what k.shm is held for
	if err != nil {
		return
	}
	var mine []*submitSem
	for _, sem := range sems {
		if sem != nil && sem.begin() {
			mine = append(mine, sem)
		}
	}
	finish := func() {
		for _, sem := range mine {
			sem.finish()
		}
		unix.Close(dir)
	}
	if !s.tidiers.do(k.uid, func() {
		for _, sem := range mine {
			sem.RemoveNameIn(dir)
		}
		finish()
	}) {
		finish()
	}
}

// endIn removes all semaphores in a /dev/shm that nothing needs any more.
func (s *submitSems) endIn(x *devShm) {
	s.mu.Lock()
	defer s.unlock()
	for k, u := range s.users {
		if k.shm == x {
			s.endSet(k, u)
		}
	}
}

// mostNames bounds the names that are looked at for what killed daemons have left.
const mostNames = 4096

// removeAbandoned removes submit semaphores that nobody has open: their daemon was killed, or could not reach them
// any more. Clients open theirs at once, and every daemon keeps its own open.
func (x *devShm) removeAbandoned() {
	fd, err := x.directory()
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), shm.Dir)
	defer dir.Close()
	names, _ := dir.Readdirnames(mostNames)
	for _, name := range names {
		if strings.HasPrefix(name, semObjects) {
			_ = x.removeUnused(name) // what stays takes a page of the container's memory
		}
	}
}

// semObjects begins the names of the objects of submit semaphores.
const semObjects = "sem." + SemPrefix

// removeUnused removes an object with the rights of its owner, if nobody has it open.
func (x *devShm) removeUnused(name string) error {
	at, err := nameIn(x.dir, name)
	if err != nil {
		return err
	}
	var st unix.Statx_t
	id, err := identify(at, &st)
	unix.Close(at)
	if err != nil {
		return err
	}
	object := &leftover{objectID: id, name: name, shm: x, client: cred.Caller{UID: st.Uid, GID: st.Gid}}
	return cred.RunAs(object.client, func() error {
		_, err := object.remove()
		return err
	})
}
