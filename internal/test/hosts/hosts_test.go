package hosts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// soon is for what has no stated bound, such as servers that come back.
const soon = 4 * time.Minute

// onTime returns a bound that something stated comes within. With -short, as in make test, much else runs on the machine, and only what never comes is wrong.
func onTime(bound time.Duration) time.Duration {
	if testing.Short() {
		return soon
	}
	return bound
}

// namesBound is how long another host's names and bytes may be unseen: about a second by docs/hosts.md, and the rest is for a busy machine.
func namesBound() time.Duration { return onTime(20 * time.Second) }

// eventually calls fn until it reports that it is so, and returns how long that took. fn fails the test for what must never be
// seen.
func eventually(t *testing.T, what string, fn func() bool) time.Duration {
	t.Helper()
	return within(t, soon, what, fn)
}

func within(t *testing.T, bound time.Duration, what string, fn func() bool) time.Duration {
	t.Helper()
	for began := time.Now(); ; {
		if fn() {
			return time.Since(began)
		}
		if time.Since(began) > bound {
			t.Fatalf("after %v, not yet: %s", bound, what)
		}
		time.Sleep(20 * time.Millisecond) // nothing tells
	}
}

// KV3FS_HOSTS may name a directory of somebody's by mistake: down removes only what up has made.
func TestDownRemovesOnlyItsOwn(t *testing.T) {
	daemontest.NeedRoot(t)
	dir := t.TempDir()
	theirs := filepath.Join(dir, "theirs")
	if err := os.WriteFile(theirs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := &Hosts{t: t, env: append(os.Environ(), "KV3FS_HOSTS="+dir)}
	if _, err := h.command(nil, "down"); err == nil || !strings.Contains(err.Error(), "nothing is removed") {
		t.Errorf("down: %v", err)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".made-by-scripts-hosts"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Do("down")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("down leaves the directory of its own: %v", err)
	}
}

// One volume with GlusterFS's defaults serves all of these. docs/hosts.md has what they show. With -short, as in make test, it
// takes a minute.
func TestGlusterFS(t *testing.T) {
	h := Up(t, "gluster", 3) // it fails at once where CephFS hangs, so no short deadline is needed, which a busy machine may miss
	seeEachOther(t, h)
	t.Run("F: bricks", func(t *testing.T) { bricks(t, h) })
	t.Run("pages", func(t *testing.T) { pages(t, h, false) })
	t.Run("keep", func(t *testing.T) { keep(t, h) })
	if !testing.Short() {
		t.Run("blocks", func(t *testing.T) { blocks(t, h) })
		t.Run("hosts come back", func(t *testing.T) { comeBack(t, h, false) })
	}
	t.Run("A: ring writes that are not synced", func(t *testing.T) { writesThrough(t, h) })
}

// The same over CephFS through ceph-fuse.
func TestCephFS(t *testing.T) {
	h := Up(t, "ceph", 3, "--deadline", "2s")
	seeEachOther(t, h)
	for _, server := range []string{"mds", "osd"} {
		t.Run("without the "+server, func(t *testing.T) { without(t, h, server) })
	}
	t.Run("pages", func(t *testing.T) { pages(t, h, true) }) // ceph-fuse connects anew once in half an hour
	t.Run("keep", func(t *testing.T) { keep(t, h) })
	t.Run("hosts come back", func(t *testing.T) { comeBack(t, h, true) })
}

// seeEachOther is what hosts see of each other's files.
func seeEachOther(t *testing.T, h *Hosts) {
	rounds := 4
	if testing.Short() {
		rounds = 2
	}

	t.Run("A: ring writes", func(t *testing.T) { ringWrites(t, h) })

	// A block that is renamed into place is found by the others, who have missed it before, and never half or old.
	t.Run("names", func(t *testing.T) {
		for round := range rounds {
			path := fmt.Sprintf("%s/block-%d", Mount, round)
			for host := 2; host <= 3; host++ {
				if _, err := h.Run(host, "cat "+path); err == nil {
					t.Fatalf("host %d has %s before it was made", host, path)
				}
			}
			h.Must(1, fmt.Sprintf("yes block-%d | head -c 1000000 >%s.tmp && mv %[2]s.tmp %[2]s", round, path))
			want := h.Must(1, "cksum <"+path)
			for host := 2; host <= 3; host++ {
				took := within(t, namesBound(), path+" is found", func() bool {
					got, err := h.Run(host, "cksum <"+path)
					if err == nil && got != want {
						t.Fatalf("host %d: cksum %s, want %s: half a block", host, got, want)
					}
					return err == nil
				})
				t.Logf("host %d found it after %v", host, took.Round(time.Millisecond))
			}
		}
	})

	// C: a file that another host replaces while it is open here is the old one or the new one, and soon the new one.
	t.Run("C: replaced while open", func(t *testing.T) {
		path := Mount + "/replaced"
		h.Must(1, "yes old | head -c 500000 >"+path)
		old := h.Must(1, "cksum <"+path)
		eventually(t, "the old file is on host 2", func() bool { got, _ := h.Run(2, "cksum <"+path); return got == old })
		h.Must(2, "exec 3<"+path+"; setsid sleep 300 >/dev/null 2>&1 &")
		h.Must(1, fmt.Sprintf("yes new | head -c 600000 >%s.tmp && mv %[1]s.tmp %[1]s", path))
		fresh := h.Must(1, "cksum <"+path)
		failures := map[string]int{}
		took := within(t, namesBound(), "the new file is on host 2", func() bool {
			got, err := h.Run(2, "cksum <"+path)
			switch {
			case err != nil && strings.Contains(err.Error(), "Input/output error"):
				t.Fatalf("an open of the file that host 1 has replaced fails: %v", err)
			case err != nil:
				failures[err.Error()]++ // ESTALE, for the moment of the rename
			case got != old && got != fresh:
				t.Fatalf("host 2 reads a file that was never there: %s", got)
			}
			return got == fresh
		})
		t.Logf("after %v; opens that failed before: %v", took.Round(time.Millisecond), failures)
	})

	// D: an open descriptor of a file that is overwritten in place reads the new bytes soon. Small files and odd offsets take
	// the longest: GlusterFS keeps files of up to 64 KiB for a second.
	t.Run("D: overwritten while open", func(t *testing.T) {
		for _, size := range []int{65536, 1 << 20} {
			path := fmt.Sprint(Mount, "/overwritten-", size)
			h.Must(1, fmt.Sprintf("yes old | head -c %d >%s", size, path))
			eventually(t, "the old file is on host 2", func() bool { got, _ := h.Run(2, "head -c 3 "+path); return got == "old" })
			begun := fmt.Sprint("/mnt/disk/begun-", size)
			type answer struct {
				got []byte
				err error
			}
			answers := make(chan answer, 1)
			go func() {
				got, err := h.Watch(2, path, int64(size-4), 3, begun)
				answers <- answer{got, err}
			}()
			eventually(t, "host 2 has it open", func() bool { _, err := h.Run(2, "test -e "+begun); return err == nil })
			h.Must(1, fmt.Sprintf("yes new | head -c %d | dd of=%s conv=notrunc bs=%[1]d iflag=fullblock 2>/dev/null", size, path))
			wrote := time.Now()
			a := <-answers
			if a.err != nil || string(a.got) != "new" {
				t.Errorf("%d bytes: the descriptor that host 2 has open reads %q, %v", size, a.got, a.err)
			}
			took := time.Since(wrote)
			if took > namesBound() {
				t.Errorf("%d bytes: the descriptor that host 2 has open reads the new bytes after %v", size, took)
			}
			t.Logf("%d bytes: after %v", size, took.Round(time.Millisecond))
		}
	})

	// E: a removed file is gone on the others soon.
	t.Run("E: removed", func(t *testing.T) {
		path := Mount + "/removed"
		h.Must(1, "echo text >"+path)
		eventually(t, "the file is on host 2", func() bool { _, err := h.Run(2, "cat "+path); return err == nil })
		h.Must(1, "rm "+path)
		took := within(t, namesBound(), "the file is gone on host 2", func() bool { _, err := h.Run(2, "stat "+path); return err != nil })
		t.Logf("after %v", took.Round(time.Millisecond))
	})
}

// A, B: a ring write is complete when every host reads it, though each has read, and so might have cached, what was there.
func ringWrites(t *testing.T, h *Hosts) {
	sizes, rounds := []int{64 << 10, 1 << 20, 70000}, 4
	if testing.Short() {
		sizes, rounds = []int{64 << 10, 70000}, 2
	}
	for _, size := range sizes {
		path := fmt.Sprintf("%s/pages-%d", Mount, size)
		h.Must(1, fmt.Sprintf("head -c %d /dev/zero >%s", 4*size, path))
		eventually(t, "the file is on host 2", func() bool {
			n, err := h.Run(2, "stat -c %s "+path)
			return err == nil && strings.TrimSpace(n) == fmt.Sprint(4*size)
		})
		for round := range rounds {
			writer, reader := 1+round%2, 2-round%2
			h.RingRead(reader, path, int64(size), size)
			h.Must(reader, fmt.Sprintf("cat %s >/dev/null", path))
			want := bytes.Repeat([]byte{byte('a' + round)}, size)
			h.RingWrite(writer, path, int64(size), want)
			if got := h.RingRead(reader, path, int64(size), size); !bytes.Equal(got, want) {
				t.Errorf("%d bytes, round %d: host %d reads %q... right after host %d has written %q", size, round, reader, got[:1], writer, want[:1])
			}
			if got := h.Must(reader, fmt.Sprintf("tail -c +%d %s | head -c %d", size+1, path, size)); got != string(want) {
				t.Errorf("%d bytes, round %d: a reader on the mount of host %d sees other bytes", size, round, reader)
			}
		}
	}
}

// writesThrough is A where GlusterFS sends direct writes to its servers at once: hosts that mount the volume then do not sync.
func writesThrough(t *testing.T, h *Hosts) {
	h.Do("store", "gluster", "--mode=script", "volume", "set", "gv", "performance.strict-o-direct", "on")
	h.Do("kill", "1")
	h.Do("kill", "2")
	h.Do("heal")
	for host := 1; host <= 2; host++ {
		if said := h.Log(host); !strings.Contains(said, "sync=false") {
			t.Errorf("host %d syncs:\n%s", host, said)
		}
	}
	ringWrites(t, h)
}

// sick waits until host n says that its file system does not work, and why, in readiness and in its log.
func sick(t *testing.T, h *Hosts, n int, why string) {
	t.Helper()
	eventually(t, fmt.Sprint("host ", n, " says that its file system does not work"), func() bool {
		said, _ := h.Run(n, "timeout 30 curl -s http://127.0.0.1:18000/readyz")
		if !strings.Contains(said, "does not work") || !strings.Contains(said, why) {
			return false
		}
		is, last := isSick(h, n)
		return is && strings.Contains(last, why)
	})
}

// well waits until host n says that its file system works again.
func well(t *testing.T, h *Hosts, n int) {
	t.Helper()
	eventually(t, fmt.Sprint("host ", n, " says that its file system works"), func() bool {
		said, _ := h.Run(n, "timeout 30 curl -s http://127.0.0.1:18000/readyz")
		if !strings.Contains(said, `"ready"`) {
			return false
		}
		is, _ := isSick(h, n)
		return !is
	})
}

// isSick reports whether host n has logged that its file system does not work, and not since that it works. last is the last
// such line.
func isSick(h *Hosts, n int) (is bool, last string) {
	for line := range strings.Lines(h.Log(n)) {
		switch {
		case strings.Contains(line, "file system does not work"):
			is, last = true, line
		case strings.Contains(line, "file system works again"), strings.Contains(line, "msg=serving "):
			is = false
		}
	}
	return is, last
}

// asking are commands that no client of a file system answers without its servers. Some are executed when those are back: what they remove or change is
// path.victim.
func asking(path string) []string {
	victim := path + ".victim"
	return []string{
		"ls " + Mount, "echo new >" + path + ".new", "mkdir " + path + ".dir", "rm " + victim, "mv " + victim + " " + path + ".moved", "truncate -s 1 " + victim,
		"cat " + Mount + "/missing",
	}
}

// onlyEIO has a host run commands, and wants EIO of each.
func onlyEIO(t *testing.T, h *Hosts, n int, commands ...string) {
	t.Helper()
	for _, command := range commands {
		_, err := h.Run(n, "timeout 60 sh -c '"+command+"'")
		if err == nil || !strings.Contains(err.Error(), "Input/output error") {
			t.Errorf("host %d: %s: %v, want an input/output error", n, command, err)
		}
	}
}

// F: one brick of three dies, and nobody notices. The second one takes the volume away: EIO for clients, who must not take
// the daemon for dead, and the truth in readiness and log. The daemon goes on when they are back, with what clients had open.
func bricks(t *testing.T, h *Hosts) {
	path := Mount + "/bricks"
	h.Must(1, "yes | head -c 65536 >"+path+"; cp "+path+" "+path+".victim")
	h.Do("server", "kill", "1")
	eventually(t, "host 2 reads with one brick away", func() bool { got, _ := h.Run(2, "head -c 2 "+path); return got == "y\n" })
	h.RingWrite(1, path, 0, bytes.Repeat([]byte("m"), 65536))
	held := h.Hold(2, path, 65536)
	h.Do("server", "kill", "2")
	sick(t, h, 1, "transport endpoint is not connected")
	sick(t, h, 2, "transport endpoint is not connected")
	onlyEIO(t, h, 1, append(asking(path), "stat "+Mount, "cat "+path, "echo more >>"+path+".victim")...)
	if _, err := held.Read(); err == nil || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("a ring's read without a quorum: %v", err)
	}
	if got := h.Must(1, "ls -d "+Mount+"/3fs-virt 2>&1; pgrep -c kv3fs"); !strings.Contains(got, "1") {
		t.Errorf("host 1's daemon: %s", got)
	}
	h.Do("heal")
	well(t, h, 1)
	well(t, h, 2)
	eventually(t, "the volume is back", func() bool { got, _ := h.Run(3, "head -c 2 "+path); return got == "mm" })
	eventually(t, "what a client had registered can be read again", func() bool {
		got, err := held.Read()
		return err == nil && bytes.Equal(got, bytes.Repeat([]byte("m"), 65536))
	})
	held.End()
}

