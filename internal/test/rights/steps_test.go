package rights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// step is one thing that a client tries.
type step struct {
	Op    string // a key of operations
	Path  string
	Other string // a second path, or the name of an attribute
	Value []byte // of an attribute
	N     int64  // bytes or entries at most, or a mode
}

// outcome is what a step met. Times, say, are no part of it, so outcomes can be compared.
type outcome struct {
	N     int64 // bytes moved, entries made
	Errno syscall.Errno
}

func (o outcome) String() string {
	if o.Errno == 0 {
		return fmt.Sprintf("%d", o.N)
	}
	return fmt.Sprintf("%d, then %s", o.N, unix.ErrnoName(o.Errno))
}

type stepsArgs struct{ Mount, File string }

// writeSteps returns the path of a file with the steps: there may be too many for an
// argument.
func writeSteps(t *testing.T, steps []step) string {
	t.Helper()
	b, err := json.Marshal(steps)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(daemontest.NewDir(t), "steps")
	if err := errors.Join(os.WriteFile(path, b, 0o644), os.Chmod(path, 0o644)); err != nil {
		t.Fatal(err)
	}
	return path
}

func stepsProgram(s *hostile.Self) error {
	var a stepsArgs
	if err := s.Args(&a); err != nil {
		return err
	}
	b, err := os.ReadFile(a.File)
	if err != nil {
		return err
	}
	var steps []step
	if err := json.Unmarshal(b, &steps); err != nil {
		return err
	}
	c := &client{mount: a.Mount, self: s}
	defer c.close()
	unix.Umask(0)
	return s.Report(c.run(steps))
}

// client runs steps as the user of its process.
type client struct {
	mount string        // for rings
	open  []int         // by "hold"
	self  *hostile.Self // for "wait"

	reader, writer *hostile.Ring
	iov            wire.UUID
	mem            *shm.Mapping
}

func (c *client) close() {
	for _, fd := range c.open {
		unix.Close(fd)
	}
	for _, r := range []*hostile.Ring{c.reader, c.writer} {
		if r != nil {
			r.Close()
		}
	}
	if c.mem != nil {
		c.mem.Unmap()
	}
}

func (c *client) run(steps []step) []outcome {
	var all []outcome
	for _, s := range steps {
		n, err := operations()[s.Op](c, s)
		o := outcome{N: n}
		if err != nil && !errors.As(err, &o.Errno) {
			panic(fmt.Sprintf("%+v: %v", s, err))
		}
		all = append(all, o)
	}
	return all
}

type operation func(c *client, s step) (int64, error)

