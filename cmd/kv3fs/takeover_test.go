package main

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Clients notice nothing when another process takes over from their daemon, which ends.
func TestTakeover(t *testing.T) {
	u := startUpgradable(t, "serve")
	all := maps.Clone(workers)
	maps.Copy(all, patient)
	c := workWith(t, u.mount, all)
	admin := adminURL(t, u.running)
	for range 2 {
		c.awaitRounds(t)
		next := runAs(t, detached, nil, binary(t), "msg=serving ", "serve", "--takeover", "--config", u.config)
		if !strings.Contains(next.said(), "mount_kept=true") {
			t.Fatalf("the next process has not taken over:\n%s\n%s", next.said(), u.said())
		}
		select {
		case <-u.exited:
		case <-time.After(time.Minute):
			t.Fatal("the process before does not end")
		}
		if u.err != nil {
			t.Errorf("the process before ended with %v", u.err)
		}
		c.awaitRounds(t)
		if err := get("", admin+"/healthz"); err != nil {
			t.Error(err)
		}
		u.running = next
	}
	if out, status := u.upgrade(t); status != 0 {
		t.Errorf("an upgrade after a takeover: %d: %s", status, out)
	}
	c.awaitRounds(t)
	c.end(t)
	u.stop(t)
	if left := daemontest.MountsBelow(u.mount); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}

// A newcomer that ends at any step before it serves leaves the daemon as it was: clients wait, no more.
func TestTakeoverGivenUp(t *testing.T) {
	u := startUpgradable(t, "serve")
	all := maps.Clone(workers)
	maps.Copy(all, patient)
	c := workWith(t, u.mount, all)
	pid := u.pidOf(t)
	hear := func(conn *net.UnixConn) string {
		t.Helper()
		b, oob := make([]byte, 1<<14), make([]byte, 1<<12)
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, used, _, _, err := conn.ReadMsgUnix(b, oob)
		if err != nil {
			t.Fatal(err)
		}
		controls, err := unix.ParseSocketControlMessage(oob[:used])
		if err != nil {
			t.Fatal(err)
		}
		for i := range controls {
			fds, err := unix.ParseUnixRights(&controls[i])
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
		return string(b[:n])
	}
	said, served := 0, 1
	for name, step := range map[string]func(conn *net.UnixConn) (again bool){
		"silent":          func(*net.UnixConn) bool { return false },
		"strange":         func(conn *net.UnixConn) bool { _, _ = conn.Write([]byte("take over 2")); hear(conn); return false },
		"asked":           func(conn *net.UnixConn) bool { _, _ = conn.Write([]byte("take over 1")); return false },
		"has descriptors": func(conn *net.UnixConn) bool { _, _ = conn.Write([]byte("take over 1")); hear(conn); return false },
		"is about to serve": func(conn *net.UnixConn) bool {
			_, _ = conn.Write([]byte("take over 1"))
			if names := hear(conn); !strings.Contains(names, "kv3fs-mount") {
				t.Errorf("the daemon sends %q", names)
			}
			_, _ = conn.Write([]byte("have"))
			if word := hear(conn); word != "go" {
				t.Errorf("the daemon says %q", word)
			}
			return true
		},
	} {
		c.awaitRounds(t)
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(u.state, "takeover"), Net: "unixpacket"})
		if err != nil {
			t.Fatal(name, err)
		}
		again := step(conn)
		_ = conn.Close()
		if again {
			served++
			u.awaitSaid(t, "msg=serving ", served)
		} else {
			said++
			u.awaitSaid(t, `msg="no process has taken over: all goes on"`, said)
		}
		c.awaitRounds(t)
		if u.pidOf(t) != pid {
			t.Fatal("another process serves")
		}
	}
	// One whose configuration is another one does not even ask.
	other := runAs(t, detached, nil, binary(t), "kv3fs ends", "serve", "--takeover", "--config", u.config, "--cluster", "other")
	if says := `its cluster is \"kv3fs\"`; !strings.Contains(other.said(), says) {
		t.Errorf("a newcomer with another cluster says %s", other.said())
	}
	c.awaitRounds(t)
	c.end(t)
}

// A newcomer that fails after it has taken over rings and the mount leaves them to the daemon, which goes on.
func TestTakeoverFails(t *testing.T) {
	u := startUpgradable(t, "serve")
	all := maps.Clone(workers)
	maps.Copy(all, patient)
	c := workWith(t, u.mount, all)
	c.awaitRounds(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for n, address := range []string{"--admin-listen", "--pages-listen"} {
		next := runAs(t, detached, nil, binary(t), "kv3fs ends", "serve", "--takeover", "--config", u.config, address, taken.Addr().String())
		if !strings.Contains(next.said(), "in use") {
			t.Errorf("the newcomer says %s", next.said())
		}
		u.awaitSaid(t, "msg=serving ", n+2)
		c.awaitRounds(t)
	}
	c.end(t)
}

// A daemon that is killed before it has handed anything over is started again by whoever has started it, and goes on where it was: the
// newcomer spoils nothing.
func TestTakeoverFromOneThatIsKilled(t *testing.T) {
	u := startUpgradable(t, "hold", "--", "serve")
	all := maps.Clone(workers)
	maps.Copy(all, patient)
	c := workWith(t, u.mount, all)
	c.awaitRounds(t)
	pid := u.pidOf(t)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	next := make(chan *running, 1)
	go func() {
		next <- runAs(t, detached, nil, binary(t), "kv3fs ends", "serve", "--takeover", "--config", u.config)
	}()
	awaitConnected(t, filepath.Join(u.state, "takeover"))
	killAndAwait(t, pid)
	if r := <-next; !strings.Contains(r.said(), "has ended before it handed anything over") {
		t.Errorf("the newcomer says:\n%s", r.said())
	}
	c.awaitRounds(t)
	c.end(t)
}

// awaitConnected waits until somebody has connected to a socket whose process is stopped.
func awaitConnected(t *testing.T, path string) {
	t.Helper()
	await(t, "a connection", func() bool {
		text, err := os.ReadFile("/proc/net/unix")
		return err == nil && strings.Count(string(text), path) > 1
	})
}