// without is a CephFS whose only server of a kind has died: it hangs, and what hangs is answered in bounded time.
func without(t *testing.T, h *Hosts, server string) {
	path := Mount + "/without-" + server
	h.Must(1, "yes | head -c 65536 >"+path+"; cp "+path+" "+path+".victim")
	held := h.Hold(1, path, 65536)
	h.Do("server", "kill", server)
	if server == "mds" {
		sick(t, h, 1, "has not answered")
		onlyEIO(t, h, 1, asking(path)...) // ceph-fuse may know the rest
	} else if _, err := held.Read(); err == nil || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("a ring's read without the OSD: %v", err) // names go on
	}
	h.Do("heal")
	well(t, h, 1)
	eventually(t, "what a client had registered can be read again", func() bool {
		got, err := held.Read()
		return err == nil && len(got) == 65536 && got[0] == 'y'
	})
	held.End()
	eventually(t, "host 2 has it", func() bool { got, _ := h.Run(2, "timeout 60 head -c 2 "+path); return got == "y\n" })
}

// Hosts without power, paused and cut off come back with what others have written meanwhile. Where clients come back once, those that have done so need new
// ones first.
func comeBack(t *testing.T, h *Hosts, once bool) {
	if once {
		h.Do("kill", "2")
		h.Do("kill", "3")
		h.Do("heal")
	}
	h.Do("kill", "1")
	eventually(t, "host 2 goes on", func() bool {
		_, err := h.Run(2, "timeout 60 sh -c 'echo second >"+Mount+"/meanwhile'")
		return err == nil
	})
	h.Do("heal")
	eventually(t, "host 1 has it", func() bool { got, _ := h.Run(1, "timeout 60 cat "+Mount+"/meanwhile"); return got == "second\n" })
	h.Do("stop", "3")
	h.Do("cut", "2")
	eventually(t, "host 1 goes on", func() bool {
		_, err := h.Run(1, "timeout 60 sh -c 'echo first >"+Mount+"/meanwhile'")
		return err == nil
	})
	h.Do("heal")
	for host := 2; host <= 3; host++ {
		eventually(t, fmt.Sprint("host ", host, " has it"), func() bool { got, _ := h.Run(host, "timeout 60 cat "+Mount+"/meanwhile"); return got == "first\n" })
		well(t, h, host)
	}
}