func operations() map[string]operation {
	return map[string]operation{
		"read":  func(_ *client, s step) (int64, error) { return transfer(s.Path, unix.O_RDONLY, unix.Read) },
		"write": func(_ *client, s step) (int64, error) { return transfer(s.Path, unix.O_WRONLY, unix.Write) },
		"append": func(_ *client, s step) (int64, error) {
			return transfer(s.Path, unix.O_WRONLY|unix.O_APPEND, unix.Write)
		},
		"hold": hold,
		"wait": func(c *client, _ step) (int64, error) {
			err := c.self.Report("waiting")
			<-c.self.Stopped()
			return 0, err
		},
		"fill":      fill,
		"ring-read": func(c *client, s step) (int64, error) { return c.ring(s.Path, false, 1, 0) },
		"ring-write": func(c *client, s step) (int64, error) {
			return c.ring(s.Path, true, 1, 0)
		},
		"ring-large": func(c *client, s step) (int64, error) {
			return c.ring(s.Path, true, iovBytes, 0)
		},
		"ring-fault-read":  func(c *client, s step) (int64, error) { return ringFault(c, s, false) },
		"ring-fault-write": func(c *client, s step) (int64, error) { return ringFault(c, s, true) },
		"late-write":       lateWrite,
		"late-ring-write":  lateRingWrite,
		"ring-fill":        ringFill,
		"truncate":         func(_ *client, s step) (int64, error) { return 0, unix.Truncate(s.Path, s.N) },
		"open-truncate": func(_ *client, s step) (int64, error) {
			fd, err := unix.Open(s.Path, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
			unix.Close(fd)
			return 0, err
		},
		"create": create,
		"mkdir":  func(_ *client, s step) (int64, error) { return 0, unix.Mkdir(s.Path, uint32(s.N)) },
		"mkdirs": func(_ *client, s step) (n int64, err error) {
			for ; n < s.N && err == nil; n++ {
				err = unix.Mkdir(filepath.Join(s.Path, fmt.Sprintf("dir%d", n)), 0o777)
			}
			return n, err
		},
		"fallocate":           fallocate(unix.O_WRONLY, 0),
		"keep-size":           fallocate(unix.O_RDWR, unix.FALLOC_FL_KEEP_SIZE),
		"zero-range":          fallocate(unix.O_WRONLY|unix.O_APPEND, unix.FALLOC_FL_ZERO_RANGE),
		"punch-hole":          fallocate(unix.O_WRONLY, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE),
		"fallocate-read-only": fallocate(unix.O_RDONLY, 0),
		"fallocate-limited":   fallocateLimited,
		"no-replace":          renameWith(unix.RENAME_NOREPLACE),
		"exchange":            renameWith(unix.RENAME_EXCHANGE),
		"tmpfile":             tmpfile,
		"unlink":              func(_ *client, s step) (int64, error) { return 0, unix.Unlink(s.Path) },
		"rename":              func(_ *client, s step) (int64, error) { return 0, unix.Rename(s.Path, s.Other) },
		"chmod":               func(_ *client, s step) (int64, error) { return 0, unix.Chmod(s.Path, uint32(s.N)) },
		"umask":               func(_ *client, s step) (int64, error) { unix.Umask(int(s.N)); return 0, nil },
		"mode":                mode,
		"list": func(_ *client, s step) (int64, error) {
			names, err := os.ReadDir(s.Path)
			return int64(len(names)), err
		},
		"enter": func(_ *client, s step) (int64, error) {
			var st unix.Stat_t
			return 0, unix.Stat(filepath.Join(s.Path, "."), &st)
		},
		"get": func(_ *client, s step) (int64, error) {
			n, err := unix.Getxattr(s.Path, s.Other, make([]byte, 4096))
			return int64(max(n, 0)), err
		},
		"set": func(_ *client, s step) (int64, error) { return 0, unix.Setxattr(s.Path, s.Other, s.Value, 0) },
		"set-again": func(_ *client, s step) (int64, error) {
			return 0, unix.Setxattr(s.Path, s.Other, s.Value, unix.XATTR_CREATE)
		},
		"xattrs": func(_ *client, s step) (int64, error) {
			list := make([]byte, 4096)
			n, err := unix.Listxattr(s.Path, list)
			if err != nil {
				return 0, err
			}
			return int64(bytes.Count(list[:n], []byte{0})), nil
		},
		"remove": func(_ *client, s step) (int64, error) { return 0, unix.Removexattr(s.Path, s.Other) },
	}
}

func transfer(path string, flags int, move func(int, []byte) (int, error)) (int64, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	n, err := move(fd, []byte{'x'})
	return int64(max(n, 0)), err
}

// hold opens a file for reading and writing until the client ends.
func hold(c *client, s step) (int64, error) {
	fd, err := unix.Open(s.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		c.open = append(c.open, fd)
	}
	return 0, err
}

// lateWrite gives a file that is open already a mode, by another path, and then writes.
func lateWrite(_ *client, s step) (int64, error) {
	return transfer(s.Path, unix.O_WRONLY, func(fd int, b []byte) (int, error) {
		if err := unix.Chmod(s.Other, uint32(s.N)); err != nil {
			return 0, err
		}
		return unix.Write(fd, b)
	})
}

// lateRingWrite is lateWrite through a ring, which may be late in noticing a mode that was
// set behind the daemon's back: it writes until the mode changes or the test's patience ends.
func lateRingWrite(c *client, s step) (n int64, err error) {
	if _, err := hold(c, s); err != nil {
		return 0, err
	}
	if _, err := c.ring(s.Path, true, 1, 0); err != nil {
		return 0, err
	}
	if err := unix.Chmod(s.Other, uint32(s.N)); err != nil {
		return 0, err
	}
	for end := time.Now().Add(lateLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n, err = c.ring(s.Path, true, 1, 0); err != nil {
			return n, err
		}
		if now, err := mode(c, step{Path: s.Other}); err != nil || now != s.N {
			return n, err
		}
	}
	return n, nil
}

// lateLimit is far more than the 100 ms after which the daemon notices: a loaded machine may
// take a second for one write.
const lateLimit = 20 * time.Second

// fallocate returns an operation that reserves, or frees, N bytes from the fourth on, and
// returns the file's size.
func fallocate(flags int, how uint32) operation {
	return func(_ *client, s step) (int64, error) {
		fd, err := unix.Open(s.Path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		if err := unix.Fallocate(fd, how, 4, s.N); err != nil {
			return 0, err
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		return st.Size, err
	}
}

// fallocateLimited is fallocate by a process whose files may have N bytes.
func fallocateLimited(c *client, s step) (int64, error) {
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		return 0, err
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(s.N), Max: before.Max}); err != nil {
		return 0, err
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_FSIZE, &before) }()
	return fallocate(unix.O_WRONLY, 0)(c, s)
}

