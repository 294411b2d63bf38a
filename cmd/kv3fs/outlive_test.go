package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// outliving runs a daemon whose mount outlives it.
func outliving(t *testing.T, flags ...string) (r *running, mount string) {
	t.Helper()
	skipWithoutFUSE(t)
	daemontest.NeedRoot(t)
	dir := t.TempDir()
	state, err := os.MkdirTemp("/dev/shm", "kv3fs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	mount = filepath.Join(dir, "mnt")
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	args := append([]string{"hold", "--", "serve", "--data", filepath.Join(dir, "data"), "--mount", mount, "--drain", "1s",
		"--pages-listen", "off", "--admin-listen", "off", "--restart-state", filepath.Join(state, "s")}, flags...)
	return runAs(t, detached, nil, binary(t), "msg=serving ", args...), mount
}

// crowd works on a mount, all of it at once: each of its calls must succeed, whatever happens to the daemon.
type crowd struct {
	size   int
	quit   chan struct{}
	errs   chan error
	rounds []chan struct{} // a value for each round that somebody has finished
	closes []io.Closer     // when all have ended
}

func workOn(t *testing.T, mount string) *crowd {
	t.Helper()
	return workWith(t, mount, workers)
}

func workWith(t *testing.T, mount string, workers map[string]func(c *crowd, dir string) (func(n int) error, error)) *crowd {
	t.Helper()
	c := &crowd{size: len(workers), quit: make(chan struct{}), errs: make(chan error, len(workers))}
	for name, work := range workers {
		dir := filepath.Join(mount, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		round := make(chan struct{}, 1)
		c.rounds = append(c.rounds, round)
		step, err := work(c, dir)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for n := 0; ; n++ {
				select {
				case <-c.quit:
					c.errs <- nil
					return
				default:
				}
				if err := step(n); err != nil {
					c.errs <- errors.Join(errors.New(name), err)
					return
				}
				select {
				case round <- struct{}{}:
				default:
				}
			}
		}()
	}
	return c
}

// awaitRounds returns when everybody has finished rounds that began after the call.
func (c *crowd) awaitRounds(t *testing.T) {
	t.Helper()
	for _, round := range c.rounds {
		for range 3 { // one that was there, and one that had begun
			select {
			case <-round:
			case err := <-c.errs:
				t.Fatalf("a call failed: %v", err)
			case <-time.After(time.Minute):
				t.Fatal("a call hangs")
			}
		}
	}
}

func (c *crowd) end(t *testing.T) {
	t.Helper()
	close(c.quit)
	for range c.size {
		select {
		case err := <-c.errs:
			if err != nil {
				t.Errorf("a call failed: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a call hangs")
		}
	}
	for _, it := range c.closes {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
}

// workers are what clients do, a round at a time, in a directory of their own.
var workers = map[string]func(c *crowd, dir string) (func(n int) error, error){
	"names": func(c *crowd, dir string) (func(n int) error, error) {
		a, b, sub := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "sub")
		return func(n int) error {
			f, err := os.OpenFile(a, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			if err := errors.Join(f.Close(), os.Mkdir(sub, 0o755), os.Rename(a, b), os.Remove(b), os.Remove(sub)); err != nil {
				return err
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				return errors.Join(err, errors.New("something is left"))
			}
			return nil
		}, nil
	},
	"append": func(c *crowd, dir string) (func(n int) error, error) {
		f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		c.closes = append(c.closes, f)
		const line = "0123456789abcde\n"
		return func(n int) error {
			if _, err := f.WriteString(line); err != nil {
				return err
			}
			info, err := f.Stat()
			if err == nil && info.Size() != int64(n+1)*int64(len(line)) {
				err = errors.New("the file does not have the size that was written")
			}
			return err
		}, nil
	},
	"read": func(c *crowd, dir string) (func(n int) error, error) {
		path := filepath.Join(dir, "f")
		want := strings.Repeat("what was written ", 4096)
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		c.closes = append(c.closes, f)
		return func(n int) error {
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, 0); err != nil {
				return err
			}
			again, err := os.ReadFile(path)
			if err == nil && (string(got) != want || string(again) != want) {
				err = errors.New("wrong bytes")
			}
			return err
		}, nil
	},
	"lock": func(c *crowd, dir string) (func(n int) error, error) {
		f, err := os.Create(filepath.Join(dir, "lock"))
		if err != nil {
			return nil, err
		}
		c.closes = append(c.closes, f)
		return func(n int) error {
			return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX), unix.Flock(int(f.Fd()), unix.LOCK_UN))
		}, nil
	},
}

// Calls on the mount wait while the daemon is down: after each kill -9, what is open stays open, and nothing fails or is done twice.
// KV3FS_SOAK may be a number of kills.
func TestMountOutlivesKills(t *testing.T) {
	kills := 3
	if n, err := strconv.Atoi(os.Getenv("KV3FS_SOAK")); err == nil {
		kills = n
	}
	r, mount := outliving(t)
	c := workOn(t, mount)
	for n := 2; n < kills+2; n++ {
		c.awaitRounds(t)
		killAndAwait(t, r.pidOf(t))
		r.awaitSaid(t, "msg=serving ", n)
	}
	c.awaitRounds(t)
	c.end(t)
}

// So it is where a daemon is told to hand over.
func TestMountOutlivesHandovers(t *testing.T) {
	r, mount := outliving(t, "--on-term", "handover")
	c := workOn(t, mount)
	for n := 2; n < 4; n++ {
		c.awaitRounds(t)
		if err := unix.Kill(r.pidOf(t), unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		r.awaitSaid(t, "msg=serving ", n)
	}
	c.awaitRounds(t)
	c.end(t)
}
