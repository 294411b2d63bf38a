package hogs

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// register links a new object that has no name afterwards, and returns the link's path.
func (h *hog) register(sizeBytes int64, suffix string) (link string, ok bool) {
	path, err := hostile.NewObject(sizeBytes)
	if !h.try(err) {
		return "", false
	}
	defer os.Remove(path)
	id, err := hostile.Register(h.Mount, path, suffix)
	return hostile.Iovs(h.Mount, id.String()+suffix), h.try(err)
}

// release ends registrations, or some of them.
func (h *hog) release(links []string) {
	for _, link := range links {
		h.try(os.Remove(link))
	}
}

// addressSpace registers objects as large as they may be, from 2^46 bytes downwards.
func addressSpace(h *hog) error {
	var held []string
	defer func() { h.release(held) }()
	for bits := 46; bits >= 16 && len(held) < 2000 && h.Running(); {
		link, ok := h.register(1<<bits, "")
		if !ok {
			bits--
			continue
		}
		held = append(held, link)
	}
	h.rest(time.Second)
	return nil
}

// registrations takes as many as there are.
func registrations(h *hog) error {
	var held []string
	defer func() { h.release(held) }()
	for range h.many(2000, 20000) {
		link, ok := h.register(wire.RingBytes(4), []string{"", ".r0.t0", ".w-2.t5.pl"}[rand.IntN(3)])
		if !ok || !h.Running() {
			break
		}
		held = append(held, link)
	}
	h.rest(200 * time.Millisecond)
	return nil
}

// oddTargets registers names that are no plain objects: each kind in a loop of its own,
// since some may never be answered.
func oddTargets(h *hog) error {
	id := wire.NewUUID().String()
	object, err := hostile.NewObject(1 << 20)
	if err != nil {
		return err
	}
	defer os.Remove(object)
	leased, err := os.OpenFile(object, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer leased.Close()
	_, err = unix.FcntlInt(leased.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	h.try(err)
	fifo, link, dir := filepath.Join(shm.Dir, "kv3fs-fifo-"+id), filepath.Join(shm.Dir, "kv3fs-link-"+id), filepath.Join(shm.Dir, "kv3fs-dir-"+id)
	h.try(unix.Mkfifo(fifo, 0o600))
	defer os.Remove(fifo)
	h.try(os.Symlink(filepath.Join(h.Mount, "disk", "lost-"+id), link))
	defer os.Remove(link)
	h.try(os.Mkdir(dir, 0o700))
	defer os.Remove(dir)
	targets := []string{
		object, fifo, link, dir, link + "/x", dir + "/../" + filepath.Base(object),
		hostile.Iovs(h.Mount, "x"), hostile.Iovs(h.Mount, id), hostile.Iovs(h.Mount, ""), h.disk(1), filepath.Join(h.Mount, "disk", "lost-"+id),
		"/proc/self/mem", "/proc/1/root", "/dev/shm", "/dev/zero", "relative", "/dev/shm/../../" + h.Mount + "/disk/lost",
	}
	loop(h, len(targets), func(i int) {
		name := hostile.Iovs(h.Mount, wire.NewUUID().String())
		if h.try(os.Symlink(targets[i], name)) {
			h.try(os.Remove(name))
		}
		h.rest(5 * time.Millisecond)
	})
	return nil
}

// forks has processes register and die in the middle.
func forks(h *hog) error {
	cmd, err := h.Command("fork child", h.orders)
	if err != nil {
		return err
	}
	in, err := cmd.StdinPipe() // it lives until this is closed, or it is killed
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.rest(rand.N(200 * time.Millisecond))
	h.try(cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	_ = in.Close() // Wait has closed it
	for _, path := range hostile.Objects(uint32(os.Getuid())) {
		_ = os.Remove(path) // what the dead have left
	}
	return nil
}

// forkChild registers and keeps the daemon busy until it is killed.
func forkChild(s *hostile.Self) error {
	h := &hog{Self: s, counts: counts{}}
	if err := s.Args(&h.orders); err != nil {
		return err
	}
	beNice()
	path := filepath.Join(h.Dir, "fork")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		return err
	}
	for s.Running() {
		r, err := h.newRing(64, ".r0.t0", path, 1<<20)
		if err != nil {
			return err
		}
		for range 64 {
			r.push(0, 1<<20)
		}
		r.Post()
		if rand.IntN(2) == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		r.Reap(64, 50*time.Millisecond)
		r.close()
	}
	return nil
}