func renameWith(flags uint) operation {
	return func(_ *client, s step) (int64, error) {
		return 0, unix.Renameat2(unix.AT_FDCWD, s.Path, unix.AT_FDCWD, s.Other, flags)
	}
}

// tmpfile makes a file without a name, writes to it and then gives it the name Other. It
// returns what the file's status says in between and at the end.
func tmpfile(_ *client, s step) (int64, error) {
	fd, err := unix.Open(s.Path, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("content")); err != nil {
		return 0, err
	}
	var unnamed, named unix.Stat_t
	if err := unix.Fstat(fd, &unnamed); err != nil {
		return 0, err
	}
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, s.Other, unix.AT_SYMLINK_FOLLOW); err != nil {
		return 0, err
	}
	if err := unix.Stat(s.Other, &named); err != nil {
		return 0, err
	}
	if named.Ino != unnamed.Ino || named.Uid != unnamed.Uid {
		return 0, unix.ESTALE
	}
	return int64(unnamed.Nlink)<<48 | int64(named.Nlink)<<32 | named.Size<<16 | int64(named.Mode&0o7777), nil
}

func create(_ *client, s step) (int64, error) {
	fd, err := unix.Open(s.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, uint32(s.N))
	unix.Close(fd)
	return 0, err
}

// mode returns the permission bits.
func mode(_ *client, s step) (int64, error) {
	var st unix.Stat_t
	err := unix.Lstat(s.Path, &st)
	return int64(st.Mode & 0o7777), err
}

// fill appends to a file until that fails, at most N bytes. First in large pieces, so that
// it ends soon, and then in small ones, so that it ends late.
func fill(_ *client, s step) (total int64, err error) {
	fd, err := unix.Open(s.Path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	for _, size := range []int64{1 << 20, 4096} {
		piece := make([]byte, size)
		for total+size <= s.N {
			n, failed := unix.Write(fd, piece)
			if err = failed; err != nil {
				break
			}
			total += int64(n)
			if err = unix.Fdatasync(fd); err != nil {
				break
			}
		}
	}
	return total, err
}

// ringFill is fill through a ring, on a file that exists.
func ringFill(c *client, s step) (total int64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(s.Path, &st); err != nil {
		return 0, err
	}
	for _, size := range []int64{iovBytes, 4096} {
		for total+size <= s.N {
			n, failed := c.ring(s.Path, true, size, st.Size+total)
			if err = failed; err != nil {
				break
			}
			total += n
		}
	}
	return total, err
}

const iovBytes = 1 << 20

// ring moves n bytes of a file through a ring. It opens nothing: who knows the number of a
// file's inode can write it into a request.
func (c *client) ring(path string, write bool, n, off int64) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	if c.mem == nil {
		var err error
		if c.iov, c.mem, err = hostile.NewIov(c.mount, iovBytes); err != nil {
			return 0, err
		}
	}
	which, suffix := &c.reader, ".r0.t0"
	if write {
		which, suffix = &c.writer, ".w0.t0"
	}
	if *which == nil {
		r, err := hostile.NewRing(c.mount, 4, suffix)
		if err != nil {
			return 0, err
		}
		*which = r
	}
	(*which).Push(0, wire.Args{BufID: c.iov, FileIno: st.Ino, FileOff: uint64(off), Len: uint64(n)})
	(*which).Post()
	got := (*which).Reap(1, hostile.Patience)
	switch {
	case len(got) != 1:
		return 0, unix.ETIME
	case got[0].Result < 0:
		return 0, syscall.Errno(-got[0].Result)
	}
	return got[0].Result, nil
}
