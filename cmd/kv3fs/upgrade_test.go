package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

// upgradable is a daemon whose program can be replaced.
type upgradable struct {
	*running
	dir, data, mount, state string
	config                  string // its configuration file
}

// startUpgradable runs one, by a command that ends in "serve".
func startUpgradable(t *testing.T, command ...string) *upgradable {
	t.Helper()
	skipWithoutFUSE(t)
	daemontest.NeedRoot(t)
	u := &upgradable{dir: t.TempDir()}
	state, err := os.MkdirTemp("/dev/shm", "kv3fs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	u.data, u.mount, u.state, u.config = filepath.Join(u.dir, "data"), filepath.Join(u.dir, "mnt"), filepath.Join(state, "s"), filepath.Join(u.dir, "config.yaml")
	t.Cleanup(func() { _ = unix.Unmount(u.mount, unix.MNT_DETACH) })
	u.configure(t, "")
	u.running = runAs(t, detached, nil, binary(t), "msg=serving ", append(command, "--config", u.config)...)
	return u
}

func (u *upgradable) configure(t *testing.T, more string) {
	t.Helper()
	text := fmt.Sprintf("data: %s\nmount: %s\ndrain: 1s\npages-listen: 127.0.0.1:0\nadmin-listen: 127.0.0.1:0\nrestart-state: %s\n%s", u.data, u.mount, u.state, more)
	if err := os.WriteFile(u.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// upgrade runs "kv3fs upgrade".
func (u *upgradable) upgrade(t *testing.T, args ...string) (out string, status int) {
	t.Helper()
	cmd := exec.Command(binary(t), append([]string{"upgrade", "--data", u.data, "--timeout", "2m"}, args...)...)
	all, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(all), cmd.ProcessState.ExitCode()
}

type closer func() error

func (c closer) Close() error { return c() }

// patient are workers whose calls must never be done twice, nor seem to have been done.
var patient = map[string]func(c *crowd, dir string) (func(n int) error, error){
	"exclusive": func(c *crowd, dir string) (func(n int) error, error) {
		taken := filepath.Join(dir, "taken")
		if err := os.WriteFile(taken, nil, 0o644); err != nil {
			return nil, err
		}
		return func(int) error {
			f, err := os.OpenFile(taken, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if !errors.Is(err, os.ErrExist) {
				_ = f.Close()
				return errors.Join(err, errors.New("a file that was there was made"))
			}
			return nil
		}, nil
	},
	"ring": func(c *crowd, dir string) (func(n int) error, error) {
		ctx := context.Background()
		mount, err := usrbio.Open(ctx, filepath.Dir(dir))
		if err != nil {
			return nil, err
		}
		c.closes = append(c.closes, closer(func() error { return mount.Close(ctx) }))
		const size = 64 << 10
		iov, err := mount.NewIov(ctx, 2*size, usrbio.IovOptions{})
		if err != nil {
			return nil, err
		}
		var rings [2]*usrbio.Ring
		for i := range rings {
			if rings[i], err = mount.NewRing(ctx, usrbio.RingOptions{Entries: 4, Write: i == 0}); err != nil {
				return nil, err
			}
		}
		f, err := os.Create(filepath.Join(dir, "f"))
		if err != nil {
			return nil, err
		}
		c.closes = append(c.closes, f)
		file, err := mount.Register(ctx, f)
		if err != nil {
			return nil, err
		}
		return func(n int) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			block := bytes.Repeat([]byte{byte(n), byte(n >> 8)}, size/2)
			copy(iov.Bytes(), block)
			for i, ring := range rings {
				one := []usrbio.Request{{File: file, Iov: iov, IovOffset: int64(i) * size, Bytes: size}}
				if err := ring.Do(ctx, one); err != nil {
					return err
				}
				if one[0].Result != size {
					return fmt.Errorf("ring %d: result %d", i, one[0].Result)
				}
			}
			if !bytes.Equal(iov.Bytes()[size:], block) {
				return errors.New("wrong bytes")
			}
			return nil
		}, nil
	},
}

// Clients of a daemon whose program is replaced notice nothing, who holds its descriptors or not.
func TestUpgrade(t *testing.T) {
	for name, command := range map[string][]string{"alone": {"serve"}, "held": {"hold", "--", "serve"}} {
		t.Run(name, func(t *testing.T) {
			u := startUpgradable(t, command...)
			all := maps.Clone(workers)
			maps.Copy(all, patient)
			c := workWith(t, u.mount, all)
			pid, admin := u.pidOf(t), adminURL(t, u.running)
			other := filepath.Join(u.dir, "other")
			copyFile(t, binary(t), other)
			for n, args := range [][]string{{other}, nil, {"--json", binary(t)}} {
				c.awaitRounds(t)
				out, status := u.upgrade(t, args...)
				if status != 0 {
					t.Fatalf("upgrade %v: %d: %s", args, status, out)
				}
				var report struct {
					PID       int
					PauseMs   float64 `json:"pause_ms"`
					MountKept bool    `json:"mount_kept"`
				}
				if n < 2 {
					if want := fmt.Sprintf("serves as process %d. Clients have waited ", pid); !strings.Contains(out, want) {
						t.Errorf("upgrade says %q, not %q", out, want)
					}
				} else if checkJSON(t, "upgrade", out); json.Unmarshal([]byte(out), &report) != nil || report.PID != pid || !report.MountKept || report.PauseMs <= 0 {
					t.Errorf("upgrade says %s", out)
				}
				want := other
				if n == 2 {
					want = binary(t)
				}
				if at, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || at != want {
					t.Errorf("process %d executes %s, not %s: %v", pid, at, want, err)
				}
				if err := get("", admin+"/healthz"); err != nil {
					t.Error(err)
				}
				u.awaitSaid(t, "msg=serving ", n+2)
			}
			c.awaitRounds(t)
			c.end(t)
			u.stop(t)
			if u.err != nil {
				t.Errorf("it ended with %v", u.err)
			}
			if left := daemontest.MountsBelow(u.mount); len(left) > 0 {
				t.Errorf("mounts are left: %v", left)
			}
		})
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// script writes a program.
func (u *upgradable) script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(u.dir, "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A program that would not take over, or cannot be executed, is refused with the reason, and the daemon goes on: also its clients.
func TestUpgradeRefused(t *testing.T) {
	u := startUpgradable(t, "serve")
	c := workWith(t, u.mount, patient)
	pid := u.pidOf(t)
	refuse := func(says string, args ...string) {
		t.Helper()
		c.awaitRounds(t)
		if out, status := u.upgrade(t, args...); status != exitFailed || !strings.Contains(out, says) {
			t.Errorf("upgrade %v: %d: %q, want one that says %q", args, status, out, says)
		}
		c.awaitRounds(t)
		if u.pidOf(t) != pid {
			t.Fatal("another process serves")
		}
	}
	refuse("/bin/true is no kv3fs that can take over", "/bin/true")
	refuse("no such file or directory", filepath.Join(u.dir, "missing"))
	refuse("this is an old version", u.script(t, "echo this is an old version >&2; exit 2"))
	// It passes, and is gone when it is to be executed.
	refuse("no such file or directory", u.script(t, fmt.Sprintf("rm %s; exec %s \"$@\"", filepath.Join(u.dir, "script"), binary(t))))
	for says, more := range map[string]string{
		"passthrough is on in one and off in the other": "passthrough: off\n",
		"its block size is 1048576":                     "block-bytes: 4096\n",
		`its cluster is "kv3fs"`:                        "cluster: other\n",
		"--restart-state is off":                        "restart-state: off\n",
		"unknown key":                                   "no-such: key\n",
		"no state of a daemon in":                       "restart-state: " + u.state + "-other\n",
		"of another data directory":                     "data: " + t.TempDir() + "\n",
		"this daemon's is to be at":                     "mount: " + t.TempDir() + "\n",
	} {
		key, _, _ := strings.Cut(more, ":")
		u.configure(t, "")
		text, err := os.ReadFile(u.config)
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, key+":") {
				kept = append(kept, line)
			}
		}
		if err := os.WriteFile(u.config, []byte(strings.Join(kept, "")+more), 0o600); err != nil {
			t.Fatal(err)
		}
		refuse(says)
	}
	u.configure(t, "")
	if out, status := u.upgrade(t); status != 0 {
		t.Errorf("after all that an upgrade fails: %d: %s", status, out)
	}
	c.awaitRounds(t)
	c.end(t)
}
